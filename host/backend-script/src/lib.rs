//! The scripted model: a backend that plays a file.
