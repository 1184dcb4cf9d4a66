//! Attention: the kernels that a card and a head size get, and the tensor maps that Hopper's prefill copies through.

use backend::BackendError;
use backend::ops::AttentionShape;
use contract::PAGE_TOKENS;
use kernels::Source;

use crate::compile::{Compiler, Kernel};
use crate::device::{Buffer, Device};
use crate::forward::{SPLIT, tile_tokens};
use crate::launch::{Args, HOPPER_SHARED_MAX, Shape};
use crate::seats::RunUpload;
use crate::tensor_map::{TensorMap, tensor_map};

/// Queries, keys and values of a layer, 128 bytes each.
const LAYER_MAPS: usize = 3;

/// How the kernel of a shape is launched: one block a multiprocessor.
#[derive(Clone, Copy)]
pub struct PrefillLaunch {
    pub source: Source,
    pub threads: u32,
    pub shared_bytes: u32,
    /// It reads through tensor maps and takes tiles by ticket.
    pub mapped: bool,
}

impl PrefillLaunch {
    pub fn new(arch: u32, shape: &AttentionShape) -> Self {
        // Keys and values of a page.
        let page_bytes = (2 * 64 * shape.head_dim * 2) as u32;
        // Warpgroup products and their operands' layout are Hopper's.
        if arch == 90 && matches!(shape.head_dim, 64 | 128 | 256) {
            let pages = if shape.head_dim <= 128 { 2 } else { 1 };
            // The tile's queries, two stages of a block's pages, and the barriers.
            let shared_bytes = (128 * shape.head_dim * 2) as u32 + 2 * pages * page_bytes + 128;
            return Self { source: kernels::ATTEND_PREFILL_SM90, threads: 384, shared_bytes, mapped: true };
        }
        let buffers = if shape.head_dim <= 128 { 2 } else { 1 };
        Self { source: kernels::ATTEND_PREFILL, threads: 256, shared_bytes: buffers * page_bytes, mapped: false }
    }
}

/// Earlier keys for each split of a prompt's tiles; as in `begin_step`.
const SPLIT_KEYS_MIN: usize = 2048;
const SPLITS_MAX: usize = 8;
/// Items of split tiles, in blocks a multiprocessor: what the buffers of their sums hold.
pub const SPLIT_WAVES_MAX: usize = 6;

/// Splits the tiles of prompts behind deep prefixes where there are too few of them to fill the card. `starts`: tokens
/// before each run. Gives how many items all tiles make, 0 where none is split.
pub fn split_prompts(
    runs: &mut [RunUpload],
    starts: &[usize],
    shape: &AttentionShape,
    multiprocessors: usize,
) -> usize {
    let tiles = |run: &RunUpload| (run.rows as usize).div_ceil(tile_tokens(shape)) * shape.kv_heads;
    let may_split = |start: usize| (start / SPLIT_KEYS_MIN).clamp(1, SPLITS_MAX);
    let (mut deep, mut shallow, mut most) = (0, 0, 1);
    for (run, &start) in runs.iter().zip(starts).filter(|(run, _)| run.rows > 1) {
        match may_split(start) {
            1 => shallow += tiles(run),
            splits => {
                deep += tiles(run);
                most = most.max(splits);
            }
        }
    }
    let fill = |splits: usize| {
        let items = deep * splits;
        items as f64 / items.next_multiple_of(multiprocessors) as f64
    };
    let mut best = 1;
    for splits in 2..=most {
        // A split costs a pass over its sums.
        if deep * splits + shallow <= SPLIT_WAVES_MAX * multiprocessors && fill(splits) > fill(best) * 1.08 {
            best = splits;
        }
    }
    if best == 1 {
        return 0;
    }
    let mut items = 0;
    for (run, &start) in runs.iter_mut().zip(starts).filter(|(run, _)| run.rows > 1) {
        let splits = may_split(start).min(best);
        run.derived[2] = splits as i32;
        items += tiles(run) * splits;
    }
    items
}

/// Rows of a decode step from which Hopper's kernel wins: below, its shared memory keeps it from starting early. Beside
/// prompts nothing starts early.
const MANY_ROWS: usize = 17;

/// Decode attention of one kind: as a step with prompts needs it, and with norm and rotation inside.
pub struct DecodeKernels {
    plain: Kernel,
    rope: Kernel,
    threads: u32,
    shared_bytes: u32,
    blocks_per_multiprocessor: u32,
}

impl DecodeKernels {
    /// `flags`: what the source has beside ROPE.
    fn compile(
        compiler: &mut Compiler<'_>,
        source: Source,
        flags: &[(&'static str, usize)],
        (threads, shared_bytes, blocks_per_multiprocessor): (u32, u32, u32),
    ) -> Result<Self, BackendError> {
        let mut kernel = |rope| {
            let kernel = compiler.kernel(source, &[&[("ROPE", rope)], flags].concat())?;
            kernel.allow_shared(shared_bytes)?;
            Ok::<_, BackendError>(kernel)
        };
        Ok(Self { plain: kernel(0)?, rope: kernel(1)?, threads, shared_bytes, blocks_per_multiprocessor })
    }

    /// `rope`: no other kernel has normed and rotated the rows.
    pub fn launch(&self, device: &Device, rope: bool, args: Args) -> Result<(), BackendError> {
        let blocks = device.multiprocessors * self.blocks_per_multiprocessor;
        let kernel = if rope { &self.rope } else { &self.plain };
        kernel.launch(device, Shape::new(blocks, self.threads).shared(self.shared_bytes), args)
    }
}

/// Decode attention by the number of rows; the results are the same to the bit.
pub struct Decode {
    few: DecodeKernels,
    many: DecodeKernels,
}

impl Decode {
    pub fn compile(compiler: &mut Compiler<'_>, shape: &AttentionShape) -> Result<Self, BackendError> {
        let hopper = compiler.target.arch == 90;
        // What large heads' rows alone wait for lies in shared memory, of which a multiprocessor then has one block's.
        let large = hopper && shape.head_dim > 128;
        let mut in_registers = |in_shared: bool| {
            let shared = if in_shared { SPLIT * 2 * shape.head_dim * 2 } else { 0 };
            let blocks = if in_shared { 1 } else { 4 };
            let flags = [("IN_SHARED", usize::from(in_shared))];
            DecodeKernels::compile(compiler, kernels::ATTEND_DECODE, &flags, (128, shared as u32, blocks))
        };
        let few = in_registers(large)?;
        let many = match hopper_ring(shape).filter(|_| hopper) {
            Some(ring) => {
                let flags = [("SLOTS", ring.slots), ("SUM_PARTS", ring.sum_parts)];
                let size = (RING_THREADS, ring.shared_bytes, 1);
                DecodeKernels::compile(compiler, kernels::ATTEND_DECODE_SM90, &flags, size)?
            }
            None => in_registers(false)?,
        };
        Ok(Self { few, many })
    }

    /// `alone`: no prompt is part of the step.
    pub fn of(&self, rows: usize, alone: bool) -> &DecodeKernels {
        if rows >= MANY_ROWS || !alone { &self.many } else { &self.few }
    }
}

/// Teams of a block of Hopper's decode attention, and its threads with those that copy.
const RING_TEAMS: usize = 2;
const RING_THREADS: u32 = 384;

/// Of Hopper's decode attention: keys or values of a page that a team has on their way, and the parts in which the sums of its
/// warps are added.
struct HopperRing {
    slots: usize,
    sum_parts: usize,
    shared_bytes: u32,
}

/// The largest ring that fits, up to all of a work item: more changed nothing.
fn hopper_ring(shape: &AttentionShape) -> Option<HopperRing> {
    let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    let fits = |(slots, sum_parts): (usize, usize)| {
        // Sums and maxima of four warps, and fresh heads.
        let team = (4 * group * (dim / sum_parts * 4 + 8) + (group + 2) * (dim + 8) * 2).next_multiple_of(16);
        // A slot has two barriers.
        let bytes = RING_TEAMS * (slots * (PAGE_TOKENS as usize * dim * 2 + 16) + team);
        (bytes <= HOPPER_SHARED_MAX).then_some(HopperRing { slots, sum_parts, shared_bytes: bytes as u32 })
    };
    [(2 * SPLIT / PAGE_TOKENS as usize, 1), (3, 1), (3, 2)].into_iter().find_map(fits)
}

/// The maps of every layer, where the kernel finds them.
pub struct TensorMaps(Buffer);

impl TensorMaps {
    /// `queries`: `[rows, heads, head_dim]`, with gates between the queries, and keys and values behind them; `kv`: a buffer of
    /// `pages` a layer.
    pub fn new(
        device: &Device,
        shape: &AttentionShape,
        (queries, rows): (u64, usize),
        kv: &[Buffer],
        pages: usize,
    ) -> Result<Self, BackendError> {
        let (dim, step) = (shape.head_dim, 1 + usize::from(shape.gated));
        let group = shape.heads / shape.kv_heads;
        let tiles = pages * shape.kv_heads;
        let mut maps = Vec::with_capacity(kv.len() * LAYER_MAPS);
        for layer in kv {
            maps.push(tensor_map(
                queries,
                &[(dim, 64), (shape.heads, group), (rows, tile_tokens(shape))],
                &[step * dim * 2, shape.mix_width() * 2],
            )?);
            // A page of a head is 64 rows of keys, then as many bytes of transposed values.
            maps.push(tensor_map(layer.pointer, &[(dim, 64), (tiles * 2 * 64, 64)], &[dim * 2])?);
            maps.push(tensor_map(layer.pointer, &[(64, 64), (tiles * 2 * dim, dim)], &[64 * 2])?);
        }
        Ok(Self(device.upload("tensor maps", &maps)?))
    }

    pub fn layer(&self, layer: usize) -> u64 {
        self.0.pointer + (layer * LAYER_MAPS * size_of::<TensorMap>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of (rows, tokens before them) on 132 multiprocessors: the splits of each, and the items.
    fn split(prompts: &[(i32, usize)]) -> (Vec<i32>, usize) {
        let shape = AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, gated: false };
        let mut runs: Vec<RunUpload> =
            prompts.iter().map(|&(rows, _)| RunUpload { rows, ..RunUpload::default() }).collect();
        let starts: Vec<usize> = prompts.iter().map(|prompt| prompt.1).collect();
        let items = split_prompts(&mut runs, &starts, &shape, 132);
        (runs.iter().map(|run| run.derived[2]).collect(), items)
    }

    /// Splits fill the multiprocessors' last wave, and leave alone what fills it already or has no keys to split.
    #[test]
    fn few_deep_tiles_are_split() {
        assert_eq!(split(&[(256, 100_000)]), (vec![2], 128));
        assert_eq!(split(&[(384, 100_000)]), (vec![4], 384));
        assert_eq!(split(&[(512, 100_000)]), (vec![0], 0));
        assert_eq!(split(&[(8192, 20_000)]), (vec![0], 0));
        assert_eq!(split(&[(256, 4095)]), (vec![0], 0));
        assert_eq!(split(&[(1, 9000), (256, 50_000), (40, 0)]), (vec![0, 2, 1], 144));
        assert_eq!(split(&[]), (vec![], 0));
    }
}
