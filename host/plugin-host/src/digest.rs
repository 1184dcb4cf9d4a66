//! Two questions: is this the component the manifest means (SHA-256), and did we write this compiled code (BLAKE3 under
//! our key, which is several times as fast and nobody else's business).

use std::hash::Hasher;

use sha2::{Digest, Sha256};

pub(crate) type Sha = [u8; 32];

pub(crate) fn sha256(bytes: &[u8]) -> Sha {
    Sha256::digest(bytes).into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of an even number of lower-case hex digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).filter(|_| !c.is_ascii_uppercase());
    let pair = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

/// A code over several parts, each preceded by its length, that only who has the key can make. Two codes are compared in
/// time that does not depend on where they differ.
pub(crate) fn keyed(key: &Sha, parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

/// Lets anything that is `Hash` be hashed with SHA-256, which unlike std's hasher is the same in every build.
#[derive(Default)]
pub(crate) struct ShaHasher(Sha256);

impl ShaHasher {
    pub fn digest(self) -> Sha {
        self.0.finalize().into()
    }
}

impl Hasher for ShaHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest: Sha = self.0.clone().finalize().into();
        digest.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The empty string's digest, from FIPS 180-4's test vectors.
    #[test]
    fn known_digest() {
        assert_eq!(hex(&sha256(b"")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    /// Moving a border between parts, or another key, gives another code.
    #[test]
    fn keyed_digest_depends_on_key_and_borders() {
        let one = keyed(&[1; 32], &[b"ab", b"c"]);
        assert_eq!(one, keyed(&[1; 32], &[b"ab", b"c"]));
        assert_ne!(one, keyed(&[1; 32], &[b"a", b"bc"]));
        assert_ne!(one, keyed(&[2; 32], &[b"ab", b"c"]));
    }
}
