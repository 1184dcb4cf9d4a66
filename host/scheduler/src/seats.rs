//! Which seats are free. A seat that was left while steps were in flight is given out again only after them.

use std::collections::VecDeque;

use contract::Seat;

pub(crate) struct Seats {
    free: Vec<Seat>,
    /// Seat, and the last step that was launched when it was left.
    cooling: VecDeque<(Seat, u64)>,
    /// Left since the engine last asked.
    released: Vec<Seat>,
}

impl Seats {
    pub fn new(seats: u16) -> Self {
        Self { free: (0..seats).rev().map(Seat).collect(), cooling: VecDeque::new(), released: Vec::new() }
    }

    pub fn take(&mut self) -> Option<Seat> {
        self.free.pop()
    }

    /// `launched`: steps launched so far; `committed`: steps committed so far.
    pub fn leave(&mut self, seat: Seat, launched: u64, committed: u64) {
        self.released.push(seat);
        if launched == committed {
            self.free.push(seat);
        } else {
            self.cooling.push_back((seat, launched));
        }
    }

    pub fn cool(&mut self, committed: u64) {
        while let Some(&(seat, until)) = self.cooling.front()
            && until <= committed
        {
            self.cooling.pop_front();
            self.free.push(seat);
        }
    }

    pub fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Seats that nobody sits on.
    pub fn empty_count(&self) -> usize {
        self.free.len() + self.cooling.len()
    }

    /// Moves the seats that were left since the last call to `into`.
    pub fn take_released(&mut self, into: &mut Vec<Seat>) {
        into.append(&mut self.released);
    }
}
