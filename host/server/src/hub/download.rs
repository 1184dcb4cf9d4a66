//! One file's way from a hub: shown while it comes, counted when it is there.

use std::sync::{Arc, Mutex, PoisonError};

use backend::load::LoadProgress;

use crate::progress::Progress;

/// A file that is being fetched.
pub(super) struct Download {
    state: Arc<Mutex<State>>,
}

struct State {
    progress: Option<Progress>,
    done: u64,
    total: u64,
}

/// What the library tells of its progress.
pub(super) struct Listener(Arc<Mutex<State>>);

impl Download {
    pub(super) fn new(name: &str) -> Self {
        let state = State { progress: Some(Progress::new("fetching", name)), done: 0, total: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn listener(&mut self) -> Listener {
        Listener(Arc::clone(&self.state))
    }

    /// An error when other bytes came than were announced.
    pub(super) fn finish(self) -> Result<(), String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(progress) = state.progress.take() {
            progress.finish();
        }
        let State { done, total, .. } = *state;
        if done == total { Ok(()) } else { Err(format!("{done} bytes came, {total} were announced")) }
    }
}

impl Listener {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let done = LoadProgress { bytes_done: state.done, bytes_total: state.total };
        if let Some(progress) = &mut state.progress {
            progress.update(done);
        }
    }
}

impl hf_hub::api::Progress for Listener {
    /// Called at the start and again at each attempt, which then counts what is already there.
    fn init(&mut self, size: usize, _: &str) {
        self.change(|state| (state.done, state.total) = (0, size as u64));
    }

    fn update(&mut self, size: usize) {
        self.change(|state| state.done += size as u64);
    }

    fn finish(&mut self) {}
}
