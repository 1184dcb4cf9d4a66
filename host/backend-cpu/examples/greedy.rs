//! Greedy generation from the command line, for checks of text and speed without a server.
//!
//! `greedy MODEL.gguf "1 2 3" [--tokens 32] [--streams 1] [--threads N] [--repeat-prompt 1] [--exact]`

use std::time::Instant;

use backend::load::{LoadOptions, LoadProgress};
use backend::step::{Emit, Feed, Run, SeatInit, Step, Table};
use backend::{Backend, BackendError};
use backend_cpu::{CpuOptions, Numerics, load_with};
use contract::sampling::SamplingParams;
use contract::{PAGE_TOKENS, PageId, Seat};

struct Args {
    model: String,
    prompt: Vec<u32>,
    tokens: u32,
    streams: u16,
    threads: Option<usize>,
    exact: bool,
}

fn parse() -> Result<Args, String> {
    let mut words = std::env::args().skip(1);
    let usage =
        "usage: greedy MODEL.gguf \"token ids\" [--tokens N] [--streams N] [--threads N] [--repeat-prompt N] [--exact]";
    let (model, prompt) = (words.next().ok_or(usage)?, words.next().ok_or(usage)?);
    let number = |text: &str| text.parse::<u32>().map_err(|e| format!("`{text}`: {e}"));
    let prompt = prompt.split([' ', ',']).filter(|w| !w.is_empty()).map(number).collect::<Result<Vec<_>, _>>()?;
    let mut args = Args { model, prompt, tokens: 32, streams: 1, threads: None, exact: false };
    while let Some(flag) = words.next() {
        let mut value = || number(&words.next().ok_or_else(|| format!("{flag} needs a number"))?);
        match flag.as_str() {
            "--tokens" => args.tokens = value()?.max(1),
            "--streams" => args.streams = value()?.clamp(1, 256) as u16,
            "--threads" => args.threads = Some(value()? as usize),
            "--repeat-prompt" => args.prompt = args.prompt.repeat(value()? as usize),
            "--exact" => args.exact = true,
            other => return Err(format!("unknown flag {other}; {usage}")),
        }
    }
    Ok(args)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = parse()?;
    let start = Instant::now();
    let model = model::load(args.model.as_ref())?;
    let length = args.prompt.len() as u32 + args.tokens;
    let options = LoadOptions {
        seats: args.streams,
        context_len: Some(length.max(64)),
        threads: args.threads,
        ..LoadOptions::default()
    };
    let numerics = if args.exact { Numerics::Exact } else { Numerics::Fast };
    let cpu = CpuOptions { numerics, ..CpuOptions::default() };
    let (mut backend, plan) = load_with(model.spec, &options, &cpu, &mut |_: LoadProgress| {})?;
    println!("loaded in {:.2} s: {plan:?}", start.elapsed().as_secs_f64());
    let (texts, times) = generate(&mut backend, &args)?;
    println!("{:?}", texts[0]);
    println!("all streams equal: {}", texts.iter().all(|text| *text == texts[0]));
    let [prefill, decode] = times;
    let (prompt, streams) = (args.prompt.len() as f64, f64::from(args.streams));
    println!("prefill {:.1} tok/s, decode {:.1} tok/s", prompt * streams / prefill, {
        f64::from(args.tokens - 1) * streams / decode
    });
    Ok(())
}

fn generate(backend: &mut dyn Backend, args: &Args) -> Result<(Vec<Vec<u32>>, [f64; 2]), BackendError> {
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let max_rows = backend.caps().max_rows as usize;
    let length = args.prompt.len() as u32 + args.tokens;
    let pages = length.div_ceil(PAGE_TOKENS);
    let start = Instant::now();
    let mut texts = Vec::new();
    for stream in 0..args.streams {
        let init =
            SeatInit { sampling: &sampling, seed: 0, adapter: None, start: 0, prompt: &args.prompt, generated: &[] };
        let seat = Seat(stream);
        backend.bind(seat, &init)?;
        let own: Vec<PageId> = (0..pages).map(|page| PageId(u32::from(stream) * pages + page)).collect();
        let mut tables = vec![Table::Append { seat, at: 0, pages: &own }];
        let mut fed = 0;
        for chunk in args.prompt.chunks(max_rows) {
            fed += chunk.len() as u32;
            let emit = if fed as usize == args.prompt.len() { Emit::Next } else { Emit::Nothing };
            let rows = chunk.len() as u32;
            let run = Run { seat, feed: Feed::Tokens(0..rows), rows, end_max: fed, emit, masked: false };
            let out = step(backend, &Step { tables: &tables, runs: &[run], tokens: chunk })?;
            tables.clear();
            if emit == Emit::Next {
                texts.push(out);
            }
        }
    }
    let prefill = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for i in 1..args.tokens {
        let end_max = args.prompt.len() as u32 + i;
        let run =
            |stream| Run { seat: Seat(stream), feed: Feed::Last, rows: 1, end_max, emit: Emit::Next, masked: false };
        let runs: Vec<Run> = (0..args.streams).map(run).collect();
        let out = step(backend, &Step { tables: &[], runs: &runs, tokens: &[] })?;
        texts.iter_mut().zip(out).for_each(|(text, token)| text.push(token));
    }
    Ok((texts, [prefill, start.elapsed().as_secs_f64()]))
}

fn step(backend: &mut dyn Backend, step: &Step<'_>) -> Result<Vec<u32>, BackendError> {
    let ticket = backend.forward(step)?;
    backend.sample(ticket, &[])?;
    Ok(backend.collect(ticket, true)?.map(|out| out.tokens).unwrap_or_default())
}
