//! Tools and which of them must be called.

use contract::output::ToolChoice;
use serde_json::{Map, Value};

use super::fields::{Fields, describe, missing, wrong};
use crate::error::{ApiError, Code};

/// Tools of one request. Each is rendered into the prompt.
pub const TOOLS_MAX: usize = 512;
/// Longest tool name, in bytes; OpenAI's own limit is 64.
pub const TOOL_NAME_BYTES_MAX: usize = 256;

/// A request's tools as sent, each a function with a name, and the choice among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    pub tools: Vec<Value>,
    pub choice: ToolChoice,
    /// With [`ToolChoice::Allowed`]: one of them must be called.
    pub allowed_is_required: bool,
}

impl Tools {
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let tools = fields.array("tools", TOOLS_MAX)?.unwrap_or_default();
        for (index, tool) in tools.iter().enumerate() {
            check_tool(index, tool)?;
        }
        let mut taken = Self { tools, ..Self::default() };
        if let Some(choice) = fields.take("tool_choice") {
            taken.choose(choice)?;
        }
        Ok(taken)
    }

    fn choose(&mut self, choice: Value) -> Result<(), ApiError> {
        const WANTED: &str = "\"auto\", \"none\", \"required\", a function by name, or allowed_tools";
        self.choice = match &choice {
            // Both are harmless without tools, and routers add "auto" to everything.
            Value::String(word) if word == "auto" => ToolChoice::Auto,
            Value::String(word) if word == "none" => ToolChoice::None,
            Value::String(word) if word == "required" => ToolChoice::Required,
            Value::Object(object) => match object.get("type").and_then(Value::as_str) {
                Some("function") => ToolChoice::Named(self.declared("tool_choice", object)?),
                Some("allowed_tools") => self.allowed(object)?,
                _ => return Err(wrong("tool_choice", WANTED, &choice)),
            },
            _ => return Err(wrong("tool_choice", WANTED, &choice)),
        };
        if self.tools.is_empty() && !matches!(self.choice, ToolChoice::Auto | ToolChoice::None) {
            return Err(ApiError::invalid("tool_choice", "needs tools to choose from"));
        }
        Ok(())
    }

    /// `{"type": "function", "function": {"name": N}}`, or with the name beside the type.
    fn declared(&self, at: &str, object: &Map<String, Value>) -> Result<String, ApiError> {
        let (at, name) = match object.get("function") {
            Some(Value::Object(function)) => (format!("{at}.function.name"), function.get("name")),
            Some(other) if !other.is_null() => return Err(wrong(&format!("{at}.function"), "an object", other)),
            _ if object.contains_key("name") => (format!("{at}.name"), object.get("name")),
            _ => (format!("{at}.function.name"), None),
        };
        let name = match name {
            Some(Value::String(name)) => name,
            None | Some(Value::Null) => return Err(missing(&at)),
            Some(other) => return Err(wrong(&at, "a string", other)),
        };
        if self.names().any(|declared| declared == name) {
            return Ok(name.clone());
        }
        let known: Vec<&str> = self.names().take(16).collect();
        let shown = describe(&Value::String(name.clone()));
        Err(ApiError::invalid(&at, format!("{shown} is not one of the tools: {}", known.join(", "))))
    }

    /// `{"type": "allowed_tools", "allowed_tools": {"mode": M, "tools": […]}}`, or with both beside the type.
    fn allowed(&mut self, object: &Map<String, Value>) -> Result<ToolChoice, ApiError> {
        let (at, inner) = match object.get("allowed_tools") {
            Some(Value::Object(inner)) => ("tool_choice.allowed_tools", inner),
            Some(other) if !other.is_null() => return Err(wrong("tool_choice.allowed_tools", "an object", other)),
            _ => ("tool_choice", object),
        };
        self.allowed_is_required = match inner.get("mode") {
            None | Some(Value::Null) => false,
            Some(Value::String(mode)) if mode == "auto" => false,
            Some(Value::String(mode)) if mode == "required" => true,
            Some(other) => return Err(wrong(&format!("{at}.mode"), "\"auto\" or \"required\"", other)),
        };
        let at = format!("{at}.tools");
        let list = match inner.get("tools") {
            Some(Value::Array(list)) if !list.is_empty() && list.len() <= TOOLS_MAX => list,
            None | Some(Value::Null) => return Err(missing(&at)),
            Some(other) => return Err(wrong(&at, &format!("an array of 1 to {TOOLS_MAX} tools"), other)),
        };
        let name = |(i, tool): (usize, &Value)| {
            let at = format!("{at}[{i}]");
            let object = tool.as_object().ok_or_else(|| wrong(&at, "an object", tool))?;
            self.declared(&at, object)
        };
        list.iter().enumerate().map(name).collect::<Result<_, _>>().map(ToolChoice::Allowed)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str())
    }
}

/// Checks what `text::prepare::stage_tools` reads, with the limits of a request.
fn check_tool(index: usize, tool: &Value) -> Result<(), ApiError> {
    let path = |rest: &str| format!("tools[{index}]{rest}");
    let object = tool.as_object().ok_or_else(|| wrong(&path(""), "an object", tool))?;
    match object.get("type") {
        None | Some(Value::Null) => return Err(missing(&path(".type"))),
        Some(Value::String(kind)) if kind == "function" => {}
        Some(other) => {
            let message = format!("must be \"function\", not {}", describe(other));
            return Err(ApiError::field(Code::UnsupportedField, &path(".type"), message));
        }
    }
    let function = match object.get("function") {
        Some(Value::Object(function)) => function,
        None | Some(Value::Null) => return Err(missing(&path(".function"))),
        Some(other) => return Err(wrong(&path(".function"), "an object", other)),
    };
    match function.get("name") {
        Some(Value::String(name)) if !name.is_empty() && name.len() <= TOOL_NAME_BYTES_MAX => {}
        None | Some(Value::Null) => return Err(missing(&path(".function.name"))),
        Some(other) => {
            let wanted = format!("a string of 1 to {TOOL_NAME_BYTES_MAX} bytes");
            return Err(wrong(&path(".function.name"), &wanted, other));
        }
    }
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => {}
        Some(other) => return Err(wrong(&path(".function.parameters"), "an object", other)),
    }
    match function.get("strict") {
        None | Some(Value::Null | Value::Bool(_)) => Ok(()),
        Some(other) => Err(wrong(&path(".function.strict"), "true or false", other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(choice: Value) -> Result<Tools, String> {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let body = json!({"tools": [tool("f"), tool("g")], "tool_choice": choice});
        let mut fields = Fields::parse(body.to_string().as_bytes()).expect("an object");
        Tools::take(&mut fields).map_err(|error| error.message)
    }

    fn expect(choice: Value, expected: ToolChoice, required: bool) {
        let tools = taken(choice).expect("a choice");
        assert_eq!((tools.choice, tools.allowed_is_required), (expected, required));
    }

    #[test]
    fn choices() {
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        expect(json!("auto"), ToolChoice::Auto, false);
        expect(json!("required"), ToolChoice::Required, false);
        expect(named("g"), ToolChoice::Named("g".into()), false);
        expect(json!({"type": "function", "name": "g"}), ToolChoice::Named("g".into()), false);
        let allowed =
            |mode: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named("f")]}});
        expect(allowed("auto"), ToolChoice::Allowed(vec!["f".into()]), false);
        expect(allowed("required"), ToolChoice::Allowed(vec!["f".into()]), true);
    }

    #[test]
    fn errors_name_the_field() {
        let cases = [
            (
                json!("any"),
                "tool_choice: must be \"auto\", \"none\", \"required\", a function by name, or allowed_tools, not the string \"any\"",
            ),
            (
                json!({"type": "function", "function": {"name": "h"}}),
                "tool_choice.function.name: the string \"h\" is not one of the tools: f, g",
            ),
            (json!({"type": "function"}), "tool_choice.function.name: is required"),
            (json!({"type": "allowed_tools"}), "tool_choice.tools: is required"),
        ];
        for (choice, message) in cases {
            assert_eq!(taken(choice).err(), Some(message.to_owned()));
        }
        let mut fields = Fields::parse(b"{\"tool_choice\": \"required\"}").expect("an object");
        let error = Tools::take(&mut fields).expect_err("no tools");
        assert_eq!(error.message, "tool_choice: needs tools to choose from");
    }
}
