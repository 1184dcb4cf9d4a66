//! A few threads that run the same job together, many thousand times a second.
//!
//! A step is some hundred short jobs, so waiting threads spin for a moment before they sleep: waking a sleeping thread
//! costs more than most jobs. The caller is one of the threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

use crate::cores::Placement;

/// Turns of waiting before a thread sleeps, about 50 microseconds: longer than the gaps inside a step, shorter than
/// those between steps of an idle server.
const SPINS: u32 = 1_000;

/// A job: called once on each thread with the thread's index.
type Job<'a> = &'a (dyn Fn(usize) + Sync);

/// The job's address, valid from the epoch's start until `pending` is 0.
struct Slot(std::cell::UnsafeCell<Option<*const (dyn Fn(usize) + Sync)>>);

// SAFETY: the slot is written only while `pending` is 0 and read only after the epoch that follows the write.
unsafe impl Sync for Slot {}
// SAFETY: as above; the pointed-to job is `Sync`.
unsafe impl Send for Slot {}

struct Shared {
    job: Slot,
    /// Counts jobs; a worker runs once for each.
    epoch: AtomicUsize,
    /// Workers that have not finished the current job.
    pending: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Which workers sleep.
    asleep: Vec<AtomicBool>,
}

/// The threads of one backend; they end with it.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    sleepers: Vec<Thread>,
    placement: Placement,
}

/// A job panicked: what it was computing is undefined.
#[derive(Debug, PartialEq, Eq)]
pub struct Panicked;

impl ThreadPool {
    /// `threads` counts the caller.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::placed(threads, Placement::Anywhere)
    }

    /// The same with a word on where they run. The caller stays where it is until [`Self::place_caller`].
    pub fn placed(threads: usize, placement: Placement) -> std::io::Result<Self> {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            job: Slot(std::cell::UnsafeCell::new(None)),
            epoch: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asleep: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut pool = Self { shared, workers: Vec::new(), sleepers: Vec::new(), placement };
        for index in 0..workers {
            let (shared, placement) = (Arc::clone(&pool.shared), pool.placement.clone());
            let builder = std::thread::Builder::new().name(format!("cpu-{}", index + 1));
            let handle = builder.spawn(move || {
                placement.apply(index + 1);
                work(&shared, index);
            })?;
            pool.sleepers.push(handle.thread().clone());
            pool.workers.push(handle);
        }
        Ok(pool)
    }

    /// Moves the calling thread to the place of thread 0: for the one thread that will call `run` from now on.
    pub fn place_caller(&self) {
        self.placement.apply(0);
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs a job on the calling thread only, for work that is shorter than telling others of it.
    pub fn run_here(job: impl FnOnce()) -> Result<(), Panicked> {
        catch_unwind(AssertUnwindSafe(job)).map_err(|_| Panicked)
    }

    /// Runs `job` on every thread, the caller as thread 0, and returns when all are done.
    pub fn run(&mut self, job: Job<'_>) -> Result<(), Panicked> {
        if self.workers.is_empty() {
            return Self::run_here(|| job(0));
        }
        // SAFETY: `pending` is 0 here (`run` waits for it below and `&mut self` excludes another run), so no worker reads
        // the slot. The pointer outlives its use because this call does not return before every worker is done with it;
        // a panic of the caller's own part is caught.
        unsafe { *self.shared.job.0.get() = Some(std::mem::transmute::<Job<'_>, Job<'static>>(job)) };
        self.shared.pending.store(self.workers.len(), Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (asleep, thread) in self.shared.asleep.iter().zip(&self.sleepers) {
            if asleep.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut turns = 0;
        while self.shared.pending.load(Ordering::Acquire) != 0 {
            turns += 1;
            if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let panicked = self.shared.panicked.swap(false, Ordering::Relaxed);
        if own.is_err() || panicked { Err(Panicked) } else { Ok(()) }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for thread in &self.sleepers {
            thread.unpark();
        }
        for worker in self.workers.drain(..) {
            // A worker catches its jobs' panics, so it ends well.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut turns = 0;
        while shared.epoch.load(Ordering::Acquire) == seen {
            turns += 1;
            if turns < SPINS {
                std::hint::spin_loop();
                continue;
            }
            shared.asleep[index].store(true, Ordering::SeqCst);
            // The epoch may have moved before the flag was seen; then nobody will wake this thread.
            if shared.epoch.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            shared.asleep[index].store(false, Ordering::SeqCst);
        }
        seen += 1;
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch moved after the slot was written, and the job lives until `pending` is 0.
        let job = unsafe { *shared.job.0.get() };
        // SAFETY: as above.
        let ran = catch_unwind(AssertUnwindSafe(|| job.map(|job| unsafe { (*job)(index + 1) })));
        if ran.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.pending.fetch_sub(1, Ordering::Release);
    }
}

/// Hands out `0..count` in chunks, in order, to whichever thread asks.
pub struct Tickets {
    next: AtomicUsize,
    count: usize,
    chunk: usize,
}

impl Tickets {
    pub fn new(count: usize, chunk: usize) -> Self {
        Self { next: AtomicUsize::new(0), count, chunk: chunk.max(1) }
    }

    pub fn take(&self) -> Option<std::ops::Range<usize>> {
        let start = self.next.fetch_add(self.chunk, Ordering::Relaxed);
        (start < self.count).then(|| start..self.count.min(start + self.chunk))
    }
}

/// A slice whose elements several threads write, each its own.
pub struct Shares<'a, T> {
    start: *mut T,
    len: usize,
    slice: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: handing out elements is `unsafe` and its caller promises that no two threads use the same one.
unsafe impl<T: Send> Sync for Shares<'_, T> {}

impl<'a, T> Shares<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: std::marker::PhantomData }
    }

    /// # Safety
    /// While the answer is used, nobody else uses these elements.
    ///
    /// # Panics
    /// When the range lies outside.
    #[allow(clippy::mut_from_ref, reason = "the point of the type; the caller promises disjoint ranges")]
    pub unsafe fn get(&self, range: std::ops::Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range lies inside the slice, which is borrowed exclusively for `'a`; disjointness is the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_each_job_once() {
        for threads in [1, 2, 4] {
            let mut pool = ThreadPool::new(threads).expect("threads");
            let counts: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..1_000 {
                let job = |thread: usize| {
                    counts[thread].fetch_add(1, Ordering::Relaxed);
                };
                assert_eq!(pool.run(&job), Ok(()));
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1_000));
        }
    }

    #[test]
    fn tickets_cover_the_range_once() {
        let mut pool = ThreadPool::new(3).expect("threads");
        let mut seen = vec![0u8; 1_000];
        let (tickets, shares) = (Tickets::new(1_000, 7), Shares::new(&mut seen));
        let job = |_: usize| {
            while let Some(range) = tickets.take() {
                // SAFETY: tickets hand out each element once.
                unsafe { shares.get(range) }.iter_mut().for_each(|count| *count += 1);
            }
        };
        assert_eq!(pool.run(&job), Ok(()));
        assert_eq!(seen, vec![1; 1_000]);
    }

    #[test]
    fn a_panic_is_reported_and_the_pool_goes_on() {
        let mut pool = ThreadPool::new(2).expect("threads");
        for culprit in [0, 1] {
            assert_eq!(pool.run(&|thread| assert_ne!(thread, culprit)), Err(Panicked));
            assert_eq!(pool.run(&|_| {}), Ok(()));
        }
    }
}
