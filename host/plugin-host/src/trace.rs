//! A trace of every call of a scheduler, and its replay: the same calls must give the same decisions.
//!
//! One JSON object a line. The first is `{"tokenloom_trace": 1, "policy": …}`, each other one a call with what it was told
//! and what it answered. Times and step numbers are arguments of the calls, so that a trace holds all that a policy knew.

use std::fs::File;
use std::io::{BufRead, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use contract::Slot;
use contract::cost::StepCost;
use contract::policy::{
    Arrival, Clamp, Decision, Delta, DraftDepth, Grant, Limits, PolicyError, Progress, Refusal, SchedulePolicy,
    SlotState, SlotView, Snapshot, TenantInfo,
};
use serde::{Deserialize, Serialize};

/// Version of the format, in a trace's first line.
const FORMAT: u32 = 1;

/// A trace ends here: a busy server writes some hundred bytes a step.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// Why a trace was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("scheduler trace {file}: {source}")]
    Io { file: String, source: std::io::Error },
    #[error("scheduler trace {file}, line {line}: {why}")]
    Line { file: String, line: usize, why: String },
}

#[derive(Serialize, Deserialize)]
struct Header {
    tokenloom_trace: u32,
    policy: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Call {
    Resync(WireSnapshot),
    Step(WireDelta),
}

#[derive(Serialize, Deserialize)]
struct Line {
    call: Call,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<WireDecision>,
    /// The call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A policy whose calls are written down.
pub struct Recorded {
    inner: Box<dyn SchedulePolicy>,
    file: String,
    /// `None` after the trace is full or could not be written.
    out: Option<BufWriter<File>>,
    bytes: u64,
}

impl Recorded {
    /// Writes every call of `policy` to a new file.
    pub fn new(policy: Box<dyn SchedulePolicy>, path: &Path) -> Result<Self, TraceError> {
        let file = path.display().to_string();
        let io = |source| TraceError::Io { file: file.clone(), source };
        let mut out = BufWriter::new(File::create(path).map_err(io)?);
        let header = Header { tokenloom_trace: FORMAT, policy: policy.name().to_owned() };
        let line = serde_json::to_string(&header).expect("a header is JSON");
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(io)?;
        Ok(Self { inner: policy, file, out: Some(out), bytes: line.len() as u64 })
    }

    fn write(&mut self, line: &Line) {
        let Some(out) = &mut self.out else { return };
        let text = serde_json::to_string(line).expect("a call is JSON");
        self.bytes += text.len() as u64 + 1;
        // Flushed line by line: what a policy did before a crash is what a trace is for.
        if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
            tracing::error!("scheduler trace {}: {error}; it ends here", self.file);
            self.out = None;
        } else if self.bytes > TRACE_BYTES_MAX {
            tracing::warn!(
                "scheduler trace {}: {} bytes, the limit is {TRACE_BYTES_MAX}; it ends here",
                self.file,
                self.bytes
            );
            self.out = None;
        }
    }
}

impl SchedulePolicy for Recorded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn serial(&self) -> u64 {
        self.inner.serial()
    }

    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError> {
        let answer = self.inner.resync(full);
        let error = answer.as_ref().err().map(ToString::to_string);
        self.write(&Line { call: Call::Resync(full.into()), decision: None, error });
        answer
    }

    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
        let answer = self.inner.step(delta);
        let error = answer.as_ref().err().map(ToString::to_string);
        let decision = answer.as_ref().ok().map(WireDecision::from);
        self.write(&Line { call: Call::Step(delta.into()), decision, error });
        answer
    }
}

/// A call that a replay answered otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The line of the trace, from 1.
    pub line: usize,
    pub step: u64,
    pub recorded: String,
    pub replayed: String,
}

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    pub calls: usize,
    pub differences: Vec<Difference>,
}

/// The name of the policy that a trace was recorded from.
pub fn traced_policy(path: &Path) -> Result<String, TraceError> {
    let mut lines = Lines::open(path)?;
    Ok(lines.header()?.policy)
}

/// Runs the calls of a trace on a policy and compares what it answers.
pub fn replay(path: &Path, policy: &mut dyn SchedulePolicy) -> Result<Replayed, TraceError> {
    let mut lines = Lines::open(path)?;
    lines.header()?;
    let mut found = Replayed::default();
    while let Some(line) = lines.next::<Line>()? {
        found.calls += 1;
        let show = |decision: Option<&WireDecision>| {
            decision.map_or("a failed call".to_owned(), |decision| serde_json::to_string(decision).expect("JSON"))
        };
        let (step, failed, decision) = match line.call {
            Call::Resync(full) => (full.limits.step, policy.resync(&full.into()).is_err(), None),
            Call::Step(delta) => {
                let step = delta.limits.step;
                let decision = policy.step(&delta.into());
                (step, decision.is_err(), decision.ok().map(|decision| WireDecision::from(&decision)))
            }
        };
        if failed != line.error.is_some() || decision != line.decision {
            let (recorded, replayed) = (show(line.decision.as_ref()), show(decision.as_ref()));
            found.differences.push(Difference { line: lines.number, step, recorded, replayed });
        }
    }
    Ok(found)
}

/// A call of `resync` as a line of a trace holds it.
pub fn resync_json(full: &Snapshot) -> serde_json::Value {
    serde_json::to_value(Call::Resync(full.into())).expect("a snapshot is JSON")
}

/// A call of `step` as a line of a trace holds it.
pub fn step_json(delta: &Delta) -> serde_json::Value {
    serde_json::to_value(Call::Step(delta.into())).expect("a delta is JSON")
}

struct Lines {
    file: String,
    number: usize,
    lines: std::io::Lines<std::io::BufReader<File>>,
}

impl Lines {
    fn open(path: &Path) -> Result<Self, TraceError> {
        let file = path.display().to_string();
        let opened = File::open(path).map_err(|source| TraceError::Io { file: file.clone(), source })?;
        Ok(Self { file, number: 0, lines: std::io::BufReader::new(opened).lines() })
    }

    fn next<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, TraceError> {
        let Some(line) = self.lines.next() else { return Ok(None) };
        self.number += 1;
        let line = line.map_err(|source| TraceError::Io { file: self.file.clone(), source })?;
        serde_json::from_str(&line).map(Some).map_err(|error| self.wrong(error.to_string()))
    }

    fn header(&mut self) -> Result<Header, TraceError> {
        match self.next::<Header>()? {
            Some(header) if header.tokenloom_trace == FORMAT => Ok(header),
            Some(header) => Err(self.wrong(format!("format {}; this server reads {FORMAT}", header.tokenloom_trace))),
            None => Err(self.wrong("the file is empty".into())),
        }
    }

    fn wrong(&self, why: String) -> TraceError {
        TraceError::Line { file: self.file.clone(), line: self.number, why }
    }
}

/// (step, now_us, token_budget, tokens_max, target_us, decode_us, [fixed_us, row_ns, context_ps], free_seats, free_pages,
/// page_tokens, resume_align, last_step_us, last_step_tokens, in_flight_steps), by name.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireLimits {
    step: u64,
    now_us: u64,
    token_budget: u32,
    tokens_max: u32,
    target_us: u32,
    decode_us: u32,
    cost: [u32; 3],
    free_seats: u32,
    free_pages: u32,
    page_tokens: u32,
    resume_align: u32,
    last_step_us: u32,
    last_step_tokens: u32,
    in_flight_steps: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireArrival {
    slot: u32,
    group: u64,
    tenant: u32,
    adapter: u32,
    priority: i32,
    arrived_us: u64,
    deadline_us: Option<u64>,
    prompt_tokens: u32,
    cached_tokens: u32,
    max_new_tokens: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireDelta {
    limits: WireLimits,
    /// (id, name, bits of the weight), so that a weight comes back exactly.
    tenants: Vec<(u32, String, u64)>,
    finished: Vec<[u32; 3]>,
    preempted: Vec<u32>,
    arrived: Vec<WireArrival>,
    clamped: Vec<[u32; 2]>,
    progress: Vec<[u32; 3]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSeat {
    request: WireArrival,
    /// 0 waiting, 1 prefilling, 2 decoding, 3 preempted.
    state: u8,
    computed: u32,
    emitted: u32,
    pages: u32,
    preemptions: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSnapshot {
    limits: WireLimits,
    tenants: Vec<(u32, String, u64)>,
    slots: Vec<WireSeat>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireDecision {
    grant: Vec<[u32; 2]>,
    hold: Vec<u32>,
    preempt: Vec<u32>,
    victims: Vec<u32>,
    refuse: Vec<(u32, u32, String)>,
    draft: Vec<[u32; 2]>,
    rests_until_us: Option<u64>,
}

impl From<&Limits> for WireLimits {
    fn from(l: &Limits) -> Self {
        Self {
            step: l.step,
            now_us: l.now_us,
            token_budget: l.token_budget,
            tokens_max: l.tokens_max,
            target_us: l.target_us,
            decode_us: l.decode_us,
            cost: [l.cost.fixed_us, l.cost.row_ns, l.cost.context_ps],
            free_seats: l.free_seats,
            free_pages: l.free_pages,
            page_tokens: l.page_tokens,
            resume_align: l.resume_align,
            last_step_us: l.last_step_us,
            last_step_tokens: l.last_step_tokens,
            in_flight_steps: l.in_flight_steps,
        }
    }
}

impl From<WireLimits> for Limits {
    fn from(l: WireLimits) -> Self {
        let [fixed_us, row_ns, context_ps] = l.cost;
        Self {
            step: l.step,
            now_us: l.now_us,
            token_budget: l.token_budget,
            tokens_max: l.tokens_max,
            target_us: l.target_us,
            decode_us: l.decode_us,
            cost: StepCost { fixed_us, row_ns, context_ps },
            free_seats: l.free_seats,
            free_pages: l.free_pages,
            page_tokens: l.page_tokens,
            resume_align: l.resume_align,
            last_step_us: l.last_step_us,
            last_step_tokens: l.last_step_tokens,
            in_flight_steps: l.in_flight_steps,
        }
    }
}

impl From<&Arrival> for WireArrival {
    fn from(a: &Arrival) -> Self {
        Self {
            slot: a.slot.0,
            group: a.group,
            tenant: a.tenant,
            adapter: a.adapter,
            priority: a.priority,
            arrived_us: a.arrived_us,
            deadline_us: a.deadline_us,
            prompt_tokens: a.prompt_tokens,
            cached_tokens: a.cached_tokens,
            max_new_tokens: a.max_new_tokens,
        }
    }
}

impl From<WireArrival> for Arrival {
    fn from(a: WireArrival) -> Self {
        Self {
            slot: Slot(a.slot),
            group: a.group,
            tenant: a.tenant,
            adapter: a.adapter,
            priority: a.priority,
            arrived_us: a.arrived_us,
            deadline_us: a.deadline_us,
            prompt_tokens: a.prompt_tokens,
            cached_tokens: a.cached_tokens,
            max_new_tokens: a.max_new_tokens,
        }
    }
}

fn wire_tenants(tenants: &[TenantInfo]) -> Vec<(u32, String, u64)> {
    tenants.iter().map(|tenant| (tenant.id, tenant.name.to_string(), tenant.weight.to_bits())).collect()
}

fn tenants(wire: Vec<(u32, String, u64)>) -> Vec<TenantInfo> {
    let tenant =
        |(id, name, bits): (u32, String, u64)| TenantInfo { id, name: Arc::from(name), weight: f64::from_bits(bits) };
    wire.into_iter().map(tenant).collect()
}

fn triples(progress: &[Progress]) -> Vec<[u32; 3]> {
    progress.iter().map(|progress| [progress.slot.0, progress.computed, progress.emitted]).collect()
}

fn progress(wire: Vec<[u32; 3]>) -> Vec<Progress> {
    wire.into_iter().map(|[slot, computed, emitted]| Progress { slot: Slot(slot), computed, emitted }).collect()
}

fn numbers(slots: &[Slot]) -> Vec<u32> {
    slots.iter().map(|slot| slot.0).collect()
}

impl From<&Delta> for WireDelta {
    fn from(delta: &Delta) -> Self {
        Self {
            limits: (&delta.limits).into(),
            tenants: wire_tenants(&delta.tenants),
            finished: triples(&delta.finished),
            preempted: numbers(&delta.preempted),
            arrived: delta.arrived.iter().map(WireArrival::from).collect(),
            clamped: delta.clamped.iter().map(|clamp| [clamp.slot.0, clamp.tokens]).collect(),
            progress: triples(&delta.progress),
        }
    }
}

impl From<WireDelta> for Delta {
    fn from(wire: WireDelta) -> Self {
        Self {
            limits: wire.limits.into(),
            tenants: tenants(wire.tenants),
            finished: progress(wire.finished),
            preempted: wire.preempted.into_iter().map(Slot).collect(),
            arrived: wire.arrived.into_iter().map(Arrival::from).collect(),
            clamped: wire.clamped.into_iter().map(|[slot, tokens]| Clamp { slot: Slot(slot), tokens }).collect(),
            progress: progress(wire.progress),
        }
    }
}

impl From<&Snapshot> for WireSnapshot {
    fn from(full: &Snapshot) -> Self {
        let seat = |view: &SlotView| WireSeat {
            request: (&view.request).into(),
            state: match view.state {
                SlotState::Waiting => 0,
                SlotState::Prefilling => 1,
                SlotState::Decoding => 2,
                SlotState::Preempted => 3,
            },
            computed: view.computed,
            emitted: view.emitted,
            pages: view.pages,
            preemptions: view.preemptions,
        };
        Self {
            limits: (&full.limits).into(),
            tenants: wire_tenants(&full.tenants),
            slots: full.slots.iter().map(seat).collect(),
        }
    }
}

impl From<WireSnapshot> for Snapshot {
    fn from(wire: WireSnapshot) -> Self {
        let view = |seat: WireSeat| SlotView {
            request: seat.request.into(),
            state: match seat.state {
                0 => SlotState::Waiting,
                1 => SlotState::Prefilling,
                2 => SlotState::Decoding,
                _ => SlotState::Preempted,
            },
            computed: seat.computed,
            emitted: seat.emitted,
            pages: seat.pages,
            preemptions: seat.preemptions,
        };
        Self {
            limits: wire.limits.into(),
            tenants: tenants(wire.tenants),
            slots: wire.slots.into_iter().map(view).collect(),
        }
    }
}

impl From<&Decision> for WireDecision {
    fn from(decision: &Decision) -> Self {
        let grant = |grant: &Grant| [grant.slot.0, grant.tokens];
        let refusal = |refusal: &Refusal| (refusal.slot.0, refusal.retry_after_ms, refusal.code.clone());
        let draft = |draft: &DraftDepth| [draft.slot.0, draft.depth];
        Self {
            grant: decision.grant.iter().map(grant).collect(),
            hold: numbers(&decision.hold),
            preempt: numbers(&decision.preempt),
            victims: numbers(&decision.victims),
            refuse: decision.refuse.iter().map(refusal).collect(),
            draft: decision.draft.iter().map(draft).collect(),
            rests_until_us: decision.rests_until_us,
        }
    }
}
