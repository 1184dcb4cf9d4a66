//! JSON and event streams over plain HTTP, the way a simple client reads them.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::TestServer;

/// A test that waits longer has found a hang.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub text: String,
}

impl Answer {
    /// The body as JSON; `null` when it is none, which no assertion on a field will accept.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// `error.code` of an error answer.
    pub fn error_code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_string()
    }

    pub fn error_message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_string()
    }
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Data(Value),
    /// `data: [DONE]`
    Done,
}

impl Event {
    pub fn data(&self) -> &Value {
        match self {
            Self::Data(value) => value,
            Self::Done => &Value::Null,
        }
    }
}

fn agent() -> Agent {
    Agent::config_builder().timeout_global(Some(WAIT_MAX)).http_status_as_error(false).build().new_agent()
}

impl TestServer {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Answer> {
        answer(agent().get(self.url(path)).call()?)
    }

    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Answer> {
        let mut request = agent().get(self.url(path));
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        answer(request.call()?)
    }

    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.post_with(path, &[], &body.to_string())
    }

    /// Posts any bytes as JSON, with headers.
    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &str) -> anyhow::Result<Answer> {
        answer(self.send(path, headers, body)?)
    }

    fn send(&self, path: &str, headers: &[(&str, &str)], body: &str) -> anyhow::Result<Response<Body>> {
        let mut request = agent().post(self.url(path)).header("content-type", "application/json");
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        Ok(request.send(body)?)
    }

    /// Posts and reads the whole stream. A status other than 200 is an error with the body.
    pub fn stream(&self, path: &str, body: &Value) -> anyhow::Result<Vec<Event>> {
        self.open_stream(path, body)?.collect()
    }

    /// Posts and gives the stream's events one by one; dropping it closes the connection.
    pub fn open_stream(&self, path: &str, body: &Value) -> anyhow::Result<Stream> {
        self.open_stream_with(path, &[], body)
    }

    /// [`TestServer::open_stream`] with headers.
    pub fn open_stream_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> anyhow::Result<Stream> {
        let response = self.send(path, headers, &body.to_string())?;
        if response.status() != 200 {
            let answer = answer(response)?;
            anyhow::bail!("status {}: {}", answer.status, answer.text);
        }
        let kind = response.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        ensure!(kind.starts_with("text/event-stream"), "content-type is {kind}");
        Ok(Stream { lines: BufReader::new(Box::new(response.into_body().into_reader())) })
    }
}

fn answer(mut response: Response<Body>) -> anyhow::Result<Answer> {
    let status = response.status().as_u16();
    let text_of = |value: &ureq::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = response.headers().iter().map(|(key, value)| (key.to_string(), text_of(value))).collect();
    Ok(Answer { status, headers, text: response.body_mut().read_to_string()? })
}

/// The events of a stream as they come.
pub struct Stream {
    lines: BufReader<Box<dyn Read + Send>>,
}

impl Iterator for Stream {
    type Item = anyhow::Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        self.event().transpose()
    }
}

impl Stream {
    /// One `data:` line and the empty line after it; comments are skipped.
    fn event(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() || line.starts_with(':') {
                continue;
            }
            let data = line.strip_prefix("data: ").with_context(|| format!("not an event line: {line}"))?;
            let mut end = String::new();
            self.lines.read_line(&mut end)?;
            ensure!(end.trim_end().is_empty(), "no empty line after an event: {end}");
            if data == "[DONE]" {
                return Ok(Some(Event::Done));
            }
            let value = serde_json::from_str(data).with_context(|| format!("not JSON: {data}"))?;
            return Ok(Some(Event::Data(value)));
        }
    }
}
