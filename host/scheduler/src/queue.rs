//! The scheduler's state, and how requests enter and leave it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use contract::policy::{Arrival, Progress};
use contract::{Seat, Slot, TokenId};

use crate::limits::{Config, ConfigError, NeverFits};
use crate::pages::{PageCounts, PagePool};
use crate::plan::{Launched, PlanScratch};
use crate::policy_view::PolicyView;
use crate::prefix::Node;
use crate::request::{Ended, Entry, NewRequest, Phase, RequestView};
use crate::seats::Seats;
use crate::states::StatePool;
use crate::step::StepPlan;
use crate::tenants::Tenants;

/// All requests, and everything they share.
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) entries: Vec<Option<Box<Entry>>>,
    free_slots: Vec<Slot>,
    /// By order of arrival.
    pub(crate) waiting: BTreeMap<u64, Slot>,
    /// Requests with a seat, by order of arrival.
    pub(crate) running: Vec<Slot>,
    pub(crate) parked: usize,
    pub(crate) pool: PagePool,
    pub(crate) seats: Seats,
    pub(crate) tenants: Tenants,
    pub(crate) view: PolicyView,
    /// The policy's standing order of victims, with the arrival that each slot had.
    pub(crate) victims: Vec<(Slot, u64)>,
    pub(crate) plan: StepPlan,
    pub(crate) scratch: PlanScratch,
    pub(crate) launching: Launched,
    pub(crate) in_flight: VecDeque<Launched>,
    pub(crate) spare: Vec<Launched>,
    /// Steps planned, launched and committed so far.
    pub(crate) steps: u64,
    /// The first step that may seat a starved request again.
    pub(crate) forced_seat_from: u64,
    pub(crate) launched: u64,
    pub(crate) committed: u64,
    next_seq: u64,
}

impl Scheduler {
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            entries: Vec::new(),
            free_slots: Vec::new(),
            waiting: BTreeMap::new(),
            running: Vec::with_capacity(config.seats.into()),
            parked: 0,
            pool: PagePool::new(config.pages, config.prefix_cache),
            seats: Seats::new(config.seats),
            tenants: Tenants::default(),
            view: PolicyView::default(),
            victims: Vec::new(),
            plan: StepPlan::default(),
            scratch: PlanScratch::default(),
            launching: Launched::default(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            steps: 0,
            forced_seat_from: 0,
            launched: 0,
            committed: 0,
            next_seq: 0,
            config,
        })
    }

    /// The same for a model whose sequences have a recurrent state, with slots for saved ones. Without slots no prefix can
    /// be used again, and the cache is off.
    pub fn with_states(mut self, slots: u32) -> Self {
        if slots == 0 {
            self.config.prefix_cache = false;
        }
        self.pool = PagePool::new(self.config.pages, self.config.prefix_cache);
        self.pool.states = StatePool::new(slots);
        self
    }

    /// Names lengths of a request's prompt at which others may leave it: the ends of its messages.
    pub fn anchor(&mut self, slot: Slot, lengths: impl Iterator<Item = u32>) {
        if self.pool.states.is_empty() {
            return;
        }
        let page = contract::PAGE_TOKENS;
        if let Some(entry) = self.get_mut(slot) {
            // A state is saved at the end of a page, so what follows the last whole page is computed again.
            entry.anchors.extend(lengths.map(|length| length / page * page).filter(|&at| at > 0));
            entry.anchors.dedup();
        }
    }

    /// Queues a request. Its length is bounded by the context and the pool; one whose prompt alone exceeds them is
    /// refused, because it would wait for ever.
    pub fn submit(&mut self, new: NewRequest, now_us: u64) -> Result<Slot, NeverFits> {
        let longest = self.config.longest();
        let prompt_tokens = new.prompt.len() as u64;
        if prompt_tokens == 0 || prompt_tokens >= longest || new.max_new_tokens == 0 {
            return Err(NeverFits { prompt_tokens, longest });
        }
        let room = longest - prompt_tokens;
        let new_tokens_max = u64::from(new.max_new_tokens).min(room) as u32;
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.entries.push(None);
            Slot(self.entries.len() as u32 - 1)
        });
        let seq = self.next_seq;
        self.next_seq += 1;
        let tenant = self.tenants.enter(&new.tenant);
        if !self.view.is_tracking() {
            self.tenants.forget_news();
        }
        let mut entry = Entry {
            seq,
            arrival: Arrival {
                slot,
                group: new.group,
                tenant,
                adapter: 0,
                priority: new.priority,
                arrived_us: now_us,
                deadline_us: new.deadline_us,
                prompt_tokens: prompt_tokens as u32,
                cached_tokens: 0,
                max_new_tokens: new_tokens_max,
            },
            tenant_name: new.tenant.name,
            namespace: new.namespace,
            prompt: new.prompt,
            generated: Vec::new(),
            new_tokens_max,
            phase: Phase::Waiting,
            binding: 0,
            computed: 0,
            committed: 0,
            pending: 0,
            sampled: false,
            pages: Vec::new(),
            unread_from: if new.reads_prompt { 0 } else { u32::MAX },
            named_pages: 0,
            chain: Node::Root(new.namespace),
            anchors: Vec::new(),
            junction: 0,
            rolling: None,
            started: false,
            preemptions: 0,
            parked: false,
            progress_us: now_us,
            planned_at: 0,
            hold_asked_at: 0,
            held_at: 0,
            reported: false,
            seen: Progress { slot, computed: 0, emitted: 0 },
            seen_decoding: false,
        };
        entry.arrival.cached_tokens = self.cached_tokens(&entry);
        self.entries[slot.0 as usize] = Some(Box::new(entry));
        self.waiting.insert(seq, slot);
        self.view.arrives(slot, seq);
        Ok(slot)
    }

    /// Ends a request in whatever state it is. Its finished pages stay cached; results of steps in flight are dropped.
    pub fn cancel(&mut self, slot: Slot) -> Option<Ended> {
        self.remove(slot)
    }

    /// Stops (or goes on) computing for a request whose client does not read.
    pub fn park(&mut self, slot: Slot, parked: bool, now_us: u64) {
        if let Some(entry) = self.get_mut(slot)
            && entry.parked != parked
        {
            entry.parked = parked;
            entry.progress_us = now_us;
            if parked { self.parked += 1 } else { self.parked -= 1 }
        }
    }

    pub fn view_of(&self, slot: Slot) -> Option<RequestView<'_>> {
        let entry = self.get(slot)?;
        Some(RequestView { prompt: &entry.prompt, generated: &entry.generated, preemptions: entry.preemptions })
    }

    /// Seats that were left since the last call; the backend must release them before the next step binds.
    pub fn take_released(&mut self, into: &mut Vec<Seat>) {
        self.seats.take_released(into);
    }

    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    pub fn running_count(&self) -> usize {
        self.running.len()
    }

    /// Requests that only wait for their clients.
    pub fn parked_count(&self) -> usize {
        self.parked
    }

    pub fn pages(&self) -> PageCounts {
        self.pool.counts()
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(slot.0 as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut Entry> {
        self.entries.get_mut(slot.0 as usize)?.as_deref_mut()
    }

    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        self.get(slot).expect("a slot in a queue has an entry")
    }

    pub(crate) fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        self.get_mut(slot).expect("a slot in a queue has an entry")
    }

    /// Takes the request off its seat and gives its pages back; it is in no queue afterwards.
    pub(crate) fn unseat(&mut self, slot: Slot) {
        let (launched, committed) = (self.launched, self.committed);
        let entry = self.entries[slot.0 as usize].as_deref_mut().expect("a running slot has an entry");
        let Phase::Running(seat) = entry.phase else { return };
        entry.phase = Phase::Waiting;
        self.pool.give_back(&mut entry.pages);
        let seq = entry.seq;
        self.seats.leave(seat, launched, committed);
        let at = self.running_position(seq).expect("a running request is in the list");
        self.running.remove(at);
    }

    pub(crate) fn running_position(&self, seq: u64) -> Result<usize, usize> {
        self.running.binary_search_by_key(&seq, |&slot| self.entry(slot).seq)
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Ended> {
        self.get(slot)?;
        self.unseat(slot);
        let entry = self.entries[slot.0 as usize].take()?;
        self.waiting.remove(&entry.seq);
        if entry.parked {
            self.parked -= 1;
        }
        self.tenants.leave(&entry.tenant_name);
        if !self.view.finishes(&entry) {
            self.free_slots.push(slot);
        }
        Some(entry.ended())
    }

    pub(crate) fn recycle_slots(&mut self) {
        self.view.recycle(&mut self.free_slots);
    }

    pub(crate) fn free_slots_extend(&mut self, slots: Vec<Slot>) {
        self.free_slots.extend(slots);
    }

    /// Tokens of pages, from the start of the sequence, that the cache holds for this request; at least one token is
    /// left to compute, and the cut is one where prefill may resume.
    pub(crate) fn cached_tokens(&self, entry: &Entry) -> u32 {
        let mut tokens = 0;
        self.walk_cache(entry, |_, _| tokens += contract::PAGE_TOKENS);
        tokens
    }

    /// Visits the cached pages of the request's prefix in order.
    pub(crate) fn walk_cache(&self, entry: &Entry, mut visit: impl FnMut(contract::PageId, Node)) {
        let (found, hits) = self.find_cached(entry);
        for &(page, node) in &found[..hits] {
            visit(page, node);
        }
    }

    /// The cached pages of the request's prefix in order, and how many of them it can go on from: all, or as many as
    /// there is a saved state behind.
    pub(crate) fn find_cached(&self, entry: &Entry) -> (Vec<(contract::PageId, Node)>, usize) {
        if !self.config.prefix_cache {
            return (Vec::new(), 0);
        }
        let page = contract::PAGE_TOKENS;
        // Hits end where prefill may start again: at a multiple of both the page and the alignment.
        let grain = self.config.resume_align.div_ceil(page).max(1);
        let tokens_max = (entry.len() - entry.pending - 1).min(entry.unread_from);
        let pages_max = tokens_max / page / grain * grain;
        let mut buffer: Vec<TokenId> = Vec::new();
        let mut found = Vec::new();
        let mut node = Node::Root(entry.namespace);
        for index in 0..pages_max {
            let (from, to) = (index * page, (index + 1) * page);
            let hit = if to <= entry.prompt_len() {
                self.pool.find(node, &entry.prompt[from as usize..to as usize])
            } else {
                buffer.clear();
                entry.copy_tokens(from, to, &mut buffer);
                self.pool.find(node, &buffer)
            };
            let Some((hit, next)) = hit else { break };
            found.push((hit, next));
            node = next;
        }
        let states = &self.pool.states;
        let hits = match states.is_empty() {
            true => found.len() / grain as usize * grain as usize,
            false => found.iter().rposition(|&(_, node)| states.has(node)).map_or(0, |last| last + 1),
        };
        (found, hits)
    }

    /// The prompt, shared: what a backend is bound with outlives the borrow of the scheduler.
    pub fn prompt_of(&self, slot: Slot) -> Option<Arc<[TokenId]>> {
        self.get(slot).map(|entry| Arc::clone(&entry.prompt))
    }
}
