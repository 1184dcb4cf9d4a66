//! What output stages share, so that a new format is a page.
//!
//! Most formats are data: a [`stage::Description`] of how reasoning ([`reasoning`]) and tool calls ([`layout`]) are
//! written, and [`described_stage!`] makes a stage of it. Below that, [`reader`] reads what a layout describes, on
//! `object` (calls as JSON objects), `values` (Python literals and their like) and `tagged` (a tag for each argument,
//! typed by [`types`]). [`tool`] drives any reader over both channels, with everything that is the same for all formats
//! (giving text back, calls inside reasoning, limits); [`markers`] and [`symbols`] find markers in a stream that is cut
//! anywhere; [`json`] checks JSON byte by byte. Nothing here knows a particular format. Start reading at `layout`.

pub mod grammar;
pub mod json;
pub mod layout;
pub mod markers;
mod object;
pub mod out;
pub mod reader;
pub mod reasoning;
pub mod stage;
pub mod symbols;
mod tagged;
pub mod tool;
pub mod types;
pub mod values;
