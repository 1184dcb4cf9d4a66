//! Which processors the threads run on.
//!
//! Two threads on one physical core share its arithmetic, so every physical core comes first. With a thread for each
//! core, each keeps its own, which spares it moves away from its caches. With fewer, the system may move them among the
//! cores: two servers on one machine must not both sit on the first few. A process that may use a part of the
//! processors' time only (a container's quota) is left alone: its processors are not its own.

/// Processors of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// One processor of each physical core, then the others.
    order: Vec<usize>,
    physical: usize,
}

/// Where threads run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the system puts them.
    Anywhere,
    /// All of them on any of these processors.
    Among(Vec<usize>),
    /// Thread `i` on processor `i` of these.
    Each(Vec<usize>),
}

impl Cores {
    /// `None` where the system does not say, or gives this process less time than its processors have.
    pub fn detect() -> Option<Self> {
        let allowed = system::allowed()?;
        let share = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        if share < allowed.len() {
            return None;
        }
        let first_sibling = |processor: usize| {
            let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
            first_of(&std::fs::read_to_string(path).ok()?)
        };
        Self::of(&allowed, first_sibling)
    }

    /// From the processors and the first processor of each one's core.
    fn of(allowed: &[usize], first_sibling: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let (mut order, mut others, mut cores) = (Vec::new(), Vec::new(), Vec::new());
        for &processor in allowed {
            let core = first_sibling(processor)?;
            if cores.contains(&core) {
                others.push(processor);
            } else {
                cores.push(core);
                order.push(processor);
            }
        }
        let physical = order.len();
        order.append(&mut others);
        (physical > 0).then_some(Self { order, physical })
    }

    /// Physical cores.
    pub fn physical(&self) -> usize {
        self.physical
    }

    pub fn place(&self, threads: usize) -> Placement {
        if threads < self.physical {
            Placement::Among(self.order[..self.physical].to_vec())
        } else if threads <= self.order.len() {
            Placement::Each(self.order[..threads].to_vec())
        } else {
            Placement::Anywhere
        }
    }
}

impl Placement {
    /// Moves the calling thread to where thread `index` belongs. A system that refuses leaves it where it is.
    pub fn apply(&self, index: usize) {
        match self {
            Self::Anywhere => {}
            Self::Among(processors) => system::run_on(processors),
            Self::Each(processors) => {
                if let Some(processor) = processors.get(index) {
                    system::run_on(std::slice::from_ref(processor));
                }
            }
        }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anywhere => f.write_str("on any processor"),
            Self::Among(processors) => write!(f, "among processors {processors:?}, one of each core"),
            Self::Each(processors) => write!(f, "one each on processors {processors:?}"),
        }
    }
}

/// The first number of a list such as `0-1,8`.
fn first_of(list: &str) -> Option<usize> {
    list.trim().split(['-', ',']).next()?.parse().ok()
}

#[cfg(target_os = "linux")]
mod system {
    const SET_BYTES: usize = std::mem::size_of::<libc::cpu_set_t>();

    /// Processors that this thread may run on.
    pub(super) fn allowed() -> Option<Vec<usize>> {
        // SAFETY: a set of no processors is all zero bytes.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is valid for as many bytes as are told.
        if unsafe { libc::sched_getaffinity(0, SET_BYTES, &mut set) } != 0 {
            return None;
        }
        // SAFETY: every number is below the set's size.
        Some((0..8 * SET_BYTES).filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) }).collect())
    }

    pub(super) fn run_on(processors: &[usize]) {
        // SAFETY: a set of no processors is all zero bytes.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &processor in processors.iter().filter(|&&processor| processor < 8 * SET_BYTES) {
            // SAFETY: the number is below the set's size.
            unsafe { libc::CPU_SET(processor, &mut set) };
        }
        // SAFETY: the set is valid for as many bytes as are told.
        unsafe { libc::sched_setaffinity(0, SET_BYTES, &set) };
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn allowed() -> Option<Vec<usize>> {
        None
    }

    pub(super) fn run_on(_: &[usize]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cores of two processors each, siblings four apart; this process may use all but processor 3.
    fn cores() -> Cores {
        Cores::of(&[0, 1, 2, 4, 5, 6, 7], |processor| Some(processor % 4)).expect("a topology")
    }

    #[test]
    fn physical_cores_come_first() {
        let cores = cores();
        assert_eq!(cores.physical(), 4);
        assert_eq!(cores.place(2), Placement::Among(vec![0, 1, 2, 7]));
        assert_eq!(cores.place(4), Placement::Each(vec![0, 1, 2, 7]));
        assert_eq!(cores.place(6), Placement::Each(vec![0, 1, 2, 7, 4, 5]));
        assert_eq!(cores.place(8), Placement::Anywhere);
        assert_eq!(Cores::of(&[0, 1], |_| None), None);
    }

    #[test]
    fn lists_of_siblings_are_read() {
        assert_eq!(
            [first_of("0-1\n"), first_of("3,7\n"), first_of("12"), first_of("")],
            [Some(0), Some(3), Some(12), None]
        );
    }

    /// On whatever machine runs this: a placed thread runs where it was put.
    #[cfg(target_os = "linux")]
    #[test]
    fn threads_stay_where_they_are_put() {
        let Some(allowed) = system::allowed() else { return };
        let last = *allowed.last().expect("a processor");
        let seen = std::thread::spawn(move || {
            Placement::Each(vec![allowed[0], last]).apply(1);
            system::allowed()
        });
        assert_eq!(seen.join().expect("no panic"), Some(vec![last]));
    }
}
