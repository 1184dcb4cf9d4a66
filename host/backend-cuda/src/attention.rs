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
const SPLITS_MAX: usize = 16;
/// Items of split tiles, in blocks a multiprocessor: what the buffers of their sums hold.
pub const SPLIT_WAVES_MAX: usize = 6;

/// What a tile's part costs beside its keys: its queries, its sums, and the ring that must fill. In keys, like all that is
/// compared here; a block takes 128 in 1.85 us.
const PART_KEYS: usize = 192;
/// What the merge costs, and for each part 128 KB on their way through memory.
const MERGE_KEYS: usize = 256;
const MERGE_PART_KEYS: f64 = 2.5;

/// How often deep tiles are split: `splits` times, and the last `more` once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Splits {
    splits: usize,
    more: usize,
}

impl Splits {
    /// Of so many parts of `tiles` tiles, as equal as can be.
    fn of(parts: usize, tiles: usize) -> Self {
        Self { splits: parts / tiles, more: parts % tiles }
    }

    fn most(self) -> usize {
        self.splits + usize::from(self.more > 0)
    }

    /// Keys one after the other until all tiles of `keys` are done, when whoever is free takes the next part, the larger ones
    /// first.
    fn cost(self, tiles: usize, keys: usize, multiprocessors: usize) -> f64 {
        let part = |splits: usize| (keys / splits.max(1) + PART_KEYS) as f64;
        let (large, mut small) = ((tiles - self.more) * self.splits, self.more * (self.splits + 1));
        // Those that have had a part more than the others, and the others: how many, and when they are free.
        let (turns, ahead) = (large / multiprocessors, large % multiprocessors);
        let at = |turns: usize| turns as f64 * part(self.splits);
        let mut groups = [(multiprocessors - ahead, at(turns)), (ahead, at(turns + 1))];
        let mut end = if ahead > 0 { at(turns + 1) } else { at(turns) };
        while small > 0 {
            let first = usize::from(groups[1].0 > 0 && groups[1].1 < groups[0].1);
            groups[first].1 += part(self.splits + 1);
            end = end.max(groups[first].1);
            small -= small.min(groups[first].0);
        }
        let parts = tiles * self.splits + self.more;
        let merge = if self.most() > 1 { MERGE_KEYS as f64 + MERGE_PART_KEYS * parts as f64 } else { 0.0 };
        end + merge
    }
}

/// Splits the tiles of prompts behind deep prefixes, so that all multiprocessors are done at about the same time. `starts`:
/// tokens before each run. Gives how many items all tiles make, 0 where none is split.
pub fn split_prompts(
    runs: &mut [RunUpload],
    starts: &[usize],
    shape: &AttentionShape,
    multiprocessors: usize,
) -> usize {
    let tiles = |run: &RunUpload| (run.rows as usize).div_ceil(tile_tokens(shape)) * shape.kv_heads;
    let may_split = |start: usize| (start / SPLIT_KEYS_MIN).clamp(1, SPLITS_MAX);
    let (mut deep, mut shallow, mut keys) = (0, 0, 0);
    for (run, &start) in runs.iter().zip(starts).filter(|(run, _)| run.rows > 1) {
        if may_split(start) == 1 {
            shallow += tiles(run);
        } else {
            deep += tiles(run);
            keys = keys.max(start);
        }
    }
    if deep == 0 {
        return 0;
    }
    let even = (1..=SPLITS_MAX).map(|splits| splits * deep);
    let waves = (1..=SPLIT_WAVES_MAX).map(|waves| waves * multiprocessors).filter(|&parts| parts > deep);
    let best = even
        .chain(waves)
        .filter(|parts| parts + shallow <= SPLIT_WAVES_MAX * multiprocessors)
        .map(|parts| Splits::of(parts, deep))
        .filter(|splits| splits.most() <= may_split(keys))
        .map(|splits| (splits, splits.cost(deep, keys, multiprocessors)))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let Some((Splits { splits, mut more }, _)) = best.filter(|best| best.0.most() > 1) else { return 0 };
    let mut items = 0;
    for (run, &start) in runs.iter_mut().zip(starts).filter(|(run, _)| run.rows > 1) {
        let (tiles, allowed) = (tiles(run), may_split(start));
        let of_run = if allowed > 1 { splits.min(allowed) } else { 1 };
        run.derived[2] = of_run as i32;
        items += tiles * of_run;
        if of_run == splits && splits < allowed {
            run.more = more.min(tiles) as i32;
            more -= more.min(tiles);
            items += run.more as usize;
        }
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

    /// Runs of (rows, tokens before them) on 132 multiprocessors: how often the tiles of each are split, how many of them once
    /// more, and the items.
    fn split(prompts: &[(i32, usize)]) -> (Vec<(i32, i32)>, usize) {
        let shape = AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, gated: false };
        let mut runs: Vec<RunUpload> =
            prompts.iter().map(|&(rows, _)| RunUpload { rows, ..RunUpload::default() }).collect();
        let starts: Vec<usize> = prompts.iter().map(|prompt| prompt.1).collect();
        let items = split_prompts(&mut runs, &starts, &shape, 132);
        (runs.iter().map(|run| (run.derived[2], run.more)).collect(), items)
    }

    /// Splits let all multiprocessors end together, and leave alone what does so already or has no keys to split.
    #[test]
    fn deep_tiles_fill_the_card() {
        assert_eq!(split(&[(256, 100_000)]), (vec![(2, 0)], 128));
        assert_eq!(split(&[(192, 96_000)]), (vec![(5, 24)], 264));
        assert_eq!(split(&[(480, 36_000)]), (vec![(3, 36)], 396));
        assert_eq!(split(&[(512, 100_000)]), (vec![(0, 0)], 0));
        assert_eq!(split(&[(8192, 20_000)]), (vec![(0, 0)], 0));
        assert_eq!(split(&[(256, 4095)]), (vec![(0, 0)], 0));
        assert_eq!(split(&[(1, 9000), (256, 50_000), (40, 0)]), (vec![(0, 0), (2, 0), (1, 0)], 144));
        assert_eq!(split(&[]), (vec![], 0));
    }

    /// Never more items than their sums have room for, and what is said of the items is what the runs make.
    #[test]
    fn items_are_what_the_runs_make() {
        for rows in (2..1500).step_by(7) {
            for start in [0, 3000, 4096, 5000, 20_000, 130_000] {
                for other in [(2, 0), (300, 9000), (1, 70_000)] {
                    let (splits, items) = split(&[(rows, start), other]);
                    let made = |(rows, (splits, more)): (i32, (i32, i32))| match rows {
                        1 => 0,
                        _ => (rows as usize).div_ceil(32) * 8 * splits as usize + more as usize,
                    };
                    let total: usize = [rows, other.0].into_iter().zip(splits).map(made).sum();
                    assert_eq!(items, total, "{rows} behind {start}, {other:?}");
                    assert!(items <= SPLIT_WAVES_MAX * 132, "{rows} behind {start}, {other:?}: {items}");
                }
            }
        }
    }
}
