//! A stage from a description: reasoning, tool calls, or both.

use serde::Deserialize;
use tokenloom_sdk::output::{Constraint, EndReason, Event, Request, Requirements, Rest, Session};
use tokenloom_sdk::{PluginError, disable};

use crate::layout::Layout;
use crate::markers::Tag;
use crate::reader::LayoutFormat;
use crate::reasoning::{Reasoning, ReasoningSession};
use crate::tool::ToolSession;
use crate::types::Tools;

/// A format in full.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Description {
    pub reasoning: Option<Reasoning>,
    pub tools: Option<Layout>,
}

impl Description {
    pub fn check(&self) -> Result<(), PluginError> {
        if self.reasoning.is_none() && self.tools.is_none() {
            return Err(disable("invalid-settings", "settings: `reasoning`, `tools` or both must be described"));
        }
        self.reasoning.as_ref().map_or(Ok(()), Reasoning::check)?;
        self.tools.as_ref().map_or(Ok(()), Layout::check)
    }

    pub fn requires(&self) -> Requirements {
        let mut markers = self.reasoning.as_ref().map(Reasoning::markers).unwrap_or_default();
        for marker in self.tools.as_ref().map(Layout::markers).unwrap_or_default() {
            if !markers.contains(&marker) {
                markers.push(marker);
            }
        }
        Requirements {
            markers,
            reasoning: self.reasoning.as_ref().map(Reasoning::spans).unwrap_or_default(),
            // For the types of values, or for the grammar.
            tool_schemas: self.tools.is_some(),
            stop: Vec::new(),
            ext: Vec::new(),
        }
    }

    pub fn constrain(&self, request: &Request) -> Result<Option<Constraint>, PluginError> {
        match &self.tools {
            Some(layout) => crate::grammar::constrain(layout, request),
            None => Ok(None),
        }
    }

    pub fn open(&self, mut request: Request) -> DescribedSession {
        let reasoning = self.reasoning.as_ref().map(|reasoning| reasoning.session(&request));
        let tools = self.tools.as_ref().map(|layout| {
            // Schemas are only worth keeping where values are typed by them.
            let declared = if layout.types_values() { std::mem::take(&mut request.tools) } else { Vec::new() };
            let tools = Tools::new(declared);
            ToolSession::new(LayoutFormat::new(layout, tools, |text| Tag::of(&request, text)))
        });
        DescribedSession { reasoning, tools }
    }
}

/// Reasoning first; what it relabels goes on to the tools.
pub struct DescribedSession {
    reasoning: Option<ReasoningSession>,
    tools: Option<ToolSession<LayoutFormat>>,
}

impl DescribedSession {
    /// The stage rests only where both of its parts do.
    fn rest(&self) -> Option<Rest> {
        match (&self.reasoning, &self.tools) {
            (Some(reasoning), Some(tools)) => reasoning.rest()?.then(&tools.rest()?),
            (Some(reasoning), None) => reasoning.rest(),
            (None, Some(tools)) => tools.rest(),
            (None, None) => None,
        }
    }
}

impl Session for DescribedSession {
    fn feed(&mut self, mut events: Vec<Event>) -> Result<Vec<Event>, PluginError> {
        if let Some(reasoning) = &mut self.reasoning {
            events = reasoning.read(events);
        }
        if let Some(tools) = &mut self.tools {
            events = tools.read(events);
        }
        events.extend(self.rest().map(Rest::into_event));
        Ok(events)
    }

    fn finish(&mut self, _reason: EndReason) -> Result<Vec<Event>, PluginError> {
        let mut events = self.reasoning.as_mut().map(ReasoningSession::end).unwrap_or_default();
        if let Some(tools) = &mut self.tools {
            events = tools.read(events);
            events.extend(tools.end());
        }
        Ok(events)
    }
}

/// Makes a stage of a function that describes it, and exports it. The function takes the operator's settings.
#[macro_export]
macro_rules! described_stage {
    ($stage:ident, $describe:path) => {
        pub struct $stage($crate::stage::Description);

        impl ::tokenloom_sdk::output::Stage for $stage {
            type Session = $crate::stage::DescribedSession;

            fn configure(settings_json: &str) -> Result<Self, ::tokenloom_sdk::PluginError> {
                let description = $describe(::tokenloom_sdk::parse_settings(settings_json)?);
                description.check()?;
                Ok(Self(description))
            }

            fn requires(&self) -> ::tokenloom_sdk::output::Requirements {
                self.0.requires()
            }

            fn constrain(
                &self,
                request: &::tokenloom_sdk::output::Request,
            ) -> Result<Option<::tokenloom_sdk::output::Constraint>, ::tokenloom_sdk::PluginError> {
                self.0.constrain(request)
            }

            fn open(&self, request: ::tokenloom_sdk::output::Request) -> Self::Session {
                self.0.open(request)
            }
        }

        ::tokenloom_sdk::export_stage!($stage);
    };
}
