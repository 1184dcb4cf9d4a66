//! Which pages hold which prefix.
//!
//! A cached page is found by its parent and a hash of its own tokens, page after page from the root of the request's
//! namespace, so the namespace is part of every chain. A hit is compared token by token, and parents are named by
//! numbers that are never used twice: a match is therefore exact, whatever prompts an attacker makes up, and a
//! collision of the hash costs a cache miss and nothing else. The hash is keyed so that collisions cannot be chosen.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use contract::{PAGE_TOKENS, PageId, TokenId};

const PAGE: usize = PAGE_TOKENS as usize;

/// A place in the tree of prefixes: the root of a namespace, or a page that was cached there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    Root(u64),
    Page(u64),
}

type Key = (Node, u64);

pub(crate) struct PrefixIndex {
    /// The key only spreads entries: results do not depend on it.
    hasher: RandomState,
    by_key: HashMap<Key, PageId>,
    /// Per page: its key and number in the tree.
    entries: Vec<Option<(Key, u64)>>,
    /// Tokens of each cached page.
    tokens: Vec<TokenId>,
    next_node: u64,
}

impl PrefixIndex {
    pub fn new(pages: u32) -> Self {
        Self {
            hasher: RandomState::new(),
            by_key: HashMap::with_capacity(pages as usize),
            entries: vec![None; pages as usize],
            tokens: vec![0; pages as usize * PAGE],
            next_node: 0,
        }
    }

    /// The page that continues `parent` with exactly these tokens.
    pub fn find(&self, parent: Node, tokens: &[TokenId]) -> Option<(PageId, Node)> {
        let page = *self.by_key.get(&self.key(parent, tokens))?;
        let (_, node) = self.entries[page.0 as usize]?;
        (self.tokens_of(page) == tokens).then_some((page, Node::Page(node)))
    }

    /// Names `page` as the continuation of `parent`. When another page holds the same already, that one's node is the
    /// answer and `page` stays private.
    pub fn insert(&mut self, parent: Node, tokens: &[TokenId], page: PageId) -> Node {
        debug_assert_eq!(tokens.len(), PAGE);
        debug_assert!(self.entries[page.0 as usize].is_none(), "page {page:?} is cached twice");
        if let Some((_, node)) = self.find(parent, tokens) {
            return node;
        }
        self.next_node += 1;
        let node = Node::Page(self.next_node);
        let key = self.key(parent, tokens);
        // Equal keys of unequal tokens: the first one stays, this page is not cached.
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.by_key.entry(key) {
            vacant.insert(page);
            self.entries[page.0 as usize] = Some((key, self.next_node));
            let at = page.0 as usize * PAGE;
            self.tokens[at..at + PAGE].copy_from_slice(tokens);
        }
        node
    }

    pub fn contains(&self, page: PageId) -> bool {
        self.entries[page.0 as usize].is_some()
    }

    /// Forgets a page; what was cached behind it cannot be reached any more and leaves as it gets old.
    /// Answers the place that it was.
    pub fn remove(&mut self, page: PageId) -> Option<Node> {
        let (key, number) = self.entries[page.0 as usize].take()?;
        self.by_key.remove(&key);
        Some(Node::Page(number))
    }

    pub fn check(&self) -> Result<(), String> {
        let named = self.entries.iter().flatten().count();
        if named != self.by_key.len() {
            return Err(format!("{named} pages are named, {} keys lead to one", self.by_key.len()));
        }
        match self.by_key.iter().find(|(key, page)| self.entries[page.0 as usize].is_none_or(|(k, _)| k != **key)) {
            Some((_, page)) => Err(format!("a key leads to page {}, which has another name", page.0)),
            None => Ok(()),
        }
    }

    fn tokens_of(&self, page: PageId) -> &[TokenId] {
        let at = page.0 as usize * PAGE;
        &self.tokens[at..at + PAGE]
    }

    fn key(&self, parent: Node, tokens: &[TokenId]) -> Key {
        (parent, self.hasher.hash_one(tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(token: TokenId) -> Vec<TokenId> {
        vec![token; PAGE]
    }

    /// The same tokens are another page in another namespace and behind another parent.
    #[test]
    fn a_chain_belongs_to_its_namespace_and_parent() {
        let mut index = PrefixIndex::new(4);
        let first = index.insert(Node::Root(1), &page_of(7), PageId(0));
        let second = index.insert(first, &page_of(8), PageId(1));
        assert_eq!(index.find(Node::Root(1), &page_of(7)), Some((PageId(0), first)));
        assert_eq!(index.find(first, &page_of(8)), Some((PageId(1), second)));
        assert_eq!(index.find(Node::Root(2), &page_of(7)), None);
        assert_eq!(index.find(Node::Root(1), &page_of(8)), None);
    }

    /// A page computed twice is named once; both chains go on from the same node.
    #[test]
    fn duplicates_share_a_node() {
        let mut index = PrefixIndex::new(4);
        let first = index.insert(Node::Root(0), &page_of(7), PageId(0));
        assert_eq!(index.insert(Node::Root(0), &page_of(7), PageId(1)), first);
        assert!(!index.contains(PageId(1)));
    }

    /// A forgotten parent that is computed again gets a new number: its old children are not found under it.
    #[test]
    fn numbers_are_not_used_twice() {
        let mut index = PrefixIndex::new(4);
        let first = index.insert(Node::Root(0), &page_of(7), PageId(0));
        index.insert(first, &page_of(8), PageId(1));
        index.remove(PageId(0));
        assert_eq!(index.find(Node::Root(0), &page_of(7)), None);
        let again = index.insert(Node::Root(0), &page_of(7), PageId(2));
        assert_ne!(again, first);
        assert_eq!(index.find(again, &page_of(8)), None);
        assert_eq!(index.check(), Ok(()));
    }
}
