//! What wasmtime makes of `wit/`: one module per world, sharing the types package.

pub mod output {
    wasmtime::component::bindgen!({
        path: ["../../wit/types", "../../wit/plugin", "../../wit/output"],
        world: "tokenloom:output/output-plugin",
        additional_derives: [Clone],
    });

    pub use self::exports::tokenloom::output::stage as wit;
    pub use self::tokenloom::types::types;
}

pub mod template {
    wasmtime::component::bindgen!({
        path: ["../../wit/types", "../../wit/plugin", "../../wit/template"],
        world: "tokenloom:template/template-plugin",
        with: { "tokenloom:types/types": super::output::types },
    });

    pub use self::exports::tokenloom::template::template as wit;
}

pub mod scheduler {
    wasmtime::component::bindgen!({
        path: ["../../wit/types", "../../wit/plugin", "../../wit/scheduler"],
        world: "tokenloom:scheduler/scheduler-plugin",
        with: { "tokenloom:types/types": super::output::types },
    });

    pub use self::exports::tokenloom::scheduler::scheduler as wit;
}

/// The capabilities. Each function may stop the guest, so each answers with a `Result`.
pub mod host {
    wasmtime::component::bindgen!({
        inline: "
            package tokenloom:host-side;
            world host-side {
                import tokenloom:host/log@0.1.0;
                import tokenloom:host/metrics@0.1.0;
                import tokenloom:host/tokenizer@0.1.0;
            }
        ",
        path: ["../../wit/host"],
        world: "tokenloom:host-side/host-side",
        imports: { default: trappable },
    });

    pub use self::tokenloom::host::{log, metrics, tokenizer};
}

use crate::sandbox::StoreData;
use wasmtime::Store;

/// The interface every kind exports; its generated types differ by world only in name.
pub trait Lifecycle {
    /// Gives name and version.
    fn describe(&self, store: &mut Store<StoreData>) -> wasmtime::Result<(String, String)>;
    fn configure(
        &self,
        store: &mut Store<StoreData>,
        settings_json: &str,
    ) -> wasmtime::Result<Result<(), output::types::PluginError>>;
}

macro_rules! lifecycle {
    ($($world:ty),*) => {$(
        impl Lifecycle for $world {
            fn describe(&self, store: &mut Store<StoreData>) -> wasmtime::Result<(String, String)> {
                let descriptor = self.tokenloom_plugin_lifecycle().call_describe(store)?;
                Ok((descriptor.name, descriptor.version))
            }

            fn configure(
                &self,
                store: &mut Store<StoreData>,
                settings_json: &str,
            ) -> wasmtime::Result<Result<(), output::types::PluginError>> {
                self.tokenloom_plugin_lifecycle().call_configure(store, settings_json)
            }
        }
    )*};
}

lifecycle!(output::OutputPlugin, template::TemplatePlugin, scheduler::SchedulerPlugin);
