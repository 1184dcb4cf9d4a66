//! Looking on while a policy decides: for who compares another policy with the one that is live.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use contract::policy::{Decision, Snapshot};
use scheduler::{Scheduler, Tick};

/// One decision of the live policy, and what it could know: a policy that starts from this snapshot stands where the live
/// one stood.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    pub told: Snapshot,
    pub decision: Decision,
}

/// The engine's end. A snapshot costs the engine time, so one is made only for who is ready for it.
pub struct Observer {
    ready: Arc<AtomicBool>,
    sender: SyncSender<Observation>,
}

/// The other end; dropping it ends the observation.
pub struct Observations {
    ready: Arc<AtomicBool>,
    receiver: Receiver<Observation>,
}

pub fn observer() -> (Observer, Observations) {
    let ready = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = sync_channel(1);
    (Observer { ready: Arc::clone(&ready), sender }, Observations { ready, receiver })
}

impl Observations {
    /// The next decision that the live policy takes; `None`: none within this time, or the engine is gone.
    pub fn next(&self, within: Duration) -> Option<Observation> {
        self.ready.store(true, Ordering::Release);
        self.receiver.recv_timeout(within).ok()
    }
}

impl Observer {
    /// `false`: nobody looks on any more.
    pub(crate) fn see(&self, scheduler: &Scheduler, tick: &Tick, decision: &Decision) -> bool {
        if !self.ready.swap(false, Ordering::AcqRel) {
            return true;
        }
        let observation = Observation { told: scheduler.look(tick), decision: decision.clone() };
        !matches!(self.sender.try_send(observation), Err(TrySendError::Disconnected(_)))
    }
}
