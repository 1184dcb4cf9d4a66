//! How far a load or a download is: a bar on a terminal, a line per quarter elsewhere.

use backend::load::LoadProgress;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows one thing's way.
pub struct Progress {
    /// Such as `loading main`.
    name: String,
    bar: ProgressBar,
    quarters: u64,
}

impl Progress {
    /// `verb`: what happens to `name`, such as `loading`.
    pub fn new(verb: &str, name: &str) -> Self {
        let name = format!("{verb} {name}");
        let bar = ProgressBar::new(0);
        let shape = "{prefix} [{bar:40}] {bytes}/{total_bytes} ({binary_bytes_per_sec}, {eta} left)";
        // The template is a constant; the plain bar will do should it ever not parse.
        bar.set_style(ProgressStyle::with_template(shape).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(name.clone());
        Self { name, bar, quarters: 0 }
    }

    pub fn update(&mut self, done: LoadProgress) {
        if !self.bar.is_hidden() {
            self.bar.set_length(done.bytes_total);
            self.bar.set_position(done.bytes_done);
            return;
        }
        let quarters = done.bytes_done.saturating_mul(4).checked_div(done.bytes_total).unwrap_or(0);
        if quarters > self.quarters {
            self.quarters = quarters;
            tracing::info!("{}: {} % of {} MiB", self.name, quarters * 25, done.bytes_total >> 20);
        }
    }

    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
