//! A scheduler's shadow period: the candidate is shown what the live policy is shown, and decides for nobody.
//!
//! For each decision that is looked at, the candidate starts from a snapshot of that moment, so that it need not share the
//! past of the live one. It must answer in time and legally; where it decides otherwise is counted, and is no fault: a
//! policy that never did would not be worth an exchange.

use std::sync::Arc;
use std::time::Duration;

use contract::policy::{Decision, Delta, Grant, PolicyError, SchedulePolicy};
use engine::{Handle, Observation, observer};
use text::shadow::ShadowCounts;

/// Between two looks: a snapshot of thousands of requests takes the engine a third of a millisecond.
const PAUSE: Duration = Duration::from_millis(5);
/// How often the thread asks whether the period is over.
const WAIT: Duration = Duration::from_millis(50);

/// Runs the candidate beside the live policy for as long as the counts are held by somebody else.
pub fn watch(engine: &Handle, candidate: Box<dyn SchedulePolicy>) -> std::io::Result<Arc<ShadowCounts>> {
    let counts = Arc::new(ShadowCounts::default());
    let (eyes, observations) = observer();
    engine.observe(eyes);
    let own = Arc::clone(&counts);
    let mut candidate = candidate;
    let work = move || {
        while Arc::strong_count(&own) > 1 {
            let Some(seen) = observations.next(WAIT) else { continue };
            let answer = ask(candidate.as_mut(), &seen);
            own.compare(&Said::of(&seen.decision), answer.map(|decision| Said::of(&decision)));
            std::thread::sleep(PAUSE);
        }
    };
    std::thread::Builder::new().name("plugin-shadow".into()).spawn(work)?;
    Ok(counts)
}

fn ask(candidate: &mut dyn SchedulePolicy, seen: &Observation) -> Result<Decision, PolicyError> {
    candidate.resync(&seen.told)?;
    let decision = candidate.step(&Delta { limits: seen.told.limits.clone(), ..Delta::default() })?;
    scheduler::check_decision(&seen.told, &decision)
        .map_err(|e| PolicyError::Invalid { policy: candidate.name().to_owned(), reason: e.to_string() })?;
    Ok(decision)
}

/// What of a decision is compared: who runs, and who does not. In which order it is said makes no difference.
#[derive(Debug, PartialEq)]
struct Said {
    grant: Vec<(u32, u32)>,
    hold: Vec<u32>,
    preempt: Vec<u32>,
    refuse: Vec<u32>,
}

impl Said {
    fn of(decision: &Decision) -> Self {
        let sorted = |slots: &mut dyn Iterator<Item = u32>| {
            let mut slots: Vec<u32> = slots.collect();
            slots.sort_unstable();
            slots
        };
        let mut grant: Vec<(u32, u32)> =
            decision.grant.iter().map(|Grant { slot, tokens }| (slot.0, *tokens)).collect();
        grant.sort_unstable();
        Self {
            grant,
            hold: sorted(&mut decision.hold.iter().map(|slot| slot.0)),
            preempt: sorted(&mut decision.preempt.iter().map(|slot| slot.0)),
            refuse: sorted(&mut decision.refuse.iter().map(|refusal| refusal.slot.0)),
        }
    }
}
