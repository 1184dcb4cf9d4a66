//! Named weights in the formats that model files hold.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::blocks::random_rows;
use crate::fp8::SCALE_BLOCK;
use crate::rng::splitmix;

/// Storage formats. The byte layouts are those of the GGUF specification; see `docs/formats.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the field's own names")]
pub enum WeightType {
    F32,
    F16,
    BF16,
    /// One byte a value; [`Weight::scales`] has what to multiply with.
    F8_E4M3,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

impl WeightType {
    /// Elements in one block.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::F8_E4M3 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::IQ4_NL | Self::MXFP4 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::F8_E4M3 => 1,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
            Self::MXFP4 => 17,
        }
    }

    /// Bytes of a row of `cols` elements, which must be whole blocks.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if cols.is_multiple_of(self.block_len()) { Some(cols / self.block_len() * self.block_bytes()) } else { None }
    }
}

/// Bytes that live as long as whoever needs them: a mapped file, or memory.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// `None` when the range lies outside.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, range })
    }

    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(bytes), range }
    }

    pub fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

/// Bytes that are made when somebody first looks: a device that can make its own never does.
struct LazyRandom {
    random: RandomFill,
    count: usize,
    bytes: OnceLock<Vec<u8>>,
}

impl AsRef<[u8]> for LazyRandom {
    fn as_ref(&self) -> &[u8] {
        // bf16 by truncation instead of rounding: which random number it is does not matter.
        let bf16 = |i| ((self.random.value(i).to_bits() >> 16) as u16).to_le_bytes();
        self.bytes.get_or_init(|| (0..self.count as u64).flat_map(bf16).collect())
    }
}

/// Random weights: uniform in (-scale, scale), element `i` of SplitMix64's stream from `seed`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomFill {
    pub seed: u64,
    pub scale: f32,
}

impl RandomFill {
    fn value(&self, i: u64) -> f32 {
        ((splitmix(self.seed, i) >> 40) as f32 / 8_388_608.0 - 1.0) * self.scale
    }
}

/// Rows of random blocks that are not repetitions.
pub const RANDOM_PERIOD: usize = 256;

/// A matrix of `rows` outputs by `cols` inputs, row-major (`y = W x`); a vector has one row.
#[derive(Clone)]
pub struct Weight {
    pub name: Arc<str>,
    pub ty: WeightType,
    pub rows: usize,
    pub cols: usize,
    bytes: SharedBytes,
    /// Rows that `bytes` hold; more rows repeat them.
    stored_rows: usize,
    /// Set for dummy weights, so that a device may make them itself.
    pub random: Option<RandomFill>,
    /// `order[i]` is the stored row that is row `i`; files of the llama architecture interleave the rows of q and k.
    order: Option<Arc<[u32]>>,
    scales: Option<Arc<[f32]>>,
}

impl Weight {
    /// `None` when the bytes are not exactly `rows` whole rows.
    pub fn new(
        name: impl Into<Arc<str>>,
        ty: WeightType,
        rows: usize,
        cols: usize,
        bytes: SharedBytes,
    ) -> Option<Self> {
        let row_bytes = ty.row_bytes(cols)?;
        (row_bytes.checked_mul(rows)? == bytes.as_slice().len()).then(|| Self {
            name: name.into(),
            ty,
            rows,
            cols,
            bytes,
            stored_rows: rows,
            random: None,
            order: None,
            scales: None,
        })
    }

    /// Dummy weights in bf16.
    pub fn random(name: impl Into<Arc<str>>, rows: usize, cols: usize, random: RandomFill) -> Self {
        let count = rows * cols;
        let owner = Arc::new(LazyRandom { random, count, bytes: OnceLock::new() });
        let bytes = SharedBytes { owner, range: 0..count * 2 };
        Self {
            name: name.into(),
            ty: WeightType::BF16,
            rows,
            cols,
            bytes,
            stored_rows: rows,
            random: Some(random),
            order: None,
            scales: None,
        }
    }

    /// Dummy weights in a block format, of about `random.scale / sqrt(3)` standard deviation like those in bf16. One run
    /// of [`RANDOM_PERIOD`] rows is made and repeated. `None` for plain floats, and for columns that are not whole blocks.
    pub fn random_blocks(
        name: impl Into<Arc<str>>,
        ty: WeightType,
        (rows, cols): (usize, usize),
        random: RandomFill,
    ) -> Option<Self> {
        let stored = rows.min(RANDOM_PERIOD);
        let bytes = random_rows(ty, (stored, cols), random.seed, random.scale / 3f32.sqrt())?;
        let weight = Self::new(name, ty, stored, cols, SharedBytes::from_vec(bytes))?;
        Some(Self { rows, ..weight })
    }

    /// After how many rows this weight repeats itself: all of them but for random blocks.
    pub fn period(&self) -> usize {
        self.stored_rows
    }

    /// The same weight with its rows in another order; `None` unless `order` is a permutation of the rows.
    pub fn with_row_order(mut self, order: Arc<[u32]>) -> Option<Self> {
        let mut seen = vec![false; self.rows];
        for &row in order.iter() {
            if std::mem::replace(seen.get_mut(row as usize)?, true) {
                return None;
            }
        }
        if order.len() != self.rows || self.scales.is_some() {
            return None;
        }
        self.order = Some(order);
        Some(self)
    }

    /// The block scales of an FP8 weight, `[rows / 128, cols / 128]` rounded up; `None` for another type or count.
    pub fn with_scales(mut self, scales: Arc<[f32]>) -> Option<Self> {
        let expected = self.rows.div_ceil(SCALE_BLOCK) * self.cols.div_ceil(SCALE_BLOCK);
        if self.ty != WeightType::F8_E4M3 || self.order.is_some() || scales.len() != expected {
            return None;
        }
        self.scales = Some(scales);
        Some(self)
    }

    pub fn scales(&self) -> Option<&[f32]> {
        self.scales.as_deref()
    }

    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// The stored bytes of row `i`.
    pub fn row(&self, i: usize) -> &[u8] {
        let stored = self.order.as_ref().map_or(i, |order| order[i] as usize) % self.stored_rows;
        let len = self.row_bytes();
        &self.bytes.as_slice()[stored * len..(stored + 1) * len]
    }

    pub fn size_bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} [{}, {}]", self.name, self.ty, self.rows, self.cols)
    }
}

/// Index into [`crate::ops::ModelSpec::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub u32);
