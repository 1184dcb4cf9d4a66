//! The text that Python gives to values: `str()`, `repr()` and `json.dumps()`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Values nested deeper than this are an error; a parser of JSON refuses them too.
const DEPTH_MAX: usize = 128;

/// `repr(float)`: the shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let text = format!("{value:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value == 0.0 || (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

/// `str(value)`; an undefined value prints as nothing.
pub fn text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_string());
    }
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        _ => {
            let mut out = String::new();
            repr(value, 0, &mut out)?;
            Ok(out)
        }
    }
}

fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    too_deep(depth)?;
    match value.kind() {
        ValueKind::Number if !value.is_integer() => out.push_str(&float(as_float(value))),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            let tuple = value.downcast_object_ref::<minijinja::value::Tuple>().is_some();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                repr(&item, depth + 1, out)?;
                count += 1;
            }
            out.push_str(if tuple && count == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))?,
    }
    Ok(())
}

/// `repr(str)`: single quotes unless only those occur inside.
fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

/// `json.dumps` with the defaults that transformers gives the filter: no escapes for printable text, keys in order.
pub fn tojson(value: &Value, options: &Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(value) if value.as_str().is_some() => value.as_str().map(str::to_string),
        Some(value) if !value.is_none() => {
            let width = usize::try_from(value).unwrap_or(0);
            Some(" ".repeat(width.min(64)))
        }
        _ => None,
    };
    let (mut item, mut key) = (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string());
    if let Some(pair) = options.get::<Option<Value>>("separators")?.filter(|value| !value.is_none()) {
        let mut parts = pair.try_iter()?;
        let mut part = || parts.next().and_then(|v| v.as_str().map(str::to_string));
        (item, key) = part()
            .zip(part())
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair of strings"))?;
    }
    let flag = |name| Ok::<_, Error>(options.get::<Option<Value>>(name)?.is_some_and(|value| value.is_true()));
    let style = Style { ensure_ascii: flag("ensure_ascii")?, sort_keys: flag("sort_keys")?, indent, item, key };
    options.assert_all_used()?;
    let mut out = String::new();
    dump(value, &style, 0, &mut out)?;
    Ok(out)
}

fn dump(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    too_deep(depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| (None, item)).collect();
            container(('[', ']'), items, style, depth, out)?;
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                items.push((Some(key_text(&key)?), value.get_item(&key)?));
            }
            if style.sort_keys {
                items.sort_by(|a, b| a.0.cmp(&b.0));
            }
            container(('{', '}'), items, style, depth, out)?;
        }
        kind => return Err(Error::new(ErrorKind::BadSerialization, format!("{kind} is not JSON serializable"))),
    }
    Ok(())
}

fn container(
    brackets: (char, char),
    items: Vec<(Option<String>, Value)>,
    style: &Style,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(brackets.0);
    let empty = items.is_empty();
    for (index, (key, item)) in items.into_iter().enumerate() {
        out.push_str(if index > 0 { &style.item } else { "" });
        line(depth + 1, out);
        if let Some(key) = key {
            json_string(&key, style, out);
            out.push_str(&style.key);
        }
        dump(&item, style, depth + 1, out)?;
    }
    if !empty {
        line(depth, out);
    }
    out.push(brackets.1);
    Ok(())
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true".into() } else { "false".into() }),
        ValueKind::None => Ok("null".into()),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("keys must be text or numbers, not {kind}"))),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match as_float(value) {
        v if v.is_nan() => "NaN".into(),
        v if v.is_infinite() => if v > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        v => float(v),
    }
}

fn json_string(text: &str, style: &Style, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && c > '~') => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn as_float(value: &Value) -> f64 {
    f64::try_from(value.clone()).unwrap_or(f64::NAN)
}

fn too_deep(depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("value is nested more than {DEPTH_MAX} deep")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_like_python() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-7, "1e-07"),
            (1e22, "1e+22"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-10, "-2.5e-10"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
        ];
        for (value, expected) in cases {
            assert_eq!(float(value), expected);
        }
    }

    #[test]
    fn containers_read_like_python() {
        let value =
            Value::from(minijinja::value::Serde(serde_json::json!({"a": [1, 1e20, "it's", null, true], "b": {}})));
        assert_eq!(text(&value).expect("prints"), "{'a': [1, 1e+20, \"it's\", None, True], 'b': {}}");
    }
}
