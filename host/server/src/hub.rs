//! Models from a hub: `hf:ORG/NAME`, `hf:ORG/NAME:FILE.gguf` or `hf:ORG/NAME:REVISION`.
//!
//! Files go to the cache that other programs of the hub share, so nothing is fetched twice; an interrupted file goes on
//! where it stopped. Without a network, what the cache holds is served.

mod choose;
mod download;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use choose::{Want, choose};
use download::Download;

/// Where models are fetched from, and where they are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    pub endpoint: String,
    /// `None`: this user has no home folder.
    pub cache: Option<PathBuf>,
    /// For private and gated repositories.
    pub token: Option<Secret>,
}

/// A text that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The hub itself.
pub const ENDPOINT_DEFAULT: &str = "https://huggingface.co";
/// A cut connection is taken up again so often before the start fails.
const RETRIES: usize = 3;
const REVISION_DEFAULT: &str = "main";

/// A model of a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `ORG/NAME`.
    repository: String,
    /// A branch, a tag or a commit.
    revision: String,
    file: Option<String>,
}

impl HubModel {
    /// Reads what stands behind `hf:`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let (repository, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let well_formed = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let named = repository.split_once('/').is_some_and(|(org, name)| well_formed(org) && well_formed(name));
        ensure!(named, "`hf:{text}` is not hf:ORG/NAME, hf:ORG/NAME:FILE.gguf or hf:ORG/NAME:REVISION");
        let mut model = Self { repository: repository.to_owned(), revision: REVISION_DEFAULT.to_owned(), file: None };
        match rest {
            None => {}
            Some(rest) if !is_safe(rest) => bail!("`hf:{text}`: `{rest}` is no file or revision of a repository"),
            Some(file) if file.ends_with(".gguf") => model.file = Some(file.to_owned()),
            Some(revision) => revision.clone_into(&mut model.revision),
        }
        Ok(model)
    }

    /// The repository's name, or the file's.
    pub fn default_name(&self) -> String {
        let own = |text: &str| text.rsplit('/').next().unwrap_or(text).to_owned();
        match &self.file {
            Some(file) => own(file.strip_suffix(".gguf").unwrap_or(file)),
            None => own(&self.repository),
        }
    }

    /// The model's file or folder on this machine; fetches what is not there. With `weights: false` a folder's weights
    /// stay where they are.
    pub fn fetch(&self, hub: &HubSettings, weights: bool) -> anyhow::Result<PathBuf> {
        // The library panics on answers that break the protocol; a thread turns that into an error.
        let fetch = || std::thread::scope(|scope| scope.spawn(|| self.fetch_here(hub, weights)).join());
        fetch().unwrap_or_else(|_| bail!("{self}: {} does not speak the hub's protocol", hub.endpoint))
    }

    fn fetch_here(&self, hub: &HubSettings, weights: bool) -> anyhow::Result<PathBuf> {
        let cache = Cache::new(hub.cache.clone().context("no folder for fetched models: set `server.hub_cache`")?);
        let repo = Repo::with_revision(self.repository.clone(), RepoType::Model, self.revision.clone());
        let api = api(hub, &cache)?;
        let remote = api.repo(repo.clone());
        let listed: Vec<String> = match remote.info() {
            Ok(info) => {
                ensure!(info.sha.chars().all(|c| c.is_ascii_alphanumeric()), "{self}: a commit named {:?}", info.sha);
                // From here on the cache's files are those of this commit, not of the last one fetched.
                cache.repo(repo.clone()).create_ref(&info.sha).with_context(|| cache.path().display().to_string())?;
                info.siblings.into_iter().map(|file| file.rfilename).filter(|name| is_safe(name)).collect()
            }
            Err(error) => match snapshot(&cache, &repo) {
                Some(folder) => {
                    let why = self.explain(hub, error);
                    tracing::warn!("{why:#}; serving what was fetched before");
                    let want = self.choose(&files_of(&folder)?, weights)?;
                    return Ok(folder.join(want.path()));
                }
                None => return Err(self.explain(hub, error)),
            },
        };
        let want = self.choose(&listed, weights)?;
        for file in want.files() {
            self.file(&remote, &cache, &repo, file).map_err(|error| self.explain(hub, error)).with_context(|| {
                format!("{file} (what has come of it stays in {} and is not fetched again)", cache.path().display())
            })?;
        }
        let folder = snapshot(&cache, &repo).context("the cache lost what was fetched")?;
        Ok(folder.join(want.path()))
    }

    fn choose(&self, listed: &[String], weights: bool) -> anyhow::Result<Want> {
        choose(listed, self.file.as_deref(), weights).with_context(|| self.to_string())
    }

    fn file(&self, remote: &ApiRepo, cache: &Cache, repo: &Repo, file: &str) -> Result<(), ApiError> {
        if cache.repo(repo.clone()).get(file).is_some() {
            return Ok(());
        }
        let mut download = Download::new(&format!("{}/{file}", self.repository));
        let path = remote.download_with_progress(file, download.listener())?;
        if let Err(cut) = download.finish() {
            // A server that ignored where to go on from: the file is no use to anybody.
            if let Ok(blob) = std::fs::canonicalize(&path) {
                std::fs::remove_file(blob)?;
            }
            std::fs::remove_file(path)?;
            return Err(ApiError::IoError(std::io::Error::other(cut)));
        }
        Ok(())
    }

    /// What to do about an error.
    fn explain(&self, hub: &HubSettings, error: ApiError) -> anyhow::Error {
        let (endpoint, text) = (&hub.endpoint, error.to_string());
        let ApiError::RequestError(request) = error else { return anyhow::anyhow!("{self}: {text}") };
        match request.into_response().map(|response| response.status()) {
            Some(401 | 403) => anyhow::anyhow!(
                "{self}: {endpoint} refuses it: it does not exist, or needs a token that may read it in HF_TOKEN"
            ),
            Some(404) => anyhow::anyhow!("{self}: {endpoint} has no such repository, revision or file"),
            Some(status) => anyhow::anyhow!("{self}: {endpoint} answers with status {status}; try again later"),
            None => anyhow::anyhow!(
                "{self}: {endpoint} cannot be reached ({text}); without a network, give the path of a model's file or \
                 folder"
            ),
        }
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repository)?;
        if self.revision != REVISION_DEFAULT {
            write!(f, ":{}", self.revision)?;
        }
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

/// A relative path that stays below where it starts: names come from a server.
fn is_safe(name: &str) -> bool {
    let fine = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.len() < 512 && !name.contains(['\\', ':', '\0']) && name.split('/').all(fine)
}

fn api(hub: &HubSettings, cache: &Cache) -> anyhow::Result<Api> {
    let mut builder = ApiBuilder::from_cache(cache.clone())
        .with_endpoint(hub.endpoint.trim_end_matches('/').to_owned())
        .with_retries(RETRIES)
        .with_progress(false);
    if let Some(Secret(token)) = &hub.token {
        builder = builder.with_token(Some(token.clone()));
    }
    Ok(builder.build()?)
}

/// The cache's folder of a revision, when it has one.
fn snapshot(cache: &Cache, repo: &Repo) -> Option<PathBuf> {
    let own = cache.path().join(repo.folder_name());
    let commit = std::fs::read_to_string(own.join("refs").join(repo.revision())).ok()?;
    Some(own.join("snapshots").join(commit.trim())).filter(|folder| folder.is_dir())
}

/// Names of the files of a folder and of the folders in it.
fn files_of(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let nested = if path.is_dir() { std::fs::read_dir(&path)?.collect::<Result<Vec<_>, _>>()? } else { Vec::new() };
        let paths = if path.is_dir() { nested.into_iter().map(|entry| entry.path()).collect() } else { vec![path] };
        let inside = paths.iter().filter(|path| path.is_file()).filter_map(|path| path.strip_prefix(folder).ok());
        names.extend(inside.map(|path| path.to_string_lossy().into_owned()));
    }
    Ok(names)
}
