//! How many KV pages fit beside everything else.

use backend::BackendError;
use backend::load::LoadOptions;
use backend::ops::ModelSpec;
use contract::PAGE_TOKENS;

use crate::device::Device;

/// Left free beside the pool for the driver's own needs.
const RESERVE_BYTES: u64 = 512 << 20;

pub struct Pool {
    pub pages: u64,
    pub kv_bytes_per_token: u64,
    /// What was asked and does not fit.
    pub remark: Option<String>,
}

impl Pool {
    /// Bytes that may still be used. `memory`: free bytes before anything was on the card, the card's, and the share of them
    /// that may be used.
    pub fn budget(device: &Device, memory: (u64, u64, f32)) -> Result<u64, BackendError> {
        let (free_at_start, total, fraction) = memory;
        let (free, _) = device.memory()?;
        let allowed = (total as f64 * f64::from(fraction)) as u64;
        let used = free_at_start.saturating_sub(free);
        Ok(allowed.saturating_sub(used).min(free.saturating_sub(RESERVE_BYTES)))
    }

    /// What a pool would take that is as large as it may become.
    pub fn bytes_wanted(spec: &ModelSpec, options: &LoadOptions, context_len: u32) -> u64 {
        kv_bytes_per_token(spec) * u64::from(PAGE_TOKENS) * wanted(options, context_len)
    }

    /// To be called when all else is on the card.
    pub fn new(
        device: &Device,
        spec: &ModelSpec,
        options: &LoadOptions,
        memory: (u64, u64, f32),
        context_len: u32,
    ) -> Result<Self, BackendError> {
        let budget = Self::budget(device, memory)?;
        let kv_bytes_per_token = kv_bytes_per_token(spec);
        let fits = budget / (kv_bytes_per_token * u64::from(PAGE_TOKENS)).max(1);
        let asked = asked(options);
        let pages = fits.min(wanted(options, context_len));
        if pages == 0 {
            return Err(no_page(device, kv_bytes_per_token, budget));
        }
        let lowered = options.kv_tokens.is_some() && pages < asked;
        let remark = lowered.then(|| format!("KV pool: {asked} pages asked, {pages} fit into {budget} bytes"));
        Ok(Self { pages, kv_bytes_per_token, remark })
    }
}

fn kv_bytes_per_token(spec: &ModelSpec) -> u64 {
    (spec.kv_layers * spec.attention.kv_width() * 2 * 2) as u64
}

fn asked(options: &LoadOptions) -> u64 {
    options.kv_tokens.map_or(u64::MAX, |tokens| u64::from(tokens.div_ceil(PAGE_TOKENS)))
}

/// Pages: what was asked, but no more than every seat at full length fills.
fn wanted(options: &LoadOptions, context_len: u32) -> u64 {
    let useful = u64::from(options.seats) * u64::from(context_len.div_ceil(PAGE_TOKENS));
    asked(options).min(useful.max(1))
}

fn no_page(device: &Device, kv_bytes_per_token: u64, available: u64) -> BackendError {
    BackendError::Memory {
        what: format!("one KV page on {}", device.name),
        needed: kv_bytes_per_token * u64::from(PAGE_TOKENS),
        available,
        fix: "raise --gpu-memory-utilization, or use a smaller model".into(),
    }
}
