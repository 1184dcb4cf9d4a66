//! `plugin new` and `plugin build`: what an author does before there is a component.

use std::path::Path;
use std::process::ExitCode;

use kit::{Kind, Lang, NewPlugin};
use plugin_host::COMPONENT_BYTES_DEFAULT;

pub(super) fn new(kind: Kind, lang: Lang, name: &str) -> anyhow::Result<ExitCode> {
    kit::create(&NewPlugin { kind, lang, name: name.into() }, Path::new("."))?;
    println!(
        "{name}/ holds the {kind} plugin `{name}` in {lang}: {} and its cases; README.md says what to do\n  \
         tokenloom plugin build {name}\n  tokenloom plugin test {name}",
        source(lang)
    );
    Ok(ExitCode::SUCCESS)
}

/// Where an author begins to read.
fn source(lang: Lang) -> &'static str {
    match lang {
        Lang::Rust => "src/lib.rs",
        other => other.source(),
    }
}

pub(super) fn build(folder: &Path) -> anyhow::Result<ExitCode> {
    let built = kit::build(folder)?;
    println!("{} ({} KiB)", built.component.display(), built.bytes >> 10);
    println!("sha256 {}", built.sha256);
    if built.bytes > COMPONENT_BYTES_DEFAULT {
        let mib = built.bytes.div_ceil(1 << 20);
        println!(
            "a server takes components of up to {} MiB; for this one its config needs `component_mib_max = {mib}`",
            COMPONENT_BYTES_DEFAULT >> 20
        );
    }
    Ok(ExitCode::SUCCESS)
}
