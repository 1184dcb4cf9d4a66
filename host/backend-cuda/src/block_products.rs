//! Products of weights in GGUF's block formats: few rows by a kernel of their own, many through a panel in 16 bits.

use std::collections::{BTreeSet, HashMap};

use backend::BackendError;
use backend::ops::{BlockOp, ModelSpec};
use backend::weights::{Weight, WeightId};

use crate::blas::{Call, Operands, Product, library_rows};
use crate::compile::{Compiler, Kernel};
use crate::delta::gates_width;
use crate::device::{Buffer, Device, fault};
use crate::forward::{DeviceOp, Forward};
use crate::launch::{Args, Shape};
use crate::packed::{Format, TILE_ROWS, UNIT_COLS};
use crate::products::{Epilogue, FEW_ROWS_MAX, Matrix, TILES, tile_of};

/// Parts of one launch; the kernel's PARTS_MAX.
const PARTS_MAX: usize = 4;
/// The largest panel of 16-bit weights that many rows are multiplied with: a feed-forward matrix of 9B at once.
const PANEL_BYTES_MAX: usize = 256 << 20;
/// Warps of a block that turns weights to 16 bits, a unit each.
const DEQUANTIZE_WARPS: usize = 8;

/// Some rows of a matrix in one format, tile by tile.
pub struct Part {
    pub units: Buffer,
    pub format: Format,
    /// Outputs: of a tile 16, or 8 where it holds gate and up.
    pub rows: usize,
    /// Where they begin among the matrix's outputs.
    pub column: usize,
}

/// A matrix `[n, k]` of parts one below the other.
pub struct Packed {
    pub parts: Vec<Part>,
    /// Rows 0 to 7 of a tile are gate, 8 to 15 the same rows of up.
    pub gate_up: bool,
}

impl Packed {
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.units.bytes).sum()
    }

    fn tile_outputs(&self) -> usize {
        if self.gate_up { TILE_ROWS / 2 } else { TILE_ROWS }
    }
}

/// One compiled form of the few-rows kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Use {
    pub formats: [Format; 2],
    pub mode: usize,
    /// Rows that do not end with a unit.
    pub tail: bool,
}

impl Use {
    fn new(formats: [Format; 2], epilogue: Epilogue, k: usize) -> Self {
        Self { formats, mode: epilogue as usize, tail: !k.is_multiple_of(UNIT_COLS) }
    }
}

/// What a model's block formats need of kernels.
#[derive(Default, Debug)]
pub struct Uses {
    pub few_rows: BTreeSet<Use>,
    pub formats: BTreeSet<Format>,
    /// One or two rows must have the bits of more: see [`crate::CudaOptions::batch_invariant`].
    pub invariant: bool,
}

/// The formats of weights that are to be one matrix; `None`: they are plain floats.
///
/// # Errors
/// [`BackendError::Weight`] when only some are in a block format, or one in a format without a kernel.
pub fn formats_of(weights: &[&Weight]) -> Result<Option<Vec<Format>>, BackendError> {
    let formats: Vec<_> = weights.iter().map(|weight| Format::of(weight.ty)).collect();
    let Some(first) = formats.iter().position(Option::is_some) else { return Ok(None) };
    match formats.iter().position(Option::is_none) {
        None => Ok(Some(formats.into_iter().flatten().collect())),
        Some(odd) => Err(BackendError::Weight {
            name: weights[odd].name.to_string(),
            reason: format!(
                "{:?} beside {:?} of `{}` in one product on CUDA: all its parts must be in block formats; use `--device cpu`",
                weights[odd].ty, weights[first].ty, weights[first].name
            ),
        }),
    }
}

/// Whether the inputs of the delta rule, beta and alpha last, are one product: all in block formats.
pub fn one_product(spec: &ModelSpec, [qkv, z, beta, alpha]: [WeightId; 4]) -> Result<bool, BackendError> {
    let formats = |ids: [WeightId; 2]| formats_of(&ids.map(|id| spec.weight(id)));
    let heads = spec.weight(beta).rows;
    Ok(formats([qkv, z])?.is_some() && formats([beta, alpha])?.is_some() && 2 * heads == gates_width(heads))
}

/// Whether gate and up share tiles.
pub fn share_tiles(formats: &[Format]) -> bool {
    formats[0] == formats[1]
}

/// Parts in groups of at most two formats and [`PARTS_MAX`] parts: a launch each.
fn launches(formats: impl Iterator<Item = Format>) -> Vec<([Format; 2], Vec<usize>)> {
    let mut groups: Vec<(Vec<Format>, Vec<usize>)> = Vec::new();
    for (index, format) in formats.enumerate() {
        let fits = |(kinds, parts): &(Vec<Format>, Vec<usize>)| {
            parts.len() < PARTS_MAX && (kinds.contains(&format) || kinds.len() < 2)
        };
        match groups.last_mut().filter(|group| fits(group)) {
            Some((kinds, parts)) => {
                if !kinds.contains(&format) {
                    kinds.push(format);
                }
                parts.push(index);
            }
            None => groups.push((vec![format], vec![index])),
        }
    }
    groups.into_iter().map(|(kinds, parts)| ([kinds[0], kinds[kinds.len() - 1]], parts)).collect()
}

impl Uses {
    /// What the model's products and its embedding use. A mixed matrix is an error here, before anything is loaded.
    pub fn of(spec: &ModelSpec) -> Result<Self, BackendError> {
        let mut uses = Self::default();
        for op in &spec.ops {
            match *op {
                BlockOp::Embed { table } => uses.formats.extend(Format::of(spec.weight(table).ty)),
                BlockOp::NormQkv { q, k, v, .. } => uses.add(spec, &[q, k, v], Epilogue::Store)?,
                BlockOp::NormDelta { qkv, z, beta, alpha, .. } if one_product(spec, [qkv, z, beta, alpha])? => {
                    uses.add(spec, &[qkv, z, beta, alpha], Epilogue::Store)?;
                }
                BlockOp::NormDelta { qkv, z, beta, alpha, .. } => {
                    uses.add(spec, &[qkv, z], Epilogue::Store)?;
                    uses.add(spec, &[beta, alpha], Epilogue::Store)?;
                }
                BlockOp::OutResidual { out } => uses.add(spec, &[out], Epilogue::AddResidual)?,
                BlockOp::NormGateUp { gate, up, .. } => uses.add(spec, &[gate, up], Epilogue::SiluMul)?,
                BlockOp::DownResidual { down } => uses.add(spec, &[down], Epilogue::AddResidual)?,
                BlockOp::Head { weight, .. } => uses.add(spec, &[weight], Epilogue::StoreF32)?,
                _ => {}
            }
        }
        Ok(uses)
    }

    fn add(&mut self, spec: &ModelSpec, ids: &[WeightId], epilogue: Epilogue) -> Result<(), BackendError> {
        let weights: Vec<&Weight> = ids.iter().map(|&id| spec.weight(id)).collect();
        let Some(mut formats) = formats_of(&weights)? else { return Ok(()) };
        let mut epilogue = epilogue;
        if epilogue == Epilogue::SiluMul {
            match share_tiles(&formats) {
                true => formats.truncate(1),
                false => epilogue = Epilogue::Store,
            }
        }
        self.formats.extend(&formats);
        let tail = !weights[0].cols.is_multiple_of(UNIT_COLS);
        let uses = launches(formats.into_iter());
        self.few_rows.extend(uses.into_iter().map(|(formats, _)| Use { formats, mode: epilogue as usize, tail }));
        Ok(())
    }

    /// Every format once, and every form of the most common: what is compiled for cards that are not there.
    pub fn samples() -> Self {
        let mut few_rows: BTreeSet<Use> = Format::ALL
            .into_iter()
            .map(|format| Use { formats: [format; 2], mode: 0, tail: format < Format::Q4_K })
            .collect();
        few_rows.extend((1..4).map(|mode| Use { formats: [Format::Q4_K; 2], mode, tail: false }));
        few_rows.insert(Use { formats: [Format::Q4_K, Format::Q6_K], mode: 0, tail: false });
        Self { few_rows, formats: Format::ALL.into_iter().collect(), invariant: false }
    }
}

/// Rows of which `x` is brought to shared memory before its product, and normed there. More take longer than they save.
pub const NEAR_ROWS_MAX: usize = 2;
/// The widest row that is normed so; PIECES and NORM_WARPS of `near.cuh`.
pub const NEAR_NORM_MAX: usize = 10_240;
/// Blocks of clusters larger than two that a card surely runs at once: some of its groups of multiprocessors are smaller.
const CLUSTERED_BLOCKS_MAX: usize = 96;

/// Bytes of a unit of 256 k of a row in whole numbers, beside the words that are multiplied: `integer.cuh`.
const WHOLE_SUMS_BYTES: usize = 48;
/// Its words, once for formats whose scales cover 32 k and once for those whose scales cover 16.
const WHOLE_WORDS_BYTES: usize = 512;

/// How a block's warps take their units. How units are dealt out follows from it, and so does the order of a sum.
#[derive(Clone, Copy)]
struct Ring {
    warps: usize,
    /// Blocks that share a multiprocessor.
    blocks: usize,
    /// Units that each warp has on the way.
    depth: usize,
    /// Blocks may be clusters, and `x` may be near.
    hopper: bool,
    /// Shared memory of the largest block, in bytes.
    shared_max: usize,
    /// Products in whole numbers: `x` is near.
    whole: bool,
}

impl Ring {
    fn new(arch: u32) -> Self {
        let (warps, blocks, depth, shared_kib) = match arch {
            // Copies are not asynchronous.
            ..80 => (4, 3, 1, 64),
            80 => (12, 1, 2, 163),
            90 | 100 => (16, 1, 2, 227),
            _ => (8, 1, 2, 99),
        };
        Self { warps, blocks, depth, hopper: arch >= 90, shared_max: shared_kib << 10, whole: false }
    }

    /// For products in whole numbers, whose loop is short: a third unit a warp, where there is room.
    fn whole(self) -> Self {
        let depth = if self.shared_max > 200_000 { 3 } else { self.depth };
        Self { depth, whole: true, ..self }
    }

    fn shared_bytes(self, formats: [Format; 2]) -> usize {
        let slot = formats[0].unit_bytes().max(formats[1].unit_bytes());
        let table = if formats.iter().any(|format| format.has_table()) { 256 * 32 * 4 } else { 0 };
        // The decoded scales of a unit, or places for a norm's sums.
        let scales = if self.whole { 64 } else { 1024 };
        // The ring, and a barrier for each place.
        table + self.warps * (self.depth * slot + scales + (self.depth * 8).next_multiple_of(16))
    }

    /// Rows of `x`, each behind some padding, and for two rows at a time the sums of 32; or what they are in whole numbers.
    fn near_bytes(self, formats: [Format; 2], (m, k): (usize, usize)) -> usize {
        let units = k.div_ceil(UNIT_COLS);
        if self.whole {
            let halves = formats.map(|format| format == Format::Q6_K);
            let words = usize::from(halves.contains(&false)) + usize::from(halves.contains(&true));
            return m * units * (words * WHOLE_WORDS_BYTES + WHOLE_SUMS_BYTES);
        }
        m * ((2 * k).next_multiple_of(128) + 64) + units * 4 * m.div_ceil(2) * 16
    }

    /// Shared memory of a block that has `m` rows of `k` in it and the weight of the norm that they lack, where they do;
    /// `None`: they stay where they are.
    fn near_shared(self, formats: [Format; 2], (m, k): (usize, usize), norms: bool) -> Option<usize> {
        let norm = if norms && self.whole { 2 * k } else { 0 };
        let bytes = self.shared_bytes(formats) + self.near_bytes(formats, (m, k)) + norm;
        (self.hopper && m <= NEAR_ROWS_MAX && bytes <= self.shared_max).then_some(bytes)
    }

    /// Blocks that share their tiles, so that all have about as many; no more than help.
    fn cluster(self, tiles: usize, multiprocessors: usize) -> usize {
        let turns = |cluster: usize| tiles.div_ceil((multiprocessors / cluster).max(1)) as f64 / cluster as f64;
        let allowed = |cluster: usize| cluster < 4 || tiles * cluster <= CLUSTERED_BLOCKS_MAX;
        match self.hopper {
            true => [1, 2, 4, 8]
                .into_iter()
                .filter(|&c| allowed(c))
                .min_by(|&a, &b| turns(a).total_cmp(&turns(b)))
                .unwrap_or(1),
            false => 1,
        }
    }
}

/// The forms for a product's formats and epilogue.
struct FewRows {
    /// By token tiles, for rows in eights.
    eights: [Kernel; 2],
    /// For rows one after the other, which attention and the delta rule leave to what adds to the residual stream.
    plain: Option<[Kernel; 2]>,
    near: Option<Near>,
}

/// Rows of a product's `x`.
#[derive(Clone, Copy)]
pub struct Rows {
    pub pointer: u64,
    /// As `row_place` of the prelude finds them: eight rows, 32 columns of each side by side.
    pub eights: bool,
}

impl From<u64> for Rows {
    fn from(pointer: u64) -> Self {
        Self { pointer, eights: false }
    }
}

/// Whether few rows between the feed-forward products are in eights: all of their weights have block formats.
pub fn act_in_eights(ops: &[DeviceOp]) -> bool {
    ops.iter().all(|op| match op {
        DeviceOp::NormGateUp { weight, .. } | DeviceOp::DownResidual { weight } => matches!(weight, Matrix::Packed(_)),
        _ => true,
    })
}

/// For a row that is brought to shared memory, and for more: what adds to the residual stream takes them as they are, the
/// others norm its rows.
struct Near {
    ring: Ring,
    kernels: [Kernel; 2],
}

fn near_norms(mode: usize) -> bool {
    mode != Epilogue::AddResidual as usize
}

pub struct BlockKernels {
    ring: Ring,
    few_rows: HashMap<Use, FewRows>,
    dequantize: HashMap<Format, Kernel>,
    embed: HashMap<Format, Kernel>,
}

impl BlockKernels {
    pub fn compile(compiler: &mut Compiler<'_>, uses: &Uses) -> Result<Self, BackendError> {
        let ring = Ring::new(compiler.target.arch);
        let mut few_rows = HashMap::new();
        for &asked in &uses.few_rows {
            // Whole numbers have sums of their own; other forms of one row those of more.
            let whole = asked.formats.iter().all(|format| format.is_k());
            let may_be_near = ring.hopper && !(whole && uses.invariant);
            let near_ring = if whole { ring.whole() } else { ring };
            let mut kernel = |ring: Ring, tiles: usize, near: usize, one: bool, eights: bool| {
                let flags = [
                    ("NT", tiles),
                    ("TYPE0", asked.formats[0] as usize),
                    ("TYPE1", asked.formats[1] as usize),
                    ("MODE", asked.mode),
                    ("TAIL", usize::from(asked.tail)),
                    ("NEAR", near),
                    ("ONE", usize::from(one)),
                    ("INTEGER", usize::from(ring.whole)),
                    ("EIGHTS", usize::from(eights)),
                    ("DEPTH", ring.depth),
                    ("WARPS", ring.warps),
                    ("BLOCKS", ring.blocks),
                ];
                let kernel = compiler.kernel(kernels::FEW_ROWS_PACKED, &flags)?;
                let most = if near > 0 { ring.shared_max } else { ring.shared_bytes(asked.formats) };
                kernel.allow_shared(most as u32)?;
                Ok::<_, BackendError>(kernel)
            };
            let mut far = |eights: bool| {
                Ok::<_, BackendError>([
                    kernel(ring, TILES[0], 0, false, eights)?,
                    kernel(ring, TILES[1], 0, false, eights)?,
                ])
            };
            let eights = far(true)?;
            let plain = if asked.mode == Epilogue::AddResidual as usize { Some(far(false)?) } else { None };
            let form = 1 + usize::from(near_norms(asked.mode));
            let near = match may_be_near {
                true => Some(Near {
                    ring: near_ring,
                    kernels: [
                        kernel(near_ring, TILES[0], form, true, false)?,
                        kernel(near_ring, TILES[0], form, false, false)?,
                    ],
                }),
                false => None,
            };
            few_rows.insert(asked, FewRows { eights, plain, near });
        }
        let mut all = |embed: usize| {
            let mut kernel = |format: Format| {
                compiler.kernel(kernels::DEQUANTIZE_PACKED, &[("TYPE0", format as usize), ("EMBED", embed)])
            };
            uses.formats.iter().map(|&format| Ok((format, kernel(format)?))).collect::<Result<_, BackendError>>()
        };
        Ok(Self { ring, few_rows, dequantize: all(0)?, embed: all(1)? })
    }

    fn few_rows(&self, asked: Use) -> Result<&FewRows, BackendError> {
        self.few_rows.get(&asked).ok_or_else(|| fault("a product", format!("{asked:?} was not compiled")))
    }
}

impl FewRows {
    /// The form for `m` rows that lie in shared memory, how it takes units, and its shared memory; `None`: they stay where
    /// they are.
    fn near(&self, asked: Use, (m, k): (usize, usize)) -> Option<(&Kernel, Ring, usize)> {
        let near = self.near.as_ref()?;
        let shared = near.ring.near_shared(asked.formats, (m, k), near_norms(asked.mode))?;
        Some((&near.kernels[usize::from(m > 1)], near.ring, shared))
    }
}

/// Room for the weights of the product at hand in 16 bits; `None` where a model has none in block formats.
pub fn panel(device: &Device, spec: &ModelSpec) -> Result<Option<Buffer>, BackendError> {
    let packed = spec.weights.iter().filter(|weight| Format::of(weight.ty).is_some());
    // Two matrices may be one below the other.
    let Some(largest) = packed.map(|weight| 2 * weight.rows * weight.cols * 2).max() else { return Ok(None) };
    device.alloc("weights in 16 bits", largest.min(PANEL_BYTES_MAX)).map(Some)
}

impl Forward<'_> {
    /// `h = table[token]`
    pub(crate) fn embed_packed(&self, table: &Packed, rows: usize) -> Result<(), BackendError> {
        let part = &table.parts[0];
        let args = Args::default()
            .pointer(self.work.h.pointer)
            .pointer(part.units.pointer)
            .pointer(self.work.row_token.pointer)
            .int(self.model.hidden);
        let kernel = self.block_kernel(&self.kernels.products.blocks.embed, part.format)?;
        kernel.launch(self.device, Shape::new(rows as u32, (DEQUANTIZE_WARPS * 32) as u32), args)
    }

    fn block_kernel<'k>(&self, by: &'k HashMap<Format, Kernel>, format: Format) -> Result<&'k Kernel, BackendError> {
        by.get(&format).ok_or_else(|| fault("a product", format!("{format:?} was not compiled")))
    }

    /// `(rows, n, k)` as for every product.
    pub(crate) fn packed_product(
        &mut self,
        epilogue: Epilogue,
        out: u64,
        x: Rows,
        packed: &Packed,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let few = m <= FEW_ROWS_MAX;
        // Gate and up in different formats, or of many rows, are activated behind their product.
        if epilogue == Epilogue::SiluMul && !(few && packed.gate_up) {
            let both = self.work.gate_up.pointer;
            match few {
                true => self.few_rows_packed(Epilogue::Store, both, x, None, packed, (m, 2 * n, k))?,
                false => self.library_packed((Epilogue::Store, 2 * n), both, x.pointer, packed, (m, n, k))?,
            }
            return self.activate(out, 0, (m, n));
        }
        match few {
            true => self.few_rows_packed(epilogue, out, x, None, packed, (m, n, k)),
            false => self.library_packed((epilogue, n), out, x.pointer, packed, (m, n, k)),
        }
    }

    /// A product of rows of the residual stream that norms them itself; false: the rows are to be normed before.
    pub(crate) fn norming_product(
        &self,
        epilogue: Epilogue,
        out: u64,
        norm: &Buffer,
        packed: &Packed,
        (m, n, k): (usize, usize, usize),
    ) -> Result<bool, BackendError> {
        if k > NEAR_NORM_MAX || (epilogue == Epilogue::SiluMul && !packed.gate_up) {
            return Ok(false);
        }
        for (formats, _) in launches(packed.parts.iter().map(|part| part.format)) {
            let asked = Use::new(formats, epilogue, k);
            if self.kernels.products.blocks.few_rows(asked)?.near(asked, (m, k)).is_none() {
                return Ok(false);
            }
        }
        self.few_rows_packed(epilogue, out, self.work.h.pointer.into(), Some(norm), packed, (m, n, k))?;
        Ok(true)
    }

    /// Up to [`FEW_ROWS_MAX`] rows; `norm`: what the rows still lack.
    fn few_rows_packed(
        &self,
        epilogue: Epilogue,
        out: u64,
        x: Rows,
        norm: Option<&Buffer>,
        packed: &Packed,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let kernels = &self.kernels.products.blocks;
        for (formats, parts) in launches(packed.parts.iter().map(|part| part.format)) {
            let asked = Use::new(formats, epilogue, k);
            let forms = kernels.few_rows(asked)?;
            let (mut words, mut end) = (Vec::with_capacity(3 * PARTS_MAX), 0);
            for index in 0..PARTS_MAX {
                let part = parts.get(index).map(|&part| &packed.parts[part]);
                end += part.map_or(0, |part| part.rows.div_ceil(packed.tile_outputs()));
                let (pointer, rows, column) =
                    part.map_or((0, 0, 0), |part| (part.units.pointer, part.rows, part.column));
                let kind = part.is_some_and(|part| part.format != formats[0]);
                words.extend([pointer, end as u64 | (rows as u64) << 32, column as u64 | u64::from(kind) << 32]);
            }
            let far = if x.eights { Some(&forms.eights) } else { forms.plain.as_ref() };
            let far = far.map(|far| (&far[tile_of(m)], kernels.ring, kernels.ring.shared_bytes(formats)));
            let near = forms.near(asked, (m, k)).filter(|_| norm.is_some() == near_norms(asked.mode));
            let Some((kernel, ring, shared)) = near.or(far) else {
                return Err(fault("a product", format!("{asked:?} was not compiled for rows one after the other")));
            };
            let cluster = ring.cluster(end, self.device.multiprocessors as usize);
            let resident = ring.blocks.min(self.device.shared_per_multiprocessor as usize / (shared + 1024)).max(1);
            let blocks = (end * cluster).min(self.device.multiprocessors as usize * resident / cluster * cluster);
            let args = Args::default()
                .pointer(out)
                .pointer(x.pointer)
                .words(&words)
                .int(m)
                .int(n)
                .int(k)
                .pointer(norm.map_or(0, |norm| norm.pointer))
                .float(self.model.eps)
                .int(usize::from(if epilogue == Epilogue::SiluMul { self.model.act_in_eights } else { x.eights }));
            let shape = Shape::new(blocks as u32, (ring.warps * 32) as u32).shared(shared as u32);
            kernel.launch(self.device, shape.cluster(cluster as u32), args)?;
        }
        Ok(())
    }

    /// Through cuBLASLt, a panel of weights at a time. `out` has rows of `width` values.
    fn library_packed(
        &mut self,
        (epilogue, width): (Epilogue, usize),
        out: u64,
        x: u64,
        packed: &Packed,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let Some(panel) = &self.model.panel else {
            return Err(fault("a product of many rows", "no panel was allocated"));
        };
        let outputs = packed.tile_outputs();
        let size = if epilogue == Epilogue::StoreF32 { 4 } else { 2 };
        let tiles_max = panel.bytes / (TILE_ROWS * k * 2);
        for part in &packed.parts {
            let tiles = part.rows.div_ceil(outputs);
            for first in (0..tiles).step_by(tiles_max.max(1)) {
                let count = tiles_max.max(1).min(tiles - first);
                let rows = (count * outputs).min(part.rows - first * outputs);
                // The second halves of tiles of gate and up are rows of up, which go behind those of gate.
                let low = if packed.gate_up { rows } else { TILE_ROWS / 2 };
                let args = Args::default()
                    .pointer(panel.pointer)
                    .pointer(part.units.pointer + (first * part.format.tile_bytes(k)) as u64)
                    .int(count)
                    .int(rows)
                    .int(outputs)
                    .int(low)
                    .int(k);
                let kernel = self.block_kernel(&self.kernels.products.blocks.dequantize, part.format)?;
                let blocks = (count * k.div_ceil(UNIT_COLS)).div_ceil(DEQUANTIZE_WARPS) as u32;
                kernel.launch(self.device, Shape::new(blocks, (DEQUANTIZE_WARPS * 32) as u32), args)?;
                let product = Product {
                    m: library_rows(m),
                    n: rows,
                    k,
                    add: epilogue == Epilogue::AddResidual,
                    f32_out: epilogue == Epilogue::StoreF32,
                    operands: Operands::Half,
                    width,
                };
                let mut column = part.column + first * outputs;
                for half in 0..if packed.gate_up { 2 } else { 1 } {
                    let w = panel.pointer + (half * rows * k * 2) as u64;
                    let call = Call { out: out + (column * size) as u64, x, w, x_scales: 0, w_scales: 0 };
                    self.blas.run(self.device, product, call)?;
                    column += n;
                }
            }
        }
        Ok(())
    }
}
