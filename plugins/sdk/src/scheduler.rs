//! Scheduling policies: implement [`Scheduler`] and [`Policy`], then name the type in
//! [`export_scheduler!`](crate::export_scheduler). A policy that only orders the queue needs [`crate::rank`] alone.
//!
//! A policy advises; the host enforces budgets, pages, seats and a bound on starvation whatever it says. It has no
//! clock and no randomness: times and step numbers are arguments, so that a recorded trace replays exactly.

use std::cell::RefCell;

use crate::PluginError;
use tokenloom_sdk_scheduler::{interface as wit, lifecycle};

pub use wit::{Arrival, Decision, Delta, Grant, Limits, Refusal, Seat, Snapshot, State, StepCost, Tenant};

/// One loaded scheduler, after the operator's settings were read.
pub trait Scheduler: Sized + 'static {
    type Policy: Policy;

    /// Called once, with the operator's settings as JSON; see [`crate::parse_settings`].
    fn configure(settings_json: &str) -> Result<Self, PluginError>;

    fn policy(&self) -> Self::Policy;
}

/// The state of one engine's queue, kept up to date by deltas.
pub trait Policy: 'static {
    /// At load, after an exchange, after a failure: forget everything and start from here.
    fn resync(&mut self, full: Snapshot);

    /// Once per step, while the step before runs.
    fn step(&mut self, delta: Delta) -> Decision;
}

/// A decision that changes nothing: decoding requests go on, nobody is admitted.
pub fn no_change() -> Decision {
    Decision {
        grant: Vec::new(),
        hold: Vec::new(),
        preempt: Vec::new(),
        victims: Vec::new(),
        refuse: Vec::new(),
        draft: Vec::new(),
        ext: Vec::new(),
    }
}

/// Tells the host that the policy rests: until `until_us` a delta that lists nothing would change nothing, and need
/// not be delivered. Step numbers then jump, and every decoding request has advanced one token for each step between.
/// `u64::MAX`: for as long as nothing happens.
pub fn rest(decision: &mut Decision, until_us: u64) {
    const RESTS_UNTIL: u64 = 1;
    decision.ext.extend([RESTS_UNTIL, until_us]);
}

/// Where a component keeps its one scheduler; implemented by the macro.
#[doc(hidden)]
pub trait Global: Scheduler {
    const DESCRIPTOR: crate::Described;
    fn with<R>(run: impl FnOnce(&mut Option<Self>) -> R) -> R;
}

#[doc(hidden)]
pub struct Component<T>(std::marker::PhantomData<T>);

#[doc(hidden)]
pub struct OpenPolicy<T: Scheduler>(RefCell<T::Policy>);

impl<T: Global> lifecycle::Guest for Component<T> {
    fn describe() -> lifecycle::Descriptor {
        let it = T::DESCRIPTOR;
        lifecycle::Descriptor { name: it.name.into(), version: it.version.into(), summary: it.summary.into() }
    }

    fn configure(settings_json: String) -> Result<(), PluginError> {
        let scheduler = T::configure(&settings_json)?;
        T::with(|slot| *slot = Some(scheduler));
        Ok(())
    }
}

impl<T: Global> wit::Guest for Component<T> {
    type Policy = OpenPolicy<T>;
}

impl<T: Global> wit::GuestPolicy for OpenPolicy<T> {
    fn new() -> Self {
        let policy = T::with(|slot| match slot {
            Some(scheduler) => Ok(scheduler.policy()),
            None => T::configure("{}").map(|scheduler| scheduler.policy()),
        });
        match policy {
            Ok(policy) => Self(RefCell::new(policy)),
            // A constructor cannot answer with an error; the host sees a trap that names the cause.
            Err(error) => panic!("{}: {}", error.code, error.message),
        }
    }

    fn resync(&self, full: Snapshot) {
        self.0.borrow_mut().resync(full);
    }

    fn step(&self, delta: Delta) -> Decision {
        self.0.borrow_mut().step(delta)
    }
}

/// Makes a type that implements [`scheduler::Scheduler`](crate::scheduler::Scheduler) a component.
#[macro_export]
macro_rules! export_scheduler {
    ($scheduler:ty) => {
        const _: () = {
            $crate::plugin_global!($scheduler, $crate::scheduler::Global);
            #[cfg(target_arch = "wasm32")]
            type TokenloomComponent = $crate::scheduler::Component<$scheduler>;
            #[cfg(target_arch = "wasm32")]
    $crate::scheduler_bindings::export!(TokenloomComponent with_types_in $crate::scheduler_bindings);
        };
    };
}
