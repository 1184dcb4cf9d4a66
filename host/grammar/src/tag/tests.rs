use serde_json::json;

use super::*;
use crate::Source;
use crate::compiler::tests::{accepts, compiler};

fn weather() -> Value {
    json!({"structures": [{"begin": "<function=get>", "schema": {"type": "object", "properties": {"n": {"type": "integer"}},
        "required": ["n"], "additionalProperties": false}, "end": "</function>"}], "triggers": ["<function="]})
}

fn check(tag: &Value, added: &[&str], yes: &[&str], no: &[&str]) {
    let compiler = compiler(added);
    let compiled = compiler.compile(&Source::StructuralTag(tag.clone())).unwrap_or_else(|e| panic!("{tag}: {e}"));
    for text in yes {
        assert_eq!(accepts(&compiler, &compiled, text), Ok(()), "{text}");
    }
    for text in no {
        assert!(accepts(&compiler, &compiled, text).is_err(), "{text}");
    }
}

/// Free text, and calls that keep to their schema wherever their trigger appears.
#[test]
fn triggered_text() {
    let yes =
        ["plain text < with = marks", "", "a <function=get>{\"n\":1}</function> b <function=get>{\"n\": 2}</function>"];
    check(
        &weather(),
        &[],
        &yes,
        &["<function=get>{\"n\":\"x\"}</function>", "<function=put>{}</function>", "a <function="],
    );
}

/// A marker that is one token is that token; the same letters are text.
#[test]
fn triggers_that_are_added_tokens() {
    let tag = json!({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<call>"], "tags": [
        {"begin": "<call>get:", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</call>"}]}});
    check(&tag, &["<call>", "</call>"], &["x <call>get:12</call> y"], &["<call>get:x</call>"]);
}

#[test]
fn trees_of_formats() {
    let tag = json!({"format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "a"},
        {"type": "or", "elements": [{"type": "const_string", "value": "b"}, {"type": "json_schema", "json_schema": {"type": "boolean"}}]},
        {"type": "tags_with_separator", "separator": ",", "at_least_one": true, "tags": [
            {"begin": "[", "content": {"type": "grammar", "grammar": "start: \"x\"+"}, "end": "]"}]}
    ]}});
    check(&tag, &[], &["ab[x]", "atrue[xx],[x]"], &["ab", "ac[x]", "ab[x],"]);
}

#[test]
fn errors_name_the_place() {
    let vocabulary = crate::vocabulary::tests::bytes_and(&[]);
    let error = |tag: Value| to_lark(&tag, &vocabulary).unwrap_err().to_string();
    assert_eq!(error(json!({})), "at the schema's root: needs `format`, or `structures` and `triggers`");
    assert_eq!(error(json!({"format": {"type": "poem"}})), "at `/format/type`: `poem` is not supported");
    let mut bad = weather();
    bad["structures"][0]["schema"] = json!({"properties": {"a": {"type": 1}}});
    assert!(error(bad).starts_with("at `/structures/0/schema/properties/a`, keyword `type`"));
    let mut untriggered = weather();
    untriggered["triggers"] = json!(["<x"]);
    assert_eq!(error(untriggered), "at `/triggers/0`: no tag begins with it");
}
