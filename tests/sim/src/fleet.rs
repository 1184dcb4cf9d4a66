//! Many replicas behind a router, by the same cost model.

use anyhow::{Result, bail};

use crate::load::Job;
use crate::policies;
use crate::replica::{Machine, Outcome, Replica};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    RoundRobin,
    /// The fewest prompt and output tokens that are owed.
    LeastLoaded,
    /// The replica that a prefix belongs to, unless it owes twice as much as the least loaded one.
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

pub struct Fleet {
    pub replicas: Vec<Replica>,
    router: Router,
}

/// What a fleet is made of.
pub struct Plan<'a> {
    pub machine: Machine,
    pub policy: &'a str,
    pub settings: Option<&'a str>,
    pub replicas: usize,
    pub router: Router,
    pub seed: u64,
    pub check: bool,
}

impl Fleet {
    pub fn new(plan: &Plan<'_>) -> Result<Self> {
        let replica = |n: usize| {
            let policy = policies::load(plan.policy, plan.settings, plan.seed + n as u64)?;
            Replica::new(plan.machine.clone(), policy, true)
        };
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
                let home = (u64::from(job.family).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % count;
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

    /// When the last replica was done.
    pub fn end_us(&self) -> u64 {
        self.replicas.iter().map(Replica::now_us).max().unwrap_or(0)
    }
}
