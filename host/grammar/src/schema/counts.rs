//! Keywords whose values are plain: their types, and what they are together.

use serde_json::{Value, json};

use super::keywords::FORMATS;
use super::{Reduced, Walker};
use crate::GrammarError;

const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];

/// Largest repeat count. The library writes counted repetitions out, and no answer is longer.
const COUNT_MAX: u64 = 65_536;

impl Walker<'_> {
    /// Checks a plain keyword; `None`: it has no effect.
    pub(super) fn plain(&mut self, keyword: &str, value: &Value) -> Result<Option<Value>, GrammarError> {
        match keyword {
            "type" => self.types(value),
            "enum" => match value.as_array() {
                Some(list) if !list.is_empty() => Ok(Some(value.clone())),
                _ => Err(self.wrong(Some(keyword), "must be an array with at least one value")),
            },
            "const" => Ok(Some(value.clone())),
            "minimum" | "maximum" => self.number(keyword, value),
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => Ok(Some(value.clone())),
            "exclusiveMinimum" | "exclusiveMaximum" => self.number(keyword, value),
            "multipleOf" => match value.as_f64() {
                Some(number) if number > 0.0 => Ok(Some(value.clone())),
                _ => Err(self.wrong(Some(keyword), "must be a number above 0")),
            },
            "pattern" if value.is_string() => Ok(Some(value.clone())),
            "pattern" => Err(self.wrong(Some(keyword), "must be a string")),
            "format" => self.format(value),
            "required" => match value.as_array() {
                Some(list) if list.iter().all(Value::is_string) => Ok(Some(value.clone())),
                _ => Err(self.wrong(Some(keyword), "must be an array of property names")),
            },
            _ => self.count(keyword, value),
        }
    }

    fn types(&self, value: &Value) -> Result<Option<Value>, GrammarError> {
        let list = match value {
            Value::Array(list) if !list.is_empty() => list.as_slice(),
            Value::String(_) => std::slice::from_ref(value),
            _ => return Err(self.wrong(Some("type"), "must be a type name or an array of them")),
        };
        match list.iter().find(|name| !name.as_str().is_some_and(|name| TYPES.contains(&name))) {
            None => Ok(Some(value.clone())),
            Some(name) => Err(self.wrong(Some("type"), format!("{name} is not one of {}", TYPES.join(", ")))),
        }
    }

    fn number(&self, keyword: &str, value: &Value) -> Result<Option<Value>, GrammarError> {
        match value.as_f64().filter(|number| number.is_finite()) {
            Some(_) => Ok(Some(value.clone())),
            None => Err(self.wrong(Some(keyword), "must be a number")),
        }
    }

    fn count(&self, keyword: &str, value: &Value) -> Result<Option<Value>, GrammarError> {
        let whole = value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0 && *number < 9e15);
        let Some(count) = value.as_u64().or(whole.map(|number| number as u64)) else {
            return Err(self.wrong(Some(keyword), "must be a whole number from 0"));
        };
        match count {
            // An answer cannot reach it, so it holds by itself.
            COUNT_MAX.. if keyword.starts_with("max") => Ok(None),
            COUNT_MAX.. => Err(self.wrong(Some(keyword), format!("is {count}, the limit is {COUNT_MAX}"))),
            _ => Ok(Some(json!(count))),
        }
    }

    fn format(&mut self, value: &Value) -> Result<Option<Value>, GrammarError> {
        let Some(name) = value.as_str() else { return Err(self.wrong(Some("format"), "must be a string")) };
        if FORMATS.contains(&name) {
            return Ok(Some(value.clone()));
        }
        self.warnings.insert(format!("schema format `{name}` is not enforced"));
        Ok(None)
    }

    /// Bounds on the number of properties that hold by themselves are dropped. Names that no schema lists can be repeated
    /// by a model, and a repeated name counts once: so a lower bound holds only where the required ones alone reach it.
    pub(super) fn check_counts(&mut self, reduced: &mut Reduced) -> Result<(), GrammarError> {
        let length = |keyword: &str| match reduced.get(keyword) {
            Some(Value::Array(list)) => list.len() as u64,
            Some(Value::Object(map)) => map.len() as u64,
            _ => 0,
        };
        let (required, listed) = (length("required"), length("properties"));
        let is_closed = reduced.get("additionalProperties") == Some(&Value::Bool(false))
            && !reduced.contains_key("patternProperties");
        let bound = |keyword: &str| reduced.get(keyword).and_then(Value::as_u64);
        let (least, most) = (bound("minProperties"), bound("maxProperties"));
        if is_closed && most.is_some_and(|most| most >= listed) {
            reduced.shift_remove("maxProperties");
        }
        match least {
            Some(wanted) if wanted <= required => drop(reduced.shift_remove("minProperties")),
            Some(wanted) if wanted > 1 && !is_closed => return self.refuse_bound(wanted, required),
            _ => {}
        }
        Ok(())
    }

    fn refuse_bound(&mut self, wanted: u64, required: u64) -> Result<(), GrammarError> {
        if self.strictness == super::Strictness::Lenient {
            self.warnings.insert("schema keyword `minProperties` may not hold where names are free".into());
            return Ok(());
        }
        let message = format!(
            "is {wanted}, but only {required} properties are required, and names that the schema does not list may repeat; require more, or set additionalProperties to false"
        );
        Err(self.wrong(Some("minProperties"), message))
    }
}
