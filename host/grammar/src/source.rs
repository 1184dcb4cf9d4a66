//! What a constraint may be written as, and the library's form of it.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::schema::{self, Checked, Strictness};
use crate::{GrammarError, Vocabulary, tag};

/// Longest grammar, regular expression or list of choices, in bytes. Tool grammars carry the schemas of their tools.
pub const SOURCE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Choices of one request.
pub const CHOICES_MAX: usize = 4096;

/// White space between the tokens of a JSON text: one gap, or one line end with an indentation. Endless white space is
/// valid JSON too, and what small models fall into when nothing stops them.
const JSON_WHITE_SPACE: &str = r"[ \t]{1,32}|\r?\n[ \t]{0,64}";

/// A constraint as a request or an output stage states it.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Any JSON object.
    JsonObject,
    JsonSchema {
        schema: Value,
        strictness: Strictness,
    },
    /// The whole text matches, in the syntax of the Rust crate `regex`, without look-around.
    Regex(String),
    Choice(Vec<String>),
    /// Lark in llguidance's dialect; the start rule is `start`.
    Lark(String),
    /// vLLM's and SGLang's `structural_tag`.
    StructuralTag(Value),
    /// Free text, a stage's calls, or calls after text. Only where calls begin with a token can text not hold one.
    TextOrCalls {
        calls: String,
    },
    /// A stage's calls, or else this content.
    CallsOr {
        calls: String,
        content: Box<Source>,
    },
}

/// A source in the library's form.
pub(crate) struct Prepared {
    pub grammar: TopLevelGrammar,
    /// Equal texts mean equal grammars.
    pub key: String,
    pub warnings: Vec<String>,
    /// The schema, so that an error of the library can be traced to a place in it.
    pub schema: Option<Value>,
}

impl Source {
    /// Checks a source and translates it.
    pub(crate) fn prepare(&self, vocabulary: &Vocabulary) -> Result<Prepared, GrammarError> {
        let (parts, warnings, schema) = self.parts(vocabulary)?;
        let key: String = parts.iter().map(|part| format!("{}\0", text_of(part))).collect();
        if key.len() > SOURCE_BYTES_MAX {
            let (value, limit) = (key.len() as u64, SOURCE_BYTES_MAX as u64);
            return Err(GrammarError::TooLarge { what: "the grammar's size in bytes", value, limit });
        }
        Ok(Prepared { grammar: TopLevelGrammar { grammars: parts, max_tokens: None }, key, warnings, schema })
    }

    fn parts(&self, vocabulary: &Vocabulary) -> Result<Parts, GrammarError> {
        let one = |grammar| Ok((vec![grammar], Vec::new(), None));
        match self {
            Self::JsonObject => one(GrammarWithLexer::from_json_schema(with_white_space(json!({"type": "object"})))),
            Self::JsonSchema { schema, strictness } => {
                let Checked { schema, warnings } = schema::check(schema, *strictness)?;
                let grammar = GrammarWithLexer::from_json_schema(with_white_space(schema.clone()));
                Ok((vec![grammar], warnings, Some(schema)))
            }
            Self::Regex(regex) if regex.is_empty() => Err(GrammarError::grammar("the regular expression is empty")),
            Self::Regex(regex) => one(GrammarWithLexer::from_regex(regex)),
            Self::Choice(choices) => one(GrammarWithLexer::from_lark(choice(choices)?)),
            Self::Lark(lark) => one(GrammarWithLexer::from_lark(checked_lark(lark)?.to_owned())),
            Self::StructuralTag(value) => {
                let (lark, warnings) = tag::to_lark(value, vocabulary)?;
                Ok((vec![GrammarWithLexer::from_lark(lark)], warnings, None))
            }
            Self::TextOrCalls { calls } => {
                let start = "start: TEXT? @calls | TEXT?\nTEXT: /(?s:.+)/".to_owned();
                Ok((vec![GrammarWithLexer::from_lark(start), named("calls", calls)], Vec::new(), None))
            }
            Self::CallsOr { calls, content } => {
                let (mut inner, warnings, schema) = content.parts(vocabulary)?;
                inner[0].name = Some("content".into());
                let start = GrammarWithLexer::from_lark("start: @calls | @content".into());
                let mut parts = vec![start, named("calls", calls)];
                parts.append(&mut inner);
                Ok((parts, warnings, schema))
            }
        }
    }
}

fn named(name: &str, lark: &str) -> GrammarWithLexer {
    GrammarWithLexer { name: Some(name.into()), ..GrammarWithLexer::from_lark(lark.to_owned()) }
}

type Parts = (Vec<GrammarWithLexer>, Vec<String>, Option<Value>);

fn text_of(part: &GrammarWithLexer) -> String {
    match (&part.lark_grammar, &part.json_schema) {
        (Some(lark), _) => format!("lark {lark}"),
        (None, Some(schema)) => format!("json {schema}"),
        (None, None) => String::new(),
    }
}

/// A schema with the library's option for white space; what a stage puts behind `%json` has it too.
pub(crate) fn with_white_space(schema: Value) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema,
        Value::Bool(true) => json!({}),
        other => json!({"allOf": [other]}),
    };
    schema["x-guidance"] = json!({"whitespace_pattern": JSON_WHITE_SPACE});
    schema
}

fn choice(choices: &[String]) -> Result<String, GrammarError> {
    match choices {
        [] => Err(GrammarError::grammar("the list of choices is empty")),
        _ if choices.len() > CHOICES_MAX => Err(GrammarError::TooLarge {
            what: "the number of choices",
            value: choices.len() as u64,
            limit: CHOICES_MAX as u64,
        }),
        _ if choices.iter().any(String::is_empty) => Err(GrammarError::grammar("a choice is the empty text")),
        _ => {
            let quoted: Vec<String> = choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
            Ok(format!("start: CHOICE\nCHOICE: {}", quoted.join(" | ")))
        }
    }
}

/// Other dialects look alike enough to be sent by mistake.
pub(crate) fn checked_lark(lark: &str) -> Result<&str, GrammarError> {
    if lark.contains("::=") {
        return Err(GrammarError::grammar(
            "this is GBNF or EBNF (`::=`), which is not supported: write the grammar in Lark, where `root ::= item` reads `start: item`",
        ));
    }
    if lark.trim().is_empty() {
        return Err(GrammarError::grammar("the grammar is empty; write it in Lark, with a rule `start`"));
    }
    Ok(lark)
}

/// A text as a regular expression that matches it alone.
pub(crate) fn regex_of(text: &str) -> String {
    let mut regex = String::with_capacity(text.len());
    for c in text.chars() {
        if r".+*?()|[]{}^$\".contains(c) {
            regex.push('\\');
        }
        regex.push(c);
    }
    regex
}
