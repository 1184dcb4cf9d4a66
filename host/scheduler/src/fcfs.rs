//! The native policy: first come, first served, and a long prompt does not stop the short ones behind it.

use contract::policy::Grant;
use contract::{PAGE_TOKENS, Slot};

use crate::limits::FCFS_PREFILLS_MAX;
use crate::queue::Scheduler;

/// Shares `rows` between prompts in order of arrival. Each takes at most half of what is left, at least a page; what
/// nobody wants then goes to the first ones. So the first prompt always gets half of the step, and a short prompt
/// behind forty long ones still gets its page.
pub(crate) fn decide(scheduler: &Scheduler, rows: u32, grants: &mut Vec<Grant>) {
    grants.clear();
    let running = scheduler.scratch.prefills.iter().copied().filter(|&slot| {
        let entry = scheduler.entry(slot);
        entry.can_prefill() && entry.planned_at != scheduler.steps
    });
    let waiting = scheduler.waiting.values().copied().filter(|&slot| {
        let entry = scheduler.entry(slot);
        entry.pending == 0 && !entry.parked
    });
    let seats = scheduler.seats.free_count() as usize;
    let candidates = running.chain(waiting.take(seats)).take(FCFS_PREFILLS_MAX);
    let least = PAGE_TOKENS.max(scheduler.config.resume_align);
    let mut left = rows;
    for slot in candidates {
        if left == 0 {
            break;
        }
        let tokens = need(scheduler, slot).min((left / 2).max(least)).min(left);
        grants.push(Grant { slot, tokens });
        left -= tokens;
    }
    for grant in grants.iter_mut() {
        let more = (need(scheduler, grant.slot) - grant.tokens).min(left);
        grant.tokens += more;
        left -= more;
    }
}

/// Tokens to feed; for a waiting request what was cached when it arrived or was preempted is taken off.
fn need(scheduler: &Scheduler, slot: Slot) -> u32 {
    let entry = scheduler.entry(slot);
    if entry.is_running() || entry.started { entry.need() } else { entry.need() - entry.arrival.cached_tokens }
}
