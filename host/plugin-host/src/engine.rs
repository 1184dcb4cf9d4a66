//! The two wasmtime engines and the thread that makes deadlines pass.
//!
//! Schedulers are metered by fuel, so the same trace ends the same way on every machine; everything else by wall-clock
//! epochs, which cost less. Epochs are also the backstop behind the fuel, for instructions whose time is not their
//! number (bulk copies).

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{Config, Engine};

use crate::error::PluginLoadError;

/// A guest's stack. Host threads that call plugins need 2 MiB (tokio's and std's default), so this leaves them most.
const GUEST_STACK_BYTES: usize = 512 << 10;

pub(crate) struct Engines {
    /// Epochs only: output stages and templates.
    pub timed: Engine,
    /// Fuel with an epoch backstop: schedulers.
    pub metered: Engine,
    pub tick: Duration,
    /// Dropping the sender ends the ticker.
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl Engines {
    pub fn start(tick: Duration) -> Result<Self, PluginLoadError> {
        let fault = |message: String| PluginLoadError::Host { message };
        if tick.is_zero() {
            return Err(fault("the deadline tick must be longer than 0".into()));
        }
        let timed = Engine::new(&config(false)).map_err(|e| fault(format!("{e:#}")))?;
        let metered = Engine::new(&config(true)).map_err(|e| fault(format!("{e:#}")))?;
        let (stop, stopped) = mpsc::channel::<()>();
        let engines = [timed.clone(), metered.clone()];
        let ticker = std::thread::Builder::new()
            .name("plugin-ticker".into())
            .spawn(move || {
                while stopped.recv_timeout(tick) == Err(RecvTimeoutError::Timeout) {
                    engines.iter().for_each(Engine::increment_epoch);
                }
            })
            .map_err(|e| fault(format!("cannot start the deadline thread: {e}")))?;
        Ok(Self { timed, metered, tick, stop: Some(stop), ticker: Some(ticker) })
    }

    /// Ticks until a deadline that is at least `limit` away: the current tick is already partly over.
    pub fn ticks(&self, limit: Duration) -> u64 {
        let ticks = limit.as_nanos().div_ceil(self.tick.as_nanos().max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX / 2).saturating_add(1)
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(ticker) = self.ticker.take() {
            // The thread does nothing that could panic; there is nobody left to tell.
            let _ = ticker.join();
        }
    }
}

fn config(metered: bool) -> Config {
    let mut config = Config::new();
    // No async guests: saves 0.4 microseconds on each call.
    config.concurrency_support(false);
    config.epoch_interruption(true);
    config.consume_fuel(metered);
    // A recorded trace must replay bit for bit.
    config.cranelift_nan_canonicalization(metered);
    config.max_wasm_stack(GUEST_STACK_BYTES);
    config.wasm_relaxed_simd(false);
    config.wasm_memory64(false);
    config.wasm_multi_memory(false);
    // A backtrace costs time at every trap and says nothing without names, which bundled plugins do not carry.
    config.wasm_backtrace_max_frames(None);
    // What only backtraces need would be a third of the compiled code, to be read and registered at every start.
    config.generate_address_map(false);
    config.native_unwind_info(false);
    config
}
