//! Rotary frequencies from `config.json`, in both of its spellings.

use std::f64::consts::TAU;

use backend::ops::Rope;
use serde::Deserialize;

use crate::ModelError;

/// `rope_scaling` (with `rope_theta` beside it), or `rope_parameters` (with it inside).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct RopeTable {
    rope_type: Option<String>,
    /// The older word; files may have both.
    r#type: Option<String>,
    pub rope_theta: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

fn fail<T>(key: &str, found: impl ToString, expected: &str) -> Result<T, ModelError> {
    Err(ModelError::Setting { key: key.to_owned(), found: found.to_string(), expected: expected.to_owned() })
}

impl RopeTable {
    /// Frequencies of a head of `dims` dimensions.
    pub fn rope(&self, dims: usize, theta: f64) -> Result<Rope, ModelError> {
        if !(theta.is_finite() && theta > 0.0) {
            return fail("rope_theta", theta, "expected a number above 0");
        }
        let kind = self.rope_type.as_deref().or(self.r#type.as_deref()).unwrap_or("default");
        let scale: Box<dyn Fn(f64) -> f64> = match kind {
            "default" | "none" => Box::new(|frequency| frequency),
            "linear" => {
                let factor = positive("factor", self.factor)?;
                Box::new(move |frequency| frequency / factor)
            }
            "llama3" => Box::new(self.llama3()?),
            other => return fail("rope_type", format!("`{other}`"), "`default`, `linear` and `llama3` are supported"),
        };
        let base = (0..dims / 2).map(|j| theta.powf(-2.0 * j as f64 / dims as f64));
        Ok(Rope { inv_freq: base.map(|frequency| scale(frequency) as f32).collect() })
    }

    /// Long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1, arXiv 2407.21783; the
    /// formula as in the model's published reference code).
    fn llama3(&self) -> Result<impl Fn(f64) -> f64 + use<>, ModelError> {
        let factor = positive("factor", self.factor)?;
        let low = positive("low_freq_factor", self.low_freq_factor)?;
        let high = positive("high_freq_factor", self.high_freq_factor)?;
        let original = positive("original_max_position_embeddings", self.original_max_position_embeddings)?;
        if low >= high {
            return fail("low_freq_factor", low, &format!("expected less than high_freq_factor, which is {high}"));
        }
        Ok(move |frequency: f64| {
            let turns = original * frequency / TAU;
            let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (keep + (1.0 - keep) / factor)
        })
    }
}

fn positive(key: &str, value: Option<f64>) -> Result<f64, ModelError> {
    match value {
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        Some(value) => fail(&format!("rope_scaling.{key}"), value, "expected a number above 0"),
        None => fail(&format!("rope_scaling.{key}"), "missing", "this rope_type needs it"),
    }
}
