//! `tokenloom:host/tokenizer`: the model's tokenizer.

use crate::bindings::host::tokenizer::Host;
use crate::config::PluginTokenizer;
use crate::sandbox::{QuotaSpent, StoreData};

impl StoreData {
    /// Pays for one call with `bytes` of input. A guest over its quota is stopped, for it cannot go on without an answer.
    fn tokenizer(&mut self, bytes: usize) -> wasmtime::Result<&dyn PluginTokenizer> {
        let quotas = &mut self.quotas;
        if quotas.tokenizer_calls == 0 || quotas.tokenizer_bytes < bytes {
            let spent = "more of the tokenizer than 64 calls and 64 KiB in one call".to_string();
            return Err(wasmtime::Error::new(QuotaSpent(spent)));
        }
        quotas.tokenizer_calls -= 1;
        quotas.tokenizer_bytes -= bytes;
        match self.plugin.tokenizer.as_deref() {
            Some(tokenizer) => Ok(tokenizer),
            None => Err(wasmtime::Error::new(QuotaSpent("there is no tokenizer here".into()))),
        }
    }
}

impl Host for StoreData {
    fn encode(&mut self, text: String) -> wasmtime::Result<Vec<u32>> {
        Ok(self.tokenizer(text.len())?.encode(&text))
    }

    fn token_id(&mut self, token: String) -> wasmtime::Result<Option<u32>> {
        Ok(self.tokenizer(token.len())?.token_id(&token))
    }
}
