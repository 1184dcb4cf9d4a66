//! What a step costs, as the engine measured it, and how many rows fit a time.

/// A step of `rows` token rows takes
/// `fixed_us + (row_ns · rows + context_ps / 1000 · context) / 1000` microseconds, where `context` is the sum over the
/// rows of the tokens that each attends to: weights are read once, every row costs its products, and attention reads
/// the sequence before it. All zero: nothing is known, and every step is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCost {
    pub fixed_us: u32,
    pub row_ns: u32,
    /// Picoseconds for one row and one token of its context.
    pub context_ps: u32,
}

impl StepCost {
    /// Microseconds of a whole step; `context` as above.
    pub fn step_us(&self, rows: u32, context: f64) -> f64 {
        f64::from(self.fixed_us)
            + f64::from(self.row_ns) * 1e-3 * f64::from(rows)
            + f64::from(self.context_ps) * 1e-6 * context
    }

    /// Microseconds that `rows` rows of one sequence add to a step when `start` tokens come before them.
    pub fn rows_us(&self, start: u32, rows: u32) -> f64 {
        let rows = f64::from(rows);
        let context = rows * f64::from(start) + rows * (rows + 1.0) / 2.0;
        f64::from(self.row_ns) * 1e-3 * rows + f64::from(self.context_ps) * 1e-6 * context
    }

    /// The most rows of one sequence, after `start` tokens, that add no more than `us` microseconds.
    pub fn rows_within(&self, us: f64, start: u32) -> u32 {
        if (self.row_ns == 0 && self.context_ps == 0) || us == f64::INFINITY {
            return u32::MAX;
        }
        if us <= 0.0 {
            return 0;
        }
        // context_us / 2 · rows² + (row_us + context_us · (start + 1/2)) · rows = us
        let context_us = f64::from(self.context_ps) * 1e-6;
        let linear = f64::from(self.row_ns) * 1e-3 + context_us * (f64::from(start) + 0.5);
        let root = (linear * linear + 2.0 * context_us * us).sqrt();
        // Written so that it does not cancel.
        let rows = 2.0 * us / (linear + root);
        // A cast beyond the range gives the largest number; the small allowance is for the square root's rounding.
        (rows + 1e-6) as u32
    }
}

/// Steps that are expected to take less are planned over at once: there is little to win, and a thread's wake-up is a part of
/// it.
const LATE_MIN_US: u64 = 10_000;
/// Left of a step when the next is planned: this, and an eighth of the step, for a plan, a launch and the error of what was
/// expected.
const LEAD_US: u64 = 2000;

/// Microseconds after the begin of a step that is expected to take `step_us` at which the next is planned: as late as the
/// device allows, so that who comes meanwhile is part of it.
pub fn plan_after_us(step_us: u64) -> u64 {
    if step_us < LATE_MIN_US { 0 } else { step_us - step_us / 8 - LEAD_US }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_planned_over_late() {
        assert_eq!([0, 9999, 10_000, 28_800].map(plan_after_us), [0, 0, 6750, 23_200]);
        assert!(plan_after_us(u64::MAX) < u64::MAX);
    }

    /// As many rows as fit cost no more than the time, and one more costs more.
    #[test]
    fn rows_within_is_the_inverse_of_rows_us() {
        for cost in [(10, 23_000, 1_100), (10, 23_000, 0), (0, 0, 5_000), (0, 3_800_000, 1_400_000)] {
            let cost = StepCost { fixed_us: cost.0, row_ns: cost.1, context_ps: cost.2 };
            for start in [0, 63, 7_000, 100_000] {
                for us in [1.0, 30_000.0, 1e6] {
                    let rows = cost.rows_within(us, start);
                    assert!(cost.rows_us(start, rows) <= us * (1.0 + 1e-9) + 1e-3, "{cost:?} {start} {us}");
                    assert!(cost.rows_us(start, rows + 1) > us, "{cost:?} {start} {us}: {rows}");
                }
            }
        }
    }

    #[test]
    fn unknown_costs_limit_nothing() {
        assert_eq!(StepCost::default().rows_within(5.0, 9), u32::MAX);
        assert_eq!(StepCost::default().rows_within(0.0, 9), u32::MAX);
    }
}
