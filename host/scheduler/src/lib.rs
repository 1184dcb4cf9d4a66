//! The pure core: queues, pages, prefix cache and step planning.
//!
//! It knows no clock, no threads, no IO and no randomness: times are arguments, so a run can be replayed. It knows no
//! device either; it hands out a [`StepPlan`] and takes the results back.
//!
//! A step is [`Scheduler::delta`] (what a policy is told), [`Scheduler::plan`] (a policy's decision, or native FCFS,
//! checked and turned into runs) and [`Scheduler::commit_run`] (what the runs gave). Start reading at [`Scheduler::plan`]; the
//! rules between host and policy are the scheduler interface of `docs/protocols.md`. Policies advise: seats, pages,
//! budget, a starvation bound and progress under preemption are enforced here whatever they say.

mod admit;
mod check;
mod commit;
mod decision;
mod fcfs;
mod limits;
mod pages;
mod plan;
mod policy_view;
mod preempt;
mod prefix;
mod queue;
mod request;
mod room;
mod seats;
mod states;
mod step;
mod tenants;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

pub use commit::{Committed, Ending, RunResult};
pub use decision::{Advice, InvalidDecision, Violation, check_decision};
pub use limits::{Config, ConfigError, FORCED_SEAT_STEPS, NeverFits, PREEMPTIONS_MAX, Tick};
pub use pages::PageCounts;
pub use queue::Scheduler;
pub use request::{Ended, NewRequest, RequestView};
pub use states::StateCopy;
pub use step::{Append, Bind, Feed, PlannedRun, Refused, Started, StepPlan};
