//! Saved recurrent states on the card: whoever goes on from one says what it would have said without.

use anyhow::{Context, Result, ensure};
use backend::ops::GateFn;
use backend_cuda::CudaOptions;
use contract::TokenId;

use crate::drive::{Driver, Part};
use crate::hybrid::hybrid;
use crate::parity::{Check, cuda, difference, greedy, on_card, options, spec, tokens};

pub const CHECKS: &[Check] = &[
    Check { name: "saved states, every boundary", run: boundaries },
    Check { name: "saved states, on a run's way", run: on_the_way },
    Check { name: "saved states, slots change hands", run: hands },
    Check { name: "saved states, lies are refused", run: refused },
];

/// The likeliest tokens after a step.
type Row = Vec<(TokenId, f32)>;

/// Chunks over boundaries of pages and of blocks, a prompt's end within a page, then single tokens over another boundary.
const COLD: [usize; 16] = [192, 64, 45, 1, 1, 1, 1, 1, 1, 1, 1, 1, 8, 1, 1, 1];

fn bind(driver: &mut Driver<'_>, seat: u16, text: &[TokenId]) -> Result<()> {
    driver.bind(seat, &greedy(Some(20)), text)
}

/// A seat that goes on from `slot`, with the pages of seat `of`.
fn behind(driver: &mut Driver<'_>, seat: u16, text: &[TokenId], hit: (u16, u32, u32)) -> Result<()> {
    driver.bind_behind(seat, &greedy(Some(20)), text, hit)
}

/// What a seat says after each of some runs.
fn rows(driver: &mut Driver<'_>, seat: u16, mut text: &[TokenId], cuts: &[usize]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &cut in cuts {
        let (part, later) = text.split_at(cut);
        let out = driver.step(&[Part { seat, tokens: part, emit: true }])?;
        rows.push(out.logprobs.first().context("an emitting run gave no logprobs")?.top.clone());
        text = later;
    }
    Ok(rows)
}

/// States saved within a run, at its end, by a decode and in front of one: hits behind each against the whole sequence.
fn cold(driver: &mut Driver<'_>, text: &[TokenId]) -> Result<Vec<Row>> {
    ensure!(driver.backend.caps().state_slots >= 8, "{} slots for saved states", driver.backend.caps().state_slots);
    bind(driver, 0, text)?;
    let (mut at, mut cold) = (0, Vec::new());
    for cut in COLD {
        for (save, slot) in [(64, 0), (128, 1), (192, 2), (256, 3), (320, 4)] {
            if save > at && save <= at + cut {
                driver.save(0, save as u32, slot);
            }
        }
        if at == 320 {
            driver.save(0, 320, 5);
        }
        cold.extend(rows(driver, 0, &text[at..], &[cut])?);
        at += cut;
    }
    Ok(cold)
}

/// The same runs as the whole sequence had: equal to the bit, on seats that were others' before.
fn boundaries(arch: Option<u32>) -> Result<String> {
    let mut backend = cuda(&hybrid(2, 4, 128, GateFn::Silu), true, arch)?;
    let mut driver = Driver::new(&mut *backend);
    let text = tokens(50, COLD.iter().sum());
    let cold = cold(&mut driver, &text)?;
    for (seat, start, slot) in [(1, 192, 2), (2, 256, 3), (1, 320, 4), (2, 320, 5), (0, 320, 4)] {
        let whole: usize =
            (1..COLD.len()).find(|&n| COLD[..n].iter().sum::<usize>() == start).context("no such cut")?;
        behind(&mut driver, seat, &text, (0, start as u32, slot))?;
        let hit = rows(&mut driver, seat, &text[start..], &COLD[whole..])?;
        ensure!(hit == cold[whole..], "behind {start} logprobs differ by {}", difference(&hit, &cold[whole..])?);
    }
    Ok(format!("{} rows of the whole sequence", cold.len()))
}

/// What a run leaves on its way. With products in one order the rest may come in other chunks and is equal to the bit.
fn on_the_way(arch: Option<u32>) -> Result<String> {
    let cuda = CudaOptions { batch_invariant: true, ..on_card(true, arch) };
    let spec = spec(&hybrid(2, 4, 128, GateFn::Silu))?;
    let mut backend = backend_cuda::load(&spec, &options(), &cuda, &mut |_| {})?.0;
    let mut driver = Driver::new(&mut backend);
    let text = tokens(50, COLD.iter().sum());
    let cold = cold(&mut driver, &text)?;
    for (seat, start, slot) in [(1, 64, 0), (2, 128, 1), (1, 192, 2), (2, 64, 0)] {
        behind(&mut driver, seat, &text, (0, start as u32, slot))?;
        let cuts = [&[192 - start][..usize::from(start < 192)], &COLD[1..]].concat();
        let (hit, cold) = (rows(&mut driver, seat, &text[start..], &cuts)?, &cold[usize::from(start == 192)..]);
        ensure!(hit == cold, "behind {start} logprobs differ by {}", difference(&hit, cold)?);
    }
    // Another text's state under the same name shows: it is read.
    let (first, other) = ([1, 1, 1], tokens(51, 64));
    behind(&mut driver, 3, &text, (0, 64, 0))?;
    let right = rows(&mut driver, 3, &text[64..], &first)?;
    bind(&mut driver, 4, &other)?;
    driver.save(4, 64, 6);
    rows(&mut driver, 4, &other, &[64])?;
    behind(&mut driver, 3, &text, (0, 64, 6))?;
    let wrong = rows(&mut driver, 3, &text[64..], &first)?;
    ensure!(right != wrong, "a wrong state changes nothing");
    let apart = difference(&right, &wrong).unwrap_or(f32::INFINITY);
    Ok(format!("{} rows of the whole sequence, {apart:.3} apart with a wrong state", cold.len()))
}

/// A slot that is loaded and saved to in one step, a seat that is taken while a step is in flight, a state over another.
fn hands(arch: Option<u32>) -> Result<String> {
    let mut backend = cuda(&hybrid(2, 4, 128, GateFn::Silu), true, arch)?;
    let mut driver = Driver::new(&mut *backend);
    let (a, b) = (tokens(52, 260), tokens(53, 260));
    for (seat, text) in [(0, &a), (1, &b)] {
        bind(&mut driver, seat, text)?;
        driver.save(seat, 128, 2 * u32::from(seat));
        driver.save(seat, 64, 2 * u32::from(seat) + 1);
        rows(&mut driver, seat, text, &[128])?;
    }
    let pair = |driver: &mut Driver<'_>, seats: [u16; 2]| -> Result<Vec<Row>> {
        let parts = [
            Part { seat: seats[0], tokens: &a[128..192], emit: true },
            Part { seat: seats[1], tokens: &b[128..192], emit: true },
        ];
        Ok(driver.step(&parts)?.logprobs.into_iter().map(|row| row.top).collect())
    };
    let cold = pair(&mut driver, [0, 1])?;
    // Seat 2 goes on from slot 0 while seat 3 leaves its own state there.
    behind(&mut driver, 2, &a, (0, 128, 0))?;
    behind(&mut driver, 3, &b, (1, 128, 2))?;
    driver.save(3, 192, 0);
    ensure!(pair(&mut driver, [2, 3])? == cold, "a slot that is loaded and saved to");
    let cuts = [8, 1, 1];
    let rest = rows(&mut driver, 1, &b[192..], &cuts)?;
    behind(&mut driver, 4, &b, (1, 192, 0))?;
    ensure!(rows(&mut driver, 4, &b[192..], &cuts)? == rest, "a slot that was taken over");
    // Preempted with a step in flight, and back on the same seat behind what is saved.
    let open = driver.launch(&[Part { seat: 1, tokens: &[], emit: true }])?;
    behind(&mut driver, 1, &b, (3, 192, 0))?;
    let back = driver.launch(&[Part { seat: 1, tokens: &b[192..200], emit: true }])?;
    driver.backend.collect(open, true)?.context("nothing")?;
    let back = driver.backend.collect(back, true)?.context("nothing")?;
    ensure!(back.logprobs.first().is_some_and(|row| row.top == rest[0]), "a seat that was taken in flight");
    Ok("equal to the bit".into())
}

/// Steps that the engine would never make.
fn refused(arch: Option<u32>) -> Result<String> {
    let text = tokens(54, 200);
    let settings = hybrid(2, 4, 128, GateFn::Silu);
    let mut backend = cuda(&settings, true, arch)?;
    let slots = backend.caps().state_slots;
    let mut driver = Driver::new(&mut *backend);
    for (at, slot, needle) in [
        (65, 0, "a state at 65; it is at 0, aligned to 64".to_owned()),
        (192, 0, "no run of this step reaches 192 to save its state".to_owned()),
        (64, slots, format!("state slot {slots} of {slots}")),
    ] {
        bind(&mut driver, 0, &text)?;
        driver.save(0, at, slot);
        let error = rows(&mut driver, 0, &text, &[128]).err().context("a step that lies")?.to_string();
        ensure!(error.contains(&needle), "{error}, expected {needle}");
    }
    // Nothing of them was run, and the card is well.
    bind(&mut driver, 0, &text)?;
    rows(&mut driver, 0, &text, &[128])?;
    Ok("three refused".into())
}
