//! A device that computes with what its pages hold.

use std::collections::VecDeque;

use contract::{PAGE_TOKENS, PageId, Seat, TokenId};

use crate::Config;
use crate::step::{Bind, Feed, StepPlan};

/// A token that depends on every token before it, and on their order.
pub(crate) fn next_token(tokens: impl Iterator<Item = TokenId>) -> TokenId {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for token in tokens {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    (hash % 41) as TokenId
}

#[derive(Default)]
struct Row {
    bound: bool,
    pages: Vec<PageId>,
    len: u32,
    last: TokenId,
    stop: Option<TokenId>,
    done: bool,
    /// What a recurrent layer would know: all tokens so far. `None`: the seat began behind others and loaded nothing yet.
    state: Option<Vec<TokenId>>,
}

pub(crate) struct Out {
    pub tokens: Vec<TokenId>,
    pub end: u32,
    pub done: bool,
}

pub(crate) struct Device {
    kv: Vec<TokenId>,
    rows: Vec<Row>,
    outs: VecDeque<Vec<Out>>,
    /// Saved states, when the model has any.
    saved: Option<Vec<Option<Vec<TokenId>>>>,
    pub last_rows: u32,
}

impl Device {
    pub fn new(config: &Config) -> Self {
        Self {
            kv: vec![TokenId::MAX; (config.pages * PAGE_TOKENS) as usize],
            rows: (0..config.seats).map(|_| Row::default()).collect(),
            outs: VecDeque::new(),
            saved: None,
            last_rows: 0,
        }
    }

    pub fn with_states(mut self, slots: u32) -> Self {
        self.saved = Some(vec![None; slots as usize]);
        self
    }

    pub fn release(&mut self, seats: &[Seat]) {
        for seat in seats {
            let row = &mut self.rows[seat.0 as usize];
            assert!(row.bound, "seat {} is released twice", seat.0);
            *row = Row::default();
        }
    }

    pub fn bind(&mut self, bind: &Bind, stop: Option<TokenId>) {
        let row = &mut self.rows[bind.seat.0 as usize];
        assert!(!row.bound, "seat {} is bound twice", bind.seat.0);
        let state = (bind.start == 0).then(Vec::new);
        *row = Row { bound: true, len: bind.start, stop, state, ..Row::default() };
    }

    pub fn run(&mut self, plan: &StepPlan) {
        self.last_rows = plan.rows;
        for append in &plan.appends {
            let row = &mut self.rows[append.seat.0 as usize];
            assert_eq!(row.pages.len() as u32, append.at, "pages leave a hole");
            row.pages.extend_from_slice(&plan.pages[append.pages.start as usize..append.pages.end as usize]);
        }
        for load in &plan.loads {
            let saved = self.saved.as_ref().and_then(|saved| saved[load.slot as usize].clone());
            let state = saved.expect("a state is saved before it is loaded");
            assert_eq!(
                (state.len() as u32, load.at),
                (load.at, self.rows[load.seat.0 as usize].len),
                "of another length"
            );
            self.rows[load.seat.0 as usize].state = Some(state);
        }
        let outs: Vec<_> = plan
            .runs
            .iter()
            .map(|run| {
                let row = &mut self.rows[run.seat.0 as usize];
                assert!(row.bound, "a run on an empty seat");
                if row.done {
                    return Out { tokens: Vec::new(), end: row.len, done: true };
                }
                let fed = match &run.feed {
                    Feed::Last => vec![row.last],
                    Feed::Tokens(range) => plan.tokens[range.start as usize..range.end as usize].to_vec(),
                };
                assert_eq!(fed.len() as u32, run.rows);
                for token in fed {
                    let page = row.pages[(row.len / PAGE_TOKENS) as usize];
                    self.kv[(page.0 * PAGE_TOKENS + row.len % PAGE_TOKENS) as usize] = token;
                    row.len += 1;
                    let Some(saved) = &mut self.saved else { continue };
                    let state = row.state.as_mut().expect("a seat behind others loads its state first");
                    state.push(token);
                    for save in plan.saves.iter().filter(|save| (save.seat, save.at) == (run.seat, row.len)) {
                        saved[save.slot as usize] = Some(state.clone());
                    }
                }
                assert_eq!(row.len, run.end, "the bound of the length is exact without drafts");
                let mut tokens = Vec::new();
                if run.emits {
                    let kv = &self.kv;
                    let visible = (0..row.len).map(|at| {
                        kv[(row.pages[(at / PAGE_TOKENS) as usize].0 * PAGE_TOKENS + at % PAGE_TOKENS) as usize]
                    });
                    if self.saved.is_some() {
                        let state = row.state.as_ref().expect("it was fed");
                        assert!(
                            state.iter().copied().eq(visible.clone()),
                            "the state is of other tokens than the pages"
                        );
                    }
                    row.last = next_token(visible);
                    row.done = Some(row.last) == row.stop;
                    tokens.push(row.last);
                }
                Out { tokens, end: row.len, done: row.done }
            })
            .collect();
        if !outs.is_empty() {
            self.outs.push_back(outs);
        }
    }

    pub fn collect(&mut self) -> Vec<Out> {
        self.outs.pop_front().expect("a step is in flight")
    }
}
