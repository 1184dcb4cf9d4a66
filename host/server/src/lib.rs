//! The binary: settings, wiring, command line.
