//! What `wit-bindgen` makes of `wit/`: one module per kind, with the shared types generated once.

mod types {
    wit_bindgen::generate!({
        path: ["../../wit/types"],
        inline: "package tokenloom:sdk; world shared { import tokenloom:types/types@0.1.0; }",
        generate_all,
        generate_unused_types: true,
        additional_derives: [PartialEq, Eq],
    });
}

/// The types that all kinds share.
pub use types::tokenloom::types::types as shared;

/// World `output-plugin`.
pub mod output {
    wit_bindgen::generate!({
        path: ["../../wit/types", "../../wit/plugin", "../../wit/output"],
        world: "tokenloom:output/output-plugin",
        with: { "tokenloom:types/types@0.1.0": crate::bindings::shared },
        generate_all,
        additional_derives: [PartialEq, Eq],
        pub_export_macro: true,
        export_macro_name: "export_output_world",
        default_bindings_module: "tokenloom_sdk::bindings::output",
    });
}
