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
/// compared here; a block takes 128 in 1.6 us.
const PART_KEYS: usize = 384;
/// What the merge costs, and for each part 128 KB on their way through memory.
const MERGE_KEYS: usize = 256;
const MERGE_PART_KEYS: f64 = 2.5;
/// Keys of a block of the kernel's loop, which parts are whole numbers of.
const BLOCK_KEYS: usize = 128;
/// Keys of the smallest of unequal parts; as in `begin_step`.
const PART_KEYS_MIN: usize = 512;
/// Parts of one size, and pieces of what they leave, that are tried.
const FIRSTS_MAX: usize = 3;
const PIECES_MAX: usize = 12;
/// Parts of a multiprocessor that has no first one: ten small ones, one after the other, took longer than was saved.
const SHARE_MAX: usize = 5;

/// Into how many parts the keys of deep tiles are cut: of each tile's keys `firsts` times `first_keys`, and what is left
/// `splits` times, of the last `more` tiles `more_splits` times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Splits {
    firsts: usize,
    first_keys: usize,
    splits: usize,
    more: usize,
    more_splits: usize,
}

impl Splits {
    /// Of so many parts of `tiles` tiles, as equal as can be.
    fn equal(parts: usize, tiles: usize) -> Self {
        let splits = parts / tiles;
        Self { splits, more: parts % tiles, more_splits: splits + 1, ..Self::default() }
    }

    /// `firsts` parts of each tile take as long as a multiprocessor works, one each; the other multiprocessors share what is
    /// left of the tiles: most of them as they are, some in `pieces` that fill up the rest of their time. With no `firsts` all
    /// share whole tiles. `None`: nobody is left, or parts would be too small or too many.
    fn unequal(firsts: usize, pieces: usize, (tiles, keys): (usize, usize), multiprocessors: usize) -> Option<Self> {
        let others = multiprocessors.checked_sub(firsts * tiles).filter(|&others| others > 0)?;
        // Pieces of a multiprocessor, and the parts they make.
        let turns = (tiles * pieces).div_ceil(others);
        let parts = turns / pieces + turns % pieces;
        // As long as those with only a first part take: their keys and one part are `turns` pieces of the rest and theirs.
        let first = (turns * keys + pieces * (parts - 1) * PART_KEYS) as f64 / (pieces + turns * firsts) as f64;
        let first_keys = if firsts > 0 { (first as usize).next_multiple_of(BLOCK_KEYS) } else { 0 };
        let rest = keys.checked_sub(firsts * first_keys)?;
        let whole = tiles.min(others * (turns / pieces));
        let piece = if whole < tiles { rest / pieces } else { rest };
        (parts <= SHARE_MAX && piece >= PART_KEYS_MIN && (firsts == 0 || rest <= first_keys)).then_some(Self {
            firsts,
            first_keys,
            splits: 1,
            more: tiles - whole,
            more_splits: pieces,
        })
    }

    fn most(self) -> usize {
        self.firsts + if self.more > 0 { self.more_splits } else { self.splits }
    }

    fn parts(self, tiles: usize) -> usize {
        tiles * (self.firsts + self.splits) + self.more * (self.more_splits.max(self.splits) - self.splits)
    }

    /// Keys one after the other until all tiles of `keys` are done, when whoever is free takes the next part, the larger ones
    /// first.
    fn cost(self, tiles: usize, keys: usize, multiprocessors: usize) -> f64 {
        let rest = keys - self.firsts * self.first_keys;
        let sizes = [
            (tiles * self.firsts, self.first_keys),
            ((tiles - self.more) * self.splits, rest / self.splits.max(1)),
            (self.more * self.more_splits, rest / self.more_splits.max(1)),
        ];
        // How many multiprocessors are free when, soonest first.
        let mut free = vec![(0.0, multiprocessors)];
        let mut end: f64 = 0.0;
        for (mut parts, keys) in sizes {
            while parts > 0 {
                let (at, count) = free.remove(0);
                let (taken, after) = (count.min(parts), at + (keys + PART_KEYS) as f64);
                if taken < count {
                    free.insert(0, (at, count - taken));
                }
                let place = free.partition_point(|&(other, _)| other <= after);
                free.insert(place, (after, taken));
                end = end.max(after);
                parts -= taken;
            }
        }
        let merge = if self.most() > 1 { MERGE_KEYS as f64 + MERGE_PART_KEYS * self.parts(tiles) as f64 } else { 0.0 };
        end + merge
    }
}

/// Splits the tiles of prompts behind deep prefixes, so that all multiprocessors are done at about the same time. `starts`:
/// tokens before each run. Gives how many tiles are in parts at most.
pub fn split_prompts(
    runs: &mut [RunUpload],
    starts: &[usize],
    shape: &AttentionShape,
    multiprocessors: usize,
) -> usize {
    let tiles = |run: &RunUpload| (run.rows as usize).div_ceil(tile_tokens(shape)) * shape.kv_heads;
    let may_split = |start: usize| (start / SPLIT_KEYS_MIN).clamp(1, SPLITS_MAX);
    let (mut deep, mut deep_runs, mut shallow, mut keys) = (0, 0, 0, 0);
    for (run, &start) in runs.iter().zip(starts).filter(|(run, _)| run.rows > 1) {
        if may_split(start) == 1 {
            shallow += tiles(run);
        } else {
            deep += tiles(run);
            deep_runs += 1;
            keys = keys.max(start);
        }
    }
    if deep == 0 {
        return 0;
    }
    let even = (1..=SPLITS_MAX).map(|splits| splits * deep);
    let waves = (1..=SPLIT_WAVES_MAX).map(|waves| waves * multiprocessors).filter(|&parts| parts > deep);
    let equal = even.chain(waves).map(|parts| Splits::equal(parts, deep));
    // Sizes that fit one run's keys do not fit another's.
    let firsts = 0..=if deep_runs == 1 { FIRSTS_MAX } else { 0 };
    let unequal = firsts
        .flat_map(|firsts| (1..=PIECES_MAX).map(move |pieces| (firsts, pieces)))
        .filter_map(|(firsts, pieces)| Splits::unequal(firsts, pieces, (deep, keys), multiprocessors));
    let best = equal
        .chain(unequal)
        .filter(|splits| splits.parts(deep) + shallow <= SPLIT_WAVES_MAX * multiprocessors)
        .filter(|splits| splits.most() <= may_split(keys))
        .map(|splits| (splits, splits.cost(deep, keys, multiprocessors)))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let Some((best, _)) = best.filter(|best| best.0.most() > 1) else { return 0 };
    let mut more = best.more;
    let mut in_parts = 0;
    for (run, &start) in runs.iter_mut().zip(starts).filter(|(run, _)| run.rows > 1) {
        let (tiles, allowed) = (tiles(run), may_split(start));
        let of_run = if allowed > 1 { best.splits.min(allowed) } else { 1 };
        run.derived[2] = of_run as i32;
        if allowed > 1 && best.most() <= allowed {
            (run.firsts, run.first_keys) = (best.firsts as u8, (best.first_keys / BLOCK_KEYS) as u16);
            (run.more, run.more_splits) = (more.min(tiles) as i32, best.more_splits as u8);
            more -= more.min(tiles);
        }
        in_parts += if of_run + usize::from(run.firsts) > 1 { tiles } else { run.more as usize };
    }
    in_parts
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

    /// A run's parts: firsts and their 128s of keys, splits, how many tiles have others instead, and how many.
    type Parts = (u8, u16, i32, i32, u8);

    /// Runs of (rows, tokens before them) on 132 multiprocessors, and how many tiles are in parts.
    fn split(prompts: &[(i32, usize)]) -> (Vec<Parts>, usize) {
        let shape = AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, gated: false };
        let mut runs: Vec<RunUpload> =
            prompts.iter().map(|&(rows, _)| RunUpload { rows, ..RunUpload::default() }).collect();
        let starts: Vec<usize> = prompts.iter().map(|prompt| prompt.1).collect();
        let tiles = split_prompts(&mut runs, &starts, &shape, 132);
        let parts = |run: &RunUpload| (run.firsts, run.first_keys, run.derived[2], run.more, run.more_splits);
        (runs.iter().map(parts).collect(), tiles)
    }

    /// Parts let all multiprocessors end together, and leave alone what does so already or has no keys to split.
    #[test]
    fn deep_tiles_fill_the_card() {
        const WHOLE: Parts = (0, 0, 0, 0, 0);
        assert_eq!(split(&[(256, 100_000)]), (vec![(0, 0, 2, 0, 3)], 64));
        assert_eq!(split(&[(192, 96_000)]), (vec![(2, 274, 1, 12, 3)], 48));
        assert_eq!(split(&[(304, 50_000)]), (vec![(1, 244, 1, 28, 5)], 80));
        assert_eq!(split(&[(480, 36_000)]), (vec![(0, 0, 3, 36, 4)], 120));
        assert_eq!(split(&[(576, 30_000)]), (vec![(0, 0, 1, 12, 11)], 12));
        assert_eq!(split(&[(512, 100_000)]), (vec![WHOLE], 0));
        assert_eq!(split(&[(8192, 20_000)]), (vec![WHOLE], 0));
        assert_eq!(split(&[(256, 4095)]), (vec![WHOLE], 0));
        assert_eq!(split(&[(1, 9000), (256, 50_000), (40, 0)]), (vec![WHOLE, (0, 0, 2, 0, 3), (0, 0, 1, 0, 0)], 64));
        assert_eq!(split(&[]), (vec![], 0));
    }

    /// Never more items than their sums have room for, no part too small, and what is said of the tiles is what the runs make.
    #[test]
    fn items_are_what_the_runs_make() {
        for rows in (2..1500).step_by(7) {
            for start in [0, 3000, 4096, 5000, 20_000, 50_000, 130_000] {
                for other in [(2, 0), (300, 9000), (1, 70_000)] {
                    let (parts, in_parts) = split(&[(rows, start), other]);
                    let (mut items, mut tiles_in_parts) = (0, 0);
                    for ((rows, start), parts) in [(rows, start), other].into_iter().zip(parts) {
                        let (firsts, first_keys, splits, more, more_splits) = parts;
                        let tiles = if rows == 1 { 0 } else { (rows as usize).div_ceil(32) * 8 };
                        let (more, splits) = (more as usize, splits as usize);
                        items +=
                            (tiles - more) * (usize::from(firsts) + splits) + more * usize::from(firsts + more_splits);
                        tiles_in_parts += if usize::from(firsts) + splits > 1 { tiles } else { more };
                        let rest = start - usize::from(firsts) * usize::from(first_keys) * BLOCK_KEYS;
                        let smallest = rest / splits.max(if more > 0 { more_splits.into() } else { 1 });
                        assert!(start < 4096 || smallest >= PART_KEYS_MIN, "{rows} behind {start}: {parts:?}");
                    }
                    assert_eq!(in_parts, tiles_in_parts, "{rows} behind {start}, {other:?}");
                    assert!(items <= SPLIT_WAVES_MAX * 132, "{rows} behind {start}, {other:?}: {items}");
                }
            }
        }
    }
}
