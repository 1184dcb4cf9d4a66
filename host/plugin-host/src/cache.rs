//! Compiled components on disk, so that only the first start pays for compiling.
//!
//! A file is named by the component's SHA-256 and by what wasmtime says code must agree on (version, target, config).
//! Loading compiled code is as dangerous as running a native binary, so a file counts only if its first 32 bytes are the
//! authentication code (keyed BLAKE3) of its name and the rest under a key that lies in the same folder with mode 0600,
//! and the folder is 0700. Who can read the key is this user already. Anything else (truncated, edited, copied from
//! elsewhere) is compiled again. A `.cwasm` file given by a user is never loaded.

use std::fs::{self, File, OpenOptions};
use std::hash::Hash;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wasmtime::Engine;

use crate::digest::{Sha, ShaHasher, hex, keyed};

/// A component compiles to two or three times its size; 64 MiB components are the largest allowed.
const FILE_BYTES_MAX: u64 = 512 << 20;
/// Older files are deleted beyond this: each rebuild of a plugin, and each new server, leaves one behind.
const FILES_MAX: usize = 64;
/// The authentication code in front of what was compiled.
const MAC_BYTES: usize = blake3::OUT_LEN;
/// How a file is made. Those of an earlier form have other names, and are deleted as they grow old.
const FORM: &str = "blake3";

pub(crate) struct Cache {
    dir: PathBuf,
    key: Sha,
    /// Makes names of temporary files differ within this process.
    serial: AtomicU64,
}

impl Cache {
    /// Opens or makes the folder. An error means: go on without a cache, and say so.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let meta = fs::symlink_metadata(dir)?;
        if !meta.is_dir() {
            return Err(io::Error::other(format!("{} is not a folder", dir.display())));
        }
        if meta.mode() & 0o077 != 0 {
            // Fails when the folder is somebody else's, and then it is no place for code we run.
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        }
        Ok(Self { dir: dir.into(), key: key(&dir.join("key"))?, serial: AtomicU64::new(0) })
    }

    /// The compiled code, if there is a file and it is ours.
    pub fn get(&self, component: &Sha, engine: &Engine) -> Option<Compiled> {
        let name = name(component, engine);
        let bytes = read_limited(&self.dir.join(&name), FILE_BYTES_MAX).ok()?;
        let (mac, compiled) = bytes.split_first_chunk::<MAC_BYTES>()?;
        let ours = keyed(&self.key, &[name.as_bytes(), compiled]) == *mac;
        if !ours {
            tracing::warn!(file = name, "a compiled plugin in the cache is not as it was written; compiling again");
        }
        ours.then_some(Compiled(bytes))
    }

    /// Keeps compiled code. Written beside and renamed, so that a reader never sees half a file.
    pub fn put(&self, component: &Sha, engine: &Engine, compiled: &[u8]) -> io::Result<()> {
        let name = name(component, engine);
        let serial = self.serial.fetch_add(1, Relaxed);
        let temporary = self.dir.join(format!(".{name}.{}.{serial}", std::process::id()));
        let written = create_private(&temporary).and_then(|mut file| {
            file.write_all(keyed(&self.key, &[name.as_bytes(), compiled]).as_bytes())?;
            file.write_all(compiled)?;
            fs::rename(&temporary, self.dir.join(&name))
        });
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        written?;
        self.prune()
    }

    /// Deletes the oldest files beyond [`FILES_MAX`].
    fn prune(&self) -> io::Result<()> {
        let mut files: Vec<_> = fs::read_dir(&self.dir)?
            .filter_map(Result::ok)
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "cwasm"))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        files.sort();
        let surplus = files.len().saturating_sub(FILES_MAX);
        files.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// A file of the cache that was found to be ours.
pub(crate) struct Compiled(Vec<u8>);

impl Compiled {
    pub fn code(&self) -> &[u8] {
        self.0.get(MAC_BYTES..).unwrap_or_default()
    }
}

fn name(component: &Sha, engine: &Engine) -> String {
    let mut hasher = ShaHasher::default();
    (FORM, engine.precompile_compatibility_hash()).hash(&mut hasher);
    format!("{}-{}.cwasm", hex(component), hex(&hasher.digest()[..8]))
}

/// Reads the folder's key, or makes one.
fn key(path: &Path) -> io::Result<Sha> {
    let mut fresh = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut fresh)?;
    match create_private(path) {
        Ok(mut file) => file.write_all(&fresh)?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    let bytes = read_limited(path, 1 << 10)?;
    match Sha::try_from(bytes.as_slice()) {
        Ok(key) => Ok(key),
        Err(_) => {
            // Cut short by a crash or edited: what was written under the old key is compiled again.
            fs::remove_file(path)?;
            create_private(path)?.write_all(&fresh)?;
            Ok(fresh)
        }
    }
}

fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Reads a file of at most `bytes_max`.
pub(crate) fn read_limited(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // One byte more than there is, so that the end is seen without growing.
    let mut bytes = Vec::with_capacity(file.metadata()?.len().min(bytes_max) as usize + 1);
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}
