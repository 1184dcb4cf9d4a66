//! One step's rows, as the interpreters see them: no seats, no tickets.

use contract::{PageId, TokenId};

/// One token row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub token: TokenId,
    pub position: u32,
    /// Index into [`Batch::sequences`].
    pub sequence: u32,
}

/// A recurrent state that is copied while a batch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Save {
    /// Index into [`Batch::sequences`].
    pub sequence: usize,
    /// After so many of the sequence's rows in the batch, at least one.
    pub rows: usize,
    pub slot: usize,
}

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Whose recurrent state it goes on from.
    pub seat: usize,
    pub first_row: usize,
    pub rows: usize,
    /// Position of the first row.
    pub first_position: usize,
    /// Its pages are `Batch::pages[first_page..first_page + pages]`.
    pub first_page: usize,
    pub pages: usize,
}

/// All rows of a step. The vectors keep their memory between steps.
#[derive(Debug, Default)]
pub struct Batch {
    pub rows: Vec<Row>,
    pub sequences: Vec<Sequence>,
    pub pages: Vec<PageId>,
    /// Few: at most one for some thousand rows, and one for each sequence's end.
    pub saves: Vec<Save>,
}

impl Batch {
    pub fn with_capacity(rows: usize, sequences: usize, pages: usize) -> Self {
        Self {
            rows: Vec::with_capacity(rows),
            sequences: Vec::with_capacity(sequences),
            pages: Vec::with_capacity(pages),
            saves: Vec::new(),
        }
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.sequences.clear();
        self.pages.clear();
        self.saves.clear();
    }

    /// Adds a sequence's rows.
    pub fn push(&mut self, seat: usize, first_position: u32, tokens: &[TokenId], pages: &[PageId]) {
        let sequence = self.sequences.len() as u32;
        self.sequences.push(Sequence {
            seat,
            first_row: self.rows.len(),
            rows: tokens.len(),
            first_position: first_position as usize,
            first_page: self.pages.len(),
            pages: pages.len(),
        });
        let rows = tokens.iter().zip(first_position..);
        self.rows.extend(rows.map(|(&token, position)| Row { token, position, sequence }));
        self.pages.extend_from_slice(pages);
    }

    pub fn pages_of(&self, sequence: &Sequence) -> &[PageId] {
        &self.pages[sequence.first_page..sequence.first_page + sequence.pages]
    }
}
