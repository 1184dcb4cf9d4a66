//! The prompt with the least left to compute goes first, within a bound.
//!
//! The rank is the arrival plus the time that the prompt's uncached tokens are taken to need, at most `bound_ms`: a long
//! prompt is overtaken by short ones that arrive within the bound after it, and by none that come later.

use tokenloom_sdk::PluginError;
use tokenloom_sdk::rank::Rank;
use tokenloom_sdk::scheduler::Arrival;

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// How far a token of prompt moves a request back.
    token_us: u32,
    /// Nobody is overtaken by a request that came this much later.
    bound_ms: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { token_us: 1000, bound_ms: 10_000 }
    }
}

#[derive(Clone)]
pub struct ShortestPrefillFirst(Settings);

impl Rank for ShortestPrefillFirst {
    type Key = u64;

    const SHARE: f64 = 1.0;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        let settings: Settings = tokenloom_sdk::parse_settings(settings_json)?;
        if settings.token_us == 0 {
            return Err(tokenloom_sdk::disable("invalid-settings", "settings: token_us must be at least 1"));
        }
        Ok(Self(settings))
    }

    fn rank(&self, request: &Arrival) -> u64 {
        let uncached = u64::from(request.prompt_tokens.saturating_sub(request.cached_tokens));
        let back_us = (uncached * u64::from(self.0.token_us)).min(u64::from(self.0.bound_ms) * 1000);
        request.arrived_us.saturating_add(back_us)
    }
}

tokenloom_sdk::export_rank!(ShortestPrefillFirst);
