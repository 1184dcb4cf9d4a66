//! The next step is planned as late as the device allows.
//!
//! With two steps in flight the next could be planned as soon as one has begun, and a request that comes just then waits for
//! two of them; a cancelled one computes for two. A step that is expected to last is therefore let run while messages are
//! taken, until what is left of it covers a plan, a launch and the error of the expectation.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use contract::cost::plan_after_us;

use crate::run::{Engine, Fault};

/// How often a step is asked whether it has ended sooner.
const ASK: Duration = Duration::from_micros(500);

impl Engine {
    /// Takes messages until the next step is to be planned, or the one in flight has ended. `false`: stop.
    pub(crate) fn linger(&mut self) -> Result<bool, Fault> {
        let Some(until) = self.plan_at() else { return Ok(true) };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(true);
            }
            match self.mailbox.recv_timeout(left.min(ASK)) {
                Ok(message) => {
                    if !self.take(message) {
                        return Ok(false);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.collect(false)? {
                        return Ok(true);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
    }

    /// `None`: nothing is in flight.
    fn plan_at(&self) -> Option<Instant> {
        let flight = self.flights.front()?;
        let (rows, context) = (flight.measured.rows, flight.measured.context);
        let after_us = plan_after_us(self.budget.cost().step_us(rows, context) as u64);
        // A step begins when the one before has ended.
        flight.launched.max(self.device_free).checked_add(Duration::from_micros(after_us))
    }
}
