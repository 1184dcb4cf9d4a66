//! The request's priority decides, and waiting counts.
//!
//! The rank is `priority * ageing + arrival time`: a request of the next lower priority that came `ageing` earlier is
//! its equal. All requests age at one rate, so the order of any two never changes and is computed once.

use tokenloom_sdk::PluginError;
use tokenloom_sdk::rank::Rank;
use tokenloom_sdk::scheduler::Arrival;

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Waiting this long makes up for one step of priority.
    ageing_ms: u32,
    /// Whether a waiting request may take the seat of a running one.
    preempt: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { ageing_ms: 10_000, preempt: true }
    }
}

#[derive(Clone)]
pub struct Priority(Settings);

impl Rank for Priority {
    type Key = i128;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        let settings: Settings = tokenloom_sdk::parse_settings(settings_json)?;
        if settings.ageing_ms == 0 {
            return Err(tokenloom_sdk::disable("invalid-settings", "settings: ageing_ms must be at least 1"));
        }
        Ok(Self(settings))
    }

    fn rank(&self, request: &Arrival) -> i128 {
        i128::from(request.priority) * i128::from(self.0.ageing_ms) * 1000 + i128::from(request.arrived_us)
    }

    /// Only for a strictly more important request: ageing moves requests in the queue, it throws nobody out.
    fn may_preempt(&self, waiting: &Arrival, running: &Arrival) -> bool {
        self.0.preempt && waiting.priority < running.priority
    }
}

tokenloom_sdk::export_rank!(Priority);
