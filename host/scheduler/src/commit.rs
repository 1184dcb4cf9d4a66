//! What a step's runs gave: tokens are appended, full pages become findable, finished requests leave.

use contract::{PAGE_TOKENS, Slot, TokenId};

use crate::plan::LaunchedRun;
use crate::queue::Scheduler;
use crate::request::Ended;
use crate::states::Pending;

/// What one run of the oldest step in flight gave.
#[derive(Clone, Copy, Debug)]
pub struct RunResult<'a> {
    pub tokens: &'a [TokenId],
    /// The seat's length after the run, in tokens whose KV exists.
    pub end: u32,
    /// The last token is a stop token.
    pub done: bool,
}

/// Why a request ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Stop(TokenId),
    Length,
}

/// A run's result was taken for a request that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    pub slot: Slot,
    /// Tokens of the result that count; the rest is beyond the request's limit.
    pub tokens: usize,
    /// The run should have sampled and gave nothing: the backend broke its contract.
    pub missing: bool,
    pub ended: Option<(Ending, Ended)>,
}

impl Scheduler {
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Number of runs in the oldest step in flight.
    pub fn oldest_runs(&self) -> usize {
        self.in_flight.front().map_or(0, |launched| launched.runs.len())
    }

    /// The request of a run of the newest step, if it is still alive.
    pub fn newest_slot(&self, run: usize) -> Option<Slot> {
        let launched = self.in_flight.back()?.runs.get(run)?;
        self.get(launched.slot).is_some_and(|entry| entry.seq == launched.seq).then_some(launched.slot)
    }

    /// Takes the result of one run of the oldest step; `None` when its request is gone.
    pub fn commit_run(&mut self, run: usize, result: &RunResult<'_>) -> Option<Committed> {
        let launched = self.launched_run(run)?;
        let slot = launched.slot;
        let entry = self.entries[slot.0 as usize].as_deref_mut().filter(|entry| entry.seq == launched.seq)?;
        let mut taken = 0;
        if entry.reads_prompt() {
            // Runs of an earlier seat count too: what was read of them is not asked for again.
            let read = entry.unread_from.max(result.end.min(launched.end));
            entry.unread_from = if read < entry.prompt_len() { read } else { u32::MAX };
        }
        if launched.emits {
            entry.pending -= 1;
            let room = (entry.new_tokens_max - entry.emitted()) as usize;
            taken = result.tokens.len().min(room);
            entry.generated.extend_from_slice(&result.tokens[..taken]);
        }
        let ending = match result.tokens[..taken].last() {
            Some(&token) if result.done && taken == result.tokens.len() => Some(Ending::Stop(token)),
            Some(_) if entry.emitted() >= entry.new_tokens_max => Some(Ending::Length),
            _ => None,
        };
        let missing = launched.emits && taken == 0;
        if entry.is_running() && entry.binding == launched.binding {
            // A run that gave nothing is taken back by its last row: only a hanging sequence lives on after this.
            entry.computed -= u32::from(missing);
            entry.committed = result.end.min(launched.end);
            if entry.committed >= (entry.named_pages + 1) * PAGE_TOKENS {
                self.name_pages(slot, run);
            }
        }
        let ended = ending.and_then(|ending| Some((ending, self.remove(slot)?)));
        Some(Committed { slot, tokens: taken, missing, ended })
    }

    /// All runs of the oldest step were taken.
    pub fn commit_done(&mut self) {
        if let Some(mut launched) = self.in_flight.pop_front() {
            // Of requests that are gone, or that stopped before.
            launched.saves.drain(..).for_each(|save| self.pool.states.give_back(save.slot));
            self.spare.push(launched);
            self.committed += 1;
            self.seats.cool(self.committed);
        }
    }

    fn launched_run(&self, run: usize) -> Option<LaunchedRun> {
        self.in_flight.front()?.runs.get(run).copied()
    }

    /// Offers pages whose tokens are all computed to the prefix cache.
    fn name_pages(&mut self, slot: Slot, run: usize) {
        if !self.config.prefix_cache {
            return;
        }
        let entry = self.entries[slot.0 as usize].as_deref_mut().expect("a committed slot has an entry");
        while (entry.named_pages + 1) * PAGE_TOKENS <= entry.committed {
            let (from, to) = (entry.named_pages * PAGE_TOKENS, (entry.named_pages + 1) * PAGE_TOKENS);
            let page = entry.pages[entry.named_pages as usize];
            entry.chain = if to <= entry.prompt_len() {
                self.pool.cache(entry.chain, &entry.prompt[from as usize..to as usize], page)
            } else {
                let mut tokens = Vec::with_capacity(PAGE_TOKENS as usize);
                entry.copy_tokens(from, to, &mut tokens);
                self.pool.cache(entry.chain, &tokens, page)
            };
            entry.named_pages += 1;
            let (node, saves) = (entry.chain, self.in_flight.front_mut().map(|launched| &mut launched.saves));
            let saved = |saves: &mut Vec<Pending>| {
                let at = saves.iter().position(|save| save.run == run && save.at == to)?;
                Some(saves.swap_remove(at))
            };
            let Some(saved) = saves.and_then(saved) else { continue };
            self.pool.states.name(saved.slot, node);
            // Of what is generated only the last state is kept: a conversation goes on from its end.
            if to > entry.prompt_len()
                && let Some(before) = entry.rolling.replace(node).filter(|before| *before != node)
            {
                self.pool.states.forget(before);
            }
        }
    }
}
