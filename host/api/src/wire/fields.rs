//! Reading one JSON object field by field, so that every error names the field, the value and the limit.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{ApiError, Code, quoted};

/// The top-level object of a request. Each `take_*` removes a field; what is left at the end was not understood.
///
/// A JSON `null` counts as an absent field, as in the OpenAI API.
pub struct Fields {
    map: Map<String, Value>,
    /// The object is a body as it came, and its fields are noted by [`asked`].
    #[cfg(test)]
    noted: bool,
}

impl Fields {
    /// The fields of a request that was translated from another API's shape.
    pub fn new(map: Map<String, Value>) -> Self {
        Self {
            map,
            #[cfg(test)]
            noted: false,
        }
    }

    /// Parses a request body. Nesting is limited by serde_json to 128 levels.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| ApiError::new(Code::InvalidJson, format!("the body is not valid JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(Self {
                map,
                #[cfg(test)]
                noted: true,
            }),
            other => Err(ApiError::new(
                Code::InvalidJson,
                format!("the body must be a JSON object, not {}", describe(&other)),
            )),
        }
    }

    /// Puts a field in place of what stood there.
    pub fn put(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    pub fn take(&mut self, name: &str) -> Option<Value> {
        #[cfg(test)]
        self.note(name);
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    pub fn has(&self, name: &str) -> bool {
        #[cfg(test)]
        self.note(name);
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    #[cfg(test)]
    fn note(&self, name: &str) {
        if self.noted {
            ASKED.with_borrow_mut(|asked| asked.insert(name.to_owned()));
        }
    }

    /// The names that nobody took and that are not null.
    pub fn into_rest(self) -> Vec<(String, Value)> {
        self.map.into_iter().filter(|(_, value)| !value.is_null()).collect()
    }

    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.take(name).map(|value| as_bool(name, &value)).transpose()
    }

    pub fn flag(&mut self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.boolean(name)?.unwrap_or(default))
    }

    /// A finite number in `range`.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        self.take(name).map(|value| as_number(name, &value, &range)).transpose()
    }

    /// A whole number in `range`. `3.0` is accepted, as some clients write every number as a float.
    pub fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.take(name).map(|value| as_integer(name, &value, &range)).transpose()
    }

    pub fn count(&mut self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, ApiError> {
        let range = i64::from(*range.start())..=i64::from(*range.end());
        Ok(self.integer(name, range)?.map(|n| u32::try_from(n).expect("the range is one of u32")))
    }

    /// A string of at least one and at most `bytes_max` bytes.
    pub fn string(&mut self, name: &str, bytes_max: usize) -> Result<Option<String>, ApiError> {
        self.take(name).map(|value| as_string(name, value, bytes_max)).transpose()
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong(name, "an object", &other)),
        }
    }

    pub fn array(&mut self, name: &str, entries_max: usize) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) if list.len() > entries_max => Err(too_many(name, list.len(), entries_max)),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(wrong(name, "an array", &other)),
        }
    }
}

pub fn as_bool(name: &str, value: &Value) -> Result<bool, ApiError> {
    value.as_bool().ok_or_else(|| wrong(name, "true or false", value))
}

pub fn as_number(name: &str, value: &Value, range: &RangeInclusive<f64>) -> Result<f32, ApiError> {
    let number = value.as_f64().filter(|n| n.is_finite() && range.contains(n));
    number.map(|n| n as f32).ok_or_else(|| wrong(name, &spell("a number", range), value))
}

pub fn as_integer(name: &str, value: &Value, range: &RangeInclusive<i64>) -> Result<i64, ApiError> {
    // Beyond 2^53 a float no longer says which whole number was meant.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = || value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < EXACT).map(|n| n as i64);
    let number = value.as_i64().or_else(whole).filter(|n| range.contains(n));
    number.ok_or_else(|| wrong(name, &spell("a whole number", range), value))
}

pub fn as_string(name: &str, value: Value, bytes_max: usize) -> Result<String, ApiError> {
    match value {
        Value::String(text) if text.is_empty() => Err(ApiError::invalid(name, "must not be an empty string")),
        Value::String(text) if text.len() > bytes_max => Err(ApiError::invalid(
            name,
            format!("must be a string of at most {bytes_max} bytes, not of {}", text.len()),
        )),
        Value::String(text) => Ok(text),
        other => Err(wrong(name, "a string", &other)),
    }
}

/// `must be WANTED, not VALUE`.
pub fn wrong(name: &str, wanted: &str, value: &Value) -> ApiError {
    ApiError::invalid(name, format!("must be {wanted}, not {}", describe(value)))
}

pub fn too_many(name: &str, entries: usize, entries_max: usize) -> ApiError {
    ApiError::invalid(name, format!("must have at most {entries_max} entries, not {entries}"))
}

pub fn missing(name: &str) -> ApiError {
    ApiError::field(Code::MissingField, name, "is required")
}

fn spell<N: Display>(kind: &str, range: &RangeInclusive<N>) -> String {
    format!("{kind} from {} to {}", range.start(), range.end())
}

/// A value as an error message shows it: small values as they are, large ones by their kind.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(text) => format!("the string \"{}\"", quoted(text)),
        Value::Array(list) => format!("an array of {}", list.len()),
        Value::Object(map) => format!("an object of {}", map.len()),
    }
}

#[cfg(test)]
thread_local! {
    static ASKED: std::cell::RefCell<std::collections::BTreeSet<String>> = const { std::cell::RefCell::new(std::collections::BTreeSet::new()) };
}

/// Runs `read` and answers which fields of bodies it asked for.
#[cfg(test)]
pub fn asked<T>(read: impl FnOnce() -> T) -> (std::collections::BTreeSet<String>, T) {
    ASKED.take();
    let result = read();
    (ASKED.take(), result)
}
