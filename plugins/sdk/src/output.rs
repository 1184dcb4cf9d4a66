//! Output stages: implement [`Stage`] and [`Session`], then name the type in [`export_stage!`](crate::export_stage).

use std::cell::RefCell;

use crate::PluginError;
use tokenloom_sdk_output::{interface as wit, lifecycle};

pub use crate::Channel;
pub use wit::{
    CallArguments, CallEnd, CallKind, CallStart, Constraint, EndReason, Event, Marker, ReasoningSpan, Request,
    Requirements, StartAt, Text, Tool, ToolChoice,
};

/// One loaded stage, after the operator's settings were read. It must not change while it serves streams.
pub trait Stage: Sized + 'static {
    type Session: Session;

    /// Called once, with the operator's settings as JSON; see [`crate::parse_settings`].
    fn configure(settings_json: &str) -> Result<Self, PluginError>;

    /// Called once, after `configure`.
    fn requires(&self) -> Requirements;

    /// Called once per request that has tools; a grammar returned here is enforced by the host.
    fn constrain(&self, _request: &Request) -> Result<Option<Constraint>, PluginError> {
        Ok(None)
    }

    /// Called once per stream.
    fn open(&self, request: Request) -> Self::Session;
}

/// One stream's state.
pub trait Session: 'static {
    /// One call per engine step, with that step's events; what the stage does not handle goes on in order.
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, PluginError>;

    /// The last call; gives back whatever is held.
    fn finish(&mut self, reason: EndReason) -> Result<Vec<Event>, PluginError>;
}

/// The last event of a feed: the stage rests. Until its next call the host passes content text on without asking, as
/// long as the text has no token of its own, holds none of the characters of `until` and does not end in white space; with
/// an empty `until` all text without a token goes by.
/// Only for a stage that would pass such text on unchanged and be as it was before. It saves a call per token.
pub fn rests(until: &str) -> Event {
    Event::Ext(crate::Setting { key: RESTS.into(), value: until.into() })
}

/// The key of [`rests`].
pub const RESTS: &str = "rests";

/// Where a component keeps its one configured stage; implemented by the macro.
#[doc(hidden)]
pub trait Global: Stage {
    const DESCRIPTOR: crate::Described;
    fn with<R>(run: impl FnOnce(&mut Option<Self>) -> R) -> R;
}

#[doc(hidden)]
pub struct Component<T>(std::marker::PhantomData<T>);

#[doc(hidden)]
pub struct OpenSession<T: Stage>(RefCell<T::Session>);

/// A host that skips `configure` gets the default settings.
fn configured<T: Global, R>(run: impl FnOnce(&T) -> R) -> Result<R, PluginError> {
    T::with(|slot| {
        if slot.is_none() {
            *slot = Some(T::configure("{}")?);
        }
        slot.as_ref().map(run).ok_or_else(|| crate::disable("not-configured", "the stage has no settings"))
    })
}

impl<T: Global> lifecycle::Guest for Component<T> {
    fn describe() -> lifecycle::Descriptor {
        let it = T::DESCRIPTOR;
        lifecycle::Descriptor { name: it.name.into(), version: it.version.into(), summary: it.summary.into() }
    }

    fn configure(settings_json: String) -> Result<(), PluginError> {
        let stage = T::configure(&settings_json)?;
        T::with(|slot| *slot = Some(stage));
        Ok(())
    }
}

impl<T: Global> wit::Guest for Component<T> {
    type Session = OpenSession<T>;

    fn requires() -> Requirements {
        // The function has no error of its own: settings that do not parse were reported by `configure`.
        configured::<T, _>(Stage::requires).unwrap_or_else(|_| Requirements {
            markers: Vec::new(),
            reasoning: Vec::new(),
            tool_schemas: false,
            stop: Vec::new(),
            ext: Vec::new(),
        })
    }

    fn constrain(request: Request) -> Result<Option<Constraint>, PluginError> {
        configured::<T, _>(|stage| stage.constrain(&request))?
    }
}

impl<T: Global> wit::GuestSession for OpenSession<T> {
    fn new(request: Request) -> Self {
        match configured::<T, _>(|stage| stage.open(request)) {
            Ok(session) => Self(RefCell::new(session)),
            // A constructor cannot answer with an error; the host sees a trap that names the cause.
            Err(error) => panic!("{}: {}", error.code, error.message),
        }
    }

    fn feed(&self, events: Vec<Event>) -> Result<Vec<Event>, PluginError> {
        self.0.borrow_mut().feed(events)
    }

    fn finish(&self, reason: EndReason) -> Result<Vec<Event>, PluginError> {
        self.0.borrow_mut().finish(reason)
    }
}

/// Makes a type that implements [`output::Stage`](crate::output::Stage) a component. The descriptor is the package's
/// own name, version and description.
#[macro_export]
macro_rules! export_stage {
    ($stage:ty) => {
        const _: () = {
            $crate::plugin_global!($stage, $crate::output::Global);
            #[cfg(target_arch = "wasm32")]
            type TokenloomComponent = $crate::output::Component<$stage>;
            #[cfg(target_arch = "wasm32")]
    $crate::output_bindings::export!(TokenloomComponent with_types_in $crate::output_bindings);
        };
    };
}
