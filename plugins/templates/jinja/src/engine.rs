//! minijinja set up to render what transformers renders: same white space, same filters, tests, functions, methods.

use std::sync::{Arc, Mutex};

use minijinja::formatting::{FormatStyle, format};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use crate::clock::Moment;
use crate::{python, source};

/// Work a template may do for one prompt, in minijinja's units: an instruction is one, 64 bytes of text are one. The
/// longest real prompt (1 MiB of messages, 100 tools) takes below a tenth.
const FUEL: u64 = 10_000_000;

/// Calls and blocks inside one another. Real templates stay below 10; the guest's stack ends somewhere above 200.
const RECURSION_MAX: usize = 100;

pub const NAME: &str = "chat template";

/// What `raise_exception` carries through minijinja's own errors.
#[derive(Debug)]
pub struct Raised(pub String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The message of the `raise_exception` behind an error, if that is what it was.
pub fn raised(error: &Error) -> Option<&str> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return Some(&raised.0);
        }
        cause = inner.source();
    }
    None
}

/// The time of the request that is being rendered. A function of a template sees no variables of the context.
pub type Now = Arc<Mutex<Option<Moment>>>;

pub fn environment(template: &str, now: Now) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION_MAX);
    env.set_syntax(syntax()?);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, state, value| match value.kind() {
        // Text is by far the most of a prompt and needs no copy.
        ValueKind::String => minijinja::escape_formatter(out, state, value),
        _ => out.write_str(&python::text(value)?).map_err(|_| Error::from(ErrorKind::WriteFailure)),
    });
    env.add_filter("tojson", |value: Value, options: Kwargs| python::tojson(&value, &options));
    env.add_filter("string", |value: Value| python::text(&value));
    env.add_test("sequence", |value: Value| {
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_test("iterable", |value: Value| {
        value.is_undefined() || value.try_iter().is_ok() || value.as_str().is_some()
    });
    env.add_test("number", |value: Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let text = python::text(&message)?;
        Err(Error::new(ErrorKind::InvalidOperation, "the template raised an exception").with_source(Raised(text)))
    });
    env.add_function("strftime_now", move |format: &str| -> Result<String, Error> {
        let now = now.lock().ok().and_then(|now| *now);
        now.map(|now| now.format(format))
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "strftime_now: the request has no valid `now`"))
    });
    env.add_function(source::MODULO, modulo);
    env.add_function(source::CONCAT, |values: minijinja::value::Rest<Value>| {
        values.iter().map(python::text).collect::<Result<String, Error>>()
    });
    env.add_template_owned(NAME, source::rewrite(template))?;
    Ok(env)
}

/// The two white-space rules that transformers turns on.
fn syntax() -> Result<SyntaxConfig, Error> {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true);
    syntax.lstrip_blocks(true);
    syntax.build()
}

/// `left % right`: formatting for text, else the remainder with the sign of the right side.
fn modulo(left: Value, right: Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let values = match right.downcast_object_ref::<Tuple>() {
            Some(_) => right.try_iter()?.collect(),
            None => vec![right],
        };
        return format(FormatStyle::Printf, text, &values).map(Value::from);
    }
    let fault = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("{left} % {right}: {what}"));
    let integer = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    if let (Some(a), Some(b)) = (integer(&left), integer(&right)) {
        let rest = a.checked_rem(b).ok_or_else(|| fault("division by zero"))?;
        let rest = if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest };
        return Ok(match i64::try_from(rest) {
            Ok(small) => Value::from(small),
            Err(_) => Value::from(rest),
        });
    }
    let float = |value: &Value| f64::try_from(value.clone()).ok();
    match (float(&left), float(&right)) {
        (Some(_), Some(0.0)) => Err(fault("division by zero")),
        (Some(a), Some(b)) => {
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
        }
        _ => Err(fault("only numbers and format strings have this operator")),
    }
}

/// Python methods: those that minijinja's authors wrote, and those they left out.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(answer) = text_method(text, name, args)
    {
        return answer;
    }
    if name == "index" && value.kind() == ValueKind::Seq {
        let (wanted,): (Value,) = from_args(args)?;
        let at = value.try_iter()?.position(|item| item == wanted);
        return at.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "value is not in list"));
    }
    if name == "copy" && matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        let () = from_args(args)?;
        return Ok(value.clone());
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn text_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let one = || from_args::<(&str,)>(args).map(|(arg,)| arg);
    Some(match name {
        "split" | "rsplit" => split(text, name == "rsplit", args),
        "partition" => one().map(|mark| match text.split_once(mark) {
            Some((left, right)) => triple(left, mark, right),
            None => triple(text, "", ""),
        }),
        "rpartition" => one().map(|mark| match text.rsplit_once(mark) {
            Some((left, right)) => triple(left, mark, right),
            None => triple("", "", text),
        }),
        "removeprefix" => one().map(|prefix| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => one().map(|suffix| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "casefold" => from_args::<()>(args).map(|()| Value::from(text.to_lowercase())),
        "swapcase" => from_args::<()>(args).map(|()| Value::from(swapcase(text))),
        "zfill" => width(args).map(|(width, _)| Value::from(zfill(text, width))),
        "ljust" => width(args).map(|(width, fill)| Value::from(format!("{text}{}", padding(text, width, fill)))),
        "rjust" => width(args).map(|(width, fill)| Value::from(format!("{}{text}", padding(text, width, fill)))),
        "center" => width(args).map(|(width, fill)| {
            let pad: Vec<char> = padding(text, width, fill).chars().collect();
            // Python puts the odd one on the left when the width is odd.
            let left = pad.len() / 2 + (pad.len() & width & 1);
            let side = |part: &[char]| part.iter().collect::<String>();
            Value::from(format!("{}{text}{}", side(&pad[..left]), side(&pad[left..])))
        }),
        "index" | "rindex" => one().and_then(|wanted| {
            let at = if name == "index" { text.find(wanted) } else { text.rfind(wanted) };
            at.map(|at| Value::from(text[..at].chars().count()))
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))
        }),
        _ => return None,
    })
}

/// `split` and `rsplit` with Python's two arguments, by position or by name.
fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (by_position, limit, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match by_position {
        Some(value) => Some(value),
        None => named.get::<Option<Value>>("sep")?,
    };
    let limit = match limit {
        Some(limit) => limit,
        None => named.get::<Option<i64>>("maxsplit")?.unwrap_or(-1),
    };
    named.assert_all_used()?;
    let parts_max = usize::try_from(limit).map_or(usize::MAX, |n| n.saturating_add(1));
    let separator = separator.filter(|value| !value.is_none());
    let mut parts: Vec<&str> = match &separator {
        Some(value) => {
            let mark = value.as_str().filter(|mark| !mark.is_empty());
            let mark = mark.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "empty separator"))?;
            if from_right { text.rsplitn(parts_max, mark).collect() } else { text.splitn(parts_max, mark).collect() }
        }
        None => words(text, parts_max, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words between white space; the last part keeps its inner white space.
fn words(text: &str, parts_max: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let Some(cut) = cut.filter(|_| parts.len() + 1 < parts_max) else {
            parts.push(rest);
            break;
        };
        let (left, right) = rest.split_at(cut);
        let (part, more) = if from_right { (right.trim(), left) } else { (left, right) };
        parts.push(part);
        rest = more.trim();
    }
    parts
}

fn triple(left: &str, mark: &str, right: &str) -> Value {
    Value::from(Tuple::from([left, mark, right].map(Value::from)))
}

fn swapcase(text: &str) -> String {
    let swap = |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
    text.chars().map(swap).collect()
}

fn zfill(text: &str, width: usize) -> String {
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'+' | b'-') => text.split_at(1),
        _ => ("", text),
    };
    format!("{sign}{}{digits}", padding(text, width, '0'))
}

/// Text wider than this is no layout; the limit keeps one call from filling the memory.
const WIDTH_MAX: usize = 4096;

fn width(args: &[Value]) -> Result<(usize, char), Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > WIDTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("width {width} is above {WIDTH_MAX}")));
    }
    Ok((width, fill.and_then(|fill| fill.chars().next()).unwrap_or(' ')))
}

fn padding(text: &str, width: usize, fill: char) -> String {
    std::iter::repeat_n(fill, width.saturating_sub(text.chars().count())).collect()
}
