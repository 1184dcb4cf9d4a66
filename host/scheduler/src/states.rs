//! Saved recurrent states: what a cached prefix needs besides its pages when a model has layers with a state.
//!
//! A state belongs to a place in the tree of prefixes, the end of a page. It is saved while a step computes that place, so
//! its slot is taken when the step is planned and gets its name when the step is committed; a step whose request is gone
//! gives the slot back. A state whose page is evicted goes with it. Devices work in order, so a slot that is loaded in one
//! step may be written in the same or the next one.

use std::collections::HashMap;

use contract::Seat;

use crate::prefix::Node;

/// Between two states of a long prompt, in tokens: recomputing so many costs about as much as moving a state.
pub(crate) const STATE_INTERVAL: u32 = 2048;

/// A seat's state is copied to or from a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    pub seat: Seat,
    /// Length of the sequence whose state it is.
    pub at: u32,
    pub slot: u32,
}

/// A state that a run in flight saves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// Index of the run in its step.
    pub run: usize,
    pub at: u32,
    pub slot: u32,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    node: Node,
    /// The clock when it was saved or hit last.
    used: u64,
}

#[derive(Default)]
pub(crate) struct StatePool {
    kept: Vec<Option<Kept>>,
    free: Vec<u32>,
    by_node: HashMap<Node, u32>,
    clock: u64,
}

impl StatePool {
    pub fn new(slots: u32) -> Self {
        Self { kept: vec![None; slots as usize], free: (0..slots).rev().collect(), ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// A slot to save to; the state that was used least recently is given up when none is free. `None`: all are pending.
    pub fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let kept = self.kept.iter().enumerate().filter_map(|(slot, kept)| Some((slot, (*kept)?)));
        let (slot, oldest) = kept.min_by_key(|(_, kept)| kept.used)?;
        self.by_node.remove(&oldest.node);
        self.kept[slot] = None;
        Some(slot as u32)
    }

    /// A slot that was taken and not named.
    pub fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Names a saved state; one that is there already stays.
    pub fn name(&mut self, slot: u32, node: Node) {
        if self.by_node.contains_key(&node) {
            return self.give_back(slot);
        }
        self.clock += 1;
        self.kept[slot as usize] = Some(Kept { node, used: self.clock });
        self.by_node.insert(node, slot);
    }

    pub fn has(&self, node: Node) -> bool {
        self.by_node.contains_key(&node)
    }

    /// The slot of a state that is about to be loaded.
    pub fn touch(&mut self, node: Node) -> Option<u32> {
        let slot = *self.by_node.get(&node)?;
        self.clock += 1;
        if let Some(kept) = &mut self.kept[slot as usize] {
            kept.used = self.clock;
        }
        Some(slot)
    }

    pub fn forget(&mut self, node: Node) {
        if let Some(slot) = self.by_node.remove(&node) {
            self.kept[slot as usize] = None;
            self.free.push(slot);
        }
    }

    /// Every slot is free, kept under its name, or one of `pending`.
    pub fn check(&self, pending: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut seen = vec![0u32; self.kept.len()];
        let kept = (0..self.kept.len()).filter(|&slot| self.kept[slot].is_some()).map(|slot| slot as u32);
        kept.chain(self.free.iter().copied()).chain(pending).for_each(|slot| seen[slot as usize] += 1);
        if let Some(slot) = seen.iter().position(|&count| count != 1) {
            return Err(format!("state slot {slot} is in {} places", seen[slot]));
        }
        let named = self.kept.iter().flatten().count();
        let astray = |(node, &slot): (&Node, &u32)| self.kept[slot as usize].is_none_or(|kept| kept.node != *node);
        if named != self.by_node.len() || self.by_node.iter().any(astray) {
            return Err(format!("{named} states are kept, {} have names", self.by_node.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(pool: &mut StatePool, node: u64) -> u32 {
        let slot = pool.take().expect("a slot");
        pool.name(slot, Node::Page(node));
        slot
    }

    /// The state that was hit last stays; a pending slot is nobody's victim.
    #[test]
    fn the_least_recently_used_state_goes() {
        let mut pool = StatePool::new(3);
        let first = saved(&mut pool, 1);
        let second = saved(&mut pool, 2);
        let pending = pool.take().expect("a slot");
        assert_eq!(pool.touch(Node::Page(1)), Some(first));
        assert_eq!(pool.take(), Some(second));
        assert_eq!(pool.check([pending, second].into_iter()), Ok(()));
        assert_eq!((pool.take(), pool.take()), (Some(first), None));
        pool.give_back(first);
        pool.name(pending, Node::Page(3));
        pool.name(second, Node::Page(3));
        pool.forget(Node::Page(3));
        assert_eq!(pool.check(std::iter::empty()), Ok(()));
        assert!(!pool.has(Node::Page(3)));
    }
}
