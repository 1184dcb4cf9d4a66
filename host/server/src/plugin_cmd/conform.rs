//! What every scheduler must do, whatever its policy: the host's conformance set.
//!
//! A seeded crowd runs over the real scheduler core: prompts of all lengths, few pages, clients that go away. Every
//! decision must be legal and within its fuel, and whoever is not refused must end, although the host does not help. From
//! a snapshot at any moment, another instance must go on the same.

use std::collections::BTreeSet;

use contract::Slot;
use contract::policy::SchedulePolicy;
use text::cases::{CaseResult, Outcome};

use crate::rehearsal::{Actor, News, Rehearsal, Stage};

/// Makes another instance of the policy.
type Policies<'a> = &'a dyn Fn() -> Result<Box<dyn SchedulePolicy>, String>;

/// A crowd is over long before.
const STEPS_MAX: u32 = 10_000;
/// Requests of a crowd.
const CROWD: u32 = 160;
/// Slots of the largest snapshot.
const FULL_HOUSE: u32 = 1024;

/// The set.
pub(crate) fn scheduler(policies: Policies<'_>) -> Vec<CaseResult> {
    let crowds = |restart: Restart| (1..=3).try_for_each(|seed| Crowd::new(seed, policies, restart)?.run());
    vec![
        result(
            "conformance-legal",
            "Every decision about a crowd is legal, and all of it ends",
            crowds(Restart::Never),
        ),
        result("conformance-resync", "From a snapshot at any moment it goes on", crowds(Restart::Resync)),
        result("conformance-exchange", "Another instance goes on from a snapshot", crowds(Restart::Exchange)),
        result("conformance-pure", "What it is told decides, and nothing else", pure(policies)),
        result("conformance-full", "1,024 requests in one snapshot are within its limits", full_house(policies)),
        result("conformance-idle", "Nothing to do is no fault", idle(policies)),
    ]
}

fn result(id: &str, title: &str, outcome: Result<(), String>) -> CaseResult {
    let outcome = outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed);
    CaseResult { id: id.into(), title: title.into(), outcome }
}

/// What happens to the policy in mid-crowd.
#[derive(Clone, Copy, PartialEq)]
enum Restart {
    Never,
    Resync,
    Exchange,
}

/// Few pages for the seats, so that there are preemptions.
const CROWDED: Stage = Stage { seats: 8, pages: 40, token_budget: 128 };

struct Crowd<'a> {
    rehearsal: Rehearsal,
    policies: Policies<'a>,
    restart: Restart,
    seed: u64,
    random: Random,
    arrived: u32,
    open: BTreeSet<u32>,
}

impl<'a> Crowd<'a> {
    fn new(seed: u64, policies: Policies<'a>, restart: Restart) -> Result<Self, String> {
        let rehearsal = Rehearsal::new(&CROWDED, policies()?)?;
        Ok(Self { rehearsal, policies, restart, seed, random: Random(seed), arrived: 0, open: BTreeSet::new() })
    }

    fn run(mut self) -> Result<(), String> {
        for step in 0..STEPS_MAX {
            self.turn(step).map_err(|why| format!("crowd {}, step {step}: {why}", self.seed))?;
            if self.arrived == CROWD && self.open.is_empty() {
                return Ok(());
            }
        }
        let (seed, left) = (self.seed, self.open.len());
        Err(format!("crowd {seed}: after {STEPS_MAX} steps {left} of {CROWD} requests have not ended"))
    }

    /// Arrivals, somebody who goes away, a restart now and then, and a step.
    fn turn(&mut self, step: u32) -> Result<(), String> {
        if self.arrived < CROWD && self.random.below(3) == 0 {
            for _ in 0..=self.random.below(5) {
                self.arrive()?;
            }
        }
        // Not when all have come: whoever is left then must end by the policy's doing.
        if self.arrived < CROWD
            && self.random.below(40) == 0
            && let Some(&slot) = self.open.iter().nth(self.random.below(8) as usize)
        {
            self.open.remove(&slot);
            self.rehearsal.cancel(Slot(slot));
        }
        if step % 23 == 22 {
            match self.restart {
                Restart::Never => {}
                Restart::Resync => self.rehearsal.resync()?,
                Restart::Exchange => self.rehearsal.exchange((self.policies)()?)?,
            }
        }
        for news in self.rehearsal.step()? {
            if let News::Ended(slot) | News::Refused(slot) = news {
                self.open.remove(&slot.0);
            }
        }
        Ok(())
    }

    fn arrive(&mut self) -> Result<(), String> {
        if self.arrived == CROWD {
            return Ok(());
        }
        let slot = self.rehearsal.submit(&actor(self.arrived, &mut self.random))?;
        self.open.insert(slot.0);
        self.arrived += 1;
        Ok(())
    }
}

fn actor(number: u32, random: &mut Random) -> Actor<'static> {
    // Most prompts are short, some fill a third of the pool.
    let prompt_tokens = 1 + if random.below(8) == 0 { random.below(850) } else { random.below(150) };
    Actor {
        number,
        prompt_tokens,
        max_new_tokens: 1 + random.below(60),
        priority: random.below(5) as i32 - 2,
        tenant: ["a", "b", "c"][random.below(3) as usize],
        deadline_ms: (random.below(4) == 0).then(|| 1 + u64::from(random.below(500))),
    }
}

/// Two instances that are told the same must say the same.
fn pure(policies: Policies<'_>) -> Result<(), String> {
    let mut pair = [Rehearsal::new(&CROWDED, policies()?)?, Rehearsal::new(&CROWDED, policies()?)?];
    for step in 0..400_u32 {
        for rehearsal in &mut pair {
            // Both have the same arrivals: they are drawn anew from the step.
            if step < 120 && step % 3 == 0 {
                rehearsal.submit(&actor(step, &mut Random(u64::from(step) + 1)))?;
            }
            rehearsal.step()?;
        }
        let [first, second] = &pair;
        if first.last_decision() != second.last_decision() {
            let (first, second) = (first.last_decision(), second.last_decision());
            return Err(format!("step {step}: two instances were told the same and say\n  {first:?}\n  {second:?}"));
        }
    }
    Ok(())
}

fn full_house(policies: Policies<'_>) -> Result<(), String> {
    let stage = Stage { seats: FULL_HOUSE as u16, pages: 4 * FULL_HOUSE, token_budget: 8 * FULL_HOUSE };
    let mut rehearsal = Rehearsal::new(&stage, policies()?)?;
    let mut random = Random(9);
    for number in 0..FULL_HOUSE {
        rehearsal.submit(&Actor {
            prompt_tokens: 1 + random.below(30),
            max_new_tokens: 100,
            ..actor(number, &mut random)
        })?;
    }
    for _ in 0..8 {
        rehearsal.resync()?;
        for _ in 0..3 {
            rehearsal.step()?;
        }
    }
    Ok(())
}

fn idle(policies: Policies<'_>) -> Result<(), String> {
    let mut rehearsal = Rehearsal::new(&CROWDED, policies()?)?;
    (0..50).try_for_each(|_| rehearsal.step().map(drop))?;
    rehearsal.resync()?;
    rehearsal.step().map(drop)
}

/// SplitMix64: the same crowd at every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % u64::from(bound)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::policy::{Decision, Delta, Grant, PolicyError, Snapshot};
    use plugin_host::{Grants, PluginSource};

    fn failed(policies: Policies<'_>) -> Vec<String> {
        let failed = |result: CaseResult| match result.outcome {
            Outcome::Failed(why) => Some(format!("{}: {why}", result.id)),
            Outcome::Passed | Outcome::Skipped(_) => None,
        };
        scheduler(policies).into_iter().filter_map(failed).collect()
    }

    #[test]
    fn bundled_schedulers_conform() {
        let host = super::super::host().unwrap();
        for name in ["fcfs", "priority", "fair", "deadline", "shortest-prefill-first", "stall-free"] {
            let source = PluginSource::Bundled(name.into());
            let policies = || host.load_scheduler(&source, &Grants::default(), None).map_err(|e| e.to_string());
            assert_eq!(failed(&policies), Vec::<String>::new(), "{name}");
        }
    }

    /// Grants each arrival its prompt, and does one thing wrong.
    struct Faulty(fn(&mut Decision, &Delta), u64);

    impl SchedulePolicy for Faulty {
        fn name(&self) -> &str {
            "faulty"
        }
        fn resync(&mut self, _: &Snapshot) -> Result<(), PolicyError> {
            Ok(())
        }
        fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
            let whole =
                |arrival: &contract::policy::Arrival| Grant { slot: arrival.slot, tokens: arrival.prompt_tokens };
            let mut decision = Decision { grant: delta.arrived.iter().map(whole).collect(), ..Decision::default() };
            (self.0)(&mut decision, delta);
            decision.rests_until_us = Some(self.1).filter(|salt| *salt > 0);
            Ok(decision)
        }
    }

    #[test]
    fn faults_are_found() {
        let faulty = |fault: fn(&mut Decision, &Delta)| {
            failed(&move || Ok(Box::new(Faulty(fault, 0)) as Box<dyn SchedulePolicy>))
        };
        let found = |failed: &[String], needle: &str| failed.iter().any(|why| why.contains(needle));
        // Whoever does not fit at once is forgotten.
        assert!(found(&faulty(|_, _| {}), "requests have not ended"));
        assert!(found(&faulty(|decision, _| decision.hold.push(Slot(9999))), "names slot 9999, which no request has"));
        let twice: fn(&mut Decision, &Delta) = |decision, _| {
            let again = decision.grant.clone();
            decision.grant.extend(again);
        };
        assert!(found(&faulty(twice), "an invalid decision: `grant`"));
        let salt = std::cell::Cell::new(1);
        let random = move || {
            salt.set(salt.get() + 1);
            Ok(Box::new(Faulty(|_, _| {}, salt.get())) as Box<dyn SchedulePolicy>)
        };
        assert!(found(&failed(&random), "two instances were told the same"));
    }
}
