//! What output stages share, so that a new tool-call format is a page.
//!
//! `markers` finds markers in a stream that is cut anywhere and holds back what may still become one; `tool` drives a
//! [`tool::Format`] over both channels, with everything that is the same for all formats (giving text back, calls
//! inside reasoning, limits); `json` checks JSON byte by byte and writes strings as they come. Nothing here knows a
//! particular format. Start reading at `tool`.

pub mod json;
pub mod markers;
pub mod out;
pub mod tool;
