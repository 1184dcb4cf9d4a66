//! The native policy: first come, first served, and a long prompt does not stop the short ones behind it.

use contract::policy::Grant;
use contract::{PAGE_TOKENS, Slot};

use crate::limits::FCFS_PREFILLS_MAX;
use crate::queue::Scheduler;
use crate::room::Room;

/// Shares a step between prompts in order of arrival. Each takes at most half of what is left, in rows and in time, but
/// at least a page; what nobody wants then goes to the first ones. So the first prompt always gets half of the step, and
/// a short prompt behind forty long ones still gets its page.
pub(crate) fn decide(scheduler: &Scheduler, mut room: Room, grants: &mut Vec<Grant>) {
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
    for slot in candidates {
        if room.is_empty() {
            break;
        }
        let (start, need) = place(scheduler, slot);
        let tokens = need.min(room.half_from(start).max(least)).min(room.rows_from(start));
        if tokens > 0 {
            room.take(start, tokens);
            grants.push(Grant { slot, tokens });
        }
    }
    for grant in grants.iter_mut() {
        let (start, need) = place(scheduler, grant.slot);
        let start = start + grant.tokens;
        let more = (need - grant.tokens).min(room.rows_from(start));
        room.take(start, more);
        grant.tokens += more;
    }
}

/// Where a prompt goes on, and how many tokens it lacks; for a waiting request what was cached when it arrived or was
/// preempted is taken off.
fn place(scheduler: &Scheduler, slot: Slot) -> (u32, u32) {
    let entry = scheduler.entry(slot);
    let waits = !entry.is_running() && !entry.started;
    let start = if waits { entry.arrival.cached_tokens } else { entry.computed };
    (start, entry.len() - start)
}
