//! A small device whose next token is a hash of everything its pages hold for the seat.
//!
//! A wrong page table, a stale prefix, a lost recompute or a token fed twice changes the text, so comparing a request
//! with [`alone`] finds every paging mistake.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use backend::step::{Caps, Emit, Feed, Mask, RunOut, SeatFault, SeatInit, Step, StepOut, Table, Ticket};
use backend::{Backend, BackendError};
use contract::sampling::TokenLogprobs;
use contract::{PAGE_TOKENS, PageId, Seat, TokenId};

pub(crate) const VOCAB: u32 = 97;

/// Prompts with this first token are refused by the device, as a scripted model may do.
pub(crate) const UNBINDABLE: TokenId = 96;

fn hash(tokens: impl Iterator<Item = TokenId>) -> u64 {
    tokens.fold(0xcbf2_9ce4_8422_2325, |hash: u64, token| {
        let hash = (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 29)
    })
}

/// The first allowed token from the hash on, around the vocabulary.
fn pick(hash: u64, mask: Option<&[u32]>) -> Option<TokenId> {
    let start = (hash % u64::from(VOCAB)) as u32;
    let allowed = |token: u32| mask.is_none_or(|bits| bits[token as usize / 32] >> (token % 32) & 1 == 1);
    (start..VOCAB).chain(0..start).find(|&token| allowed(token))
}

/// What a request generates when it has the device for itself.
pub(crate) fn alone(prompt: &[TokenId], max_new: usize, stop: &[TokenId]) -> Vec<TokenId> {
    let mut all = prompt.to_vec();
    while all.len() < prompt.len() + max_new {
        let token = pick(hash(all.iter().copied()), None).expect("no mask");
        all.push(token);
        if stop.contains(&token) {
            break;
        }
    }
    all.split_off(prompt.len())
}

/// The logprob that [`Fake`] gives the token after these.
fn score(hash: u64) -> f32 {
    -((hash % 1000) as f32)
}

/// Token and logprob of a prompt's own tokens but the first.
pub(crate) fn scores(prompt: &[TokenId]) -> Vec<(TokenId, f32)> {
    (1..prompt.len()).map(|at| (prompt[at], score(hash(prompt[..at].iter().copied())))).collect()
}

/// What goes wrong, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Trouble {
    #[default]
    None,
    /// The device fails at this step, and says something else ever after.
    FaultAt(u64),
    PanicAt(u64),
    /// The seat whose prompt starts with this token fails after two tokens.
    SeatOf(TokenId),
}

#[derive(Clone, Default)]
struct Row {
    bound: bool,
    pages: Vec<PageId>,
    len: u32,
    last: TokenId,
    stop: Vec<TokenId>,
    logprobs: bool,
    first: TokenId,
    sampled: u32,
    done: bool,
}

struct Launched {
    seat: Seat,
    masked: bool,
    /// Of a run that samples.
    state: Option<u64>,
    prompt: Vec<TokenLogprobs>,
}

struct Pending {
    ticket: Ticket,
    runs: Vec<Launched>,
    out: Option<StepOut>,
}

pub(crate) struct Fake {
    caps: Caps,
    kv: Vec<TokenId>,
    rows: Vec<Row>,
    pending: VecDeque<Pending>,
    steps: u64,
    trouble: Trouble,
    failed: bool,
    /// A step is collected for each permit; without a gate, at once.
    gate: Option<Receiver<()>>,
    /// What it says that a step took.
    step_time: Duration,
}

impl Fake {
    pub fn new(seats: u16, pages: u32, in_flight: u8) -> Self {
        let caps = Caps {
            vocab: VOCAB,
            context_len: 4096,
            seats,
            pages,
            page_tokens: PAGE_TOKENS,
            recurrent: false,
            state_slots: 0,
            adapters: 0,
            max_rows: 128,
            max_query: 1,
            in_flight,
            resume_align: 1,
            rows_tile: 1,
            large_rows_tile: 1,
            mask_words: VOCAB.div_ceil(32),
            graphs: Vec::new(),
        };
        Self {
            kv: vec![TokenId::MAX; (pages * PAGE_TOKENS) as usize],
            rows: vec![Row::default(); seats.into()],
            pending: VecDeque::new(),
            steps: 0,
            trouble: Trouble::None,
            failed: false,
            gate: None,
            step_time: Duration::from_micros(100),
            caps,
        }
    }

    pub fn context(mut self, context_len: u32) -> Self {
        self.caps.context_len = context_len;
        self
    }

    pub fn trouble(mut self, trouble: Trouble) -> Self {
        self.trouble = trouble;
        self
    }

    pub fn step_time(mut self, step_time: Duration) -> Self {
        self.step_time = step_time;
        self
    }

    /// Each send lets one step be collected; after the sender is gone, all of them.
    pub fn gated(mut self) -> (Self, Sender<()>) {
        let (permits, gate) = channel();
        self.gate = Some(gate);
        (self, permits)
    }

    fn feed(&mut self, seat: Seat, tokens: &[TokenId]) {
        let row = &mut self.rows[seat.0 as usize];
        for &token in tokens {
            let page = row.pages[(row.len / PAGE_TOKENS) as usize];
            self.kv[(page.0 * PAGE_TOKENS + row.len % PAGE_TOKENS) as usize] = token;
            row.len += 1;
        }
    }

    fn visible(&self, seat: Seat) -> u64 {
        let row = &self.rows[seat.0 as usize];
        hash((0..row.len).map(|at| {
            let page = row.pages[(at / PAGE_TOKENS) as usize];
            self.kv[(page.0 * PAGE_TOKENS + at % PAGE_TOKENS) as usize]
        }))
    }
}

impl Backend for Fake {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn scores(&self) -> bool {
        true
    }

    fn bind(&mut self, seat: Seat, init: &SeatInit<'_>) -> Result<(), BackendError> {
        if init.prompt[0] == UNBINDABLE {
            return Err(BackendError::Script("no response matches".into()));
        }
        let row = &mut self.rows[seat.0 as usize];
        assert!(!row.bound, "seat {} is bound twice", seat.0);
        *row = Row {
            bound: true,
            len: init.start,
            stop: init.sampling.stop_tokens.clone(),
            logprobs: init.sampling.logprobs.is_some(),
            first: init.prompt[0],
            sampled: init.generated.len() as u32,
            ..Row::default()
        };
        Ok(())
    }

    fn release(&mut self, seat: Seat) {
        assert!(self.rows[seat.0 as usize].bound, "seat {} is released twice", seat.0);
        self.rows[seat.0 as usize] = Row::default();
    }

    fn forward(&mut self, step: &Step<'_>) -> Result<Ticket, BackendError> {
        self.steps += 1;
        if self.failed {
            return Err(BackendError::Device { operation: "forward".into(), cause: "the second fault".into() });
        }
        match self.trouble {
            Trouble::FaultAt(at) if at == self.steps => {
                self.failed = true;
                return Err(BackendError::Device { operation: "attend".into(), cause: "the first fault".into() });
            }
            Trouble::PanicAt(at) if at == self.steps => panic!("the device driver panics"),
            _ => {}
        }
        assert!(self.pending.len() < usize::from(self.caps.in_flight), "too many steps in flight");
        assert!(step.runs.iter().map(|run| run.rows).sum::<u32>() <= self.caps.max_rows);
        for table in step.tables {
            let Table::Append { seat, at, pages } = table else { panic!("only pages are appended") };
            assert_eq!(self.rows[seat.0 as usize].pages.len() as u32, *at);
            self.rows[seat.0 as usize].pages.extend_from_slice(pages);
        }
        let mut runs = Vec::new();
        for run in step.runs {
            let row = &self.rows[run.seat.0 as usize];
            assert!(row.bound, "a run on seat {}, which is free", run.seat.0);
            let tokens = match &run.feed {
                Feed::Last => vec![row.last],
                Feed::Tokens(range) => step.tokens[range.start as usize..range.end as usize].to_vec(),
                Feed::Draft { .. } => panic!("this device has no drafter"),
            };
            if row.done {
                runs.push(Launched { seat: run.seat, masked: false, state: None, prompt: Vec::new() });
                continue;
            }
            let mut prompt = Vec::new();
            for (at, token) in tokens.iter().enumerate() {
                self.feed(run.seat, &[*token]);
                if let Emit::Every { from, next, .. } = run.emit
                    && let Some(&token) = tokens.get(at + 1).or(next.as_ref()).filter(|_| at >= from as usize)
                {
                    let logprob = score(self.visible(run.seat));
                    prompt.push(TokenLogprobs { token, logprob, rank: 1, top: Vec::new() });
                }
            }
            assert_eq!(self.rows[run.seat.0 as usize].len, run.end_max);
            let state = run.emit.samples().then(|| self.visible(run.seat));
            runs.push(Launched { seat: run.seat, masked: run.masked, state, prompt });
        }
        let ticket = Ticket(self.steps);
        self.pending.push_back(Pending { ticket, runs, out: None });
        Ok(ticket)
    }

    fn sample(&mut self, ticket: Ticket, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        let pending = self.pending.iter_mut().find(|pending| pending.ticket == ticket).expect("a launched ticket");
        let mut out = StepOut { device: self.step_time, ..StepOut::default() };
        for (index, Launched { seat, masked, state, prompt }) in pending.runs.iter().enumerate() {
            let row = &mut self.rows[seat.0 as usize];
            let mask = masks.iter().find(|mask| mask.run as usize == index).map(|mask| mask.bits);
            assert_eq!(*masked, mask.is_some(), "run {index}: announced, given");
            let (first, first_logprob) = (out.tokens.len() as u32, out.logprobs.len() as u32);
            let mut fault = None;
            out.logprobs.extend_from_slice(prompt);
            if let Some(state) = *state {
                match pick(state, mask) {
                    Some(token) => {
                        row.last = token;
                        row.sampled += 1;
                        row.done = row.stop.contains(&token);
                        out.tokens.push(token);
                        if row.logprobs {
                            out.logprobs.push(TokenLogprobs {
                                token,
                                logprob: -1.0,
                                rank: 1,
                                top: vec![(token, -1.0)],
                            });
                        }
                    }
                    None => fault = Some(SeatFault::Error("the mask allows nothing".into())),
                }
                if self.trouble == Trouble::SeatOf(row.first) && row.sampled >= 2 {
                    fault = Some(SeatFault::Error("this seat is at fault".into()));
                }
            }
            out.runs.push(RunOut {
                tokens: first..out.tokens.len() as u32,
                accepted: 0,
                end: row.len,
                done: row.done,
                logprobs: first_logprob..out.logprobs.len() as u32,
                pooled: 0..0,
                fault,
            });
        }
        pending.out = Some(out);
        Ok(())
    }

    fn drafts(&mut self, _ticket: Ticket, _run: u32) -> Result<Vec<TokenId>, BackendError> {
        Err(BackendError::InvalidStep("this device has no drafter".into()))
    }

    fn collect(&mut self, ticket: Ticket, wait: bool) -> Result<Option<StepOut>, BackendError> {
        if let Some(gate) = &self.gate {
            // A gate whose sender is gone is open.
            match wait {
                true => drop(gate.recv()),
                false if gate.try_recv() == Err(TryRecvError::Empty) => return Ok(None),
                false => {}
            }
        }
        let pending = self.pending.pop_front().expect("a ticket is open");
        assert_eq!(pending.ticket, ticket, "collected out of order");
        Ok(Some(pending.out.expect("sampled before it is collected")))
    }
}
