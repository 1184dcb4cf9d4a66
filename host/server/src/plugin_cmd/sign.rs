//! `plugin keygen` and `plugin sign`: who vouches for a component.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use plugin_host::{COMPONENT_BYTES_MAX, Manifest, SigningKey};
use sha2::{Digest, Sha256};

/// A key is a line, a manifest a page.
const TEXT_BYTES_MAX: u64 = 256 << 10;

/// Writes a new secret that only this user may read, and says what a server's config needs.
pub(super) fn keygen(path: &Path) -> anyhow::Result<ExitCode> {
    let secret = SigningKey::new_secret().context("the system gives no random numbers")?;
    let key = SigningKey::parse(&secret).context("a new key is not valid")?;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = made.with_context(|| format!("key file {}", path.display()))?;
    writeln!(file, "{secret}").with_context(|| format!("key file {}", path.display()))?;
    let name = path.file_stem().map_or_else(|| "me".into(), |stem| stem.to_string_lossy().into_owned());
    println!(
        "{} holds the secret key; whoever has it can sign in your name\nfor the server's config:\n  \
         [server.plugin_keys]\n  {} = \"{}\"",
        path.display(),
        toml::Value::from(name),
        key.public()
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes digest and signature of a component into its manifest.
pub(super) fn sign(component: &Path, key: &Path) -> anyhow::Result<ExitCode> {
    let secret = read(key, TEXT_BYTES_MAX)?;
    let secret = std::str::from_utf8(&secret).unwrap_or_default().trim();
    let key = SigningKey::parse(secret).with_context(|| {
        format!("{} is no key: 64 lower-case hex digits are needed, as `tokenloom plugin keygen` writes", key.display())
    })?;
    let bytes = read(component, COMPONENT_BYTES_MAX)?;
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let path = component.with_extension("toml");
    let manifest = read(&path, TEXT_BYTES_MAX).context("a signature is kept in the component's manifest")?;
    let manifest = String::from_utf8(manifest).with_context(|| path.display().to_string())?;
    let signature = key.sign(&digest);
    let signed = signed(&manifest, &digest, &signature);
    let parsed = Manifest::parse(&component.display().to_string(), &signed)?;
    ensure!(
        parsed.sha256.as_ref() == Some(&digest) && parsed.signature.as_ref() == Some(&signature),
        "{}: put `wit`, `sha256` and `signature` on lines of their own before the first table",
        path.display()
    );
    fs::write(&path, signed).with_context(|| path.display().to_string())?;
    println!("{}: sha256 {digest} signed by {}", path.display(), key.public());
    Ok(ExitCode::SUCCESS)
}

/// The manifest as its author wrote it, with both lines below the `wit` line.
fn signed(manifest: &str, digest: &str, signature: &str) -> String {
    let mut at_top = true;
    let mut out = String::with_capacity(manifest.len() + 256);
    for line in manifest.lines() {
        at_top &= !line.trim_start().starts_with('[');
        let key = line.split_once('=').map(|(key, _)| key.trim()).filter(|_| at_top);
        if matches!(key, Some("sha256" | "signature")) {
            continue;
        }
        out.push_str(line);
        out.push('\n');
        if key == Some("wit") {
            out.push_str(&format!("sha256 = \"{digest}\"\nsignature = \"{signature}\"\n"));
        }
    }
    out
}

fn read(path: &Path, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let read = || -> anyhow::Result<Vec<u8>> {
        let size = fs::metadata(path)?.len();
        ensure!(size <= bytes_max, "{size} bytes, the limit is {bytes_max}");
        Ok(fs::read(path)?)
    };
    read().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_below_wit_are_replaced() {
        let manifest = "name = \"a\"\nwit = \"w\"\nsha256 = \"0\"\n# mine\nsignature = \"1\"\n[settings]\nsha256 = 3\n";
        let expected =
            "name = \"a\"\nwit = \"w\"\nsha256 = \"ff\"\nsignature = \"ee\"\n# mine\n[settings]\nsha256 = 3\n";
        assert_eq!(signed(manifest, "ff", "ee"), expected);
        assert_eq!(signed(expected, "ff", "ee"), expected);
    }
}
