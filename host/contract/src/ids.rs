//! Small numbers with a meaning.

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// Tokens in one KV page. Prefix hashes, state checkpoints and prefill cuts all fall on multiples of it.
pub const PAGE_TOKENS: u32 = 64;

/// A row of the backend's seat table: where one running sequence keeps its device state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seat(pub u16);

/// One KV page of [`PAGE_TOKENS`] tokens in the backend's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// A request's stable name towards a scheduling policy, from arrival until it is reported finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);
