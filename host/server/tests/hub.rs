//! Models from a hub on this machine, which may cut connections.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use server::hub::{HubModel, HubSettings, Secret};

/// A hub with one repository `org/m`.
struct Hub {
    endpoint: String,
    files: BTreeMap<String, Vec<u8>>,
    /// Connections that are cut after this many body bytes of a large file; how often is still to come.
    cut_after: usize,
    cuts: AtomicUsize,
    token: Option<&'static str>,
    requests: Mutex<Vec<String>>,
}

const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

impl Hub {
    fn start(files: &[(impl ToString, Vec<u8>)], cuts: usize, token: Option<&'static str>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hub = Arc::new(Self {
            endpoint: format!("http://{}", listener.local_addr().unwrap()),
            files: files.iter().map(|(name, bytes)| (name.to_string(), bytes.clone())).collect(),
            cut_after: 300,
            cuts: AtomicUsize::new(cuts),
            token,
            requests: Mutex::default(),
        });
        let serving = Arc::clone(&hub);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A client that went away is no concern of the hub's.
                let _ = serving.answer(stream);
            }
        });
        hub
    }

    fn settings(&self, cache: &Path) -> HubSettings {
        HubSettings { endpoint: self.endpoint.clone(), cache: Some(cache.join("hub")), token: None }
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines().map_while(Result::ok).take_while(|l| !l.is_empty());
        let request = lines.next().unwrap_or_default();
        let headers: Vec<String> = lines.collect();
        let header = |name: &str| {
            headers.iter().find_map(|line| {
                line.split_once(": ")
                    .filter(|(key, _)| key.eq_ignore_ascii_case(name))
                    .map(|(_, value)| value.to_owned())
            })
        };
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let range = header("range").unwrap_or_default();
        self.requests.lock().unwrap().push(format!("{path} {range}"));
        if self.token.is_some_and(|token| header("authorization").is_none_or(|sent| sent != format!("Bearer {token}")))
        {
            return stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
        if path == "/api/models/org/m/revision/main" {
            let siblings: Vec<_> = self.files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
            let body = serde_json::json!({"siblings": siblings, "sha": SHA}).to_string();
            return write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
        let Some(bytes) = path.strip_prefix("/org/m/resolve/main/").and_then(|name| self.files.get(name)) else {
            return stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        };
        let (start, end) = range.trim_start_matches("bytes=").split_once('-').unwrap_or(("0", ""));
        let start: usize = start.parse().unwrap_or(0);
        let end = end.parse().map_or(bytes.len(), |end: usize| bytes.len().min(end + 1));
        let (body, total, etag) = (&bytes[start..end], bytes.len(), format!("{:x}", bytes.len()));
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {start}-{}/{total}\r\n\
             etag: \"{etag}\"\r\nx-repo-commit: {SHA}\r\nconnection: close\r\n\r\n",
            body.len(),
            end - 1,
        )?;
        let cut = body.len() > self.cut_after
            && self.cuts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |cuts| cuts.checked_sub(1)).is_ok();
        stream.write_all(if cut { &body[..self.cut_after] } else { body })
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * i % 251) as u8).collect()
}

fn fetch(text: &str, hub: &HubSettings) -> Result<PathBuf, String> {
    HubModel::parse(text).and_then(|model| model.fetch(hub, true)).map_err(|error| format!("{error:#}"))
}

#[test]
fn sources_are_read() {
    let shown = |text: &str| {
        HubModel::parse(text)
            .map(|model| format!("{model} {}", model.default_name()))
            .map_err(|error| error.to_string())
    };
    assert_eq!(shown("org/m").unwrap(), "hf:org/m m");
    assert_eq!(shown("org/m:q/m-Q4_K_M.gguf").unwrap(), "hf:org/m:q/m-Q4_K_M.gguf m-Q4_K_M");
    assert_eq!(shown("org/m:refs/pr/1").unwrap(), "hf:org/m:refs/pr/1 m");
    for wrong in ["", "m", "org/", "/m", "org/m/x", "../m", "org/m:", "org/m:../x.gguf", "org/m:/x.gguf", "o g/m"] {
        let error = shown(wrong).unwrap_err();
        assert!(error.contains(&format!("`hf:{wrong}`")), "{error}");
    }
}

#[test]
fn a_folder_is_fetched_once() {
    let cache = tempfile::tempdir().unwrap();
    let files = [("config.json", b"{}".to_vec()), ("model.safetensors", bytes(200)), ("README.md", bytes(20))];
    let hub = Hub::start(&files, 0, None);
    let settings = hub.settings(cache.path());
    let folder = fetch("org/m", &settings).unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), bytes(200));
    assert!(!folder.join("README.md").exists());
    hub.requests.lock().unwrap().clear();
    assert_eq!(fetch("org/m", &settings).unwrap(), folder);
    assert_eq!(*hub.requests.lock().unwrap(), ["/api/models/org/m/revision/main "]);
}

#[test]
fn what_was_cut_goes_on() {
    let cache = tempfile::tempdir().unwrap();
    // Every attempt of the first start ends early; the next start goes on from there.
    let hub = Hub::start(&[("m.gguf", bytes(2_000))], 5, None);
    let settings = hub.settings(cache.path());
    let error = fetch("org/m:m.gguf", &settings).unwrap_err();
    assert!(error.contains("m.gguf (what has come of it stays in"), "{error}");
    let path = fetch("org/m:m.gguf", &settings).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes(2_000));
    let requests = hub.requests.lock().unwrap();
    let ranges: Vec<&str> = requests.iter().filter_map(|line| line.split("m.gguf bytes=").nth(1)).collect();
    assert_eq!(ranges, ["0-0", "0-", "300-", "600-", "900-", "1200-", "0-0", "1500-"]);
}

#[test]
fn without_a_network_the_cache_serves() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::start(&[("m.gguf", bytes(100))], 0, None);
    let path = fetch("org/m", &hub.settings(cache.path())).unwrap();
    // Nobody listens on a port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let offline = HubSettings { endpoint: format!("http://{free}"), ..hub.settings(cache.path()) };
    assert_eq!(fetch("org/m", &offline).unwrap(), path);
    let error = fetch("org/other", &offline).unwrap_err();
    let expected = format!("hf:org/other: http://{free} cannot be reached");
    assert!(error.starts_with(&expected) && error.contains("give the path of a model's file"), "{error}");
}

#[test]
fn refusals_say_what_to_do() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::start(&[("m.gguf", bytes(10))], 0, Some("secret"));
    let error = fetch("org/m", &hub.settings(cache.path())).unwrap_err();
    assert!(error.contains("needs a token that may read it in HF_TOKEN"), "{error}");
    let token = Some(Secret("secret".into()));
    let settings = HubSettings { token, ..hub.settings(cache.path()) };
    assert!(fetch("org/m", &settings).is_ok());
    let error = fetch("org/m:v2", &settings).unwrap_err();
    assert!(error.contains("hf:org/m:v2") && error.contains("no such repository, revision or file"), "{error}");
    assert!(!format!("{settings:?}").contains("secret"));
}

/// What is fetched of a repository with these files, in the order of the requests, or why nothing is.
fn chosen(listed: &str, source: &str) -> Result<String, String> {
    let cache = tempfile::tempdir().unwrap();
    let files: Vec<(String, Vec<u8>)> = listed.split_whitespace().map(|name| (name.to_owned(), bytes(9))).collect();
    let hub = Hub::start(&files, 0, None);
    let path = fetch(source, &hub.settings(cache.path()))?;
    assert!(path.starts_with(cache.path()), "{}", path.display());
    let requests = hub.requests.lock().unwrap();
    let whole = requests.iter().filter_map(|line| line.strip_prefix("/org/m/resolve/main/")?.strip_suffix(" bytes=0-"));
    Ok(whole.collect::<Vec<_>>().join(" "))
}

#[test]
fn a_repository_is_a_folder_or_one_gguf_model() {
    let check = |listed: &str, source: &str, expected: Result<&str, &str>| match (chosen(listed, source), expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{listed}"),
        (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}\nexpected {expected}"),
        (found, expected) => panic!("{listed} {source}: {found:?}, expected {expected:?}"),
    };
    check(
        "README.md model-2.safetensors tokenizer.json config.json model-1.safetensors x/model.safetensors",
        "org/m",
        Ok("config.json tokenizer.json model-1.safetensors model-2.safetensors"),
    );
    check("a.gguf mmproj-a.gguf README.md", "org/m", Ok("a.gguf"));
    let split = "q/m-00001-of-00002.gguf q/m-00002-of-00002.gguf m-00001-of-00002.gguf a.gguf";
    check(split, "org/m:q/m-00001-of-00002.gguf", Ok("q/m-00001-of-00002.gguf q/m-00002-of-00002.gguf"));
    check(split, "org/m:m-00001-of-00002.gguf", Err("m-00002-of-00002.gguf is missing: the model has 2 parts"));
    check(split, "org/m", Err("it has 3 GGUF models: name one as hf:ORG/NAME:FILE: a.gguf, m-00001-of-00002.gguf"));
    check("a.gguf", "org/m:c.gguf", Err("there is no c.gguf; GGUF models are: a.gguf"));
    check("README.md", "org/m", Err("neither config.json with model*.safetensors nor a GGUF file"));
    // Names that lead out of the cache do not count.
    check("../evil.gguf /etc/evil.gguf a/../../evil.gguf good.gguf", "org/m", Ok("good.gguf"));
}

#[test]
fn without_weights_only_texts_are_fetched() {
    let cache = tempfile::tempdir().unwrap();
    let files = [("config.json", b"{}".to_vec()), ("model.safetensors", bytes(200))];
    let hub = Hub::start(&files, 0, None);
    let folder = HubModel::parse("org/m").unwrap().fetch(&hub.settings(cache.path()), false).unwrap();
    assert!(folder.join("config.json").exists() && !folder.join("model.safetensors").exists());
}
