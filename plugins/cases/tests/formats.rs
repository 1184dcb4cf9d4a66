//! What is particular to a format, beyond its calls.

use cases::{Answer, Setup, cut, markers, open, run, with_tokens};

/// Every cutting, and the markers as tokens, must give the same: content, reasoning, and calls as `name{arguments}`.
fn check(name: &str, prefix: &str, text: &str, expected: (&str, &str, &[&str])) {
    let schema = "{\"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}";
    let tools = vec![("get_weather".to_string(), schema.to_string())];
    let mut setup = Setup { tools, turn_prefix: prefix.into(), added: Vec::new() };
    let compare = |answer: &Answer, how: &str| {
        let calls: Vec<String> = answer.calls.iter().map(|call| call.name.clone() + &call.arguments).collect();
        // White space next to a call does not count.
        let content = if calls.is_empty() { &answer.content } else { answer.content.trim() };
        let got = (content, answer.reasoning.as_str(), calls.iter().map(String::as_str).collect());
        assert_eq!(got, (expected.0, expected.1, expected.2.to_vec()), "{name} {how}: {text}");
    };
    for size in [0, 1, 2, 3, 5, 8] {
        let answer = run(open(&[name], &setup).expect("bundled"), &cut(text, size)).expect("valid events");
        compare(&answer, &format!("cut by {size}"));
    }
    let (added, pieces) = with_tokens(text, &markers(name), 3);
    setup.added = added;
    compare(&run(open(&[name], &setup).expect("bundled"), &pieces).expect("valid events"), "with tokens");
}

const OSLO: &str = "get_weather{\"city\": \"Oslo\"}";

#[test]
fn reasoning_and_calls_in_one_stage() {
    let texts = [
        (
            "glm45",
            "\n<think>Why</think>\nWell.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
        ),
        (
            "kimi_k2",
            "<think>Why</think>Well.\n<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\"}<|tool_call_end|><|tool_calls_section_end|>",
        ),
        (
            "minimax_m2",
            "<think>Why</think>\n\nWell.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Oslo</parameter>\n</invoke>\n</minimax:tool_call>",
        ),
        (
            "seed_oss",
            "<seed:think>Why</seed:think>Well.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>",
        ),
        ("mistral", "[THINK]Why[/THINK]Well.\n[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Oslo\"}"),
        (
            "mistral",
            "<think>Why</think>Well.\n[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
        ),
        (
            "granite",
            "<think>Why</think>\nWell.\n<tool_call>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
        ),
        (
            "gemma4",
            "<|channel>thought\nWhy<channel|>Well.\n<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>}<tool_call|>",
        ),
    ];
    for (name, text) in texts {
        check(name, "", text, ("Well.", "Why", &[OSLO]));
    }
    let harmony = "<|channel|>analysis<|message|>Why<|end|><|start|>assistant<|channel|>commentary<|message|>Well.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}<|call|>";
    check("gpt_oss", "<|start|>assistant", harmony, ("Well.", "Why", &[OSLO]));
}

#[test]
fn the_prompt_may_have_opened_or_closed_reasoning() {
    for (name, open, close) in [
        ("glm45", "<think>", "</think>"),
        ("minimax_m2", "<think>\n", "</think>"),
        ("seed_oss", "<seed:think>", "</seed:think>"),
        ("mistral", "[THINK]", "[/THINK]"),
        ("kimi_k2", "<think>", "</think>"),
        ("gemma4", "<|channel>", "<channel|>"),
    ] {
        check(name, open, &format!("Why{close}\nWell."), ("Well.", "Why", &[]));
        check(name, &format!("{open}{close}"), "Well.", ("Well.", "", &[]));
    }
    check("minimax", "", "Why</think>\n\nWell.", ("Well.", "Why", &[]));
    check(
        "gpt_oss",
        "<|start|>assistant<|channel|>analysis<|message|>",
        "Why<|end|><|start|>assistant<|channel|>final<|message|>Well.<|return|>",
        ("Well.", "Why", &[]),
    );
    check("gpt_oss", "<|start|>assistant<|channel|>final<|message|>", "Well.<|return|>", ("Well.", "", &[]));
}

#[test]
fn granite_announces_its_reasoning() {
    let text = "Here is my thought process: Why\nHere is my response: Well.";
    check("granite", "", text, (" Well.", "Why\n", &[]));
    check("granite", "", "Here is my answer.", ("Here is my answer.", "", &[]));
}

#[test]
fn llama_writes_json_as_the_whole_answer() {
    let name = "llama3_json";
    check(name, "", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}", ("", "", &[OSLO]));
    let typed = "{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}";
    check(name, "", typed, ("", "", &[OSLO]));
    // Other JSON is an answer.
    for json in
        ["{\"answer\": {\"name\": \"x\"}}", "{\"name\": \"Milo\", \"age\": 4}", "{}", "{\"name\": \"get_weather\"}"]
    {
        check(name, "", json, (json, "", &[]));
    }
    let prose = "Use {\"name\": \"f\", \"parameters\": {}} for that.";
    check(name, "", prose, (prose, "", &[]));
}

#[test]
fn lists_that_are_no_calls_are_text() {
    for text in
        ["[1, 2, 3]", "[link](http://x)", "[f(x)]", "[see f(1)]", "[]", "[{\"name\": \"f\", \"arguments\": {}}]"]
    {
        check("pythonic", "", text, (text, "", &[]));
    }
    for text in ["functools.partial", "functools[x]", "`[TOOL_CALLS]` is a marker"] {
        let name = if text.contains("TOOL") { "mistral" } else { "phi4_mini_json" };
        let (added, content) = (Vec::new(), text);
        let setup = Setup { added, ..Setup::default() };
        let answer = run(open(&[name], &setup).expect("bundled"), &cut(text, 2)).expect("valid events");
        assert_eq!((answer.content.as_str(), answer.calls.len()), (content, 0));
    }
}

#[test]
fn values_are_typed() {
    let glm = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>07030</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>";
    check("glm47", "", glm, ("", "", &["get_weather{\"city\": \"07030\", \"days\": 3}"]));
    let dsml = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"x\" string=\"false\">[1, true]</｜DSML｜parameter>\n<｜DSML｜parameter name=\"y\" string=\"false\">oops</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
    check("deepseek_v32", "", dsml, ("", "", &["get_weather{\"city\": \"3\", \"x\": [1, true], \"y\": \"oops\"}"]));
}

#[test]
fn harmony_without_its_format_is_content() {
    check("gpt_oss", "<|start|>assistant", "Hello there.", ("Hello there.", "", &[]));
    // A recipient in the role, and one that is no function of the request's.
    let role = " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Oslo\"}<|call|>";
    check("gpt_oss", "<|start|>assistant", role, ("", "", &[OSLO]));
    let python = "<|channel|>commentary to=python<|message|>print(1)<|call|>";
    check("gpt_oss", "<|start|>assistant", python, ("print(1)", "", &[]));
}
