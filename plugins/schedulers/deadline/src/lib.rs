//! The earliest deadline of a first token goes first; one that cannot be met any more is not waited for.
//!
//! Earliest deadline first meets every deadline that any order meets, as long as all can be met. When they cannot, it
//! serves those that are late anyway and makes others late with them; so a request whose prompt cannot be computed in
//! time even alone is refused at once, or goes behind those that are still in time.

use tokenloom_sdk::PluginError;
use tokenloom_sdk::rank::{Outlook, Rank, Verdict};
use tokenloom_sdk::scheduler::Arrival;

#[derive(Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Late {
    /// 429 with `Retry-After`.
    Refuse,
    /// Served when nobody in time waits.
    Last,
}

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// The deadline, from arrival, of requests that name none.
    default_ms: u32,
    /// What becomes of a request whose own deadline cannot be met; those without one are never refused.
    late: Late,
}

impl Default for Settings {
    fn default() -> Self {
        Self { default_ms: 10_000, late: Late::Refuse }
    }
}

#[derive(Clone)]
pub struct Deadline(Settings);

impl Deadline {
    fn due(&self, request: &Arrival) -> u64 {
        request.deadline_us.unwrap_or(request.arrived_us.saturating_add(u64::from(self.0.default_ms) * 1000))
    }
}

impl Rank for Deadline {
    type Key = u64;

    /// Whoever is due first needs the whole step: half of it could make both late.
    const SHARE: f64 = 1.0;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        let settings: Settings = tokenloom_sdk::parse_settings(settings_json)?;
        if settings.default_ms == 0 {
            return Err(tokenloom_sdk::disable("invalid-settings", "settings: default_ms must be at least 1"));
        }
        Ok(Self(settings))
    }

    fn rank(&self, request: &Arrival) -> u64 {
        self.due(request)
    }

    fn due_us(&self, request: &Arrival) -> Option<u64> {
        Some(self.due(request))
    }

    fn judge(&self, request: &Arrival, outlook: &Outlook) -> Verdict {
        let in_time = outlook.now_us.saturating_add(outlook.first_token_us) <= self.due(request);
        match self.0.late {
            _ if in_time || request.deadline_us.is_none() => Verdict::Serve,
            Late::Last => Verdict::Last,
            // After the time that it lacked.
            Late::Refuse => Verdict::Refuse {
                code: "deadline-unreachable",
                retry_after_ms: (outlook.first_token_us / 1000).try_into().unwrap_or(u32::MAX),
            },
        }
    }

    /// A request that nobody waits for by the clock gives its seat to one that is.
    fn may_preempt(&self, waiting: &Arrival, running: &Arrival) -> bool {
        waiting.deadline_us.is_some() && running.deadline_us.is_none()
    }
}

tokenloom_sdk::export_rank!(Deadline);
