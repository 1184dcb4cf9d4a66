//! A running server, and how it ends.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use api::ApiState;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::report::Report;

/// Streams that were ended by the engines' shutdown get this long to say so to their clients.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server that listens. Dropping it stops listening at once; [`Running::shutdown`] ends it in order.
pub struct Running {
    address: SocketAddr,
    report: Report,
    state: ApiState,
    engines: Vec<engine::Handle>,
    stop: watch::Sender<bool>,
    http: JoinHandle<std::io::Result<()>>,
    grace: Duration,
}

impl Running {
    pub(super) fn start(listener: TcpListener, state: ApiState, grace: Duration) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        let (stop, mut stopped) = watch::channel(false);
        let http = tokio::spawn(api::serve(listener, state.clone(), async move {
            // An error means that the sender is gone, which is the same wish.
            let _ = stopped.wait_for(|stop| *stop).await;
        }));
        Ok(Self { address, report: Report::default(), state, engines: Vec::new(), stop, http, grace })
    }

    pub(super) fn opened(&mut self, report: Report, engines: Vec<engine::Handle>) {
        self.report = report.listening(self.address);
        self.engines = engines;
    }

    /// Where it listens, with the port that was really taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Waits until the HTTP side ends by itself, which only an error makes it do.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        (&mut self.http).await.context("the HTTP task")?.context("the HTTP server")
    }

    /// Refuses new requests with a 503, lets answers end within the grace time, then stops listening and the engines.
    pub async fn shutdown(mut self) -> anyhow::Result<()> {
        self.state.drain();
        let ended = async {
            self.state.drained().await;
            self.stop.send_replace(true);
            (&mut self.http).await
        };
        if tokio::time::timeout(self.grace, ended).await.is_ok() {
            self.stop_engines();
            return Ok(());
        }
        tracing::warn!("answers were still running after {:?}; they are ended now", self.grace);
        self.end().await;
        Ok(())
    }

    /// Ends everything now; open streams get an error as their last event.
    pub async fn end(mut self) {
        self.stop.send_replace(true);
        self.stop_engines();
        // What has not ended now never will.
        let _ = tokio::time::timeout(LAST_WORDS, &mut self.http).await;
        self.http.abort();
    }

    fn stop_engines(&self) {
        for engine in &self.engines {
            engine.shutdown();
        }
    }
}
