//! The grammar of a demanded call: only where one is demanded, of the tools that are, with tokens by their ids.

use cases::render::FORMATS;
use cases::{Setup, grammar, markers, request};
use tokenloom_sdk::output::{Marker, ToolChoice};

fn written(name: &str, choice: ToolChoice, with_tokens: bool) -> Option<String> {
    let schema = r#"{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}"#;
    let tools = ["get_weather", "get_time"].map(|tool| (tool.to_string(), schema.to_string())).to_vec();
    let mut request = request(&Setup { tools, ..Setup::default() }, choice);
    let id = |number: usize| with_tokens.then_some(1000 + number as u32);
    let numbered = markers(name).into_iter().enumerate();
    request.markers = numbered.map(|(number, text)| Marker { text, token: id(number) }).collect();
    grammar(name, &request).map(|constraint| constraint.grammar)
}

#[test]
fn only_demanded_calls_are_written() {
    for (name, _) in FORMATS {
        for with_tokens in [false, true] {
            assert_eq!(written(name, ToolChoice::Auto, with_tokens), None, "{name}");
            assert_eq!(written(name, ToolChoice::None, with_tokens), None, "{name}");
            let both = written(name, ToolChoice::Required, with_tokens).expect("a tool format has a grammar");
            assert!(both.starts_with("start: ") && both.contains("get_weather") && both.contains("get_time"), "{both}");
            let one = written(name, ToolChoice::Named("get_time".into()), with_tokens).expect("the same for one tool");
            assert!(one.contains("get_time") && !one.contains("get_weather"), "{one}");
            // A marker that is a token can never come as text.
            assert!(!with_tokens || both.contains("<[10"), "{name}: {both}");
        }
    }
    for name in ["qwen3", "deepseek_r1", "minimax"] {
        assert_eq!(written(name, ToolChoice::Required, true), None, "{name}");
    }
}
