//! Many replicas behind a router, by the same cost model.

use anyhow::{Result, bail};

use crate::figures::quantile;
use crate::load::Job;
use crate::policies::Source;
use crate::replica::{Machine, Outcome, Replica};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    RoundRobin,
    /// The fewest prompt and output tokens that are owed.
    LeastLoaded,
    /// The least loaded of the replicas that a prefix belongs to, unless it owes twice as much as the least loaded one.
    PrefixAffinity,
}

impl Router {
    pub fn parse(word: &str) -> Result<Self> {
        Ok(match word {
            "round-robin" => Self::RoundRobin,
            "least-loaded" => Self::LeastLoaded,
            "prefix-affinity" => Self::PrefixAffinity,
            _ => bail!("unknown router `{word}`; there are round-robin, least-loaded and prefix-affinity"),
        })
    }
}

/// A prefix has one home for so many replicas, and one more: a fleet has more replicas than its clients have prefixes.
const REPLICAS_PER_HOME: usize = 25;

pub struct Fleet {
    pub replicas: Vec<Replica>,
    router: Router,
}

/// What a fleet is made of.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    pub machine: &'a Machine,
    pub source: &'a Source,
    pub replicas: usize,
    pub router: Router,
    pub seed: u64,
    pub check: bool,
}

impl Fleet {
    pub fn new(plan: &Plan<'_>) -> Result<Self> {
        let replica = |n: usize| Replica::new(plan.machine.clone(), plan.source.policy(plan.seed + n as u64)?, true);
        let replicas = (0..plan.replicas.max(1)).map(replica).collect::<Result<_>>()?;
        Ok(Self { replicas, router: plan.router })
    }

    fn route(&self, number: usize, job: &Job) -> usize {
        let count = self.replicas.len();
        let owed = |n: usize| self.replicas[n].owed_tokens;
        let least = (0..count).min_by_key(|&n| (owed(n), n)).unwrap_or(0);
        match self.router {
            Router::RoundRobin => number % count,
            Router::LeastLoaded => least,
            Router::PrefixAffinity => {
                // Multiplying spreads small family numbers over the replicas.
                let at = |n: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % count;
                let homes = (0..1 + (count / REPLICAS_PER_HOME) as u64).map(|n| at(u64::from(job.family) + (n << 20)));
                let home = homes.min_by_key(|&n| (owed(n), n)).unwrap_or(least);
                let crowded = owed(home) > 2 * owed(least) + u64::from(job.prompt) * 4;
                if job.family == 0 || crowded { least } else { home }
            }
        }
    }

    /// Runs every request to its end.
    pub fn run(&mut self, jobs: &[Job], check: bool) -> Result<()> {
        for (number, job) in jobs.iter().enumerate() {
            let at_us = (job.at_ms * 1e3) as u64;
            for replica in &mut self.replicas {
                replica.advance(at_us, jobs, check)?;
            }
            let chosen = self.route(number, job);
            self.replicas[chosen].submit(number, job, at_us);
        }
        for replica in &mut self.replicas {
            replica.advance(u64::MAX, jobs, check)?;
            replica.check()?;
        }
        Ok(())
    }

    pub fn outcomes(&self) -> Vec<&Outcome> {
        let mut all: Vec<_> = self.replicas.iter().flat_map(|replica| &replica.ended).collect();
        all.sort_by_key(|outcome| outcome.job);
        all
    }

    /// The time to first token that 95 % of the requests stay within, in milliseconds; a refused request has none.
    pub fn ttft_p95_ms(&self) -> f64 {
        let outcomes = self.replicas.iter().flat_map(|replica| &replica.ended).filter(|outcome| !outcome.cancelled);
        let wait_ms = |outcome: &Outcome| {
            outcome.first_us.map_or(f64::INFINITY, |first_us| (first_us - outcome.arrived_us) as f64 / 1e3)
        };
        let mut waits: Vec<f64> = outcomes.map(wait_ms).collect();
        waits.sort_by(f64::total_cmp);
        quantile(&waits, 0.95)
    }

    /// The shares of the run that the least and the most busy replica computed.
    pub fn busy_shares(&self) -> (f64, f64) {
        let end_us = self.end_us().max(1) as f64;
        let shares = self.replicas.iter().map(|replica| replica.counts.busy_us as f64 / end_us);
        shares.fold((1.0, 0.0), |(least, most), share| (share.min(least), share.max(most)))
    }

    /// When the last replica was done.
    pub fn end_us(&self) -> u64 {
        self.replicas.iter().map(Replica::now_us).max().unwrap_or(0)
    }
}

/// More replicas than this are not looked for.
const REPLICAS_MAX: usize = 4096;

/// A fleet that was tried.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    pub replicas: usize,
    pub ttft_p95_ms: f64,
}

/// The fewest replicas with which the same requests have their first tokens within `ttft_ms`, as [`Fleet::ttft_p95_ms`]
/// counts, and what was tried. `None`: [`REPLICAS_MAX`] do not reach it.
pub fn fewest(plan: Plan<'_>, jobs: &[Job], ttft_ms: f64) -> Result<(Option<usize>, Vec<Tried>)> {
    let mut tried = Vec::new();
    let mut reaches = |replicas: usize| {
        let mut fleet = Fleet::new(&Plan { replicas, ..plan })?;
        fleet.run(jobs, plan.check)?;
        let ttft_p95_ms = fleet.ttft_p95_ms();
        tried.push(Tried { replicas, ttft_p95_ms });
        anyhow::Ok(ttft_p95_ms <= ttft_ms)
    };
    // Below `short` it is too few, `enough` is enough.
    let (mut short, mut enough) = (0, plan.replicas.max(1));
    while !reaches(enough)? {
        if enough >= REPLICAS_MAX {
            return Ok((None, tried));
        }
        (short, enough) = (enough, (enough * 2).min(REPLICAS_MAX));
    }
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if reaches(middle)? { enough = middle } else { short = middle }
    }
    Ok((Some(enough), tried))
}
