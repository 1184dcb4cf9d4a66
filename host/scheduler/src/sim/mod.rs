//! Seeded simulation: random requests, tiny pools, hostile policies, one or two steps in flight.
//!
//! The device computes each token from everything its pages hold, so a wrong page, a wrong position, a stale prefix or
//! a lost recompute changes the text of the request and is found by comparing it with the text of the request alone.

mod device;
mod mirror;
mod policies;

use std::collections::HashMap;
use std::sync::Arc;

use contract::generation::Tenant;
use contract::{Slot, TokenId};

use crate::limits::READ_ROWS_MAX;
use crate::{Advice, Config, NewRequest, RunResult, Scheduler, Tick};
use device::{Device, next_token};
use mirror::Mirror;
use policies::Hostile;

/// SplitMix64: small, seeded, and the same everywhere.
pub(crate) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// What one request must give.
struct Wanted {
    prompt: Arc<[TokenId]>,
    max_new: u32,
    stop: Option<TokenId>,
    got: Vec<TokenId>,
    /// Rows that were computed for it, when it reads its prompt.
    read: Option<u32>,
}

impl Wanted {
    /// The text of the request alone.
    fn alone(&self, longest: u64) -> Vec<TokenId> {
        let mut all = self.prompt.to_vec();
        let max = u64::from(self.max_new).min(longest - all.len() as u64) as usize;
        while all.len() - self.prompt.len() < max {
            let token = next_token(all.iter().copied());
            all.push(token);
            if Some(token) == self.stop {
                break;
            }
        }
        all.split_off(self.prompt.len())
    }
}

pub(crate) struct Sim {
    pub scheduler: Scheduler,
    config: Config,
    device: Device,
    in_flight: usize,
    budget: u32,
    now_us: u64,
    live: HashMap<Slot, Wanted>,
    /// Every third request reads its prompt.
    readers: bool,
    pub mirror: Option<Mirror>,
    resync: bool,
    pub preemptions: HashMap<Slot, u32>,
    pub recomputed: u64,
    pub generated: u64,
    pub steps: u64,
}

impl Sim {
    pub fn new(config: Config, in_flight: usize, budget: u32, with_policy: bool) -> Self {
        let scheduler = Scheduler::new(config.clone()).expect("the configuration is valid");
        Self {
            scheduler,
            device: Device::new(&config),
            config,
            in_flight,
            budget,
            now_us: 0,
            live: HashMap::new(),
            readers: false,
            mirror: with_policy.then(Mirror::default),
            resync: with_policy,
            preemptions: HashMap::new(),
            recomputed: 0,
            generated: 0,
            steps: 0,
        }
    }

    /// The same over a model with a recurrent state.
    pub fn with_states(self, slots: u32) -> Self {
        Self { scheduler: self.scheduler.with_states(slots), device: self.device.with_states(slots), ..self }
    }

    pub fn submit(&mut self, prompt: Vec<TokenId>, max_new: u32, stop: Option<TokenId>) -> Slot {
        self.submit_in(0, prompt, max_new, stop)
    }

    pub fn submit_in(&mut self, namespace: u64, prompt: Vec<TokenId>, max_new: u32, stop: Option<TokenId>) -> Slot {
        let prompt: Arc<[TokenId]> = prompt.into();
        let reads_prompt = self.readers && (prompt.len() + prompt[0] as usize).is_multiple_of(3);
        let new = NewRequest {
            prompt: Arc::clone(&prompt),
            max_new_tokens: max_new,
            priority: 0,
            tenant: Tenant::default(),
            deadline_us: None,
            namespace,
            group: 0,
            reads_prompt,
        };
        let slot = self.scheduler.submit(new, self.now_us).expect("the request fits");
        self.live.insert(slot, Wanted { prompt, max_new, stop, got: Vec::new(), read: reads_prompt.then_some(0) });
        slot
    }

    pub fn cancel(&mut self, slot: Slot) {
        self.live.remove(&slot);
        self.scheduler.cancel(slot).expect("the request is alive");
    }

    pub fn live(&self) -> Vec<Slot> {
        let mut slots: Vec<_> = self.live.keys().copied().collect();
        slots.sort();
        slots
    }

    /// One step; `decide` is asked as a policy unless it fails. Answers the requests that ended.
    pub fn step(&mut self, policy: &mut Hostile, rng: &mut Rng) -> Vec<Slot> {
        self.steps += 1;
        self.now_us += 1000;
        let tick = Tick {
            now_us: self.now_us,
            token_budget: self.budget,
            in_flight_steps: self.in_flight as u32,
            ..Tick::default()
        };
        let planned = match &mut self.mirror {
            None => self.scheduler.plan(&tick, Advice::Native).map(|_| ()),
            Some(_) if policy.fails(rng) => {
                self.resync = true;
                self.scheduler.plan(&tick, Advice::Native).map(|_| ())
            }
            Some(mirror) => {
                if std::mem::take(&mut self.resync) {
                    mirror.restart(&self.scheduler.snapshot(&tick));
                }
                mirror.apply(self.scheduler.delta(&tick));
                mirror.compare(&self.scheduler);
                let decision = policy.decide(mirror, rng);
                mirror.note(&decision);
                self.scheduler.plan(&tick, Advice::Policy(&decision)).map(|_| ())
            }
        };
        if planned.is_err() {
            self.resync = true;
            self.scheduler.plan(&tick, Advice::Native).expect("native decisions are valid");
        }
        self.run_plan();
        self.checked();
        let mut ended = Vec::new();
        while self.scheduler.in_flight() > 0
            && (self.scheduler.in_flight() >= self.in_flight || self.scheduler.running_count() == 0 || self.idle())
        {
            ended.extend(self.commit());
        }
        self.checked();
        ended
    }

    /// Nothing was planned in the last step, so only results in flight can help.
    fn idle(&self) -> bool {
        self.device.last_rows == 0
    }

    fn run_plan(&mut self) {
        let mut released = Vec::new();
        self.scheduler.take_released(&mut released);
        self.device.release(&released);
        let scheduler = &self.scheduler;
        let plan = &scheduler.plan;
        assert!(plan.rows <= self.config.max_rows, "{} rows planned", plan.rows);
        for slot in &plan.preempted {
            *self.preemptions.entry(*slot).or_default() += 1;
        }
        let stops = |slot: Slot| self.live.get(&slot).and_then(|wanted| wanted.stop);
        let view = |slot: Slot| scheduler.view_of(slot).expect("a bound slot is alive");
        for bind in &plan.binds {
            let known = view(bind.slot);
            let known_len = known.prompt.len() + known.generated.len();
            if known.preemptions > 0 {
                self.recomputed += known_len as u64 - u64::from(bind.start);
            }
            self.device.bind(bind, stops(bind.slot));
        }
        for run in &plan.runs {
            let Some(wanted) = self.live.get_mut(&run.slot) else { continue };
            let Some(read) = &mut wanted.read else { continue };
            assert!(run.end - run.rows <= *read, "slot {}: rows from {read} on were not computed for it", run.slot.0);
            let rows_max = if (*read as usize) < wanted.prompt.len() { READ_ROWS_MAX } else { u32::MAX };
            assert!(run.rows <= rows_max, "slot {}: {} rows to read in one step", run.slot.0, run.rows);
            *read = run.end.max(*read);
        }
        self.device.run(plan);
    }

    /// Takes the oldest result.
    fn commit(&mut self) -> Vec<Slot> {
        let outs = self.device.collect();
        assert_eq!(outs.len(), self.scheduler.oldest_runs());
        let mut ended = Vec::new();
        for (run, out) in outs.iter().enumerate() {
            let result = RunResult { tokens: &out.tokens, end: out.end, done: out.done };
            let Some(committed) = self.scheduler.commit_run(run, &result) else { continue };
            assert!(!committed.missing, "slot {} got no token", committed.slot.0);
            let wanted = self.live.get_mut(&committed.slot).expect("a committed slot is alive");
            wanted.got.extend_from_slice(&out.tokens[..committed.tokens]);
            self.generated += committed.tokens as u64;
            if committed.ended.is_some() {
                let wanted = self.live.remove(&committed.slot).expect("it was alive");
                assert_eq!(wanted.got, wanted.alone(self.config.longest()), "slot {}: another text", committed.slot.0);
                ended.push(committed.slot);
            }
        }
        self.scheduler.commit_done();
        ended
    }

    fn checked(&self) {
        if let Err(why) = self.scheduler.check() {
            panic!("step {}: {why}", self.steps);
        }
    }

    /// Runs until every request ended.
    pub fn finish(&mut self, policy: &mut Hostile, rng: &mut Rng, steps_max: u64) {
        let until = self.steps + steps_max;
        while !self.live.is_empty() {
            assert!(self.steps < until, "{} requests are still open after {steps_max} steps", self.live.len());
            self.step(policy, rng);
        }
        while self.scheduler.in_flight() > 0 {
            self.commit();
        }
        self.checked();
        let pages = self.scheduler.pages();
        assert_eq!((pages.used, pages.free + pages.cached), (0, self.config.pages), "pages are left in use");
    }
}

/// Native FCFS, for tests that are about something else.
pub(crate) fn native() -> Hostile {
    Hostile::Native
}

fn config(rng: &mut Rng) -> Config {
    let align = if rng.below(4) == 0 { 64 } else { 1 };
    Config {
        seats: 1 + rng.below(6) as u16,
        pages: 3 + rng.below(14) as u32,
        context_len: 100 + rng.below(900) as u32,
        max_rows: align.max(4 + rng.below(300) as u32),
        resume_align: align,
        rows_tile: 1,
        large_rows_tile: 1,
        prefix_cache: rng.below(5) > 0,
        starvation_bound_us: 8_000,
    }
}

fn random_prompt(rng: &mut Rng, longest: u64) -> Vec<TokenId> {
    // Few different starts, so that prefixes are shared.
    let family = rng.below(3) as TokenId;
    let len = 1 + rng.below((longest - 1).min(400));
    let shared = rng.below(len + 1);
    (0..len).map(|at| if at < shared { family * 1000 + at as TokenId } else { rng.below(50) as TokenId }).collect()
}

fn simulate(seed: u64) {
    println!("seed {seed}");
    let mut rng = Rng(seed);
    let config = config(&mut rng);
    let longest = config.longest();
    let mut policy = Hostile::pick(&mut rng);
    let in_flight = 1 + rng.below(2) as usize;
    let budget = 1 + rng.below(200) as u32;
    println!("{config:?} in_flight {in_flight} budget {budget} {policy:?}");
    let slots = (config.resume_align > 1 && rng.below(4) > 0).then(|| rng.below(9) as u32);
    println!("state slots {slots:?}");
    let mut sim = Sim::new(config, in_flight, budget, policy != Hostile::Native);
    sim.readers = true;
    if let Some(slots) = slots {
        sim = sim.with_states(slots);
    }
    for _ in 0..60 {
        for _ in 0..rng.below(3) {
            let prompt = random_prompt(&mut rng, longest);
            let stop = (rng.below(2) == 0).then(|| rng.below(40) as TokenId);
            let max_new = 1 + rng.below(120) as u32;
            let anchor = rng.below(prompt.len() as u64) as u32;
            let slot = sim.submit_in(rng.below(2), prompt, max_new, stop);
            sim.scheduler.anchor(slot, [anchor].into_iter());
        }
        for slot in sim.live() {
            match rng.below(40) {
                0 => sim.cancel(slot),
                1 => sim.scheduler.park(slot, true, sim.now_us),
                _ => sim.scheduler.park(slot, false, sim.now_us),
            }
        }
        sim.checked();
        sim.step(&mut policy, &mut rng);
    }
    for slot in sim.live() {
        sim.scheduler.park(slot, false, sim.now_us);
    }
    sim.finish(&mut policy, &mut rng, 200_000);
}

/// Tokens that the cache gave, of a prompt that runs alone with these ends of messages.
fn hit(sim: &mut Sim, prompt: &[TokenId], anchors: &[u32], max_new: u32) -> u32 {
    let slot = sim.submit(prompt.to_vec(), max_new, None);
    sim.scheduler.anchor(slot, anchors.iter().copied());
    let mut rng = Rng(0);
    sim.step(&mut native(), &mut rng);
    let cached = sim.scheduler.current().started.first().expect("it starts at once").cached_tokens;
    sim.finish(&mut native(), &mut rng, 1000);
    cached
}

fn recurrent(slots: u32, pages: u32) -> Sim {
    let config = Config {
        seats: 2,
        pages,
        context_len: 8192,
        max_rows: 512,
        resume_align: 64,
        rows_tile: 1,
        large_rows_tile: 1,
        prefix_cache: true,
        starvation_bound_us: 8_000,
    };
    Sim::new(config, 2, 512, false).with_states(slots)
}

/// A prompt goes on from the last saved state before it leaves what was computed: the prompt's end, the end of a message,
/// the place where another prompt left it before, a place on a long way, and the end of the answer.
#[test]
fn prefixes_go_on_from_saved_states() {
    let long: Vec<TokenId> = (0..2500).collect();
    let with = |len: usize, rest: TokenId| [&long[..len], &[rest; 100]].concat();
    let mut sim = recurrent(16, 200);
    assert_eq!(hit(&mut sim, &long[..300], &[130], 1), 0);
    assert_eq!(hit(&mut sim, &long[..300], &[], 1), 256, "the prompt's end");
    assert_eq!(hit(&mut sim, &long[..256], &[], 1), 128, "a token is left to compute, so an earlier state it is");
    assert_eq!(hit(&mut sim, &long[..256], &[], 1), 192, "and that prompt left its own");
    assert_eq!(hit(&mut sim, &with(170, 9001), &[], 1), 128, "the end of a message");
    let mut sim = recurrent(16, 200);
    assert_eq!(hit(&mut sim, &long[..300], &[], 1), 0);
    assert_eq!(hit(&mut sim, &with(200, 9001), &[], 1), 0, "pages match, no state does");
    assert_eq!(hit(&mut sim, &with(200, 9002), &[], 1), 192, "where the one before left it");
    let mut sim = recurrent(16, 200);
    assert_eq!(hit(&mut sim, &long, &[], 1), 0);
    assert_eq!(hit(&mut sim, &with(2300, 9001), &[], 1), 2048, "on a long way");
    let mut sim = recurrent(16, 200);
    let mut prompt = long[..100].to_vec();
    assert_eq!(hit(&mut sim, &prompt, &[], 120), 0);
    for _ in 0..120 {
        prompt.push(next_token(prompt.iter().copied()));
    }
    prompt.extend([5; 10]);
    assert_eq!(hit(&mut sim, &prompt, &[], 1), 192, "the end of the answer");
}

/// A state goes with its page, and a page without its state is no use.
#[test]
fn evicted_states_are_not_hit() {
    let prompts: Vec<Vec<TokenId>> = (0..5).map(|family| (0..200).map(|at| family * 1000 + at).collect()).collect();
    let mut sim = recurrent(2, 200);
    prompts.iter().map(|prompt| hit(&mut sim, prompt, &[], 1)).for_each(|cached| assert_eq!(cached, 0));
    let again: Vec<u32> = [4, 3, 0].map(|at: usize| hit(&mut sim, &prompts[at], &[], 1)).to_vec();
    assert_eq!(again, [192, 192, 0], "two slots keep the last two");
    let mut sim = recurrent(16, 5);
    prompts.iter().map(|prompt| hit(&mut sim, prompt, &[], 1)).for_each(|cached| assert_eq!(cached, 0));
    assert_eq!(hit(&mut sim, &prompts[0], &[], 1), 0, "its pages were needed");
    let mut sim = recurrent(0, 200);
    prompts.iter().map(|prompt| hit(&mut sim, prompt, &[], 1)).for_each(|cached| assert_eq!(cached, 0));
    assert_eq!(hit(&mut sim, &prompts[4], &[], 1), 0, "without slots nothing is used again");
}

/// What a cancelled prompt computed is used by the next one.
#[test]
fn a_cancelled_prompt_leaves_its_states() {
    let long: Vec<TokenId> = (0..4000).collect();
    let mut sim = recurrent(4, 200);
    let slot = sim.submit(long.clone(), 1, None);
    for _ in 0..7 {
        sim.step(&mut native(), &mut Rng(0));
    }
    sim.cancel(slot);
    sim.finish(&mut native(), &mut Rng(0), 10);
    assert_eq!(hit(&mut sim, &long, &[], 1), 2048);
}

/// Every request gets exactly its own text, whatever the policy, the pool and the clients do.
#[test]
fn every_request_gets_its_text() {
    for seed in 0..60 {
        simulate(seed);
    }
}
