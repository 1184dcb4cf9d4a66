//! A scheduler component as [`SchedulePolicy`]: one long-lived store, metered by fuel.
//!
//! A failed call ends the store; the next `resync` builds a fresh one. Counting strikes and deciding by other means
//! meanwhile is the engine's part.

use std::sync::Arc;
use std::time::Duration;

use contract::Slot;
use contract::policy::{
    Arrival, Decision, Delta, DraftDepth, Grant, Limits, PolicyError, Progress, Refusal, SchedulePolicy, SlotState,
    Snapshot,
};
use wasmtime::component::ResourceAny;

use crate::bindings::scheduler::{SchedulerPlugin, SchedulerPluginPre, wit};
use crate::clean::cut;
use crate::error::PluginLoadError;
use crate::host::check_name;
use crate::instance::{Instance, START_FUEL};
use crate::metrics::Export;
use crate::plugin::Plugin;
use crate::sandbox::{Budget, Cause, Stopped, StoreData};

/// A snapshot names every request, a delta only what changed.
const RESYNC_FUEL_FACTOR: u64 = 20;
/// Entries of one list of a decision: more than any engine has seats and waiting requests.
const LIST_MAX: usize = 65_536;
/// A refusal's code reaches the client.
const CODE_BYTES_MAX: usize = 64;
/// Key in a decision's `ext`: the time until which the policy rests.
const RESTS_UNTIL: u64 = 1;
/// About what an arrival or a seat takes; for the limit on the answer's size.
const ARRIVAL_BYTES: usize = 96;

pub(crate) struct WasmPolicy {
    plugin: Arc<Plugin>,
    pre: SchedulerPluginPre<StoreData>,
    live: Option<Live>,
    /// Filled anew for each step; its lists keep their memory, so a steady step allocates nothing here.
    delta: wit::Delta,
}

struct Live {
    instance: Instance<SchedulerPlugin>,
    policy: ResourceAny,
}

impl WasmPolicy {
    pub fn load(
        plugin: Arc<Plugin>,
        pre: SchedulerPluginPre<StoreData>,
        time: Duration,
        has_manifest: bool,
    ) -> Result<Self, PluginLoadError> {
        let fault = |stopped: Stopped| stopped.into_load_error(&plugin.name);
        let mut live = Live::start(&plugin, &pre, time).map_err(fault)?;
        let described = live.instance.describe(time).map_err(fault)?;
        if has_manifest {
            check_name(&plugin, described)?;
        }
        let delta = wit::Delta {
            limits: limits(&Limits::default()),
            tenants: Vec::new(),
            arrived: Vec::new(),
            finished: Vec::new(),
            preempted: Vec::new(),
            progress: Vec::new(),
            clamped: Vec::new(),
        };
        Ok(Self { plugin, pre, live: Some(live), delta })
    }

    fn budget(&self, fuel: u64, input_bytes: usize) -> Budget {
        Budget { time: self.plugin.limits.call, fuel, input_bytes }
    }

    /// A failed call ends the store.
    fn failed(&mut self, stopped: Stopped) -> PolicyError {
        self.live = None;
        self.plugin.meters.fell_back();
        let policy = self.plugin.name.clone();
        match stopped.cause {
            Cause::Late => PolicyError::Late { policy, limit: stopped.message },
            Cause::Output | Cause::Violation => PolicyError::Invalid { policy, reason: stopped.message },
            _ => PolicyError::Trapped { policy, cause: stopped.message },
        }
    }

    fn resync_within(&mut self, full: &wit::Snapshot) -> Result<(), Stopped> {
        // A store that has grown to half its limit is exchanged while that costs nothing.
        let grown = |live: &Live| live.instance.sandbox.memory_bytes() > self.plugin.limits.memory_bytes / 2;
        let live = match self.live.take() {
            Some(live) if !grown(&live) => live,
            _ => Live::start(&self.plugin, &self.pre, self.plugin.limits.call)?,
        };
        let budget =
            self.budget(self.plugin.limits.fuel.saturating_mul(RESYNC_FUEL_FACTOR), full.seats.len() * ARRIVAL_BYTES);
        let Live { instance: Instance { sandbox, bindings }, policy } = self.live.insert(live);
        let exports = bindings.tokenloom_scheduler_scheduler().policy();
        sandbox.call(Export::Resync, budget, |store| exports.call_resync(store, *policy, full))
    }

    fn step_within(&mut self) -> Result<wit::Decision, Stopped> {
        let budget = self.budget(self.plugin.limits.fuel, delta_bytes(&self.delta));
        let Some(Live { instance: Instance { sandbox, bindings }, policy }) = &mut self.live else {
            return Err(Stopped::new(Export::Step, Cause::Neighbour, "it failed before and was not resynced since"));
        };
        let exports = bindings.tokenloom_scheduler_scheduler().policy();
        sandbox.call(Export::Step, budget, |store| exports.call_step(store, *policy, &self.delta))
    }
}

impl Live {
    fn start(plugin: &Arc<Plugin>, pre: &SchedulerPluginPre<StoreData>, time: Duration) -> Result<Self, Stopped> {
        let mut instance = Instance::start(plugin, time, |store| pre.instantiate(store))?;
        let Instance { sandbox, bindings } = &mut instance;
        let budget = Budget { time, fuel: START_FUEL, input_bytes: 0 };
        let exports = bindings.tokenloom_scheduler_scheduler().policy();
        let policy = sandbox.call(Export::Construct, budget, |store| exports.call_constructor(store))?;
        Ok(Self { instance, policy })
    }
}

impl SchedulePolicy for WasmPolicy {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn serial(&self) -> u64 {
        self.plugin.serial
    }

    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError> {
        let full = wit::Snapshot {
            limits: limits(&full.limits),
            tenants: full.tenants.iter().map(tenant).collect(),
            seats: full.slots.iter().map(seat).collect(),
        };
        self.resync_within(&full).map_err(|stopped| self.failed(stopped))
    }

    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
        fill(&mut self.delta, delta);
        let decision = self.step_within().map_err(|stopped| self.failed(stopped))?;
        decided(decision).map_err(|reason| {
            let stopped = Stopped::new(Export::Step, Cause::Violation, reason);
            self.plugin.meters.stopped(&stopped);
            self.failed(stopped)
        })
    }
}

fn limits(limits: &Limits) -> wit::Limits {
    wit::Limits {
        step: limits.step,
        now_us: limits.now_us,
        token_budget: limits.token_budget,
        tokens_max: limits.tokens_max,
        target_us: limits.target_us,
        decode_us: limits.decode_us,
        cost: wit::StepCost {
            fixed_us: limits.cost.fixed_us,
            row_ns: limits.cost.row_ns,
            context_ps: limits.cost.context_ps,
        },
        free_seats: limits.free_seats,
        free_pages: limits.free_pages,
        page_tokens: limits.page_tokens,
        resume_align: limits.resume_align,
        last_step_us: limits.last_step_us,
        last_step_tokens: limits.last_step_tokens,
        in_flight_steps: limits.in_flight_steps,
        ext: Vec::new(),
    }
}

fn tenant(tenant: &contract::policy::TenantInfo) -> wit::Tenant {
    wit::Tenant { id: tenant.id, name: tenant.name.to_string(), weight: tenant.weight }
}

fn arrival(arrival: &Arrival) -> wit::Arrival {
    wit::Arrival {
        slot: arrival.slot.0,
        group: arrival.group,
        tenant: arrival.tenant,
        adapter: arrival.adapter,
        priority: arrival.priority,
        arrived_us: arrival.arrived_us,
        deadline_us: arrival.deadline_us,
        prompt_tokens: arrival.prompt_tokens,
        cached_tokens: arrival.cached_tokens,
        max_new_tokens: arrival.max_new_tokens,
        ext: Vec::new(),
    }
}

fn seat(view: &contract::policy::SlotView) -> wit::Seat {
    wit::Seat {
        request: arrival(&view.request),
        state: match view.state {
            SlotState::Waiting => wit::State::Waiting,
            SlotState::Prefilling => wit::State::Prefilling,
            SlotState::Decoding => wit::State::Decoding,
            SlotState::Preempted => wit::State::Preempted,
        },
        computed: view.computed,
        emitted: view.emitted,
        pages: view.pages,
        preemptions: view.preemptions,
    }
}

fn fill(to: &mut wit::Delta, from: &Delta) {
    fn refill<T>(list: &mut Vec<T>, items: impl Iterator<Item = T>) {
        list.clear();
        list.extend(items);
    }
    let triple = |p: &Progress| [p.slot.0, p.computed, p.emitted];
    to.limits = limits(&from.limits);
    refill(&mut to.tenants, from.tenants.iter().map(tenant));
    refill(&mut to.arrived, from.arrived.iter().map(arrival));
    refill(&mut to.finished, from.finished.iter().flat_map(triple));
    refill(&mut to.preempted, from.preempted.iter().map(|slot| slot.0));
    refill(&mut to.progress, from.progress.iter().flat_map(triple));
    refill(&mut to.clamped, from.clamped.iter().flat_map(|clamp| [clamp.slot.0, clamp.tokens]));
}

fn delta_bytes(delta: &wit::Delta) -> usize {
    let words = delta.finished.len() + delta.preempted.len() + delta.progress.len() + delta.clamped.len();
    delta.arrived.len() * ARRIVAL_BYTES + words * 4
}

/// Checks the shape of a decision; whether it is sensible is for the scheduler crate to say.
fn decided(decision: wit::Decision) -> Result<Decision, String> {
    let lists = [
        ("grant", decision.grant.len()),
        ("hold", decision.hold.len()),
        ("preempt", decision.preempt.len()),
        ("victims", decision.victims.len()),
        ("refuse", decision.refuse.len()),
        ("draft", decision.draft.len()),
        ("ext", decision.ext.len()),
    ];
    if let Some((name, count)) = lists.into_iter().find(|(_, count)| *count > LIST_MAX) {
        return Err(format!("{name} has {count} entries; at most {LIST_MAX} are allowed"));
    }
    if !decision.draft.len().is_multiple_of(2) {
        return Err(format!("draft has {} numbers; it is pairs of slot and depth", decision.draft.len()));
    }
    // Keys of later versions are none of this one's business.
    let ext = decision.ext.chunks_exact(2).find(|pair| pair[0] == RESTS_UNTIL);
    let slots = |list: Vec<u32>| list.into_iter().map(Slot).collect();
    let refusal = |refusal: wit::Refusal| Refusal {
        slot: Slot(refusal.slot),
        retry_after_ms: refusal.retry_after_ms,
        code: cut(&refusal.code, CODE_BYTES_MAX),
    };
    Ok(Decision {
        grant: decision.grant.into_iter().map(|g| Grant { slot: Slot(g.slot), tokens: g.tokens }).collect(),
        hold: slots(decision.hold),
        preempt: slots(decision.preempt),
        victims: slots(decision.victims),
        refuse: decision.refuse.into_iter().map(refusal).collect(),
        draft: decision.draft.chunks_exact(2).map(|d| DraftDepth { slot: Slot(d[0]), depth: d[1] }).collect(),
        rests_until_us: ext.map(|pair| pair[1]),
    })
}
