//! Sources to grammars, on threads of their own and within limits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use crate::cache::Cache;
use crate::error::short;
use crate::source::{Prepared, with_white_space};
use crate::{GrammarError, Metrics, Source, Vocabulary};

/// Stack of a compiling thread: the compiler recurses over references, at most
/// [`crate::schema::SCHEMAS_MAX`] deep and below 16 KiB a level. Only what is used becomes memory.
pub const STACK_BYTES: usize = 256 * 1024 * 1024;

/// Limits of one compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads that compile. One slow constraint must not hold up all others.
    pub threads: usize,
    /// Constraints that wait for a thread; one more is told to come again.
    pub queue_max: usize,
    /// Time from the request to its grammar. Large tool sets take tens of milliseconds.
    pub compile_max: Duration,
    /// Grammars kept for the next request with the same text.
    pub cached_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { threads: 2, queue_max: 64, compile_max: Duration::from_secs(5), cached_max: 64 }
    }
}

/// Key bytes that the cache may hold: sixteen of the largest tool sets.
const CACHED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Attempts to find the place of an error by compiling parts of the schema.
const LOCATE_MAX: usize = 128;

/// What one grammar may cost. The library counts work and memory by these.
fn parser_limits() -> ParserLimits {
    ParserLimits {
        // About 20 ms of building the lexer.
        initial_lexer_fuel: 1_000_000,
        // About 7 ms for one mask, and 2 ms of parsing: a step of a large model.
        step_lexer_fuel: 100_000,
        step_max_items: 50_000,
        // 1 to 2 KiB each: a request's grammar stays below 50 MiB.
        max_lexer_states: 25_000,
        // Symbols; the largest public schemas need 200,000.
        max_grammar_size: 300_000,
        max_items_in_row: 2000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Compiles constraints for one vocabulary. Shared by all names over an engine.
pub struct Compiler {
    shared: Arc<Shared>,
    jobs: SyncSender<Job>,
}

struct Shared {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
    limits: Limits,
    metrics: Metrics,
    cache: Mutex<Cache<Compiled>>,
    waiting: AtomicUsize,
}

struct Job {
    prepared: Prepared,
    started: Arc<AtomicBool>,
    reply: SyncSender<Result<Compiled, GrammarError>>,
}

/// A grammar that streams can be held to.
#[derive(Clone)]
pub struct Compiled {
    /// At its start; streams take copies.
    template: Arc<Mutex<Matcher>>,
    warnings: Arc<[String]>,
}

impl Compiled {
    /// What of the constraint has no effect.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A state of its own: nothing is shared with other streams, so none can slow down or break another.
    pub(crate) fn matcher(&self) -> Matcher {
        self.template.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

impl Compiler {
    /// Starts the threads; they end with the compiler.
    pub fn new(vocabulary: Vocabulary, limits: Limits, metrics: Metrics) -> Result<Self, GrammarError> {
        let internal = |error: String| GrammarError::Internal(short(&error));
        let vocabulary = Arc::new(vocabulary);
        let capabilities = InferenceCapabilities::default();
        let slices = SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(vocabulary.env(), capabilities, &slices).map_err(|e| internal(e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        let (jobs, queue) = sync_channel(limits.queue_max);
        let threads = limits.threads.max(1);
        let cache = Mutex::new(Cache::new(limits.cached_max, CACHED_BYTES_MAX));
        let shared = Shared { vocabulary, factory, limits, metrics, cache, waiting: AtomicUsize::new(0) };
        let shared = Arc::new(shared);
        let queue = Arc::new(Mutex::new(queue));
        for n in 0..threads {
            let (shared, queue) = (Arc::clone(&shared), Arc::clone(&queue));
            std::thread::Builder::new()
                .name(format!("grammar {n}"))
                .stack_size(STACK_BYTES)
                .spawn(move || work(&shared, &queue))
                .map_err(|error| internal(error.to_string()))?;
        }
        Ok(Self { shared, jobs })
    }

    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.shared.vocabulary
    }

    /// Checks and compiles; waits for a thread. Not for an async task.
    pub fn compile(&self, source: &Source) -> Result<Compiled, GrammarError> {
        let compiled = self.try_compile(source);
        if let Err(error) = &compiled {
            self.shared.metrics.refused(error);
        }
        compiled
    }

    fn try_compile(&self, source: &Source) -> Result<Compiled, GrammarError> {
        let shared = &self.shared;
        let prepared = source.prepare(&shared.vocabulary)?;
        if let Some(compiled) = shared.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&prepared.key) {
            shared.metrics.hit();
            return Ok(compiled);
        }
        let (reply, answer) = sync_channel(1);
        let started = Arc::new(AtomicBool::new(false));
        let job = Job { prepared, started: Arc::clone(&started), reply };
        let limit = shared.limits.queue_max;
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.jobs.try_send(job);
        let waiting = shared.waiting.load(Ordering::Relaxed);
        let answered = match sent {
            Ok(()) => answer.recv_timeout(shared.limits.compile_max),
            Err(TrySendError::Full(_)) => Ok(Err(GrammarError::Busy { waiting, limit })),
            Err(TrySendError::Disconnected(_)) => Err(RecvTimeoutError::Disconnected),
        };
        shared.waiting.fetch_sub(1, Ordering::Relaxed);
        match answered {
            Ok(compiled) => compiled,
            // A constraint that never had its turn is not the one at fault.
            Err(RecvTimeoutError::Timeout) if !started.load(Ordering::Relaxed) => {
                Err(GrammarError::Busy { waiting, limit })
            }
            Err(RecvTimeoutError::Timeout) => {
                let limit_ms = u64::try_from(shared.limits.compile_max.as_millis()).unwrap_or(u64::MAX);
                Err(GrammarError::TooSlow { limit_ms })
            }
            Err(RecvTimeoutError::Disconnected) => Err(GrammarError::Internal("a compiling thread ended".into())),
        }
    }
}

/// One thread: until the compiler is dropped.
fn work(shared: &Shared, queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { prepared, started, reply }) = job else { return };
        started.store(true, Ordering::Relaxed);
        let start = Instant::now();
        let compiled = shared.run(&prepared);
        if let Ok(compiled) = &compiled {
            shared.metrics.compiled(start.elapsed().as_secs_f64());
            let mut cache = shared.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.insert(prepared.key, compiled.clone());
        }
        // Nobody may wait any more.
        let _ = reply.try_send(compiled);
    }
}

impl Shared {
    fn run(&self, prepared: &Prepared) -> Result<Compiled, GrammarError> {
        match self.matcher(prepared.grammar.clone()) {
            Ok(matcher) => {
                Ok(Compiled { template: Arc::new(Mutex::new(matcher)), warnings: prepared.warnings.clone().into() })
            }
            Err(message) => Err(match &prepared.schema {
                Some(schema) => self.locate(schema, &message),
                None => GrammarError::grammar(message),
            }),
        }
    }

    /// A grammar at its start that can go on: its first mask is computed here, where it hurts nobody.
    fn matcher(&self, grammar: TopLevelGrammar) -> Result<Matcher, String> {
        let parser = self.factory.create_parser(grammar).map_err(|error| error.to_string())?;
        let matcher = Matcher::new(Ok(parser));
        let mut trial = matcher.deep_clone();
        match trial.compute_mask() {
            Ok(mask) if !mask.is_zero() => Ok(matcher),
            Ok(_) => Err("no text satisfies it".into()),
            Err(_) if trial.stop_reason() == llguidance::api::StopReason::NoExtensionBias => {
                Err("no text satisfies it".into())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The innermost schema that does not compile on its own, and the keyword without which it would.
    fn locate(&self, schema: &Value, message: &str) -> GrammarError {
        let mut tries = 0;
        let definitions = schema.get("$defs").cloned();
        let mut fails = |part: &Value| -> Option<String> {
            tries += 1;
            if tries > LOCATE_MAX {
                return None;
            }
            let mut part = with_white_space(part.clone());
            if let Some(definitions) = &definitions {
                part["$defs"] = definitions.clone();
            }
            self.matcher(TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(part))).err()
        };
        let (mut place, mut found, mut why) = (String::new(), schema, message.to_owned());
        // A definition that fails alone is the place, whoever refers to it.
        while let Some((step, child, error)) = children(found).find_map(|(s, c)| fails(c).map(|error| (s, c, error))) {
            (place, found, why) = (place + &step, child, error);
        }
        let keyword = found.as_object().and_then(|map| {
            let mut keywords = map.keys().filter(|key| !matches!(key.as_str(), "$defs" | "x-guidance" | "type"));
            let to_blame = keywords.find(|key| {
                let mut without = map.clone();
                without.shift_remove(*key);
                fails(&Value::Object(without)).is_none()
            });
            to_blame.cloned()
        });
        GrammarError::schema(place, keyword.as_deref(), short(&why))
    }
}

/// The schemas directly inside a checked schema, with the steps that lead to them.
fn children(schema: &Value) -> impl Iterator<Item = (String, &Value)> {
    let keywords = schema.as_object().into_iter().flatten();
    keywords
        .flat_map(|(keyword, value)| -> Vec<(String, &Value)> {
            let step = |name: &str| format!("/{keyword}/{}", name.replace('~', "~0").replace('/', "~1"));
            match (keyword.as_str(), value) {
                ("properties" | "patternProperties" | "$defs", Value::Object(map)) => {
                    map.iter().map(|(name, child)| (step(name), child)).collect()
                }
                ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(list)) => {
                    list.iter().enumerate().map(|(i, child)| (step(&i.to_string()), child)).collect()
                }
                ("items" | "additionalProperties" | "additionalItems", child) => vec![(format!("/{keyword}"), child)],
                _ => Vec::new(),
            }
        })
        // `false` alone is never satisfied, and rightly so.
        .filter(|(_, child)| child.is_object())
}

#[cfg(test)]
pub(crate) mod tests;
