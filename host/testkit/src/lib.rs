//! What tests share: small models on disk, a server on a free port, chunking checks.
