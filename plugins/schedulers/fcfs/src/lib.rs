//! First come, first served: the order of arrival alone decides.

use tokenloom_sdk::rank::Rank;
use tokenloom_sdk::scheduler::Arrival;
use tokenloom_sdk::{NoSettings, PluginError};

#[derive(Clone)]
pub struct Fcfs;

impl Rank for Fcfs {
    /// Equal keys go in order of arrival, which is all there is to say.
    type Key = ();

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        tokenloom_sdk::parse_settings::<NoSettings>(settings_json)?;
        Ok(Self)
    }

    fn rank(&self, _request: &Arrival) {}
}

tokenloom_sdk::export_rank!(Fcfs);
