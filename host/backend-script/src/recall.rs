//! Which choice of a response a sequence plays.
//!
//! The backend is not told which sequences belong to one request with `n > 1`, so choices go round by the order in
//! which sequences with the same prompt are bound. A sequence that comes back after a preemption is recognised by its
//! prompt and seed, and goes on with the choice it had.

use std::collections::{HashMap, VecDeque};

use contract::TokenId;

/// Prompts and interrupted sequences that are remembered; the oldest is forgotten. Far above any number of seats.
const REMEMBERED_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Recall {
    next: Bounded<u64, u32>,
    interrupted: Bounded<(u64, u64), u32>,
}

impl Recall {
    /// The choice, of `choices`, that a sequence plays.
    pub fn choose(&mut self, prompt: &[TokenId], seed: u64, choices: usize) -> usize {
        let key = hash(prompt);
        if let Some(choice) = self.interrupted.take(&(key, seed)) {
            return choice as usize % choices.max(1);
        }
        let turn = self.next.take(&key).unwrap_or(0);
        self.next.put(key, turn.wrapping_add(1));
        turn as usize % choices.max(1)
    }

    /// A sequence left its seat before its play ended: it may come back.
    pub fn interrupted(&mut self, prompt: &[TokenId], seed: u64, choice: usize) {
        self.interrupted.put((hash(prompt), seed), choice as u32);
    }
}

/// FNV-1a; a collision only mixes up two test prompts.
fn hash(prompt: &[TokenId]) -> u64 {
    let bytes = prompt.iter().flat_map(|token| token.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

struct Bounded<K, V> {
    values: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V> Bounded<K, V> {
    fn put(&mut self, key: K, value: V) {
        if self.values.insert(key, value).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > REMEMBERED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.values.remove(&oldest);
            }
        }
    }

    fn take(&mut self, key: &K) -> Option<V> {
        let value = self.values.remove(key)?;
        self.order.retain(|k| k != key);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_go_round_per_prompt() {
        let mut recall = Recall::default();
        let picks = (0..5).map(|seed| recall.choose(&[1, 2], seed, 2)).collect::<Vec<_>>();
        assert_eq!(picks, [0, 1, 0, 1, 0]);
        assert_eq!(recall.choose(&[1, 3], 0, 2), 0);
    }

    #[test]
    fn an_interrupted_sequence_keeps_its_choice() {
        let mut recall = Recall::default();
        assert_eq!(recall.choose(&[1], 10, 3), 0);
        assert_eq!(recall.choose(&[1], 11, 3), 1);
        recall.interrupted(&[1], 11, 1);
        assert_eq!(recall.choose(&[1], 12, 3), 2);
        assert_eq!(recall.choose(&[1], 11, 3), 1);
        assert_eq!(recall.choose(&[1], 13, 3), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut recall = Recall::default();
        for prompt in 0..10_000 {
            recall.choose(&[prompt], 0, 2);
            recall.interrupted(&[prompt], 0, 0);
        }
        assert!(recall.next.values.len() <= REMEMBERED_MAX && recall.interrupted.order.len() <= REMEMBERED_MAX);
    }
}
