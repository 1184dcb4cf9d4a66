//! Exchanges of plugins while 256 streams run: see `testkit::swap`.

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::Args;
use crate::platform::{round, verdict};

const CLIENTS: usize = 256;
const STEP_MS: u64 = 20;
const BACK_MS_MAX: f64 = 1000.0;

pub fn run(args: &Args) -> Result<Value> {
    let clients = if args.quick { 16 } else { CLIENTS };
    let seen = testkit::swap::under_load(clients, STEP_MS)?;
    let back_ms = seen.back_after.as_secs_f64() * 1e3;
    println!(
        "{} clients read {} streams, none dropped or changed; exchanged in {:.1} s with {} streams compared; refused: {}; \
         back {back_ms:.0} ms after the first trap, the limit of {BACK_MS_MAX} is {}",
        seen.clients,
        seen.answers,
        seen.exchange.as_secs_f64(),
        seen.compared,
        seen.refusal.replace('\n', " "),
        verdict(back_ms < BACK_MS_MAX)
    );
    Ok(json!({
        "clients": seen.clients, "step_ms": STEP_MS, "streams_read": seen.answers,
        "exchange_s": round(seen.exchange.as_secs_f64()), "shadow_streams_compared": seen.compared,
        "refusal": seen.refusal, "back_ms": round(back_ms), "back_ms_max": BACK_MS_MAX,
    }))
}
