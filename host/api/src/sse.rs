//! Framing of streamed answers: one `data: JSON` event per chunk, comments while nothing comes, `[DONE]` at the end.
//!
//! A stream that fails ends with one error event and without `[DONE]`, so that half an answer is never taken for a
//! whole one. Event streams close their connection at the end: a client that waits for the end of the connection
//! rather than for `[DONE]` sees it at once, after a failure too.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use futures::future::{self, BoxFuture, FutureExt};
use futures::stream::{self, StreamExt};

use serde_json::Value;

use crate::error::ApiError;
use crate::generate::{Event, Events};
use crate::metrics::HttpMetrics;
use crate::wire::reply::Usage;

/// The event that ends a complete answer of the OpenAI API.
pub const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// The frames of one answer.
pub trait Chunks: Send + 'static {
    /// Frames before the first event.
    fn begin(&mut self) -> Vec<Bytes> {
        Vec::new()
    }
    /// The frames that an event gives; often none or one.
    fn of(&mut self, event: Event, usage: Usage) -> Vec<Bytes>;
    /// The frames after the last choice. They may wait for something that must be true before a client reads them.
    fn end(&mut self, usage: Usage) -> BoxFuture<'static, Vec<Bytes>>;
    /// The last frames of an answer that fails.
    fn failed(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error_frame(error)]
    }
    /// What is sent while nothing comes.
    fn keep_alive(&self) -> Bytes {
        KEEP_ALIVE
    }
}

/// Frames that need no waiting.
pub fn at_once(frames: Vec<Bytes>) -> BoxFuture<'static, Vec<Bytes>> {
    future::ready(frames).boxed()
}

/// One event of the stream. JSON texts have no line breaks outside strings, where they are escaped.
pub fn data(json: &str) -> Bytes {
    Bytes::from(format!("data: {json}\n\n"))
}

/// One event with a name, as the Responses and Messages APIs have them: the name is the JSON's own `type`.
pub fn named(value: &Value) -> Bytes {
    let name = value["type"].as_str().unwrap_or("message");
    Bytes::from(format!("event: {name}\ndata: {value}\n\n"))
}

/// What a streamed answer is made of.
pub struct Streamed<C> {
    pub events: Events,
    /// An event that was read before the headers were sent.
    pub first: Option<Event>,
    pub chunks: C,
    pub keep_alive: Duration,
    pub metrics: HttpMetrics,
}

impl<C: Chunks> Streamed<C> {
    pub fn into_response(mut self) -> Response<Body> {
        let mut ready = VecDeque::from(self.chunks.begin());
        if let Some(event) = self.first.take() {
            self.frame(event, &mut ready);
        }
        let frames = stream::unfold(Some((self, ready)), |state| async move {
            let (mut streamed, mut ready) = state?;
            loop {
                if let Some(frame) = ready.pop_front() {
                    return Some((Ok::<Bytes, std::convert::Infallible>(frame), Some((streamed, ready))));
                }
                match tokio::time::timeout(streamed.keep_alive, streamed.events.next()).await {
                    Err(_) => ready.push_back(streamed.chunks.keep_alive()),
                    Ok(Some(Ok(event))) => streamed.frame(event, &mut ready),
                    Ok(Some(Err(error))) => {
                        streamed.metrics.stream_error();
                        return Some((Ok(streamed.chunks.failed(&error).concat().into()), None));
                    }
                    Ok(None) => {
                        let frames = streamed.chunks.end(streamed.events.usage()).await;
                        return Some((Ok(frames.concat().into()), None));
                    }
                }
            }
        });
        let mut response = Response::new(Body::from_stream(frames));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }

    fn frame(&mut self, event: Event, ready: &mut VecDeque<Bytes>) {
        let usage = self.events.usage();
        ready.extend(self.chunks.of(event, usage));
    }
}

fn error_frame(error: &ApiError) -> Bytes {
    data(&error.body().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn one_event_is_one_line_and_a_blank_one() {
        assert_eq!(data(r#"{"a":"x\ny"}"#), Bytes::from_static(b"data: {\"a\":\"x\\ny\"}\n\n"));
        let error = error_frame(&ApiError::new(Code::EngineFailed, "line one\nline two"));
        assert_eq!(error.iter().filter(|&&byte| byte == b'\n').count(), 2);
        assert!(error.starts_with(b"data: {\"error\":{\"message\":\"line one"));
    }
}
