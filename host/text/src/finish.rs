//! The one rule that turns the end of generation into `finish_reason`.

use contract::TokenId;
use contract::output::ToolChoice;

/// How generation ended, told to [`crate::OutputPipeline::finish`]. After a stop string hit any value will do: the
/// pipeline remembers the hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfStream {
    StopToken(TokenId),
    Length,
    Cancelled,
    Error,
}

/// `tool_calls` only when at least one complete call was delivered, generation stopped by itself and the tool was not
/// named by the client (the answer to a named choice is `stop`, as OpenAI's is). `length` always stays `length`.
///
/// `hit_stop_string` says that [`crate::Piece::stopped`] was set. An end by cancel or error has no reason a client may
/// see; it reads `stop` here and the API sends an error event instead.
pub fn finish_reason(
    end: EndOfStream,
    hit_stop_string: bool,
    complete_calls: u32,
    choice: &ToolChoice,
) -> &'static str {
    if end == EndOfStream::Length && !hit_stop_string {
        return "length";
    }
    if complete_calls > 0 && !matches!(choice, ToolChoice::Named(_)) { "tool_calls" } else { "stop" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(end: EndOfStream, hit_stop_string: bool, complete_calls: u32, choice: ToolChoice, expected: &str) {
        assert_eq!(finish_reason(end, hit_stop_string, complete_calls, &choice), expected);
    }

    /// Case api-03, and what must never be called `tool_calls` (api-04).
    #[test]
    fn the_matrix() {
        let stop = EndOfStream::StopToken(2);
        check(stop, false, 1, ToolChoice::Auto, "tool_calls");
        check(stop, false, 1, ToolChoice::Required, "tool_calls");
        check(stop, false, 1, ToolChoice::Named("f".into()), "stop");
        check(stop, false, 0, ToolChoice::Required, "stop");
        check(EndOfStream::Length, false, 1, ToolChoice::Auto, "length");
        check(EndOfStream::Length, true, 0, ToolChoice::Auto, "stop");
        check(EndOfStream::Cancelled, true, 1, ToolChoice::Auto, "tool_calls");
    }
}
