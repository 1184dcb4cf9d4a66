//! The capabilities, as host functions. All are leaves: none blocks, none calls back into a guest, all have quotas.

mod log;
mod metrics;
mod tokenizer;

use wasmtime::component::{HasSelf, Linker};

use crate::bindings::host;
use crate::config::Capability;
use crate::sandbox::StoreData;

/// What one call into a guest may ask of the host. Filled up before each call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quotas {
    log_lines: u32,
    metric_points: u32,
    tokenizer_calls: u32,
    tokenizer_bytes: usize,
}

impl Quotas {
    pub fn full() -> Self {
        Self {
            // A call is a microsecond's work; more lines than this from one call tell nobody anything.
            log_lines: 16,
            metric_points: 64,
            // Looking a few markers up at the start of a stream is what the interface is for.
            tokenizer_calls: 64,
            tokenizer_bytes: 64 << 10,
        }
    }
}

/// Links one granted capability.
pub(crate) fn link(linker: &mut Linker<StoreData>, capability: Capability) -> wasmtime::Result<()> {
    match capability {
        Capability::Log => host::log::add_to_linker::<_, HasSelf<StoreData>>(linker, |data| data),
        Capability::Metrics => host::metrics::add_to_linker::<_, HasSelf<StoreData>>(linker, |data| data),
        Capability::Tokenizer => host::tokenizer::add_to_linker::<_, HasSelf<StoreData>>(linker, |data| data),
    }
}
