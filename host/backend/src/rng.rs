//! Counter-based random numbers: the same (seed, position, token) gives the same noise on every backend.

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const M0: u32 = 0xD251_1F53;
    const M1: u32 = 0xCD9E_8D57;
    const W0: u32 = 0x9E37_79B9;
    const W1: u32 = 0xBB67_AE85;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p0 = u64::from(M0) * u64::from(c0);
        let p1 = u64::from(M1) * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    [c0, c1, c2, c3]
}

/// Number `i` of SplitMix64's stream from `seed` (Steele et al., OOPSLA 2014).
pub fn splitmix(seed: u64, i: u64) -> u64 {
    let mut z = i.wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Gumbel noise is never above this: `u` is at most `1 - 2^-25`, so `-ln(-ln u)` is at most 17.33.
pub const GUMBEL_MAX: f32 = 17.4;

/// Standard Gumbel noise of one candidate: argmax over `logit + noise` draws from the softmax.
///
/// Four neighbouring tokens share one Philox block; `u = (word >> 8 + 0.5) * 2^-24` lies strictly inside (0, 1).
pub fn gumbel(seed: u64, position: u32, token: u32) -> f32 {
    let block = philox4x32([token / 4, position, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let u = (f64::from(block[token as usize % 4] >> 8) + 0.5) * (1.0 / f64::from(1u32 << 24));
    (-(-u.ln()).ln()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution for Philox4x32-10.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([0xffff_ffff; 4], [0xffff_ffff; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn gumbel_stays_below_its_bound() {
        let worst = (-(-(1.0 - 0.5 / f64::from(1u32 << 24)).ln()).ln()) as f32;
        assert!(worst < GUMBEL_MAX);
        for token in 0..10_000 {
            assert!(gumbel(7, 3, token) < GUMBEL_MAX);
        }
    }
}
