//! The next step is planned as late as the device allows.
//!
//! With two steps in flight the next could be planned as soon as one has begun, and a request that comes just then waits for
//! two of them; a cancelled one computes for two. A step that is expected to last is therefore let run while messages are
//! taken, until what is left of it covers a plan, a launch and the error of the expectation.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::run::{Engine, Fault};

/// Steps that are expected to take less are planned at once: there is little to win, and a thread's wake-up is a part of it.
const WORTH_MIN: Duration = Duration::from_millis(10);
/// Left of a step when the next is planned: this, and an eighth of the step.
const LEAD: Duration = Duration::from_millis(2);
/// How often a step is asked whether it has ended sooner.
const ASK: Duration = Duration::from_micros(500);

/// How long after its begin a step is planned over, by how long it is expected to take.
fn pause(expected: Duration) -> Duration {
    if expected < WORTH_MIN { Duration::ZERO } else { (expected - expected / 8).saturating_sub(LEAD) }
}

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
        let expected = Duration::from_micros(self.budget.cost().step_us(rows, context) as u64);
        // A step begins when the one before has ended.
        Some(flight.launched.max(self.device_free) + pause(expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_planned_over_late() {
        for (expected_us, pause_us) in [(0, 0), (9_999, 0), (10_000, 6_750), (28_800, 23_200)] {
            assert_eq!(pause(Duration::from_micros(expected_us)), Duration::from_micros(pause_us));
        }
    }
}
