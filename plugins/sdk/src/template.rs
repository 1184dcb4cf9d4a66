//! Chat templates: implement [`Template`], then name the type in [`export_template!`](crate::export_template).

use crate::PluginError;
use tokenloom_sdk_template::{interface as wit, lifecycle};

pub use crate::{Channel, Setting};
pub use wit::{ModelInfo, Rendered};

/// One loaded template. Rendering is a pure function of the request: the time of day is in it.
pub trait Template: Sized + 'static {
    /// Called once, with the operator's settings as JSON; see [`crate::parse_settings`].
    fn configure(settings_json: &str) -> Result<Self, PluginError>;

    /// Called once, after `configure`, with what the model's files say.
    fn load(&mut self, model: ModelInfo) -> Result<(), PluginError>;

    /// `request_json` holds `messages, tools, documents` (null when absent), `add_generation_prompt`,
    /// `continue_final_message`, `kwargs` and `now` (RFC 3339 with offset).
    fn render(&mut self, request_json: &str) -> Result<Rendered, PluginError>;
}

/// Where a component keeps its one template; implemented by the macro.
#[doc(hidden)]
pub trait Global: Template {
    const DESCRIPTOR: crate::Described;
    fn with<R>(run: impl FnOnce(&mut Option<Self>) -> R) -> R;
}

#[doc(hidden)]
pub struct Component<T>(std::marker::PhantomData<T>);

/// A host that skips `configure` gets the default settings.
fn configured<T: Global, R>(run: impl FnOnce(&mut T) -> Result<R, PluginError>) -> Result<R, PluginError> {
    T::with(|slot| {
        let template = match slot.take() {
            Some(template) => template,
            None => T::configure("{}")?,
        };
        run(slot.insert(template))
    })
}

impl<T: Global> lifecycle::Guest for Component<T> {
    fn describe() -> lifecycle::Descriptor {
        let it = T::DESCRIPTOR;
        lifecycle::Descriptor { name: it.name.into(), version: it.version.into(), summary: it.summary.into() }
    }

    fn configure(settings_json: String) -> Result<(), PluginError> {
        let template = T::configure(&settings_json)?;
        T::with(|slot| *slot = Some(template));
        Ok(())
    }
}

impl<T: Global> wit::Guest for Component<T> {
    fn load(model: ModelInfo) -> Result<(), PluginError> {
        configured::<T, _>(|template| template.load(model))
    }

    fn render(request_json: String) -> Result<Rendered, PluginError> {
        configured::<T, _>(|template| template.render(&request_json))
    }
}

/// Makes a type that implements [`template::Template`](crate::template::Template) a component.
#[macro_export]
macro_rules! export_template {
    ($template:ty) => {
        const _: () = {
            $crate::plugin_global!($template, $crate::template::Global);
            #[cfg(target_arch = "wasm32")]
            type TokenloomComponent = $crate::template::Component<$template>;
            #[cfg(target_arch = "wasm32")]
    $crate::template_bindings::export!(TokenloomComponent with_types_in $crate::template_bindings);
        };
    };
}
