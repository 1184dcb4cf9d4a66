//! Compiled grammars by their text: agents send the same tools with every turn.

use std::collections::HashMap;

/// The most recently used values, within a number of entries and of key bytes.
pub(crate) struct Cache<T> {
    entries: HashMap<String, (T, u64)>,
    entries_max: usize,
    bytes: usize,
    bytes_max: usize,
    clock: u64,
}

impl<T: Clone> Cache<T> {
    pub fn new(entries_max: usize, bytes_max: usize) -> Self {
        Self { entries: HashMap::new(), entries_max, bytes: 0, bytes_max, clock: 0 }
    }

    pub fn get(&mut self, key: &str) -> Option<T> {
        self.clock += 1;
        let (value, used) = self.entries.get_mut(key)?;
        *used = self.clock;
        Some(value.clone())
    }

    pub fn insert(&mut self, key: String, value: T) {
        if key.len() > self.bytes_max || self.entries.contains_key(&key) {
            return;
        }
        self.clock += 1;
        self.bytes += key.len();
        self.entries.insert(key, (value, self.clock));
        while self.entries.len() > self.entries_max || self.bytes > self.bytes_max {
            // A few dozen entries: looking at each is cheaper than keeping an order.
            let Some(oldest) = self.entries.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone())
            else {
                return;
            };
            self.bytes -= oldest.len();
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut cache = Cache::new(2, 100);
        cache.insert("a".into(), 1);
        cache.insert("b".into(), 2);
        assert_eq!(cache.get("a"), Some(1));
        cache.insert("c".into(), 3);
        assert_eq!((cache.get("a"), cache.get("b"), cache.get("c")), (Some(1), None, Some(3)));
        cache.insert("d".repeat(100), 4);
        assert_eq!((cache.get("a"), cache.entries.len(), cache.bytes), (None, 1, 100));
        cache.insert("e".repeat(101), 5);
        assert_eq!(cache.entries.len(), 1);
    }
}
