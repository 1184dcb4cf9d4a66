//! A candidate beside the live plugin: the same calls, compared, and never in a client's way.
//!
//! A finished stream (or a rendered prompt) is handed over as a whole to one thread, which runs the candidate on it and
//! counts. What comes too fast for that thread is not compared: the queue is short, and a full one drops the sample.

use std::fmt::{Debug, Display};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use contract::output::{Constraint, EndReason, OutputEvent, OutputStage, Requirements, StageRequest, StageSession};
use contract::template::{ChatTemplate, Rendered};
use contract::{Failures, PluginError, TokenId};

use crate::conform::{Seen, fold};

/// Streams that may wait for the candidate.
const QUEUE_MAX: usize = 64;
/// A longer stream is not compared.
const SAMPLE_BYTES_MAX: usize = 1 << 20;
/// Of a difference that is shown.
const SHOWN_BYTES_MAX: usize = 512;

/// What the shadow period has seen so far.
#[derive(Debug, Default)]
pub struct ShadowCounts {
    pub compared: AtomicU64,
    pub different: AtomicU64,
    /// The candidate answered with an error.
    pub failed: AtomicU64,
    /// Not compared: too long, or too fast.
    pub skipped: AtomicU64,
    first_difference: Mutex<Option<String>>,
}

impl ShadowCounts {
    /// The first difference or failure, for a person.
    pub fn first_difference(&self) -> Option<String> {
        self.first_difference.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, counter: &AtomicU64, text: impl FnOnce() -> String) {
        counter.fetch_add(1, Relaxed);
        let mut first = self.first_difference.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| {
            let mut text = text();
            text.truncate(text.floor_char_boundary(SHOWN_BYTES_MAX));
            text
        });
    }

    /// Counts what the candidate answered where the live one answered `live`.
    pub fn compare<T: PartialEq + Debug, E: Display>(&self, live: &T, candidate: Result<T, E>) {
        self.judge(live, candidate, None);
    }

    /// As [`ShadowCounts::compare`]. `failure` is a call of the candidate's that failed meanwhile: a replay or a fallback
    /// can make the answer right all the same, and for clients it would be a strike.
    fn judge<T: PartialEq + Debug, E: Display>(&self, live: &T, candidate: Result<T, E>, failure: Option<String>) {
        match (candidate, failure) {
            (Err(error), _) => self.note(&self.failed, || error.to_string()),
            (_, Some(failure)) => self.note(&self.failed, || failure),
            (Ok(candidate), None) if candidate == *live => {}
            (Ok(candidate), None) => {
                self.note(&self.different, || format!("live {live:?}\ncandidate {candidate:?}"));
            }
        }
        // Last: who waits for so many sees what became of them.
        self.compared.fetch_add(1, Relaxed);
    }
}

/// Looks a marker up in the model's tokenizer.
pub type Resolve = Arc<dyn Fn(&str) -> Option<TokenId> + Send + Sync>;

/// The live stage, whose streams the candidate repeats.
pub struct ShadowStage {
    live: Arc<dyn OutputStage>,
    requirements: Requirements,
    live_takes_schemas: bool,
    samples: SyncSender<Sample>,
    counts: Arc<ShadowCounts>,
}

/// One stream, as it was fed.
struct Sample {
    request: StageRequest,
    feeds: Vec<Vec<OutputEvent>>,
    reason: EndReason,
    live: Vec<Seen>,
}

impl ShadowStage {
    pub fn new(
        live: Arc<dyn OutputStage>,
        candidate: Arc<dyn OutputStage>,
        resolve: Resolve,
    ) -> (Self, Arc<ShadowCounts>) {
        let counts = Arc::new(ShadowCounts::default());
        let mut requirements = live.requirements().clone();
        let live_takes_schemas = requirements.tool_schemas;
        requirements.tool_schemas |= candidate.requirements().tool_schemas;
        let (samples, queue) = sync_channel(QUEUE_MAX);
        let own = Arc::clone(&counts);
        spawn(move || run_samples(&queue, candidate.as_ref(), &resolve, &own));
        (Self { live, requirements, live_takes_schemas, samples, counts: Arc::clone(&counts) }, counts)
    }
}

/// The thread ends with the last sender. Without one nothing is compared, and the queue drops every sample.
fn spawn(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name("plugin-shadow".into()).spawn(work) {
        tracing::error!("no thread for a plugin's shadow period: {error}");
    }
}

fn run_samples(queue: &Receiver<Sample>, candidate: &dyn OutputStage, resolve: &Resolve, counts: &ShadowCounts) {
    while let Ok(sample) = queue.recv() {
        let before = candidate.failures();
        let outcome = repeat(&sample, candidate, resolve);
        counts.judge(&sample.live, outcome, candidate.failures().since(&before));
    }
}

fn repeat(sample: &Sample, candidate: &dyn OutputStage, resolve: &Resolve) -> Result<Vec<Seen>, PluginError> {
    let needs = candidate.requirements();
    let marker = |text: &String| contract::output::Marker { text: text.clone(), token: resolve(text) };
    let mut request = sample.request.clone();
    request.markers = needs.markers.iter().map(marker).collect();
    if !needs.tool_schemas {
        request.tools.iter_mut().for_each(|tool| tool.schema_json = None);
    }
    if !request.tools.is_empty() {
        // Two grammars of one language need not be written alike: only whether it has one to give counts.
        candidate.constrain(&request)?;
    }
    let mut session = candidate.open(&request)?;
    let mut events = Vec::new();
    for feed in &sample.feeds {
        events.extend(session.feed(feed.clone())?);
    }
    events.extend(session.finish(sample.reason.clone())?);
    Ok(fold(events))
}

impl OutputStage for ShadowStage {
    fn name(&self) -> &str {
        self.live.name()
    }

    fn serial(&self) -> u64 {
        self.live.serial()
    }

    fn failures(&self) -> Failures {
        self.live.failures()
    }

    fn requirements(&self) -> &Requirements {
        &self.requirements
    }

    fn constrain(&self, request: &StageRequest) -> Result<Option<Constraint>, PluginError> {
        self.live.constrain(&self.for_live(request))
    }

    fn open(&self, request: &StageRequest) -> Result<Box<dyn StageSession>, PluginError> {
        let live = self.live.open(&self.for_live(request))?;
        let sample =
            Sample { request: request.clone(), feeds: Vec::new(), reason: EndReason::Cancelled, live: Vec::new() };
        let (samples, counts) = (self.samples.clone(), Arc::clone(&self.counts));
        Ok(Box::new(ShadowSession { live, sample: Some(sample), events: Vec::new(), bytes: 0, samples, counts }))
    }

    fn is_suspect(&self) -> bool {
        self.live.is_suspect()
    }
}

impl ShadowStage {
    fn for_live(&self, request: &StageRequest) -> StageRequest {
        let mut request = request.clone();
        if !self.live_takes_schemas {
            request.tools.iter_mut().for_each(|tool| tool.schema_json = None);
        }
        request
    }
}

struct ShadowSession {
    live: Box<dyn StageSession>,
    /// `None` once the stream is too long to be compared.
    sample: Option<Sample>,
    events: Vec<OutputEvent>,
    bytes: usize,
    samples: SyncSender<Sample>,
    counts: Arc<ShadowCounts>,
}

impl StageSession for ShadowSession {
    fn is_suspect(&self) -> bool {
        self.live.is_suspect()
    }

    fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
        if let Some(sample) = &mut self.sample {
            self.bytes += events.iter().map(bytes_of).sum::<usize>();
            sample.feeds.push(events.clone());
        }
        let out = self.live.feed(events)?;
        self.bytes += out.iter().map(bytes_of).sum::<usize>();
        if self.bytes > SAMPLE_BYTES_MAX && self.sample.take().is_some() {
            self.events = Vec::new();
            self.counts.skipped.fetch_add(1, Relaxed);
        }
        if self.sample.is_some() {
            self.events.extend(out.iter().cloned());
        }
        Ok(out)
    }

    fn finish(&mut self, reason: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
        let out = self.live.finish(reason.clone())?;
        if let Some(mut sample) = self.sample.take() {
            sample.reason = reason;
            sample.live = fold(std::mem::take(&mut self.events).into_iter().chain(out.iter().cloned()));
            if self.samples.try_send(sample).is_err() {
                self.counts.skipped.fetch_add(1, Relaxed);
            }
        }
        Ok(out)
    }
}

/// About what an event takes.
fn bytes_of(event: &OutputEvent) -> usize {
    const BESIDE_ITS_TEXT: usize = 64;
    BESIDE_ITS_TEXT
        + match event {
            OutputEvent::Text { text, .. } => text.len(),
            OutputEvent::CallArguments { fragment, .. } => fragment.len(),
            _ => 0,
        }
}

/// The live template, whose prompts the candidate repeats.
pub struct ShadowTemplate {
    live: Arc<dyn ChatTemplate>,
    samples: SyncSender<(String, Rendered)>,
    counts: Arc<ShadowCounts>,
}

impl ShadowTemplate {
    pub fn new(live: Arc<dyn ChatTemplate>, candidate: Arc<dyn ChatTemplate>) -> (Self, Arc<ShadowCounts>) {
        let counts = Arc::new(ShadowCounts::default());
        let (samples, queue) = sync_channel::<(String, Rendered)>(QUEUE_MAX);
        let own = Arc::clone(&counts);
        spawn(move || {
            while let Ok((request, live)) = queue.recv() {
                let before = candidate.failures();
                let outcome = candidate.render(&request);
                own.judge(&live, outcome, candidate.failures().since(&before));
            }
        });
        (Self { live, samples, counts: Arc::clone(&counts) }, counts)
    }
}

impl ChatTemplate for ShadowTemplate {
    fn name(&self) -> &str {
        self.live.name()
    }

    fn serial(&self) -> u64 {
        self.live.serial()
    }

    fn failures(&self) -> Failures {
        self.live.failures()
    }

    fn render(&self, request_json: &str) -> Result<Rendered, PluginError> {
        let rendered = self.live.render(request_json)?;
        let fits = request_json.len() + rendered.prompt.len() <= SAMPLE_BYTES_MAX;
        if !fits || self.samples.try_send((request_json.to_owned(), rendered.clone())).is_err() {
            self.counts.skipped.fetch_add(1, Relaxed);
        }
        Ok(rendered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_stages;

    /// Runs a text through the live stage beside a candidate and waits until it was compared.
    fn compared(live: Arc<dyn OutputStage>, candidate: Arc<dyn OutputStage>, text: &str) -> (String, u64, u64) {
        let (stage, counts) = ShadowStage::new(live, candidate, Arc::new(|_: &str| None));
        let mut session = stage.open(&StageRequest::default()).expect("it opens");
        let mut events = session.feed(vec![OutputEvent::content(text)]).expect("it passes");
        events.extend(session.finish(EndReason::Length).expect("it ends"));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while counts.compared.load(Relaxed) == 0 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let text = |event| match event {
            OutputEvent::Text { text, .. } => text,
            other => format!("{other:?}"),
        };
        (events.into_iter().map(text).collect(), counts.compared.load(Relaxed), counts.different.load(Relaxed))
    }

    /// Clients get the live stage's events; what the candidate makes of the same stream is counted and no more.
    #[test]
    fn differences_are_counted_and_not_sent() {
        let think = || test_stages::think();
        assert_eq!(compared(think(), think(), "plain").1, 1);
        let (text, _, different) =
            compared(test_stages::scripted(|| vec![OutputEvent::content("PLAIN")]), think(), "plain");
        assert_eq!((text.as_str(), different), ("PLAIN", 1));
        let (text, _, different) = compared(think(), think(), "plain");
        assert_eq!((text.as_str(), different), ("plain", 0));
    }
}
