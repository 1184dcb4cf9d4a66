//! What Jinja of chat templates has and minijinja has no hook for is rewritten in the template's text.
//!
//! `{% generation %}` only marks training spans and becomes an empty `with` block. `a % b` may format a string and
//! `a ~ b` prints numbers as Python does, so both become calls of functions that know Python's rules. Tags that hold
//! none of the three are copied byte for byte, and text that does not scan is left for minijinja to complain about.

/// The functions that the rewritten operators call.
pub const MODULO: &str = "__tokenloom_mod";
pub const CONCAT: &str = "__tokenloom_cat";

/// Brackets nested deeper than this are left alone; minijinja refuses them anyway.
const DEPTH_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A name, number or string: part of an operand.
    Atom,
    /// A keyword or operator that binds less than `~`.
    Delimiter,
    Open,
    Close,
    Concat,
    Modulo,
    /// `*`, `/` or `//`.
    Multiply,
    /// `+` or `-`: binary between operands, else a sign.
    Sign,
    /// `.`, `|`, `**`: glues operands together.
    Glue,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

pub fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        out.push_str(&source[at..start]);
        let end = match source.as_bytes().get(start + 1) {
            Some(b'#') => source[start..].find("#}").map(|n| start + n + 2),
            Some(b'{') => expression(source, start, "}}", &mut out),
            Some(b'%') => match raw_block(source, start) {
                Some(end) => Some(end),
                None => expression(source, start, "%}", &mut out),
            },
            _ => Some(start + 1),
        };
        match end {
            Some(end) => {
                if !matches!(source.as_bytes().get(start + 1), Some(b'{' | b'%')) || raw_block(source, start).is_some()
                {
                    out.push_str(&source[start..end]);
                }
                at = end;
            }
            None => {
                out.push_str(&source[start..]);
                return out;
            }
        }
    }
    out.push_str(&source[at..]);
    out
}

/// The end of a `{% raw %} … {% endraw %}` block that begins at `start`.
fn raw_block(source: &str, start: usize) -> Option<usize> {
    let word = |at: usize| {
        let body = source[at + 2..].trim_start_matches(['-', '+']).trim_start();
        let end = body.find("%}")?;
        Some((body[..end].trim_end_matches(['-', '+']).trim_end(), source.len() - body.len() + end + 2))
    };
    let (name, mut at) = word(start)?;
    if name != "raw" {
        return None;
    }
    while let Some(found) = source[at..].find("{%") {
        let (name, end) = word(at + found)?;
        if name == "endraw" {
            return Some(end);
        }
        at += found + 2;
    }
    None
}

/// Copies the tag that begins at `start` to `out`, rewritten, and answers where it ends; `None` when it does not scan.
fn expression(source: &str, start: usize, close: &str, out: &mut String) -> Option<usize> {
    let (tokens, end) = scan(source, start + 2, close)?;
    let name = tokens.iter().find(|token| token.kind != Kind::Sign).map(|token| &source[token.start..token.end]);
    let only = tokens.iter().filter(|token| token.kind != Kind::Sign).count() == 1;
    if close == "%}" && only && matches!(name, Some("generation" | "endgeneration")) {
        let replacement = if name == Some("generation") { "with" } else { "endwith" };
        let name = name.unwrap_or_default();
        out.push_str(&source[start..end].replacen(name, replacement, 1));
        return Some(end);
    }
    if !tokens.iter().any(|token| matches!(token.kind, Kind::Concat | Kind::Modulo)) {
        out.push_str(&source[start..end]);
        return Some(end);
    }
    // A statement's name is no operand: `{% if -1 % n %}`.
    let mut tokens = tokens;
    let first = usize::from(tokens.first().is_some_and(|t| t.kind == Kind::Sign && t.start == start + 2));
    if close == "%}"
        && let Some(token) = tokens.get_mut(first)
    {
        token.kind = Kind::Delimiter;
    }
    let (from, to) = (tokens.get(first)?.start, tokens.last()?.end);
    out.push_str(&source[start..from]);
    level(source, &tokens[first..], 0, out);
    out.push_str(&source[to..end]);
    Some(end)
}

/// Tokens from `at` to the closing delimiter, and the position after it. A `-` or `+` before the delimiter belongs to
/// it and is no token.
fn scan(source: &str, mut at: usize, close: &str) -> Option<(Vec<Token>, usize)> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut depth = 0usize;
    loop {
        let byte = *bytes.get(at)?;
        let start = at;
        if depth == 0 {
            let sign = usize::from(matches!(byte, b'-' | b'+'));
            if source[at + sign..].starts_with(close) {
                return Some((tokens, at + sign + close.len()));
            }
        }
        let kind = match byte {
            b if b.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'\'' | b'"' => {
                at = string_end(bytes, at)?;
                Kind::Atom
            }
            b if b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80 => {
                let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b >= 0x80;
                at += bytes[at..].iter().take_while(|b| word(b)).count();
                // The dot of `1.5` is part of the number.
                if b.is_ascii_digit()
                    && bytes.get(at) == Some(&b'.')
                    && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
                {
                    at += 1 + bytes[at + 1..].iter().take_while(|b| word(b)).count();
                }
                if is_keyword(&source[start..at]) { Kind::Delimiter } else { Kind::Atom }
            }
            b'(' | b'[' | b'{' => {
                depth += 1;
                Kind::Open
            }
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                Kind::Close
            }
            b'*' if bytes.get(at + 1) == Some(&b'*') => {
                at += 1;
                Kind::Glue
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += 1;
                Kind::Multiply
            }
            b'*' | b'/' => Kind::Multiply,
            b'%' => Kind::Modulo,
            b'~' => Kind::Concat,
            b'+' | b'-' => Kind::Sign,
            b'.' | b'|' => Kind::Glue,
            _ => Kind::Delimiter,
        };
        at = at.max(start + 1);
        tokens.push(Token { kind, start, end: at });
    }
}

fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = bytes[start];
    let mut at = start + 1;
    loop {
        match *bytes.get(at)? {
            b'\\' => at += 2,
            b if b == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

fn is_keyword(word: &str) -> bool {
    matches!(word, "and" | "or" | "not" | "in" | "is" | "if" | "else" | "recursive")
}

/// One bracket level: operands between delimiters are joined again, with calls in place of `%` and `~`.
fn level(source: &str, tokens: &[Token], depth: usize, out: &mut String) {
    let Some((first, last)) = tokens.first().zip(tokens.last()) else { return };
    if depth == DEPTH_MAX {
        out.push_str(&source[first.start..last.end]);
        return;
    }
    let mut written = first.start;
    let mut at = 0;
    while at < tokens.len() {
        let end = segment_end(tokens, at);
        if end > at {
            out.push_str(&source[written..tokens[at].start]);
            segment(source, &tokens[at..end], depth, out);
            written = tokens[end - 1].end;
        }
        // The delimiter itself goes with the text before the next segment.
        at = end + 1;
    }
    out.push_str(&source[written..last.end]);
}

/// Where the run of operands and operators that begins at `at` ends: at a delimiter, or a binary `+` or `-`.
fn segment_end(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0usize;
    let mut operand = false;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            Kind::Delimiter if depth == 0 => return index,
            Kind::Sign if depth == 0 && operand => return index,
            _ => {}
        }
        operand = depth == 0 && matches!(token.kind, Kind::Atom | Kind::Close);
    }
    tokens.len()
}

/// A chain of `~` over chains of `*`, `/`, `//` and `%`, all left to right.
fn segment(source: &str, tokens: &[Token], depth: usize, out: &mut String) {
    let parts = split(tokens, |kind| kind == Kind::Concat);
    if parts.len() > 1 {
        out.push_str(CONCAT);
        out.push('(');
    }
    for (index, (part, _)) in parts.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        let factors = split(part, |kind| matches!(kind, Kind::Multiply | Kind::Modulo));
        let mut text = String::new();
        for (factor, before) in &factors {
            let mut right = String::new();
            operand(source, factor, depth, &mut right);
            text = match before {
                Some(token) if token.kind == Kind::Modulo => format!("{MODULO}({text}, {right})"),
                Some(token) => format!("{text} {} {right}", &source[token.start..token.end]),
                None => right,
            };
        }
        out.push_str(&text);
    }
    if parts.len() > 1 {
        out.push(')');
    }
}

/// Splits at operators outside brackets; each part comes with the operator before it.
fn split(tokens: &[Token], at: impl Fn(Kind) -> bool) -> Vec<(&[Token], Option<Token>)> {
    let mut parts = Vec::new();
    let (mut depth, mut start, mut before) = (0usize, 0, None);
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            kind if depth == 0 && at(kind) => {
                parts.push((&tokens[start..index], before));
                start = index + 1;
                before = Some(*token);
            }
            _ => {}
        }
    }
    parts.push((&tokens[start..], before));
    parts
}

/// An operand as it stands, with what is inside its brackets rewritten.
fn operand(source: &str, tokens: &[Token], depth: usize, out: &mut String) {
    let Some(first) = tokens.first() else { return };
    let mut written = first.start;
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].kind == Kind::Open {
            let mut open = 0usize;
            let close = tokens[at..].iter().position(|token| {
                open += usize::from(token.kind == Kind::Open);
                open -= usize::from(token.kind == Kind::Close);
                open == 0
            });
            let Some(close) = close.map(|n| at + n) else { break };
            out.push_str(&source[written..tokens[at].end]);
            written = tokens[at].end;
            if close > at + 1 {
                out.push_str(&source[written..tokens[at + 1].start]);
                level(source, &tokens[at + 1..close], depth + 1, out);
                written = tokens[close - 1].end;
            }
            at = close;
        }
        at += 1;
    }
    out.push_str(&source[written..tokens[tokens.len() - 1].end]);
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    fn same(source: &str) {
        assert_eq!(rewrite(source), source);
    }

    #[test]
    fn what_needs_no_rewriting_is_copied() {
        same("a {b} {{ x + y }} {% if a and b %}50 % {% endif %} {# a ~ b #}");
        same("{% raw %}{{ a % b }}{% endraw %}");
        same("{{ 'a % b ~ c' }}{{ {'a': {'b': 1}} }}");
        same("{{ a % b");
        same("{{ 'a % b }}");
    }

    #[test]
    fn generation_keeps_its_dashes() {
        assert_eq!(rewrite("{%- generation -%}x{% endgeneration %}"), "{%- with -%}x{% endwith %}");
    }

    #[test]
    fn operators_keep_their_order() {
        let m = |source: &str| rewrite(source).replace(super::MODULO, "M").replace(super::CONCAT, "C");
        assert_eq!(m("{{ a % b }}"), "{{ M(a, b) }}");
        assert_eq!(m("{{- 1 + a * b % c|f(d % e) -}}"), "{{- 1 + M(a * b, c|f(M(d, e))) -}}");
        assert_eq!(m("{%- if loop.index0 % 2 == 0 -%}"), "{%- if M(loop.index0, 2) == 0 -%}");
        assert_eq!(m("{% set x = 'a' ~ b.c[d ~ 1] ~ -2 % 3 %}"), "{% set x = C('a', b.c[C(d, 1)], M(-2, 3)) %}");
        assert_eq!(m("{{ '%s-%s' % (a, b) ~ c if d else e }}"), "{{ C(M('%s-%s', (a, b)), c) if d else e }}");
        assert_eq!(m("{{ (a - b) ~ 'x' - y }}"), "{{ C((a - b), 'x') - y }}");
    }
}
