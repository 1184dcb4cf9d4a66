//! How many rows fit a step's target time, learned from measured steps.
//!
//! The cost of a step is `ms = a + b rows + c rows context` (weights are read once, every row costs its products, and
//! attention reads the context of each row). The three are fitted by least squares over past steps, older ones fading.

use std::time::Duration;

/// One measured step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub rows: u32,
    /// Sum over the rows of their positions.
    pub context: f64,
    pub device: Duration,
}

/// Weight of a step after each later one: about the last hundred steps count, so a fit follows a machine that gets
/// warm or shared, and does not follow a single slow step.
const FADE: f64 = 0.99;

/// Weight of the prior `a = b = c = 0`, in steps; it only decides what a handful of equal steps cannot.
const PRIOR: f64 = 1e-3;

/// Rows and contexts are counted in these units, so that the three unknowns have like size.
const ROWS_UNIT: f64 = 64.0;
const CONTEXT_UNIT: f64 = 64.0 * 1024.0;

pub(crate) struct Budget {
    target_ms: f64,
    rows_max: u32,
    budget: u32,
    normal: [[f64; 3]; 3],
    right: [f64; 3],
    /// Smoothed context of a row.
    row_context: f64,
}

impl Budget {
    pub fn new(target: Duration, rows_max: u32) -> Self {
        let mut normal = [[0.0; 3]; 3];
        for (i, row) in normal.iter_mut().enumerate() {
            row[i] = PRIOR;
        }
        // Nothing is known yet: a page of rows is small on every device, and the budget may double with each step.
        let budget = contract::PAGE_TOKENS.min(rows_max);
        Self { target_ms: target.as_secs_f64() * 1e3, rows_max, budget, normal, right: [0.0; 3], row_context: 0.0 }
    }

    pub fn rows(&self) -> u32 {
        self.budget
    }

    pub fn observe(&mut self, step: &Measured) {
        if step.rows == 0 {
            return;
        }
        let x = [1.0, f64::from(step.rows) / ROWS_UNIT, step.context / CONTEXT_UNIT];
        let ms = step.device.as_secs_f64() * 1e3;
        for i in 0..3 {
            for j in 0..3 {
                self.normal[i][j] = self.normal[i][j] * FADE + x[i] * x[j];
            }
            self.normal[i][i] += PRIOR * (1.0 - FADE);
            self.right[i] = self.right[i] * FADE + x[i] * ms;
        }
        self.row_context += (step.context / f64::from(step.rows) - self.row_context) * (1.0 - FADE);
        let [a, b, c] = fit(&self.normal, &self.right);
        let row_ms = b / ROWS_UNIT + c * self.row_context / CONTEXT_UNIT;
        // Where the fixed cost is most of the target, or above it, smaller steps would only repeat it: the rows may then
        // cost as much as it does, and a step is at most twice as long as it must be.
        let fitting = (self.target_ms - a).max(a) / row_ms.max(f64::MIN_POSITIVE);
        // Beyond what was measured the fit only guesses, so the budget at most doubles.
        let most = self.budget.saturating_mul(2).min(self.rows_max);
        self.budget = (fitting.clamp(1.0, f64::from(most)) as u32).max(1);
    }
}

/// Least squares with no negative cost: the most negative unknown is set to zero and the rest is solved again.
fn fit(normal: &[[f64; 3]; 3], right: &[f64; 3]) -> [f64; 3] {
    let mut used = [true; 3];
    loop {
        let x = solve(normal, right, &used);
        let worst = (0..3).filter(|&i| x[i] < 0.0).min_by(|&i, &j| x[i].total_cmp(&x[j]));
        match worst {
            Some(i) => used[i] = false,
            None => return x,
        }
    }
}

/// Gaussian elimination over the unknowns in use; the matrix is positive definite because of the prior.
fn solve(normal: &[[f64; 3]; 3], right: &[f64; 3], used: &[bool; 3]) -> [f64; 3] {
    let mut m = [[0.0; 4]; 3];
    for i in 0..3 {
        for j in 0..3 {
            m[i][j] = if used[i] && used[j] { normal[i][j] } else { f64::from(u8::from(i == j)) };
        }
        m[i][3] = if used[i] { right[i] } else { 0.0 };
    }
    for i in 0..3 {
        let pivot = m[i];
        for (_, row) in m.iter_mut().enumerate().filter(|(k, _)| *k != i) {
            let factor = row[i] / pivot[i];
            for (value, of_pivot) in row.iter_mut().zip(pivot) {
                *value -= factor * of_pivot;
            }
        }
    }
    [m[0][3] / m[0][0], m[1][3] / m[1][1], m[2][3] / m[2][2]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: impl Iterator<Item = (u32, f64)>, cost: impl Fn(u32, f64) -> f64) -> u32 {
        let mut budget = Budget::new(Duration::from_millis(50), 4096);
        for (rows, context) in steps {
            let device = Duration::from_secs_f64(cost(rows, context) / 1e3);
            budget.observe(&Measured { rows, context, device });
        }
        budget.rows()
    }

    /// Steps of 10 ms + 0.1 ms a row: 400 rows fit 50 ms.
    #[test]
    fn a_linear_device_is_learned() {
        let rows = after((0..200).map(|n| (8 + n % 97, 0.0)), |rows, _| 10.0 + 0.1 * f64::from(rows));
        assert!((390..=410).contains(&rows), "{rows}");
    }

    /// Long contexts cost rows.
    #[test]
    fn context_lowers_the_budget() {
        let cost = |rows: u32, context: f64| 5.0 + 0.05 * f64::from(rows) + context * 1e-4;
        let near = after((0..200).map(|n| (8 + n % 90, f64::from(8 + n % 90) * 10.0)), cost);
        let far = after((0..200).map(|n| (8 + n % 90, f64::from(8 + n % 90) * 4000.0)), cost);
        assert!(far < near / 4, "{far} {near}");
    }

    /// A device whose steps cost nothing is used in full; one whose rows are slower than the target gets a row.
    #[test]
    fn extremes_stay_in_range() {
        assert_eq!(after((0..20).map(|_| (64, 0.0)), |_, _| 0.0), 4096);
        assert_eq!(after((0..200).map(|n| (1 + n % 64, 0.0)), |rows, _| 1e3 * f64::from(rows)), 1);
    }

    /// A fixed cost above the target does not shrink the steps to nothing: 100 ms + 1 ms a row gives 100 rows.
    #[test]
    fn a_large_fixed_cost_is_shared_by_many_rows() {
        let rows = after((0..200).map(|n| (8 + n % 97, 0.0)), |rows, _| 100.0 + f64::from(rows));
        assert!((95..=105).contains(&rows), "{rows}");
    }
}
