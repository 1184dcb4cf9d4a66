//! What is refused, and with which words.

use serde_json::{Value, json};

use super::common::{CHOICES_MAX, STOP_STRINGS_MAX};
use super::completion::Prompt;
use super::{decode_chat, decode_completion};
use crate::error::MESSAGE_BYTES_MAX;

/// `field` with `value` beside a valid chat request.
fn chat_with(field: &str, value: Value) -> Vec<u8> {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body[field] = value;
    body.to_string().into_bytes()
}

/// Checks `param`, `code` and the whole text of the error of a chat request.
fn refused(field: &str, value: Value, param: &str, code: &str, message: &str) {
    let error = decode_chat(&chat_with(field, value.clone())).expect_err(&format!("{field}: {value}"));
    assert_eq!(error.status(), 400, "{field}: {value}");
    assert_eq!(error.param.as_deref(), Some(param), "{field}: {value}");
    assert_eq!(error.body()["error"]["code"], code, "{field}: {value}: {error}");
    assert_eq!(error.message, format!("{param}: {message}"));
}

fn invalid(field: &str, value: Value, message: &str) {
    refused(field, value, field, "invalid_value", message);
}

/// Every error names the field, the limit and the value.
#[test]
fn numbers_out_of_range() {
    invalid("temperature", json!(-0.1), "must be a number from 0 to 2, not -0.1");
    invalid("temperature", json!(2.5), "must be a number from 0 to 2, not 2.5");
    invalid("top_p", json!(1.5), "must be a number from 0 to 1, not 1.5");
    invalid("min_p", json!(-1), "must be a number from 0 to 1, not -1");
    invalid("top_k", json!(-2), "must be a whole number from -1 to 2147483647, not -2");
    invalid("presence_penalty", json!(3), "must be a number from -2 to 2, not 3");
    invalid("frequency_penalty", json!(-3), "must be a number from -2 to 2, not -3");
    invalid("repetition_penalty", json!(0), "must be a number from 0.01 to 10, not 0");
    invalid("max_tokens", json!(-1), "must be a whole number from 1 to 4294967295, not -1");
    invalid("max_completion_tokens", json!(0), "must be a whole number from 1 to 4294967295, not 0");
    invalid("min_tokens", json!(-5), "must be a whole number from 0 to 4294967295, not -5");
    invalid("n", json!(0), "must be a whole number from 1 to 128, not 0");
    invalid("n", json!(129), "must be a whole number from 1 to 128, not 129");
    invalid("n", json!(1.5), "must be a whole number from 1 to 128, not 1.5");
    invalid("priority", json!(1_u64 << 40), "must be a whole number from -2147483648 to 2147483647, not 1099511627776");
    invalid("seed", json!(0.5), "must be a whole number from -9223372036854775808 to 9223372036854775807, not 0.5");
    invalid("top_logprobs", json!(21), "must be a whole number from 0 to 20, not 21");
    invalid("top_logprobs", json!(2), "is 2, which needs \"logprobs\": true");
}

#[test]
fn wrong_types() {
    invalid("temperature", json!("hot"), "must be a number from 0 to 2, not the string \"hot\"");
    invalid("stream", json!("yes"), "must be true or false, not the string \"yes\"");
    invalid("model", json!(7), "must be a string, not 7");
    invalid("model", json!(""), "must not be an empty string");
    invalid("messages", json!({}), "must be an array, not an object of 0");
    invalid("messages", json!([]), "must have at least one message");
    invalid("stop", json!({"a": 1}), "must be a string or an array of strings, not an object of 1");
    invalid("logit_bias", json!([1]), "must be an object, not an array of 1");
    invalid("logit_bias", json!({"x": 1}), "a key must be a token id, not the string \"x\"");
    invalid("tools", json!("none"), "must be an array, not the string \"none\"");
    invalid("chat_template_kwargs", json!([]), "must be an object, not an array of 0");
    invalid("tool_choice", json!("required"), "needs tools to choose from");
    invalid("stop_token_ids", json!("2"), "must be an array, not the string \"2\"");
}

/// Entries of lists and objects are named by their path.
#[test]
fn paths_into_values() {
    let entry = |field, value, param: &str, message: &str| refused(field, value, param, "invalid_value", message);
    entry("stop", json!(["a", ""]), "stop[1]", "must not be an empty string");
    entry("stop_token_ids", json!([1, -2]), "stop_token_ids[1]", "must be a whole number from 0 to 4294967295, not -2");
    entry("logit_bias", json!({"5": 101}), "logit_bias.5", "must be a number from -100 to 100, not 101");
    entry("messages", json!(["hi"]), "messages[0]", "must be an object, not the string \"hi\"");
    let roles = "must be one of system, developer, user, assistant, tool, function, not the string \"robot\"";
    entry("messages", json!([{"role": "robot", "content": ""}]), "messages[0].role", roles);
    let kinds = "must be a string or an array of parts, not 5";
    entry("messages", json!([{"role": "user", "content": 5}]), "messages[0].content", kinds);
    let call = json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}]);
    let arguments = "messages[0].tool_calls[0].function.arguments";
    entry("messages", call, arguments, "must be a string or an object, not 3");
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": "x"}}]);
    entry("tools", tool, "tools[0].function.parameters", "must be an object, not the string \"x\"");
    refused("messages", json!([{"role": "user"}]), "messages[0].content", "missing_field", "is required");
    refused("tools", json!([{"type": "function"}]), "tools[0].function", "missing_field", "is required");
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let text_only = "must be \"text\", not the string \"image_url\": this server reads text only";
    refused("messages", image, "messages[0].content[0].type", "unsupported_field", text_only);
}

#[test]
fn fields_that_contradict() {
    let both = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "max_completion_tokens": 6});
    let error = decode_chat(both.to_string().as_bytes()).expect_err("two limits");
    assert_eq!(error.message, "max_completion_tokens: is 6, but max_tokens is 5; they mean the same, send one of them");
    let order = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "min_tokens": 6});
    let error = decode_chat(order.to_string().as_bytes()).expect_err("min above max");
    assert_eq!(error.message, "min_tokens: is 6, above max_tokens, which is 5");
    invalid("stream_options", json!({"include_usage": true}), "is only allowed together with \"stream\": true");
    let not_assistant = "needs a last message of the role assistant, not user";
    invalid("continue_final_message", json!(true), not_assistant);
}

/// A field that would change the answer is never ignored; its neutral value is.
#[test]
fn known_but_unsupported() {
    let no = |field: &str, value, message: &str| refused(field, value, field, "unsupported_field", message);
    no("best_of", json!(2), "is not supported with 2: only 1 is accepted; use n");
    no("use_beam_search", json!(true), "is not supported with true: only false is accepted");
    for (field, value) in [
        ("response_format", json!({"type": "text"})),
        ("best_of", json!(1.0)),
        ("use_beam_search", json!(false)),
        ("guided_json", Value::Null),
        ("tool_choice", json!("none")),
    ] {
        let request = decode_chat(&chat_with(field, value)).expect(field);
        assert_eq!(request.common.ignored, super::foreign::Ignored::default(), "{field}");
    }
}

/// Everything that a known router adds by itself is accepted without a warning or with one, never refused.
#[test]
fn router_fields_are_tolerated() {
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "no_stop_trim": false, "ignore_eos": false,
        "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true,
        "stream_reasoning": true, "return_hidden_states": false, "include_reasoning": true, "logprobs": false,
        "tool_choice": "auto", "frobnicate": {"a": 1}
    });
    let request = decode_chat(body.to_string().as_bytes()).expect("tolerated");
    assert_eq!(request.common.ignored.foreign, ["stream_reasoning"]);
    assert_eq!(request.common.ignored.unknown, ["frobnicate"]);
    let error = request.common.ignored.check_strict().expect_err("strict mode");
    assert_eq!(error.message, "frobnicate: is not a known field of this request");
}

#[test]
fn bodies_that_are_no_request() {
    let error = |body: &[u8]| decode_chat(body).expect_err("no request");
    assert_eq!(error(b"[]").message, "the body must be a JSON object, not an array of 0");
    assert!(error(b"{\"messages\": [").message.starts_with("the body is not valid JSON: EOF while parsing"));
    assert!(error(b"{\"temperature\": NaN}").message.starts_with("the body is not valid JSON"));
    assert!(error(b"{\"temperature\": 1e999}").message.starts_with("the body is not valid JSON"));
    assert!(error(&[0xff, 0xfe]).message.starts_with("the body is not valid JSON"));
    assert!(error("[".repeat(100_000).as_bytes()).message.contains("recursion limit"));
    assert_eq!(error(b"{}").message, "messages: is required");
}

/// However large or odd the bad value, the error stays small.
#[test]
fn errors_do_not_amplify() {
    let values = [json!("x".repeat(1 << 20)), json!(vec!["y"; 10_000]), json!("\u{1F336}".repeat(10_000))];
    for value in values {
        for field in ["temperature", "stop", "tools", "messages", "tool_choice", "model", "logit_bias", "n"] {
            let error = decode_chat(&chat_with(field, value.clone())).expect_err(field);
            assert!(error.message.len() <= MESSAGE_BYTES_MAX, "{field}");
        }
    }
}

#[test]
fn good_values() {
    let body = json!({
        "model": "m", "messages": [{"role": "assistant", "reasoning": "r", "reasoning_content": "r"}],
        "temperature": 0, "top_p": 1, "top_k": -1, "seed": -1, "n": 2.0, "stop": "x", "stop_token_ids": [1],
        "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 3, "logit_bias": {"7": -100}, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": null}, "priority": -3,
        "reasoning_effort": "none", "tools": [], "parallel_tool_calls": false
    });
    let request = decode_chat(body.to_string().as_bytes()).expect("a good request");
    let common = &request.common;
    assert_eq!((common.n, common.priority, common.stream, common.include_usage), (2, -3, true, true));
    assert!(!common.continuous_usage);
    assert_eq!(common.wishes.seed, Some(u64::MAX));
    assert_eq!((common.wishes.top_k, common.wishes.logprobs), (Some(0), Some(3)));
    assert_eq!(common.wishes.logit_bias, [(7, -100.0)]);
    assert_eq!((common.ends.max_tokens, common.ends.max_tokens_field), (Some(9), "max_completion_tokens"));
    assert_eq!((&common.ends.stop[..], &common.ends.stop_tokens[..]), (&["x".to_owned()][..], &[1][..]));
    assert_eq!(request.prompt.kwargs["enable_thinking"], false);
    assert!(request.prompt.add_generation_prompt && !request.prompt.parallel_calls);
}

#[test]
fn prompts() {
    let prompts =
        |prompt: Value| decode_completion(json!({"prompt": prompt}).to_string().as_bytes()).map(|r| r.prompts);
    let text = |text: &str| Prompt::Text(text.to_owned());
    assert_eq!(prompts(json!("a")), Ok(vec![text("a")]));
    assert_eq!(prompts(json!(["a", "b"])), Ok(vec![text("a"), text("b")]));
    assert_eq!(prompts(json!([1, 2])), Ok(vec![Prompt::Tokens(vec![1, 2])]));
    assert_eq!(prompts(json!([[1], [2, 3]])), Ok(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]));
    let message = |prompt: Value| prompts(prompt).expect_err("refused").message;
    assert_eq!(message(json!([])), "prompt: must not be an empty array");
    assert_eq!(message(json!([[]])), "prompt[0]: must not be an empty array");
    assert_eq!(
        message(json!([1, "a"])),
        "prompt[1]: must be a whole number from 0 to 4294967295, not the string \"a\""
    );
    assert_eq!(message(json!(["a", 1])), "prompt[1]: must be a string or an array of token ids, not 1");
    assert_eq!(message(json!(vec!["a"; 129])), "prompt: must have at most 128 entries, not 129");
    let many = json!({"prompt": ["a", "b"], "n": CHOICES_MAX}).to_string();
    let error = decode_completion(many.as_bytes()).expect_err("too many sequences");
    assert_eq!(error.message, "n: 2 prompts times n = 128 is 256, above 128");
}

#[test]
fn stop_strings_have_a_limit() {
    let list = vec!["s"; STOP_STRINGS_MAX];
    assert!(decode_chat(&chat_with("stop", json!(list))).is_ok());
    invalid("stop", json!(vec!["s"; STOP_STRINGS_MAX + 1]), "must have at most 16 entries, not 17");
    invalid("stop", json!("s".repeat(1025)), "must be a string of at most 1024 bytes, not of 1025");
}

mod arbitrary {
    use proptest::prelude::*;

    use super::*;

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec(("[a-z_]{1,12}", inner), 0..6)
                    .prop_map(|rows| Value::Object(rows.into_iter().collect())),
            ]
        })
    }

    const FIELDS: &[&str] = &[
        "messages",
        "tools",
        "tool_choice",
        "stop",
        "logit_bias",
        "prompt",
        "stream_options",
        "n",
        "seed",
        "documents",
        "chat_template_kwargs",
        "stop_token_ids",
        "reasoning_effort",
        "response_format",
        "structured_outputs",
        "guided_choice",
        "thinking",
        "reasoning",
        "logprobs",
        "top_logprobs",
    ];

    proptest! {
        /// Any bytes, and any JSON under the names that are read, end in a request or a typed error.
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64),
                          rows in prop::collection::vec((prop::sample::select(FIELDS), json_value()), 0..5)) {
            let body = Value::Object(rows.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()).to_string();
            for bytes in [&bytes[..], body.as_bytes()] {
                for error in [decode_chat(bytes).err(), decode_completion(bytes).err()].into_iter().flatten() {
                    prop_assert!(error.status() == 400 && error.message.len() <= MESSAGE_BYTES_MAX);
                }
            }
        }
    }
}
