//! `GET /metrics`: everything the process measures, in the Prometheus text format.

use std::collections::HashMap;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, Code};
use crate::state::ApiState;

const CONTENT_TYPE: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The last line of the format.
const END: &str = "# EOF";

pub async fn get(State(state): State<ApiState>) -> Result<Response, ApiError> {
    let open = state.opened()?;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &open.registry)
        .map_err(|error| ApiError::new(Code::Internal, format!("the metrics could not be written: {error}")))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], grouped(&text)).into_response())
}

/// Each engine registers its own families under the same names; the format wants each name described once, with all
/// its samples in one group.
fn grouped(text: &str) -> String {
    let mut groups: Vec<(&str, String, String)> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    let (mut at, mut first) = (0, true);
    for line in text.lines().filter(|line| *line != END) {
        match line.strip_prefix("# ").and_then(|comment| comment.split(' ').nth(1)) {
            Some(name) => {
                let next = groups.len();
                if groups.get(at).is_none_or(|(open, ..)| *open != name) {
                    first = !by_name.contains_key(name);
                    at = *by_name.entry(name).or_insert(next);
                }
                if at == next {
                    groups.push((name, String::new(), String::new()));
                }
                if first {
                    groups[at].1 += line;
                    groups[at].1.push('\n');
                }
            }
            None => {
                if let Some((.., samples)) = groups.get_mut(at) {
                    *samples += line;
                    samples.push('\n');
                }
            }
        }
    }
    let mut out = String::with_capacity(text.len());
    for (_, head, samples) in groups {
        out += &head;
        out += &samples;
    }
    out += END;
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_described_once() {
        let text = "# HELP a A.\n# TYPE a gauge\na{m=\"1\"} 1\n# HELP b B.\n# TYPE b gauge\nb 2\n\
                    # HELP a A.\n# TYPE a gauge\na{m=\"2\"} 3\n# EOF\n";
        let expected = "# HELP a A.\n# TYPE a gauge\na{m=\"1\"} 1\na{m=\"2\"} 3\n\
                        # HELP b B.\n# TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(grouped(text), expected);
    }
}
