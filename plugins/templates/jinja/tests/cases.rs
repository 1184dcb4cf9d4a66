//! Every template case of `tests/cases/cases.jsonl`; the expected texts are transformers' own.

use jinja::Jinja;
use serde_json::{Value, json};
use tokenloom_sdk::Setting;
use tokenloom_sdk::template::{ModelInfo, Rendered, Template};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/cases/cases.jsonl");

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(CASES).expect("the repository holds the cases");
    let cases = text.lines().map(|line| serde_json::from_str(line).expect("one case per line"));
    cases.filter(|case: &Value| case["area"] == "template").collect()
}

fn load(source: &str) -> Jinja {
    let mut template = Jinja::configure("{}").expect("default settings");
    let special_tokens = vec![Setting { key: "bos_token".into(), value: "<bos>".into() }];
    let model = ModelInfo { template_source: Some(source.into()), special_tokens, ext: Vec::new() };
    template.load(model).expect("the template parses");
    template
}

/// What the server does to messages before it renders; its own code is tested in its own crate.
fn normalise(messages: &mut [Value], rule: &str) {
    for message in messages {
        match rule {
            "tool_arguments_to_object" => {
                for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
                    let arguments = &mut call["function"]["arguments"];
                    *arguments = serde_json::from_str(arguments.as_str().expect("text")).expect("JSON");
                }
            }
            "text_parts_to_string" => {
                if let Some(parts) = message["content"].as_array() {
                    message["content"] =
                        parts.iter().map(|p| p["text"].as_str().expect("text")).collect::<String>().into();
                }
            }
            "drop_empty_tool_calls" => {
                if message["tool_calls"] == json!([]) {
                    message.as_object_mut().expect("a message").shift_remove("tool_calls");
                }
            }
            other => panic!("unknown rule {other}"),
        }
    }
}

fn request(case: &Value, messages: Option<usize>) -> String {
    let input = &case["input"];
    let mut list = input["messages"].as_array().expect("messages").clone();
    for rule in input["normalise_before_render"].as_array().into_iter().flatten() {
        normalise(&mut list, rule.as_str().expect("a name"));
    }
    list.truncate(messages.unwrap_or(usize::MAX));
    let mut kwargs = input["kwargs"].as_object().expect("kwargs").clone();
    let add_generation_prompt = kwargs.shift_remove("add_generation_prompt").unwrap_or(json!(false));
    let tools = kwargs.shift_remove("tools").unwrap_or(Value::Null);
    json!({
        "messages": list, "tools": tools, "documents": null, "add_generation_prompt": add_generation_prompt,
        "continue_final_message": false, "kwargs": kwargs, "now": input["frozen_now"],
    })
    .to_string()
}

#[test]
fn every_template_case() {
    let cases = cases();
    assert_eq!(cases.len(), 19);
    for case in &cases {
        let id = case["id"].as_str().expect("an id");
        let mut template = load(case["input"]["template"].as_str().expect("a template"));
        let answer = template.render(&request(case, None));
        let expected = &case["expected"];
        if let Some(error) = expected["error"].as_object() {
            let answer = answer.expect_err(id);
            assert_eq!(answer.code, error["kind"].as_str().expect("a kind").replace('_', "-"), "{id}");
            assert_eq!(answer.message, error["message"].as_str().expect("a message"), "{id}");
            continue;
        }
        let answer = answer.unwrap_or_else(|error| panic!("{id}: {}: {}", error.code, error.message));
        assert_eq!(answer.prompt, expected["rendered"].as_str().expect("text"), "{id}");
        if let Some(first) = expected["rendered_first_turn"].as_str() {
            let before = template.render(&request(case, Some(1))).expect(id);
            assert_eq!(before.prompt, first, "{id}");
            let common = before.prompt.chars().zip(answer.prompt.chars()).take_while(|(a, b)| a == b).count();
            assert_eq!(common as u64, expected["common_prefix_chars"].as_u64().expect("a number"), "{id}");
        }
    }
}

fn chat(source: &str, request: Value) -> Rendered {
    load(source).render(&request.to_string()).expect("renders")
}

const QWEN: &str = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\
    {%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}\
    {{- '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}{%- endif %}";

#[test]
fn the_turn_prefix_is_the_generation_prompt() {
    use tokenloom_sdk::Channel;
    let ask = |thinking: bool| {
        let messages = json!([{"role": "user", "content": "what is <think>?"}]);
        let kwargs = json!({"enable_thinking": thinking, "colour": "red"});
        chat(QWEN, json!({"messages": messages, "add_generation_prompt": true, "kwargs": kwargs}))
    };
    let on = ask(true);
    assert_eq!(on.turn_prefix, "<|im_start|>assistant\n<think>\n");
    assert_eq!(on.starts_in, Some(Channel::Reasoning));
    assert_eq!(on.ext, [Setting { key: "unread-kwargs".into(), value: "colour".into() }]);
    assert_eq!(ask(false).starts_in, Some(Channel::Content));
}

#[test]
fn a_final_message_is_continued() {
    let messages = json!([{"role": "user", "content": "go"}, {"role": "assistant", "content": "So far "}]);
    let answer = chat(QWEN, json!({"messages": messages, "continue_final_message": true}));
    assert_eq!(answer.prompt, "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nSo far ");
    assert_eq!(answer.turn_prefix, "<|im_start|>assistant\nSo far ");
}

/// `text % values`, `~`, and numbers as Python prints them.
#[test]
fn operators_follow_python() {
    let cases = [
        ("{{ '%s is %d %%' % ('x', 7) }}", "x is 7 %"),
        ("{{ '%.2f' % 2.5 }}|{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 7.5 % 2 }}", "2.50|1|2|1.5"),
        ("{{ 1e20 }}|{{ 1e20 ~ '' }}|{{ [1e-07, 0.5] }}|{{ 1e16|string }}", "1e+20|1e+20|[1e-07, 0.5]|1e+16"),
        ("{{ 'a' ~ 1 + 2 * 3 if false else 'b' ~ none ~ true }}", "bNoneTrue"),
        ("{% set p = 'a::b::c'.rsplit('::', 1) %}{{ p[0] }}/{{ p[1] }}", "a::b/c"),
        ("{{ ' a b  c '.rsplit(maxsplit=1)|join('/') }}|{{ 'k=v'.partition('=')[2] }}", "a b/c|v"),
        ("{{ 'x' is sequence }}{{ {} is sequence }}{{ 3 is sequence }}{{ true is number }}", "TrueTrueFalseTrue"),
        ("{{ 'ab'.center(7, '*') }}|{{ 'Ab'.swapcase() }}|{{ '-7'.zfill(4) }}", "***ab**|aB|-007"),
        ("{{ {'a': [1, 2], 'b': {}}|tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}"),
        ("{{ ('a',) }}{{ (1, 'b') }}{{ bos_token }}", "('a',)(1, 'b')<bos>"),
        ("{% for i in range(4) %}{{ '-' if i % 2 }}{% endfor %}", "--"),
    ];
    for (source, expected) in cases {
        assert_eq!(chat(source, json!({"messages": []})).prompt, expected, "{source}");
    }
}

#[test]
fn hostile_templates_end() {
    let cases = [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}", "fuel"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ strftime_now('%Y') }}", "now"),
        ("{{ messages.append(1) }}", "append"),
    ];
    for (source, word) in cases {
        let error = load(source).render("{\"messages\": []}").expect_err(source);
        assert_eq!(error.code, "template-failed", "{source}");
        assert!(error.message.contains(word), "{source}: {}", error.message);
    }
    let mut template = Jinja::configure("{}").expect("default settings");
    let model = ModelInfo { template_source: Some("{% if %}".into()), special_tokens: Vec::new(), ext: Vec::new() };
    assert_eq!(template.load(model).expect_err("does not parse").code, "template-syntax");
}

#[test]
fn a_model_without_template_gets_chatml() {
    let mut template = Jinja::configure("").expect("default settings");
    template
        .load(ModelInfo { template_source: None, special_tokens: Vec::new(), ext: Vec::new() })
        .expect("the bundled template parses");
    let request = json!({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": true});
    let answer = template.render(&request.to_string()).expect("renders");
    assert_eq!(answer.prompt, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(answer.ext, [Setting { key: "default-template".into(), value: "chatml".into() }]);
}

#[test]
fn settings_choose_the_template() {
    let render = |settings: &str| {
        let mut template = Jinja::configure(settings).expect("valid settings");
        let model = ModelInfo { template_source: Some("model".into()), special_tokens: Vec::new(), ext: Vec::new() };
        template.load(model).expect("parses");
        template.render("{\"messages\": []}").expect("renders").prompt
    };
    assert_eq!(render("{}"), "model");
    assert_eq!(render("{\"template\": \"chatml\"}"), "");
    assert_eq!(render("{\"source\": \"mine\"}"), "mine");
    assert!(Jinja::configure("{\"template\": \"other\"}").is_err());
}
