//! The requests of this engine: their channels, grammars and times.
//!
//! A full channel parks its request: the event waits here, nothing is computed for it, and nothing is lost. The client
//! says when it made room.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use contract::Slot;
use contract::constraint::TokenConstraint;
use contract::generation::TokenEvent;
use contract::sampling::SamplingParams;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use crate::pool::Pool;
use crate::score::Score;
use crate::status::Shared;

/// The client's end of one request.
pub(crate) struct Outlet {
    sender: Sender<TokenEvent>,
    /// Events that found the channel full. At most two steps' worth and the end: a parked request is not planned.
    backlog: VecDeque<TokenEvent>,
    full_since: Option<Instant>,
}

impl Outlet {
    fn new(sender: Sender<TokenEvent>) -> Self {
        Self { sender, backlog: VecDeque::new(), full_since: None }
    }

    fn send(&mut self, event: TokenEvent, shared: &Shared) {
        self.backlog.push_back(event);
        self.flush(shared);
    }

    /// Sends what there is room for.
    fn flush(&mut self, shared: &Shared) {
        self.push();
        if !self.backlog.is_empty() && self.full_since.is_none() {
            self.full_since = Some(Instant::now());
            shared.parked.fetch_add(1, Ordering::Relaxed);
            // Pairs with the fence in `Generation`: a client that made room before it could see us parked is noticed.
            fence(Ordering::SeqCst);
            self.push();
        }
        if self.backlog.is_empty() && self.full_since.take().is_some() {
            shared.parked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn push(&mut self) {
        while let Some(event) = self.backlog.pop_front() {
            match self.sender.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.backlog.push_front(event);
                    return;
                }
                // The client is gone; its abort is in the mailbox.
                Err(TrySendError::Closed(_)) => self.backlog.clear(),
            }
        }
    }

    pub fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    fn is_stalled(&self, limit: Duration) -> bool {
        self.full_since.is_some_and(|since| since.elapsed() > limit)
    }

    fn close(&mut self, shared: &Shared) {
        if self.full_since.take().is_some() {
            shared.parked.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A request that the scheduler knows.
pub(crate) struct Live {
    pub id: u64,
    pub name: Arc<str>,
    pub sampling: SamplingParams,
    pub seed: u64,
    pub constraint: Option<Box<dyn TokenConstraint>>,
    pub pool: Option<Pool>,
    pub score: Option<Score>,
    pub arrived: Instant,
    pub last_token: Option<Instant>,
    pub outlet: Outlet,
}

/// Live requests by slot, and ended ones whose last events did not fit their channel yet.
pub(crate) struct Lives {
    by_slot: Vec<Option<Box<Live>>>,
    slots: HashMap<u64, Slot>,
    draining: HashMap<u64, Outlet>,
    shared: Arc<Shared>,
}

impl Lives {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { by_slot: Vec::new(), slots: HashMap::new(), draining: HashMap::new(), shared }
    }

    pub fn outlet(sender: Sender<TokenEvent>) -> Outlet {
        Outlet::new(sender)
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn insert(&mut self, slot: Slot, live: Live) {
        let at = slot.0 as usize;
        if at >= self.by_slot.len() {
            self.by_slot.resize_with(at + 1, || None);
        }
        self.slots.insert(live.id, slot);
        self.by_slot[at] = Some(Box::new(live));
    }

    pub fn slot_of(&self, id: u64) -> Option<Slot> {
        self.slots.get(&id).copied()
    }

    pub fn get(&self, slot: Slot) -> Option<&Live> {
        self.by_slot.get(slot.0 as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Live> {
        self.by_slot.get_mut(slot.0 as usize)?.as_deref_mut()
    }

    /// Sends an event; answers whether the request's channel is full now.
    pub fn send(&mut self, slot: Slot, event: TokenEvent) -> bool {
        let shared = Arc::clone(&self.shared);
        let Some(live) = self.get_mut(slot) else { return false };
        live.outlet.send(event, &shared);
        live.outlet.is_full()
    }

    /// The client took an event; answers the slot of a request that can go on.
    pub fn drained(&mut self, id: u64) -> Option<Slot> {
        if let Some(outlet) = self.draining.get_mut(&id) {
            outlet.flush(&self.shared);
            if !outlet.is_full() {
                self.draining.remove(&id);
            }
            return None;
        }
        let slot = self.slot_of(id)?;
        let shared = Arc::clone(&self.shared);
        let live = self.get_mut(slot)?;
        live.outlet.flush(&shared);
        (!live.outlet.is_full()).then_some(slot)
    }

    /// Sends the last event of a request that was taken out; it may have to wait for the client.
    pub fn end(&mut self, mut live: Box<Live>, event: TokenEvent) {
        live.outlet.send(event, &self.shared);
        if live.outlet.is_full() {
            self.draining.insert(live.id, live.outlet);
        }
    }

    /// The client went away.
    pub fn abort(&mut self, id: u64) -> Option<(Slot, Box<Live>)> {
        if let Some(mut outlet) = self.draining.remove(&id) {
            outlet.close(&self.shared);
        }
        let slot = self.slot_of(id)?;
        let mut live = self.take(slot)?;
        live.outlet.close(&self.shared);
        Some((slot, live))
    }

    pub fn take(&mut self, slot: Slot) -> Option<Box<Live>> {
        let live = self.by_slot.get_mut(slot.0 as usize)?.take()?;
        self.slots.remove(&live.id);
        Some(live)
    }

    /// Requests whose client read nothing for longer than `limit`.
    pub fn stalled(&self, limit: Duration) -> Vec<u64> {
        let live = self.by_slot.iter().flatten().map(|live| (live.id, &live.outlet));
        let ended = self.draining.iter().map(|(&id, outlet)| (id, outlet));
        live.chain(ended).filter(|(_, outlet)| outlet.is_stalled(limit)).map(|(id, _)| id).collect()
    }
}
