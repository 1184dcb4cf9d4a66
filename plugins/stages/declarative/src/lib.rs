//! A stage whose format is its settings: what opens and closes reasoning, and how calls are written.
//!
//! The settings are a [`Description`], the same data that the bundled stages make in code.

use blocks::stage::Description;

fn describe(settings: Description) -> Description {
    settings
}

blocks::described_stage!(Declarative, describe);
