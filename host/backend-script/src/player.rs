//! The backend that plays a script.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::load::{LoadOptions, MemoryPlan};
use backend::step::{Caps, Emit, Feed, Mask, Run, RunOut, SeatFault, SeatInit, Step, StepOut, Table, Ticket};
use backend::{Backend, BackendError};
use contract::{PAGE_TOKENS, PageId, Seat, TokenId};

use crate::recall::Recall;
use crate::script::Script;
use crate::seat::{Said, Walk};

/// A script keeps nothing per token, so its pool is only a number: four full contexts let prompts share and compete.
const POOL_CONTEXTS: u32 = 4;

/// One bound sequence. It outlives its seat until the last ticket that ran it is collected.
struct Sequence {
    walk: Walk,
    seed: u64,
    prompt: Vec<TokenId>,
    choice: usize,
    /// Prompt, what was generated before a preemption, and what was said since.
    tokens: Vec<TokenId>,
    /// Rows that ran: tokens whose KV exists.
    len: u32,
    pages: Vec<PageId>,
    done: bool,
    /// A row was launched whose token is not sampled yet.
    unsampled: bool,
}

/// A launched step.
struct Open {
    ticket: Ticket,
    runs: Vec<(u64, Run)>,
    ready: Option<Instant>,
    launched: Instant,
    out: StepOut,
}

/// Plays a [`Script`] as a [`Backend`].
pub struct ScriptBackend {
    script: Arc<Script>,
    caps: Caps,
    recall: Recall,
    seats: HashMap<Seat, u64>,
    sequences: HashMap<u64, Sequence>,
    open: VecDeque<Open>,
    next_key: u64,
    next_ticket: u64,
    /// When the last launched step is over.
    busy_until: Option<Instant>,
}

impl ScriptBackend {
    pub fn new(script: Arc<Script>, options: &LoadOptions) -> (Self, MemoryPlan) {
        let mut lowered = Vec::new();
        let context_len = match options.context_len {
            Some(asked) if asked > script.context() => {
                lowered.push(format!("context {asked} lowered to the script's {}", script.context()));
                script.context()
            }
            asked => asked.unwrap_or(script.context()).max(2),
        };
        let pool = options.kv_tokens.unwrap_or(context_len.saturating_mul(POOL_CONTEXTS));
        let pages = pool.div_ceil(PAGE_TOKENS).max(1);
        let vocab = script.vocab_size();
        let caps = Caps {
            vocab,
            context_len,
            seats: options.seats.max(1),
            pages,
            page_tokens: PAGE_TOKENS,
            recurrent: false,
            state_slots: 0,
            adapters: 0,
            max_rows: options.max_rows.max(1),
            max_query: 1,
            in_flight: 2,
            resume_align: 1,
            rows_tile: 1,
            large_rows_tile: 1,
            mask_words: vocab.div_ceil(32),
            graphs: Vec::new(),
        };
        let plan = MemoryPlan { pages, seats: caps.seats, lowered, ..Default::default() };
        let backend = Self {
            script,
            caps,
            recall: Recall::default(),
            seats: HashMap::new(),
            sequences: HashMap::new(),
            open: VecDeque::new(),
            next_key: 0,
            next_ticket: 0,
            busy_until: None,
        };
        (backend, plan)
    }

    /// Steps that may be open at once: 2 unless set, so that an engine's asynchronous path is exercised.
    pub fn with_in_flight(mut self, steps: u8) -> Self {
        self.caps.in_flight = steps.max(1);
        self
    }

    fn apply(&mut self, table: &Table<'_>) -> Result<(), BackendError> {
        let Table::Append { seat, at, pages } = table else {
            return match table {
                // Pages hold nothing.
                Table::CopyPage { .. } => Ok(()),
                _ => Err(invalid("a scripted model has no recurrent state")),
            };
        };
        if let Some(page) = pages.iter().find(|page| page.0 >= self.caps.pages) {
            return Err(invalid(format!("page {} of a pool of {}", page.0, self.caps.pages)));
        }
        let sequence = self.sequence(*seat)?;
        if *at as usize != sequence.pages.len() {
            let have = sequence.pages.len();
            return Err(invalid(format!("{seat:?} has {have} pages, the next come at {at}")));
        }
        sequence.pages.extend_from_slice(pages);
        Ok(())
    }

    fn sequence(&mut self, seat: Seat) -> Result<&mut Sequence, BackendError> {
        let key = self.seats.get(&seat).ok_or_else(|| invalid(format!("{seat:?} is free")))?;
        self.sequences.get_mut(key).ok_or_else(|| invalid(format!("{seat:?} is free")))
    }

    /// Checks a run against its sequence and advances it.
    fn launch(&mut self, run: &Run, fed: &[TokenId]) -> Result<u64, BackendError> {
        let context_len = self.caps.context_len;
        let key = *self.seats.get(&run.seat).ok_or_else(|| invalid(format!("{:?} is free", run.seat)))?;
        let sequence = self.sequence(run.seat)?;
        if sequence.done {
            return Ok(key);
        }
        let (start, end) = (sequence.len as usize, sequence.len as usize + run.rows as usize);
        match &run.feed {
            Feed::Last if run.rows == 1 && !sequence.unsampled => {
                if start + 1 != sequence.tokens.len() {
                    let known = sequence.tokens.len();
                    return Err(invalid(format!("{:?}: last token fed at {start}, {known} are known", run.seat)));
                }
            }
            Feed::Tokens(range) => {
                let wanted = fed.get(range.start as usize..range.end as usize);
                if wanted.is_none_or(|w| w.len() != run.rows as usize || sequence.tokens.get(start..end) != Some(w)) {
                    let text = format!("{:?}: the tokens fed at {start}..{end} are not the sequence's own", run.seat);
                    return Err(invalid(text));
                }
            }
            feed => return Err(invalid(format!("{:?}: {feed:?} with {} rows", run.seat, run.rows))),
        }
        if (run.end_max as usize) < end || run.end_max > context_len {
            let text = format!("{:?}: end_max {} with {end} rows, context {context_len}", run.seat, run.end_max);
            return Err(invalid(text));
        }
        if sequence.pages.len() * (PAGE_TOKENS as usize) < end {
            let pages = sequence.pages.len();
            return Err(invalid(format!("{:?}: {pages} pages for {end} tokens", run.seat)));
        }
        match run.emit {
            Emit::Nothing | Emit::Pool { .. } => {}
            Emit::Next if end == sequence.tokens.len() => sequence.unsampled = true,
            Emit::Next => return Err(invalid(format!("{:?}: a token asked for before the prompt's end", run.seat))),
            emit => {
                let fix = "a scripted model gives one sampled token per step".into();
                return Err(BackendError::Unsupported { what: format!("{emit:?}"), fix });
            }
        }
        sequence.len = end as u32;
        Ok(key)
    }

    /// The outcome of one run, into `out`.
    fn play(&mut self, key: u64, run: &Run, mask: Option<&Mask<'_>>, out: &mut StepOut) {
        let mut entry = RunOut {
            tokens: empty(out.tokens.len()),
            accepted: 0,
            end: 0,
            done: false,
            logprobs: empty(out.logprobs.len()),
            pooled: empty(out.pooled.len()),
            fault: None,
        };
        if let Some(sequence) = self.sequences.get_mut(&key) {
            entry.done = sequence.done;
            entry.end = sequence.len;
            if let Emit::Pool { mean } = run.emit {
                let rows = &sequence.tokens[(run.end_max - run.rows) as usize..run.end_max as usize];
                pool(if mean { rows } else { &rows[rows.len() - 1..] }, &mut out.pooled);
                entry.pooled.end = out.pooled.len() as u32;
            }
            if run.emit == Emit::Next && !sequence.done {
                sequence.unsampled = false;
                let said = match mask.filter(|mask| mask.forced).and_then(|mask| only_token(mask.bits)) {
                    Some(token) => sequence.walk.forced(token),
                    None => sequence.walk.say(mask.map(|mask| mask.bits)),
                };
                match said {
                    Said::Token { token, logprobs, done } => {
                        out.tokens.push(token);
                        out.logprobs.extend(logprobs);
                        entry.tokens.end = out.tokens.len() as u32;
                        entry.logprobs.end = out.logprobs.len() as u32;
                        sequence.tokens.push(token);
                        sequence.done = done;
                        entry.done = done;
                    }
                    // Not done: it hangs in every further step, its last row never having run.
                    Said::Nothing => {
                        sequence.len -= 1;
                        entry.end = sequence.len;
                        entry.fault = Some(SeatFault::Hang);
                    }
                    Said::Fault(fault) => {
                        sequence.done = true;
                        entry.done = fault != SeatFault::Length;
                        entry.fault = Some(fault);
                    }
                }
            }
        }
        out.runs.push(entry);
    }

    /// How long a step takes: its slowest sequence decides.
    fn duration(&self, runs: &[(u64, Run)]) -> Duration {
        let emitting = runs.iter().filter(|(_, run)| run.emit != Emit::Nothing);
        let speakers = emitting.filter_map(|(key, _)| self.sequences.get(key)).filter(|s| !s.done);
        speakers.map(|sequence| sequence.walk.play().delay).max().unwrap_or_default()
    }

    /// Forgets sequences that have no seat and no open ticket.
    fn sweep(&mut self) {
        let bound = &self.seats;
        let open = &self.open;
        self.sequences.retain(|key, _| {
            bound.values().any(|k| k == key) || open.iter().any(|o| o.runs.iter().any(|(k, _)| k == key))
        });
    }
}

impl Backend for ScriptBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn pools(&self) -> bool {
        true
    }

    fn bind(&mut self, seat: Seat, init: &SeatInit<'_>) -> Result<(), BackendError> {
        if seat.0 >= self.caps.seats || self.seats.contains_key(&seat) {
            return Err(invalid(format!("{seat:?} is not free")));
        }
        let known = init.prompt.len() + init.generated.len();
        if init.start as usize >= known {
            return Err(invalid(format!("{seat:?} starts at {} of {known} tokens", init.start)));
        }
        let (index, response) = self.script.response(init.prompt).ok_or_else(|| {
            BackendError::Script(format!("none of the {} responses matches the prompt", self.script.responses.len()))
        })?;
        let choice = self.recall.choose(init.prompt, init.seed, response.plays.len());
        let play = self.script.responses[index].plays[choice].clone();
        let walk = Walk::new(play, init.sampling.clone(), self.caps.vocab, init.generated);
        let tokens = [init.prompt, init.generated].concat();
        let sequence = Sequence {
            walk,
            seed: init.seed,
            prompt: init.prompt.to_vec(),
            choice,
            tokens,
            len: init.start,
            pages: Vec::new(),
            done: false,
            unsampled: false,
        };
        self.seats.insert(seat, self.next_key);
        self.sequences.insert(self.next_key, sequence);
        self.next_key += 1;
        Ok(())
    }

    fn release(&mut self, seat: Seat) {
        let Some(key) = self.seats.remove(&seat) else { return };
        if let Some(sequence) = self.sequences.get(&key)
            && !sequence.done
        {
            self.recall.interrupted(&sequence.prompt, sequence.seed, sequence.choice);
        }
        self.sweep();
    }

    fn forward(&mut self, step: &Step<'_>) -> Result<Ticket, BackendError> {
        if self.open.len() >= usize::from(self.caps.in_flight) {
            return Err(invalid(format!("{} steps are open, the limit is {}", self.open.len(), self.caps.in_flight)));
        }
        let rows = step.runs.iter().map(|run| u64::from(run.rows)).sum::<u64>();
        if rows > u64::from(self.caps.max_rows) {
            return Err(invalid(format!("{rows} rows, the limit is {}", self.caps.max_rows)));
        }
        for table in step.tables {
            self.apply(table)?;
        }
        let mut runs = Vec::with_capacity(step.runs.len());
        for run in step.runs {
            runs.push((self.launch(run, step.tokens)?, run.clone()));
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let now = Instant::now();
        self.open.push_back(Open { ticket, runs, ready: None, launched: now, out: StepOut::default() });
        Ok(ticket)
    }

    fn sample(&mut self, ticket: Ticket, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        let found = self.open.iter().position(|open| open.ticket == ticket && open.ready.is_none());
        let index = found.ok_or_else(|| invalid(format!("{ticket:?} is not open, or already sampled")))?;
        let runs = std::mem::take(&mut self.open[index].runs);
        let duration = self.duration(&runs);
        let mut out = StepOut { device: duration, ..Default::default() };
        for (i, (key, run)) in runs.iter().enumerate() {
            let mask = masks.iter().find(|mask| mask.run as usize == i);
            if run.masked && mask.is_none() {
                return Err(invalid(format!("run {i} of {ticket:?} is masked, but no mask came")));
            }
            self.play(*key, run, mask, &mut out);
        }
        // Steps run one after the other, as on a device.
        let launched = self.open[index].launched;
        let ready = self.busy_until.map_or(launched, |busy| busy.max(launched)) + duration;
        self.busy_until = Some(ready);
        let open = &mut self.open[index];
        (open.runs, open.out, open.ready) = (runs, out, Some(ready));
        Ok(())
    }

    fn drafts(&mut self, ticket: Ticket, _run: u32) -> Result<Vec<TokenId>, BackendError> {
        Err(invalid(format!("{ticket:?}: a scripted model has no drafts")))
    }

    fn collect(&mut self, ticket: Ticket, wait: bool) -> Result<Option<StepOut>, BackendError> {
        let oldest = self.open.front().ok_or_else(|| invalid("no step is open"))?;
        if oldest.ticket != ticket {
            return Err(invalid(format!("{ticket:?} collected before {:?}", oldest.ticket)));
        }
        let ready = oldest.ready.ok_or_else(|| invalid(format!("{ticket:?} was not sampled")))?;
        let left = ready.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            if !wait {
                return Ok(None);
            }
            std::thread::sleep(left);
        }
        let out = self.open.pop_front().map(|open| open.out);
        self.sweep();
        Ok(out)
    }
}

/// The token of a mask that allows one.
fn only_token(bits: &[u32]) -> Option<TokenId> {
    let word = bits.iter().position(|&bits| bits != 0)?;
    Some(word as TokenId * 32 + bits[word].trailing_zeros())
}

/// Numbers of a scripted model's hidden state.
const HIDDEN: u32 = 16;

/// The mean of some tokens' hidden states. A token's own is a fixed vector of numbers from -1 to 1 that differs from
/// token to token and depends on nothing before it.
fn pool(tokens: &[TokenId], into: &mut Vec<f32>) {
    let number = |token: TokenId, i: u32| {
        let mixed = token.wrapping_mul(0x9e37_79b1).wrapping_add(i.wrapping_mul(0x85eb_ca77));
        ((mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d) >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let mean = |i: u32| tokens.iter().map(|&token| number(token, i)).sum::<f32>() / tokens.len() as f32;
    into.extend((0..HIDDEN).map(mean));
}

fn invalid(reason: impl Into<String>) -> BackendError {
    BackendError::InvalidStep(reason.into())
}

fn empty(at: usize) -> std::ops::Range<u32> {
    at as u32..at as u32
}

#[cfg(test)]
mod tests;
