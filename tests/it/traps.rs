//! What a client sees of a stage that traps: nothing, when it does not trap again; else what its manifest promises.

use serde_json::{Value, json};
use testkit::TestServer;
use testkit::fold::fold;

use crate::CHAT;

/// A server whose one stage traps at a feed of a store; the script says `words` words, one a step.
fn server(manifest: &str, faults: &str) -> anyhow::Result<(TestServer, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("hostile.wasm");
    std::fs::copy(testkit::repository().join("plugins/fixtures/dist/output.wasm"), &path)?;
    let text = format!(
        "name = \"hostile-output\"\nversion = \"0.1.0\"\nkind = \"output\"\nwit = \"tokenloom:output@0.1.0\"\n{manifest}\
         [settings]\nfaults = \"{faults}\"\n"
    );
    std::fs::write(path.with_extension("toml"), text)?;
    let response = |name: &str, words: usize| json!({"match": name, "tokens": all_words(words)});
    let script = json!({"responses": [response("short", 4), response("long", 12)]}).to_string();
    let server = TestServer::script(&script, &["--output-stage", &path.display().to_string()])?;
    Ok((server, folder))
}

fn all_words(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("word{number} ")).collect()
}

fn request(content: &str, stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": content}]})
}

/// The pieces of a streamed answer's content, in order, and whether the stream ended as it should.
fn streamed(server: &TestServer, content: &str) -> anyhow::Result<(Vec<String>, bool)> {
    let events = server.stream(CHAT, &request(content, true))?;
    let folded = fold(&events)?;
    let piece = |data: &Value| data["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    let pieces = events.iter().filter_map(|event| piece(event.data())).filter(|piece| !piece.is_empty()).collect();
    Ok((pieces, folded.done && folded.error.is_none()))
}

/// (replays, fallbacks, traps) of the stage.
fn counts(server: &TestServer) -> anyhow::Result<(u64, u64, u64)> {
    let listed = server.get("/plugins")?.json();
    let row = listed["data"].as_array().into_iter().flatten().find(|row| row["name"] == "hostile-output").cloned();
    let row = row.unwrap_or_default();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    Ok((number(&row["replays"]), number(&row["fallbacks"]), number(&row["traps"]["trap"])))
}

/// The journal brings a fresh store to where the broken one was, and nothing is sent twice. The count of feeds is the
/// store's: the second stream meets the trap in its middle, and the store that it is replayed into does not.
#[test]
fn a_trap_in_the_middle_of_a_stream_is_hidden() -> anyhow::Result<()> {
    let (server, _folder) = server("[limits]\nstreams_per_store = 8\n", "feed=trap@18")?;
    for round in 0..2 {
        let (pieces, whole) = streamed(&server, "long")?;
        assert_eq!((pieces.concat(), whole), (all_words(12).concat(), true), "stream {round}");
        assert!(pieces.len() > 6, "it was streamed: {pieces:?}");
    }
    assert_eq!(counts(&server)?, (1, 0, 1));
    Ok(())
}

/// A long answer is poison to this stage wherever it runs. With `policy = "error"` its request ends with an error, with
/// `passthrough` its text arrives; other requests, before, beside and after it, notice nothing.
#[test]
fn a_poison_input_costs_that_request_only() -> anyhow::Result<()> {
    for (manifest, fails) in [("[failure]\npolicy = \"error\"\n", true), ("", false)] {
        let (server, _folder) = server(manifest, "feed=trap@8")?;
        std::thread::scope(|scope| -> anyhow::Result<()> {
            let others =
                scope.spawn(|| (0..20).map(|_| streamed(&server, "short")).collect::<anyhow::Result<Vec<_>>>());
            for _ in 0..3 {
                let answer = server.post(CHAT, &request("long", false))?;
                if fails {
                    assert!(answer.status >= 500, "{}", answer.text);
                    assert_eq!(answer.error_code(), "output_stage_failed", "{}", answer.text);
                } else {
                    assert_eq!(answer.json()["choices"][0]["message"]["content"], all_words(12).concat());
                }
            }
            let (pieces, whole) = streamed(&server, "long")?;
            assert_eq!(whole, !fails, "{pieces:?}");
            let text = pieces.concat();
            assert!(all_words(12).concat().starts_with(&text) && text.contains("word5 "), "{text}");
            for (pieces, whole) in others.join().expect("no panic")? {
                assert_eq!((pieces.concat(), whole), (all_words(4).concat(), true));
            }
            Ok(())
        })?;
        assert_eq!(counts(&server)?, (4, 4, 8), "each poison once, replayed once");
        assert_eq!(server.get("/health")?.status, 200);
        assert_eq!(streamed(&server, "short")?.0.concat(), all_words(4).concat());
    }
    Ok(())
}
