//! The pool of KV pages: free, cached (kept for a later hit, referenced by nobody) or used.

use contract::{PageId, TokenId};

use crate::prefix::{Node, PrefixIndex};
use crate::states::StatePool;

/// Where the pages are; the three numbers always add up to the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    pub free: u32,
    pub cached: u32,
    pub used: u32,
}

/// No page: the end of the list of cached pages.
const NONE: u32 = u32::MAX;

pub(crate) struct PagePool {
    refs: Vec<u32>,
    free: Vec<PageId>,
    /// Cached pages nobody references, as a list through the pages, least recently used first.
    newer: Vec<u32>,
    older: Vec<u32>,
    oldest: u32,
    newest: u32,
    cached: u32,
    /// `None`: the prefix cache is off.
    prefix: Option<PrefixIndex>,
    /// Saved states of places in the prefix cache; none for models without.
    pub states: StatePool,
}

impl PagePool {
    pub fn new(pages: u32, prefix_cache: bool) -> Self {
        Self {
            refs: vec![0; pages as usize],
            free: (0..pages).rev().map(PageId).collect(),
            newer: vec![NONE; pages as usize],
            older: vec![NONE; pages as usize],
            oldest: NONE,
            newest: NONE,
            cached: 0,
            prefix: prefix_cache.then(|| PrefixIndex::new(pages)),
            states: StatePool::default(),
        }
    }

    pub fn counts(&self) -> PageCounts {
        let free = self.free.len() as u32;
        PageCounts { free, cached: self.cached, used: self.refs.len() as u32 - free - self.cached }
    }

    /// Pages that [`PagePool::take`] can give.
    pub fn available(&self) -> u32 {
        self.free.len() as u32 + self.cached
    }

    /// A page for one owner; the least recently used cached page is given up when none is free.
    pub fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop().or_else(|| self.evict())?;
        self.refs[page.0 as usize] = 1;
        Some(page)
    }

    fn evict(&mut self) -> Option<PageId> {
        if self.oldest == NONE {
            return None;
        }
        let page = PageId(self.oldest);
        self.unlink(page);
        if let Some(node) = self.prefix.as_mut().and_then(|prefix| prefix.remove(page)) {
            self.states.forget(node);
        }
        Some(page)
    }

    /// One more owner of a page that a lookup found.
    pub fn share(&mut self, page: PageId) {
        if self.refs[page.0 as usize] == 0 {
            self.unlink(page);
        }
        self.refs[page.0 as usize] += 1;
    }

    /// Gives back an owner's pages. The first page of a prefix is the last to be given up: others can only be reached
    /// through it.
    pub fn give_back(&mut self, pages: &mut Vec<PageId>) {
        while let Some(page) = pages.pop() {
            let refs = &mut self.refs[page.0 as usize];
            assert!(*refs > 0, "page {} was given back twice", page.0);
            *refs -= 1;
            if *refs == 0 {
                if self.prefix.as_ref().is_some_and(|prefix| prefix.contains(page)) {
                    self.link(page);
                } else {
                    self.free.push(page);
                }
            }
        }
    }

    pub fn is_unreferenced(&self, page: PageId) -> bool {
        self.refs[page.0 as usize] == 0
    }

    /// Makes a computed page findable; answers where the chain goes on.
    pub fn cache(&mut self, parent: Node, tokens: &[TokenId], page: PageId) -> Node {
        match &mut self.prefix {
            Some(prefix) => prefix.insert(parent, tokens, page),
            None => parent,
        }
    }

    pub fn find(&self, parent: Node, tokens: &[TokenId]) -> Option<(PageId, Node)> {
        self.prefix.as_ref()?.find(parent, tokens)
    }

    fn link(&mut self, page: PageId) {
        let at = page.0 as usize;
        self.older[at] = self.newest;
        self.newer[at] = NONE;
        match self.newest {
            NONE => self.oldest = page.0,
            newest => self.newer[newest as usize] = page.0,
        }
        self.newest = page.0;
        self.cached += 1;
    }

    fn unlink(&mut self, page: PageId) {
        let at = page.0 as usize;
        let (older, newer) = (self.older[at], self.newer[at]);
        match older {
            NONE => self.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.older[newer as usize] = older,
        }
        self.cached -= 1;
    }

    /// Compares the pool with the owners' pages: every reference has an owner, and no page is in two places.
    pub fn check<'a>(&self, owners: impl Iterator<Item = &'a [PageId]>) -> Result<(), String> {
        let mut refs = vec![0u32; self.refs.len()];
        for page in owners.flatten() {
            refs[page.0 as usize] += 1;
        }
        if let Some(page) = (0..refs.len()).find(|&page| refs[page] != self.refs[page]) {
            return Err(format!("page {page} has {} owners and {} references", refs[page], self.refs[page]));
        }
        let mut seen = vec![false; self.refs.len()];
        let mut cached = 0;
        let mut next = self.oldest;
        while next != NONE {
            cached += 1;
            if std::mem::replace(&mut seen[next as usize], true) || cached > self.refs.len() {
                return Err(format!("page {next} is twice among the cached pages"));
            }
            next = self.newer[next as usize];
        }
        for page in &self.free {
            if std::mem::replace(&mut seen[page.0 as usize], true) {
                return Err(format!("page {} is free twice, or free and cached", page.0));
            }
        }
        let used = refs.iter().filter(|&&count| count > 0).count();
        if (0..refs.len()).any(|page| seen[page] && refs[page] > 0) {
            return Err("a page in use is also free or cached".into());
        }
        if self.free.len() + cached + used != self.refs.len() || cached != self.cached as usize {
            return Err(format!("{} free + {cached} cached + {used} used is not {}", self.free.len(), self.refs.len()));
        }
        self.prefix.as_ref().map_or(Ok(()), PrefixIndex::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::PAGE_TOKENS;

    fn tokens(token: TokenId) -> Vec<TokenId> {
        vec![token; PAGE_TOKENS as usize]
    }

    /// Cached pages are given up least recently used first, and within a prefix from its end.
    #[test]
    fn eviction_takes_the_end_of_the_oldest_prefix() {
        let mut pool = PagePool::new(3, true);
        let mut pages: Vec<_> = (0..3).filter_map(|_| pool.take()).collect();
        let first = pool.cache(Node::Root(0), &tokens(1), pages[0]);
        pool.cache(first, &tokens(2), pages[1]);
        let (head, tail) = (pages[0], pages[1]);
        pool.give_back(&mut pages);
        assert_eq!(pool.counts(), PageCounts { free: 1, cached: 2, used: 0 });
        let mut taken = vec![pool.take().expect("one is free"), pool.take().expect("one is cached")];
        assert_eq!(taken[1], tail);
        assert_eq!(pool.find(Node::Root(0), &tokens(1)), Some((head, first)));
        pool.give_back(&mut taken);
        assert_eq!(pool.check(std::iter::empty()), Ok(()));
    }

    /// A shared page stays in use until its last owner is gone.
    #[test]
    fn shared_pages_are_counted() {
        let mut pool = PagePool::new(2, true);
        let page = pool.take().expect("free");
        pool.cache(Node::Root(0), &tokens(1), page);
        pool.share(page);
        pool.give_back(&mut vec![page]);
        assert_eq!(pool.counts().used, 1);
        pool.give_back(&mut vec![page]);
        assert_eq!(pool.counts(), PageCounts { free: 1, cached: 1, used: 0 });
    }
}
