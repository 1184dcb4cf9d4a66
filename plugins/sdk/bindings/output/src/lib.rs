//! World `output-plugin` of `wit/output`, as `wit-bindgen` makes it.

wit_bindgen::generate!({
    path: ["../../../../wit/types", "../../../../wit/plugin", "../../../../wit/output"],
    world: "tokenloom:output/output-plugin",
    with: { "tokenloom:types/types@0.1.0": tokenloom_sdk_types },
    generate_all,
    additional_derives: [PartialEq, Eq],
    pub_export_macro: true,
});

pub use exports::tokenloom::output::stage as interface;
pub use exports::tokenloom::plugin::lifecycle;
