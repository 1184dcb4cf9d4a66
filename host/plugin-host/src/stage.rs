//! An output component as [`OutputStage`]: what is asked once at load, and the stores that streams sit in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::output::{Constraint, OutputStage, Requirements, StageRequest, StageSession, ToolChoice};
use contract::{Failures, PluginError, Severity};
use wasmtime::component::ResourceAny;

use crate::bindings::output::{OutputPlugin, OutputPluginPre, wit};
use crate::convert::{self, request_bytes, wit_request};
use crate::error::PluginLoadError;
use crate::host::check_name;
use crate::instance::{Instance, START_FUEL};
use crate::manifest::FailurePolicy;
use crate::metrics::Export;
use crate::plugin::Plugin;
use crate::sandbox::{Budget, Cause, Stopped, StoreData, TIMED};
use crate::session::WasmSession;

/// A shared store is renewed after this many times the streams that sit in it at once: leaks stay small.
const RENEW_AFTER: u32 = 64;

pub(crate) struct WasmStage {
    core: Arc<StageCore>,
    requirements: Requirements,
}

/// What the stage and its sessions share.
pub(crate) struct StageCore {
    pub plugin: Arc<Plugin>,
    pre: OutputPluginPre<StoreData>,
    /// Declared markers, for finding out what a stage has settled.
    pub markers: Arc<[String]>,
    /// The store that the next streams go into, when streams share stores, and how many went in so far.
    filling: Mutex<Option<(Arc<Slot>, u32)>>,
    /// Taken for calls of a stage that was late not long ago: one that takes its whole time takes one core and no more.
    turn: Mutex<()>,
}

/// One store; `None` once it died.
pub(crate) struct Slot(Mutex<Option<Instance<OutputPlugin>>>);

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<Instance<OutputPlugin>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream's place in a store.
pub(crate) struct Seat {
    slot: Arc<Slot>,
    session: ResourceAny,
    shared: bool,
    time: Duration,
}

impl Seat {
    pub fn is_shared(&self) -> bool {
        self.shared
    }
}

/// A call on a stream.
pub(crate) enum Step<'a> {
    Feed(&'a [wit::Event]),
    Finish(&'a wit::EndReason),
}

impl WasmStage {
    pub fn load(
        plugin: Arc<Plugin>,
        pre: OutputPluginPre<StoreData>,
        time: Duration,
        has_manifest: bool,
    ) -> Result<Self, PluginLoadError> {
        let fault = |stopped: Stopped| stopped.into_load_error(&plugin.name);
        let mut instance = Instance::start(&plugin, time, |store| pre.instantiate(store)).map_err(fault)?;
        let described = instance.describe(time).map_err(fault)?;
        if has_manifest {
            check_name(&plugin, described)?;
        }
        let Instance { sandbox, bindings } = &mut instance;
        let stage = bindings.tokenloom_output_stage();
        let budget = Budget { time, fuel: START_FUEL, input_bytes: 0 };
        let needs = sandbox.call(Export::Requires, budget, |store| stage.call_requires(store)).map_err(fault)?;
        let requirements = convert::requirements(needs)
            .map_err(|message| fault(Stopped::new(Export::Requires, Cause::Violation, message)))?;
        // One trial stream: a constructor that cannot work is found now and not by the first client.
        let marker = |text: &String| contract::output::Marker { text: text.clone(), token: None };
        let trial =
            StageRequest { markers: requirements.markers.iter().map(marker).collect(), ..StageRequest::default() };
        let trial = wit_request(&trial, false);
        sandbox.call(Export::Open, budget, |store| stage.session().call_constructor(store, &trial)).map_err(fault)?;
        let markers = requirements.markers.clone().into();
        let core = StageCore { plugin, pre, markers, filling: Mutex::new(None), turn: Mutex::new(()) };
        Ok(Self { core: Arc::new(core), requirements })
    }
}

impl StageCore {
    /// Seats a stream. `alone: true` is for a replay: no neighbour may break it again.
    pub fn seat(&self, request: &wit::Request, alone: bool) -> Result<Seat, Stopped> {
        let _turn = self.turn();
        let shared = self.plugin.limits.streams_per_store > 1 && !alone;
        let slot = if shared { self.shared_slot()? } else { Arc::new(self.slot()?) };
        let time = self.plugin.limits.call;
        let budget = Budget { time, fuel: TIMED, input_bytes: request_bytes(request) };
        let session = within(&slot, Export::Open, |instance| {
            let session = instance.bindings.tokenloom_output_stage().session();
            instance.sandbox.call(Export::Open, budget, |store| session.call_constructor(store, request))
        })?;
        Ok(Seat { slot, session, shared, time })
    }

    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.plugin.meters.is_suspect().then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn slot(&self) -> Result<Slot, Stopped> {
        let instance = Instance::start(&self.plugin, self.plugin.limits.call, |store| self.pre.instantiate(store))?;
        Ok(Slot(Mutex::new(Some(instance))))
    }

    fn shared_slot(&self) -> Result<Arc<Slot>, Stopped> {
        let seats = self.plugin.limits.streams_per_store;
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((slot, opened)) = filling.as_mut() {
            // One reference is ours, each further one a seat's.
            let taken = Arc::strong_count(slot) - 1;
            if taken < seats as usize && *opened < seats.saturating_mul(RENEW_AFTER) && slot.lock().is_some() {
                *opened += 1;
                return Ok(slot.clone());
            }
        }
        let slot = Arc::new(self.slot()?);
        *filling = Some((slot.clone(), 1));
        Ok(slot)
    }

    /// One call on a stream's session.
    pub fn step(&self, seat: &Seat, step: &Step<'_>) -> Result<Vec<wit::Event>, Stopped> {
        let _turn = self.turn();
        let (export, input_bytes) = match step {
            Step::Feed(events) => (Export::Feed, events.iter().map(convert::event_bytes).sum()),
            // What is held may come out now.
            Step::Finish(_) => (Export::Finish, contract::output::HELD_BYTES_MAX),
        };
        let budget = Budget { time: self.plugin.limits.call, fuel: TIMED, input_bytes };
        within(&seat.slot, export, |instance| {
            let session = instance.bindings.tokenloom_output_stage().session();
            instance.sandbox.ask(export, budget, |store| match step {
                Step::Feed(events) => session.call_feed(store, seat.session, events),
                Step::Finish(reason) => session.call_finish(store, seat.session, reason),
            })
        })
    }

    fn constrain(&self, request: &wit::Request) -> Result<Option<wit::Constraint>, Stopped> {
        let _turn = self.turn();
        let time = self.plugin.limits.call;
        let budget = Budget { time, fuel: TIMED, input_bytes: request_bytes(request) };
        let Instance { mut sandbox, bindings } =
            Instance::start(&self.plugin, time, |store| self.pre.instantiate(store))?;
        sandbox.ask(Export::Constrain, budget, |store| bindings.tokenloom_output_stage().call_constrain(store, request))
    }
}

/// Calls into a slot's store, and empties the slot when the store dies.
fn within<T>(
    slot: &Slot,
    export: Export,
    call: impl FnOnce(&mut Instance<OutputPlugin>) -> Result<T, Stopped>,
) -> Result<T, Stopped> {
    let mut live = slot.lock();
    let Some(instance) = live.as_mut() else {
        return Err(Stopped::new(export, Cause::Neighbour, "another stream's failure ended the shared store"));
    };
    let outcome = call(instance);
    if instance.sandbox.is_dead() {
        *live = None;
    }
    outcome
}

impl Drop for Seat {
    /// In a shared store the stream's resource is given back; a store of its own goes as a whole.
    fn drop(&mut self) {
        if self.shared {
            let budget = Budget { time: self.time, fuel: TIMED, input_bytes: 0 };
            // A destructor that fails ends the store, and its other streams are replayed; nothing is left to do here.
            let _ = within(&self.slot, Export::Close, |instance| {
                instance.sandbox.call(Export::Close, budget, |store| self.session.resource_drop(store))
            });
        }
    }
}

impl OutputStage for WasmStage {
    fn name(&self) -> &str {
        &self.core.plugin.name
    }

    fn serial(&self) -> u64 {
        self.core.plugin.serial
    }

    fn failures(&self) -> Failures {
        self.core.plugin.meters.failures()
    }

    fn requirements(&self) -> &Requirements {
        &self.requirements
    }

    fn constrain(&self, request: &StageRequest) -> Result<Option<Constraint>, PluginError> {
        let wit = wit_request(request, self.requirements.tool_schemas);
        let constraint = match self.core.constrain(&wit) {
            // A call on a fresh store each time: only a typed wish for another try makes one worth it.
            Err(Stopped { refusal: Some(PluginError { severity: Severity::RetryOnce, .. }), .. }) => {
                self.core.plugin.meters.replayed();
                self.core.constrain(&wit)
            }
            other => other,
        };
        let stopped = match constraint {
            Ok(constraint) => return Ok(constraint.map(convert::constraint)),
            Err(stopped) => stopped,
        };
        let plugin = &self.core.plugin;
        plugin.meters.fell_back();
        tracing::warn!("output stage `{}` failed in constrain: {}", plugin.name, stopped.message);
        // Without its grammar a request may still be answered, unless the grammar is what was asked for.
        let promised = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if plugin.policy == FailurePolicy::Passthrough && !promised && stopped.refusal.is_none() {
            return Ok(None);
        }
        Err(stopped.into_error(&plugin.name, Severity::RetryOnce))
    }

    fn open(&self, request: &StageRequest) -> Result<Box<dyn StageSession>, PluginError> {
        let session = WasmSession::open(self.core.clone(), request, self.requirements.tool_schemas)?;
        Ok(Box::new(session))
    }

    fn is_suspect(&self) -> bool {
        self.core.plugin.meters.is_suspect()
    }
}
