//! Which output stages a model needs, read from its chat template and its tokenizer when the operator names none.
//!
//! A format is recognised by the texts that only its templates hold. The choice is sure when one format fits and the
//! tokenizer has its markers as tokens, where the format's own tokenizers have them; anything else is said.

/// What was chosen, and what a person should know about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub stages: Vec<String>,
    /// Why the choice may be wrong.
    pub doubt: Option<String>,
}

struct Format {
    /// The stage of the tool calls; it reads the reasoning too where `reasoning` is false and the format has any.
    stage: &'static str,
    /// All of these must stand in the template.
    texts: &'static [&'static str],
    /// A token of the format's tokenizers; empty where markers are plain text.
    token: &'static str,
    /// Reasoning between `<think>` tags is another stage's.
    think: bool,
}

const fn format(stage: &'static str, texts: &'static [&'static str], token: &'static str, think: bool) -> Format {
    Format { stage, texts, token, think }
}

/// The more particular ones first: the first that fits is taken.
const FORMATS: &[Format] = &[
    format("gpt_oss", &["<|channel|>", "<|message|>"], "<|channel|>", false),
    format("deepseek_v32", &["｜DSML｜"], "", true),
    format("deepseek_v3", &["<｜tool▁calls▁begin｜>", "```json"], "<｜tool▁calls▁begin｜>", true),
    format("deepseek_v31", &["<｜tool▁calls▁begin｜>"], "<｜tool▁calls▁begin｜>", true),
    format("kimi_k2", &["<|tool_calls_section_begin|>"], "<|tool_calls_section_begin|>", false),
    format("minimax_m2", &["<minimax:tool_call>"], "<minimax:tool_call>", false),
    format("seed_oss", &["<seed:tool_call>"], "<seed:tool_call>", false),
    format("gemma4", &["<|tool_call>", "<tool_call|>"], "<|tool_call>", false),
    format("mistral", &["[TOOL_CALLS]"], "[TOOL_CALLS]", false),
    format("glm45", &["<tool_call>", "<arg_key>"], "<tool_call>", false),
    format("qwen3_coder", &["<tool_call>", "<function=", "<parameter="], "<tool_call>", true),
    format("lfm2", &["<|tool_call_start|>"], "<|tool_call_start|>", true),
    format("olmo3", &["<function_calls>"], "", true),
    format("granite", &["<|tool_call|>", "<|start_of_role|>"], "<|tool_call|>", false),
    format("phi4_mini_json", &["<|tool|>", "<|tool_call|>"], "<|tool_call|>", true),
    format("phi4_mini_json", &["functools["], "", true),
    format("hermes", &["<tool_call>", "arguments"], "<tool_call>", true),
    format("llama4_pythonic", &["<|python_start|>"], "<|python_start|>", true),
    format("pythonic", &["[func_name1("], "", true),
    format("llama3_json", &["<|start_header_id|>", "\"parameters\""], "<|python_tag|>", true),
];

/// `template` is the model's Jinja source; `has_token` says whether the tokenizer has a text as an added token.
pub fn choose(template: Option<&str>, has_token: impl Fn(&str) -> bool) -> Choice {
    let Some(template) = template else { return Choice::default() };
    let fits = |format: &&Format| format.texts.iter().all(|text| template.contains(text));
    let found: Vec<&Format> = FORMATS.iter().filter(fits).collect();
    let thinks = template.contains("<think>") || template.contains("</think>");
    let think = || thinks.then(|| "qwen3".to_string());
    let Some(format) = found.first() else {
        let takes_tools = template.contains("tools");
        let doubt = takes_tools.then(|| {
            "its chat template takes tools, but writes calls in a format that is not known: calls will be sent as text; \
             name a stage with --tool-call-parser if one fits"
                .to_string()
        });
        return Choice { stages: think().into_iter().collect(), doubt };
    };
    let mut stages: Vec<String> = format.think.then(think).flatten().into_iter().collect();
    stages.push(format.stage.into());
    Choice { doubt: doubt(format, &found, &stages, has_token), stages }
}

fn doubt(format: &Format, found: &[&Format], stages: &[String], has_token: impl Fn(&str) -> bool) -> Option<String> {
    let advice =
        "if calls or reasoning come out as text, name the stages with --tool-call-parser and --reasoning-parser";
    // Formats with one marker are told apart by their other texts, the more particular first.
    let other = found.iter().skip(1).find(|other| other.token != format.token);
    let chain = stages.join(" -> ");
    if let Some(other) = other {
        let (first, second) = (format.stage, other.stage);
        return Some(format!(
            "output stages {chain} are a guess: its template fits `{first}` and `{second}`; {advice}"
        ));
    }
    if !format.token.is_empty() && !has_token(format.token) {
        let token = format.token;
        return Some(format!("output stages {chain} are a guess: its tokenizer has no token `{token}`; {advice}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(template: &str, tokens: &[&str]) -> (String, bool) {
        let choice = choose(Some(template), |text| tokens.contains(&text));
        (choice.stages.join(" "), choice.doubt.is_some())
    }

    #[test]
    fn formats_are_known_by_their_texts() {
        let qwen3 = "{% if tools %}<tool_call>\n{\"name\": .., \"arguments\": ..}\n</tool_call>{% endif %}<think>";
        let coder = "{{ tools }}<tool_call>\n<function=f>\n<parameter=p>";
        let llama = "{{ tools }}<|start_header_id|>{\"name\": .., \"parameters\": ..}<|python_tag|>";
        let cases: &[(&str, &[&str], (&str, bool))] = &[
            (qwen3, &["<tool_call>"], ("qwen3 hermes", false)),
            (qwen3, &[], ("qwen3 hermes", true)),
            (coder, &["<tool_call>"], ("qwen3_coder", false)),
            (llama, &["<|python_tag|>"], ("llama3_json", false)),
            ("<tool_call>{{ name }}<arg_key> arguments <think>", &["<tool_call>"], ("glm45", false)),
            ("<｜tool▁calls▁begin｜>```json <think>", &["<｜tool▁calls▁begin｜>"], ("qwen3 deepseek_v3", false)),
            ("<|channel|>analysis<|message|>", &["<|channel|>"], ("gpt_oss", false)),
            ("{{ messages }}<think>", &[], ("qwen3", false)),
            ("[TOOL_CALLS]<|tool_call_start|>", &["[TOOL_CALLS]"], ("mistral", true)),
            ("{{ messages }}", &[], ("", false)),
            ("{{ tools | tojson }}", &[], ("", true)),
        ];
        for (template, tokens, expected) in cases {
            let (stages, doubtful) = chosen(template, tokens);
            assert_eq!((stages.as_str(), doubtful), *expected, "{template}");
        }
        assert_eq!(choose(None, |_| true), Choice::default());
    }
}
