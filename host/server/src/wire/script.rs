//! The text side of a scripted model: its fixed template, its byte tokens, its own prompt lengths.

use std::sync::Arc;

use backend_script::Script;
use contract::TokenId;
use text::{ByteVocabToken, Tokenizer};

/// ChatML, as most small models have it; tools are a JSON line in the system turn.
pub const TEMPLATE: &str = "\
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif -%}
{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}{{- message['content'] }}{% endif %}
{%- for call in message['tool_calls'] or [] %}{{- '\\n' + (call | tojson) }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}";

pub fn tokenizer(script: &Script) -> Tokenizer {
    let extra = script.vocabulary().into_iter().map(|(bytes, added)| ByteVocabToken { bytes, added });
    Tokenizer::from_bytes_vocab(extra.collect())
}

/// Counts prompts as the script wants, and refuses those that it does not answer.
pub struct ScriptRule(pub Arc<Script>);

impl api::PromptRule for ScriptRule {
    fn check(&self, prompt: &[TokenId]) -> Result<Option<u32>, String> {
        if !self.0.matches(prompt) {
            return Err("no response of the script matches this prompt".into());
        }
        Ok(self.0.counted_prompt_tokens(prompt))
    }
}
