//! The step loop: one thread, one mailbox, token ids only.
