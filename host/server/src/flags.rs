//! Flags of other servers, and what does the same here.

/// Flag, whose it is, what to use here.
const FOREIGN: &[(&[&str], &str, &str)] = &[
    // llama.cpp
    (&["-m"], "llama.cpp", "--model FILE"),
    (&["-c", "--ctx-size", "--ctx_size"], "llama.cpp", "--max-model-len N"),
    (&["-np", "--parallel"], "llama.cpp", "--max-num-seqs N"),
    (&["-b", "--batch-size", "-ub", "--ubatch-size"], "llama.cpp", "--max-num-batched-tokens N"),
    (&["-t", "-tb", "--threads-batch", "--threads-http"], "llama.cpp", "--threads N"),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], "llama.cpp", "--device cpu or --device cuda (all layers)"),
    (&["-a", "--alias"], "llama.cpp", "--served-model-name NAME"),
    (&["--jinja", "--no-jinja"], "llama.cpp", "nothing: the model's own template always runs, in a sandbox"),
    (&["--chat-template-file"], "llama.cpp", "--chat-template FILE.jinja"),
    (&["--reasoning-format"], "llama.cpp", "--reasoning-parser NAME and --reasoning-field NAME"),
    (&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], "llama.cpp", "--kv-cache-dtype T"),
    (&["-hf", "--hf-repo"], "llama.cpp", "--model hf:ORG/NAME"),
    (&["--metrics", "--slots", "--props"], "llama.cpp", "nothing: GET /metrics and GET /ready are always there"),
    (&["-cb", "--cont-batching", "-fa", "--flash-attn"], "llama.cpp", "nothing: it is always on"),
    (&["--mlock", "--no-mmap"], "llama.cpp", "nothing: weights are mapped"),
    // vLLM
    (&["--tokenizer-mode", "--trust-remote-code"], "vLLM", "nothing: no code of a model runs outside the sandbox"),
    (
        &["--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"],
        "vLLM",
        "not supported; one device per engine",
    ),
    (&["--data-parallel-size", "-dp"], "vLLM", "not supported; run several servers behind a router"),
    (&["--scheduling-policy"], "vLLM", "--scheduler fcfs|priority|FILE.wasm"),
    (&["--scheduler-cls"], "vLLM", "--scheduler FILE.wasm"),
    (&["--enable-auto-tool-choice"], "vLLM", "--tool-call-parser NAME alone"),
    (
        &["--tool-parser-plugin", "--reasoning-parser-plugin"],
        "vLLM",
        "--tool-call-parser or --reasoning-parser FILE.wasm",
    ),
    (&["--enable-reasoning"], "vLLM", "--reasoning-parser NAME alone"),
    (&["--api-key"], "vLLM", "--api-key-file FILE (a secret on the command line can be read by every user)"),
    (&["--enable-prefix-caching"], "vLLM", "nothing: it is on; --no-enable-prefix-caching turns it off"),
    (&["--enable-chunked-prefill", "--no-enable-chunked-prefill"], "vLLM", "nothing: prefill is always chunked"),
    (&["--async-scheduling"], "vLLM", "nothing: steps always overlap"),
    (&["--compilation-config", "-O"], "vLLM", "nothing: there is no compile mode to choose"),
    (&["--dtype"], "vLLM", "nothing: weights run in the format of their file"),
    (&["--block-size"], "vLLM", "nothing: KV pages hold 64 tokens"),
    (&["--num-gpu-blocks-override"], "vLLM", "--kv-cache-tokens N"),
    (&["--swap-space", "--cpu-offload-gb"], "vLLM", "not supported; preempted requests are recomputed"),
    (&["--seed"], "vLLM", "the request field `seed`"),
    (
        &["--uvicorn-log-level", "--disable-log-stats", "--disable-log-requests"],
        "vLLM",
        "the environment variable TOKENLOOM_LOG",
    ),
    (&["--root-path", "--ssl-keyfile", "--ssl-certfile"], "vLLM", "not supported; put a reverse proxy in front"),
    (
        &["--max-num-partial-prefills", "--long-prefill-token-threshold"],
        "vLLM",
        "--max-num-batched-tokens N, or a scheduler plugin",
    ),
    (
        &["--guided-decoding-backend", "--structured-outputs-config"],
        "vLLM",
        "nothing: grammars have one implementation",
    ),
    (&["--speculative-config"], "vLLM", "not supported yet"),
    (&["--enable-lora", "--lora-modules"], "vLLM", "not supported yet"),
    (&["--limit-mm-per-prompt", "--mm-processor-kwargs"], "vLLM", "not supported; text models only"),
    (&["--revision"], "vLLM", "--model hf:ORG/NAME:REVISION"),
    (&["--download-dir"], "vLLM", "hub_cache in the config file's [server]"),
];

/// What to tell somebody who typed `flag`; `None` when nobody has such a flag.
pub fn counterpart(flag: &str) -> Option<String> {
    let (_, owner, here) = FOREIGN.iter().find(|(names, ..)| names.contains(&flag))?;
    Some(format!("`{flag}` is a flag of {owner}; here: {here}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_stands_twice() {
        let mut names = FOREIGN.iter().flat_map(|(names, ..)| names.iter()).collect::<Vec<_>>();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(counterpart("--no-such-flag"), None);
    }
}
