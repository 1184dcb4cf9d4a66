//! What a step costs, learned from measured steps.
//!
//! `ms = a + b rows + c context`, where `context` is the sum over the rows of their positions: weights are read once,
//! every row costs its products, and attention reads what comes before it. The three are fitted by least squares of the
//! relative error. Steps are kept in bins by rows and by context of a row, each bin fading on its own: an hour of pure
//! decoding does not make the engine forget what a deep prompt costs. No device is linear from one row to thousands, so
//! bins count the less the farther they are from the last step with a prompt in it, or from the next where that will be of
//! another kind.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::cost::StepCost;

/// One measured step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub rows: u32,
    /// Sum over the rows of their positions.
    pub context: f64,
    /// Some rows are a chunk of a prompt.
    pub prompts: bool,
    pub device: Duration,
}

/// Weight of a step after each later one of its bin: about the last thirty count, so a fit follows a machine that gets
/// warm or shared, and does not follow a single slow step.
const FADE: f64 = 0.97;

/// Weight of a bin for each binary digit of rows, or two of context, between it and the step that the fit is for.
const FAR: f64 = 0.4;

/// Weight of the prior `a = b = c = 0`, in steps; it only decides what a handful of equal steps cannot.
const PRIOR: f64 = 1e-4;

/// Steps so near each other share a fit: what is expected of the next is not exact.
const SAME_KIND: u32 = 1;

/// Rows and contexts are counted in these units, so that the three unknowns have like size.
const ROWS_UNIT: f64 = 64.0;
const CONTEXT_UNIT: f64 = 64.0 * 1024.0;

/// Added to a step's time when its weight is found: relative errors of microseconds mean nothing.
const MS_MIN: f64 = 0.05;

/// The normal equations of weighted least squares.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    normal: [[f64; 3]; 3],
    right: [f64; 3],
}

impl Sums {
    fn fade(&mut self, by: f64) {
        self.normal.iter_mut().flatten().chain(&mut self.right).for_each(|value| *value *= by);
    }

    fn add(&mut self, x: [f64; 3], ms: f64) {
        let weight = 1.0 / ((ms + MS_MIN) * (ms + MS_MIN));
        for i in 0..3 {
            for j in 0..3 {
                self.normal[i][j] += weight * x[i] * x[j];
            }
            self.right[i] += weight * x[i] * ms;
        }
    }

    fn merge(&mut self, other: &Self, weight: f64) {
        for i in 0..3 {
            for j in 0..3 {
                self.normal[i][j] += weight * other.normal[i][j];
            }
            self.right[i] += weight * other.right[i];
        }
    }
}

pub(crate) struct Budget {
    rows_max: u32,
    /// The most rows of a step so far.
    rows_seen: u32,
    /// By binary digits of the rows, and of the context of a row.
    bins: BTreeMap<(u32, u32), Sums>,
    /// The bin of the last step with a chunk of a prompt.
    here: Option<(u32, u32)>,
    cost: StepCost,
}

impl Budget {
    pub fn new(rows_max: u32) -> Self {
        // Nothing is known yet: half a page of rows is small on every device.
        let rows_seen = contract::PAGE_TOKENS / 2;
        Self { rows_max, rows_seen, bins: BTreeMap::new(), here: None, cost: StepCost::default() }
    }

    pub fn cost(&self) -> StepCost {
        self.cost
    }

    /// Beyond what was measured the fit only guesses, so steps at most double.
    pub fn rows(&self) -> u32 {
        self.rows_seen.saturating_mul(2).min(self.rows_max)
    }

    pub fn observe(&mut self, step: &Measured) {
        if step.rows == 0 {
            return;
        }
        self.rows_seen = self.rows_seen.max(step.rows);
        let at = bin(step.rows, (step.context / f64::from(step.rows)) as u32);
        if step.prompts {
            self.here = Some(at);
        }
        let kept = self.bins.entry(at).or_default();
        kept.fade(FADE);
        let x = [1.0, f64::from(step.rows) / ROWS_UNIT, step.context / CONTEXT_UNIT];
        kept.add(x, step.device.as_secs_f64() * 1e3);
        self.cost = self.fitted(self.here);
    }

    /// The cost of a step of about so many rows behind so many tokens each: where that is another kind of step than the last
    /// with a prompt, the fit moves there ahead of it.
    pub fn cost_ahead(&self, rows: u32, row_context: u32) -> StepCost {
        let at = bin(rows, row_context);
        let moves = self.here.is_some_and(|here| distance(here, at) > SAME_KIND);
        if moves { self.fitted(Some(at)) } else { self.cost }
    }

    fn fitted(&self, here: Option<(u32, u32)>) -> StepCost {
        let mut sums = Sums::default();
        for (&at, bin) in &self.bins {
            let distance = here.map_or(0, |here| distance(here, at));
            sums.merge(bin, FAR.powi(distance as i32));
        }
        let mean = sums.normal[0][0];
        for i in 0..3 {
            sums.normal[i][i] += PRIOR * mean;
        }
        let [a, b, c] = fit(&sums);
        // Casts beyond the range give the largest number.
        StepCost {
            fixed_us: (a * 1e3) as u32,
            row_ns: (b / ROWS_UNIT * 1e6) as u32,
            context_ps: (c / CONTEXT_UNIT * 1e9) as u32,
        }
    }
}

fn distance(a: (u32, u32), b: (u32, u32)) -> u32 {
    a.0.abs_diff(b.0) + a.1.abs_diff(b.1)
}

/// Where a step is kept. Contexts by powers of four: attention is a part of the cost that grows slowly.
fn bin(rows: u32, row_context: u32) -> (u32, u32) {
    (rows.max(1).ilog2(), (row_context | 1).ilog2() / 2)
}

/// Least squares with no negative cost: the most negative unknown is set to zero and the rest is solved again.
fn fit(sums: &Sums) -> [f64; 3] {
    let mut used = [true; 3];
    loop {
        let x = solve(sums, &used);
        let worst = (0..3).filter(|&i| x[i] < 0.0).min_by(|&i, &j| x[i].total_cmp(&x[j]));
        match worst {
            Some(i) => used[i] = false,
            None => return x,
        }
    }
}

/// Gaussian elimination over the unknowns in use; the matrix is positive definite because of the prior.
fn solve(Sums { normal, right }: &Sums, used: &[bool; 3]) -> [f64; 3] {
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

    fn after(steps: impl Iterator<Item = (u32, f64)>, cost: impl Fn(u32, f64) -> f64) -> Budget {
        let mut budget = Budget::new(4096);
        for (rows, context) in steps {
            let device = Duration::from_secs_f64(cost(rows, context) / 1e3);
            budget.observe(&Measured { rows, context, prompts: rows > 16, device });
        }
        budget
    }

    fn near(value: u32, wanted: u32) -> bool {
        value.abs_diff(wanted) <= wanted / 20
    }

    /// Steps of 10 ms, 0.1 ms a row and 1 us for a row's thousand tokens of context.
    #[test]
    fn a_linear_device_is_learned() {
        let cost = |rows: u32, context: f64| 10.0 + 0.1 * f64::from(rows) + 1e-6 * context;
        let steps = (0..300).map(|n| (8 + n % 97, f64::from(8 + n % 97) * f64::from(n % 7) * 2000.0));
        let cost = after(steps, cost).cost();
        assert!(near(cost.fixed_us, 10_000) && near(cost.row_ns, 100_000) && near(cost.context_ps, 1000), "{cost:?}");
    }

    /// An hour of decoding beside nobody does not wash out what prompts cost.
    #[test]
    fn decoding_forgets_nothing() {
        let cost = |rows: u32, context: f64| 5.0 + 0.02 * f64::from(rows) + 1.1e-6 * context;
        let deep = (0..200).map(|n| (64 + n * 5, f64::from(64 + n * 5) * f64::from(n) * 500.0));
        let decoding = (0..100_000).map(|n| (16, 16.0 * f64::from(200 + n % 4000)));
        let found = after(deep.chain(decoding), cost).cost();
        assert!(near(found.row_ns, 20_000) && near(found.context_ps, 1100), "{found:?}");
    }

    /// What was never measured is reached by doubling.
    #[test]
    fn steps_grow_by_doubling() {
        assert_eq!(Budget::new(4096).rows(), 64);
        assert_eq!(after([(64, 0.0), (16, 0.0)].into_iter(), |_, _| 1.0).rows(), 128);
        assert_eq!(after([(4000, 0.0)].into_iter(), |_, _| 1.0).rows(), 4096);
    }

    /// Where rows get dearer with their number, the fit is within 5 % near the last prompts, whatever is decoded beside.
    #[test]
    fn a_bent_device_is_learned_where_the_work_is() {
        let cost = |rows: u32, _: f64| 5.0 + 0.01 * f64::from(rows) + 1e-5 * f64::from(rows).powi(2);
        let all = (0..400).map(|n| (if n % 2 == 0 { 16 } else { 40 + n * 5 }, 0.0));
        for here in [300, 1500] {
            let near = (0..60).map(|n| (here + n % 7, 0.0));
            let found = after(all.clone().chain(near), cost).cost().step_us(here, 0.0) / 1e3;
            let wanted = cost(here, 0.0);
            assert!((found / wanted - 1.0).abs() < 0.05, "{here} rows: {found} ms, {wanted} wanted");
        }
    }

    /// Behind many short prompts the first chunks of a long one are foreseen as those of the long prompts before were.
    #[test]
    fn a_long_prompt_behind_short_ones_is_foreseen() {
        let cost = |rows: u32, _: f64| 5.0 + 0.01 * f64::from(rows) + 1e-5 * f64::from(rows).powi(2);
        let long = (0..10).map(|n| (1100 + n * 40, 0.0));
        let short = (0..200).map(|n| (if n % 4 == 0 { 216 } else { 16 }, 0.0));
        let budget = after(long.chain(short), cost);
        let error = |found: StepCost| found.step_us(1300, 0.0) / 1e3 / cost(1300, 0.0) - 1.0;
        assert!(error(budget.cost()) < -0.1, "{:?}", budget.cost());
        assert!(error(budget.cost_ahead(1300, 0)).abs() < 0.02, "{:?}", budget.cost_ahead(1300, 0));
        assert_eq!(budget.cost_ahead(300, 1), budget.cost());
    }

    /// Steps that cost nothing, and steps of a minute.
    #[test]
    fn extremes_stay_in_range() {
        let free = after((0..20).map(|_| (64, 0.0)), |_, _| 0.0).cost();
        assert_eq!((free.fixed_us, free.row_ns, free.context_ps), (0, 0, 0));
        let slow = after((0..200).map(|n| (1 + n % 64, 0.0)), |rows, _| 1e3 * f64::from(rows)).cost();
        assert!(near(slow.row_ns, 1_000_000_000), "{slow:?}");
    }
}
