//! The reversible map between bytes and printable characters that byte-level BPE vocabularies are written in.
//!
//! GPT-2 wrote bytes that are printable in Latin-1 as themselves and the other 68 as the characters from U+0100 on, in
//! byte order, so that a vocabulary file holds no white space and no control characters.

/// Characters from here on stand for the bytes that are not printable in Latin-1.
const FIRST_SUBSTITUTE: u32 = 0x100;

/// `char as usize` to byte, for every character of the alphabet; `None` for the others below 0x144.
pub(super) struct ByteLevel {
    bytes: [Option<u8>; 0x144],
}

impl ByteLevel {
    pub(super) fn new() -> Self {
        let mut bytes = [None; 0x144];
        let mut substitute = FIRST_SUBSTITUTE as usize;
        for byte in 0..=255u8 {
            if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
                bytes[byte as usize] = Some(byte);
            } else {
                bytes[substitute] = Some(byte);
                substitute += 1;
            }
        }
        Self { bytes }
    }

    /// The bytes of a vocabulary entry. An entry with a character outside the alphabet stands for its own text, as
    /// added tokens do.
    pub(super) fn bytes_of(&self, token: &str) -> Vec<u8> {
        let mapped: Option<Vec<u8>> = token.chars().map(|c| self.bytes.get(c as usize).copied().flatten()).collect();
        mapped.unwrap_or_else(|| token.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(token: &str, expected: &[u8]) {
        assert_eq!(ByteLevel::new().bytes_of(token), expected, "{token}");
    }

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let mut seen: Vec<u8> = ByteLevel::new().bytes.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn entries_map_back_to_bytes() {
        check("hello", b"hello");
        check("Ġworld", b" world");
        check("ĊĊ", b"\n\n");
        check("Ã©", "é".as_bytes());
        check("ðŁĺ", &[0xF0, 0x9F, 0x98]);
        check("<｜tool▁sep｜>", "<｜tool▁sep｜>".as_bytes());
    }
}
