//! Names and seeds that do not repeat.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of numbers that no other process repeats: a counter under two keyed hashes whose keys are random.
#[derive(Debug, Default)]
pub struct Ids {
    count: AtomicU64,
    high: RandomState,
    low: RandomState,
}

impl Ids {
    /// 32 hexadecimal digits after `prefix`.
    pub fn name(&self, prefix: &str) -> String {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:016x}{:016x}", self.high.hash_one(n), self.low.hash_one(n))
    }

    pub fn number(&self) -> u64 {
        self.high.hash_one(self.count.fetch_add(1, Ordering::Relaxed))
    }
}

/// The seed of choice `index` of a request with `seed`. Choice 0 keeps the seed itself, so that a request for one
/// choice and the first of several give the same text; the others are spread by the SplitMix64 finaliser.
pub fn choice_seed(seed: u64, index: u32) -> u64 {
    if index == 0 {
        return seed;
    }
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(index)));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let ids = Ids::default();
        let names: std::collections::HashSet<String> = (0..1000).map(|_| ids.name("x-")).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 34));
    }

    #[test]
    fn choices_have_their_own_seeds() {
        let seeds: std::collections::HashSet<u64> = (0..128).map(|i| choice_seed(7, i)).collect();
        assert_eq!((seeds.len(), choice_seed(7, 0)), (128, 7));
    }
}
