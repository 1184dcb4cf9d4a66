//! Requests that want to know how likely their own prompt was.

use backend::step::Emit;
use contract::TokenId;
use scheduler::PlannedRun;

/// How far the rows of one prompt have been asked for.
pub(crate) struct Score {
    top: u8,
    /// Rows before this one were asked for, perhaps in a step that is still in flight.
    asked: u32,
}

impl Score {
    pub fn new(top: u8) -> Self {
        Self { top, asked: 0 }
    }

    /// What a run must give back; `None` when it has no row that is still wanted. A preemption may bring rows of the
    /// prompt a second time.
    pub fn emit(&mut self, run: &PlannedRun, prompt: &[TokenId]) -> Option<Emit> {
        let start = run.end - run.rows;
        let from = self.asked.saturating_sub(start);
        if from >= run.rows || self.asked as usize >= prompt.len() {
            return None;
        }
        self.asked = run.end;
        Some(Emit::Every { from, top: self.top, next: prompt.get(run.end as usize).copied() })
    }
}

#[cfg(test)]
mod tests {
    use contract::{Seat, Slot};
    use scheduler::Feed;

    use super::*;

    fn run(start: u32, end: u32) -> PlannedRun {
        PlannedRun { slot: Slot(0), seat: Seat(0), feed: Feed::Tokens(0..0), rows: end - start, end, emits: end >= 8 }
    }

    /// Every row of the prompt is asked for once, the last one for the sampled token; later rows not at all.
    #[test]
    fn rows_are_asked_for_once() {
        let prompt: Vec<TokenId> = (10..18).collect();
        let every = |from, next| Some(Emit::Every { from, top: 2, next });
        let mut score = Score::new(2);
        assert_eq!(score.emit(&run(0, 3), &prompt), every(0, Some(13)));
        assert_eq!(score.emit(&run(0, 2), &prompt), None);
        assert_eq!(score.emit(&run(2, 5), &prompt), every(1, Some(15)));
        assert_eq!(score.emit(&run(5, 8), &prompt), every(0, None));
        assert_eq!(score.emit(&run(0, 9), &prompt), None);
        assert_eq!(score.emit(&run(8, 9), &prompt), None);
    }
}
