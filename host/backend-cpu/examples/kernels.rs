//! Measures the CPU kernels on the shapes of SmolLM2-135M: `cargo run --release -p backend-cpu --example kernels`.
//!
//! Decode shapes run over 96 MiB of weights of one shape, so that they come from memory (or from whatever cache holds
//! that much); GB/s counts packed bytes. Prefill counts two operations for each weight and row. The first lines are this
//! processor's own ceilings, measured the same way.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use backend::weights::{SharedBytes, Weight, WeightType};
use backend_cpu::kernels::attention::{Attend, KvShape, attend};
use backend_cpu::kernels::matmul::{Store, matmul};
use backend_cpu::kernels::{Isa, OutCols, PackedWeight, QuantRows, Scratch};
use contract::PageId;

/// Bytes of weights that a decode measurement goes through.
const RING_BYTES: usize = 96 << 20;

/// How long one measurement takes at least.
const MEASURE: Duration = Duration::from_millis(250);

/// Shapes as (name, outputs, inputs).
const SHAPES: [(&str, usize, usize); 5] = [
    ("q or out   576 x  576", 576, 576),
    ("k + v      384 x  576", 384, 576),
    ("gate + up 3072 x  576", 3072, 576),
    ("down       576 x 1536", 576, 1536),
    ("head     49152 x  576", 49_152, 576),
];

fn weight(ty: WeightType, rows: usize, cols: usize) -> PackedWeight {
    let bytes = rows * ty.row_bytes(cols).expect("the shapes are whole blocks");
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        // Bytes of 48 to 63 keep every float and scale finite, and none denormal.
        (state >> 56) as u8 & 15 | 48
    };
    let bytes: Vec<u8> = (0..bytes).map(|_| random()).collect();
    let weight = Weight::new("random", ty, rows, cols, SharedBytes::from_vec(bytes)).expect("whole rows");
    PackedWeight::pack(&weight).expect("the shapes can be packed")
}

fn activations(isa: Isa, weight: &PackedWeight, rows: usize) -> QuantRows {
    let cols = weight.cols();
    let mut acts = QuantRows::new(rows, cols, weight.reads());
    acts.set_shape(rows, cols);
    for m in 0..rows {
        let x: Vec<f32> = (0..cols).map(|k| ((k * 37 + m * 11) % 101) as f32 / 50.0 - 1.0).collect();
        acts.writer().put(isa, m, 0, &x);
    }
    acts
}

/// Seconds of each of `steps` calls of `work(thread, step)` added up, all threads at once. Of every call the lower
/// quartile of its repetitions counts, so that what else runs on the machine is mostly left out; of the threads the
/// slowest.
fn seconds(threads: usize, steps: usize, work: impl Fn(usize, usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let measure = |thread: usize| {
        let mut times = vec![Vec::new(); steps];
        barrier.wait();
        let start = Instant::now();
        while start.elapsed() < MEASURE || times[0].len() < 5 {
            for (step, times) in times.iter_mut().enumerate() {
                let start = Instant::now();
                work(thread, step);
                times.push(start.elapsed().as_secs_f64());
            }
        }
        let quartile = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 4]
        };
        times.iter_mut().map(quartile).sum::<f64>()
    };
    std::thread::scope(|scope| {
        let measure = &measure;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || measure(thread))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panics")).fold(0.0, f64::max)
    })
}

fn share(rows: usize, thread: usize, threads: usize) -> std::ops::Range<usize> {
    let grains = rows.div_ceil(32);
    let at = |i: usize| (grains * i / threads * 32).min(rows);
    at(thread)..at(thread + 1)
}

/// Seconds of a pass over all weights of a ring with `rows` activation rows.
fn pass(isa: Isa, ring: &[PackedWeight], rows: usize, threads: usize) -> f64 {
    let acts = activations(isa, &ring[0], rows);
    let outputs = ring[0].rows();
    let buffers: Vec<std::sync::Mutex<(Vec<f32>, Scratch)>> = (0..threads)
        .map(|thread| {
            let cols = share(outputs, thread, threads).len();
            std::sync::Mutex::new((vec![0.0; rows * cols], Scratch::new()))
        })
        .collect();
    seconds(threads, ring.len(), |thread, step| {
        let range = share(outputs, thread, threads);
        let mut guard = buffers[thread].lock().expect("each thread has its own");
        let (out, scratch) = &mut *guard;
        let mut cols = OutCols::new(out, range.len(), 0..range.len());
        matmul(isa, &ring[step], &acts, range, &mut cols, Store::Set, scratch);
    })
}

fn read_bandwidth(threads: usize) -> f64 {
    let memory = vec![1u64; RING_BYTES / 8];
    let steps = 96;
    let time = seconds(threads, steps, |thread, step| {
        let part = memory.len() / threads / steps;
        let words = &memory[(step * threads + thread) * part..][..part];
        let mut sums = [0u64; 32];
        for chunk in words.as_chunks::<32>().0 {
            for (sum, word) in sums.iter_mut().zip(chunk) {
                *sum = sum.wrapping_add(*word);
            }
        }
        black_box(sums);
    });
    RING_BYTES as f64 / time / 1e9
}

/// Operations a second of one core that does nothing but 64-byte dot products.
#[cfg(target_arch = "x86_64")]
fn vnni_peak() -> f64 {
    use std::arch::x86_64::*;
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dots(rounds: usize) -> i32 {
        let mut sums = [_mm512_setzero_si512(); 12];
        let x = _mm512_set1_epi8(1);
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, x);
            }
        }
        sums.iter().map(|&sum| _mm512_reduce_add_epi32(sum)).fold(0, i32::wrapping_add)
    }
    if !is_x86_feature_detected!("avx512vnni") {
        return f64::NAN;
    }
    let rounds = 20_000;
    // SAFETY: the processor has VNNI, and with it AVX-512 F.
    let time = seconds(1, 1, |_, _| {
        black_box(unsafe { dots(black_box(rounds)) });
    });
    (rounds * 12 * 128) as f64 / time / 1e9
}

#[cfg(not(target_arch = "x86_64"))]
fn vnni_peak() -> f64 {
    f64::NAN
}

fn attention(isa: Isa, first: usize, rows: usize, threads: usize) -> f64 {
    let shape = KvShape { kv_heads: 3, head_dim: 64 };
    let pages: Vec<PageId> = (0..(first + rows).div_ceil(64) as u32).map(PageId).collect();
    let pool = vec![0x2E66u16; pages.len() * shape.page_len()];
    let q = vec![0.1f32; rows * 576];
    seconds(threads, 1, |_, _| {
        let mut scratch = Scratch::new();
        let mut out = vec![0.0; rows * 576];
        for kv_head in 0..3 {
            let columns = kv_head * 192..(kv_head + 1) * 192;
            let q = &q[columns.start..];
            let job = Attend { shape, pool: &pool, pages: &pages, kv_head, group: 3, q, q_stride: 576, rows, first };
            attend(isa, &job, &mut OutCols::new(&mut out, 576, columns), &mut scratch);
        }
        black_box(&out);
    })
}

fn main() {
    let isa = Isa::detect();
    let only: Option<String> = std::env::args().nth(1);
    let wants = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    let (read, peak) = ([read_bandwidth(1), read_bandwidth(2)], vnni_peak());
    println!(
        "{}: read {:.1} GB/s (1 thread), {:.1} (2); int8 peak of a core {peak:.0} GOP/s",
        isa.name(),
        read[0],
        read[1]
    );
    if wants("decode") {
        decode(isa, read);
    }
    if wants("prefill") {
        prefill(isa, peak);
    }
    if wants("formats") {
        formats(isa, read[0]);
    }
    if wants("attention") {
        for (first, rows) in [(127, 1), (2047, 1), (7999, 1), (0, 512), (7488, 512)] {
            let time = attention(isa, first, rows, 1);
            let seen: usize = (0..rows).map(|m| first + m + 1).sum();
            let bytes = (first + rows).div_ceil(64) * 64 * 768;
            println!(
                "attention of one layer, {rows:3} rows at {first:4}: {:8.1} us, {:5.1} GFLOP/s, {:5.1} GB/s of pages",
                time * 1e6,
                (seen * 9 * 64 * 4) as f64 / time / 1e9,
                bytes as f64 / time / 1e9
            );
        }
    }
}

fn ring(ty: WeightType, rows: usize, cols: usize) -> Vec<PackedWeight> {
    let one = weight(ty, rows, cols);
    let count = RING_BYTES.div_ceil(one.size_bytes());
    let mut ring = vec![one];
    ring.resize_with(count, || weight(ty, rows, cols));
    ring
}

fn bytes_of(ring: &[PackedWeight]) -> f64 {
    ring.iter().map(|weight| weight.size_bytes() as f64).sum()
}

fn decode(isa: Isa, read: [f64; 2]) {
    println!("Q4_1 decode, GB/s of packed weights (share of read bandwidth), threads 1 | 2");
    for (name, rows, cols) in SHAPES {
        let ring = ring(WeightType::Q4_1, rows, cols);
        print!("{name}");
        for m in [1, 2, 4, 8, 16] {
            let rate = |threads| bytes_of(&ring) / pass(isa, &ring, m, threads) / 1e9;
            let (one, two) = (rate(1), rate(2));
            print!(
                "  M={m}: {one:4.1} ({:3.0} %) | {two:4.1} ({:3.0} %)",
                100.0 * one / read[0],
                100.0 * two / read[1]
            );
        }
        println!();
    }
}

fn prefill(isa: Isa, peak: f64) {
    println!("Q4_1 prefill, GOP/s (share of int8 peak), threads 1 | 2");
    for (name, rows, cols) in &SHAPES[..4] {
        let weights = [weight(WeightType::Q4_1, *rows, *cols)];
        print!("{name}");
        for m in [32, 64, 128, 256, 512] {
            let operations = (2 * rows * cols * m) as f64;
            let rate = |threads| operations / pass(isa, &weights, m, threads) / 1e9;
            let (one, two) = (rate(1), rate(2));
            print!("  M={m}: {one:4.0} ({:2.0} %) | {two:4.0} ({:2.0} %)", 100.0 * one / peak, 50.0 * two / peak);
        }
        println!();
    }
}

fn formats(isa: Isa, read: f64) {
    println!("one thread, 1536 x 1536: GB/s of packed bytes and bits a weight at M=1, 4; GOP/s at M=128");
    for ty in [
        WeightType::F32,
        WeightType::F16,
        WeightType::BF16,
        WeightType::Q8_0,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q5_0,
        WeightType::Q5_1,
        WeightType::Q4_K,
        WeightType::Q5_K,
        WeightType::Q6_K,
        WeightType::IQ4_NL,
        WeightType::IQ4_XS,
        WeightType::MXFP4,
    ] {
        let ring = ring(ty, 1536, 1536);
        let rate = |m| bytes_of(&ring) / pass(isa, &ring, m, 1) / 1e9;
        let operations = (2 * 1536 * 1536 * 128) as f64;
        println!(
            "{ty:?}: {:4.2} bits, {:5.1} GB/s ({:3.0} %), {:5.1} at M=4, {:4.0} GOP/s",
            8.0 * ring[0].size_bytes() as f64 / (1536.0 * 1536.0),
            rate(1),
            100.0 * rate(1) / read,
            rate(4),
            operations / pass(isa, &ring[..1], 128, 1) / 1e9
        );
    }
}
