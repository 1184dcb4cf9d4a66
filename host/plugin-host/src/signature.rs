//! Signatures of components: who vouches for one, by a key that the operator trusts.
//!
//! Ed25519 over one line of text that names the component's SHA-256 ([`statement`]), so that any tool for such keys can
//! make and check one. The manifest is not part of it: what it asks for counts only as far as the operator grants it.

use std::collections::BTreeMap;

use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::digest::{hex, unhex};

/// Hex digits of a signature.
pub(crate) const SIGNATURE_DIGITS: usize = 128;

/// What is signed. The words before the digest keep a key's other signatures from counting as one of these.
fn statement(sha256: &str) -> String {
    format!("tokenloom plugin sha256:{sha256}")
}

/// A key that plugins may be signed with: 64 lower-case hex digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// `None`: not 64 hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        unhex(text).and_then(|bytes| bytes.try_into().ok()).map(Self)
    }

    fn has_signed(&self, sha256: &str, signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(statement(sha256).as_bytes(), signature).is_ok()
    }
}

/// Keys by the names that the operator gave them.
pub type PublicKeys = BTreeMap<String, PublicKey>;

/// Which of the keys made this signature of the component with this digest.
pub(crate) fn signer<'a>(keys: &'a PublicKeys, sha256: &str, signature: &str) -> Option<&'a str> {
    let signature = unhex(signature)?;
    keys.iter().find(|(_, key)| key.has_signed(sha256, &signature)).map(|(name, _)| name.as_str())
}

/// A key to sign with, for `tokenloom plugin sign`.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// A new secret: 64 hex digits, from the system's randomness. `None`: there is none.
    pub fn new_secret() -> Option<String> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).ok()?;
        Some(hex(&seed))
    }

    /// `None`: not 64 hex digits.
    pub fn parse(secret: &str) -> Option<Self> {
        Ed25519KeyPair::from_seed_unchecked(&unhex(secret)?).ok().map(Self)
    }

    /// What goes into the server's config.
    pub fn public(&self) -> String {
        hex(self.0.public_key().as_ref())
    }

    /// The signature of the component with this digest, for its manifest.
    pub fn sign(&self, sha256: &str) -> String {
        hex(self.0.sign(statement(sha256).as_bytes()).as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The secret and public key of RFC 8032's first test vector.
    #[test]
    fn keys_are_those_of_the_standard() {
        let key = SigningKey::parse("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        assert_eq!(
            key.expect("64 digits").public(),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
    }

    /// A signature counts for its component and its key alone.
    #[test]
    fn signatures_name_their_signer() {
        let secret = || SigningKey::new_secret().and_then(|secret| SigningKey::parse(&secret)).expect("randomness");
        let (ours, theirs) = (secret(), secret());
        let public = PublicKey::parse(&ours.public()).expect("64 digits");
        let keys = PublicKeys::from([("ours".to_owned(), public)]);
        let (digest, other) = ("a".repeat(64), "b".repeat(64));
        assert_eq!(signer(&keys, &digest, &ours.sign(&digest)), Some("ours"));
        assert_eq!(signer(&keys, &digest, &ours.sign(&other)), None);
        assert_eq!(signer(&keys, &digest, &theirs.sign(&digest)), None);
        for broken in [String::new(), "zz".into(), ours.sign(&digest)[2..].to_owned(), "0".repeat(128)] {
            assert_eq!(signer(&keys, &digest, &broken), None, "{broken}");
        }
        for broken in [String::new(), "12".into(), "g".repeat(64), "a".repeat(66)] {
            assert!(PublicKey::parse(&broken).is_none() && SigningKey::parse(&broken).is_none(), "{broken}");
        }
    }
}
