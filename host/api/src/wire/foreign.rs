//! Fields that other servers know: which are ignored with a warning, and which must not be ignored.

use serde_json::Value;

use super::fields::{Fields, describe};
use crate::error::{ApiError, Code};

/// Fields that clients and routers send by habit and that change nothing in the answer here: bookkeeping of hosted
/// services, hints to another server's cache or transfer, switches of another server's output format.
/// They are ignored, and the answer says so in a header.
const FOREIGN: &[&str] = &[
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "verbosity",
    "request_id",
    "session_id",
    "session_params",
    "rid",
    "extra_key",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "data_parallel_rank",
    "id_slot",
    "cache_prompt",
    "timings_per_token",
    "return_progress",
    "sse_ping_interval",
    "stream_interval",
    "stream_reasoning",
    "return_meta_info",
    "reasoning_format",
    "parse_tool_calls",
    "watermarking",
    "guided_decoding_backend",
];

/// A field that would change the answer if it were understood: any other value than a neutral one is an error.
struct Unsupported {
    name: &'static str,
    /// Values, spelled in JSON, that ask for nothing.
    neutral: &'static [&'static str],
    /// What to do instead; may be empty.
    hint: &'static str,
}

const fn no(name: &'static str, neutral: &'static [&'static str], hint: &'static str) -> Unsupported {
    Unsupported { name, neutral, hint }
}

const UNSUPPORTED: &[Unsupported] = &[
    no("guided_whitespace_pattern", &[], ""),
    no("functions", &["[]"], "declare the functions in tools"),
    no("function_call", &[r#""auto""#, r#""none""#], "use tool_choice"),
    no("best_of", &["1"], "use n"),
    no("suffix", &[r#""""#], ""),
    no("echo", &["false"], "only /v1/completions gives the prompt back"),
    no("logprob_token_ids", &["[]"], ""),
    no("allowed_token_ids", &["[]"], "use logit_bias"),
    no("bad_words", &["[]"], "use logit_bias"),
    no(
        "separate_reasoning",
        &["true"],
        "reasoning is always sent in its own field, or with include_reasoning false not at all",
    ),
    no("chat_template", &[r#""""#], "the template belongs to the server's settings"),
    no("use_beam_search", &["false"], ""),
    no("length_penalty", &["1"], ""),
    no("early_stopping", &["false"], ""),
    no("truncate_prompt_tokens", &[], "shorten the prompt"),
    no("truncation_side", &[], "shorten the prompt"),
    no("modalities", &[r#"["text"]"#], "only text is generated"),
    no("audio", &[], "only text is generated"),
    no("prediction", &[], ""),
    no("web_search_options", &[], ""),
    no("kv_transfer_params", &["{}"], ""),
    no("lora_path", &[], "an adapter has its own model name"),
    no("lora", &["[]"], "an adapter has its own model name"),
    no("custom_logit_processor", &[], ""),
    no("custom_params", &["{}"], ""),
    no("vllm_xargs", &["{}"], ""),
    no("logits_processors", &["[]"], ""),
    no("repetition_detection", &["{}"], ""),
    no("stop_regex", &["[]", r#""""#], "use stop"),
    no("no_stop_trim", &["false"], "use include_stop_str_in_output"),
    no("mm_processor_kwargs", &["{}"], "only text is read"),
    no("media_io_kwargs", &["{}"], "only text is read"),
    no("spaces_between_special_tokens", &["true"], ""),
    no("return_tokens_as_token_ids", &["false"], "use return_token_ids"),
    no("return_prompt_text", &["false"], "use /v1/chat/completions/render"),
    no("return_token_offsets", &["false"], ""),
    no("return_hidden_states", &["false"], ""),
    no("return_routed_experts", &["false"], ""),
    no("return_cached_tokens_details", &["false"], "the usage always has cached_tokens"),
    no("input_ids", &[], "use /v1/completions with token ids as prompt"),
    no("samplers", &[], ""),
    no("mirostat", &["0"], ""),
    no("dry_multiplier", &["0"], ""),
    no("xtc_probability", &["0"], ""),
    no("typical_p", &["1"], ""),
    no("top_n_sigma", &["-1"], ""),
    no("dynatemp_range", &["0"], ""),
    no("n_predict", &[], "use max_tokens"),
    no("repeat_penalty", &["1"], "use repetition_penalty"),
];

/// What a request held beyond the fields that are understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Of other servers, on the list.
    pub foreign: Vec<String>,
    /// Known to nobody: an error in strict mode.
    pub unknown: Vec<String>,
}

impl Ignored {
    /// Sorts what is left of a request; a field that must not be ignored is an error.
    pub fn sort(rest: Fields) -> Result<Self, ApiError> {
        let mut ignored = Self::default();
        for (name, value) in rest.into_rest() {
            if let Some(row) = UNSUPPORTED.iter().find(|row| row.name == name) {
                row.check(&value)?;
            } else if FOREIGN.contains(&name.as_str()) {
                ignored.foreign.push(name);
            } else {
                ignored.unknown.push(name);
            }
        }
        Ok(ignored)
    }

    pub fn check_strict(&self) -> Result<(), ApiError> {
        match self.unknown.first() {
            None => Ok(()),
            Some(name) => Err(ApiError::field(Code::UnknownField, name, "is not a known field of this request")),
        }
    }
}

impl Unsupported {
    fn check(&self, value: &Value) -> Result<(), ApiError> {
        let is_neutral =
            |spelled: &&str| serde_json::from_str::<Value>(spelled).is_ok_and(|neutral| same(&neutral, value));
        if self.neutral.iter().any(is_neutral) {
            return Ok(());
        }
        let hint = if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) };
        let allowed = match self.neutral.first() {
            Some(neutral) => format!("only {neutral} is accepted"),
            None => "leave it out".to_owned(),
        };
        let message = format!("is not supported with {}: {allowed}{hint}", describe(value));
        Err(ApiError::field(Code::UnsupportedField, self.name, message))
    }
}

/// Equal as JSON, where `1` and `1.0` are one number.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}
