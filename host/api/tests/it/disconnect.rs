//! Clients that go away (case api-13): their work stops and their places are free again.

use std::time::Duration;

use engine::{EngineStatus, Handle};
use futures::StreamExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{Setup, TestServer, hi, serve};

/// Longest wait for a change that must come; only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn until(engine: &Handle, what: &str, reached: impl Fn(&EngineStatus) -> bool) {
    let polled = async {
        let mut tick = tokio::time::interval(Duration::from_millis(2));
        while !reached(&engine.status()) {
            tick.tick().await;
        }
    };
    if tokio::time::timeout(PATIENCE, polled).await.is_err() {
        panic!("{what} did not happen: {:?}", engine.status());
    }
}

fn endless(seats: u16) -> TestServer {
    let script = json!({"responses": [{"tokens": ["a", "b"], "delay_ms": 1}]});
    let mut setup = Setup::default();
    setup.load.seats = seats;
    serve(script, setup)
}

async fn connect(server: &TestServer, stream: bool) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address");
    tokio::spawn(api::serve(listener, server.state.clone(), std::future::pending()));
    let mut socket = TcpStream::connect(address).await.expect("the server listens");
    let body = hi(json!({"stream": stream, "max_tokens": 8000, "ignore_eos": true})).to_string();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await.expect("written");
    socket.write_all(body.as_bytes()).await.expect("written");
    socket
}

async fn check_freed(server: &TestServer) {
    until(&server.engine, "the end of the request", |now| (now.running, now.waiting, now.pages_used) == (0, 0, 0))
        .await;
    // The only seat is free: another request runs to its end.
    let answer = server.chat(json!({"max_tokens": 2})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn api_13_disconnect_while_streaming() {
    let server = endless(1);
    let mut socket = connect(&server, true).await;
    let mut seen = String::new();
    let mut buffer = [0_u8; 4096];
    while seen.matches("data: ").count() < 3 {
        let read = socket.read(&mut buffer).await.expect("the stream goes on");
        assert!(read > 0, "the stream ended: {seen}");
        seen += &String::from_utf8_lossy(&buffer[..read]);
    }
    drop(socket);
    check_freed(&server).await;
}

#[tokio::test]
async fn api_13_disconnect_while_waiting_for_a_plain_answer() {
    let server = endless(1);
    let socket = connect(&server, false).await;
    until(&server.engine, "the start of the request", |now| now.running == 1).await;
    drop(socket);
    check_freed(&server).await;
}

#[tokio::test]
async fn api_13_disconnect_while_queued() {
    let server = endless(1);
    let first = connect(&server, true).await;
    until(&server.engine, "the start of the first", |now| now.running == 1).await;
    let second = connect(&server, true).await;
    until(&server.engine, "the queueing of the second", |now| now.waiting == 1).await;
    drop(second);
    until(&server.engine, "the end of the second", |now| (now.running, now.waiting) == (1, 0)).await;
    drop(first);
    check_freed(&server).await;
}

/// Nothing is left behind, however often it happens.
#[tokio::test]
async fn api_13_two_hundred_disconnects() {
    let server = endless(4);
    for _ in 0..200 {
        let body = hi(json!({"stream": true, "max_tokens": 8000, "ignore_eos": true}));
        let mut data = server.open("/v1/chat/completions", &body).await.into_data_stream();
        assert!(data.next().await.is_some_and(|frame| frame.is_ok()), "the first chunk");
    }
    check_freed(&server).await;
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains("tokenloom_http_disconnected_total 200"), "{metrics}");
}

/// The stream's connection is closed after an error, so that no client waits for more.
#[tokio::test]
async fn api_11_connection_closes_after_an_error() {
    let server = serve(json!({"responses": [{"tokens": ["par"], "then": "abort"}]}), Setup::default());
    let mut socket = connect(&server, true).await;
    let mut all = Vec::new();
    tokio::time::timeout(PATIENCE, socket.read_to_end(&mut all)).await.expect("the connection closes").expect("read");
    let text = String::from_utf8_lossy(&all);
    let error = text.lines().find_map(|line| line.strip_prefix("data: {\"error\"")).is_some();
    assert!(error && !text.contains("[DONE]"), "{text}");
}
