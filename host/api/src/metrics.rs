//! The API's own metrics; the engines and the plugin host register theirs.

use std::sync::Arc;

use axum::http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    /// The matched route, never the path as sent: a client must not be able to make new label values.
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Default)]
pub struct HttpMetrics(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    answers: Family<Answer, Counter>,
    rejected: Counter,
    disconnected: Counter,
    stream_errors: Counter,
    ignored_fields: Counter,
}

impl HttpMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let m = &self.0;
        registry.register("tokenloom_http_requests", "Answers by route and status", m.answers.clone());
        registry.register("tokenloom_http_rejected", "Requests beyond the limit of open sequences", m.rejected.clone());
        registry.register(
            "tokenloom_http_disconnected",
            "Answers that were given up because the client went away",
            m.disconnected.clone(),
        );
        registry.register("tokenloom_http_stream_errors", "Streams that ended with an error", m.stream_errors.clone());
        registry.register(
            "tokenloom_http_ignored_fields",
            "Request fields that were ignored",
            m.ignored_fields.clone(),
        );
    }

    pub fn answered(&self, route: &str, status: StatusCode) {
        self.0.answers.get_or_create(&Answer { route: route.to_owned(), status: status.as_u16() }).inc();
    }

    pub fn rejected(&self) {
        self.0.rejected.inc();
    }

    pub fn disconnected(&self) {
        self.0.disconnected.inc();
    }

    pub fn stream_error(&self) {
        self.0.stream_errors.inc();
    }

    pub fn ignored_fields(&self, fields: u64) {
        self.0.ignored_fields.inc_by(fields);
    }
}
