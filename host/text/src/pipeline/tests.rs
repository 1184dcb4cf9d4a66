use std::sync::Arc;

use contract::output::{CallKind, HELD_BYTES_MAX, OutputStage, StageRequest, Tool};
use proptest::prelude::*;

use super::*;
use crate::test_stages::{brackets, scripted, think};
use crate::{ByteVocabToken, TextModel, TextModelParts};

const END: TokenId = 256;

fn tool(name: &str) -> Tool {
    Tool { name: name.into(), kind: CallKind::Json, schema_json: None, strict: false }
}

fn job(tools: &[&str]) -> OutputJob {
    OutputJob {
        stage_request: StageRequest { tools: tools.iter().map(|n| tool(n)).collect(), ..StageRequest::default() },
        stop_tokens: vec![END],
        skip_special_tokens: true,
        ..OutputJob::default()
    }
}

fn open(stages: Vec<Arc<dyn OutputStage>>, added: &[&str], job: &OutputJob) -> OutputPipeline {
    let extra = added.iter().map(|text| ByteVocabToken { bytes: text.as_bytes().to_vec(), added: true }).collect();
    let tokenizer = Tokenizer::from_bytes_vocab(extra);
    let model = TextModel::new(TextModelParts { tokenizer, template: None, stages }).unwrap();
    model.open_output(job).unwrap()
}

/// Call ids are random: numbered here, so that runs can be compared.
fn line(delta: &Delta) -> String {
    match delta {
        Delta::Content(text) => format!("{text:?}"),
        Delta::Reasoning(text) => format!("reasoning {text:?}"),
        Delta::CallStart { index, name, .. } => format!("call {index} {name}"),
        Delta::CallArguments { index, fragment } => format!("arguments {index} {fragment}"),
        Delta::CallEnd { index, complete } => format!("end {index} {complete}"),
    }
}

fn lines(piece: &Piece) -> Vec<String> {
    piece.deltas.iter().map(line).collect()
}

/// Pushes each text as one step and ends with the end token; the lines of all deltas, joined by `, `.
fn stream(pipeline: &mut OutputPipeline, steps: &[&str], end: EndOfStream) -> String {
    let mut all = Vec::new();
    for step in steps {
        let tokens: Vec<TokenId> = step.bytes().map(TokenId::from).collect();
        all.extend(lines(&pipeline.push(&tokens, Vec::new()).unwrap()));
    }
    if let EndOfStream::StopToken(token) = end {
        all.extend(lines(&pipeline.push(&[token], Vec::new()).unwrap()));
    }
    all.extend(lines(&pipeline.finish(end).unwrap()));
    all.join(", ")
}

fn check(stages: Vec<Arc<dyn OutputStage>>, tools: &[&str], steps: &[&str], expected: &str, reason: &str) {
    let mut pipeline = open(stages, &[], &job(tools));
    assert_eq!(stream(&mut pipeline, steps, EndOfStream::StopToken(END)), expected);
    assert_eq!(pipeline.finish_reason(), reason);
}

#[test]
fn without_stages_all_is_content_at_once() {
    check(vec![], &[], &["a\n", "\n b", "\n"], r#""a\n", "\n b", "\n""#, "stop");
}

#[test]
fn calls_are_streamed_and_counted() {
    let expected = r#""hi", call 0 f, arguments 0 {"a":, arguments 0 1}, end 0 true"#;
    check(vec![brackets()], &["f"], &["hi [", "f {\"a\":", "1}]"], expected, "tool_calls");
}

#[test]
fn a_call_without_arguments_has_an_empty_object() {
    check(vec![brackets()], &["f"], &["[f]"], "call 0 f, arguments 0 {}, end 0 true", "tool_calls");
}

#[test]
fn arguments_that_are_no_object_make_no_complete_call() {
    check(vec![brackets()], &["f"], &["[f {\"a\"}]"], r#"call 0 f, arguments 0 {"a"}, end 0 false"#, "stop");
    check(vec![brackets()], &["f"], &["[f 1]"], "call 0 f, arguments 0 1, end 0 false", "stop");
}

#[test]
fn an_open_call_is_ended_at_the_end() {
    let mut pipeline = open(vec![brackets()], &[], &job(&["f"]));
    let deltas = stream(&mut pipeline, &["[f {\"a\":"], EndOfStream::Length);
    assert_eq!(deltas, r#"call 0 f, arguments 0 {"a":, end 0 false"#);
    assert_eq!(pipeline.finish_reason(), "length");
}

/// White space next to a call is not content of its own, and none of it is lost between two texts.
#[test]
fn white_space_next_to_calls() {
    let expected = r#""a", call 0 f, arguments 0 {}, end 0 true, "\nb""#;
    check(
        vec![brackets()],
        &["f"],
        &["\n\na", "\n", "[f {}]", "\nb", "\n"],
        &expected.replace("\"a\"", r#""\n\na""#),
        "tool_calls",
    );
    check(vec![brackets()], &["f"], &["\n\n", "[f {}]", "\n"], "call 0 f, arguments 0 {}, end 0 true", "tool_calls");
    check(vec![brackets()], &["f"], &["a\n", "b", " \n"], r#""a", "\nb", " \n""#, "stop");
}

/// Without tools a call is a violation and its text is passed through, whatever the cutting (case api-17).
#[test]
fn a_call_that_is_not_allowed_is_text() {
    for steps in [vec!["Format: [f {}] like this."], vec!["Format: ", "[", "f", " ", "{}] like", " this."]] {
        let mut pipeline = open(vec![brackets()], &[], &job(&[]));
        let text = stream(&mut pipeline, &steps, EndOfStream::StopToken(END)).replace("\", \"", "");
        assert_eq!((text.as_str(), pipeline.finish_reason()), (r#""Format: [f {}] like this.""#, "stop"));
        assert_eq!(pipeline.usage().stage_violations, 1);
    }
}

fn check_violation(events: fn() -> Vec<OutputEvent>, expected: &str) {
    let mut pipeline = open(vec![scripted(events)], &[], &job(&["f"]));
    assert_eq!(stream(&mut pipeline, &["abc", "d"], EndOfStream::StopToken(END)), expected);
    assert_eq!(pipeline.usage().stage_violations, 1);
}

fn start(index: u32) -> OutputEvent {
    OutputEvent::CallStart { index, id: None, name: "f".into(), kind: CallKind::Json }
}

/// A stage that breaks the order of events is cut out; nothing it was given is lost.
#[test]
fn events_out_of_order() {
    check_violation(|| vec![start(1)], r#""abc", "d""#);
    check_violation(|| vec![OutputEvent::CallEnd { index: 0, complete: true }], r#""abc", "d""#);
    check_violation(|| vec![OutputEvent::CallArguments { index: 0, fragment: "{}".into() }], r#""abc", "d""#);
    check_violation(|| vec![OutputEvent::content("ab"), start(3)], r#""abc", "d""#);
    check_violation(|| vec![start(0), start(1)], r#"call 0 f, end 0 false, "d""#);
    check_violation(|| vec![start(0), OutputEvent::content("x")], r#"call 0 f, end 0 false, "d""#);
}

#[test]
fn a_stage_that_holds_too_much_is_cut_out() {
    let mut pipeline = open(vec![think()], &[], &job(&[]));
    let step = "x".repeat(HELD_BYTES_MAX / 2);
    let mut sent = 0;
    for _ in 0..3 {
        let tokens: Vec<TokenId> = step.bytes().map(TokenId::from).collect();
        for delta in pipeline.push(&tokens, Vec::new()).unwrap().deltas {
            let Delta::Content(text) = delta else { panic!("only content is possible") };
            sent += text.len();
        }
    }
    assert_eq!(sent, 3 * step.len());
    assert_eq!(pipeline.usage().stage_violations, 1);
}

#[test]
fn stages_finish_in_order() {
    let expected = r#"reasoning "why", call 0 f, arguments 0 {}, end 0 true"#;
    check(vec![think(), brackets_on_content()], &["f"], &["<think>why</think>[f {}]"], expected, "tool_calls");
}

/// The brackets stage drops channels, so it is given content only.
fn brackets_on_content() -> Arc<dyn OutputStage> {
    struct OnContent(Arc<dyn OutputStage>);
    struct Session(Box<dyn StageSession>);
    impl StageSession for Session {
        fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, contract::PluginError> {
            let reasoning =
                |e: &OutputEvent| matches!(e, OutputEvent::Text { channel, .. } if *channel != Default::default());
            let (mut pass, own): (Vec<_>, Vec<_>) = events.into_iter().partition(reasoning);
            pass.extend(self.0.feed(own)?);
            Ok(pass)
        }
        fn finish(&mut self, reason: EndReason) -> Result<Vec<OutputEvent>, contract::PluginError> {
            self.0.finish(reason)
        }
    }
    impl OutputStage for OnContent {
        fn name(&self) -> &str {
            "on-content"
        }
        fn requirements(&self) -> &contract::output::Requirements {
            self.0.requirements()
        }
        fn constrain(
            &self,
            request: &StageRequest,
        ) -> Result<Option<contract::output::Constraint>, contract::PluginError> {
            self.0.constrain(request)
        }
        fn open(&self, request: &StageRequest) -> Result<Box<dyn StageSession>, contract::PluginError> {
            Ok(Box::new(Session(self.0.open(request)?)))
        }
    }
    Arc::new(OnContent(brackets()))
}

#[test]
fn a_stop_string_ends_the_text_before_the_stages() {
    let mut job = job(&["f"]);
    job.stop = vec!["STOP".into()];
    let mut pipeline = open(vec![brackets()], &[], &job);
    let piece = pipeline.push(&"ab ST".bytes().map(TokenId::from).collect::<Vec<_>>(), Vec::new()).unwrap();
    assert_eq!((lines(&piece), piece.stopped), (vec![r#""ab""#.to_owned()], None));
    let piece = pipeline.push(&"OP[f {}]".bytes().map(TokenId::from).collect::<Vec<_>>(), Vec::new()).unwrap();
    assert_eq!((lines(&piece), piece.stopped.as_deref()), (vec![], Some("STOP")));
    let piece = pipeline.finish(EndOfStream::Cancelled).unwrap();
    assert_eq!(lines(&piece), [r#"" ""#]);
    assert_eq!((pipeline.finish_reason(), pipeline.usage().completion_tokens), ("stop", 7));
}

/// The end token never shows, is not counted, and is still text for who asks for it.
#[test]
fn the_end_token() {
    let mut job = job(&[]);
    let mut pipeline = open(vec![], &[], &job);
    assert_eq!(stream(&mut pipeline, &["ab"], EndOfStream::StopToken(END)), r#""ab""#);
    assert_eq!(pipeline.usage().completion_tokens, 2);
    job.include_stop_str = true;
    let mut pipeline = open(vec![], &[], &job);
    assert_eq!(stream(&mut pipeline, &["ab"], EndOfStream::StopToken(END)), r#""ab", "<|end|>""#);
    job.stop_tokens.clear();
    job.include_stop_str = false;
    let mut pipeline = open(vec![], &[], &job);
    let text = stream(&mut pipeline, &["ab", "c"], EndOfStream::StopToken(END));
    assert_eq!(text, r#""ab", "c""#, "a special token is skipped wherever it stands");
}

/// A stop token that a stage declares as a marker is fed first.
#[test]
fn a_stop_token_that_is_a_marker_is_fed() {
    let mut job = job(&[]);
    job.stop_tokens = vec![258];
    job.stage_request.turn_prefix = "<think>".into();
    let mut pipeline = open(vec![think()], &["<think>", "</think>"], &job);
    let deltas = stream(&mut pipeline, &["why"], EndOfStream::StopToken(258));
    assert_eq!(deltas, r#"reasoning "why""#);
    assert_eq!((pipeline.usage().reasoning_tokens, pipeline.usage().completion_tokens), (3, 4));
}

/// Only the token closes the block, not its quoted text; the tracker counts by token too.
#[test]
fn markers_match_by_token() {
    let mut job = job(&[]);
    job.stage_request.turn_prefix = "<think>\n".into();
    let mut pipeline = open(vec![think()], &["<think>", "</think>"], &job);
    pipeline.push(&"a </think>".bytes().map(TokenId::from).collect::<Vec<_>>(), Vec::new()).unwrap();
    pipeline.push(&[258], Vec::new()).unwrap();
    pipeline.push(&[u32::from(b'x')], Vec::new()).unwrap();
    let piece = pipeline.finish(EndOfStream::Length).unwrap();
    assert_eq!(lines(&piece), [r#"reasoning "a </think>""#, r#""x""#]);
    assert_eq!(pipeline.usage().reasoning_tokens, 10);
}

/// A stage that calls text content where the tracker saw reasoning is noticed.
#[test]
fn a_stage_that_disagrees_with_the_tracker() {
    let disagrees = |added: &[&str]| {
        let mut job = job(&[]);
        job.stage_request.turn_prefix = "<think>".into();
        let mut pipeline = open(vec![think()], added, &job);
        stream(&mut pipeline, &["why", "</think>", "x"], EndOfStream::Length);
        pipeline.usage().reasoning_disagrees
    };
    assert!(!disagrees(&[]));
    assert!(!disagrees(&["<think>", "</think>"]));
    let mut pipeline = open(
        vec![scripted(|| {
            vec![OutputEvent::Text { channel: contract::output::Channel::Reasoning, text: "abc".into(), token: None }]
        })],
        &[],
        &job(&[]),
    );
    stream(&mut pipeline, &["abc"], EndOfStream::Length);
    assert!(pipeline.usage().reasoning_disagrees);
}

/// Log-probabilities ride on the next piece with text, all and in order.
#[test]
fn logprobs_ride_on_the_next_piece() {
    let logprobs = |token, logprob| TokenLogprobs { token, logprob, rank: 1, top: Vec::new() };
    let mut pipeline = open(vec![], &[], &job(&[]));
    let piece = pipeline.push(&[0xc3], vec![logprobs(0xc3, -0.1)]).unwrap();
    assert_eq!(piece, Piece::default());
    let piece = pipeline.push(&[0xa9], vec![logprobs(0xa9, -0.2)]).unwrap();
    assert_eq!((lines(&piece), piece.token_ids), (vec!["\"é\"".to_owned()], vec![0xc3, 0xa9]));
    assert_eq!(piece.logprobs, [logprobs(0xc3, -0.1), logprobs(0xa9, -0.2)]);
    pipeline.push(&[END], vec![logprobs(END, -0.3)]).unwrap();
    let piece = pipeline.finish(EndOfStream::StopToken(END)).unwrap();
    assert_eq!(piece, Piece::default(), "the end token is not part of the answer");
}

/// Case api-21 through the whole pipeline.
#[test]
fn a_broken_tail_is_one_replacement_character() {
    let mut pipeline = open(vec![], &[], &job(&[]));
    let bytes = [0x6e, 0xc3, 0xa9, 0x20, 0xf0, 0x9f, 0x8c, 0xb6, 0xe2, 0x80];
    let mut text: Vec<String> = bytes.iter().flat_map(|b| lines(&pipeline.push(&[*b], Vec::new()).unwrap())).collect();
    text.extend(lines(&pipeline.finish(EndOfStream::Length).unwrap()));
    assert_eq!(text.join(" "), "\"n\" \"é\" \" \" \"🌶\" \"\u{FFFD}\"");
    assert_eq!(pipeline.usage().completion_tokens, 10);
}

#[test]
fn call_ids_are_unique() {
    let mut pipeline = open(vec![brackets()], &[], &job(&["f"]));
    let tokens: Vec<TokenId> = "[f {}][f {}]".bytes().map(TokenId::from).collect();
    let deltas = pipeline.push(&tokens, Vec::new()).unwrap().deltas;
    let ids: Vec<&String> = deltas
        .iter()
        .filter_map(|d| match d {
            Delta::CallStart { id, .. } => Some(id),
            _ => None,
        })
        .collect();
    assert_eq!(ids.len(), 2);
    assert!(ids[0] != ids[1] && ids[0].starts_with("chatcmpl-tool-") && ids[0].len() == 46, "{ids:?}");
}

/// The deltas of a stream, joined per kind: what a client ends up with.
fn folded(pieces: &[Vec<TokenId>], job: &OutputJob) -> (String, String, String) {
    let mut pipeline = open(vec![brackets()], &["<x>"], job);
    let mut deltas = Vec::new();
    for tokens in pieces {
        deltas.extend(pipeline.push(tokens, Vec::new()).unwrap().deltas);
    }
    deltas.extend(pipeline.finish(EndOfStream::Length).unwrap().deltas);
    let (mut content, mut calls) = (String::new(), String::new());
    for delta in deltas {
        match delta {
            Delta::Content(text) => content.push_str(&text),
            Delta::Reasoning(_) => {}
            Delta::CallStart { index, name, .. } => calls.push_str(&format!("({index} {name} ")),
            Delta::CallArguments { fragment, .. } => calls.push_str(&fragment),
            Delta::CallEnd { complete, .. } => calls.push_str(&format!(" {complete})")),
        }
    }
    (content, calls, pipeline.finish_reason().to_owned())
}

proptest! {
    /// The answer depends on the tokens only, never on how the engine's steps cut them.
    #[test]
    fn the_answer_does_not_depend_on_the_steps(
        tokens in prop::collection::vec(
            prop_oneof![
                4 => prop::sample::select(b"ab [] {}\n".to_vec()).prop_map(TokenId::from),
                1 => any::<u8>().prop_map(TokenId::from),
                1 => Just(257),
                1 => Just(256),
            ],
            0..60,
        ),
        sizes in prop::collection::vec(1usize..7, 1..10),
        tools in any::<bool>(),
        stops in prop::collection::vec("[ab <]{1,3}", 0..3),
    ) {
        let mut job = job(if tools { &["a"] } else { &[] });
        job.stop = stops;
        job.stop_tokens.clear();
        let whole = folded(std::slice::from_ref(&tokens), &job);
        let mut pieces = Vec::new();
        let mut rest = tokens.as_slice();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece.to_vec());
            rest = after;
        }
        prop_assert_eq!(folded(&pieces, &job), whole);
    }
}
