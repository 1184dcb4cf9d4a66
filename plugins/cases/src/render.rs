//! Tool calls as the models of each format write them: the other direction, for tests and for scoring parsers.

use serde_json::{Map, Value};

/// A call to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub name: String,
    pub arguments: Map<String, Value>,
}

/// The formats that can be written: a stage's name, and a word for the form where a stage knows several.
pub const FORMATS: &[(&str, &str)] = &[
    ("hermes", ""),
    ("qwen3_coder", ""),
    ("llama3_json", ""),
    ("llama3_json", "tag"),
    ("pythonic", ""),
    ("llama4_pythonic", "tags"),
    ("olmo3", "lines"),
    ("lfm2", "lfm"),
    ("mistral", "list"),
    ("mistral", "v11"),
    ("deepseek_v3", ""),
    ("deepseek_v31", ""),
    ("deepseek_v32", ""),
    ("glm45", ""),
    ("glm47", "dense"),
    ("kimi_k2", ""),
    ("minimax_m2", ""),
    ("gpt_oss", ""),
    ("granite", "list"),
    ("granite", "tags"),
    ("phi4_mini_json", ""),
    ("gemma4", ""),
    ("seed_oss", ""),
];

/// The calls in a format. `None`: there is no such format.
pub fn render(format: (&str, &str), calls: &[Call]) -> Option<String> {
    let each = |write: &dyn Fn(&Call) -> String| calls.iter().map(write).collect::<Vec<_>>();
    let object = |key: &'static str| {
        move |call: &Call| format!("{{\"name\": {}, \"{key}\": {}}}", quoted(&call.name), json(&call.arguments))
    };
    let list = || format!("[{}]", each(&object("arguments")).join(", "));
    let arguments = |call: &Call| json(&call.arguments);
    Some(match format {
        ("hermes", _) | ("granite", "tags") => {
            each(&|call| format!("<tool_call>\n{}\n</tool_call>", object("arguments")(call))).join("\n")
        }
        ("granite", _) => format!("<|tool_call|>{}", list()),
        ("phi4_mini_json", _) => format!("functools{}", list()),
        ("mistral", "list") => format!("[TOOL_CALLS] {}", list()),
        ("mistral", _) => each(&|call| format!("[TOOL_CALLS]{}[ARGS]{}", call.name, arguments(call))).concat(),
        ("llama3_json", "tag") => format!("<|python_tag|>{}", each(&object("parameters")).join("; ")),
        ("llama3_json", _) => each(&object("parameters")).join("; "),
        ("pythonic", _) => format!("[{}]", each(&python_call).join(", ")),
        ("llama4_pythonic", _) => format!("<|python_start|>[{}]<|python_end|>", each(&python_call).join(", ")),
        ("lfm2", _) => format!("<|tool_call_start|>[{}]<|tool_call_end|>", each(&python_call).join(", ")),
        ("olmo3", _) => format!("<function_calls>\n{}\n</function_calls>", each(&python_call).join("\n")),
        ("qwen3_coder", _) => each(&|call| tagged(call, "<tool_call>", "</tool_call>")).join("\n"),
        ("seed_oss", _) => each(&|call| tagged(call, "<seed:tool_call>", "</seed:tool_call>")).join("\n"),
        ("deepseek_v3", _) => {
            deepseek(&each(&|call| format!("function<｜tool▁sep｜>{}\n```json\n{}\n```", call.name, arguments(call))))
        }
        ("deepseek_v31", _) => deepseek(&each(&|call| format!("{}<｜tool▁sep｜>{}", call.name, arguments(call)))),
        ("deepseek_v32", _) => {
            format!("<｜DSML｜function_calls>\n{}</｜DSML｜function_calls>", each(&dsml_call).concat())
        }
        ("minimax_m2", _) => format!("<minimax:tool_call>\n{}</minimax:tool_call>", each(&invoke).concat()),
        ("glm45", _) => each(&|call| glm_call(call, "\n")).join("\n"),
        ("glm47", _) => each(&|call| glm_call(call, "")).concat(),
        ("kimi_k2", _) => kimi(calls),
        ("gpt_oss", _) => each(&|call| {
            let name = &call.name;
            format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{}<|call|>", arguments(call))
        })
        .join("<|start|>assistant"),
        ("gemma4", _) => {
            each(&|call| format!("<|tool_call>call:{}{}<tool_call|>", call.name, gemma_map(&call.arguments))).concat()
        }
        _ => return None,
    })
}

/// JSON as Python's `json.dumps(…, ensure_ascii=False)` spaces it, which the chat templates use.
pub fn json(arguments: &Map<String, Value>) -> String {
    spaced(&Value::Object(arguments.clone()))
}

fn spaced(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let members = map.iter().map(|(key, value)| format!("{}: {}", quoted(key), spaced(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A value where the tags carry no type: text as it is, anything else as JSON.
fn raw(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => spaced(other),
    }
}

fn tagged(call: &Call, open: &str, close: &str) -> String {
    let parameter = |(key, value): (&String, &Value)| format!("<parameter={key}>\n{}\n</parameter>\n", raw(value));
    let parameters: String = call.arguments.iter().map(parameter).collect();
    format!("{open}\n<function={}>\n{parameters}</function>\n{close}", call.name)
}

fn invoke(call: &Call) -> String {
    let parameter = |(key, value): (&String, &Value)| format!("<parameter name=\"{key}\">{}</parameter>\n", raw(value));
    let parameters: String = call.arguments.iter().map(parameter).collect();
    format!("<invoke name=\"{}\">\n{parameters}</invoke>\n", call.name)
}

fn dsml_call(call: &Call) -> String {
    let parameter = |(key, value): (&String, &Value)| {
        let string = value.is_string();
        format!("<｜DSML｜parameter name=\"{key}\" string=\"{string}\">{}</｜DSML｜parameter>\n", raw(value))
    };
    let parameters: String = call.arguments.iter().map(parameter).collect();
    format!("<｜DSML｜invoke name=\"{}\">\n{parameters}</｜DSML｜invoke>\n", call.name)
}

fn deepseek(calls: &[String]) -> String {
    let calls: Vec<String> =
        calls.iter().map(|call| format!("<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>")).collect();
    format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", calls.join("\n"))
}

fn glm_call(call: &Call, newline: &str) -> String {
    let argument = |(key, value): (&String, &Value)| {
        format!("<arg_key>{key}</arg_key>{newline}<arg_value>{}</arg_value>{newline}", raw(value))
    };
    let arguments: String = call.arguments.iter().map(argument).collect();
    format!("<tool_call>{}{newline}{arguments}</tool_call>", call.name)
}

fn kimi(calls: &[Call]) -> String {
    let call = |(index, call): (usize, &Call)| {
        let (name, arguments) = (&call.name, json(&call.arguments));
        format!("<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>")
    };
    let calls: String = calls.iter().enumerate().map(call).collect();
    format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
}

fn python_call(call: &Call) -> String {
    let arguments = call.arguments.iter().map(|(key, value)| format!("{key}={}", python(value)));
    format!("{}({})", call.name, arguments.collect::<Vec<_>>().join(", "))
}

/// A value as Python's `repr` has it.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_text(text),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let members = map.iter().map(|(key, value)| format!("{}: {}", python_text(key), python(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
    }
}

fn python_text(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => format!("[{}]", items.iter().map(gemma).collect::<Vec<_>>().join(",")),
        Value::Object(map) => gemma_map(map),
        other => other.to_string(),
    }
}

fn gemma_map(map: &Map<String, Value>) -> String {
    let members = map.iter().map(|(key, value)| format!("{key}:{}", gemma(value)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}
