//! The bytes and flags of every token, in one table.

use std::collections::HashMap;

use contract::TokenId;

/// Highest token id we accept. The largest public vocabularies have about 260 thousand entries; a file that names an
/// id far beyond would only make us allocate.
pub(super) const TOKEN_ID_MAX: TokenId = 4_000_000;

const KNOWN: u8 = 1;
const ADDED: u8 = 2;
const SPECIAL: u8 = 4;

/// One token while a table is built.
pub(super) struct Entry {
    pub id: TokenId,
    pub bytes: Vec<u8>,
    pub added: bool,
    pub special: bool,
}

/// `blob[ends[id - 1]..ends[id]]` are the bytes of `id`. Gaps in the ids are unknown tokens without bytes.
pub(super) struct Table {
    blob: Vec<u8>,
    ends: Vec<u32>,
    flags: Vec<u8>,
    added: HashMap<String, TokenId>,
}

impl Table {
    /// Two entries with one id: the last one stands, as added tokens override vocabulary entries.
    pub(super) fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|e| e.id);
        let size = entries.last().map_or(0, |e| e.id as usize + 1);
        let mut table =
            Self { blob: Vec::new(), ends: Vec::with_capacity(size), flags: vec![0; size], added: HashMap::new() };
        let mut entries = entries.into_iter().peekable();
        while let Some(entry) = entries.next() {
            if entries.peek().is_some_and(|next| next.id == entry.id) {
                continue;
            }
            let id = entry.id as usize;
            table.ends.resize(id, table.blob.len() as u32);
            table.blob.extend_from_slice(&entry.bytes);
            table.ends.push(table.blob.len() as u32);
            table.flags[id] = KNOWN | if entry.added { ADDED } else { 0 } | if entry.special { SPECIAL } else { 0 };
            if entry.added
                && let Ok(text) = String::from_utf8(entry.bytes)
            {
                table.added.insert(text, entry.id);
            }
        }
        table
    }

    pub(super) fn bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.blob[start as usize..end as usize]
    }

    pub(super) fn is_known(&self, id: TokenId) -> bool {
        self.has(id, KNOWN)
    }

    pub(super) fn is_added(&self, id: TokenId) -> bool {
        self.has(id, ADDED)
    }

    pub(super) fn is_special(&self, id: TokenId) -> bool {
        self.has(id, SPECIAL)
    }

    fn has(&self, id: TokenId, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & flag != 0)
    }

    pub(super) fn added_token(&self, text: &str) -> Option<TokenId> {
        self.added.get(text).copied()
    }

    pub(super) fn added_tokens(&self) -> impl Iterator<Item = (&str, TokenId)> {
        self.added.iter().map(|(text, id)| (text.as_str(), *id))
    }

    pub(super) fn size(&self) -> usize {
        self.flags.len()
    }
}
