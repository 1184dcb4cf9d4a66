//! A grammar seen from the engine: which tokens may come next.

use crate::TokenId;

/// The grammar cannot go on: it was given a token it forbids, or it met a limit of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// The state of one request's grammar. The engine asks for a mask before each constrained row and reports each token.
pub trait TokenConstraint: Send {
    /// Whether the next row must be masked. A grammar that waits for the end of reasoning says no until then.
    fn is_active(&self) -> bool;

    /// Sets the bit of every allowed token (`mask[t / 32] >> (t % 32) & 1`) and clears the rest.
    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<(), ConstraintError>;

    /// The one token that the host writes in the model's place next, such as the end of a spent thinking budget. While
    /// there is one, the constraint is active and its mask allows nothing else.
    fn forced(&self) -> Option<TokenId> {
        None
    }

    /// Takes a committed token; called for every token, active or not.
    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError>;
}
