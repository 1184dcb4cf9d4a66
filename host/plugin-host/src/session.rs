//! One stream in an output stage: feeds, checks, replays once after a failure, and falls back as the plugin declares.
//!
//! States: live -> (failure, replayed) live -> (second failure, violation, or too much held) passing through, or ended
//! with an error. A stream that passes through needs no store any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::output::{EndReason, HELD_BYTES_MAX, OutputEvent, StageRequest, StageSession};
use contract::{PluginError, Severity};

use crate::bindings::output::wit;
use crate::convert::{event, wit_end, wit_event, wit_request};
use crate::events::Checker;
use crate::journal::Journal;
use crate::manifest::FailurePolicy;
use crate::metrics::Export;
use crate::rest::Rest;
use crate::sandbox::{Cause, Stopped};
use crate::stage::{Seat, StageCore, Step};
use crate::unsent::Unsent;

/// A replay repeats a stream's calls at a microsecond each; this is for the guest that is slow in every one of them.
const REPLAY_TIME_MAX: Duration = Duration::from_secs(2);

pub(crate) struct WasmSession {
    core: Arc<StageCore>,
    /// For a replay. Its schemas are shared with every stream that has the same tools.
    request: StageRequest,
    with_schemas: bool,
    mode: Mode,
    journal: Journal,
    /// State after all events that were sent.
    checker: Checker,
    start: Checker,
    unsent: Unsent,
    /// Calls of earlier stages that were fed; they are numbered from 0.
    fed_calls: u32,
    /// Events given to the next stage so far.
    sent: u64,
    replayed: bool,
    /// The stage need not be asked about all text.
    rest: Option<Rest>,
}

enum Mode {
    Live(Seat),
    PassingThrough,
    Failed(PluginError),
}

/// Where a replay has got to.
struct Replay {
    checker: Checker,
    seen: u64,
    fresh: Vec<wit::Event>,
}

impl WasmSession {
    pub fn open(core: Arc<StageCore>, request: &StageRequest, with_schemas: bool) -> Result<Self, PluginError> {
        let checker = Checker::new(request);
        let told = wit_request(request, with_schemas);
        let seated = core.seat(&told, false).or_else(|_| {
            core.plugin.meters.replayed();
            core.seat(&told, true)
        });
        let unsent = Unsent::new(core.markers.clone());
        let mut session = Self {
            request: request.clone(),
            with_schemas,
            mode: Mode::PassingThrough,
            journal: Journal::default(),
            start: checker.clone(),
            checker,
            unsent,
            fed_calls: 0,
            sent: 0,
            replayed: false,
            rest: None,
            core,
        };
        match seated {
            Ok(seat) => session.mode = Mode::Live(seat),
            Err(stopped) => {
                session.give_up(stopped)?;
            }
        }
        Ok(session)
    }

    /// Runs one call, with all that may follow from it.
    fn run(&mut self, end: Option<&wit::EndReason>) -> Result<Vec<OutputEvent>, PluginError> {
        let outcome = match &self.mode {
            Mode::Live(seat) => self.core.step(seat, &self.last_step(end)),
            // Whatever was pending went out when the stream began to pass through.
            Mode::PassingThrough => return Ok(self.close_call().into_iter().collect()),
            Mode::Failed(error) => return Err(error.clone()),
        };
        let answer = match outcome {
            Err(stopped) if self.may_replay(&stopped) => self.replay(end),
            Err(stopped) => Err(stopped),
            Ok(events) => check(&mut self.checker.clone(), &events).map(|()| events),
        };
        match answer {
            Ok(events) => self.send(events, end.is_some()),
            Err(stopped) => self.give_up(stopped),
        }
    }

    fn last_step<'a>(&'a self, end: Option<&'a wit::EndReason>) -> Step<'a> {
        match end {
            Some(reason) => Step::Finish(reason),
            None => Step::Feed(self.journal.last()),
        }
    }

    /// A trap, a limit, or a typed wish for another try; once per stream. A neighbour's failure is not this stream's.
    fn may_replay(&self, stopped: &Stopped) -> bool {
        let worth_it = match (&stopped.refusal, stopped.cause) {
            (Some(refusal), _) => refusal.severity == Severity::RetryOnce,
            (None, Cause::Neighbour) => return self.journal.feeds().is_some(),
            (None, _) => true,
        };
        worth_it && !self.replayed && self.journal.feeds().is_some()
    }

    /// Brings a fresh store to where the broken one was and gives the events that were not sent yet.
    fn replay(&mut self, end: Option<&wit::EndReason>) -> Result<Vec<wit::Event>, Stopped> {
        let neighbour = matches!(&self.mode, Mode::Live(seat) if seat.is_shared());
        // In a shared store the first failure may be anybody's; a store of its own has nobody else to blame.
        self.replayed = self.replayed || !neighbour;
        self.core.plugin.meters.replayed();
        let deadline = Instant::now() + REPLAY_TIME_MAX;
        let seat = self.core.seat(&wit_request(&self.request, self.with_schemas), true)?;
        let mut replay = Replay { checker: self.start.clone(), seen: 0, fresh: Vec::new() };
        let feeds = self.journal.feeds().unwrap_or_default().iter().map(|events| Step::Feed(events));
        for step in feeds.chain(end.map(Step::Finish)) {
            if Instant::now() > deadline {
                let message = format!("replaying the stream took longer than {} s", REPLAY_TIME_MAX.as_secs());
                return Err(Stopped::new(Export::Feed, Cause::Late, message));
            }
            let events = self.core.step(&seat, &step)?;
            self.take_replayed(&mut replay, events)?;
        }
        if replay.seen < self.sent || (replay.fresh.is_empty() && replay.checker != self.checker) {
            return Err(self.violation("a replay of the stream gave other events than were sent".into()));
        }
        self.mode = Mode::Live(seat);
        Ok(replay.fresh)
    }

    /// Drops as many events as were sent, keeps the rest, and makes sure that one goes on where the other ended.
    fn take_replayed(&self, replay: &mut Replay, events: Vec<wit::Event>) -> Result<(), Stopped> {
        Checker::check_count(events.len()).map_err(|rule| self.violation(rule))?;
        for event in events {
            if replay.seen == self.sent && replay.fresh.is_empty() && replay.checker != self.checker {
                return Err(self.violation("a replay of the stream gave other calls than were sent".into()));
            }
            replay.checker.step(&event).map_err(|rule| self.violation(rule))?;
            if replay.seen < self.sent {
                replay.seen += 1;
            } else {
                replay.fresh.push(event);
            }
        }
        Ok(())
    }

    fn violation(&self, rule: String) -> Stopped {
        Stopped::new(Export::Feed, Cause::Violation, rule)
    }

    /// Hands checked events on.
    fn send(&mut self, mut events: Vec<wit::Event>, last: bool) -> Result<Vec<OutputEvent>, PluginError> {
        for event in &events {
            // They were checked on a copy, or by the replay.
            if let Err(rule) = self.checker.step(event) {
                return self.give_up(Stopped::new(Export::Feed, Cause::Violation, rule));
            }
        }
        self.sent += events.len() as u64;
        let rest = Rest::take(&mut events);
        self.unsent.came_out(&events);
        // A stage that holds text does not rest, whatever it says.
        let (nothing_held, in_call) = (self.unsent.held_bytes() == 0, self.checker.open_call().is_some());
        self.rest = rest.filter(|rest| !last && nothing_held && rest.is_in_call() == in_call);
        let mut out: Vec<OutputEvent> = events.into_iter().map(event).collect();
        if last {
            // What is still pending now was swallowed on purpose: markers, call syntax.
            self.unsent.take();
            self.mode = Mode::PassingThrough;
            out.extend(self.close_call());
        } else if self.unsent.held_bytes() > HELD_BYTES_MAX {
            let held = self.unsent.held_bytes();
            let message = format!("{held} bytes of text are held; at most {HELD_BYTES_MAX} may be");
            self.fall_back(&Stopped::new(Export::Feed, Cause::Violation, message));
            out.extend(self.pass_through());
        }
        Ok(out)
    }

    /// Applies the declared policy.
    fn give_up(&mut self, stopped: Stopped) -> Result<Vec<OutputEvent>, PluginError> {
        self.fall_back(&stopped);
        if self.core.plugin.policy == FailurePolicy::Error {
            let error = stopped.into_error(&self.core.plugin.name, Severity::RetryOnce);
            self.mode = Mode::Failed(error.clone());
            return Err(error);
        }
        Ok(self.pass_through())
    }

    fn fall_back(&self, stopped: &Stopped) {
        let plugin = &self.core.plugin;
        plugin.meters.fell_back();
        match stopped.cause {
            Cause::Violation => plugin.meters.stopped(stopped),
            // Its caller gets text instead of this answer.
            Cause::Refused => plugin.meters.note_failure(stopped),
            _ => {}
        }
        let (name, policy) = (&plugin.name, plugin.policy.as_str());
        tracing::warn!("output stage `{name}` failed in {}: {}; {policy}", stopped.export.as_str(), stopped.message);
    }

    /// From now on everything goes by, beginning with what the stage kept.
    fn pass_through(&mut self) -> Vec<OutputEvent> {
        self.mode = Mode::PassingThrough;
        // A call of the stage's own will not be ended any more; one of an earlier stage will, if not now, then at the
        // next start or at the end of the stream.
        let forwarded = self.checker.open_call().is_some_and(|open| open < self.fed_calls);
        let mut out: Vec<OutputEvent> = if forwarded { Vec::new() } else { self.close_call().into_iter().collect() };
        let pending = self.unsent.take();
        out.extend(self.relay(pending));
        out
    }

    /// Passes events on so that they fit what was sent before: calls are numbered anew, and the rest of a call that was
    /// broken off is left out.
    fn relay(&mut self, events: Vec<OutputEvent>) -> Vec<OutputEvent> {
        let mut out = Vec::with_capacity(events.len());
        for event in events {
            match event {
                OutputEvent::CallStart { id, name, kind, .. } => {
                    out.extend(self.close_call());
                    out.extend(self.checker.begin().map(|index| OutputEvent::CallStart { index, id, name, kind }));
                }
                OutputEvent::CallArguments { fragment, .. } => {
                    let open = self.checker.open_call();
                    out.extend(open.map(|index| OutputEvent::CallArguments { index, fragment }));
                }
                OutputEvent::CallEnd { complete, .. } => {
                    out.extend(self.checker.close().map(|index| OutputEvent::CallEnd { index, complete }));
                }
                other => out.push(other),
            }
        }
        out
    }

    /// A call that will not be ended any more is ended as broken off.
    fn close_call(&mut self) -> Option<OutputEvent> {
        self.checker.close().map(|index| OutputEvent::CallEnd { index, complete: false })
    }
}

/// Checks a whole answer before any of it is used.
fn check(checker: &mut Checker, events: &[wit::Event]) -> Result<(), Stopped> {
    let rules = Checker::check_count(events.len()).and_then(|()| events.iter().try_for_each(|e| checker.step(e)));
    rules.map_err(|rule| Stopped::new(Export::Feed, Cause::Violation, rule))
}

impl StageSession for WasmSession {
    fn feed(&mut self, mut events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
        let starts = events.iter().filter(|event| matches!(event, OutputEvent::CallStart { .. })).count();
        self.fed_calls = self.fed_calls.saturating_add(u32::try_from(starts).unwrap_or(u32::MAX));
        if matches!(self.mode, Mode::PassingThrough) {
            return Ok(self.relay(events));
        }
        if let Some(rest) = &self.rest {
            events = match rest.pass(events, self.checker.open_call()) {
                Ok(passed) => return Ok(passed),
                Err(events) => events,
            };
            self.rest = None;
        }
        let fed = self.journal.keep(events.into_iter().map(wit_event).collect());
        self.unsent.fed(fed);
        self.run(None)
    }

    fn finish(&mut self, reason: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
        self.run(Some(&wit_end(reason)))
    }

    fn is_suspect(&self) -> bool {
        matches!(self.mode, Mode::Live(_)) && self.core.plugin.meters.is_suspect()
    }
}
