//! Stop strings over a stream of text pieces: the match that ends first wins, and no part of it is ever let through.

use std::collections::VecDeque;

use contract::TokenId;

/// A stretch of decoded text; `token` is set when it is exactly one added token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPiece {
    pub text: String,
    pub token: Option<TokenId>,
}

/// One stop string as a Knuth-Morris-Pratt automaton over bytes: `state` bytes of it end the text so far.
struct Automaton {
    stop: String,
    /// `fail[n]`: the longest proper prefix that is also a suffix of the first `n + 1` bytes.
    fail: Vec<usize>,
    state: usize,
}

impl Automaton {
    fn new(stop: String) -> Self {
        let bytes = stop.as_bytes();
        let mut fail = vec![0; bytes.len()];
        let mut state = 0;
        for i in 1..bytes.len() {
            while state > 0 && bytes[i] != bytes[state] {
                state = fail[state - 1];
            }
            state += usize::from(bytes[i] == bytes[state]);
            fail[i] = state;
        }
        Self { stop, fail, state: 0 }
    }

    /// Whether the stop string ends with this byte.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.stop.as_bytes();
        while self.state > 0 && bytes[self.state] != byte {
            self.state = self.fail[self.state - 1];
        }
        self.state += usize::from(bytes[self.state] == byte);
        self.state == bytes.len()
    }
}

/// Holds back the longest end of the text that may become a stop string and gives look-alikes back in order.
pub struct StopMatcher {
    automata: Vec<Automaton>,
    include: bool,
    held: VecDeque<TextPiece>,
    held_bytes: usize,
    hit: Option<String>,
}

impl StopMatcher {
    /// Empty stop strings are ignored. `include`: the stop string itself is let through.
    pub fn new(stops: impl IntoIterator<Item = String>, include: bool) -> Self {
        let automata = stops.into_iter().filter(|s| !s.is_empty()).map(Automaton::new).collect();
        Self { automata, include, held: VecDeque::new(), held_bytes: 0, hit: None }
    }

    /// The stop string that ended the text.
    pub fn hit(&self) -> Option<&str> {
        self.hit.as_deref()
    }

    /// Whether one of the stop strings is exactly this text.
    pub fn has(&self, text: &str) -> Option<&str> {
        self.automata.iter().map(|a| a.stop.as_str()).find(|stop| *stop == text)
    }

    /// Ends the text here, as if a stop string had been found after everything held.
    pub fn force_hit(&mut self, stop: &str, out: &mut Vec<TextPiece>) {
        self.release(self.held_bytes, out);
        self.hit = Some(stop.to_owned());
    }

    /// Takes the next piece; what is certain not to be part of a stop string is appended to `out`. After a hit
    /// everything is dropped.
    pub fn push(&mut self, piece: TextPiece, out: &mut Vec<TextPiece>) {
        if self.hit.is_some() || piece.text.is_empty() {
            return;
        }
        if self.automata.is_empty() {
            out.push(piece);
            return;
        }
        let before = self.held_bytes;
        let found = self.scan(&piece.text);
        self.held_bytes += piece.text.len();
        self.held.push_back(piece);
        match found {
            Some((end, stop)) => {
                let keep = before + end - if self.include { 0 } else { stop.len() };
                self.release_cut(keep, out);
                self.held.clear();
                self.held_bytes = 0;
                self.hit = Some(stop);
            }
            None => {
                let may_match = self.automata.iter().map(|a| a.state).max().unwrap_or(0);
                self.release(self.held_bytes - may_match, out);
            }
        }
    }

    /// Lets a piece through that no stop string is looked for in; what is held before it was none either.
    pub fn pass(&mut self, piece: TextPiece, out: &mut Vec<TextPiece>) {
        if self.hit.is_some() || piece.text.is_empty() {
            return;
        }
        self.release(self.held_bytes, out);
        self.automata.iter_mut().for_each(|automaton| automaton.state = 0);
        out.push(piece);
    }

    /// The end of the text: what is held was no stop string.
    pub fn finish(&mut self, out: &mut Vec<TextPiece>) {
        if self.hit.is_none() {
            self.release(self.held_bytes, out);
        }
    }

    /// Where the first stop string ends in the new text; of those that end together, the longest.
    fn scan(&mut self, text: &str) -> Option<(usize, String)> {
        for (i, byte) in text.bytes().enumerate() {
            let mut longest: Option<&str> = None;
            for automaton in &mut self.automata {
                if automaton.step(byte) && longest.is_none_or(|l| automaton.stop.len() > l.len()) {
                    longest = Some(&automaton.stop);
                }
            }
            if let Some(stop) = longest {
                return Some((i + 1, stop.to_owned()));
            }
        }
        None
    }

    /// Lets the first `bytes` held bytes through. An added token is only let through whole, so that it stays one.
    fn release(&mut self, bytes: usize, out: &mut Vec<TextPiece>) {
        let mut left = bytes;
        while let Some(front) = self.held.front_mut() {
            let len = front.text.len();
            if len <= left {
                left -= len;
                self.held_bytes -= len;
                out.extend(self.held.pop_front());
                continue;
            }
            if left > 0 && front.token.is_none() {
                let rest = front.text.split_off(left);
                out.push(TextPiece { text: std::mem::replace(&mut front.text, rest), token: None });
                self.held_bytes -= left;
            }
            break;
        }
    }

    /// As [`Self::release`], but a piece that a stop string cuts is let through as plain text.
    fn release_cut(&mut self, bytes: usize, out: &mut Vec<TextPiece>) {
        let mut left = bytes;
        for piece in self.held.drain(..) {
            if piece.text.len() <= left {
                left -= piece.text.len();
                out.push(piece);
            } else {
                let text = piece.text[..left].to_owned();
                if !text.is_empty() {
                    out.push(TextPiece { text, token: None });
                }
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The text let through per piece, the end, and the stop string that was hit.
    fn run(stops: &[&str], include: bool, pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()), include);
        let mut texts = Vec::new();
        for piece in pieces {
            let mut out = Vec::new();
            matcher.push(TextPiece { text: (*piece).to_owned(), token: None }, &mut out);
            texts.push(out.into_iter().map(|p| p.text).collect());
        }
        let mut out = Vec::new();
        matcher.finish(&mut out);
        texts.push(out.into_iter().map(|p| p.text).collect());
        (texts, matcher.hit().map(str::to_owned))
    }

    fn check(stops: &[&str], include: bool, pieces: &[&str], expected: &str, hit: Option<&str>) {
        let (texts, found) = run(stops, include, pieces);
        assert_eq!((texts.concat().as_str(), found.as_deref()), (expected, hit), "{stops:?} in {pieces:?}");
    }

    /// Case api-07: pieces of the stop text are never let through, the look-alike is given back in order.
    #[test]
    fn a_stop_string_over_several_tokens_never_leaks() {
        let pieces = [" A", "BC", " D", "E", "FX", " D", "EF", "GH", " tail"];
        let (texts, hit) = run(&["DEFG"], false, &pieces);
        assert_eq!(texts, [" A", "BC", " ", "", "DEFX", " ", "", "", "", ""]);
        assert_eq!(hit.as_deref(), Some("DEFG"));
    }

    #[test]
    fn the_match_that_ends_first_wins() {
        check(&["abcd", "bc"], false, &["xabcd"], "xa", Some("bc"));
        check(&["bc", "abc"], false, &["xabcd"], "x", Some("abc"));
        check(&["\n\n", "END"], false, &["a\n", "\nEND"], "a", Some("\n\n"));
    }

    #[test]
    fn the_stop_string_can_be_kept() {
        check(&["END"], true, &["a E", "ND b"], "a END", Some("END"));
    }

    #[test]
    fn overlapping_starts_are_found() {
        check(&["aab"], false, &["aa", "ab!"], "a", Some("aab"));
        check(&["é!"], false, &["caf", "é", "è", "é!"], "caféè", Some("é!"));
        check(&["stop"], false, &["st", "o"], "sto", None);
    }

    #[test]
    fn an_added_token_stays_whole() {
        let mut matcher = StopMatcher::new(["d>x".to_owned()], false);
        let mut out = Vec::new();
        matcher.push(TextPiece { text: "<end>".into(), token: Some(7) }, &mut out);
        assert_eq!(out, []);
        matcher.push(TextPiece { text: "y".into(), token: None }, &mut out);
        let token = TextPiece { text: "<end>".into(), token: Some(7) };
        assert_eq!(out, [token, TextPiece { text: "y".into(), token: None }]);
    }

    /// Text that may not stop gives back what was held before it, and no stop string reaches over it.
    #[test]
    fn passed_text_is_never_a_stop_string() {
        let mut matcher = StopMatcher::new(["abc".to_owned()], false);
        let mut out = Vec::new();
        let piece = |text: &str| TextPiece { text: text.to_owned(), token: None };
        matcher.push(piece("xa"), &mut out);
        matcher.pass(piece("abc b"), &mut out);
        matcher.push(piece("c"), &mut out);
        assert_eq!(
            (out.iter().map(|p| p.text.as_str()).collect::<String>().as_str(), matcher.hit()),
            ("xaabc bc", None)
        );
    }

    proptest! {
        /// Any cutting of the text gives what the text byte by byte would give: cut before the first match to end.
        #[test]
        fn the_result_does_not_depend_on_the_cutting(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            let whole = pieces.concat();
            let first = whole.char_indices().map(|(i, c)| i + c.len_utf8()).find_map(|end| {
                let hits = stops.iter().filter(|s| whole[..end].ends_with(s.as_str()));
                hits.max_by_key(|s| s.len()).map(|s| (end - s.len(), s.clone()))
            });
            let expected = first.as_ref().map_or(whole.as_str(), |(cut, _)| &whole[..*cut]);
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (texts, hit) = run(&stops, false, &pieces);
            prop_assert_eq!(texts.concat(), expected);
            prop_assert_eq!(hit, first.map(|(_, s)| s));
        }
    }
}
