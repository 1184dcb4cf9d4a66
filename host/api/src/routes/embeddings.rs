//! `POST /v1/embeddings`: hidden states of a decoder, pooled to one vector per input.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use contract::TokenId;
use contract::generation::Request;
use contract::sampling::SamplingParams;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Value, json};

use super::RequestId;
use super::common::{read_body, warnings, with_warnings};
use crate::error::{ApiError, Code};
use crate::generate::{generation_error, submit_error};
use crate::prepare::{self, check_vocabulary, text_error};
use crate::state::{ApiState, ServedModel};
use crate::wire::completion::Prompt;
use crate::wire::embeddings::EmbeddingsRequest;
use crate::wire::fields::Fields;

/// Inputs of one request that are in the engine at the same time: enough to fill its steps, and few enough that a long
/// list does not fill its queue.
const AT_ONCE: usize = 32;

pub async fn post(
    State(state): State<ApiState>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let caller = state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let mut request = EmbeddingsRequest::try_from(Fields::parse(&body)?)?;
    drop(body);
    let model = state.model(request.model.as_deref())?;
    let warnings = warnings(&state, &request.ignored, Vec::new())?;
    let inputs = std::mem::take(&mut request.inputs);
    let _permit = state.0.admission.admit(u32::try_from(inputs.len().min(AT_ONCE)).unwrap_or(u32::MAX))?;

    let (on, add_special) = (Arc::clone(&model), request.add_special_tokens);
    let prompts = prepare::blocking(move || {
        let prompt = |(index, input)| tokens(&on, index, input, add_special);
        inputs.into_iter().enumerate().map(prompt).collect::<Result<Vec<_>, _>>()
    })
    .await?;
    let prompt_tokens: usize = prompts.iter().map(|prompt| prompt.len()).sum();
    let tenant = caller.tenant(request.user.as_deref());
    let group = state.0.ids.number();
    let vectors = stream::iter(prompts).map(|prompt| {
        let pooled = Request {
            id: Arc::clone(&id.0),
            prompt,
            sampling: SamplingParams::default(),
            seed: 0,
            max_new_tokens: 1,
            priority: 0,
            tenant: tenant.clone(),
            deadline: caller.deadline,
            namespace: 0,
            group,
            constraint: None,
            prompt_logprobs: None,
        };
        let pooled = model.engine.pool(pooled, request.pooling).map_err(submit_error);
        async move { pooled?.vector().await.map_err(generation_error) }
    });
    let vectors: Vec<Vec<f32>> = vectors.buffered(AT_ONCE).try_collect().await?;
    let rows = (0..).zip(vectors).map(|(index, vector)| row(index, vector, &request)).collect::<Result<Vec<_>, _>>()?;
    let usage = json!({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens});
    let answer = json!({"object": "list", "data": rows, "model": model.name, "usage": usage});
    Ok(with_warnings(Json(answer).into_response(), &warnings))
}

fn tokens(model: &ServedModel, index: usize, input: Prompt, add_special: bool) -> Result<Arc<[TokenId]>, ApiError> {
    let field = format!("input[{index}]");
    let tokens = match input {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) => model.text.tokenizer().encode(&text, add_special).map_err(|e| text_error(&e))?,
    };
    check_vocabulary(&field, &tokens, model.engine.limits().vocab)?;
    let (count, context_len) = (tokens.len(), model.context_len());
    match count {
        0 => Err(ApiError::invalid(&field, "gives no token; at least one is needed")),
        // The engine keeps a place for a token to come.
        _ if count >= context_len as usize => {
            let message = format!(
                "This model's maximum context length is {context_len} tokens. However, your {field} resulted in {count} tokens. Shorten it"
            );
            let mut error = ApiError::new(Code::ContextLengthExceeded, message);
            error.param = Some(field);
            Err(error)
        }
        _ => Ok(tokens.into()),
    }
}

fn row(index: u32, mut vector: Vec<f32>, request: &EmbeddingsRequest) -> Result<Value, ApiError> {
    if let Some(dimensions) = request.dimensions {
        if dimensions as usize > vector.len() {
            let message = format!("is {dimensions}, but this model's vectors have {} numbers", vector.len());
            return Err(ApiError::invalid("dimensions", message));
        }
        vector.truncate(dimensions as usize);
    }
    if request.normalize {
        let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        // A vector of zeros has no direction.
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
    }
    let embedding = if request.base64 {
        let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        json!(base64(&bytes))
    } else {
        json!(vector)
    };
    Ok(json!({"object": "embedding", "index": index, "embedding": embedding}))
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = (0..3).fold(0_u32, |word, i| word << 8 | u32::from(chunk.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    /// The test vectors of RFC 4648.
    #[test]
    fn base64_of_the_standard() {
        for (text, code) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(text.as_bytes()), code);
        }
    }
}
