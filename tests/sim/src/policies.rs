//! Policies: native, components, and those that one would not load.

use std::collections::BTreeSet;

use anyhow::Result;
use contract::Slot;
use contract::policy::{Decision, Delta, DraftDepth, Grant, PolicyError, Refusal, SchedulePolicy, Snapshot};

use crate::random::Rng;

/// Every hostile policy by its name on the command line; the last one draws from those before it.
pub const HOSTILE: [(&str, Habit); 12] = [
    ("random", Habit::Random),
    ("over-budget", Habit::OverBudget),
    ("unknown-slots", Habit::UnknownSlots),
    ("duplicates", Habit::Duplicates),
    ("always-late", Habit::AlwaysLate),
    ("always-preempting", Habit::AlwaysPreempting),
    ("holds-everything", Habit::HoldsEverything),
    ("grants-nothing", Habit::GrantsNothing),
    ("newest-only", Habit::NewestOnly),
    ("refuses-everything", Habit::RefusesEverything),
    ("rests-for-ever", Habit::RestsForEver),
    ("moody", Habit::Moody),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    Random,
    OverBudget,
    UnknownSlots,
    Duplicates,
    AlwaysLate,
    AlwaysPreempting,
    HoldsEverything,
    GrantsNothing,
    NewestOnly,
    RefusesEverything,
    /// Grants what came and is not to be asked again.
    RestsForEver,
    /// Another habit at every call.
    Moody,
}

struct Hostile {
    name: &'static str,
    habit: Habit,
    rng: Rng,
    /// By order of arrival as far as slots tell.
    slots: BTreeSet<Slot>,
    newest: Option<Slot>,
}

impl SchedulePolicy for Hostile {
    fn name(&self) -> &str {
        self.name
    }

    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError> {
        self.slots = full.slots.iter().map(|view| view.request.slot).collect();
        Ok(())
    }

    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
        for finished in &delta.finished {
            self.slots.remove(&finished.slot);
        }
        for arrival in &delta.arrived {
            self.slots.insert(arrival.slot);
            self.newest = Some(arrival.slot);
        }
        self.decide(self.habit)
    }
}

impl Hostile {
    fn decide(&mut self, habit: Habit) -> Result<Decision, PolicyError> {
        let all = |tokens: u32| self.slots.iter().map(|&slot| Grant { slot, tokens }).collect::<Vec<_>>();
        let slots = || self.slots.iter().copied().collect::<Vec<_>>();
        let none = Decision::default();
        Ok(match habit {
            Habit::AlwaysLate => {
                let limit = "it always is".into();
                return Err(PolicyError::Late { policy: self.name.into(), limit });
            }
            Habit::GrantsNothing => none,
            Habit::OverBudget => Decision { grant: all(u32::MAX), ..none },
            Habit::UnknownSlots => Decision { grant: vec![Grant { slot: Slot(1 << 30), tokens: 5 }], ..none },
            Habit::Duplicates => Decision { grant: [all(64), all(64)].concat(), ..none },
            Habit::AlwaysPreempting => Decision { grant: all(64), preempt: slots(), ..none },
            Habit::HoldsEverything => Decision { grant: all(64), hold: slots(), ..none },
            Habit::NewestOnly => {
                let newest = self.newest.filter(|slot| self.slots.contains(slot));
                Decision { grant: newest.into_iter().map(|slot| Grant { slot, tokens: 16 }).collect(), ..none }
            }
            Habit::RefusesEverything => {
                let refuse = |slot| Refusal { slot, retry_after_ms: 0, code: String::new() };
                Decision { refuse: slots().into_iter().map(refuse).collect(), ..none }
            }
            Habit::RestsForEver => Decision { grant: all(64), rests_until_us: Some(u64::MAX), ..none },
            Habit::Random => random(&mut self.rng, &self.slots),
            Habit::Moody => {
                let others = HOSTILE.len() as u64 - 1;
                let (_, habit) = HOSTILE[self.rng.below(others) as usize];
                return self.decide(habit);
            }
        })
    }
}

fn random(rng: &mut Rng, slots: &BTreeSet<Slot>) -> Decision {
    let mut decision = Decision::default();
    for &slot in slots {
        match rng.below(40) {
            0 => decision.hold.push(slot),
            1 => decision.preempt.push(slot),
            2 => decision.victims.insert(0, slot),
            3 => decision.draft.push(DraftDepth { slot, depth: rng.below(20) as u32 }),
            4 => decision.refuse.push(Refusal { slot, retry_after_ms: u32::MAX, code: "x".repeat(200) }),
            _ => {}
        }
        if rng.below(3) > 0 {
            decision.grant.push(Grant { slot, tokens: rng.below(100) as u32 });
        }
    }
    decision
}

/// Where policies come from: every replica has one of its own, and a component is compiled once for all of them.
pub enum Source {
    Native,
    Hostile(&'static str, Habit),
    #[cfg(feature = "wasm")]
    Component(Box<(plugin_host::PluginHost, plugin_host::SchedulerPlugin)>),
}

impl Source {
    /// `native`; a name of [`HOSTILE`]; anything else is a component, by name or file.
    pub fn parse(word: &str, settings: Option<&str>) -> Result<Self> {
        if word == "native" {
            return Ok(Self::Native);
        }
        match HOSTILE.iter().find(|(name, _)| *name == word) {
            Some(&(name, habit)) => Ok(Self::Hostile(name, habit)),
            None => component(word, settings),
        }
    }

    /// `None`: native first come, first served.
    pub fn policy(&self, seed: u64) -> Result<Option<Box<dyn SchedulePolicy>>> {
        Ok(match self {
            Self::Native => None,
            &Self::Hostile(name, habit) => {
                Some(Box::new(Hostile { name, habit, rng: Rng(seed), slots: BTreeSet::new(), newest: None }))
            }
            #[cfg(feature = "wasm")]
            Self::Component(loaded) => Some(loaded.0.policy(&loaded.1)?),
        })
    }
}

#[cfg(feature = "wasm")]
fn component(word: &str, settings: Option<&str>) -> Result<Source> {
    use plugin_host::{Grants, HostConfig, PluginHost, PluginSource};
    let host = PluginHost::new(HostConfig::default(), &mut prometheus_client::registry::Registry::default())?;
    let plugin = host.scheduler(&PluginSource::parse(word), &Grants::default(), settings)?;
    Ok(Source::Component(Box::new((host, plugin))))
}

#[cfg(not(feature = "wasm"))]
fn component(word: &str, _settings: Option<&str>) -> Result<Source> {
    let hostile: Vec<_> = HOSTILE.iter().map(|(name, _)| *name).collect();
    anyhow::bail!("`{word}` is a component, and this simulator was built without them; it knows native and {hostile:?}")
}
