"""Kernels against plain numpy, on the processor: `python check.py [name]`.

For what a card would show late: sums of more work than blocks, rings that wrap, copies that land as late as they may, tails.
Sizes are the smallest that reach them. Orders of warps and copies are random, by seed; a kernel that two seeds run must give
the same bits. Speed, and everything that a whole model shows, is for `gpu-check` on a card.
"""
import sys
import time

import numpy as np

from nvrtc import kernel
from ptx import Memory, bf16_of, f32_of_bf16

LOG2E = 1.4426950408889634
PAGE = 64
EPS = np.float32(1e-6)
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def half(x):
    return bf16_of(np.asarray(x, np.float32)).astype(np.uint16)


def wide(x):
    return f32_of_bf16(np.asarray(x)).astype(np.float64)


def noise(seed, *shape, scale=1.0):
    return half(np.random.default_rng(seed).normal(size=shape) * scale)


def near(what, found, wanted, bound):
    """Largest difference, of the largest value."""
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error < bound, f"{what}: {error} of the largest value, {bound} allowed"


def run_info(seat, rows, row0, token0, emit, end, item0=0, splits=0, deferred=0, folds=0, more=0, more_splits=0, firsts=0, first_keys=0):
    return (seat, rows, row0, token0, emit, end, item0, splits, deferred, folds, more, firsts | more_splits << 8 | first_keys << 16)


def silu(x):
    return x / (1 + np.exp(-x))


# --- paged keys and values ------------------------------------------------------------------------------------------------


class Pages:
    """Sequences of some lengths: pages in a random order, K [64, dim] and V transposed for each head."""

    def __init__(self, seed, lengths, kv_heads, dim):
        random = np.random.default_rng(seed)
        count = sum(-(-length // PAGE) for length in lengths) + 1
        free = list(random.permutation(count))
        self.width = max(lengths) // PAGE + 2
        self.table = np.zeros((len(lengths), self.width), np.int32)
        for seat, length in enumerate(lengths):
            for page in range(-(-length // PAGE)):
                self.table[seat, page] = free.pop()
        self.data, self.dim = noise(seed + 1, count, kv_heads, 2 * PAGE * dim), dim

    def key(self, seat, head, at):
        tile = self.data[self.table[seat, at // PAGE], head]
        return tile[:PAGE * self.dim].reshape(PAGE, self.dim)[at % PAGE]

    def value(self, seat, head, at):
        tile = self.data[self.table[seat, at // PAGE], head]
        return tile[PAGE * self.dim:].reshape(self.dim, PAGE)[:, at % PAGE]


def attend(query, keys, values, scale):
    """Normed sums, the largest score as a power of two, and the sum of weights."""
    score = keys @ query * scale
    weight = np.exp2(score - score.max())
    return weight @ values / weight.sum(), score.max(), weight.sum()


# --- attention of single rows ---------------------------------------------------------------------------------------------

SPLIT = 128


def norm_and_rotate(x, weight, turn):
    """As the kernels do it in f32: pairs of the first dimensions are turned, and the result is rounded."""
    y = wide(x)
    y = y / np.sqrt((y * y).mean() + EPS) * wide(weight)
    pairs = len(turn)
    low, high = y[:pairs].copy(), y[pairs:2 * pairs].copy()
    y[:pairs], y[pairs:2 * pairs] = low * turn[:, 0] - high * turn[:, 1], high * turn[:, 0] + low * turn[:, 1]
    return half(y)


def decode_case(heads, kv_heads, dim, rotated, gated, lengths):
    group, step = heads // kv_heads, 1 + gated
    all_heads, splits = heads * step + 2 * kv_heads, [-(-length // SPLIT) for length in lengths]
    pages = Pages(3, lengths, kv_heads, dim)
    rows, norms = noise(5, len(lengths), all_heads, dim), [half(1 + wide(noise(6 + i, dim)) / 10) for i in (0, 1)]
    angle = np.random.default_rng(8).uniform(0, 6, (max(lengths), rotated // 2))
    rotation = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
    first = np.cumsum([0] + [count * kv_heads for count in splits])
    runs = [run_info(i, 1, i, -1, i, length, first[i], splits[i]) for i, length in enumerate(lengths)]
    items = [(i, j % kv_heads, j // kv_heads, first[i] + j) for i in range(len(lengths)) for j in range(splits[i] * kv_heads)]
    np.random.default_rng(9).shuffle(items)
    scale = LOG2E / np.sqrt(dim)

    # What the newest token's pages hold in the end.
    after = Pages(3, lengths, kv_heads, dim)
    for seat, length in enumerate(lengths):
        for head in range(kv_heads):
            key = rows[seat, heads * step + head]
            after.key(seat, head, length - 1)[:] = norm_and_rotate(key, norms[1], rotation[length - 1])
            after.value(seat, head, length - 1)[:] = rows[seat, heads * step + kv_heads + head]
    wanted = np.zeros((len(items), group, dim))
    for seat, head, split, place in items:
        span = range(split * SPLIT, min(lengths[seat], (split + 1) * SPLIT))
        keys, values = ([wide(part(seat, head, at)) for at in span] for part in (after.key, after.value))
        for row in range(group):
            query = norm_and_rotate(rows[seat, (head * group + row) * step], norms[0], rotation[lengths[seat] - 1])
            wanted[place, row] = attend(wide(query), np.array(keys), np.array(values), scale)[0]

    def run(name, grid, threads, shared, seed, **flags):
        flags |= dict(HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=dim, ROT_DIM=rotated, Q_STEP=step, SPLIT=SPLIT, ROPE=1)
        memory = Memory(1 << 23)
        info = np.zeros(8, np.int32)
        info[[0, 1, 4]] = len(lengths), len(lengths), len(items)
        sums = memory.put(np.full((len(items), group, dim), np.nan, np.float32))
        weights = memory.put(np.full((len(items), group, 2), np.nan, np.float32))
        queries, kv = memory.put(rows), memory.put(pages.data)
        lists = [memory.put(np.asarray(x, np.int32)) for x in (info, runs, items, pages.table)]
        weights_of_norms = [memory.put(x) for x in (*norms, rotation)]
        args = [sums, weights, queries, kv, *lists, np.int32(pages.width), np.float32(scale), *weights_of_norms, EPS]
        kernel(name, **flags).run(memory, grid, threads, shared, args, seed)
        sums = memory.get(sums, np.float32, wanted.size).reshape(wanted.shape)
        weights = memory.get(weights, np.float32, len(items) * group * 2).reshape(len(items), group, 2)
        near(name, sums / weights[:, :, 1:], wanted, 0.01)
        assert np.array_equal(memory.get(kv, np.uint16, pages.data.size), after.data.reshape(-1)), "the pages"
        return sums, weights

    return run


def same(*results):
    assert all(np.array_equal(a, b) for other in results[1:] for a, b in zip(results[0], other)), "other bits"


def ring_bytes(group, dim, slots, parts):
    """Of Hopper's decode attention: rings, and what belongs to a team."""
    team = (4 * group * (dim // parts * 4 + 8) + (group + 2) * (dim + 8) * 2 + 15) // 16 * 16
    return 2 * (slots * (PAGE * dim * 2 + 16) + team)


@check
def decode_attention_of_heads_of_128():
    """Hopper's ring gives the bits of the kernel of few rows."""
    run = decode_case(4, 2, 128, 128, False, [1, 300, 70, 128, 129, 260])
    few = run("attend_decode", 3, 128, 0, 1, IN_SHARED=0)
    same(few, *(run("attend_decode_sm90", 2, 384, ring_bytes(2, 128, 4, 1), seed, SLOTS=4, SUM_PARTS=1) for seed in (1, 2)))


@check
def decode_attention_of_gated_heads_of_256():
    run = decode_case(4, 2, 256, 64, True, [1, 300, 70, 128, 129])
    same(run("attend_decode", 3, 128, 0, 1, IN_SHARED=0),
         *(run("attend_decode", 3, 128, 2 * SPLIT * 256 * 2, seed, IN_SHARED=1) for seed in (1, 2)),
         *(run("attend_decode_sm90", 2, 384, ring_bytes(2, 256, 3, 2), seed, SLOTS=3, SUM_PARTS=2) for seed in (1, 2, 3, 4)))


@check
def decode_attention_of_three_heads_a_key():
    decode_case(6, 2, 64, 64, False, [64, 200, 5])("attend_decode", 2, 128, 0, 1, IN_SHARED=0)


# --- attention of prompts -------------------------------------------------------------------------------------------------


SEAT_STATE = 2696  # bytes of `SeatState`, of which begin_step reads a prompt's position


def prefill_case(heads, kv_heads, dim, gated, prompts, grid, seed=1, made=None):
    """Prompts: rows, tokens before them; of their tiles' keys parts of a number of 128s; splits of what is left; how many tiles
    have others instead, and how many. The lists are `begin_step`'s. `made`: what it makes of prompts with fewer keys than that."""
    group, step = heads // kv_heads, 1 + gated
    tokens, all_heads = 128 // group, heads * step + 2 * kv_heads
    total = sum(prompt[0] for prompt in prompts)
    pages = Pages(3, [rows + start for rows, start, *_ in prompts], kv_heads, dim)
    rows = noise(5, total + tokens, all_heads, dim, scale=1.5)
    runs, wanted_tiles, row0 = [], [], 0
    for seat, (count, start, firsts, first_keys, splits, more, more_splits) in enumerate(prompts):
        runs.append(run_info(seat, count, row0, 0, -1, start + count, splits=splits, more=more, more_splits=more_splits, firsts=firsts,
                             first_keys=first_keys))
        row0 += count
    prompts = made or prompts
    # Places go by the keys of a part.
    for seat in sorted(range(len(prompts)), key=lambda i: -(prompts[i][3] * 128 or runs[i][5] // prompts[i][4])):
        count, _, firsts, _, splits, more, more_splits = prompts[seat]
        of_head = -(-count // tokens)
        of_run = of_head * kv_heads
        for i in range(of_run):
            parts = firsts + (splits if i < of_run - more else more_splits)
            head, tile = divmod(i, of_head) if firsts + splits + more > 1 else (i % kv_heads, i // kv_heads)
            wanted_tiles += [(seat, head, part, parts, of_head - 1 - tile) for part in range(parts)]
    info = np.zeros(8, np.int32)
    info[[0, 1]] = len(runs), total
    scale = np.float32(LOG2E / np.sqrt(dim))
    flags = dict(HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=dim, QTOKENS=tokens, Q_STEP=step)
    memory = Memory(1 << 24)
    out = memory.put(np.full((total + 1, heads, dim), 0xffff, np.uint16))
    queries, kv = memory.put(rows), memory.put(pages.data)
    info, run_list = (memory.put(np.asarray(x, np.int32)) for x in (info, runs))
    tile_list = memory.put(np.full((len(wanted_tiles) + 1, 8), 0xffff, np.uint16))
    seats = np.zeros((len(prompts), SEAT_STATE // 4), np.int32)
    seats[:, 0] = [prompt[1] for prompt in prompts]
    row_lists = [memory.put(np.zeros(total + 64, np.int32)) for _ in range(6)]
    merges = memory.put(np.zeros(len(wanted_tiles), np.int32))
    kernel("begin_step", KV_HEADS=kv_heads, QTOKENS=tokens, SPLIT=SPLIT, SPLIT_KEYS_MIN=64, PART_KEYS_MIN=64).run(
        memory, 1, 1024, 0,
        [info, run_list, row_lists[0], memory.put(np.zeros(total, np.int32)), memory.put(seats), memory.put(pages.table),
         np.int32(pages.width), *row_lists, tile_list, merges], seed)
    # The run, the kv head, the part and how many there are; the tile, and the place.
    found = memory.get(tile_list, np.uint16, (len(wanted_tiles) + 1) * 8).reshape(-1, 8)
    assert (found[-1] == 0xffff).all(), "more tiles than there are"
    places = found[:-1, 6:].copy().view(np.int32)[:, 0]
    assert [tuple(found[i, :5]) for i in np.argsort(places)] == wanted_tiles and sorted(places) == list(range(len(places))), "the tiles"
    part_o, part_ml = (memory.put(np.full((len(places), 128, n), np.nan, np.float32)) for n in (dim, 2))
    heads_of_pages = pages.data.shape[0] * kv_heads
    maps = memory.put(np.concatenate([
        memory.map(queries, [dim, heads, len(rows)], [step * dim * 2, all_heads * dim * 2], [64, group, tokens]),
        memory.map(kv, [dim, heads_of_pages * 2 * PAGE], [dim * 2], [64, PAGE]),
        memory.map(kv, [PAGE, heads_of_pages * 2 * dim], [PAGE * 2], [PAGE, dim]),
    ]))
    block = (2 if dim <= 128 else 1) * PAGE * dim * 2
    kernel("attend_prefill_sm90", **flags).run(
        memory, grid, 384, 128 * dim * 2 + 4 * block + 128,
        [out, maps, queries, info, run_list, tile_list, memory.put(pages.table), np.int32(pages.width), np.int32(0), scale,
         part_o, part_ml], seed)
    in_parts = sum(part == 0 and parts > 1 for _, _, part, parts, _ in wanted_tiles)
    assert memory.get(info, np.int32, 8)[7] == in_parts, "tiles in parts"
    if in_parts:
        kernel("attend_merge_tiles", **flags).run(memory, (in_parts + 1, 4), 256, 0,
                                                  [out, part_o, part_ml, info, run_list, tile_list, merges, queries], seed)
    found = memory.get(out, np.uint16, (total + 1) * heads * dim).reshape(total + 1, heads, dim)
    assert (found[total] == 0xffff).all(), "a row behind the last was written"
    wanted = np.zeros((total, heads, dim))
    for seat, count, row0, _, _, end, *_ in runs:
        for head in range(kv_heads):
            keys, values = (np.array([wide(part(seat, head, at)) for at in range(end)]) for part in (pages.key, pages.value))
            for row in range(count):
                seen = end - count + row + 1
                for query in range(head * group, (head + 1) * group):
                    x = rows[row0 + row, query * step]
                    wanted[row0 + row, query] = attend(wide(x), keys[:seen], values[:seen], scale)[0]
    if gated:
        wanted /= 1 + np.exp(-wide(rows[:total, 1:2 * heads:2]))
    near("attended", wide(found[:total]), wanted, 0.01)


@check
def prefill_attention_of_gated_heads_of_256():
    prefill_case(4, 2, 256, True, [(70, 0, 0, 0, 1, 0, 0), (3, 200, 0, 0, 2, 0, 0)], 2)
    prefill_case(4, 2, 256, True, [(3, 300, 1, 1, 1, 1, 2)], 2)


@check
def prefill_attention_of_heads_of_128():
    prefill_case(4, 2, 128, False, [(70, 0, 0, 0, 1, 0, 0), (3, 300, 0, 0, 2, 1, 3)], 2)
    prefill_case(4, 2, 128, False, [(40, 450, 0, 0, 1, 1, 2), (65, 300, 0, 0, 1, 0, 0)], 3)
    for parts in [(2, 1, 1, 3, 2), (0, 0, 1, 3, 2), (1, 2, 1, 0, 1)]:
        prefill_case(4, 2, 128, False, [(65, 100, *parts)], 3, made=[(65, 100, 0, 0, 1, 0, 0)])
    prefill_case(4, 2, 128, False, [(65, 600, 2, 1, 1, 3, 2), (20, 40, 0, 0, 1, 0, 0)], 3)


@check
def prefill_attention_of_six_heads_a_key():
    """21 tokens a tile: its last two rows are nobody's."""
    prefill_case(6, 1, 256, True, [(25, 30, 0, 0, 1, 0, 0)], 2)


# --- products -------------------------------------------------------------------------------------------------------------


def gate_up_case(most, groups, stages, m, n, k):
    x, weights = noise(1, m + 3, k), noise(2, 2 * n, k, scale=0.1)
    found = []
    for seed in (1, 2):
        memory = Memory(1 << 22)
        out = memory.put(np.full((m + 1, n), 0xffff, np.uint16))
        maps = [memory.map(memory.put(weights), [k, 2 * n], [k * 2], [64, 32 * groups]),
                memory.map(memory.put(x), [k, len(x)], [k * 2], [64, most])]
        shared = stages * ((64 * groups + most) * 128 + 16)
        kernel("gate_up_sm90", ROWS=most, GROUPS=groups, STAGES=stages).run(
            memory, -(-n // (32 * groups)), 128 * groups + 32, shared, [out, *maps, np.int32(m), np.int32(n), np.int32(k)], seed)
        found.append(memory.get(out, np.uint16, (m + 1) * n).reshape(m + 1, n))
    assert np.array_equal(*found) and (found[0][m] == 0xffff).all()
    gate, up = (wide(x[:m]) @ wide(part).T for part in (weights[:n], weights[n:]))
    near("act", wide(found[0][:m]), silu(gate) * up, 0.01)


@check
def gate_and_up():
    """Tails of columns and of k, rings that wrap."""
    gate_up_case(32, 1, 3, 20, 72, 328)
    gate_up_case(64, 2, 3, 40, 72, 264)
    gate_up_case(128, 3, 3, 70, 104, 264)


def few_rows_case(m, n, k, mode):
    x, weights, before = noise(1, m, k), noise(2, 2 * n, k, scale=0.1), noise(3, m, n)
    tiles = 1 if m <= 8 else 2
    memory = Memory(1 << 22)
    kind = np.float32 if mode == 3 else np.uint16
    out = memory.put(before if mode == 1 else np.zeros((m, n), kind))
    at = memory.put(weights)
    shared = 8 * tiles * 8 * ((2 if mode == 2 else 1) * 16 + 1) * 4
    kernel("few_rows", NT=tiles, MODE=mode).run(
        memory, -(-n // 16), 256, shared, [out, memory.put(x), at, at + n * k * 2, np.int32(m), np.int32(n), np.int32(k)], 1)
    found = memory.get(out, kind, m * n).reshape(m, n)
    y, up = (wide(x) @ wide(part).T for part in (weights[:n], weights[n:]))
    wanted = [y, y + wide(before), silu(y) * up, y][mode]
    near(f"mode {mode}", found if mode == 3 else wide(found), wanted, 1e-5 if mode == 3 else 0.01)


@check
def products_of_few_rows():
    for mode in range(4):
        few_rows_case(3, 40, 1184, mode)
    few_rows_case(13, 16, 64, 0)


# As packed.cuh draws them: bytes of a unit, planes, their place, the scales' place.
Q4_K, Q5_K, Q6_K = 5, 6, 7
UNITS = {Q4_K: (2304, 0, 2048, 2048), Q5_K: (2816, 1, 2048, 2560), Q6_K: (3360, 2, 2048, 3072)}


def unit_values(kind, unit):
    """[16, 256]: what the units' random bytes mean."""
    _, planes, planes_at, scales_at = UNITS[kind]
    words = unit.view(np.uint32)
    row, k = np.meshgrid(np.arange(16), np.arange(256), indexing="ij")
    group, col = k // 32, k % 32
    if kind == Q6_K:
        t, pair = col % 16 // 4, col // 16 + col % 4 // 2 * 2
    else:
        t, pair = col // 8, col % 8 // 2
    lane, odd = row % 8 * 4 + t, col % 2
    bit = (4 * pair + 16 * odd + (2 if kind == Q6_K else 0)) % 32
    word = words[((group // 2 * 32 + lane) * 2 + group % 2) * 2 + row // 8].astype(np.uint64)
    code = ((word | word << np.uint64(32)) >> bit.astype(np.uint64)).astype(np.int64) & 15
    field = row // 8 * 2 + pair % 2
    if planes == 1:
        at = group // 2
        code |= (words[planes_at // 4 + lane * 4 + at] >> (pair // 2 * 8 + odd * 16 + group % 2 * 4 + field) & 1).astype(np.int64) << 4
    if planes == 2:
        at = words[planes_at // 4 + (group // 4 * 32 + lane) * 4 + group % 4]
        code |= ((at >> (pair // 2 * 8 + odd * 16 + 2 * field) & 3) ^ 2).astype(np.int64) << 4
    scales = unit[scales_at:scales_at + 256].reshape(16, 16)
    if kind == Q6_K:
        d = unit[scales_at + 256:scales_at + 288].view(np.float16).astype(np.float64)
        return d[:, None] * scales.view(np.int8)[row, k // 16] * (code - 32)
    d, dmin = scales[:, :4].copy().view(np.float16).astype(np.float64).T
    s = scales[:, 4:].astype(np.int64)
    low, high = group % 4, group // 4
    scale = np.where(high, s[row, 8 + low] & 15 | s[row, low] >> 6 << 4, s[row, low] & 63)
    minimum = np.where(high, s[row, 8 + low] >> 4 | s[row, 4 + low] >> 6 << 4, s[row, 4 + low] & 63)
    return d[:, None] * scale * code - dmin[:, None] * minimum


def packed_matrix(seed, kind, rows, k):
    """Units of random bytes with sane scales, and their values [rows, k]."""
    size, _, _, scales_at = UNITS[kind]
    random = np.random.default_rng(seed)
    tiles, across = -(-rows // 16), k // 256
    units = random.integers(0, 256, (tiles, across, size), np.uint8)
    tiny = random.uniform(0.001, 0.002, (tiles, across, 16, 2)).astype(np.float16)
    if kind == Q6_K:
        units[..., scales_at + 256:] = tiny[..., :1].copy().view(np.uint8).reshape(tiles, across, 32)
    else:
        units[..., scales_at:scales_at + 256].reshape(tiles, across, 16, 16)[..., :4] = tiny.view(np.uint8)
    values = np.array([[unit_values(kind, unit) for unit in tile] for tile in units])
    return units, values.transpose(0, 2, 1, 3).reshape(tiles * 16, k)[:rows]


def in_eights(rows, filler=0):
    """Rows as `row_place` of the prelude finds them, in whole eights."""
    m, width = rows.shape
    padded = np.full((-(-m // 8) * 8, width), filler, rows.dtype)
    padded[:m] = rows
    return padded.reshape(-1, 8, width // 32, 32).transpose(0, 2, 1, 3).reshape(-1, width)


def of_eights(found, m):
    width = found.shape[1]
    return found.reshape(-1, width // 32, 8, 32).transpose(0, 2, 1, 3).reshape(-1, width)[:m]


def packed_case(kinds, m, rows, k, mode, near_, integer, warps=4, grid=2, outlier=-1, eights=False):
    """A part of each kind, `rows` outputs; `near_` as the kernel's NEAR: 2 norms x on its way. `outlier`: which row has one.
    `eights`: x lies so; with mode 2 the outputs do."""
    x, norm, before = noise(1, m, k), half(1 + wide(noise(2, k)) / 10), noise(3, m, 2 * sum(rows))
    x[0, 256:512] = 0
    x[outlier, 7] = half(100.0)
    matrices = [packed_matrix(4 + i, kind, (2 if mode == 2 else 1) * count, k) for i, (kind, count) in enumerate(zip(kinds, rows))]
    slot, depth = max(UNITS[kind][0] for kind in kinds), 2
    ring = depth * slot + (64 if integer else 1024) + 16
    record = (any(kind != Q6_K for kind in kinds) + any(kind == Q6_K for kind in kinds)) * 512 + 48
    x_bytes = m * k // 256 * record if integer else m * ((2 * k + 127) // 128 * 128 + 64) + k // 256 * 4 * ((m + 1) // 2) * 16
    found = []
    for seed in (1, 2):
        memory = Memory(1 << 22)
        n = sum(rows)
        kind_of_out = np.float32 if mode == 3 else np.uint16
        out_eights, nothing = eights and mode == 2, np.full((m, n), 0x7fc0, kind_of_out)
        out = memory.put(before[:, :n] if mode == 1 else in_eights(nothing, 0x7fc0) if out_eights else nothing)
        parts, end, column = [], 0, 0
        for i in range(4):
            if i < len(kinds):
                units = matrices[i][0]
                end += len(units)
                parts += [memory.put(units) & 0xffffffff, 0, end, rows[i], column, int(kinds[i] != kinds[0])]
                column += rows[i]
            else:
                parts += [0, 0, end, 0, 0, 0]
        flags = dict(TYPE0=kinds[0], TYPE1=kinds[-1], NT=1 if m <= 8 else 2, MODE=mode, TAIL=0, NEAR=near_, ONE=int(m == 1), DEPTH=depth,
                     WARPS=warps, BLOCKS=1, INTEGER=integer, EIGHTS=int(eights and not near_))
        kernel("few_rows_packed", **flags).run(
            memory, grid, warps * 32, warps * ring + (x_bytes if near_ else 0) + (2 * k if near_ == 2 and integer else 0),
            [out, memory.put(in_eights(x, 0x7fc0) if eights and near_ != 2 else x), np.array(parts, np.uint32), np.int32(m), np.int32(n), np.int32(k), memory.put(norm), EPS,
             np.int32(eights)], seed)
        count = -(-m // 8) * 8 if out_eights else m
        found.append(memory.get(out, kind_of_out, count * n).reshape(count, n))
        if out_eights:
            assert (of_eights(found[-1], count)[m:] == 0x7fc0).all(), "a row behind the last was written"
            found[-1] = of_eights(found[-1], m)
    same(*([y] for y in found))
    rows_of_x = wide(x)
    if near_ == 2:
        rows_of_x = wide(half(rows_of_x / np.sqrt((rows_of_x ** 2).mean(-1, keepdims=True) + EPS) * wide(norm)))
    wanted = []
    for _, values in matrices:
        y = rows_of_x @ values.T
        if mode == 2:
            y = y.reshape(m, -1, 2, 8)
            y = (silu(y[:, :, 0]) * y[:, :, 1]).reshape(m, -1)
        wanted.append(y)
    wanted = np.concatenate(wanted, 1) + (wide(before[:, :n]) if mode == 1 else 0)
    near(f"{kinds} mode {mode} near {near_} integer {integer}", found[0] if mode == 3 else wide(found[0]), wanted,
         0.01 if mode < 3 else 1e-4 if integer else 2e-5)
    return found[0]


@check
def products_of_block_formats():
    packed_case([Q5_K], 3, [40], 512, 3, 0, 0)
    packed_case([Q4_K, Q6_K], 9, [40, 24], 512, 3, 0, 0)


@check
def products_of_rows_in_eights():
    """Far and near, also what the feed-forward layer's first product leaves to its second."""
    for case in ([Q5_K], 3, [40], 512, 3), ([Q4_K, Q6_K], 9, [40, 24], 512, 1), ([Q6_K], 11, [32], 512, 2):
        same(*([packed_case(*case, 0, 0, eights=eights)] for eights in (False, True)))
    for m, near_, integer in (1, 2, 1), (2, 2, 1), (2, 2, 0):
        same(*([packed_case([Q5_K], m, [32], 768, 2, near_, integer, warps=16, eights=eights)] for eights in (False, True)))
    for integer in (0, 1):
        same(*([packed_case([Q4_K], 2, [40], 768, 1, 1, integer, eights=eights)] for eights in (False, True)))


@check
def norms_and_activations_in_eights():
    x, weight = noise(1, 11, 2304), half(1 + wide(noise(2, 2304)) / 10)
    memory = Memory(1 << 21)
    empty = np.full((16, 2304), 0x7fc0, np.uint16)
    gate_up = noise(3, 11, 2 * 2304)
    for name, args, grid in (("rms_norm", [memory.put(x), memory.put(weight), np.uint64(0), np.int32(2304), EPS], 11),
                             ("silu_mul", [memory.put(gate_up), np.int32(2304)], (2, 11))):
        outs = [memory.put(empty), memory.put(empty)]
        for eights, out in enumerate(outs):
            kernel(name).run(memory, grid, 256, 0, [out, *args, np.int32(eights)], 1)
        plain, eight = (memory.get(out, np.uint16, empty.size).reshape(empty.shape) for out in outs)
        assert (plain[11:] == 0x7fc0).all() and (of_eights(eight, 16)[11:] == 0x7fc0).all()
        same([plain[:11]], [of_eights(eight, 11)])
    near("act", wide(plain[:11]), silu(wide(gate_up[:, :2304])) * wide(gate_up[:, 2304:]), 0.01)


@check
def products_in_whole_numbers():
    packed_case([Q4_K], 1, [40], 768, 3, 1, 1)
    packed_case([Q6_K], 1, [40], 768, 3, 1, 1)
    packed_case([Q5_K], 2, [40], 768, 3, 1, 1)
    one, two = (packed_case([Q4_K, Q6_K], m, [40, 24], 768, 0, 2, 1, warps=16, grid=1, outlier=0) for m in (1, 2))
    same([one[0]], [two[0]])
    packed_case([Q6_K], 2, [24], 768, 1, 1, 1)
    packed_case([Q4_K], 1, [24], 768, 2, 2, 1, warps=16, grid=2)


# --- the delta rule -------------------------------------------------------------------------------------------------------


def delta_case(state_bits, dim):
    """Single rows of several sequences, with all numbers of deferred updates, beside a longer run that is none of the kernel's
    business."""
    # Deferred before, and whether the row folds them; the first is its sequence's first.
    updates = [(0, 1), (0, 0), (1, 0), (2, 0), (2, 1), (3, 1), (1, 1)]
    runs_count = len(updates)
    key_heads, value_heads = 1, 2
    channels = (2 * key_heads + value_heads) * dim
    width = channels + value_heads * dim + 16  # beta and alpha of the heads, and zeros to whole tiles
    random = np.random.default_rng(4)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    taps, norm = normal(channels, 4) / 2, 1 + normal(dim) / 10
    decay, bias = -np.exp(normal(value_heads) * np.float32(0.7)), normal(value_heads) - 2
    mix, rings = noise(5, runs_count + 2, width), noise(6, runs_count + 1, 4, channels)
    states = normal(runs_count + 1, value_heads, dim, dim) * np.float32(0.3)
    states = half(states) if state_bits == 16 else states
    runs = [run_info(i, 1, i, -1, i, 5 + i if i else 1, deferred=deferred, folds=folds) for i, (deferred, folds) in enumerate(updates)]
    runs.append(run_info(runs_count, 2, runs_count, 0, -1, 9))
    # Of each seat and head three updates (k, d), their decays, and one number more.
    lacks = normal(runs_count + 1, value_heads, 6 * dim + 4) * np.float32(0.2)
    lacks[..., 6 * dim:] = 0.9 + lacks[..., 6 * dim:] / 10
    flags = dict(KEY_HEADS=key_heads, VALUE_HEADS=value_heads, KEY_DIM=dim, VALUE_DIM=dim, TILED=0, GATE_SIGMOID=0, INVARIANT=0,
                 STATE16=int(state_bits == 16), WRITE_EVERY=4)
    memory = Memory(1 << 23)
    out = memory.put(np.full((runs_count + 2, value_heads * dim), 0xffff, np.uint16))
    rows, state_at, lacks_at, ring_at = (memory.put(x) for x in (mix, states, lacks, rings))
    shared = (dim * dim + 4 * dim) * state_bits // 8 + 4 * 64 + (6 * dim + 4) * 4 + 3 * 16 + 16 + (3 * dim + 8) * 4
    gates = rows + (channels + value_heads * dim) * 2
    kernel("delta_step", **flags).run(
        memory, len(runs) * value_heads, 256, shared,
        [out, rows, np.int32(width), gates, np.int32(width), state_at, lacks_at, ring_at,
         *(memory.put(x) for x in (taps, decay, bias, norm, np.array(runs, np.int32))), EPS], 1)
    found = memory.get(out, np.uint16, (runs_count + 2) * value_heads * dim).reshape(runs_count + 2, -1)
    assert (found[runs_count:] == 0xffff).all(), "rows of a longer run"
    after = memory.get(state_at, states.dtype, states.size).reshape(states.shape)
    lacks_after = memory.get(lacks_at, np.float32, lacks.size).reshape(lacks.shape)
    ring_after = memory.get(ring_at, np.uint16, rings.size).reshape(rings.shape)
    value = wide if state_bits == 16 else lambda x: x.astype(np.float64)
    for i in range(runs_count):
        position = runs[i][5] - 1
        u = wide(mix[i, :channels])
        c = taps[:, 3] * u
        for back in range(1, 4):
            if position >= back:
                c = c + taps[:, 3 - back] * wide(rings[i, (position - back) % 4])
        c = silu(c)
        q, k = (c[j * dim:(j + 1) * dim] for j in (0, 1))
        q, k = q / np.sqrt((q * q).sum() + 1e-6) / np.sqrt(dim), k / np.sqrt((k * k).sum() + 1e-6)
        assert np.array_equal(ring_after[i, position % 4], mix[i, :channels])
        for head in range(value_heads):
            v, z = c[(2 + head) * dim:(3 + head) * dim], wide(mix[i, channels + head * dim:channels + (head + 1) * dim])
            beta, alpha = (wide(mix[i, channels + value_heads * (dim + j) + head]) for j in (0, 1))
            beta, kept = 1 / (1 + np.exp(-beta)), np.exp(decay[head] * np.log1p(np.exp(alpha + bias[head])))
            s = value(states[i, head]) if position else np.zeros((dim, dim))
            deferred, folds = updates[i]
            old_k, old_d = lacks[i, head, :6 * dim].reshape(3, 2, dim).astype(np.float64).transpose(1, 0, 2)
            for j in range(deferred):
                s = lacks[i, head, 6 * dim + j] * s + np.outer(old_d[j], old_k[j])
            s = kept * s
            d = beta * (v - s @ k)
            s = s + np.outer(d, k)
            y = s @ q
            y = y / np.sqrt((y * y).mean() + EPS) * norm * silu(z)
            if folds:
                near("state", value(after[i, head]), s, 0.01 if state_bits == 16 else 1e-5)
                same([lacks_after[i, head]], [lacks[i, head]])
            else:
                same([after[i, head]], [states[i, head]])
                new = lacks_after[i, head, deferred * 2 * dim:][:2 * dim]
                near("update", new, np.concatenate([k, d]), 1e-5)
                near("decay", lacks_after[i, head, 6 * dim + deferred], kept, 1e-5)
            near("attended", wide(found[i, head * dim:(head + 1) * dim]), y, 0.02)


@check
def delta_rule_of_single_rows():
    for bits in 32, 16:
        for dim in 64, 128:
            delta_case(bits, dim)


def main():
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [function for function in CHECKS if asked in function.__name__]
    for function in chosen:
        began = time.time()
        function()
        print(f"ok    {function.__name__:<48} {time.time() - began:5.1f} s", flush=True)
    assert chosen, f"no check has `{asked}` in its name"


main()
