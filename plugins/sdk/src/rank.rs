//! The short way to a scheduler: say who comes first, and get a full policy.
//!
//! [`Ranked`] keeps the queue in rank order, admits within seats and pages, cuts long prompts into chunks, leaves
//! decoding requests alone (they advance without a grant) and, where [`Rank::may_preempt`] allows it, takes one seat
//! per step from a request that is less urgent. What it costs goes with what changed in a step, not with how many
//! requests run.

use crate::PluginError;
use crate::queue::Queue;
use crate::room::Room;
use crate::scheduler::{Arrival, Decision, Delta, Limits, Policy, Refusal, Snapshot, no_change, rest};

/// Who comes first.
pub trait Rank: Clone + 'static {
    type Key: Ord + Clone + 'static;

    /// What a prompt may take of what is left of a step while others wait behind it, from 0 to 1. With a half, a short
    /// prompt behind a long one starts at once; with 1 the order is strict.
    const SHARE: f64 = 0.5;

    /// Called once, with the operator's settings as JSON; see [`crate::parse_settings`].
    fn configure(settings_json: &str) -> Result<Self, PluginError>;

    /// Lower comes first; equal keys go in order of arrival. Called once per request: a key that should change with
    /// waiting time is written relative to `arrived_us`, so that the order of any two requests stays.
    fn rank(&self, request: &Arrival) -> Self::Key;

    /// Whether `waiting` may take the seat of `running` when no seat is free. Must not hold both ways round.
    fn may_preempt(&self, _waiting: &Arrival, _running: &Arrival) -> bool {
        false
    }

    /// When the first token of a request is due. A step that ends its prompt in time is not made so long, by prompts of
    /// others, that it is late.
    fn due_us(&self, _request: &Arrival) -> Option<u64> {
        None
    }

    /// Asked in each step for a request that waits, before it would be admitted, and for one whose prompt is not done.
    fn judge(&self, _request: &Arrival, _outlook: &Outlook) -> Verdict {
        Verdict::Serve
    }
}

/// What a request that has the next grants may expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    pub now_us: u64,
    /// Until its first token, if it had all that the next steps can give to prompts, and somewhat more than that takes by
    /// the measured cost; 0 while none is known.
    pub first_token_us: u64,
}

/// What becomes of a request that has no first token yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Serve,
    /// After everybody else, in this step.
    Last,
    /// 429 with this code, in kebab case; a request that is on a seat already goes last instead.
    Refuse {
        code: &'static str,
        retry_after_ms: u32,
    },
}

/// Prompts that share one step. More would leave each a chunk too small to be worth a row of its own.
const PREFILLS_MAX: usize = 32;

/// Requests that are looked at in one step, best first.
const CANDIDATES_MAX: usize = 1024;

/// Times the measured cost, what is taken until a first token: steps are not all alike, and the answer has a way to go. An
/// order by deadlines ends prompts just in time when there is much to do, so without it a little noise makes many late.
const CAUTION: f64 = 1.15;

/// Running requests that are compared with the one that waits for a seat; equal ranks in a row are one comparison each.
const VICTIMS_SEEN_MAX: usize = 64;

/// The policy around a [`Rank`].
pub struct Ranked<R: Rank> {
    rank: R,
    queue: Queue<R::Key>,
    running: Running,
}

/// The step that runs while the next one is decided; times in microseconds.
#[derive(Default)]
struct Running {
    /// When it was decided, and what was then left of the step before it.
    decided_us: u64,
    left_us: f64,
    /// What it takes, and what that earlier one was to take; `None`: there was none.
    takes_us: f64,
    earlier_us: Option<f64>,
    /// Others like it may have run since.
    rests: bool,
}

impl Running {
    /// What is left of it. Hosts ask at its begin, or late in it: how long ago they asked for it says which.
    fn left_us(&self, limits: &Limits) -> f64 {
        if self.rests {
            return self.takes_us;
        }
        let since_us = limits.now_us.saturating_sub(self.decided_us) as f64;
        // The earlier one took what it took, whatever was expected.
        let waited_us = self.earlier_us.map_or(0.0, |earlier| self.left_us + f64::from(limits.last_step_us) - earlier);
        (self.takes_us - (since_us - waited_us).max(0.0)).max(0.0)
    }
}

/// A prompt that has a part of this step.
struct Want {
    slot: u32,
    start: u32,
    need: u32,
    tokens: u32,
}

impl<R: Rank> Ranked<R> {
    pub fn new(rank: R) -> Self {
        Self { rank, queue: Queue::default(), running: Running::default() }
    }

    fn decide(&mut self, limits: &Limits) -> Decision {
        let mut decision = no_change();
        let rests = self.queue.is_idle();
        // Those before the one that runs took about as long as the last one that ended.
        let before_us = match limits.in_flight_steps {
            0 => 0.0,
            steps => self.running.left_us(limits) + f64::from(steps - 1) * f64::from(limits.last_step_us),
        };
        let takes_us = if rests {
            rest(&mut decision, u64::MAX);
            f64::from(limits.decode_us)
        } else {
            let mut room = Room::new(limits, self.queue.decoding(), u32::MAX);
            self.free_a_seat(&mut room, &mut decision);
            self.admit(room, limits, before_us, &mut decision)
        };
        let earlier_us = (limits.in_flight_steps > 0).then_some(self.running.takes_us);
        self.running = Running { decided_us: limits.now_us, left_us: before_us, takes_us, earlier_us, rests };
        self.queue.list_victims(&mut decision);
        decision
    }

    /// The first who waits for a seat may take the last one's, once per step.
    fn free_a_seat(&self, room: &mut Room, decision: &mut Decision) {
        if room.seats > 0 || room.is_empty() {
            return;
        }
        let Some(waiting) = self.queue.open().find(|request| !request.running) else { return };
        let running = self.queue.seated_from_the_end().take(VICTIMS_SEEN_MAX);
        let victim = running.into_iter().find(|other| self.rank.may_preempt(&waiting.arrival, &other.arrival));
        if let Some(victim) = victim {
            decision.preempt.push(victim.arrival.slot);
            room.give_back(victim);
        }
    }

    /// Shares the step between prompts in rank order; what nobody wants goes to the first ones. The step begins after
    /// `before_us`; gives what it takes.
    fn admit(&mut self, mut room: Room, limits: &Limits, before_us: f64, decision: &mut Decision) -> f64 {
        let whole = room.clone();
        let (mut wants, mut last) = (Vec::new(), Vec::new());
        let mut open = true;
        let (mut all, mut unfinished) = (self.queue.open().take(CANDIDATES_MAX), self.queue.unfinished());
        while !room.is_empty() && wants.len() < PREFILLS_MAX {
            // Once nobody may sit any more, only those on seats are looked at, however many wait before them.
            let look = open || room.seats > 0 || wants.len() < 2;
            let Some(request) = all.next().filter(|_| look).or_else(|| unfinished.next()) else { break };
            let slot = request.arrival.slot;
            let known = wants.iter().any(|want: &Want| want.slot == slot) || last.contains(&slot);
            if known || decision.preempt.contains(&slot) {
                continue;
            }
            let (start, need) = (request.start(), request.need());
            let first_token_us = CAUTION * (before_us + whole.first_token_us(limits, start, need));
            let outlook = Outlook { now_us: limits.now_us, first_token_us: first_token_us as u64 };
            match self.rank.judge(&request.arrival, &outlook) {
                Verdict::Refuse { code, retry_after_ms } if !request.running => {
                    decision.refuse.push(Refusal { slot, retry_after_ms, code: code.into() });
                    continue;
                }
                Verdict::Last | Verdict::Refuse { .. } => {
                    last.push(slot);
                    continue;
                }
                Verdict::Serve => {}
            }
            // Nobody overtakes the first one that finds no seat or no pages: it would wait for ever.
            if !request.running {
                open = open && room.admit(request);
                if !open {
                    continue;
                }
            }
            let want = Want::first(&mut room, slot, (start, need), R::SHARE);
            if want.tokens == need
                && let Some(due_us) = self.rank.due_us(&request.arrival)
            {
                let left_us = due_us.saturating_sub(limits.now_us) as f64 / CAUTION;
                room.end_by(left_us - before_us, limits);
            }
            wants.push(want);
        }
        drop((all, unfinished));
        for request in last.into_iter().filter_map(|slot| self.queue.get(slot)) {
            if room.is_empty() || wants.len() == PREFILLS_MAX {
                break;
            }
            if request.running || (open && room.admit(request)) {
                let place = (request.start(), request.need());
                wants.push(Want::first(&mut room, request.arrival.slot, place, R::SHARE));
            }
        }
        for mut want in wants {
            let start = want.start + want.tokens;
            let more = (want.need - want.tokens).min(room.tokens_from(start));
            room.take(start, more);
            want.tokens += more;
            self.queue.grant(want.slot, want.tokens, decision);
        }
        room.step_us(limits)
    }
}

impl Want {
    fn first(room: &mut Room, slot: u32, (start, need): (u32, u32), share: f64) -> Self {
        let part = room.part(share).tokens_from(start).max(room.least);
        let tokens = need.min(part).min(room.tokens_from(start));
        room.take(start, tokens);
        Self { slot, start, need, tokens }
    }
}

impl<R: Rank> Policy for Ranked<R> {
    fn resync(&mut self, full: Snapshot) {
        let rank = &self.rank;
        self.queue.restart(full, |request| rank.rank(request));
    }

    fn step(&mut self, mut delta: Delta) -> Decision {
        let rank = &self.rank;
        self.queue.apply(&mut delta, |request| rank.rank(request));
        self.decide(&delta.limits)
    }
}

/// Makes a type that implements [`rank::Rank`](crate::rank::Rank) a scheduler component.
#[macro_export]
macro_rules! export_rank {
    ($rank:ty) => {
        const _: () = {
            struct TokenloomRanked($rank);
            impl $crate::scheduler::Scheduler for TokenloomRanked {
                type Policy = $crate::rank::Ranked<$rank>;
                fn configure(settings_json: &str) -> Result<Self, $crate::PluginError> {
                    <$rank as $crate::rank::Rank>::configure(settings_json).map(Self)
                }
                fn policy(&self) -> Self::Policy {
                    $crate::rank::Ranked::new(self.0.clone())
                }
            }
            $crate::export_scheduler!(TokenloomRanked);
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 30 ms that took 31, decided at the begin of the one before, or 8 ms before its end; and the first of all.
    #[test]
    fn what_is_left_of_a_step_does_not_depend_on_when_hosts_ask() {
        let left = |left_us: f64, earlier_us, since_us: u64| {
            let running = Running { decided_us: 1000, left_us, takes_us: 30_000.0, earlier_us, rests: false };
            let limits = Limits { now_us: 1000 + since_us, last_step_us: 31_000, ..crate::testing::empty().limits };
            running.left_us(&limits)
        };
        assert_eq!(left(30_000.0, Some(30_000.0), 31_000), 30_000.0);
        assert_eq!(left(8000.0, Some(30_000.0), 9000 + 22_000), 8000.0);
        assert_eq!(left(0.0, None, 0), 30_000.0);
        assert_eq!(left(0.0, None, 22_000), 8000.0);
        assert_eq!(left(0.0, None, 60_000), 0.0);
    }
}
