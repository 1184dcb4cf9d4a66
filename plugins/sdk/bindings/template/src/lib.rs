//! World `template-plugin` of `wit/template`, as `wit-bindgen` makes it.

wit_bindgen::generate!({
    path: ["../../../../wit/types", "../../../../wit/plugin", "../../../../wit/template"],
    world: "tokenloom:template/template-plugin",
    with: { "tokenloom:types/types@0.1.0": tokenloom_sdk_types },
    generate_all,
    additional_derives: [PartialEq, Eq],
    pub_export_macro: true,
});

pub use exports::tokenloom::plugin::lifecycle;
pub use exports::tokenloom::template::template as interface;
