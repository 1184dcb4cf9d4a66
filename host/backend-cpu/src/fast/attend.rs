//! Rotary embedding, the KV pages, and attention.

use std::ops::Range;

use backend::ops::AttentionShape;
use backend::weights::WeightId;
use contract::PAGE_TOKENS;

use super::{Fast, each};
use crate::batch::{Batch, Sequence};
use crate::kernels::attention::{Attend, KvShape, PART_PAGES, attend, attend_part, merge_parts, store_kv};
use crate::kernels::{OutCols, elementwise};
use crate::pool::{Panicked, Shares, Tickets};

/// Query rows, times heads of a group, that one item of a prefill chunk has: what one pass over the pages serves.
const ITEM_HEADS: usize = 96;

/// While a step has fewer (sequence, key head) pairs than this for each thread, long sequences are cut into parts.
const PAIRS_PER_THREAD: usize = 4;

/// Memory for the results of parts, sized for the most that are cut in one step.
pub(super) struct PartResults {
    results: Vec<f32>,
    /// What the step cuts, at most `pairs_max`; kept for its memory.
    pairs: Vec<Pair>,
    pairs_max: usize,
}

impl PartResults {
    pub(super) fn new(shape: AttentionShape, threads: usize, context_len: usize) -> Self {
        let pairs_max = if threads > 1 { threads * PAIRS_PER_THREAD } else { 0 };
        let parts = context_len.div_ceil(PART_PAGES * PAGE_TOKENS as usize);
        // 16 more than the head size: the kernel keeps the maximum and the weight beside the sums.
        let part_len = shape.heads / shape.kv_heads * (shape.head_dim + 16);
        Self { results: vec![0.0; pairs_max * parts * part_len], pairs: Vec::with_capacity(pairs_max), pairs_max }
    }

    pub(super) fn len(&self) -> usize {
        self.results.len()
    }
}

/// One (sequence, key head): how many parts it has, and where their results lie.
#[derive(Clone)]
struct Pair {
    sequence: usize,
    kv_head: usize,
    parts: usize,
    results: Range<usize>,
}

impl Fast {
    /// Norms and rotates q and k, and puts k and v into their pages.
    pub(super) fn rotate_and_store(
        &mut self,
        batch: &Batch,
        layer: usize,
        q_norm: Option<WeightId>,
        k_norm: Option<WeightId>,
    ) -> Result<(), Panicked> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.attention;
        let (keys, values) = (self.attention.q_rows(), self.attention.q_rows() + self.attention.kv_width());
        let (isa, eps, pairs, group) = (self.isa, self.norm_eps, self.inv_freq.len(), heads / kv_heads);
        let (angles, vectors) = (&self.angles, &self.vectors);
        let shape = KvShape { kv_heads, head_dim };
        let (mix, kv, lanes) =
            (Shares::new(&mut self.mix), Shares::new(&mut self.kv[layer]), Shares::new(&mut self.lanes));
        let stride = self.attention.mix_width();
        let item = |thread: usize, sequence: &Sequence, kv_head: usize| {
            // SAFETY: each thread uses its own lane.
            let lane = &mut unsafe { lanes.get(thread..thread + 1) }[0];
            let mut turn = |head: &mut [f32], norm: Option<WeightId>, row: usize| {
                if let Some(norm) = norm {
                    let normed = &mut lane.row[..head_dim];
                    elementwise::rms_norm(isa, head, &vectors[norm.0 as usize], eps, normed);
                    head.copy_from_slice(normed);
                }
                let (cos, sin) = angles[row * 2 * pairs..(row + 1) * 2 * pairs].split_at(pairs);
                elementwise::rope(isa, head, cos, sin);
            };
            let pages = batch.pages_of(sequence);
            for row in sequence.first_row..sequence.first_row + sequence.rows {
                let position = batch.rows[row].position as usize;
                let head_at = |start: usize, index: usize| {
                    let at = row * stride + start + index * head_dim;
                    at..at + head_dim
                };
                for head in kv_head * group..(kv_head + 1) * group {
                    // SAFETY: this sequence's rows and this group's heads are one item.
                    turn(unsafe { mix.get(head_at(0, head)) }, q_norm, row);
                }
                // SAFETY: as above, for the key head and its value.
                let (key, value) = unsafe { (mix.get(head_at(keys, kv_head)), mix.get(head_at(values, kv_head))) };
                turn(key, k_norm, row);
                let start = shape.block_start(pages[position / PAGE_TOKENS as usize], kv_head);
                // SAFETY: no two sequences write to one page, and this key head of it belongs to this item.
                let block = unsafe { kv.get(start..start + shape.block_len()) };
                store_kv(isa, shape, block, position % PAGE_TOKENS as usize, key, value);
            }
        };
        if batch.rows.len() == 1 {
            // One row is done sooner than a second thread is told of it.
            let all = || (0..kv_heads).for_each(|kv_head| item(0, &batch.sequences[0], kv_head));
            return crate::pool::ThreadPool::run_here(all);
        }
        each(&mut self.pool, batch.sequences.len() * kv_heads, |thread, i| {
            item(thread, &batch.sequences[i / kv_heads], i % kv_heads);
        })
    }

    /// `attended = softmax(q k / sqrt(head_dim)) v`, kept as `[key head][row][heads of the group]`.
    pub(super) fn attend(&mut self, batch: &Batch, layer: usize) -> Result<(), Panicked> {
        let pairs = batch.sequences.len() * self.attention.kv_heads;
        let part_tokens = PART_PAGES * PAGE_TOKENS as usize;
        let decode = batch.rows.len() == batch.sequences.len();
        if decode && pairs <= self.parts.pairs_max && batch.sequences.iter().any(|s| s.first_position >= part_tokens) {
            return self.attend_in_parts(batch, layer);
        }
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.attention;
        let (isa, group, width) = (self.isa, heads / kv_heads, heads / kv_heads * head_dim);
        let tile = (ITEM_HEADS / group).max(1);
        let job = job_of(&self.mix, &self.kv[layer], self.attention);
        let items: usize = batch.sequences.iter().map(|s| s.rows.div_ceil(tile) * kv_heads).sum();
        let (tickets, lanes) = (Tickets::new(items, 1), Shares::new(&mut self.lanes));
        let place = |kv_head: usize, row: usize| (kv_head * batch.rows.len() + row) * width;
        let out = Shares::new(&mut self.attended);
        self.pool.run(&|thread| {
            // SAFETY: each thread uses its own lane.
            let lane = &mut unsafe { lanes.get(thread..thread + 1) }[0];
            while let Some(item) = tickets.take() {
                let (sequence, within) = sequence_of(batch, item.start, |s| s.rows.div_ceil(tile) * kv_heads);
                // The last tiles see the most tokens: they go first, so that no thread is left with one at the end.
                let tiles = sequence.rows.div_ceil(tile);
                let (tile_index, kv_head) = (tiles - 1 - within / kv_heads, within % kv_heads);
                let first = tile_index * tile;
                let count = tile.min(sequence.rows - first);
                let job = job(batch, sequence, kv_head, first, count);
                let start = place(kv_head, sequence.first_row + first);
                // SAFETY: these rows of the group are one item.
                let out = unsafe { out.get(start..start + count * width) };
                attend(isa, &job, &mut OutCols::new(out, width, 0..width), &mut lane.scratch);
            }
        })
    }

    /// Decode rows of few but long sequences: threads share the parts of one sequence.
    fn attend_in_parts(&mut self, batch: &Batch, layer: usize) -> Result<(), Panicked> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.attention;
        let (isa, width) = (self.isa, heads / kv_heads * head_dim);
        let job = job_of(&self.mix, &self.kv[layer], self.attention);
        let mut at = 0;
        let PartResults { results, pairs, .. } = &mut self.parts;
        pairs.clear();
        for (index, sequence) in batch.sequences.iter().enumerate() {
            for kv_head in 0..kv_heads {
                let job = job(batch, sequence, kv_head, 0, 1);
                let (parts, len) = (job.parts(), job.parts() * job.part_len());
                pairs.push(Pair { sequence: index, kv_head, parts, results: at..at + len });
                at += len;
            }
        }
        let pairs = &*pairs;
        let job_of_pair = |pair: &Pair| job(batch, &batch.sequences[pair.sequence], pair.kv_head, 0, 1);
        let items: usize = pairs.iter().map(|pair| pair.parts).sum();
        let tickets = Tickets::new(items, 1);
        let (lanes, shared) = (Shares::new(&mut self.lanes), Shares::new(results));
        self.pool.run(&|thread| {
            // SAFETY: each thread uses its own lane.
            let lane = &mut unsafe { lanes.get(thread..thread + 1) }[0];
            while let Some(item) = tickets.take() {
                let mut part = item.start;
                let pair = pairs.iter().find(|pair| {
                    let here = part < pair.parts;
                    part -= if here { 0 } else { pair.parts };
                    here
                });
                let Some(pair) = pair else { continue };
                let job = job_of_pair(pair);
                let start = pair.results.start + part * job.part_len();
                // SAFETY: each part is one item.
                let result = unsafe { shared.get(start..start + job.part_len()) };
                attend_part(isa, &job, part, result, &mut lane.scratch);
            }
        })?;
        let (rows, attended) = (batch.rows.len(), &mut self.attended);
        crate::pool::ThreadPool::run_here(|| {
            for pair in pairs {
                let start = (pair.kv_head * rows + batch.sequences[pair.sequence].first_row) * width;
                let mut out = OutCols::new(&mut attended[start..start + width], width, 0..width);
                merge_parts(isa, &job_of_pair(pair), &mut results[pair.results.clone()], &mut out);
            }
        })
    }
}

/// Makes the attention job of some rows of a sequence.
fn job_of<'a>(
    mix: &'a [f32],
    pool: &'a [u16],
    shape: AttentionShape,
) -> impl Fn(&'a Batch, &'a Sequence, usize, usize, usize) -> Attend<'a> + Sync {
    let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
    let (group, stride) = (heads / kv_heads, shape.mix_width());
    move |batch, sequence, kv_head, first, rows| Attend {
        shape: KvShape { kv_heads, head_dim },
        pool,
        pages: batch.pages_of(sequence),
        kv_head,
        group,
        q: &mix[(sequence.first_row + first) * stride + kv_head * group * head_dim..],
        q_stride: stride,
        rows,
        first: sequence.first_position + first,
    }
}

/// The sequence of item `index` and the item's number within it.
fn sequence_of(batch: &Batch, mut index: usize, items: impl Fn(&Sequence) -> usize) -> (&Sequence, usize) {
    for sequence in &batch.sequences {
        let count = items(sequence);
        if index < count {
            return (sequence, index);
        }
        index -= count;
    }
    unreachable!("items are handed out up to the sum over the sequences")
}
