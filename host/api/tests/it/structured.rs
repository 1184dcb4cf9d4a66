//! Structured output over HTTP: forms, refusals, and calls that must come.

use serde_json::{Value, json};

use crate::fixture::{Setup, Stream, TestServer, hi, serve, server};

fn tool(name: &str, strict: bool) -> Value {
    json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false
    }}})
}

fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// `text` scripted and constrained: the content, or the position at which the grammar refused it.
async fn said(text: &str, form: &Value) -> Result<String, String> {
    let server = server(json!({"text": text, "finish": "stop"}));
    let answer = server.post("/v1/chat/completions", &hi(form.clone())).await;
    if answer.status == 200 {
        let content = answer.json()["choices"][0]["message"]["content"].as_str().map(str::to_owned);
        let mut streamed = hi(form.clone());
        streamed["stream"] = json!(true);
        let stream = Stream::read(&server.post("/v1/chat/completions", &streamed).await);
        assert_eq!(content.as_deref(), Some(stream.text(0, "content").as_str()));
        return Ok(content.unwrap_or_default());
    }
    assert_eq!(answer.error_code(), "script_violates_grammar", "{}", answer.body);
    Err(answer.error_message())
}

async fn check(form: Value, yes: &[&str], no: &[(&str, u32)]) {
    for text in yes {
        assert_eq!(said(text, &form).await.as_deref(), Ok(*text), "{form}");
    }
    for (text, position) in no {
        let message = said(text, &form).await.expect_err(text);
        assert!(message.contains(&format!("token {position} of the script")), "{form} {text}: {message}");
    }
}

/// Each form, in a text that keeps to it and in one that breaks it at a known token.
#[tokio::test]
async fn every_form_is_enforced() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let format = |format: Value| json!({"response_format": format});
    check(format(json!({"type": "json_object"})), &["{\"x\": [1]}"], &[("[1]", 0), ("{1}", 1)]).await;
    let strict = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
    check(format(strict), &["{\"a\":12}"], &[("{\"b\":1}", 2), ("{\"a\":\"\"}", 5), ("{\"a\":1", 6)]).await;
    check(json!({"guided_json": schema}), &["{\"a\":1}"], &[("{}", 1)]).await;
    check(json!({"guided_regex": "[ab]{2}"}), &["ab"], &[("ac", 1), ("aba", 2)]).await;
    check(json!({"guided_choice": ["yes", "no"]}), &["no"], &[("nay", 1)]).await;
    check(json!({"structured_outputs": {"grammar": "start: \"a\" \"b\"*"}}), &["abb"], &[("ba", 0)]).await;
    let tag = json!({"type": "structural_tag", "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f>"]});
    check(format(tag), &["so: <f>{\"a\":1}</f>."], &[("<f>{}</f>", 4)]).await;
}

/// A stop at the length limit is not an end: nothing is repaired.
#[tokio::test]
async fn a_cut_answer_stays_cut() {
    let server = server(json!({"text": "{\"a\": 1}", "finish": "stop"}));
    let answer = server.chat(json!({"response_format": {"type": "json_object"}, "max_tokens": 4})).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("{\"a\""), &json!("length")));
}

async fn refused(server: &TestServer, fields: Value, code: &str, param: &str, part: &str) {
    let answer = server.post("/v1/chat/completions", &hi(fields.clone())).await;
    let error = answer.json()["error"].clone();
    assert_eq!(
        (answer.status.as_u16(), &error["code"], &error["param"]),
        (400, &json!(code), &json!(param)),
        "{fields}: {error}"
    );
    assert!(error["message"].as_str().is_some_and(|message| message.contains(part)), "{error}");
}

/// A constraint that cannot be enforced is never ignored: a 400 says where the reason lies.
#[tokio::test]
async fn refusals_name_the_place() {
    let server = server(json!({"text": "x"}));
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
    let at = "response_format.json_schema.schema";
    let nested = schema(json!({"properties": {"a": {"items": {"uniqueItems": true}}}}));
    refused(&server, nested, "invalid_schema", at, "at `/properties/a/items`, keyword `uniqueItems`").await;
    let pattern = schema(json!({"properties": {"a": {"type": "string", "pattern": "(?!x)"}}}));
    refused(&server, pattern, "invalid_schema", at, "at `/properties/a`, keyword `pattern`").await;
    refused(
        &server,
        json!({"guided_grammar": "root ::= \"a\""}),
        "invalid_grammar",
        "guided_grammar",
        "write the grammar in Lark",
    )
    .await;
    refused(&server, json!({"guided_regex": "("}), "invalid_grammar", "guided_regex", "guided_regex").await;
    let both = json!({"guided_regex": "a", "response_format": {"type": "json_object"}});
    refused(&server, both, "invalid_value", "guided_regex", "cannot be combined with response_format").await;
    let tools =
        json!({"tools": [tool("f", false)], "tool_choice": "required", "response_format": {"type": "json_object"}});
    refused(&server, tools, "invalid_value", "response_format", "cannot be combined with a tool_choice").await;
    let mut strict = tool("f", true);
    strict["function"]["parameters"]["properties"]["city"] = json!({"type": "array", "uniqueItems": true});
    let param = "tools[0].function.parameters";
    refused(
        &server,
        json!({"tools": [strict]}),
        "invalid_schema",
        param,
        "at `/properties/city`, keyword `uniqueItems`",
    )
    .await;
}

/// `strict: false` lets the rest of a schema be enforced, with a warning.
#[tokio::test]
async fn lenient_schemas_warn() {
    let server = server(json!({"text": "[1,1]", "finish": "stop"}));
    let schema = json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true});
    let fields = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": false, "schema": schema}}});
    let answer = server.post("/v1/chat/completions", &hi(fields)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let warning = answer.headers["x-tokenloom-warning"].to_str().expect("ASCII");
    assert!(warning.contains("`uniqueItems` cannot be enforced"), "{warning}");
}

/// With tools that may be called, a form binds the content alone.
#[tokio::test]
async fn a_form_beside_tools_binds_content_only() {
    let form = json!({"tools": [tool("f", false)], "response_format": {"type": "json_object"}});
    check(form.clone(), &["{\"a\": 1}"], &[("plain", 0)]).await;
    let server = server(json!({"text": call("f", "{\"city\": \"Oslo\"}"), "finish": "stop"}));
    let choice = server.chat(form).await["choices"][0].clone();
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["tool_calls"][0]["function"]["name"]),
        (&json!("tool_calls"), &json!("f"))
    );
}

/// Strict tools hold their schema where a call comes, and free text stays free.
#[tokio::test]
async fn strict_tools() {
    let tools = json!({"tools": [tool("f", true)]});
    let good = server(json!({"text": format!("Let me see. {}", call("f", "{\"city\": \"Oslo\"}")), "finish": "stop"}));
    let choice = good.chat(tools.clone()).await["choices"][0].clone();
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!("Let me see."), &json!("tool_calls"))
    );
    let bad = server(json!({"text": call("f", "{\"town\": 1}"), "finish": "stop"}));
    let answer = bad.post("/v1/chat/completions", &hi(tools)).await;
    assert_eq!(answer.error_code(), "script_violates_grammar");
}

/// A named function, and allowed ones of which one is required, exclude the others.
#[tokio::test]
async fn the_choice_is_enforced() {
    let server = server(json!({"text": call("g", "{\"city\": \"Oslo\"}"), "finish": "stop"}));
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let allowed =
        |name: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named(name)]}});
    let ask = |choice: Value| json!({"tools": [tool("f", false), tool("g", false)], "tool_choice": choice});
    assert_eq!(server.chat(ask(named("g"))).await["choices"][0]["finish_reason"], "stop");
    assert_eq!(server.chat(ask(allowed("g"))).await["choices"][0]["finish_reason"], "tool_calls");
    for choice in [named("f"), allowed("f")] {
        let answer = server.post("/v1/chat/completions", &hi(ask(choice))).await;
        assert_eq!(answer.error_code(), "script_violates_grammar");
    }
}

/// Without a grammar too, the answer ends with its first call when one is all that is wanted.
#[tokio::test]
async fn one_call_at_most() {
    let two = format!("{}\n{} tail", call("f", "{\"city\": \"A\"}"), call("f", "{\"city\": \"B\"}"));
    let server = serve(json!({"responses": [{"text": two, "finish": "length"}]}), Setup::default());
    let one = json!({"tools": [tool("f", false)], "parallel_tool_calls": false});
    let choice = server.chat(one.clone()).await["choices"][0].clone();
    assert_eq!(
        (choice["message"]["tool_calls"].as_array().map(Vec::len), &choice["finish_reason"]),
        (Some(1), &json!("tool_calls"))
    );
    let stream = server.stream(one).await;
    assert_eq!((stream.calls(0).len(), stream.finish_reason(0).as_str()), (1, "tool_calls"));
    let both = server.chat(json!({"tools": [tool("f", false)]})).await;
    assert_eq!(both["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len), Some(2));
}

/// The least length holds back stop strings as it does stop tokens.
#[tokio::test]
async fn min_tokens_holds_back_stop_strings() {
    let server = server(json!({"tokens": ["a", "END", "b", "END", "c"], "finish": "stop"}));
    let text = async |fields: Value| server.chat(fields).await["choices"][0]["message"]["content"].clone();
    assert_eq!(text(json!({"stop": ["END"]})).await, "a");
    assert_eq!(text(json!({"stop": ["END"], "min_tokens": 2})).await, "a");
    assert_eq!(text(json!({"stop": ["END"], "min_tokens": 3})).await, "aENDb");
}

/// Text completions take the same forms.
#[tokio::test]
async fn completions_take_forms() {
    let server = server(json!({"text": "12", "finish": "stop"}));
    let ask = |regex: &str| json!({"prompt": "n:", "guided_regex": regex});
    let answer = server.post("/v1/completions", &ask("[0-9]+")).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["choices"][0]["text"]), (200, &json!("12")));
    assert_eq!(server.post("/v1/completions", &ask("[a-z]+")).await.error_code(), "script_violates_grammar");
}
