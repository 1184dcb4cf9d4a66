//! The types that all plugin kinds share, as `wit-bindgen` makes them of `wit/types`.

mod generated {
    wit_bindgen::generate!({
        path: ["../../../../wit/types"],
        inline: "package tokenloom:sdk; world shared { import tokenloom:types/types@0.1.0; }",
        generate_all,
        generate_unused_types: true,
        additional_derives: [PartialEq, Eq],
    });
}

pub use generated::tokenloom::types::types::*;
