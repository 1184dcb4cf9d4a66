//! What automation needs of this crate without a server; run it without words for its commands.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kit::{Built, KitError};

fn main() -> ExitCode {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let Some((command, rest)) = words.split_first() else { return usage() };
    let built = match (command.to_str(), rest) {
        (Some("build"), [folder]) => kit::build(folder).map(|one| vec![one]),
        (Some("bundle"), [workspace, to, folders @ ..]) => kit::bundle(workspace, folders, to),
        (Some("encode"), [module, to]) => kit::make::encode_file(module, to).map(|()| Vec::new()),
        (Some("toolchain"), []) => kit::make::rust_toolchain(Path::new(".")).map(|()| Vec::new()),
        _ => return usage(),
    };
    report(built)
}

fn usage() -> ExitCode {
    eprintln!("usage: kit build FOLDER | kit bundle WORKSPACE TO FOLDER... | kit encode MODULE TO | kit toolchain");
    ExitCode::from(2)
}

fn report(built: Result<Vec<Built>, KitError>) -> ExitCode {
    match built {
        Ok(built) => {
            built.iter().for_each(|one| println!("{}: {} KiB", one.component.display(), one.bytes >> 10));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kit: {error}");
            ExitCode::FAILURE
        }
    }
}
