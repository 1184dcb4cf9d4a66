//! Exchanging an engine's scheduler.

use std::path::Path;

use api::exchange::{ExchangeError, ExchangeOrder, Place};
use engine::{EngineStatus, PolicyState};
use serde_json::{Value, json};

use super::{Exchange, LOOK, enter, nothing_before, own_cases, own_cases_passed, refused, shadow_policy};
use crate::plugin_cmd::{conform, schedule};

impl Exchange {
    /// A policy is exchanged by the engine, which starts it from a snapshot and takes it back after three strikes. In the
    /// shadow period it is shown snapshots of the engine, and decides for nobody.
    pub(super) fn exchange_scheduler(&self, order: &ExchangeOrder, file: &Path) -> Result<Value, ExchangeError> {
        let mut side = enter(self.engine(&order.place)?)?;
        let settings = order.settings.clone().unwrap_or_default();
        let candidate = self.plugins.candidate_scheduler(file, &order.sha256, &settings).map_err(refused)?;
        let policy = || self.plugins.policy(&candidate);
        let next = policy().map_err(refused)?;
        self.gate(order, || {
            let policy = || policy().map_err(|e| format!("{e:#}"));
            let mut results = schedule::run_jsonl(&own_cases(file)?, policy);
            own_cases_passed(&results)?;
            results.extend(conform::scheduler(&policy));
            Ok(results)
        })?;
        let seen = match side.place.scheduler {
            // Native first come, first served is no plugin; nothing is learnt from where it decides otherwise.
            None => json!({"compared": 0}),
            Some(_) if order.shadow_time.is_zero() => json!({"compared": 0}),
            Some(_) => {
                let counts = shadow_policy::watch(&side.place.handle, policy().map_err(refused)?);
                let counts =
                    counts.map_err(|e| ExchangeError::Refused(format!("no thread for a shadow period: {e}")))?;
                self.shadow(order, &counts)?
            }
        };
        let serial = next.serial();
        side.place.handle.swap_policy(next);
        let before = side.place.scheduler.replace(candidate);
        side.before.push(before);
        self.watch_policy(&order.place, side.place.handle.clone(), serial);
        Ok(self
            .note(&order.place, json!({"state": "live", "file": order.file, "sha256": order.sha256, "shadow": seen})))
    }

    pub(super) fn restore_scheduler(&self, place: &Place) -> Result<(), ExchangeError> {
        let mut side = enter(self.engine(place)?)?;
        let before = side.before.last().ok_or_else(|| nothing_before(place))?.clone();
        let Some(scheduler) = &before else {
            let message = "the engine was started with the native policy, which only a restart brings back";
            return Err(ExchangeError::Conflict(message.into()));
        };
        side.place.handle.swap_policy(self.plugins.policy(scheduler).map_err(refused)?);
        side.place.scheduler = before;
        side.before.pop();
        Ok(())
    }

    /// Writes down when the engine takes a new policy back by itself.
    fn watch_policy(&self, place: &Place, engine: engine::Handle, serial: u64) {
        let (own, place) = (self.own.clone(), place.clone());
        let watch = move || {
            let mut was_live = false;
            while own.strong_count() > 0 {
                let status = engine.status();
                was_live |= status.policy_serial == serial;
                let gone = was_live && status.policy_serial != serial;
                if gone || status.policy_state == PolicyState::Benched {
                    let Some(exchange) = own.upgrade() else { return };
                    return exchange.policy_is_gone(&place, &status);
                }
                std::thread::sleep(LOOK);
            }
        };
        self.spawn_watch(watch);
    }

    fn policy_is_gone(&self, place: &Place, status: &EngineStatus) {
        let why = status.degraded.first().cloned().unwrap_or_default();
        match status.policy_state {
            PolicyState::Returned => {
                if let Ok(mut side) = self.engine(place).and_then(enter)
                    && let Some(before) = side.before.pop()
                {
                    side.place.scheduler = before;
                }
                self.note(place, json!({"state": "rolled-back", "why": why}));
            }
            PolicyState::Benched => {
                self.note(place, json!({"state": "failed", "why": why}));
            }
            // Somebody exchanged it.
            PolicyState::Active | PolicyState::Native => {}
        }
    }
}
