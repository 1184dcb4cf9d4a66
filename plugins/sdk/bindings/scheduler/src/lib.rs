//! World `scheduler-plugin` of `wit/scheduler`, as `wit-bindgen` makes it.

wit_bindgen::generate!({
    path: ["../../../../wit/types", "../../../../wit/plugin", "../../../../wit/scheduler"],
    world: "tokenloom:scheduler/scheduler-plugin",
    with: { "tokenloom:types/types@0.1.0": tokenloom_sdk_types },
    generate_all,
    additional_derives: [PartialEq],
    pub_export_macro: true,
});

pub use exports::tokenloom::plugin::lifecycle;
pub use exports::tokenloom::scheduler::scheduler as interface;
