//! How a tool-call format is written, as data.
//!
//! A block of calls is
//!
//! ```text
//! section_open? ( call_open? CALL call_close? separator? )* section_close?
//! ```
//!
//! where the calls may stand in a list, and a CALL is either an object that holds name and arguments, or a name with
//! arguments behind it. White space between the parts does not count. `reader` reads what a [`Layout`] describes, and
//! `grammar` writes the grammar that keeps to it. A stage makes one in code, the stage `declarative` from settings.

use serde::Deserialize;

use tokenloom_sdk::{PluginError, disable};

/// A marker as long as this is none; it is held back character by character.
const TEXT_BYTES_MAX: usize = 128;

/// Alternatives of one part.
const TEXTS_MAX: usize = 16;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Layout {
    /// Opens a block of calls.
    pub section_open: Vec<String>,
    pub section_close: Vec<String>,
    /// Opens a call, or a list of them. A call without one follows the section's opening or a separator.
    pub call_open: Vec<String>,
    /// May be missing at the end.
    pub call_close: Vec<String>,
    /// May stand between two calls; an empty one says that the next call may follow right away.
    pub separators: Vec<String>,
    /// Whether calls stand in `[`, `,` and `]`.
    pub list: List,
    /// Where calls count without an opening.
    pub bare: Bare,
    /// A call as an object.
    pub object: Option<Object>,
    /// A call as a name and what follows.
    pub named: Option<Named>,
    /// Further texts that may be tokens of the tokenizer: parts of the names' and arguments' texts.
    pub markers: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    #[default]
    Never,
    May,
    Must,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bare {
    #[default]
    Never,
    /// As the first thing of an answer.
    AnswerStart,
    /// At the start of a line, of a declared tool.
    LineStart,
}

/// `{"name": …, "arguments": {…}}`, with its keys in any order and others beside them.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Object {
    pub name_keys: Vec<String>,
    pub argument_keys: Vec<String>,
}

impl Default for Object {
    fn default() -> Self {
        Self { name_keys: vec!["name".into()], argument_keys: vec!["arguments".into()] }
    }
}

/// A name, and arguments behind it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Named {
    pub name_open: String,
    /// End the name.
    pub name_close: Vec<String>,
    /// End the name and belong to the arguments.
    pub name_until: Vec<String>,
    /// Ends the name where a call's id follows; the id ends as a name does.
    pub id_open: String,
    /// The name is `functions.NAME:NUMBER`, which is the call's id as well.
    pub id_in_name: bool,
    pub arguments: Arguments,
    /// With `arguments = "tags"`.
    pub tags: Tags,
    /// With `arguments = "bare"`: what stands on both sides of a text.
    pub quote: String,
    /// May be missing.
    pub arguments_close: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arguments {
    /// One JSON object.
    #[default]
    Json,
    /// A tag for each.
    Tags,
    /// Python's keyword arguments, to the closing parenthesis; the opening one ends the name.
    Python,
    /// `{key:value}` with bare keys and a quote of the format's own; the opening brace ends the name.
    Bare,
}

/// `key_open KEY key_close value_open VALUE value_close`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tags {
    pub key_open: String,
    /// Empty: what opens the value ends the key.
    pub key_close: String,
    /// The value is text, or typed by the tool's schema.
    pub value_open: Vec<String>,
    /// The value is text.
    pub text_open: Vec<String>,
    /// The value is JSON.
    pub json_open: Vec<String>,
    /// Ends the value where another of the format's texts follows.
    pub value_close: String,
    /// One line break behind the opening and one before the end are no part of the value.
    pub trim_newline: bool,
}

impl Layout {
    /// Tags for the function and its parameters, values as raw text:
    ///
    /// ```text
    /// call_open
    /// <function=NAME>
    /// <parameter=KEY>
    /// VALUE
    /// </parameter>
    /// </function>
    /// call_close
    /// ```
    ///
    /// A value carries no type, so the tool's JSON schema gives it one. Text values are sent while they are generated. A
    /// `<function=NAME>` of a declared tool at the start of a line is a call without its opening marker, which models
    /// often forget.
    pub fn function_tags(call_open: &str, call_close: &str) -> Self {
        let tags = Tags {
            key_open: "<parameter=".into(),
            value_open: vec![">".into()],
            value_close: "</parameter>".into(),
            trim_newline: true,
            ..Tags::default()
        };
        Self {
            call_open: vec![call_open.into()],
            call_close: vec![call_close.into()],
            bare: Bare::LineStart,
            named: Some(Named {
                name_open: "<function=".into(),
                name_close: vec![">".into()],
                arguments: Arguments::Tags,
                tags,
                arguments_close: vec!["</function>".into()],
                ..Named::default()
            }),
            ..Self::default()
        }
    }

    /// The texts that the host looks up in the tokenizer.
    pub fn markers(&self) -> Vec<String> {
        let groups = [&self.section_open, &self.section_close, &self.call_open, &self.call_close, &self.markers];
        let mut markers: Vec<String> = Vec::new();
        for text in groups.into_iter().flatten() {
            if !markers.contains(text) {
                markers.push(text.clone());
            }
        }
        markers
    }

    /// Whether arguments are typed by the tools' schemas, or calls believed by the tools' names.
    pub fn types_values(&self) -> bool {
        let tagged = self.named.as_ref().is_some_and(|named| named.arguments == Arguments::Tags);
        tagged || self.bare == Bare::LineStart
    }

    /// What begins a block without an opening.
    pub fn bare_openers(&self) -> Vec<String> {
        if self.bare == Bare::Never {
            return Vec::new();
        }
        if self.list != List::Never {
            return vec!["[".into()];
        }
        let object = self.object.is_some().then(|| "{".to_string());
        let named = self.named.as_ref().map(|named| named.name_open.clone()).filter(|text| !text.is_empty());
        object.into_iter().chain(named).collect()
    }

    /// Says what is wrong with a description that somebody wrote.
    pub fn check(&self) -> Result<(), PluginError> {
        let fault = |what: &str| Err(disable("invalid-settings", format!("settings: tools: {what}")));
        let groups = [&self.section_open, &self.section_close, &self.call_open, &self.call_close, &self.markers];
        check_texts(groups.into_iter().flatten(), false)?;
        check_texts(self.separators.iter(), true)?;
        if groups.into_iter().chain([&self.separators]).any(|group| group.len() > TEXTS_MAX) {
            return fault(&format!("more than {TEXTS_MAX} alternatives of one part"));
        }
        if self.object.is_none() && self.named.is_none() {
            return fault("one of `object` and `named` must say how a call is written");
        }
        if self.section_open.is_empty() && self.call_open.is_empty() && self.bare_openers().is_empty() {
            return fault("nothing begins a call: `section_open`, `call_open` or `bare` must");
        }
        match &self.named {
            Some(named) => named.check(),
            None => Ok(()),
        }
    }
}

impl Named {
    fn check(&self) -> Result<(), PluginError> {
        let fault = |what: &str| Err(disable("invalid-settings", format!("settings: tools.named: {what}")));
        let groups = [&self.name_close, &self.name_until, &self.arguments_close];
        check_texts(groups.into_iter().flatten(), false)?;
        let texts = [&self.name_open, &self.id_open, &self.quote];
        check_texts(texts, true)?;
        let tags = &self.tags;
        check_texts([&tags.key_open, &tags.key_close, &tags.value_close], true)?;
        check_texts(tags.value_open.iter().chain(&tags.text_open).chain(&tags.json_open), false)?;
        let openings = tags.value_open.len() + tags.text_open.len() + tags.json_open.len();
        if openings > TEXTS_MAX || groups.into_iter().any(|group| group.len() > TEXTS_MAX) {
            return fault(&format!("more than {TEXTS_MAX} alternatives of one part"));
        }
        match self.arguments {
            Arguments::Tags if tags.key_open.is_empty() || tags.value_close.is_empty() || openings == 0 => {
                fault("`tags` needs `key_open`, `value_close` and one of `value_open`, `text_open`, `json_open`")
            }
            Arguments::Bare if self.quote.is_empty() => fault("`arguments = \"bare\"` needs a `quote`"),
            Arguments::Json | Arguments::Python | Arguments::Bare
                if self.name_close.is_empty() && self.name_until.is_empty() =>
            {
                fault("`name_close` or `name_until` must end the name")
            }
            _ => Ok(()),
        }
    }
}

fn check_texts<'a>(texts: impl IntoIterator<Item = &'a String>, may_be_empty: bool) -> Result<(), PluginError> {
    for text in texts {
        if text.len() > TEXT_BYTES_MAX || (text.is_empty() && !may_be_empty) {
            let limits = format!("{} to {TEXT_BYTES_MAX} bytes", u8::from(!may_be_empty));
            return Err(disable(
                "invalid-settings",
                format!("settings: `{text}` has {} bytes, not {limits}", text.len()),
            ));
        }
    }
    Ok(())
}
