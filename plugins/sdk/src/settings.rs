//! Settings arrive as JSON text.

use serde::de::DeserializeOwned;

use crate::{PluginError, disable};

/// Reads `settings_json` into `T`. Give `T` the attributes `#[serde(default, deny_unknown_fields)]`. Empty text counts
/// as no settings.
pub fn parse<T: DeserializeOwned>(settings_json: &str) -> Result<T, PluginError> {
    let text = if settings_json.trim().is_empty() { "{}" } else { settings_json };
    // A list would be taken for the fields in order.
    if !text.trim_start().starts_with('{') {
        return Err(disable("invalid-settings", "settings: a JSON object is needed"));
    }
    serde_json::from_str(text).map_err(|error| disable("invalid-settings", format!("settings: {error}")))
}

/// For a plugin that has none.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Default, Debug, PartialEq)]
    #[serde(default, deny_unknown_fields)]
    struct Example {
        depth: u32,
    }

    #[test]
    fn empty_is_default_and_unknown_is_an_error() {
        assert_eq!(parse::<Example>("").expect("empty"), Example::default());
        assert_eq!(parse::<Example>("{\"depth\": 3}").expect("known"), Example { depth: 3 });
        let error = parse::<Example>("{\"dept\": 3}").expect_err("unknown key");
        assert_eq!(error.code, "invalid-settings");
        assert!(error.message.contains("dept"), "{}", error.message);
    }
}
