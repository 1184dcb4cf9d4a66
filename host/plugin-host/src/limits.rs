//! How much one plugin may use, and where each number comes from.

use std::fmt;
use std::time::Duration;

use crate::config::LimitOverrides;
use crate::manifest::{Kind, ManifestLimits};

/// The limits in effect for one plugin: default of its kind, then the manifest's, then the operator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All linear memories of one store together.
    pub memory_bytes: u64,
    /// Wall-clock time of one call. For schedulers the backstop behind the fuel.
    pub call: Duration,
    /// Schedulers: fuel of one step.
    pub fuel: u64,
    /// Size of one answer, on top of [`OUTPUT_PER_INPUT`] times the input.
    pub output_bytes: u64,
    pub streams_per_store: u32,
}

/// An answer may be this many times the size of what was asked, plus `output_bytes`.
pub const OUTPUT_PER_INPUT: usize = 8;

impl Limits {
    fn default_of(kind: Kind) -> Self {
        match kind {
            // A feed takes a microsecond; 100 ms leaves room for a machine that has other things to do.
            Kind::Output => Self {
                memory_bytes: 16 << 20,
                call: Duration::from_millis(100),
                fuel: 0,
                output_bytes: 64 << 10,
                streams_per_store: 1,
            },
            // Rendering a 200 kB request takes half a millisecond, loading a template a few.
            Kind::Template => Self {
                memory_bytes: 64 << 20,
                call: Duration::from_millis(1000),
                fuel: 0,
                output_bytes: 1 << 20,
                streams_per_store: 1,
            },
            // 20 million instructions are about 10 ms, a third of a usual step on a CPU; a delta costs some thousand.
            Kind::Scheduler => Self {
                memory_bytes: 16 << 20,
                call: Duration::from_millis(100),
                fuel: 20_000_000,
                output_bytes: 64 << 10,
                streams_per_store: 1,
            },
        }
    }

    pub(crate) fn effective(kind: Kind, manifest: &ManifestLimits, operator: &LimitOverrides) -> Result<Self, String> {
        let base = Self::default_of(kind);
        let mib = operator.memory_mib.or(manifest.memory_mib).map(|mib| u64::from(mib) << 20);
        let kib = operator.output_kib.or(manifest.output_kib).map(|kib| u64::from(kib) << 10);
        let call_ms = operator.call_ms.or(manifest.call_ms).map(|ms| Duration::from_millis(u64::from(ms)));
        let limits = Self {
            memory_bytes: mib.unwrap_or(base.memory_bytes),
            call: call_ms.unwrap_or(base.call),
            fuel: operator.fuel.or(manifest.fuel).unwrap_or(base.fuel),
            output_bytes: kib.unwrap_or(base.output_bytes),
            streams_per_store: operator.streams_per_store.or(manifest.streams_per_store).unwrap_or(1),
        };
        limits.check(kind).map(|()| limits)
    }

    /// Bounds of the bounds: zero would refuse everything, and the upper ends keep one plugin from taking the machine.
    fn check(&self, kind: Kind) -> Result<(), String> {
        let within = |name: &str, value: u64, least: u64, most: u64| {
            let good = (least..=most).contains(&value);
            good.then_some(()).ok_or_else(|| format!("limits.{name} is {value}; {least} to {most} are allowed"))
        };
        within("memory_mib", self.memory_bytes >> 20, 1, 2048)?;
        within("call_ms", u64::try_from(self.call.as_millis()).unwrap_or(u64::MAX), 1, 60_000)?;
        within("output_kib", self.output_bytes >> 10, 1, 64 << 10)?;
        within("streams_per_store", u64::from(self.streams_per_store), 1, 1024)?;
        if kind == Kind::Scheduler { within("fuel", self.fuel, 10_000, 10_000_000_000) } else { Ok(()) }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory={}MiB call={}ms", self.memory_bytes >> 20, self.call.as_millis())?;
        if self.fuel > 0 {
            write!(f, " fuel={}", self.fuel)?;
        }
        write!(f, " output={}KiB", self.output_bytes >> 10)?;
        if self.streams_per_store > 1 {
            write!(f, " streams_per_store={}", self.streams_per_store)?;
        }
        Ok(())
    }
}
