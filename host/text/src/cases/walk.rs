//! A model without any sense: random tokens of those that a constraint allows, and what the pipeline makes of them.
//!
//! Whatever a grammar lets through must be what was asked for; random texts under it find where it is not.

use contract::TokenId;
use contract::constraint::TokenConstraint;
use serde_json::Value;

use super::output::Answer;
use crate::{ConstraintPlan, EndOfStream, OutputJob, TextError, TextModel};

/// A text that is longer than this has lost its way: the caller tries another seed.
const TOKENS_MAX: usize = 600;

/// SplitMix64: the same texts everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// One stream's constraint, asked token by token.
pub struct Walk {
    constraint: Box<dyn TokenConstraint>,
    mask: Vec<u32>,
    /// Ends a text.
    end: TokenId,
    pub tokens: Vec<TokenId>,
}

impl Walk {
    pub fn new(plan: &ConstraintPlan, vocab: usize, end: TokenId) -> Self {
        Self { constraint: plan.open(), mask: vec![0; vocab.div_ceil(32)], end, tokens: Vec::new() }
    }

    /// Whether the next token is one of the grammar's.
    pub fn is_bound(&self) -> bool {
        self.constraint.is_active()
    }

    pub fn allows(&mut self, token: TokenId) -> Result<bool, String> {
        if !self.is_bound() {
            return Ok(true);
        }
        self.constraint.fill_mask(&mut self.mask).map_err(|e| e.to_string())?;
        Ok(self.mask[token as usize / 32] >> (token % 32) & 1 == 1)
    }

    /// Says these tokens; the place of the first that is not allowed is an error.
    pub fn say(&mut self, tokens: &[TokenId]) -> Result<(), String> {
        for (at, &token) in tokens.iter().enumerate() {
            if !self.allows(token)? {
                return Err(format!("token {token}, number {at}, is not allowed"));
            }
            self.accept(token)?;
        }
        Ok(())
    }

    /// Goes on at random until the end; `false` when none came. Tokens beyond the bytes, and characters that close
    /// something, are liked better, or few texts would end.
    pub fn wander(&mut self, random: &mut Random) -> Result<bool, String> {
        for _ in 0..TOKENS_MAX {
            if !self.is_bound() {
                return Err(format!("token {} is free", self.tokens.len()));
            }
            self.constraint.fill_mask(&mut self.mask).map_err(|e| e.to_string())?;
            let allowed = |token: &TokenId| self.mask[*token as usize / 32] >> (token % 32) & 1 == 1;
            let allowed: Vec<TokenId> = (0..self.mask.len() as TokenId * 32).filter(allowed).collect();
            let closing = |token: &TokenId| u8::try_from(*token).map_or(true, |byte| b"\"'}])".contains(&byte));
            let liked: Vec<TokenId> = allowed.iter().copied().filter(closing).collect();
            let pick = if liked.is_empty() || random.below(3) == 0 { &allowed } else { &liked };
            let &token = pick.get(random.below(pick.len())).ok_or("no token is allowed")?;
            self.accept(token)?;
            if token == self.end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        self.tokens.push(token);
        self.constraint.accept(token).map_err(|e| e.to_string())
    }
}

/// What clients see of these steps.
pub fn answer(
    model: &TextModel,
    job: &OutputJob,
    steps: impl IntoIterator<Item = Vec<TokenId>>,
    end: EndOfStream,
) -> Result<Answer, TextError> {
    let mut pipeline = model.open_output(job)?;
    let mut answer = Answer::new();
    for tokens in steps {
        answer.add(pipeline.push(&tokens, Vec::new())?);
    }
    answer.add(pipeline.finish(end)?);
    answer.finish_reason = pipeline.finish_reason().to_owned();
    answer.violations = pipeline.usage().stage_violations;
    Ok(answer)
}

/// Whether a value is what a schema says, for schemas of these few keywords; another one is an error too.
pub fn fits(schema: &Value, value: &Value) -> Result<(), String> {
    let Some(schema) = schema.as_object() else { return Err(format!("{schema} is no schema of this kind")) };
    let no = |why: &str| Err(format!("{value} {why}"));
    for (keyword, wanted) in schema {
        match (keyword.as_str(), wanted, value) {
            ("type", Value::String(kind), _) if !is_of(kind, value) => return no(&format!("is no {kind}")),
            ("enum", Value::Array(values), _) if !values.contains(value) => return no("is none of the values"),
            ("required", Value::Array(names), Value::Object(members)) => {
                if let Some(name) = names.iter().filter_map(Value::as_str).find(|name| !members.contains_key(*name)) {
                    return no(&format!("lacks `{name}`"));
                }
            }
            ("properties", Value::Object(properties), Value::Object(members)) => {
                for (name, inner) in members {
                    match properties.get(name) {
                        Some(schema) => fits(schema, inner)?,
                        None if schema.get("additionalProperties") == Some(&Value::Bool(false)) => {
                            return no(&format!("has `{name}`, which is not declared"));
                        }
                        None => {}
                    }
                }
            }
            ("items", schema, Value::Array(items)) => items.iter().try_for_each(|item| fits(schema, item))?,
            ("type" | "enum" | "required" | "properties" | "items" | "additionalProperties", ..) => {}
            _ => return Err(format!("the keyword {keyword} is not known here")),
        }
    }
    Ok(())
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => false,
    }
}
