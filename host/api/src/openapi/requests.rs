//! Schemas of request bodies. A JSON `null` counts as an absent field everywhere.

use serde_json::{Map, Value, json};

use crate::auth::TENANT_BYTES_MAX;
use crate::wire::abort::REQUEST_ID_BYTES_MAX;
use crate::wire::common::{
    CACHE_SALT_BYTES_MAX, CHOICES_MAX, LOGIT_BIAS_MAX, MODEL_BYTES_MAX, STOP_BYTES_MAX, STOP_STRINGS_MAX,
    STOP_TOKENS_MAX, TOP_LOGPROBS_MAX,
};
use crate::wire::embeddings::{DIMENSIONS_MAX, INPUTS_MAX};
use crate::wire::tools::{TOOL_NAME_BYTES_MAX, TOOLS_MAX};

type Properties = Vec<(&'static str, Value)>;

pub fn schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    let mut add = |name: &str, schema| schemas.insert(name.to_owned(), schema);
    add("ChatRequest", object(&["messages"], [chat_own(), prompt(), common()].concat()));
    add("CompletionRequest", object(&["prompt"], [completion(), common()].concat()));
    add("EmbeddingsRequest", object(&["input"], embeddings()));
    add("ResponsesRequest", object(&["input"], [responses(), handed_on()].concat()));
    add("MessagesRequest", object(&["messages", "max_tokens"], [messages(), handed_on()].concat()));
    add("CountTokensRequest", object(&["messages"], messages()));
    add("TokenizeRequest", tokenize());
    let tokens = vec![("model", model()), ("tokens", token_ids(1 << 20))];
    add("DetokenizeRequest", object(&["tokens"], tokens));
    add("ParseRequest", parse());
    add("AbortRequest", object(&["request_id"], vec![("request_id", text(REQUEST_ID_BYTES_MAX))]));
    add("Tool", tool());
    add("ChatMessage", chat_message());
    schemas
}

fn object(required: &[&str], properties: Properties) -> Value {
    let properties: Map<String, Value> = properties.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

/// `schema`, or null.
fn or_null(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

fn flag() -> Value {
    json!({"type": ["boolean", "null"]})
}

fn number(minimum: f64, maximum: f64) -> Value {
    json!({"type": ["number", "null"], "minimum": minimum, "maximum": maximum})
}

fn integer(minimum: i64, maximum: i64) -> Value {
    json!({"type": ["integer", "null"], "minimum": minimum, "maximum": maximum})
}

fn text(bytes_max: usize) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": bytes_max})
}

fn list(items: Value, entries_max: usize) -> Value {
    json!({"type": "array", "items": items, "maxItems": entries_max})
}

fn token_ids(entries_max: usize) -> Value {
    list(json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}), entries_max)
}

fn model() -> Value {
    or_null(text(MODEL_BYTES_MAX))
}

fn any_object() -> Value {
    json!({"type": ["object", "null"]})
}

fn tools() -> Value {
    or_null(list(json!({"$ref": "#/components/schemas/Tool"}), TOOLS_MAX))
}

fn chat_messages() -> Value {
    json!({"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/ChatMessage"}})
}

/// What chat and text completions share.
fn common() -> Properties {
    let stop = text(STOP_BYTES_MAX);
    vec![
        ("model", model()),
        ("n", integer(1, CHOICES_MAX.into())),
        ("stream", flag()),
        ("stream_options", any_object()),
        ("return_token_ids", flag()),
        ("prompt_logprobs", json!({"type": ["integer", "boolean", "null"], "minimum": 0, "maximum": TOP_LOGPROBS_MAX})),
        ("user", or_null(text(TENANT_BYTES_MAX))),
        ("priority", integer(i32::MIN.into(), i32::MAX.into())),
        ("cache_salt", or_null(text(CACHE_SALT_BYTES_MAX))),
        ("temperature", number(0.0, 2.0)),
        ("top_p", number(0.0, 1.0)),
        ("top_k", integer(-1, i32::MAX.into())),
        ("min_p", number(0.0, 1.0)),
        ("presence_penalty", number(-2.0, 2.0)),
        ("frequency_penalty", number(-2.0, 2.0)),
        ("repetition_penalty", number(0.01, 10.0)),
        ("seed", json!({"type": ["integer", "null"]})),
        ("logit_bias", json!({"type": ["object", "null"], "maxProperties": LOGIT_BIAS_MAX})),
        ("max_tokens", integer(1, u32::MAX.into())),
        ("max_completion_tokens", integer(1, u32::MAX.into())),
        ("min_tokens", integer(0, u32::MAX.into())),
        ("ignore_eos", flag()),
        ("stop", json!({"anyOf": [stop, list(stop.clone(), STOP_STRINGS_MAX), {"type": "null"}]})),
        ("stop_token_ids", or_null(token_ids(STOP_TOKENS_MAX))),
        ("include_stop_str_in_output", flag()),
        ("skip_special_tokens", flag()),
        ("response_format", any_object()),
        ("structured_outputs", any_object()),
        ("guided_json", json!({})),
        ("guided_json_object", flag()),
        ("guided_regex", json!({"type": ["string", "null"]})),
        ("guided_choice", or_null(list(json!({"type": "string"}), 4096))),
        ("guided_grammar", json!({"type": ["string", "null"]})),
        ("json_schema", json!({})),
        ("regex", json!({"type": ["string", "null"]})),
        ("ebnf", json!({"type": ["string", "null"]})),
        ("grammar", json!({"type": ["string", "null"]})),
        ("structural_tag", json!({})),
    ]
}

/// What becomes the prompt of a chat.
fn prompt() -> Properties {
    let budget = || integer(-1, u32::MAX.into());
    vec![
        ("messages", chat_messages()),
        ("tools", tools()),
        ("tool_choice", json!({"type": ["string", "object", "null"]})),
        ("parallel_tool_calls", flag()),
        ("documents", or_null(list(json!({"type": "object"}), 1024))),
        ("chat_template_kwargs", any_object()),
        ("add_generation_prompt", flag()),
        ("continue_final_message", flag()),
        ("reasoning_effort", json!({"type": ["string", "null"], "maxLength": 32})),
        ("enable_thinking", flag()),
        ("include_reasoning", flag()),
        ("reasoning", any_object()),
        ("thinking", any_object()),
        ("thinking_token_budget", budget()),
        ("thinking_budget", budget()),
        ("thinking_budget_tokens", budget()),
        ("reasoning_budget_tokens", budget()),
    ]
}

fn chat_own() -> Properties {
    vec![("logprobs", flag()), ("top_logprobs", integer(0, TOP_LOGPROBS_MAX))]
}

fn completion() -> Properties {
    let one = json!({"type": "string"});
    let ids = token_ids(1 << 20);
    let batch = list(json!({"anyOf": [one, ids]}), CHOICES_MAX as usize);
    vec![
        ("prompt", json!({"anyOf": [one, ids, batch]})),
        ("logprobs", integer(0, TOP_LOGPROBS_MAX)),
        ("add_special_tokens", flag()),
        ("echo", flag()),
    ]
}

fn embeddings() -> Properties {
    let one = json!({"type": "string"});
    let ids = token_ids(1 << 20);
    let batch = list(json!({"anyOf": [one, ids]}), INPUTS_MAX);
    vec![
        ("model", model()),
        ("input", json!({"anyOf": [one, ids, batch]})),
        ("dimensions", integer(1, DIMENSIONS_MAX.into())),
        ("encoding_format", json!({"enum": ["float", "base64", null]})),
        ("pooling", json!({"enum": ["last", "mean", null]})),
        ("normalize", flag()),
        ("add_special_tokens", flag()),
        ("user", or_null(text(TENANT_BYTES_MAX))),
    ]
}

/// Fields that the APIs in another shape read as a chat request does.
fn handed_on() -> Properties {
    let names =
        ["model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "user", "min_tokens", "ignore_eos"];
    common().into_iter().filter(|(name, _)| names.contains(name)).collect()
}

fn responses() -> Properties {
    let items = list(json!({"type": "object"}), 16_384);
    vec![
        ("input", json!({"anyOf": [{"type": "string"}, items]})),
        ("instructions", json!({"type": ["string", "null"]})),
        ("previous_response_id", or_null(text(128))),
        ("store", flag()),
        ("background", json!({"enum": [false, null]})),
        ("truncation", json!({"enum": ["disabled", null]})),
        ("n", integer(1, 1)),
        ("max_output_tokens", integer(1, u32::MAX.into())),
        ("max_tool_calls", integer(0, u32::MAX.into())),
        ("stream_options", any_object()),
        ("metadata", any_object()),
        ("reasoning", any_object()),
        ("text", any_object()),
        ("tools", or_null(list(json!({"type": "object"}), TOOLS_MAX))),
        ("tool_choice", json!({"type": ["string", "object", "null"]})),
        ("parallel_tool_calls", flag()),
        ("include", or_null(list(json!({"type": "string"}), 32))),
        ("top_logprobs", integer(0, TOP_LOGPROBS_MAX)),
        // Read only to say what to use instead.
        ("conversation", json!({"type": "null"})),
        ("prompt", json!({"type": "null"})),
        ("messages", json!({"type": "null"})),
        ("max_tokens", json!({"type": "null"})),
        ("max_completion_tokens", json!({"type": "null"})),
    ]
}

fn messages() -> Properties {
    let content = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]});
    let message = json!({
        "type": "object", "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant"]}, "content": content},
    });
    let name = json!({"type": "string", "minLength": 1, "maxLength": TOOL_NAME_BYTES_MAX});
    let tool = json!({
        "type": "object", "required": ["name"], "properties": {"name": name, "input_schema": {"type": "object"}},
    });
    vec![
        ("model", model()),
        ("messages", json!({"type": "array", "minItems": 1, "items": message})),
        ("system", or_null(content)),
        ("max_tokens", json!({"type": "integer", "minimum": 1, "maximum": u32::MAX})),
        ("stop_sequences", or_null(list(text(STOP_BYTES_MAX), STOP_STRINGS_MAX))),
        ("tools", or_null(list(tool, TOOLS_MAX))),
        ("tool_choice", any_object()),
        ("thinking", any_object()),
        ("output_config", any_object()),
        ("output_format", any_object()),
        ("chat_template_kwargs", any_object()),
        ("n", integer(1, 1)),
        ("mcp_servers", or_null(list(json!({}), 0))),
        ("container", json!({"type": "null"})),
    ]
}

fn tokenize() -> Value {
    let own = vec![
        ("model", model()),
        ("prompt", json!({"type": ["string", "null"]})),
        ("add_special_tokens", flag()),
        ("return_token_strs", flag()),
    ];
    let mut schema = object(&[], [own, prompt()].concat());
    schema["anyOf"] = json!([{"required": ["prompt"]}, {"required": ["messages"]}]);
    schema
}

fn parse() -> Value {
    let own = vec![
        ("model", model()),
        ("text", json!({"type": ["string", "null"]})),
        ("tokens", or_null(token_ids(1 << 20))),
        ("prompt_prefix", json!({"type": ["string", "null"]})),
        ("finish_reason", json!({"enum": ["stop", "length", null]})),
        ("steps", flag()),
    ];
    let mut schema = object(&[], [own, prompt()].concat());
    schema["anyOf"] = json!([{"required": ["text"]}, {"required": ["tokens"]}]);
    schema
}

fn tool() -> Value {
    let name = json!({"type": "string", "minLength": 1, "maxLength": TOOL_NAME_BYTES_MAX});
    let function = json!({
        "type": "object", "required": ["name"],
        "properties": {
            "name": name, "description": {"type": ["string", "null"]}, "parameters": {"type": ["object", "null"]},
            "strict": {"type": ["boolean", "null"]},
        },
    });
    json!({"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"}, "function": function}})
}

fn chat_message() -> Value {
    let part = json!({
        "type": "object", "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    });
    let content = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": part}]});
    let text = json!({"type": ["string", "null"]});
    let said = json!({
        "type": "object", "required": ["role", "content"],
        "properties": {"role": {"enum": ["system", "developer", "user", "tool", "function"]}, "content": content},
    });
    let answered = json!({
        "type": "object", "required": ["role"],
        "properties": {
            "role": {"const": "assistant"}, "content": or_null(content), "reasoning": text, "reasoning_content": text,
            "tool_calls": {"type": ["array", "null"], "items": {
                "type": "object", "required": ["function"],
                "properties": {"id": text, "function": {
                    "type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string"}, "arguments": {"type": ["string", "object", "null"]}},
                }},
            }},
        },
    });
    json!({"anyOf": [said, answered]})
}
