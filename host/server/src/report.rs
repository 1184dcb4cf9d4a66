//! What became of the settings, printed at start: asked against effective, the memory arithmetic, the plugins.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use api::SamplingDefaults;

use crate::device::Device;
use crate::settings::{EngineSettings, ModelSettings};
use crate::wire::{WiredEngine, WiredModel};

/// A start-up report, as text for people.
#[derive(Clone, Debug, Default)]
pub struct Report {
    text: String,
    warnings: Vec<String>,
    address: Option<SocketAddr>,
}

/// A loaded plugin in the report.
pub struct PluginLine {
    pub text: String,
    pub asked: String,
    pub granted: String,
    pub effective: String,
    pub warning: Option<String>,
}

impl Report {
    pub fn new(warnings: &[String]) -> Self {
        Self { warnings: warnings.to_vec(), ..Default::default() }
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn listening(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    fn line(&mut self, text: impl fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{text}");
    }

    pub(crate) fn engine(&mut self, settings: &EngineSettings, wired: &WiredEngine) {
        let limits = wired.handle.limits();
        let plan = &wired.plan;
        let (name, device) = (&settings.name, settings.device);
        self.line(format_args!("engine `{name}`: {} ({}) on {device}", settings.source, wired.family));
        let asked = &wired.asked;
        self.setting("max_model_len", settings.max_model_len, limits.context_len);
        self.setting("max_num_seqs", settings.max_num_seqs, limits.seats);
        self.setting("max_num_batched_tokens", settings.max_num_batched_tokens, limits.max_rows);
        self.setting("kv_cache_tokens", settings.kv_cache_tokens, limits.kv_tokens);
        self.setting("max_num_queued_reqs", settings.max_num_queued_reqs, limits.max_queued);
        match settings.device {
            Device::Cpu => {
                let threads = asked.threads.map_or_else(|| "one per physical core".to_string(), |n| n.to_string());
                self.setting("threads", settings.threads, threads);
            }
            Device::Cuda(_) => self.line(format_args!("  decode graphs: {}", sizes(&wired.graphs))),
        }
        self.setting("prefix_caching", None::<bool>, settings.prefix_caching);
        let scheduler = wired.scheduler.as_deref().map_or("native fcfs".to_string(), |name| format!("plugin `{name}`"));
        self.setting("scheduler", settings.scheduler.as_deref(), scheduler);
        self.line(format_args!(
            "  memory: weights {} + repacked {} + workspace {} + state {} + kv pool {} = {}",
            mib(plan.weights),
            mib(plan.repacked),
            mib(plan.workspace),
            mib(plan.state),
            mib(plan.kv_pool),
            mib(plan.weights + plan.repacked + plan.workspace + plan.state + plan.kv_pool),
        ));
        self.line(format_args!(
            "  kv pool: {} pages of {} tokens = {} tokens, {} bytes each; {} seats",
            plan.pages,
            limits.page_tokens,
            plan.kv_tokens(),
            plan.kv_bytes_per_token,
            plan.seats,
        ));
        plan.notes.iter().for_each(|note| self.line(format_args!("  {note}")));
        let warnings = plan.lowered.iter().chain(&wired.warnings);
        self.warnings.extend(warnings.map(|text| format!("engine `{}`: {text}", settings.name)));
    }

    fn setting(&mut self, name: &str, asked: Option<impl fmt::Display>, effective: impl fmt::Display) {
        let asked = asked.map_or_else(|| "default".to_string(), |value| value.to_string());
        self.line(format_args!("  {name:<24} asked {asked:<12} effective {effective}"));
    }

    pub(crate) fn model(&mut self, settings: &ModelSettings, engine: &str, wired: &WiredModel) {
        let served = &wired.served;
        self.line(format_args!(
            "model `{}` over engine `{engine}`: context {} tokens",
            settings.name,
            served.context_len()
        ));
        self.line(format_args!("  chat template: {}; output stages: {}", wired.template, wired.stages));
        self.line(format_args!("  sampling: {} (from {})", sampling(&served.options.sampling), wired.sampling_from));
        let ends = match served.options.end_tokens.as_slice() {
            [] => served.text.tokenizer().eos(),
            own => own,
        };
        let names = served.options.reasoning_field.names().join(" and ");
        self.line(format_args!("  end tokens: {ends:?}; reasoning is sent as {names}"));
        self.warnings.extend(wired.warnings.iter().map(|text| format!("model `{}`: {text}", settings.name)));
    }

    pub(crate) fn plugins(&mut self, lines: &[PluginLine]) {
        for line in lines {
            self.line(format_args!("plugin {}", line.text));
            let (asked, granted, effective) = (&line.asked, &line.granted, &line.effective);
            self.line(format_args!("  capabilities: asked {asked}; granted {granted}; effective {effective}"));
            self.warnings.extend(line.warning.clone());
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        match self.address {
            Some(address) => writeln!(f, "listening on http://{address}"),
            None => Ok(()),
        }
    }
}

fn sizes(rows: &[u16]) -> String {
    match rows {
        [] => "none".into(),
        some => some.iter().map(u16::to_string).collect::<Vec<_>>().join(" ") + " rows",
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn sampling(defaults: &SamplingDefaults) -> String {
    let SamplingDefaults { temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty } =
        defaults;
    format!(
        "temperature {temperature}, top_p {top_p}, top_k {top_k}, min_p {min_p}, repetition {repetition_penalty}, \
         presence {presence_penalty}, frequency {frequency_penalty}"
    )
}
