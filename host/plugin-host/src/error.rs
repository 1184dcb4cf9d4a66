//! Why a plugin could not be loaded, said so that its author or the operator can act.

use std::path::PathBuf;
use std::time::Duration;

use crate::manifest::Kind;

/// A plugin was refused. Every variant names the plugin, what was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginLoadError {
    #[error("no bundled plugin is called `{name}`; there are {available}; a file is given as PATH.wasm")]
    UnknownName { name: String, available: String },
    #[error("plugin `{plugin}` is of kind {found}, and {wanted} is needed here")]
    WrongKind { plugin: String, found: Kind, wanted: Kind },
    #[error("cannot read {}: {message}", path.display())]
    Read { path: PathBuf, message: String },
    #[error("the manifest of plugin `{plugin}` is not valid: {message}")]
    Manifest { plugin: String, message: String },
    #[error(
        "plugin `{plugin}` is {found_bytes} bytes, the limit is {limit_bytes}; raise `component_mib_max` (at most 64) in the server's config if that is intended"
    )]
    TooBig { plugin: String, found_bytes: u64, limit_bytes: u64 },
    #[error("plugin `{plugin}` is not WebAssembly: {found}; a component (.wasm) is needed")]
    NotWasm { plugin: String, found: String },
    #[error(
        "plugin `{plugin}` is a core module, not a component; make one with `tokenloom plugin build DIR`, or from any module with embedded WIT with `wasm-tools component new {plugin}.wasm -o {plugin}.component.wasm`"
    )]
    CoreModule { plugin: String },
    #[error(
        "plugin `{plugin}` has no digest and the config says `require_digest = true`; add to its manifest: sha256 = \"{found}\""
    )]
    DigestRequired { plugin: String, found: String },
    #[error(
        "plugin `{plugin}` has the wrong digest: the manifest says {expected}, the component is {found}; if the new file is the one you want, put the second digest in the manifest"
    )]
    WrongDigest { plugin: String, expected: String, found: String },
    #[error(
        "plugin `{plugin}` is pinned to sha256 {expected}, and the component is {found}; if that is the one you want, pin it"
    )]
    WrongPin { plugin: String, expected: String, found: String },
    #[error(
        "plugin `{plugin}` is not signed and the config says `require_signature = true`; trusted are the keys of {trusted}; sign it with `tokenloom plugin sign {plugin}.wasm --key FILE`"
    )]
    SignatureRequired { plugin: String, trusted: String },
    #[error(
        "plugin `{plugin}` has a signature that no trusted key made of sha256 {found}; trusted are the keys of {trusted}; sign this component with one of them (`tokenloom plugin sign {plugin}.wasm --key FILE`), or add its signer to `plugin_keys` in the server's config"
    )]
    SignatureForeign { plugin: String, found: String, trusted: String },
    #[error("plugin `{plugin}` does not compile: {message}")]
    Compile { plugin: String, message: String },
    #[error("plugin `{plugin}` was not compiled within {limit:?}; make it smaller or raise `compile_timeout_s`")]
    CompileTimeout { plugin: String, limit: Duration },
    #[error(
        "plugin `{plugin}` was built against `{found}`, this server speaks `{expected}`; rebuild it against the WIT of this server (`tokenloom plugin new` writes it out)"
    )]
    WrongWitVersion { plugin: String, expected: String, found: String },
    #[error("plugin `{plugin}` does not export `{missing}`, which a {kind} must; it exports {found}")]
    MissingExport { plugin: String, kind: Kind, missing: String, found: String },
    #[error("plugin `{plugin}` exports a wrong signature: {message}; rebuild it against the WIT of this server")]
    WrongSignature { plugin: String, message: String },
    #[error(
        "plugin `{plugin}` imports {imports}, which this server does not offer (there is no WASI); it offers tokenloom:host/log, tokenloom:host/metrics and tokenloom:host/tokenizer"
    )]
    UnknownImport { plugin: String, imports: String },
    #[error(
        "plugin `{plugin}` imports {imports} without asking for it; add `capabilities = [{asked}]` to its manifest, and grant it in the server's config"
    )]
    ImportNotAsked { plugin: String, imports: String, asked: String },
    #[error(
        "plugin `{plugin}` asks for the capability {capabilities}, which the server's config does not grant; add `grant = [{capabilities}]` for it if you trust it with that"
    )]
    ImportNotGranted { plugin: String, capabilities: String },
    #[error("plugin `{plugin}` needs the capability `tokenizer`, and there is no tokenizer where it is loaded")]
    NoTokenizer { plugin: String },
    #[error("the settings of plugin `{plugin}` are not valid: {message}")]
    Settings { plugin: String, message: String },
    /// The plugin answered with an error of its own from `configure`, `load` or `requires`.
    #[error("plugin `{plugin}` refused in `{export}`: {code}: {message}")]
    Refused { plugin: String, export: &'static str, code: String, message: String },
    /// A call made at load was stopped.
    #[error("plugin `{plugin}` failed in `{export}`: {cause}")]
    Failed { plugin: String, export: &'static str, cause: String },
    #[error("the plugin host cannot start: {message}")]
    Host { message: String },
}
