//! What compiling costs, and how it ends.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::GrammarError;

/// Counters of one compiler.
#[derive(Clone)]
pub struct Metrics {
    compile_seconds: Histogram,
    compiles: Family<[(&'static str, &'static str); 1], Counter>,
    cache_hits: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            // 0.1 ms to about 6 s.
            compile_seconds: Histogram::new(exponential_buckets(1e-4, 3.0, 11)),
            compiles: Family::default(),
            cache_hits: Counter::default(),
        }
    }
}

impl Metrics {
    /// Registers under the label `model_name`.
    pub fn register(registry: &mut Registry, model_name: &str) -> Self {
        let metrics = Self::default();
        let label = ("model_name".into(), model_name.to_owned().into());
        let registry = registry.sub_registry_with_label(label);
        let (seconds, compiles) = (metrics.compile_seconds.clone(), metrics.compiles.clone());
        registry.register("tokenloom_grammar_compile_seconds", "Time to compile a constraint", seconds);
        registry.register("tokenloom_grammar_compiles", "Constraints that were compiled, by outcome", compiles);
        registry.register("tokenloom_grammar_cache_hits", "Constraints found compiled", metrics.cache_hits.clone());
        metrics
    }

    pub(crate) fn compiled(&self, seconds: f64) {
        self.compile_seconds.observe(seconds);
        self.compiles.get_or_create(&[("outcome", "ok")]).inc();
    }

    pub(crate) fn refused(&self, error: &GrammarError) {
        let outcome = match error {
            GrammarError::Schema { .. } | GrammarError::Grammar(_) => "invalid",
            GrammarError::TooLarge { .. } => "too_large",
            GrammarError::TooSlow { .. } => "too_slow",
            GrammarError::Busy { .. } => "busy",
            GrammarError::Internal(_) => "failed",
        };
        self.compiles.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn hit(&self) {
        self.cache_hits.inc();
    }
}
