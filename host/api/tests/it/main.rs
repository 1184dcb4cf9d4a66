//! The whole HTTP surface over the scripted model, inside one process. Tests of a recorded failure case bear its id.

mod cases;
mod control;
mod disconnect;
mod fixture;
mod messages;
mod refusals;
mod responses;
mod structured;
mod surface;
mod thinking;
