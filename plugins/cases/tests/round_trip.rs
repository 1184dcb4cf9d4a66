//! Calls written in each format and read again: whatever the calls, the cutting and the tokens.

use cases::render::{Call, FORMATS, render};
use cases::{Answer, Piece, Setup, cut, markers, open, run, run_until, with_tokens};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokenloom_sdk::output::EndReason;

fn setup() -> Setup {
    let schema = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "share": {"type": "number"}, "on": {"type": "boolean"},
        "list": {"type": "array"}, "map": {"type": "object"}, "none": {"type": "null"},
    }});
    let tools = ["f", "get_weather", "math.add"].map(|name| (name.to_string(), schema.to_string()));
    Setup { tools: tools.to_vec(), ..Setup::default() }
}

/// Text that every format can write: no format escapes its own end in raw text.
fn text() -> impl Strategy<Value = String> {
    "[ -~\n\té你\"'\\\\]{0,24}".prop_filter("another format's end", |text| !text.contains("</") && !text.contains("<|"))
}

/// Numbers that any reader takes for the same.
fn fraction() -> impl Strategy<Value = f64> {
    any::<i32>().prop_map(|eighths| f64::from(eighths) / 8.0)
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        text().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        fraction().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn arguments() -> impl Strategy<Value = Map<String, Value>> {
    let list = prop::collection::vec(json_value(), 0..4).prop_map(Value::from);
    let map = prop::collection::btree_map("[a-z_]{1,6}", json_value(), 0..4);
    let map = map.prop_map(|map| Value::Object(map.into_iter().collect()));
    let all = (text(), any::<i64>(), fraction(), any::<bool>(), list, map);
    (all, prop::collection::vec(any::<bool>(), 7)).prop_map(|((text, count, share, on, list, map), keep)| {
        let all =
            json!({"text": text, "count": count, "share": share, "on": on, "list": list, "map": map, "none": null});
        let Value::Object(all) = all else { return Map::new() };
        all.into_iter().zip(keep).filter(|(_, keep)| *keep).map(|(member, _)| member).collect()
    })
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let name = prop::sample::select(&["f", "get_weather", "math.add"][..]);
    let call = (name, arguments()).prop_map(|(name, arguments)| Call { name: name.into(), arguments });
    prop::collection::vec(call, 1..4)
}

fn answer(name: &str, setup: &Setup, pieces: &[Piece]) -> Answer {
    run(open(&[name], setup).expect("bundled"), pieces).expect("valid events")
}

fn read(answer: &Answer) -> Vec<Call> {
    let parse = |text: &str| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    answer.calls.iter().map(|call| Call { name: call.name.clone(), arguments: parse(&call.arguments) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn calls_survive(calls in calls(), format in prop::sample::select(FORMATS), size in 0..6usize) {
        let text = render(format, &calls).expect("a format");
        let (mut setup, markers) = (setup(), markers(format.0));
        for tokens in [false, true] {
            let pieces = if tokens {
                let (added, pieces) = with_tokens(&text, &markers, size);
                setup.added = added;
                pieces
            } else {
                cut(&text, size)
            };
            let answer = answer(format.0, &setup, &pieces);
            prop_assert_eq!(&read(&answer), &calls, "{:?} tokens {}: {}", format, tokens, &text);
            prop_assert_eq!(answer.content.trim(), "", "{:?} tokens {}: {}", format, tokens, &text);
            prop_assert!(answer.calls.iter().all(|call| call.complete == Some(true)));
        }
    }

    /// What was sent of a cut output is a beginning of what the whole gives, and says so.
    #[test]
    fn every_prefix_is_handled(calls in calls(), format in prop::sample::select(FORMATS), at in any::<prop::sample::Index>()) {
        let text = render(format, &calls).expect("a format");
        let whole = answer(format.0, &setup(), &cut(&text, 0));
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let prefix = &text[..ends[at.index(ends.len())]];
        let chain = open(&[format.0], &setup()).expect("bundled");
        let part = run_until(chain, &cut(prefix, 3), &EndReason::Length).expect("valid events");
        prop_assert!(part.calls.len() <= whole.calls.len(), "{:?}: {}", format, prefix);
        for (part, whole) in part.calls.iter().zip(&whole.calls) {
            prop_assert_eq!(&part.name, &whole.name);
            prop_assert!(whole.arguments.starts_with(&part.arguments), "{} of {}", &part.arguments, &whole.arguments);
            let whole = part.arguments == whole.arguments;
            prop_assert!(part.complete == Some(false) || whole, "{:?} of {}", part, prefix);
        }
    }
}

/// Text on both sides of calls is content, in order.
#[test]
fn text_around_calls_is_content() {
    let calls =
        [Call { name: "f".into(), arguments: Map::new() }, Call { name: "get_weather".into(), arguments: Map::new() }];
    for format in FORMATS {
        let text = render(*format, &calls).expect("a format");
        // What stands alone must be the first thing of an answer.
        let alone = matches!(format, ("pythonic", _) | ("llama3_json", ""));
        let before = if alone || format.0 == "gpt_oss" { "" } else { "One moment. " };
        let after = if format.0 == "gpt_oss" { "<|start|>assistant<|channel|>final<|message|>Done." } else { " Done." };
        for size in [0, 1, 3] {
            let answer = answer(format.0, &setup(), &cut(&format!("{before}{text}{after}"), size));
            assert_eq!(read(&answer), calls, "{format:?}");
            let words: Vec<&str> = answer.content.split_whitespace().collect();
            assert_eq!(words.join(" "), format!("{before}Done."), "{format:?}");
        }
    }
}

/// A name without arguments is a call with none.
#[test]
fn calls_without_arguments_have_empty_ones() {
    let empty = [
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|><|tool_call_end|>"),
        ("glm45", "<tool_call>f\n</tool_call>"),
        ("gpt_oss", "<|channel|>commentary to=functions.f<|message|><|call|>"),
        (
            "deepseek_v31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        ("hermes", "<tool_call>{\"name\": \"f\"}</tool_call>"),
    ];
    for (name, text) in empty {
        let answer = answer(name, &setup(), &cut(text, 2));
        assert_eq!((answer.calls.len(), answer.content.as_str()), (1, ""), "{name}");
        assert_eq!((answer.calls[0].arguments.as_str(), answer.calls[0].complete), ("{}", Some(true)), "{name}");
    }
}

/// Ids that the model writes go to the client.
#[test]
fn ids_are_passed_on() {
    let kimi = "<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{}<|tool_call_end|>";
    assert_eq!(answer("kimi_k2", &setup(), &cut(kimi, 1)).calls[0].id.as_deref(), Some("functions.f:7"));
    let mistral = "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{}";
    let answer = answer("mistral", &setup(), &cut(mistral, 1));
    assert_eq!((answer.calls[0].id.as_deref(), answer.calls[0].name.as_str()), (Some("a1b2c3d4e"), "f"));
}
