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

/// The last event of a feed: the stage rests. Until its next call the host does with text what `kind` says, without
/// asking, as long as the text is no added token and holds none of the characters of `until`.
/// Only for a stage that would do just that with such text, and be as it was before. It saves a call per token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    pub kind: RestKind,
    pub until: String,
}

/// What happens to text while a stage rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestKind {
    /// Content goes by.
    Content,
    /// Reasoning goes by.
    Reasoning,
    /// Content becomes reasoning.
    ContentToReasoning,
    /// Content becomes arguments of the call that is open as it is, where it is the inside of a JSON string by itself: no
    /// control character, no bare quote, and escapes whole.
    ContentToJson,
    /// Content becomes arguments of the call that is open, with JSON's escapes.
    ContentToText,
}

impl RestKind {
    const KEYS: [(Self, &str); 5] = [
        (Self::Content, "rests"),
        (Self::Reasoning, "rests-in-reasoning"),
        (Self::ContentToReasoning, "rests-as-reasoning"),
        (Self::ContentToJson, "rests-as-json"),
        (Self::ContentToText, "rests-as-text"),
    ];
}

impl Rest {
    pub fn new(kind: RestKind, until: impl Into<String>) -> Self {
        Self { kind, until: until.into() }
    }

    pub fn into_event(self) -> Event {
        let key = RestKind::KEYS[self.kind as usize].1;
        Event::Ext(crate::Setting { key: key.into(), value: self.until })
    }

    /// Takes it off the end of a feed's events.
    pub fn take(events: &mut Vec<Event>) -> Option<Self> {
        let Some(Event::Ext(setting)) = events.last() else { return None };
        let (kind, _) = *RestKind::KEYS.iter().find(|(_, key)| *key == setting.key)?;
        match events.pop() {
            Some(Event::Ext(setting)) => Some(Self::new(kind, setting.value)),
            _ => None,
        }
    }

    /// How two stages rest together, `next` behind this one. `None`: one of them has to be asked.
    pub fn then(mut self, next: &Self) -> Option<Self> {
        self.kind = match (self.kind, next.kind) {
            (RestKind::Content, RestKind::Reasoning) => return None,
            (RestKind::Content, kind) => kind,
            (kind @ (RestKind::Reasoning | RestKind::ContentToReasoning), RestKind::Reasoning) => kind,
            _ => return None,
        };
        self.until.push_str(&next.until);
        Some(self)
    }
}

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
