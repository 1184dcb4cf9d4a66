//! The mailbox of the engine thread.
//!
//! The channel has no capacity of its own; its length is bounded by what may be put in: one `Submit` and one `Abort`
//! per admitted request (admission is bounded by `seats + max_queued`), and `Drained` only while a request is parked,
//! at most once per event of a bounded channel.

use std::time::Instant;

use contract::generation::{Request, TokenEvent};
use contract::policy::SchedulePolicy;
use tokio::sync::mpsc::Sender;

use crate::observe::Observer;
use crate::pool::Pool;

pub(crate) enum Msg {
    Submit(Box<Submission>),
    /// The client went away.
    Abort(u64),
    /// The client took an event while some request was parked.
    Drained(u64),
    /// `None`: native first come, first served.
    SwapPolicy(Option<Box<dyn SchedulePolicy>>),
    /// Somebody wants to see what the policy decides.
    Observe(Observer),
    Shutdown,
}

pub(crate) struct Submission {
    pub id: u64,
    pub request: Request,
    /// The prompt is only read.
    pub pool: Option<Pool>,
    pub sender: Sender<TokenEvent>,
    pub arrived: Instant,
}
