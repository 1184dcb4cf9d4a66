//! How many sequences may be open at once. A permit lives in the response, so that a client that goes away frees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, Code};
use crate::metrics::HttpMetrics;

/// The server-wide limit in front of the engines' own queues.
#[derive(Clone)]
pub struct Admission {
    open: Arc<Semaphore>,
    limit: u32,
    draining: Arc<AtomicBool>,
    metrics: HttpMetrics,
}

/// The right to have sequences open; dropping it gives them back.
#[derive(Debug)]
pub struct Permit {
    _permit: OwnedSemaphorePermit,
}

/// Without a rate to go by, a client is asked back after one second.
const RETRY_AFTER_S: u32 = 1;
/// A server that ends is replaced by another one within seconds.
const RETRY_AFTER_DRAIN_S: u32 = 5;

impl Admission {
    pub fn new(limit: usize, metrics: HttpMetrics) -> Self {
        let limit = u32::try_from(limit.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self { open: Arc::new(Semaphore::new(limit as usize)), limit, draining: Arc::default(), metrics }
    }

    /// Takes `sequences` places or answers 429 (503 while draining); never waits.
    pub fn admit(&self, sequences: u32) -> Result<Permit, ApiError> {
        if self.is_draining() {
            let message = "the server is ending: running answers may finish, new requests are not taken";
            return Err(ApiError::new(Code::ShuttingDown, message).retry_after_s(RETRY_AFTER_DRAIN_S));
        }
        match Arc::clone(&self.open).try_acquire_many_owned(sequences) {
            Ok(permit) => Ok(Permit { _permit: permit }),
            Err(_) => {
                self.metrics.rejected();
                let open = (self.limit as usize).saturating_sub(self.open.available_permits());
                Err(ApiError::new(
                    Code::QueueFull,
                    format!(
                        "{open} of {} sequences are open and the request needs {sequences}; retry later",
                        self.limit
                    ),
                )
                .retry_after_s(RETRY_AFTER_S))
            }
        }
    }

    /// From now on nothing is admitted.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Waits until no sequence is open. Meant for a server that drains: it takes every place for a moment.
    pub async fn idle(&self) {
        // Nobody closes the semaphore, so an error cannot come.
        let _ = self.open.acquire_many(self.limit).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_come_back() {
        let admission = Admission::new(3, HttpMetrics::default());
        let first = admission.admit(2).expect("two of three");
        let error = admission.admit(2).expect_err("one is left");
        assert_eq!((error.status().as_u16(), error.retry_after_s), (429, Some(1)));
        assert!(error.message.starts_with("2 of 3 sequences are open"), "{}", error.message);
        drop(first);
        admission.admit(3).expect("all are free again");
    }

    #[tokio::test]
    async fn draining_refuses_and_waits_for_the_open_ones() {
        let admission = Admission::new(3, HttpMetrics::default());
        let open = admission.admit(1).expect("not draining yet");
        admission.drain();
        let error = admission.admit(1).expect_err("draining");
        assert_eq!((error.status().as_u16(), error.code.as_str()), (503, "shutting_down"));
        let mut idle = std::pin::pin!(admission.idle());
        assert!(futures::poll!(idle.as_mut()).is_pending());
        drop(open);
        idle.await;
    }
}
