//! What happens to a component before its first call: read, hash, compile, look at imports and exports, link.

use std::borrow::Cow;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};

use wasmtime::Engine;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, InstancePre, Linker};

use crate::bundled::Found;
use crate::cache::{Cache, read_limited};
use crate::caps;
use crate::clean::{clean, cut};
use crate::config::{Capability, Grants, HostConfig, PluginSource};
use crate::digest::{Sha, hex, sha256};
use crate::error::PluginLoadError;
use crate::manifest::{Kind, MANIFEST_BYTES_MAX, Manifest};
use crate::sandbox::StoreData;
use crate::signature::signer;

/// The WIT version this host speaks. Before 1.0 the minor number is the major one.
const WIT_VERSION: &str = "0.1.0";
const LIFECYCLE: &str = "tokenloom:plugin/lifecycle";
/// Compiling recurses over nested blocks.
const COMPILE_STACK_BYTES: usize = 8 << 20;

/// A component's bytes and what its manifest says.
pub(crate) struct Artifact {
    /// For errors: the manifest's name, or the file's stem.
    pub name: String,
    pub source: String,
    pub bytes: Cow<'static, [u8]>,
    pub digest: Sha,
    pub manifest: Option<Manifest>,
    pub alias_settings: Option<toml::Table>,
    /// The operator's name of the key that signed it.
    pub signed_by: Option<String>,
}

impl Artifact {
    /// Reads a source and checks everything that can be checked without compiling. `pin` is the operator's own.
    pub fn read(source: &PluginSource, config: &HostConfig, pin: Option<&str>) -> Result<Self, PluginLoadError> {
        let (name, bytes, digest, manifest, alias_settings) = match source {
            PluginSource::Bundled(name) => {
                let Found { wasm, digest, manifest, alias_settings } = config.catalogue.find(name)?;
                (manifest.name.clone(), wasm.clone(), digest, Some(manifest), alias_settings)
            }
            PluginSource::File(path) => {
                let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
                let bytes = read_component(path, &stem, config.component_bytes_max)?;
                let manifest = read_manifest(&path.with_extension("toml"), &stem)?;
                let digest = sha256(&bytes);
                (manifest.as_ref().map_or(stem, |m| m.name.clone()), bytes.into(), digest, manifest, None)
            }
        };
        let source_text = source.to_string();
        let mut artifact = Self { name, source: source_text, bytes, digest, manifest, alias_settings, signed_by: None };
        artifact.check_digest(config.require_digest, pin)?;
        if let PluginSource::File(_) = source {
            artifact.signed_by = artifact.check_signature(config)?;
        }
        artifact.check_preamble()?;
        Ok(artifact)
    }

    /// The digest is of the bytes that are compiled, so a file that is exchanged meanwhile changes nothing.
    fn check_digest(&self, required: bool, pin: Option<&str>) -> Result<(), PluginLoadError> {
        let found = hex(&self.digest);
        if let Some(pin) = pin.filter(|pin| !pin.eq_ignore_ascii_case(&found)) {
            return Err(PluginLoadError::WrongPin { plugin: self.name.clone(), expected: pin.into(), found });
        }
        match self.manifest.as_ref().and_then(|m| m.sha256.as_ref()) {
            Some(expected) if *expected != found => {
                Err(PluginLoadError::WrongDigest { plugin: self.name.clone(), expected: expected.clone(), found })
            }
            None if pin.is_some() => Ok(()),
            None if required => Err(PluginLoadError::DigestRequired { plugin: self.name.clone(), found }),
            None => {
                tracing::warn!("plugin `{}` is not pinned; to pin it: sha256 = \"{found}\"", self.name);
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// Who signed the digest. A signature counts only under a trusted key.
    fn check_signature(&self, config: &HostConfig) -> Result<Option<String>, PluginLoadError> {
        let plugin = self.name.clone();
        let trusted = || match config.signers.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>() {
            none if none.is_empty() => "nobody".to_owned(),
            names => names.join(", "),
        };
        let Some(signature) = self.manifest.as_ref().and_then(|m| m.signature.as_ref()) else {
            let missing = || PluginLoadError::SignatureRequired { plugin, trusted: trusted() };
            return if config.require_signature { Err(missing()) } else { Ok(None) };
        };
        let found = hex(&self.digest);
        let signer = signer(&config.signers, &found, signature).map(str::to_owned);
        if signer.is_none() && config.require_signature {
            return Err(PluginLoadError::SignatureForeign { plugin, found, trusted: trusted() });
        }
        if signer.is_none() && !config.signers.is_empty() {
            tracing::warn!("plugin `{plugin}` is signed, but not by a trusted key ({})", trusted());
        }
        Ok(signer)
    }

    /// The first eight bytes say component (layer 1), core module (layer 0), or something else.
    fn check_preamble(&self) -> Result<(), PluginLoadError> {
        let plugin = self.name.clone();
        match self.bytes.get(..8) {
            Some([0, b'a', b's', b'm', _, _, 1, 0]) => Ok(()),
            Some([0, b'a', b's', b'm', _, _, 0, 0]) => Err(PluginLoadError::CoreModule { plugin }),
            _ => {
                let text = self.bytes.trim_ascii_start();
                let found = match text {
                    [] => "it is empty".to_string(),
                    [b'(', ..] | [b';', b';', ..] => "it is WebAssembly text; assemble it first".to_string(),
                    [0x7f, b'E', b'L', b'F', ..] => "it is a native binary".to_string(),
                    _ => format!("it starts with the bytes {}", hex(&self.bytes[..self.bytes.len().min(8)])),
                };
                Err(PluginLoadError::NotWasm { plugin, found })
            }
        }
    }
}

fn read_component(path: &Path, plugin: &str, limit_bytes: u64) -> Result<Vec<u8>, PluginLoadError> {
    let fault = |e: std::io::Error| PluginLoadError::Read { path: path.into(), message: e.to_string() };
    let found_bytes = std::fs::metadata(path).map_err(fault)?.len();
    if found_bytes > limit_bytes {
        return Err(PluginLoadError::TooBig { plugin: plugin.into(), found_bytes, limit_bytes });
    }
    read_limited(path, limit_bytes).map_err(fault)
}

/// `None` when there is no manifest; one that cannot be read is an error.
fn read_manifest(path: &Path, plugin: &str) -> Result<Option<Manifest>, PluginLoadError> {
    let fault = |message: String| PluginLoadError::Read { path: path.into(), message };
    match read_limited(path, MANIFEST_BYTES_MAX) {
        Ok(bytes) => {
            let text = String::from_utf8(bytes).map_err(|e| fault(e.to_string()))?;
            Manifest::parse(plugin, &text).map(Some)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(fault(e.to_string())),
    }
}

/// Compiles, or takes what an earlier start compiled.
pub(crate) fn compile(
    artifact: &Artifact,
    engine: &Engine,
    cache: Option<&Cache>,
    config: &HostConfig,
) -> Result<Component, PluginLoadError> {
    if let Some(compiled) = cache.and_then(|cache| cache.get(&artifact.digest, engine)) {
        match deserialize(engine, compiled.code()) {
            Ok(component) => return Ok(component),
            Err(e) => tracing::warn!(plugin = artifact.name, "cached code is refused, compiling again: {e:#}"),
        }
    }
    let compiled = precompile(artifact, engine, config)?;
    if let Some(Err(e)) = cache.map(|cache| cache.put(&artifact.digest, engine, &compiled)) {
        tracing::warn!(plugin = artifact.name, "the compiled plugin cannot be cached: {e}");
    }
    deserialize(engine, &compiled)
        .map_err(|e| PluginLoadError::Compile { plugin: artifact.name.clone(), message: clean(&format!("{e:#}")) })
}

/// Compiles on a thread of its own. A compiler that is over its time cannot be stopped; it is left behind, and the load
/// fails.
fn precompile(artifact: &Artifact, engine: &Engine, config: &HostConfig) -> Result<Vec<u8>, PluginLoadError> {
    let plugin = artifact.name.clone();
    let fault = |message: String| PluginLoadError::Compile { plugin: plugin.clone(), message };
    let (done, result) = mpsc::channel();
    let (bytes, engine) = (artifact.bytes.clone(), engine.clone());
    std::thread::Builder::new()
        .name("plugin-compile".into())
        .stack_size(COMPILE_STACK_BYTES)
        .spawn(move || {
            // Nobody listens any more after the timeout.
            let _ = done.send(engine.precompile_component(&bytes));
        })
        .map_err(|e| fault(format!("no thread to compile on: {e}")))?;
    match result.recv_timeout(config.compile_timeout) {
        Ok(compiled) => compiled.map_err(|e| fault(clean(&format!("{e:#}")))),
        Err(RecvTimeoutError::Timeout) => {
            Err(PluginLoadError::CompileTimeout { plugin, limit: config.compile_timeout })
        }
        Err(RecvTimeoutError::Disconnected) => Err(fault("the compiler panicked".into())),
    }
}

fn deserialize(engine: &Engine, compiled: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `compiled` comes from `precompile_component` in this process, or from a cache file whose code under a key
    // that only this user can read says that such a process of this user wrote exactly these bytes (see `cache.rs`).
    unsafe { Component::deserialize(engine, compiled) }
}

/// What a component imports and exports by its own account.
pub(crate) struct Surface {
    /// Imports that carry functions. An import of types alone needs no grant: nothing can be called through it.
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

impl Surface {
    pub fn of(component: &Component) -> Self {
        let engine = component.engine();
        let ty = component.component_type();
        let carries = |item: &ComponentItem| match item {
            ComponentItem::ComponentInstance(instance) => {
                instance.exports(engine).any(|(_, item)| !matches!(item.ty, ComponentItem::Type(_)))
            }
            ComponentItem::Type(_) => false,
            _ => true,
        };
        let imports = ty.imports(engine).filter(|(_, item)| carries(&item.ty)).map(|(name, _)| name.to_string());
        Self { imports: imports.collect(), exports: ty.exports(engine).map(|(name, _)| name.to_string()).collect() }
    }

    /// The kind whose interface is exported, in whatever version, with that export's full name.
    pub fn kind(&self) -> Option<(Kind, &str)> {
        let kinds = [Kind::Output, Kind::Template, Kind::Scheduler];
        kinds.into_iter().find_map(|kind| Some((kind, find(&self.exports, interface(kind))?)))
    }
}

/// The interface a kind must export beside `lifecycle`.
fn interface(kind: Kind) -> &'static str {
    match kind {
        Kind::Output => "tokenloom:output/stage",
        Kind::Template => "tokenloom:template/template",
        Kind::Scheduler => "tokenloom:scheduler/scheduler",
    }
}

/// The full name of an interface in a list, whatever its version.
fn find<'a>(names: &'a [String], interface: &str) -> Option<&'a str> {
    names.iter().map(String::as_str).find(|name| split(name).0 == interface)
}

/// `a:b/c@1.2.3` is `a:b/c` and `1.2.3`.
fn split(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

/// Semantic versions, as wasmtime matches them: below 1.0 the minor number must agree, above the major one.
fn is_compatible(version: &str) -> bool {
    fn significant(version: &str) -> Vec<&str> {
        let mut parts = version.split(['.', '-', '+']);
        match parts.next() {
            Some("0") => ["0"].into_iter().chain(parts.next()).collect(),
            major => major.into_iter().collect(),
        }
    }
    significant(version) == significant(WIT_VERSION)
}

/// Checks that the exports of a kind are there in a version this host speaks. Gives the package's name with version.
pub(crate) fn check_exports(plugin: &str, kind: Kind, surface: &Surface) -> Result<String, PluginLoadError> {
    if let Some((found, _)) = surface.kind()
        && found != kind
        && find(&surface.exports, interface(kind)).is_none()
    {
        return Err(PluginLoadError::WrongKind { plugin: plugin.into(), found, wanted: kind });
    }
    let mut version = "";
    for wanted in [LIFECYCLE, interface(kind)] {
        let Some(found) = find(&surface.exports, wanted) else {
            return Err(PluginLoadError::MissingExport {
                plugin: plugin.into(),
                kind,
                missing: format!("{wanted}@{WIT_VERSION}"),
                found: list(&surface.exports),
            });
        };
        version = split(found).1;
        if !is_compatible(version) {
            return Err(PluginLoadError::WrongWitVersion {
                plugin: plugin.into(),
                expected: format!("{wanted}@{WIT_VERSION}"),
                found: found.into(),
            });
        }
    }
    Ok(format!("tokenloom:{}@{version}", kind.as_str()))
}

/// The capability behind an import. An import with the right name and another version is an error of its own.
pub(crate) fn capability(import: &str) -> Option<Result<Capability, String>> {
    let (interface, version) = split(import);
    let name = interface.strip_prefix("tokenloom:host/")?;
    let capability = Capability::ALL.into_iter().find(|c| c.as_str() == name)?;
    Some(if is_compatible(version) { Ok(capability) } else { Err(format!("{interface}@{WIT_VERSION}")) })
}

/// Holds the imports against what the manifest asks and the operator grants. Gives what is to be linked.
pub(crate) fn check_imports(
    plugin: &str,
    surface: &Surface,
    manifest: &Manifest,
    grants: &Grants,
) -> Result<Vec<Capability>, PluginLoadError> {
    let (mut needed, mut unknown) = (Vec::new(), Vec::new());
    for import in &surface.imports {
        match capability(import) {
            Some(Ok(capability)) => needed.push(capability),
            Some(Err(expected)) => {
                let (plugin, found) = (plugin.to_string(), import.clone());
                return Err(PluginLoadError::WrongWitVersion { plugin, expected, found });
            }
            None => unknown.push(import.clone()),
        }
    }
    let plugin = plugin.to_string();
    if !unknown.is_empty() {
        return Err(PluginLoadError::UnknownImport { plugin, imports: list(&unknown) });
    }
    let quoted = |all: &[Capability]| all.iter().map(|c| format!("\"{c}\"")).collect::<Vec<_>>().join(", ");
    let missing = |has: &dyn Fn(&Capability) -> bool| -> Vec<Capability> {
        needed.iter().copied().filter(|capability| !has(capability)).collect()
    };
    let not_asked = missing(&|c| manifest.capabilities.contains(c));
    if !not_asked.is_empty() {
        let imports: Vec<String> = not_asked.iter().map(|c| format!("tokenloom:host/{c}")).collect();
        let asked: Vec<Capability> = manifest.capabilities.iter().chain(&not_asked).copied().collect();
        return Err(PluginLoadError::ImportNotAsked { plugin, imports: list(&imports), asked: quoted(&asked) });
    }
    let not_granted = missing(&|c| grants.capabilities.contains(c));
    if !not_granted.is_empty() {
        return Err(PluginLoadError::ImportNotGranted { plugin, capabilities: quoted(&not_granted) });
    }
    if needed.contains(&Capability::Tokenizer) && grants.tokenizer.is_none() {
        return Err(PluginLoadError::NoTokenizer { plugin });
    }
    Ok(needed)
}

/// Links what was granted, and nothing else.
pub(crate) fn link(
    plugin: &str,
    component: &Component,
    capabilities: &[Capability],
) -> Result<InstancePre<StoreData>, PluginLoadError> {
    let fault = |e: wasmtime::Error| PluginLoadError::WrongSignature {
        plugin: plugin.into(),
        message: clean(&format!("{e:#}")),
    };
    let mut linker = Linker::new(component.engine());
    for capability in capabilities {
        caps::link(&mut linker, *capability).map_err(fault)?;
    }
    linker.instantiate_pre(component).map_err(fault)
}

/// Names from a component are foreign text: as many as are useful, cleaned.
fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "nothing".into();
    }
    let shown = names.iter().take(16).map(|name| format!("`{}`", cut(name, 128)));
    let rest = names.len().saturating_sub(16);
    let more = (rest > 0).then(|| format!("and {rest} more"));
    shown.chain(more).collect::<Vec<_>>().join(", ")
}
