//! Signals: the first one ends the server in order, the second at once.

use anyhow::Context;

use crate::wire::Running;

/// Serves until SIGTERM or ctrl-c, then shuts down.
pub async fn until_signal(mut running: Running) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    tokio::select! {
        ended = running.ended() => return ended,
        signal = signals.next() => tracing::info!("{signal}: no new requests; running answers may end"),
    }
    let shutdown = running.shutdown();
    tokio::select! {
        done = shutdown => done,
        signal = signals.next() => {
            tracing::warn!("{signal} again: ending now");
            Ok(())
        }
    }
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate()).context("waiting for SIGTERM")? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => "ctrl-c",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        // Without a handler the system ends the process, which is as good.
        let _ = tokio::signal::ctrl_c().await;
        "ctrl-c"
    }
}
