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
        let mut sums = [0u64; 8];
        for line in parts[i].as_chunks::<8>().0 {
            prefetch(line.as_ptr().wrapping_add(PREFETCH_WORDS));
            sums.iter_mut().zip(line).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
        black_box(sums);
    };
    bytes as f64 / best_seconds(parts.len(), sum) / 1e9
}

/// As far ahead as the processor's own prefetching does not reach: a page.
const PREFETCH_WORDS: usize = 512;

fn prefetch(at: *const u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Operations a second of byte products of whole tiles (AMX) in registers alone, in 10^9; 0 where there are none.
pub fn amx_gop_per_s(threads: usize) -> f64 {
    /// Each is four products of 16 x 16 x 64.
    const ROUNDS: usize = 200_000;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::asm;
        // Detecting it also asks the system for the right to use it.
        if backend_cpu::kernels::Isa::detect().has_tiles() {
            #[repr(C, align(64))]
            struct Config([u8; 64]);
            let mut config = Config([0; 64]);
            config.0[0] = 1;
            for register in 0..8 {
                config.0[16 + 2 * register] = 64;
                config.0[48 + register] = 16;
            }
            let config = &config;
            let seconds = best_seconds(threads, |_| {
                // SAFETY: the unit is there; the configuration has 8 registers of 16 rows of 64 bytes; registers are
                // used between the first and the last instruction only.
                unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly)) };
                for _ in 0..ROUNDS {
                    // SAFETY: as above.
                    unsafe {
                        asm!(
                            "tdpbusd tmm0, tmm4, tmm5",
                            "tdpbusd tmm1, tmm4, tmm5",
                            "tdpbusd tmm2, tmm4, tmm5",
                            "tdpbusd tmm3, tmm4, tmm5",
                            options(nostack, nomem)
                        );
                    }
                }
                // SAFETY: as above.
                unsafe { asm!("tilerelease", options(nostack, nomem)) };
            });
            return (threads * ROUNDS * 4 * 2 * 16 * 16 * 64) as f64 / seconds / 1e9;
        }
    }
    let _ = (threads, ROUNDS);
    0.0
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
