//! What tests share: a server on a free port, a small HTTP client, chunking checks.
//!
//! Everything runs in the test's own process and talks over the loopback. Start with [`TestServer`].

pub mod chunks;
pub mod fold;
pub mod folder;
pub mod http;
mod server;
pub mod swap;

pub use folder::Folder;
pub use http::{Answer, Event};
pub use server::{TestServer, repository, settings};
