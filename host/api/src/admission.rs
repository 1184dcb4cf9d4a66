//! How many sequences may be open at once. A permit lives in the response, so that a client that goes away frees it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, Code};
use crate::metrics::HttpMetrics;

/// The server-wide limit in front of the engines' own queues.
#[derive(Clone)]
pub struct Admission {
    open: Arc<Semaphore>,
    limit: usize,
    metrics: HttpMetrics,
}

/// The right to have sequences open; dropping it gives them back.
#[derive(Debug)]
pub struct Permit {
    _permit: OwnedSemaphorePermit,
}

/// Without a rate to go by, a client is asked back after one second.
const RETRY_AFTER_S: u32 = 1;

impl Admission {
    pub fn new(limit: usize, metrics: HttpMetrics) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self { open: Arc::new(Semaphore::new(limit)), limit, metrics }
    }

    /// Takes `sequences` places or answers 429; never waits.
    pub fn admit(&self, sequences: u32) -> Result<Permit, ApiError> {
        match Arc::clone(&self.open).try_acquire_many_owned(sequences) {
            Ok(permit) => Ok(Permit { _permit: permit }),
            Err(_) => {
                self.metrics.rejected();
                let open = self.limit - self.open.available_permits().min(self.limit);
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
}
