//! Zeroed memory on cache-line boundaries.

use std::cell::UnsafeCell;

/// One cache line, which is also one 512-bit register.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes that start on a cache line. Writing through a shared reference is the caller's business (`ptr`).
pub(super) struct Buffer {
    lines: Box<[UnsafeCell<Line>]>,
}

// SAFETY: the contents are plain bytes; whoever writes through `ptr` promises that nobody else uses those bytes.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// At least `bytes` zero bytes.
    pub(super) fn zeroed(bytes: usize) -> Self {
        let lines = (0..bytes.div_ceil(64)).map(|_| UnsafeCell::new(Line([0; 64]))).collect();
        Self { lines }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len() * 64
    }

    /// The first byte; valid for `len` bytes of reads and writes as long as the buffer lives.
    pub(super) fn ptr(&self) -> *mut u8 {
        self.lines.as_ptr().cast::<u8>().cast_mut()
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `ptr` is valid for `len` bytes and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.len()) }
    }
}

/// A thread's working memory: it grows to what the largest operation needs and is then kept, so that steps allocate
/// nothing.
pub struct Scratch {
    buffer: Buffer,
}

impl Scratch {
    pub fn new() -> Self {
        Self { buffer: Buffer::zeroed(0) }
    }

    /// With so many bytes from the start.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { buffer: Buffer::zeroed(bytes) }
    }

    /// At least `bytes` bytes on a cache line, with whatever they held.
    pub(super) fn get(&mut self, bytes: usize) -> *mut u8 {
        if self.buffer.len() < bytes {
            self.buffer = Buffer::zeroed(bytes);
        }
        self.buffer.ptr()
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scratch of {} bytes", self.buffer.len())
    }
}
