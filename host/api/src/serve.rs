//! The router on a listener, until somebody says stop.

use std::future::Future;

use tokio::net::TcpListener;

use crate::routes::router;
use crate::state::ApiState;

/// Answers requests until `stop` is over; then takes no new connection and returns when the open answers have ended.
pub async fn serve(
    listener: TcpListener,
    state: ApiState,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(state)).with_graceful_shutdown(stop).await
}
