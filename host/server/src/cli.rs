//! The command line as it is written. What it means together with a config file is in [`crate::settings`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};

use crate::config::{EngineTable, ServerTable};
use crate::flags;

/// A server for language models whose parsers, templates and schedulers are sandboxed plugins.
#[derive(Debug, Parser)]
#[command(name = "tokenloom", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve models over the OpenAI API.
    Serve(Box<ServeArgs>),
    /// Look at plugins and test them.
    Plugin {
        #[command(subcommand)]
        command: PluginCommand,
    },
}

#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// GGUF file, Hugging Face folder, hf:ORG/NAME[:FILE or :REVISION] or script:FILE.json.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub source: Option<String>,
    /// The same as the positional MODEL.
    #[arg(long, value_name = "SRC")]
    pub model: Option<String>,
    /// Names clients use for the model; the first is the main one.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub served_model_name: Vec<String>,
    /// Chat template: a template plugin's name, FILE.jinja or FILE.wasm. Without it the model's own.
    #[arg(long, value_name = "NAME|FILE")]
    pub chat_template: Option<String>,
    /// Output stage that splits off reasoning; comes before the tool-call parser.
    #[arg(long, value_name = "NAME|FILE.wasm", conflicts_with = "output_stage")]
    pub reasoning_parser: Option<String>,
    /// Output stage that reads tool calls.
    #[arg(long, value_name = "NAME|FILE.wasm", conflicts_with = "output_stage")]
    pub tool_call_parser: Option<String>,
    /// One stage of the output chain; repeat it for more, in order.
    #[arg(long, value_name = "NAME|FILE.wasm")]
    pub output_stage: Vec<String>,
    /// Sampling defaults: `auto` (generation_config.json beside the model), `none`, or a file.
    #[arg(long, value_name = "auto|none|FILE")]
    pub generation_config: Option<String>,
    /// Name of the reasoning text in answers: reasoning, reasoning_content or both.
    #[arg(long, value_name = "NAME")]
    pub reasoning_field: Option<String>,
    /// Keep no prefix cache.
    #[arg(long)]
    pub no_enable_prefix_caching: bool,
    #[command(flatten)]
    pub engine: EngineTable,
    #[command(flatten)]
    pub server: ServerTable,
    /// Config file; flags win over it.
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Write a plugin's project into a new folder, ready to build.
    New {
        #[arg(long, value_name = "output|template|scheduler", value_parser = kind)]
        kind: kit::Kind,
        #[arg(long, value_name = "rust|python|javascript|c", value_parser = lang)]
        lang: kit::Lang,
        /// The plugin's name, and the folder's.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Make the component of a plugin's folder: NAME.wasm with NAME.toml beside it.
    Build {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Make a key to sign plugins with, and print its public half.
    Keygen {
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Sign a component: its digest and the signature are written into FILE.toml.
    Sign {
        #[arg(value_name = "FILE.wasm")]
        component: PathBuf,
        /// What `keygen` wrote.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Fetch a plugin from an OCI registry into a folder.
    Pull {
        #[arg(value_name = "oci://HOST/REPOSITORY@sha256:DIGEST")]
        reference: String,
        /// Where its files go; by default here.
        #[arg(long, value_name = "DIR", default_value = ".")]
        to: PathBuf,
        /// Logins for registries, as container tools write them.
        #[arg(long, value_name = "FILE.json")]
        logins: Option<PathBuf>,
    },
    /// Put a component, its manifest and its cases into an OCI registry.
    Push {
        #[arg(value_name = "FILE.wasm")]
        component: PathBuf,
        #[arg(value_name = "oci://HOST/REPOSITORY")]
        to: String,
        #[arg(long, value_name = "FILE.json")]
        logins: Option<PathBuf>,
    },
    /// The plugins inside this binary.
    List,
    /// What a component is: kind, imports, exports, capabilities, digest.
    Inspect {
        #[arg(value_name = "NAME|FILE.wasm")]
        plugin: String,
    },
    /// Run failure cases through plugins.
    Test {
        /// Stages of one chain, a template plugin, or the folder of a plugin with its own cases.
        #[arg(value_name = "NAME|FILE.wasm|DIR")]
        plugins: Vec<String>,
        /// Case file, one JSON object per line.
        #[arg(long, value_name = "FILE.jsonl")]
        cases: Option<PathBuf>,
        /// One JSON object per case instead of text.
        #[arg(long)]
        json: bool,
    },
    /// What a plugin costs a call: nanoseconds, fuel and memory, beside the native build of the same crate.
    Bench {
        /// A bundled plugin, a component, or a project's folder, whose Rust crate is also built natively.
        #[arg(value_name = "NAME|FILE.wasm|DIR")]
        plugin: String,
        /// The calls are those of these cases; without, of the folder's own, else of the conformance set.
        #[arg(long, value_name = "FILE.jsonl")]
        cases: Option<PathBuf>,
        /// The Rust project to build natively.
        #[arg(long, value_name = "DIR")]
        native: Option<PathBuf>,
        /// One JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Run a recorded trace of a scheduler again and compare every decision.
    Replay {
        /// What `--scheduler-trace` wrote.
        #[arg(value_name = "TRACE")]
        trace: PathBuf,
        /// The scheduler to run it on; without it the one that was recorded.
        #[arg(long, value_name = "NAME|FILE.wasm")]
        scheduler: Option<String>,
        /// The scheduler's settings.
        #[arg(long, value_name = "JSON")]
        settings: Option<String>,
    },
}

fn kind(word: &str) -> Result<kit::Kind, String> {
    pick(&kit::Kind::ALL, kit::Kind::as_str, word)
}

fn lang(word: &str) -> Result<kit::Lang, String> {
    pick(&kit::Lang::ALL, kit::Lang::as_str, word)
}

fn pick<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str, word: &str) -> Result<T, String> {
    let names = || all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", ");
    all.iter().copied().find(|one| name(*one) == word).ok_or_else(|| format!("one of {} is needed", names()))
}

/// A command line that is not run: help, version, or a mistake.
pub struct Message {
    error: clap::Error,
    hint: Option<String>,
}

impl Message {
    /// Prints it and gives the exit code: 0 for help and version, 2 for a mistake.
    pub fn print(&self) -> ExitCode {
        // A closed stdout leaves nobody to tell.
        let _ = self.error.print();
        if let Some(hint) = &self.hint {
            eprintln!("\n  hint: {hint}");
        }
        if self.error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
    }

    /// The whole text, for tests.
    pub fn text(&self) -> String {
        format!("{}{}", self.error, self.hint.as_deref().unwrap_or_default())
    }
}

/// Reads a command line, `args[0]` being the program's name.
pub fn parse(args: Vec<OsString>) -> Result<Command, Message> {
    let words = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>();
    Cli::try_parse_from(args).map(|cli| cli.command).map_err(|error| {
        let hint = unknown_flag(&error).and_then(|flag| hint(&flag, &words));
        Message { error, hint }
    })
}

fn unknown_flag(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => Some(flag.clone()),
        _ => None,
    }
}

/// The parser cuts `-ngl` to `-n`, so the word is looked up as it was typed.
fn hint(flag: &str, words: &[String]) -> Option<String> {
    let typed = words.iter().filter(|word| word.starts_with(flag)).map(|word| word.split('=').next().unwrap_or(word));
    typed.chain([flag]).find_map(flags::counterpart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> String {
        match parse(line.split(' ').map(OsString::from).collect()) {
            Ok(command) => panic!("parsed: {command:?}"),
            Err(message) => message.text(),
        }
    }

    fn serve(line: &str) -> ServeArgs {
        match parse(line.split(' ').map(OsString::from).collect()) {
            Ok(Command::Serve(args)) => *args,
            Ok(other) => panic!("{other:?}"),
            Err(message) => panic!("{}", message.text()),
        }
    }

    #[test]
    fn the_model_is_positional_or_a_flag() {
        assert_eq!(serve("tokenloom serve m.gguf").source.as_deref(), Some("m.gguf"));
        assert_eq!(serve("tokenloom serve --model m.gguf").model.as_deref(), Some("m.gguf"));
        assert!(error("tokenloom serve a.gguf --model b.gguf").contains("cannot be used with"));
    }

    #[test]
    fn stages_repeat_in_order() {
        let args = serve("tokenloom serve m.gguf --output-stage a --output-stage b.wasm");
        assert_eq!(args.output_stage, ["a", "b.wasm"]);
        assert!(error("tokenloom serve m --output-stage a --tool-call-parser b").contains("cannot be used with"));
    }

    /// A flag of another server is answered with what does the same here.
    #[test]
    fn foreign_flags_name_their_counterpart() {
        for (flag, counterpart) in [
            ("--ctx-size 4096", "--max-model-len"),
            ("-ngl 99", "--device"),
            ("--tensor-parallel-size=2", "not supported"),
            ("--scheduling-policy priority", "--scheduler"),
            ("--enable-auto-tool-choice", "--tool-call-parser"),
            ("--api-key k", "--api-key-file"),
        ] {
            let text = error(&format!("tokenloom serve m.gguf {flag}"));
            assert!(text.contains(counterpart), "{flag}: {text}");
        }
    }

    #[test]
    fn wrong_numbers_name_the_flag_and_the_range() {
        for (flag, needle) in [
            ("--max-num-seqs -5", "-5 is not in 1..=4096"),
            ("--max-model-len 0", "0 is not in 1..="),
            ("--port 70000", "70000 is not in 0..=65535"),
            ("--gpu-memory-utilization x", "invalid float literal"),
        ] {
            let text = error(&format!("tokenloom serve m.gguf {flag}"));
            assert!(text.contains(needle) && text.contains(flag.split(' ').next().unwrap()), "{flag}: {text}");
        }
    }
}
