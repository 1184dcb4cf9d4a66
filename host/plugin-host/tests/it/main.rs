//! The plugin host against the hostile guests of `plugins/fixtures`: whatever a component does costs one call.

mod bundled;
mod cache;
mod fixtures;
mod load;
mod released;
mod replay;
mod rig;
mod rows;
mod scheduler;
mod stage;
mod template;
mod trace;
