//! What each of the 32 misbehaviours (`host/plugin-host/tests/it/rows.rs`) does to the streams of others: a server with a
//! well-behaved model and a hostile one over one engine, clients of both, and the time between the chunks that the
//! well-behaved one's clients get.
//!
//! A row's delay is the longest time between two chunks, less the time of a step. The text must be what it is without the
//! hostile model, and memory must come back. What an allocator keeps for the next time is no leak: a row that leaves more
//! than [`LEFT_MIB`] is played [`AGAIN`] times more, and must leave no more than that on top.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::TestServer;
use testkit::fold::fold;

use crate::args::Args;
use crate::memory::rss_bytes;
use crate::platform::{round, verdict};

const DELAY_MS_MAX: f64 = 20.0;
const LEFT_MIB: f64 = 4.0;
const AGAIN: usize = 10;
/// Clients of the well-behaved model, and of the hostile one.
const STREAMS: usize = 8;
const HOSTILE_CLIENTS: usize = 2;
const STEP_MS: u64 = 10;
const KEY: &str = "operator";
const OUTPUT: &str = "output";

/// What the hostile side does for as long as the streams run.
enum Attack {
    Nothing,
    /// Requests to a model with this fixture as its stage: its name, its faults, its limits.
    Stage(&'static str, &'static str, &'static str),
    /// Requests to a model with the hostile template.
    Template(&'static str),
    /// The engine's scheduler is the hostile one.
    Scheduler(&'static str),
    /// Exchanges with a candidate that is refused.
    Candidate(Candidate),
    /// The model writes half a character.
    HalfCharacter,
    /// As the first, and then the server ends while its call runs.
    Shutdown,
}

/// A file that is no plugin to serve.
#[derive(Clone, Copy)]
enum Candidate {
    /// A fixture with these settings.
    Fixture(&'static str, &'static str),
    /// A fixture with one word of its bytes replaced by another of the same length.
    Renamed(&'static str, &'static str, &'static str),
    Text,
    WrongDigest,
    /// A bundled plugin with settings that its schema does not know.
    Settings,
    /// A component for which the cache holds forged code.
    ForgedCache,
    /// A component of a megabyte that was never compiled before.
    LongCompile,
}

const DEFAULTS: &str = "";
const SHARED: &str = "[limits]\nstreams_per_store = 2\n";
const BIG: &str = "[limits]\nmemory_mib = 2048\ncall_ms = 100\n";

const CAPABLE: &str = "capabilities = [\"log\", \"metrics\", \"tokenizer\"]\n";

/// Number, what the plugin does, and how.
const ROWS: [(u8, &str, Attack); 33] = [
    (0, "(nobody misbehaves)", Attack::Nothing),
    (1, "loops in a call", Attack::Stage(OUTPUT, "feed=loop", DEFAULTS)),
    (2, "loops while it is loaded", Attack::Candidate(Candidate::Fixture("endless-start", ""))),
    (3, "is slow, but ends", Attack::Stage(OUTPUT, "feed=memory", BIG)),
    (4, "eats memory", Attack::Stage(OUTPUT, "feed=memory", DEFAULTS)),
    (5, "leaks slowly", Attack::Stage(OUTPUT, "feed=hold", SHARED)),
    (6, "traps", Attack::Stage(OUTPUT, "feed=trap@9", DEFAULTS)),
    (7, "crashes again and again", Attack::Scheduler("step=trap")),
    (8, "traps on one input wherever it runs", Attack::Stage(OUTPUT, "feed=trap", DEFAULTS)),
    (9, "answers with megabytes", Attack::Stage(OUTPUT, "feed=huge", DEFAULTS)),
    (10, "writes long messages", Attack::Stage(OUTPUT, "feed=error", DEFAULTS)),
    (11, "recurses without end", Attack::Stage(OUTPUT, "feed=recurse", DEFAULTS)),
    (12, "speaks another version", Attack::Candidate(Candidate::Renamed(OUTPUT, "@0.1.0", "@0.9.0"))),
    (13, "lacks an export", Attack::Candidate(Candidate::Renamed(OUTPUT, "output/stage", "output/stagf"))),
    (14, "imports what nobody granted", Attack::Candidate(Candidate::Fixture("capable", ""))),
    (15, "is no component", Attack::Candidate(Candidate::Text)),
    (16, "is another file than was pinned", Attack::Candidate(Candidate::WrongDigest)),
    (17, "has forged or damaged compiled code", Attack::Candidate(Candidate::ForgedCache)),
    (18, "takes for ever to compile", Attack::Candidate(Candidate::LongCompile)),
    (19, "plans nonsense", Attack::Scheduler("step=disorder")),
    (20, "breaks the order of events", Attack::Stage(OUTPUT, "feed=disorder", DEFAULTS)),
    (21, "swallows text", Attack::Candidate(Candidate::Fixture(OUTPUT, "finish=many feed=hold"))),
    (22, "never flushes", Attack::Stage(OUTPUT, "feed=hold", DEFAULTS)),
    (23, "meets half a character", Attack::HalfCharacter),
    (24, "is not deterministic", Attack::Scheduler("step=loop")),
    (25, "carries data from one request to the next", Attack::Stage(OUTPUT, "feed=trap@45", DEFAULTS)),
    (26, "is called by what it calls", Attack::Stage("capable", "", CAPABLE)),
    (27, "leaks handles", Attack::Stage(OUTPUT, "feed=leak", DEFAULTS)),
    (28, "floods the host with calls", Attack::Stage("capable", "feed=many", CAPABLE)),
    (29, "gets settings that it does not know", Attack::Candidate(Candidate::Settings)),
    (30, "copies memory for longer than a tick", Attack::Stage(OUTPUT, "feed=huge", "[limits]\nmemory_mib = 64\n")),
    (31, "is asked by more threads than it has stores", Attack::Template("render=loop")),
    (32, "is in a call when the server ends", Attack::Shutdown),
];

pub fn run(args: &Args) -> Result<Value> {
    let cache = tempfile::tempdir()?;
    println!("{:>3} {:<44} {:>9} {:>9} {:>9} {:>10}", "row", "a plugin", "p50 ms", "p99 ms", "delay ms", "left MiB");
    let (mut rows, mut worst, mut grown) = (Vec::new(), 0.0_f64, 0.0_f64);
    for (number, what, attack) in &ROWS {
        let row = Scene::new(attack, cache.path(), args)?.play(attack)?;
        if *number > 0 {
            worst = worst.max(row.delay_ms);
        }
        println!(
            "{number:>3} {what:<44} {:>9.1} {:>9.1} {:>9.1} {:>10.1}",
            row.p50_ms, row.p99_ms, row.delay_ms, row.left_mib
        );
        if let Some(mib) = row.grown_mib {
            println!("{:>72} after {AGAIN} more {mib:>+6.1} MiB", "");
            grown = grown.max(mib);
        }
        rows.push(json!({
            "row": number, "plugin": what, "gap_p50_ms": round(row.p50_ms), "gap_p99_ms": round(row.p99_ms),
            "delay_ms": round(row.delay_ms), "left_mib": round(row.left_mib),
            "grown_mib": row.grown_mib.map(round), "attacks": row.attacks,
            "shutdown_ms": row.shutdown_ms.map(round),
        }));
    }
    println!("longest delay {worst:.1} ms; the goal of {DELAY_MS_MAX} is {}", verdict(worst < DELAY_MS_MAX));
    println!(
        "most memory that ten attacks added {grown:.1} MiB; the limit of {LEFT_MIB} is {}",
        verdict(grown < LEFT_MIB)
    );
    Ok(json!({
        "streams": STREAMS, "hostile_clients": HOSTILE_CLIENTS, "step_ms": STEP_MS, "rows": rows,
        "delay_ms_max": DELAY_MS_MAX, "longest_ms": round(worst),
        "grown_mib_max": LEFT_MIB, "most_grown_mib": round(grown),
    }))
}

struct Row {
    p50_ms: f64,
    p99_ms: f64,
    delay_ms: f64,
    left_mib: f64,
    /// By how much more after [`AGAIN`] further attacks, where the first ones left much.
    grown_mib: Option<f64>,
    attacks: usize,
    /// Until the server was down, with a stream in a call that does not end.
    shutdown_ms: Option<f64>,
}

/// A server for one row.
struct Scene {
    server: TestServer,
    plugins: tempfile::TempDir,
    cache: PathBuf,
    text: String,
    /// Makes candidates differ.
    serial: AtomicUsize,
}

impl Scene {
    fn new(attack: &Attack, cache: &Path, args: &Args) -> Result<Self> {
        let plugins = tempfile::tempdir()?;
        let text = "calm ".repeat(if args.quick { 10 } else { 50 });
        let bad = match attack {
            Attack::HalfCharacter => {
                json!({"match": "go", "token_bytes_hex": ["f09f", "e2", "41", "ff"], "delay_ms": STEP_MS})
            }
            _ => json!({"match": "go", "text": "word ".repeat(8), "delay_ms": STEP_MS}),
        };
        let good = json!({"match": "calm", "text": text, "delay_ms": STEP_MS});
        let script = json!({"responses": [good, bad]}).to_string();
        let (mut stage, mut template, mut scheduler) = ("hermes".to_owned(), String::new(), "fcfs".to_owned());
        match attack {
            Attack::Stage(fixture, faults, limits) => stage = put(plugins.path(), fixture, faults, limits)?,
            Attack::Template(faults) => {
                let file = put(plugins.path(), "template", faults, "")?;
                template = format!("chat_template = \"{file}\"\n");
            }
            Attack::Scheduler(faults) => scheduler = put(plugins.path(), "scheduler", faults, "")?,
            Attack::Shutdown => stage = put(plugins.path(), OUTPUT, "feed=loop", DEFAULTS)?,
            Attack::Nothing | Attack::Candidate(_) | Attack::HalfCharacter => {}
        }
        let config = format!(
            "[server]\nkeys_file = \"keys.toml\"\nplugins_dir = \"{}\"\nplugin_cache = \"{}\"\nshutdown_grace_s = 1\n\
             [engine.e]\nsource = \"script:s.json\"\nmax_num_seqs = 64\nscheduler = \"{scheduler}\"\n\
             [[model]]\nname = \"good\"\nengine = \"e\"\noutput = [\"qwen3\", \"hermes\"]\n\
             [[model]]\nname = \"bad\"\nengine = \"e\"\noutput = [\"{stage}\"]\n{template}\
             [plugin.capable]\ngrant = [\"log\", \"metrics\", \"tokenizer\"]\n",
            plugins.path().display(),
            cache.display(),
        );
        let keys = format!("[[key]]\nsha256 = \"{}\"\ntenant = \"op\"\nadmin = true\n", sha256(KEY.as_bytes()));
        let server = TestServer::config(&config, &[("s.json", &script), ("keys.toml", &keys)])?;
        Ok(Self { server, plugins, cache: cache.to_path_buf(), text, serial: AtomicUsize::new(0) })
    }

    fn play(self, attack: &Attack) -> Result<Row> {
        // One stream of each model first, so that what is made once is made.
        self.stream()?;
        let prepared = self.prepare(attack)?;
        self.attack(attack, prepared.as_ref())?;
        let before = rss_bytes()?;
        let over = AtomicBool::new(false);
        let (gaps, attacks) = std::thread::scope(|scope| -> Result<(Vec<f64>, usize)> {
            let streams: Vec<_> = (0..STREAMS).map(|_| scope.spawn(|| self.stream())).collect();
            let clients: Vec<_> = (0..HOSTILE_CLIENTS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut count = 0;
                        while !over.load(Relaxed) {
                            self.attack(attack, prepared.as_ref())?;
                            count += 1;
                        }
                        anyhow::Ok(count)
                    })
                })
                .collect();
            let gaps: Vec<Result<Vec<f64>>> =
                streams.into_iter().map(|stream| stream.join().expect("no panic")).collect();
            over.store(true, Relaxed);
            let mut attacks = 0;
            for client in clients {
                attacks += client.join().expect("no panic")?;
            }
            Ok((gaps.into_iter().collect::<Result<Vec<_>>>()?.concat(), attacks))
        })?;
        let since = |before: u64| anyhow::Ok((rss_bytes()? as f64 - before as f64) / 1048576.0);
        let left_mib = since(before)?;
        let grown_mib = if left_mib > LEFT_MIB {
            let before = rss_bytes()?;
            (0..AGAIN).try_for_each(|_| self.attack(attack, prepared.as_ref()))?;
            Some(since(before)?)
        } else {
            None
        };
        let mut gaps = gaps;
        gaps.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
        let row = Row {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            delay_ms: at(1.0) - at(0.5),
            left_mib,
            grown_mib,
            attacks,
            shutdown_ms: None,
        };
        let shutdown_ms = match attack {
            Attack::Shutdown => Some(self.shutdown_ms()?),
            _ => None,
        };
        Ok(Row { shutdown_ms, ..row })
    }

    /// One stream of the well-behaved model: milliseconds between its chunks.
    fn stream(&self) -> Result<Vec<f64>> {
        let body = json!({"model": "good", "messages": [{"role": "user", "content": "calm"}], "stream": true});
        let (mut events, mut gaps, mut last) = (Vec::new(), Vec::new(), None);
        for event in self.server.open_stream_with("/v1/chat/completions", &authorization(), &body)? {
            let now = Instant::now();
            // The first chunk waits for the prompt.
            if let Some(last) = last.replace(now).filter(|_| events.len() > 2) {
                gaps.push(now.duration_since(last).as_secs_f64() * 1e3);
            }
            events.push(event?);
        }
        // The last ones come together.
        gaps.truncate(gaps.len().saturating_sub(3));
        let folded = fold(&events)?;
        let text = folded.choices.first().map(|choice| choice.content.as_str());
        ensure!(text == Some(&self.text), "another text came: {text:?}");
        Ok(gaps)
    }

    /// A candidate's file, and what is asked with it.
    fn prepare(&self, attack: &Attack) -> Result<Option<Value>> {
        let Attack::Candidate(candidate) = attack else { return Ok(None) };
        let folder = self.plugins.path();
        let (mut digest, mut settings) = (None, Value::Null);
        let file = match *candidate {
            Candidate::Fixture(fixture, faults) => put(folder, fixture, faults, "")?,
            Candidate::Renamed(fixture, from, to) => {
                let file = put(folder, fixture, "", "")?;
                let mut bytes = std::fs::read(&file)?;
                let places: Vec<usize> = bytes
                    .windows(from.len())
                    .enumerate()
                    .filter(|(_, w)| *w == from.as_bytes())
                    .map(|(at, _)| at)
                    .collect();
                places.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
                std::fs::write(&file, bytes)?;
                file
            }
            Candidate::Text => {
                let file = put(folder, OUTPUT, "", "")?;
                std::fs::write(&file, "hello")?;
                file
            }
            Candidate::WrongDigest => {
                digest = Some("0".repeat(64));
                put(folder, OUTPUT, "", "")?
            }
            Candidate::Settings => {
                settings = json!({"nonsense": 1});
                copy(folder, "hermes", "hermes", &[])?
            }
            // These are made anew each time.
            Candidate::ForgedCache | Candidate::LongCompile => return Ok(None),
        };
        let digest = match digest {
            Some(digest) => digest,
            None => sha256(&std::fs::read(&file)?),
        };
        let mut order = order(&file, &digest);
        if !settings.is_null() {
            order["settings"] = settings;
        }
        Ok(Some(order))
    }

    /// An exchange with a component that no server has seen: a bundled one with a section more.
    fn fresh(&self, name: &str, forge: bool) -> Result<Value> {
        let number = self.serial.fetch_add(1, Relaxed);
        let salt = format!("{number:08}");
        // A custom section: id 0, size, the name's length, the name.
        let section = [&[0, 9, 8], salt.as_bytes()].concat();
        let file = copy(self.plugins.path(), name, &format!("{name}-{number}"), &section)?;
        let digest = sha256(&std::fs::read(&file)?);
        if forge {
            for entry in std::fs::read_dir(&self.cache)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if let Some((_, engine)) = name.split_once('-') {
                    std::fs::write(self.cache.join(format!("{digest}-{engine}")), b"not what was compiled")?;
                }
            }
        }
        Ok(order(&file, &digest))
    }

    /// One misbehaviour. What its client gets is not looked at: that is what the rows' tests do.
    fn attack(&self, attack: &Attack, prepared: Option<&Value>) -> Result<()> {
        match attack {
            Attack::Nothing | Attack::Scheduler(_) => std::thread::sleep(Duration::from_millis(50)),
            Attack::Stage(..) | Attack::Template(_) | Attack::HalfCharacter | Attack::Shutdown => {
                self.server.post_with("/v1/chat/completions", &authorization(), &bad_request())?;
            }
            Attack::Candidate(candidate) => {
                let (kind, order) = match (candidate, prepared) {
                    (Candidate::LongCompile, _) => ("template", self.fresh("jinja", false)?),
                    (_, Some(prepared)) => (OUTPUT, prepared.clone()),
                    (_, None) => (OUTPUT, self.fresh("kimi_k2", true)?),
                };
                let answer =
                    self.server.post_with(&format!("/plugins/bad/{kind}"), &authorization(), &order.to_string())?;
                // Two clients exchange one place: one of them may be told to wait.
                ensure!(matches!(answer.status, 409 | 422), "a hostile candidate was taken: {}", answer.text);
            }
        }
        Ok(())
    }

    /// The server is asked to end while a stream is inside a plugin's call.
    fn shutdown_ms(self) -> Result<f64> {
        let body = bad_request();
        let mut socket = TcpStream::connect(self.server.address())?;
        write!(
            socket,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        // By then its first token has come, and the stage loops.
        std::thread::sleep(Duration::from_millis(5 * STEP_MS));
        let started = Instant::now();
        self.server.shutdown()?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }
}

fn authorization() -> [(&'static str, &'static str); 1] {
    [("authorization", "Bearer operator")]
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bad_request() -> String {
    json!({"model": "bad", "messages": [{"role": "user", "content": "go"}]}).to_string()
}

fn order(file: &str, digest: &str) -> Value {
    let name = Path::new(file).file_name().map(|name| name.to_string_lossy().into_owned());
    json!({"file": name, "sha256": digest, "shadow_seconds": 0})
}

/// Puts a fixture with its manifest and a case that it cannot pass into the folder; the path of its component.
fn put(folder: &Path, fixture: &str, faults: &str, more: &str) -> Result<String> {
    let kind = match fixture {
        "template" | "scheduler" => fixture,
        _ => OUTPUT,
    };
    let own = if fixture == "endless-start" { OUTPUT } else { fixture };
    let manifest = format!(
        "name = \"hostile-{own}\"\nversion = \"0.1.0\"\nkind = \"{kind}\"\nwit = \"tokenloom:{kind}@0.1.0\"\n{more}\
         [settings]\nfaults = \"{faults}\"\n"
    );
    let wasm = std::fs::read(testkit::repository().join(format!("plugins/fixtures/dist/{fixture}.wasm")))?;
    write(folder, fixture, &wasm, &manifest)
}

/// Puts a bundled plugin into the folder, with some bytes more.
fn copy(folder: &Path, name: &str, to: &str, more: &[u8]) -> Result<String> {
    let dist = testkit::repository().join("plugins/dist");
    let wasm = [std::fs::read(dist.join(format!("{name}.wasm")))?.as_slice(), more].concat();
    let manifest = std::fs::read_to_string(dist.join(format!("{name}.toml")))?;
    let unpinned: Vec<&str> = manifest.lines().filter(|line| !line.starts_with("sha256")).collect();
    write(folder, to, &wasm, &unpinned.join("\n"))
}

fn write(folder: &Path, name: &str, wasm: &[u8], manifest: &str) -> Result<String> {
    const CASE: &str = r#"{"id": "never", "area": "tool", "title": "What nobody passes", "input": {"tools": [], "tool_choice": "none", "deltas": ["some ", "text"], "engine_finish_reason": "stop"}, "expected": {"content": "other text", "finish_reason": "stop"}}"#;
    let path = folder.join(format!("{name}.wasm"));
    std::fs::write(&path, wasm)?;
    std::fs::write(path.with_extension("toml"), manifest)?;
    std::fs::write(path.with_extension("cases.jsonl"), CASE)?;
    Ok(path.display().to_string())
}
