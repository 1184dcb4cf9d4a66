//! Exchanging an engine's scheduler.

use std::path::Path;
use std::sync::PoisonError;

use api::exchange::{ExchangeError, ExchangeOrder, Place};
use engine::PolicyState;
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
        let removed_before = side.place.handle.status().policies_removed;
        side.place.handle.swap_policy(next);
        let before = side.place.scheduler.replace(candidate);
        side.before.push(before);
        self.watch_policy(&order.place, side.place.handle.clone(), serial, removed_before);
        Ok(self
            .note(&order.place, json!({"state": "live", "file": order.file, "sha256": order.sha256, "shadow": seen})))
    }

    pub(super) fn restore_scheduler(&self, place: &Place) -> Result<(), ExchangeError> {
        let mut side = enter(self.engine(place)?)?;
        let before = side.before.last().ok_or_else(|| nothing_before(place))?.clone();
        match &before {
            Some(scheduler) => side.place.handle.swap_policy(self.plugins.policy(scheduler).map_err(refused)?),
            None => side.place.handle.swap_to_native(),
        }
        side.place.scheduler = before;
        side.before.pop();
        Ok(())
    }

    /// Writes down when the engine takes a new policy back by itself.
    fn watch_policy(&self, place: &Place, engine: engine::Handle, serial: u64, removed_before: u64) {
        let (own, place) = (self.own.clone(), place.clone());
        let watch = move || {
            let mut was_live = false;
            while own.strong_count() > 0 {
                let status = engine.status();
                was_live |= status.policy_serial == serial;
                let exchanged = was_live && status.policy_serial != serial;
                // It may be gone before it is seen here once.
                if exchanged || status.policies_removed > removed_before {
                    let Some(exchange) = own.upgrade() else { return };
                    return exchange.policy_is_gone(&place);
                }
                std::thread::sleep(LOOK);
            }
        };
        self.spawn_watch(watch);
    }

    fn policy_is_gone(&self, place: &Place) {
        let Ok(side) = self.engine(place) else { return };
        // Another exchange may be going on, and what it comes to counts.
        let mut side = side.lock().unwrap_or_else(PoisonError::into_inner);
        let status = side.place.handle.status();
        let why = status.degraded.first().cloned().unwrap_or_default();
        // It decides already; with the exchange it is what was asked for again.
        let native_before = matches!(side.before.last(), Some(None));
        match status.policy_state {
            PolicyState::Benched if !native_before => {
                self.note(place, json!({"state": "failed", "why": why}));
            }
            PolicyState::Returned | PolicyState::Benched => {
                if native_before {
                    side.place.handle.swap_to_native();
                }
                if let Some(before) = side.before.pop() {
                    side.place.scheduler = before;
                }
                self.note(place, json!({"state": "rolled-back", "why": why}));
            }
            // Somebody exchanged it.
            PolicyState::Active | PolicyState::Native => {}
        }
    }
}
