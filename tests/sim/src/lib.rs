//! A simulator of scheduling: the real scheduler core and a policy over a device that only takes time.
//!
//! `cargo xtask sim` shows a policy's author what a policy does to first tokens, gaps and fairness without a model or a
//! card, plans fleets behind a router by the same cost model, and proves with hostile policies that no advice breaks an
//! invariant. Start reading at [`replica`], one engine; [`fleet`] is many, [`load`] what arrives, [`watch`] the starvation
//! bound, [`stress`] the hostile runs.

pub mod args;
pub mod figures;
pub mod fleet;
pub mod load;
pub mod plot;
pub mod policies;
pub mod random;
pub mod recorded;
pub mod replica;
pub mod stress;
pub mod watch;
