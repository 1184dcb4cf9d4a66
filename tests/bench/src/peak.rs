//! What these threads could do at most, measured on the spot: other load on the machine lowers both sides alike.

use std::hint::black_box;
use std::time::Instant;

/// Passes over the memory, or bursts of products; the best counts.
const PASSES: usize = 5;

/// What these threads can read from memory of this size, in 10^9 bytes a second.
pub fn read_gb_per_s(bytes: u64, threads: usize) -> f64 {
    let words = vec![1u64; bytes as usize / 8];
    let part = words.len().div_ceil(threads).max(1);
    let parts: Vec<&[u64]> = words.chunks(part).collect();
    let sum = |i: usize| {
        black_box(parts[i].iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
    };
    bytes as f64 / best_seconds(parts.len(), sum) / 1e9
}

/// Operations a second of 64-byte dot products (VNNI) in registers alone, in 10^9; 0 where there are none.
pub fn vnni_gop_per_s(threads: usize) -> f64 {
    /// Some milliseconds of work.
    const ROUNDS: usize = 500_000;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        /// As many sums as hide the latency of one.
        const SUMS: usize = 12;
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn dots(rounds: usize) -> i32 {
            let mut sums = [_mm512_setzero_si512(); SUMS];
            let x = _mm512_set1_epi8(1);
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbusd_epi32(*sum, x, x);
                }
            }
            sums.iter().map(|&sum| _mm512_reduce_add_epi32(sum)).fold(0, i32::wrapping_add)
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            // SAFETY: the processor has both.
            let seconds = best_seconds(threads, |_| {
                black_box(unsafe { dots(black_box(ROUNDS)) });
            });
            // 64 products and as many additions each.
            return (threads * ROUNDS * SUMS * 128) as f64 / seconds / 1e9;
        }
    }
    let _ = (threads, ROUNDS);
    0.0
}

/// Seconds of `work(thread)` on so many threads at once.
fn best_seconds(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let pass = || {
        let started = Instant::now();
        std::thread::scope(|scope| {
            let work = &work;
            (0..threads).for_each(|i| drop(scope.spawn(move || work(i))));
        });
        started.elapsed().as_secs_f64()
    };
    (0..PASSES).map(|_| pass()).fold(f64::INFINITY, f64::min)
}
