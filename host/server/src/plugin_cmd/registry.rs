//! `plugin pull` and `plugin push`: components in OCI registries.

use std::path::Path;
use std::process::ExitCode;

use crate::oci::{self, Logins, OciPlace, OciPlugin};

pub(super) fn pull(reference: &str, to: &Path, logins: Option<&Path>) -> anyhow::Result<ExitCode> {
    let component = OciPlugin::parse(reference)?.fetch_to(to, &read(logins)?)?;
    println!("{}", component.display());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn push(component: &Path, to: &str, logins: Option<&Path>) -> anyhow::Result<ExitCode> {
    let pushed = oci::push(component, &OciPlace::parse(to)?, &read(logins)?)?;
    println!("{pushed}");
    Ok(ExitCode::SUCCESS)
}

fn read(logins: Option<&Path>) -> anyhow::Result<Logins> {
    Ok(logins.map(Logins::read).transpose()?.unwrap_or_default())
}
