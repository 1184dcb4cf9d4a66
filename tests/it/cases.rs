//! The failure cases, through the bundled plugins as WebAssembly.

use server::plugin_cmd::{Outcome, Summary, results};
use testkit::repository;

#[test]
fn every_case_of_the_bundled_parsers_passes() -> anyhow::Result<()> {
    let results = results(&[], Some(&repository().join("tests/cases/cases.jsonl")))?;
    let failed = results.iter().filter_map(|result| match &result.outcome {
        Outcome::Failed(why) => Some(format!("{}: {why}", result.id)),
        _ => None,
    });
    let failed = failed.collect::<Vec<_>>();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let summary = Summary::of(&results);
    assert!(summary.is_success() && summary.passed >= 58, "{summary:?}");
    Ok(())
}
