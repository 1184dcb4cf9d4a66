//! The chain of stages of one stream.

use contract::output::{EndReason, HELD_BYTES_MAX, OutputEvent, StageSession};

use super::rules::{CallOrder, Unaccounted};
use crate::TextError;

/// One stage of one stream. A stage that breaks a rule or holds too much is cut out: what it was given and has not
/// accounted for is passed on, and so is everything after.
struct Stage {
    name: String,
    /// `None` after the stage was cut out or has finished.
    session: Option<Box<dyn StageSession>>,
    order: CallOrder,
    unaccounted: Unaccounted,
    calls_allowed: bool,
    was_cut_out: bool,
}

/// What a chain made of one step of the model, for people who look into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainStep {
    /// What the first stage was given.
    pub fed: Vec<OutputEvent>,
    /// What each stage gave, in order.
    pub stages: Vec<Vec<OutputEvent>>,
}

/// Stages in order; the output of one is the input of the next.
pub(super) struct Chain {
    stages: Vec<Stage>,
    /// The last step, where somebody looks.
    step: Option<ChainStep>,
}

impl Chain {
    pub(super) fn new(sessions: Vec<(String, Box<dyn StageSession>)>, calls_allowed: bool, record_steps: bool) -> Self {
        let stage = |(name, session)| Stage {
            name,
            session: Some(session),
            order: CallOrder::default(),
            unaccounted: Unaccounted::default(),
            calls_allowed,
            was_cut_out: false,
        };
        Self { stages: sessions.into_iter().map(stage).collect(), step: record_steps.then(ChainStep::default) }
    }

    pub(super) fn last_step(&self) -> Option<&ChainStep> {
        self.step.as_ref()
    }

    /// A stage may keep its next call waiting.
    pub(super) fn is_suspect(&self) -> bool {
        self.stages.iter().filter_map(|stage| stage.session.as_ref()).any(|session| session.is_suspect())
    }

    /// Stages that were cut out of this stream.
    pub(super) fn violations(&self) -> u32 {
        self.stages.iter().map(|stage| u32::from(stage.was_cut_out)).sum()
    }

    pub(super) fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, TextError> {
        self.run(events, None)
    }

    /// What stage i still holds goes through `feed` of stage i + 1 before that one finishes.
    pub(super) fn finish(
        &mut self,
        events: Vec<OutputEvent>,
        reason: &EndReason,
    ) -> Result<Vec<OutputEvent>, TextError> {
        self.run(events, Some(reason))
    }

    fn run(&mut self, mut events: Vec<OutputEvent>, end: Option<&EndReason>) -> Result<Vec<OutputEvent>, TextError> {
        if let Some(step) = &mut self.step {
            *step = ChainStep { fed: events.clone(), stages: Vec::with_capacity(self.stages.len()) };
        }
        for stage in &mut self.stages {
            events = stage.feed(events)?;
            if let Some(reason) = end {
                events.extend(stage.finish(reason)?);
            }
            if let Some(step) = &mut self.step {
                step.stages.push(events.clone());
            }
        }
        Ok(events)
    }
}

impl Stage {
    fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, TextError> {
        let Some(session) = self.session.as_mut().filter(|_| !events.is_empty()) else { return Ok(events) };
        for event in &events {
            self.unaccounted.given(event);
        }
        let out = session.feed(events).map_err(TextError::from_stage)?;
        Ok(self.accept(out))
    }

    fn finish(&mut self, reason: &EndReason) -> Result<Vec<OutputEvent>, TextError> {
        let Some(session) = self.session.as_mut() else { return Ok(Vec::new()) };
        let out = session.finish(reason.clone()).map_err(TextError::from_stage)?;
        let mut out = self.accept(out);
        out.extend(self.order.close());
        self.session = None;
        Ok(out)
    }

    /// Checks what the stage emitted; from the first broken rule on, its input is passed on in its place.
    fn accept(&mut self, out: Vec<OutputEvent>) -> Vec<OutputEvent> {
        let mut accepted = Vec::with_capacity(out.len());
        for event in out {
            if let Err(rule) = self.order.check(&event, self.calls_allowed) {
                self.cut_out(&rule, &mut accepted);
                return accepted;
            }
            self.unaccounted.emitted(&event);
            accepted.push(event);
        }
        if self.unaccounted.bytes() > HELD_BYTES_MAX {
            let held = self.unaccounted.bytes();
            self.cut_out(&format!("{held} bytes held, {HELD_BYTES_MAX} are possible"), &mut accepted);
        }
        accepted
    }

    fn cut_out(&mut self, rule: &str, accepted: &mut Vec<OutputEvent>) {
        tracing::warn!(stage = self.name, rule, call = self.order.open(), "output stage cut out of a stream");
        accepted.extend(self.order.close());
        accepted.extend(self.unaccounted.take());
        self.session = None;
        self.was_cut_out = true;
    }
}
