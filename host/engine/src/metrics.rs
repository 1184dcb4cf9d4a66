//! What the engine counts: vLLM's names, so that dashboards and autoscalers work, and our own under `tokenloom_`.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

type Label = [(&'static str, &'static str); 1];

pub(crate) struct Metrics {
    pub running: Gauge,
    pub waiting: Gauge,
    pub kv_usage: Gauge<f64, AtomicU64>,
    pub prefix_queries: Counter,
    pub prefix_hits: Counter,
    pub preemptions: Counter,
    pub prompt_tokens: Counter,
    pub generation_tokens: Counter,
    pub success: Family<Label, Counter>,
    pub first_token: Histogram,
    pub inter_token: Histogram,
    pub e2e: Histogram,
    pub queue_time: Histogram,
    pub prompt_len: Histogram,
    pub generation_len: Histogram,
    pub iteration_tokens: Histogram,
    pub step_seconds: Histogram,
    pub plan_seconds: Histogram,
    pub policy_seconds: Histogram,
    pub token_budget: Gauge,
    pub parked: Gauge,
    pub graph_misses: Counter,
    pub fallbacks: Family<Label, Counter>,
    pub strikes: Gauge,
    pub violations: Family<Label, Counter>,
    pub mask_seconds: Histogram,
    pub mask_failures: Counter,
}

/// 1 ms to about a minute.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

/// 1 us to about a second.
fn short_seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-6, 4.0, 11))
}

/// 1 to half a million.
fn tokens() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 20))
}

impl Metrics {
    pub fn register(registry: &mut Registry, model_name: &str, pages: u32) -> Self {
        let labels =
            [("model_name", model_name), ("engine", "0")].map(|(key, value)| (key.into(), value.to_owned().into()));
        let registry = registry.sub_registry_with_labels(labels.into_iter());
        let metrics = Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            kv_usage: Gauge::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            preemptions: Counter::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            success: Family::default(),
            first_token: seconds(),
            inter_token: seconds(),
            e2e: seconds(),
            queue_time: seconds(),
            prompt_len: tokens(),
            generation_len: tokens(),
            iteration_tokens: tokens(),
            step_seconds: seconds(),
            plan_seconds: short_seconds(),
            policy_seconds: short_seconds(),
            token_budget: Gauge::default(),
            parked: Gauge::default(),
            graph_misses: Counter::default(),
            fallbacks: Family::default(),
            strikes: Gauge::default(),
            violations: Family::default(),
            mask_seconds: short_seconds(),
            mask_failures: Counter::default(),
        };
        metrics.register_vllm(registry);
        metrics.register_own(registry);
        let cache = [("block_size", contract::PAGE_TOKENS.to_string()), ("num_gpu_blocks", pages.to_string())];
        let info: Family<[(&'static str, String); 2], Gauge> = Family::default();
        info.get_or_create(&cache).set(1);
        registry.register("vllm:cache_config_info", "Page size in tokens and number of KV pages", info);
        metrics
    }

    fn register_vllm(&self, registry: &mut Registry) {
        let r = registry;
        r.register("vllm:num_requests_running", "Requests with a seat", self.running.clone());
        r.register("vllm:num_requests_waiting", "Requests without a seat", self.waiting.clone());
        r.register("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1", self.kv_usage.clone());
        r.register("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache", self.prefix_queries.clone());
        r.register("vllm:prefix_cache_hits", "Tokens found in the prefix cache", self.prefix_hits.clone());
        r.register("vllm:num_preemptions", "Requests that lost their seat", self.preemptions.clone());
        r.register("vllm:prompt_tokens", "Prompt tokens of requests that started", self.prompt_tokens.clone());
        r.register("vllm:generation_tokens", "Generated tokens", self.generation_tokens.clone());
        r.register("vllm:request_success", "Requests that ended, by reason", self.success.clone());
        r.register("vllm:time_to_first_token_seconds", "From arrival to the first token", self.first_token.clone());
        r.register("vllm:inter_token_latency_seconds", "Between two tokens of a request", self.inter_token.clone());
        r.register("vllm:e2e_request_latency_seconds", "From arrival to the end", self.e2e.clone());
        r.register("vllm:request_queue_time_seconds", "From arrival to the first grant", self.queue_time.clone());
        r.register("vllm:request_prompt_tokens", "Prompt tokens of a request", self.prompt_len.clone());
        r.register("vllm:request_generation_tokens", "Generated tokens of a request", self.generation_len.clone());
        r.register("vllm:iteration_tokens_total", "Rows of a step", self.iteration_tokens.clone());
    }

    fn register_own(&self, registry: &mut Registry) {
        let r = registry;
        r.register("tokenloom_step_seconds", "Device time of a step", self.step_seconds.clone());
        r.register("tokenloom_plan_seconds", "Time to plan a step, policy included", self.plan_seconds.clone());
        r.register("tokenloom_policy_seconds", "Time of a policy call", self.policy_seconds.clone());
        r.register(
            "tokenloom_token_budget",
            "Rows that are expected to fit the step target",
            self.token_budget.clone(),
        );
        r.register("tokenloom_parked_requests", "Requests whose clients read too slowly", self.parked.clone());
        r.register("tokenloom_graph_misses", "Decode-only steps outside a captured size", self.graph_misses.clone());
        r.register("tokenloom_policy_fallbacks", "Steps that native FCFS decided, by cause", self.fallbacks.clone());
        r.register("tokenloom_policy_strikes", "Strikes of the policy that count now", self.strikes.clone());
        r.register("tokenloom_grammar_mask_seconds", "Time to compute one grammar mask", self.mask_seconds.clone());
        r.register("tokenloom_grammar_failures", "Requests whose grammar could not go on", self.mask_failures.clone());
        r.register("tokenloom_policy_violations", "Advice that was not followed, by rule", self.violations.clone());
    }
}
