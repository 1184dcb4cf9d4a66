//! A chat template: each turn under a title, and the assistant's left open.

use serde::Deserialize;
use tokenloom_sdk::template::{Channel, ModelInfo, Rendered, Template};
use tokenloom_sdk::{NoSettings, PluginError, reject};

pub struct TitledTurns;

/// What of the request matters here; `serde` skips the rest.
#[derive(Deserialize)]
struct Request {
    messages: Vec<Message>,
    add_generation_prompt: bool,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: serde_json::Value,
}

impl Template for TitledTurns {
    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        tokenloom_sdk::parse_settings::<NoSettings>(settings_json)?;
        Ok(Self)
    }

    /// What the model's files say; this template needs nothing of it.
    fn load(&mut self, _model: ModelInfo) -> Result<(), PluginError> {
        Ok(())
    }

    fn render(&mut self, request_json: &str) -> Result<Rendered, PluginError> {
        let request: Request = serde_json::from_str(request_json).map_err(|e| reject("request", e.to_string()))?;
        let (mut prompt, mut last_turn) = (String::new(), 0);
        for Message { role, content } in &request.messages {
            // The client gets a 400 with this message.
            let text = content.as_str();
            let text = text.ok_or_else(|| reject("content", format!("the content of a {role} message must be text")))?;
            prompt += &format!("### {role}\n{text}\n\n");
            if role == "user" || role == "tool" {
                last_turn = prompt.len();
            }
        }
        if request.add_generation_prompt {
            prompt += "### assistant\n";
        }
        let turn_prefix = prompt[last_turn..].to_owned();
        let stop = vec!["\n### ".to_owned()];
        Ok(Rendered { prompt, turn_prefix, starts_in: Some(Channel::Content), stop, ext: Vec::new() })
    }
}

tokenloom_sdk::export_template!(TitledTurns);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_titled() {
        let request = r#"{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}"#;
        let rendered = TitledTurns.render(request).expect("it renders");
        assert_eq!(rendered.prompt, "### user\nHi\n\n### assistant\n");
        assert_eq!(rendered.turn_prefix, "### assistant\n");
        assert!(TitledTurns.render(r#"{"messages": [{"role": "user", "content": 1}]}"#).is_err());
    }
}
