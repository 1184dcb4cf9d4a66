//! A scheduler from `rank()`: say who comes first, and the SDK makes a policy of it.
//!
//! Here: by priority, then whoever has the least left to compute. The SDK's `Ranked` keeps the queue, admits within
//! seats and pages, cuts long prompts into chunks and leaves decoding requests alone.

use tokenloom_sdk::PluginError;
use tokenloom_sdk::rank::Rank;
use tokenloom_sdk::scheduler::Arrival;

/// What the operator may set under `[plugin.shortest-answer.settings]`.
#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShortestAnswer {
    /// Nobody is overtaken by a request that came this much later.
    patience_ms: u32,
}

impl Default for ShortestAnswer {
    fn default() -> Self {
        Self { patience_ms: 2000 }
    }
}

impl Rank for ShortestAnswer {
    /// Compared from left to right, lower first; equal keys go in order of arrival.
    type Key = (i32, u64);

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        tokenloom_sdk::parse_settings(settings_json)
    }

    fn rank(&self, request: &Arrival) -> Self::Key {
        // A key is asked for once, so waiting counts only when it is part of it: work moves a request back in time.
        let uncached = request.prompt_tokens.saturating_sub(request.cached_tokens);
        let work_us = (u64::from(uncached) + u64::from(request.max_new_tokens)) * 1000;
        let back_us = work_us.min(u64::from(self.patience_ms) * 1000);
        (request.priority, request.arrived_us.saturating_add(back_us))
    }
}

tokenloom_sdk::export_rank!(ShortestAnswer);

#[cfg(test)]
mod tests {
    use super::*;
    use tokenloom_sdk::rank::Ranked;
    use tokenloom_sdk::testing::{Host, arrival};

    /// Of three that wait for one seat the shortest goes first, and a more urgent one before all.
    #[test]
    fn the_shortest_goes_first() {
        let mut policy = Ranked::new(ShortestAnswer::default());
        let mut host = Host::new(1, 512);
        host.arrive(arrival(1, 400, 8));
        host.arrive(arrival(2, 40, 8));
        let mut urgent = arrival(3, 300, 8);
        urgent.priority = -1;
        host.arrive(urgent);
        for _ in 0..64 {
            host.step(&mut policy).expect("the advice can be followed");
        }
        let order: Vec<u32> = host.finished.iter().map(|request| request.arrival.slot).collect();
        assert_eq!(order, [3, 2, 1]);
    }
}
