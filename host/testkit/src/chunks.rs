//! Cutting text in every way that a stream may.

/// Sizes that every parser must survive: single characters, the primes around a marker's length, the whole text.
pub const SIZES: [usize; 6] = [1, 2, 3, 5, 8, usize::MAX];

/// `text` in pieces of `size` characters, the last one shorter.
pub fn by_size(text: &str, size: usize) -> Vec<String> {
    let characters = text.chars().collect::<Vec<_>>();
    characters.chunks(size.min(characters.len().max(1))).map(|piece| piece.iter().collect()).collect()
}

/// A scripted model's response that says `text` in pieces of `size` characters.
pub fn script(text: &str, size: usize) -> serde_json::Value {
    serde_json::json!({"responses": [{"tokens": by_size(text, size)}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_text() {
        for size in SIZES {
            assert_eq!(by_size("héllo, wörld", size).concat(), "héllo, wörld");
        }
        assert_eq!(by_size("abcde", 2), ["ab", "cd", "e"]);
        assert!(by_size("", 3).is_empty());
    }
}
