//! Exchanges while streams run; `cargo xtask bench swap` is the same with 256 of them.

use std::time::Duration;

/// No stream is dropped or changed, the bad candidate's refusal names its case, and one that traps is gone in a second.
#[test]
fn plugins_are_exchanged_under_load() -> anyhow::Result<()> {
    let seen = testkit::swap::under_load(24, 5)?;
    assert!(seen.answers >= 2 * seen.clients, "{seen:?}");
    assert!(seen.compared > 0, "{seen:?}");
    assert!(seen.refusal.contains("case `own`"), "{}", seen.refusal);
    assert!(seen.back_after < Duration::from_secs(1), "{seen:?}");
    Ok(())
}
