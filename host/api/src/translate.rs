//! What the endpoints that speak another API's shape have in common: they become chat requests, so that every rule of a
//! chat request holds for them, and the errors name the fields that their own clients sent.

use crate::error::ApiError;

/// An error about a field of the chat request, told by the name that the client used: `(chat, own)` prefixes.
pub fn renamed(mut error: ApiError, names: &[(&str, &str)]) -> ApiError {
    let Some(param) = error.param.as_deref() else { return error };
    let found = names.iter().find_map(|(chat, own)| {
        let rest = param.strip_prefix(chat)?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then(|| format!("{own}{rest}"))
    });
    if let Some(own) = found {
        if let Some(rest) = error.message.strip_prefix(param) {
            error.message = format!("{own}{rest}");
        }
        error.param = Some(own);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_own_names() {
        let names = [("max_completion_tokens", "max_output_tokens"), ("messages", "input")];
        let told = |param: &str| {
            let error = renamed(ApiError::invalid(param, "is wrong"), &names);
            (error.param.unwrap_or_default(), error.message)
        };
        assert_eq!(told("messages[2].role"), ("input[2].role".into(), "input[2].role: is wrong".into()));
        assert_eq!(told("max_completion_tokens").0, "max_output_tokens");
        assert_eq!(told("messages_x").0, "messages_x");
    }
}
