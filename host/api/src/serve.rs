//! The listener.

use std::future::Future;
use std::io;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use crate::routes::router;
use crate::state::ApiState;

/// Serves [`router`] on `listener` until `stopped`: then no connection is accepted any more and answers that have begun
/// go on to their end. Dropping the future ends everything at once.
pub async fn serve(
    listener: TcpListener,
    state: ApiState,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // Chunks are small and each is waited for: collecting them into full packets would only delay tokens.
    let listener = listener.tap_io(|socket| {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a socket keeps its send delay");
        }
    });
    axum::serve(listener, router(state)).with_graceful_shutdown(stopped).await
}
