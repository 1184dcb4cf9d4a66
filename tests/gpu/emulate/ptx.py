"""Runs a kernel's PTX on the processor: what a card would compute, without one, a warp at a time.

All 32 lanes of a warp are one numpy operation. Lanes may part ways: those at the lowest instruction go first, which brings
them together again where compiled code does. Warps and asynchronous copies move in a random order that a seed gives: a
copy (`cp.async`, `cp.async.bulk`) lands as late as it may, or any time before, so a wait that is missing or that waits for
the wrong thing reads what was there before; products of warpgroups read their operands when they are waited for. Shared
memory begins as NaNs; an access outside of a buffer, a misaligned one, and an instruction that is not known here are errors.
Known is what the kernels need; a cluster is one block, and tensor maps are those of `Memory.map`.

    kernel = Kernel(ptx_text)
    memory = Memory(1 << 24)
    at = memory.put(array)
    kernel.run(memory, grid=4, threads=128, shared=0, args=[at, np.int32(7), np.float32(0.5)], seed=1)
    memory.get(at, array.dtype, array.size)
"""
import re

import numpy as np

LANES = np.arange(32)
SHARED_BASE = 1 << 40  # where generic addresses of shared memory begin, and those of a kernel's arguments
PARAM_BASE = 1 << 41
GLOBAL_BASE = 1 << 20
U = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
S = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


class Memory:
    """Global memory: buffers with gaps between them that nobody may touch."""

    def __init__(self, size):
        self.bytes = np.zeros(size, np.uint8)
        self.open = np.zeros(size, bool)
        self.end, self.maps = 256, []

    def room(self, size):
        at = self.end
        self.end = (at + size + 511) // 256 * 256
        if self.end > self.bytes.size:
            raise MemoryError(f"{self.end} bytes of {self.bytes.size}")
        self.open[at:at + size] = True
        return GLOBAL_BASE + at

    def put(self, array):
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        at = self.room(data.size)
        self.bytes[at - GLOBAL_BASE:at - GLOBAL_BASE + data.size] = data
        return at

    def map(self, base, lengths, strides, box):
        """A tensor map of 16-bit values with the 128-byte swizzle, as 128 bytes: a box is 64 values wide."""
        self.maps.append((base, lengths, [2, *strides], box))
        return np.array([len(self.maps) - 1] + [0] * 15, np.uint64)

    def get(self, at, dtype, count):
        size = np.dtype(dtype).itemsize * count
        return self.bytes[at - GLOBAL_BASE:at - GLOBAL_BASE + size].view(dtype).copy()


class Fault(Exception):
    pass


class Space:
    """Bytes that lanes read and write."""

    def __init__(self, data, base, allowed, name):
        self.data, self.base, self.allowed, self.name = data, base, allowed, name

    def places(self, address, mask, size):
        at = address.astype(np.int64) - self.base
        bad = mask & ((at < 0) | (at + size > self.data.size) | (at % size != 0))
        if not bad.any() and self.allowed is not None:
            bad[mask] = ~(self.allowed[at[mask]] & self.allowed[at[mask] + size - 1])
        if bad.any():
            raise Fault(f"{self.name} address {int(address[bad][0]):#x}, {size} bytes")
        return np.where(mask, at, 0)

    def read(self, address, mask, bits, count):
        at = self.places(address, mask, bits // 8 * count)
        view = self.data.view(U[bits])
        return [view[at // (bits // 8) + i] for i in range(count)]

    def write(self, address, mask, bits, values):
        at = self.places(address, mask, bits // 8 * len(values))[mask]
        view = self.data.view(U[bits])
        for i, value in enumerate(values):
            view[at // (bits // 8) + i] = value.astype(U[bits])[mask]


class Barrier:
    """An mbarrier: arrivals and bytes that a phase still wants."""

    def __init__(self, count):
        self.count, self.pending, self.bytes, self.phase = count, count, 0, 0

    def turn(self):
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending = self.count

    def arrive(self):
        self.pending -= 1
        if self.pending < 0:
            raise Fault("more arrivals at a barrier than it counts")
        self.turn()


class Warp:
    def __init__(self, block, number, threads):
        self.block, self.number = block, number
        self.registers = {}
        self.pc = np.zeros(32, np.int64)
        self.gone = number * 32 + LANES >= threads
        self.waits = None  # a reason for standing still: asked anew each time
        self.copies, self.groups = [], []  # cp.async: of the group that is open; committed groups
        self.products, self.product_groups = [], []  # wgmma, likewise


class Block:
    def __init__(self, kernel, memory, index, grid, threads, shared, args, random):
        self.kernel, self.memory, self.index, self.grid, self.threads = kernel, memory, index, grid, threads
        size = (kernel.shared_end + shared + 127) // 128 * 128
        data = np.full(size // 4, 0xffffffff, np.uint32).view(np.uint8)
        self.spaces = {
            "global": Space(memory.bytes, GLOBAL_BASE, memory.open, "global"),
            "shared": Space(data, 0, None, "shared"),
        }
        self.args, self.random = args, random
        self.barriers, self.bulk, self.named = {}, [], {}
        self.warps = [Warp(self, n, threads) for n in range((threads + 31) // 32)]

    def land(self, copy):
        to, data, barrier = copy
        if callable(data):
            data = data()
            places = np.arange(to, to + data.size, 16)
            places ^= (places >> 7 & 7) << 4
            self.spaces["shared"].data.reshape(-1, 16)[places // 16] = data.reshape(-1, 16)
        else:
            self.spaces["shared"].data[to:to + data.size] = data
        if barrier is not None:
            self.barriers[barrier].bytes -= data.size
            self.barriers[barrier].turn()

    def run(self):
        while True:
            live = [w for w in self.warps if not w.gone.all()]
            if not live:
                break
            ready = [w for w in live if w.waits is None or w.waits()]
            # A copy in flight may land at any time; when nobody can go on, one must.
            if self.bulk and (not ready or self.random.random() < 0.02):
                self.land(self.bulk.pop(self.random.integers(len(self.bulk))))
                continue
            if not ready:
                raise Fault(f"block {self.index}: every warp waits, at " + ", ".join(str(w.pc[~w.gone].min()) for w in live))
            warp = ready[self.random.integers(len(ready))]
            warp.waits = None
            self.step(warp, int(self.random.integers(20, 400)))
        if self.bulk:
            raise Fault(f"block {self.index} ends while {len(self.bulk)} copies to it are on their way")

    def step(self, warp, most):
        code = self.kernel.code
        for _ in range(most):
            if warp.gone.all():
                return
            pc = warp.pc[~warp.gone].min()
            mask = ~warp.gone & (warp.pc == pc)
            name, guard, run = code[pc]
            on = mask
            if guard is not None:
                truth = warp.registers[guard[1]]
                on = mask & (truth ^ guard[0])
            warp.pc[mask] = pc + 1
            try:
                if on.any():
                    run(warp, on)
            except Fault as fault:
                raise Fault(f"block {self.index}, warp {warp.number}, `{name}`: {fault}") from None
            if warp.waits is not None and not warp.waits():
                return
            warp.waits = None


def bf16_of(x):
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7fff + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint32)
    return np.where(np.isnan(x), np.uint32(0x7fff), rounded & np.uint32(0xffff))


def f32_of_bf16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


class Kernel:
    def __init__(self, text):
        self.symbols, self.shared_end, self.params = {}, 0, {}
        self.code, self.labels, self.types = [], {}, {}
        text = re.sub(r"//[^\n]*", "", text)
        entry = text.index(".entry")
        for found in re.finditer(r"\.extern\s+\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[\];", text[:entry]):
            self.dynamic = found[2]
        head, body = text[entry:].split("{", 1)
        at = 0
        for found in re.finditer(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.([a-z])(\d+)\s+([\w$]+)(?:\[(\d+)\])?", head):
            align, size = int(found[1] or 0), int(found[3]) // 8 * int(found[5] or 1)
            align = align or size
            at = (at + align - 1) // align * align
            self.params[found[4]] = (at, size)
            at += size
        self.param_bytes = at
        self.parse(body.rsplit("}", 1)[0])
        # Dynamic shared memory lies behind the static.
        self.shared_end = (self.shared_end + 1023) // 1024 * 1024
        if hasattr(self, "dynamic"):
            self.symbols[self.dynamic] = self.shared_end
        self.code = [self.compile(*statement) for statement in self.code]
        self.code.append(("end", None, self.leave))

    # --- reading --------------------------------------------------------------------------------------------------------

    def parse(self, body):
        scopes, fresh, at, begin = [{}], 0, 0, True
        while at < len(body):
            c = body[at]
            if c.isspace():
                at += 1
            elif c == "{":
                scopes.append({})
                at += 1
            elif c == "}":
                scopes.pop()
                at += 1
            else:
                label = re.match(r"([\w$]+):", body[at:])
                if label and not body[at:].startswith(label[0] + ":"):
                    self.labels[self.local(scopes, label[1], True)] = len(self.code)
                    at += label.end()
                    continue
                end = body.index(";", at)
                statement = " ".join(body[at:end].split())
                at = end + 1
                if statement.startswith(".reg"):
                    kind, names = re.match(r"\.reg \.(\w+) (.*)", statement).groups()
                    for name in names.split(","):
                        name = name.strip()
                        if len(scopes) > 1:
                            fresh += 1
                            scopes[-1][name] = f"{name}#{fresh}"
                        self.types[name.split("<")[0]] = kind
                elif statement.startswith(".shared"):
                    align, bits, name, count = re.match(r"\.shared \.align (\d+) \.[a-z](\d+) ([\w$]+)(?:\[(\d+)\])?$", statement).groups()
                    self.shared_end = (self.shared_end + int(align) - 1) // int(align) * int(align)
                    self.symbols[name] = self.shared_end
                    self.shared_end += int(bits) // 8 * int(count or 1)
                elif statement and not statement.startswith((".pragma", ".loc")):
                    guard = re.match(r"@(!?)([%\w]+) (.*)", statement)
                    text = guard[3] if guard else statement
                    name, _, rest = text.partition(" ")
                    rename = lambda m: self.local(scopes, m[0], name.startswith("bra"))
                    rest = re.sub(r"[%$A-Za-z_][\w$.%]*", rename, rest)
                    self.code.append((name, (bool(guard[1]), self.local(scopes, guard[2])) if guard else None, rest))

    def local(self, scopes, name, label=False):
        for scope in reversed(scopes):
            if name in scope:
                return scope[name]
        if label and len(scopes) > 1:
            # A label inside of braces is known there alone.
            scopes[-1][name] = f"{name}@{len(self.code)}.{len(scopes)}"
            return scopes[-1][name]
        return name

    def operands(self, text):
        parts, depth, part = [], 0, ""
        for c in text:
            depth += c in "{[" 
            depth -= c in "}]"
            if c == "," and depth == 0:
                parts.append(part.strip())
                part = ""
            else:
                part += c
        return parts + [part.strip()] if part.strip() else parts

    # --- operands -------------------------------------------------------------------------------------------------------

    def value(self, text, bits):
        """A function of the warp that gives an operand as unsigned numbers, a lane each."""
        special = {
            "%tid.x": lambda w: (w.number * 32 + LANES).astype(np.uint32),
            "%ctaid.x": lambda w: np.full(32, w.block.index[0], np.uint32),
            "%ctaid.y": lambda w: np.full(32, w.block.index[1], np.uint32),
            "%nctaid.x": lambda w: np.full(32, w.block.grid[0], np.uint32),
            "%nctaid.y": lambda w: np.full(32, w.block.grid[1], np.uint32),
            "%ntid.x": lambda w: np.full(32, w.block.threads, np.uint32),
            "%cluster_ctarank": lambda w: np.zeros(32, np.uint32),
            "%cluster_nctarank": lambda w: np.ones(32, np.uint32),
        }
        if text in special:
            return special[text]
        if re.match(r"-?(0[xX])?[0-9a-fA-F]+U?$", text) and not text.startswith(("0f", "0d")):
            number = np.full(32, int(text.rstrip("U"), 0) & ((1 << max(bits, 8)) - 1), U[bits])
            return lambda w: number
        if text.startswith("0f"):
            number = np.full(32, int(text[2:], 16), np.uint32)
            return lambda w: number
        if text in self.symbols:
            number = np.full(32, self.symbols[text], U[max(bits, 32)])
            return lambda w: number
        if text in self.params:
            number = np.full(32, PARAM_BASE + self.params[text][0], np.uint64)
            return lambda w: number
        # What was never written is noise.
        noise = np.full(32, np.iinfo(U[max(bits, 8)]).max // 3, U[max(bits, 8)])
        return lambda w: w.registers.get(text, noise)

    def store(self, w, mask, name, value):
        if name == "_":
            return
        old = w.registers.get(name)
        if old is None or old.dtype != value.dtype or mask.all():
            if old is None or old.dtype != value.dtype:
                # What no lane wrote is noise.
                noise = np.full(32, True if value.dtype == bool else np.iinfo(value.dtype).max // 3, value.dtype)
                value = np.where(mask, value, noise)
            w.registers[name] = value
        else:
            w.registers[name] = np.where(mask, value, old)

    def vector(self, text):
        return [part.strip() for part in text.strip("{}").split(",")] if text.startswith("{") else [text]

    def address(self, text):
        inside = text.strip("[] ")
        base, offset = (re.match(r"(.*?)\+(-?\d+)$", inside) or re.match(r"(.*)()$", inside)).groups()
        offset = int(offset or 0)
        if base in self.symbols or re.match(r"\d+$", base):
            number = np.full(32, (self.symbols[base] if base in self.symbols else int(base)) + offset, np.uint64)
            return lambda w: number
        return lambda w: (w.registers[base].astype(np.int64) + offset).astype(np.uint64)

    def space(self, w, name, address, mask):
        if name:
            return w.block.spaces[name], address
        shared = address >= SHARED_BASE
        if (shared[mask]).all():
            return w.block.spaces["shared"], np.where(shared, address - np.uint64(SHARED_BASE), 0).astype(np.uint64)
        return w.block.spaces["global"], address

    def widen(self, value, kind, register):
        """What was read, as its register has it, which may be wider."""
        declared = self.types.get(re.sub(r"\d+$", "", register), self.types.get(register.split("#")[0], kind))
        bits, wide = int(kind[1:]), int(declared[1:])
        if wide <= bits:
            return value
        return value.view(S[bits]).astype(S[wide]).view(U[wide]) if kind[0] == "s" else value.astype(U[wide])

    # --- instructions ---------------------------------------------------------------------------------------------------

    def compile(self, name, guard, rest):
        words, ops = name.split("."), self.operands(rest)
        make = getattr(self, "do_" + words[0], None)
        if make is None:
            raise Fault(f"`{name} {rest}` is not known here")
        return f"{name} {rest}", guard, make(words, ops)

    def leave(self, w, on):
        w.gone = w.gone | on

    def do_ret(self, words, ops):
        return self.leave

    do_exit = do_ret

    def do_bra(self, words, ops):
        to = self.labels[ops[0]]

        def run(w, on):
            w.pc[on] = to

        return run

    def nothing(self, words, ops):
        return lambda w, on: None

    do_griddepcontrol = do_fence = do_membar = do_prefetch = do_setmaxnreg = nothing

    def simple(self, ops, kind, function, floats=False):
        """d = function(a, b, ...), all of one kind: `s32`, `f32`, ..."""
        bits = 1 if kind == "pred" else int(re.sub(r"\D", "", kind.split("x")[0]))
        inputs = [self.value(op, max(bits, 8)) for op in ops[1:]]
        if kind == "pred":
            def run(w, on):
                self.store(w, on, ops[0], function(*[f(w).astype(bool) for f in inputs]))
        elif floats:
            def run(w, on):
                with np.errstate(all="ignore"):
                    y = function(*[f(w).view(np.float32) for f in inputs])
                self.store(w, on, ops[0], y.astype(np.float32).view(np.uint32))
        else:
            kinds = S if kind[0] == "s" else U

            def run(w, on):
                with np.errstate(all="ignore"):
                    y = function(*[f(w).astype(U[bits]).view(kinds[bits]) for f in inputs])
                self.store(w, on, ops[0], y.astype(kinds[bits]).view(U[bits]))
        return run

    def do_mov(self, words, ops):
        kind = words[-1]
        if kind == "pred":
            return self.simple(ops, kind, lambda a: a)
        bits = int(kind[1:])
        if ops[0].startswith("{"):
            parts, from_ = self.vector(ops[0]), self.value(ops[1], bits)
            each = bits // len(parts)

            def unpack(w, on):
                x = from_(w)
                for i, part in enumerate(parts):
                    self.store(w, on, part, (x >> U[bits](each * i)).astype(U[each]))

            return unpack
        if ops[1].startswith("{"):
            parts = [self.value(part, bits // len(self.vector(ops[1]))) for part in self.vector(ops[1])]
            each = bits // len(parts)

            def pack(w, on):
                y = np.zeros(32, U[bits])
                for i, part in enumerate(parts):
                    y |= part(w).astype(U[bits]) << U[bits](each * i)
                self.store(w, on, ops[0], y)

            return pack
        from_ = self.value(ops[1], bits)
        return lambda w, on: self.store(w, on, ops[0], from_(w).astype(U[bits]))

    def do_add(self, words, ops):
        return self.simple(ops, words[-1], lambda a, b: a + b, words[-1] == "f32")

    def do_sub(self, words, ops):
        return self.simple(ops, words[-1], lambda a, b: a - b, words[-1] == "f32")

    def product(self, words, ops, add):
        kind = words[-1]
        if kind == "f32":
            return self.simple(ops, kind, lambda a, b: a * b, True)
        bits, kinds = int(kind[1:]), S if kind[0] == "s" else U
        wide = bits * 2 if "wide" in words else bits
        inputs = [self.value(op, bits) for op in ops[1:3]] + ([self.value(ops[3], wide)] if add else [])

        def run(w, on):
            with np.errstate(all="ignore"):
                a, b = (f(w).astype(U[bits]).view(kinds[bits]) for f in inputs[:2])
                if "hi" in words:
                    y = ((a.astype(kinds[64]) * b.astype(kinds[64])) >> kinds[64](32)).astype(kinds[bits])
                else:
                    y = a.astype(kinds[wide]) * b.astype(kinds[wide])
                if add:
                    y = y + inputs[2](w).astype(U[wide]).view(kinds[wide])
            self.store(w, on, ops[0], y.view(U[wide]))

        return run

    def do_mul(self, words, ops):
        return self.product(words, ops, False)

    def do_mad(self, words, ops):
        return self.product(words, ops, True)

    def do_fma(self, words, ops):
        if words[-1] in ("bf16x2", "f16x2"):
            inputs = [self.value(op, 32) for op in ops[1:]]
            halves = (f32_of_bf16, bf16_of) if words[-1] == "bf16x2" else None

            def run(w, on):
                wide, narrow = halves
                out = np.zeros(32, np.uint32)
                for shift in (0, 16):
                    a, b, c = (wide((f(w) >> np.uint32(shift)) & np.uint32(0xffff)).astype(np.float64) for f in inputs)
                    out |= narrow((a * b + c).astype(np.float32)).astype(np.uint32) << np.uint32(shift)
                self.store(w, on, ops[0], out)

            return run
        return self.simple(ops, "f32", lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32), True)

    def do_div(self, words, ops):
        if words[-1] == "f32":
            return self.simple(ops, "f32", lambda a, b: a / b, True)
        kind = words[-1]
        toward_zero = lambda a, b: (np.trunc(a.astype(np.float64) / np.where(b == 0, 1, b))).astype(a.dtype)
        return self.simple(ops, kind, toward_zero)

    def do_rem(self, words, ops):
        return self.simple(ops, words[-1], lambda a, b: np.fmod(a, np.where(b == 0, 1, b)).astype(a.dtype))

    def do_min(self, words, ops):
        return self.simple(ops, words[-1], np.fmin if words[-1] == "f32" else np.minimum, words[-1] == "f32")

    def do_max(self, words, ops):
        if words[-1] == "u16x2":
            a, b = (self.value(op, 32) for op in ops[1:])

            def run(w, on):
                halves = np.maximum(a(w).astype(np.uint32).view(np.uint16), b(w).astype(np.uint32).view(np.uint16))
                self.store(w, on, ops[0], halves.view(np.uint32))

            return run
        return self.simple(ops, words[-1], np.fmax if words[-1] == "f32" else np.maximum, words[-1] == "f32")

    def do_neg(self, words, ops):
        return self.simple(ops, words[-1], lambda a: -a, words[-1] == "f32")

    def do_abs(self, words, ops):
        return self.simple(ops, words[-1], np.abs, words[-1] == "f32")

    def do_rcp(self, words, ops):
        return self.simple(ops, "f32", lambda a: np.float32(1) / a, True)

    def do_rsqrt(self, words, ops):
        return self.simple(ops, "f32", lambda a: (1 / np.sqrt(a.astype(np.float64))).astype(np.float32), True)

    def do_sqrt(self, words, ops):
        return self.simple(ops, "f32", np.sqrt, True)

    def do_ex2(self, words, ops):
        return self.simple(ops, "f32", lambda a: np.exp2(a.astype(np.float64)).astype(np.float32), True)

    def do_lg2(self, words, ops):
        return self.simple(ops, "f32", lambda a: np.log2(a.astype(np.float64)).astype(np.float32), True)

    def logic(function):
        def make(self, words, ops):
            return self.simple(ops, words[-1].replace("b", "u") if words[-1] != "pred" else "pred", function)

        return make

    do_and, do_or, do_xor = logic(lambda a, b: a & b), logic(lambda a, b: a | b), logic(lambda a, b: a ^ b)
    do_not = logic(lambda a: ~a)

    def do_shl(self, words, ops):
        return self.shift(words, ops, lambda a, n, bits: np.where(n >= bits, 0, a << np.minimum(n, bits - 1)), "u")

    def do_shr(self, words, ops):
        signed = "s" if words[-1][0] == "s" else "u"
        fill = (lambda a, n, bits: a >> np.minimum(n, bits - 1)) if signed == "s" else (
            lambda a, n, bits: np.where(n >= bits, 0, a >> np.minimum(n, bits - 1)))
        return self.shift(words, ops, fill, signed)

    def shift(self, words, ops, function, signed):
        bits = int(words[-1][1:])
        kinds = S if signed == "s" else U
        a, n = self.value(ops[1], bits), self.value(ops[2], 32)

        def run(w, on):
            x = a(w).astype(U[bits]).view(kinds[bits])
            y = function(x, n(w).astype(kinds[bits]), kinds[bits](bits)).astype(kinds[bits])
            self.store(w, on, ops[0], y.view(U[bits]))

        return run

    def do_shf(self, words, ops):
        low, high, by = (self.value(op, 32) for op in ops[1:])
        if words[2] != "wrap":
            raise Fault(f"`{'.'.join(words)}` is not known here")

        def run(w, on):
            both = low(w).astype(np.uint64) | high(w).astype(np.uint64) << np.uint64(32)
            n = by(w).astype(np.uint64) & np.uint64(31)
            y = both >> n if words[1] == "r" else both << n >> np.uint64(32)
            self.store(w, on, ops[0], y.astype(np.uint32))

        return run

    def do_bfi(self, words, ops):
        a, b, at, length = (self.value(op, 32) for op in ops[1:])

        def run(w, on):
            mask = ((np.uint64(1) << length(w).astype(np.uint64)) - np.uint64(1)) << at(w).astype(np.uint64)
            y = (b(w).astype(np.uint64) & ~mask) | (a(w).astype(np.uint64) << at(w).astype(np.uint64)) & mask
            self.store(w, on, ops[0], y.astype(np.uint32))

        return run

    def do_bfe(self, words, ops):
        bits = int(words[-1][1:])
        a, at, length = self.value(ops[1], bits), self.value(ops[2], 32), self.value(ops[3], 32)
        if words[-1][0] == "s":
            raise Fault("bfe of signed numbers is not known here")

        def run(w, on):
            y = a(w).astype(np.uint64) >> at(w).astype(np.uint64) & ((np.uint64(1) << length(w).astype(np.uint64)) - np.uint64(1))
            self.store(w, on, ops[0], y.astype(U[bits]))

        return run

    def do_lop3(self, words, ops):
        table = int(ops[4], 0)
        a, b, c = (self.value(op, 32) for op in ops[1:4])

        def run(w, on):
            x, y, z = a(w), b(w), c(w)
            out = np.zeros(32, np.uint32)
            for i in range(8):
                if table >> i & 1:
                    out |= (x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)
            self.store(w, on, ops[0], out)

        return run

    def do_prmt(self, words, ops):
        a, b, how = (self.value(op, 32) for op in ops[1:])

        def run(w, on):
            both = a(w).astype(np.uint64) | b(w).astype(np.uint64) << np.uint64(32)
            out, selector = np.zeros(32, np.uint64), how(w).astype(np.uint64)
            for i in range(4):
                pick = selector >> np.uint64(4 * i) & np.uint64(15)
                byte = both >> (pick & np.uint64(7)) * np.uint64(8) & np.uint64(255)
                sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
                out |= np.where(pick & np.uint64(8), sign, byte) << np.uint64(8 * i)
            self.store(w, on, ops[0], out.astype(np.uint32))

        return run

    def do_setp(self, words, ops):
        compare = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
                   "neu": np.not_equal, "equ": np.equal, "ltu": None, "geu": None, "gtu": None, "leu": None,
                   "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}[words[1]]
        inverse = {"ltu": np.greater_equal, "geu": np.less, "gtu": np.less_equal, "leu": np.greater}.get(words[1])
        kind = words[-1]
        bits = int(kind[1:])
        kinds = {"s": S, "u": U, "b": U, "f": {32: np.float32}}[kind[0]]
        a, b = self.value(ops[1], bits), self.value(ops[2], bits)

        def run(w, on):
            x, y = (f(w).astype(U[bits]).view(kinds[bits]) for f in (a, b))
            truth = ~inverse(x, y) if inverse else compare(x, y)
            if words[1] == "neu":
                truth = truth | np.isnan(x) | np.isnan(y)
            self.store(w, on, ops[0], truth)

        return run

    def do_selp(self, words, ops):
        bits = int(words[-1][1:])
        a, b = self.value(ops[1], bits), self.value(ops[2], bits)
        return lambda w, on: self.store(w, on, ops[0], np.where(w.registers[ops[3]], a(w), b(w)).astype(U[bits]))

    def do_cvta(self, words, ops):
        from_ = self.value(ops[1], 64)
        base = np.uint64(SHARED_BASE if "shared" in words else 0)  # arguments have no other addresses
        sign = -1 if "to" in words else 1
        if "shared" not in words:
            return lambda w, on: self.store(w, on, ops[0], from_(w).astype(np.uint64))
        if sign < 0:
            return lambda w, on: self.store(w, on, ops[0], from_(w).astype(np.uint64) - base)
        return lambda w, on: self.store(w, on, ops[0], from_(w).astype(np.uint64) + base)

    def do_ldmatrix(self, words, ops):
        """Eight rows of 16 bytes a matrix, where eight lanes say; each lane gets a word of every matrix."""
        if "trans" in words:
            raise Fault(f"`{'.'.join(words)}` is not known here")
        d, address = self.vector(ops[0]), self.address(ops[1])

        def run(w, on):
            if not on.all():
                raise Fault("a load of matrices that not all lanes are at")
            memory, rows = w.block.spaces["shared"].data.view(np.uint32), address(w)
            for i, name in enumerate(d):
                self.store(w, on, name, memory[(rows[8 * i + LANES // 4] // 4).astype(np.int64) + LANES % 4])

        return run

    def do_mapa(self, words, ops):
        bits = int(words[-1][1:])
        from_ = self.value(ops[1], bits)
        return lambda w, on: self.store(w, on, ops[0], from_(w).astype(U[bits]))

    def do_cvt(self, words, ops):
        to, of = words[-2], words[-1]
        if to in ("bf16x2", "f16x2"):
            high, low = self.value(ops[1], 32), self.value(ops[2], 32)
            half = bf16_of if to == "bf16x2" else lambda x: x.astype(np.float16).view(np.uint16).astype(np.uint32)

            def pack(w, on):
                with np.errstate(all="ignore"):
                    y = half(low(w).view(np.float32)) | half(high(w).view(np.float32)) << np.uint32(16)
                self.store(w, on, ops[0], y.astype(np.uint32))

            return pack
        of_bits, to_bits = int(of[1:]), int(to[1:])
        from_ = self.value(ops[1], of_bits)

        def run(w, on):
            x = from_(w).astype(U[of_bits])
            if of == "f16":
                x = x.view(np.float16).astype(np.float32)
            elif of == "f32":
                x = x.view(np.float32)
            elif of[0] == "s":
                x = x.view(S[of_bits])
            with np.errstate(all="ignore"):
                if "sat" in words:
                    x = np.clip(np.nan_to_num(x, nan=0.0), 0, 1)
                if to == "f32":
                    y = x.astype(np.float32).view(np.uint32)
                elif to == "f16":
                    y = x.astype(np.float16).view(np.uint16)
                elif of[0] == "f":
                    round_ = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}[words[1]]
                    info = np.iinfo((S if to[0] == "s" else U)[to_bits])
                    y = np.clip(round_(x.astype(np.float64)), info.min, info.max).astype((S if to[0] == "s" else U)[to_bits]).view(U[to_bits])
                else:
                    y = x.astype((S if of[0] == "s" else U)[to_bits]).view(U[to_bits])
            self.store(w, on, ops[0], y)

        return run

    def do_ld(self, words, ops):
        if "param" in words:
            name, offset = re.match(r"\[([%\w$]+)(?:\+(-?\d+))?\]", ops[1]).groups()
            at, parts, bits = self.value(name, 64), self.vector(ops[0]), int(words[-1][1:])

            def param(w, on):
                place = np.where(on, at(w).astype(np.int64) - PARAM_BASE + int(offset or 0), 0)
                args = np.frombuffer(w.block.args, np.uint8)
                for i, part in enumerate(parts):
                    columns = place[:, None] + np.arange(bits // 8) + i * bits // 8
                    value = np.ascontiguousarray(args[columns]).view(U[bits])[:, 0]
                    self.store(w, on, part, self.widen(value, words[-1], part))

            return param
        bits, parts = int(words[-1][1:]), self.vector(ops[0])
        space = next((s for s in ("global", "shared") if any(word.startswith(s) for word in words)), None)
        address = self.address(ops[1])

        def run(w, on):
            where, at = self.space(w, space, address(w), on)
            for part, value in zip(parts, where.read(at, on, bits, len(parts))):
                self.store(w, on, part, self.widen(value, words[-1], part))

        return run

    def do_st(self, words, ops):
        bits = int(words[-1][1:])
        space = next((s for s in ("global", "shared") if any(word.startswith(s) for word in words)), None)
        address, parts = self.address(ops[0]), [self.value(part, bits) for part in self.vector(ops[1])]

        def run(w, on):
            where, at = self.space(w, space, address(w), on)
            where.write(at, on, bits, [part(w) for part in parts])

        return run

    def do_atom(self, words, ops):
        bits, address, by = int(words[-1][1:]), self.address(ops[1]), self.value(ops[2], int(words[-1][1:]))
        if "add" not in words:
            raise Fault(f"`{'.'.join(words)}` is not known here")

        def run(w, on):
            where, at = self.space(w, next((s for s in ("global", "shared") if s in words), None), address(w), on)
            out = np.zeros(32, U[bits])
            for lane in np.flatnonzero(on):
                only = LANES == lane
                old = where.read(at, only, bits, 1)[0]
                out[lane] = old[lane]
                where.write(at, only, bits, [old + by(w).astype(U[bits])])
            self.store(w, on, ops[0], out)

        return run

    def do_vote(self, words, ops):
        truth = ops[1]
        function = {"any": np.any, "all": np.all}[words[2]]

        def run(w, on):
            y = w.registers[truth.lstrip("!")] ^ truth.startswith("!")
            self.store(w, on, ops[0], np.full(32, function(y[on])))

        return run

    def do_shfl(self, words, ops):
        value, by, clamp = self.value(ops[1], 32), self.value(ops[2], 32), self.value(ops[3], 32)
        how = words[2]

        def run(w, on):
            n = by(w).astype(np.int64)
            top = (clamp(w).astype(np.int64) & 31) | LANES & (clamp(w).astype(np.int64) >> 8 & 31)
            lane = {"bfly": LANES ^ n, "idx": LANES & (clamp(w).astype(np.int64) >> 8 & 31) | n & ~(clamp(w).astype(np.int64) >> 8) & 31,
                    "down": LANES + n, "up": LANES - n}[how]
            inside = lane >= top if how == "up" else lane <= top
            lane = np.where(inside & (lane >= 0), lane, LANES) & 31
            if not on[lane[on]].all():
                raise Fault("a shuffle with lanes that are elsewhere")
            self.store(w, on, ops[0].split("|")[0], value(w)[lane])

        return run

    def do_redux(self, words, ops):
        value, function = self.value(ops[1], 32), {"max": np.max, "min": np.min, "add": np.sum}[words[2]]
        if words[-1] != "u32":
            raise Fault(f"`{'.'.join(words)}` is not known here")

        def run(w, on):
            self.store(w, on, ops[0], np.full(32, function(value(w).astype(np.uint32)[on]), np.uint32))

        return run

    # --- barriers and copies --------------------------------------------------------------------------------------------

    def do_bar(self, words, ops):
        if words[1] == "warp":
            return self.nothing(words, ops)
        number = self.value(ops[0], 32)
        count = self.value(ops[1], 32) if len(ops) > 1 else None

        def run(w, on):
            if not (on == ~w.gone).all():
                raise Fault("a barrier that not all lanes of a warp are at")
            block, n = w.block, int(number(w)[0])
            wanted = int(count(w)[0]) if count else block.threads
            state = block.named.setdefault(n, [0, 0])
            state[0] += 32
            turn = state[1]
            if state[0] == wanted:
                block.named[n] = [0, turn + 1]
            if words[1] == "sync":
                w.waits = lambda: block.named[n][1] > turn

        return run

    def do_barrier(self, words, ops):
        if "cluster" not in words:
            return self.do_bar(words, ops)
        # A cluster of one block.
        every = self.do_bar(["bar", "sync"], ["15"])
        return every if "wait" in words else self.nothing(words, ops)

    def do_mbarrier(self, words, ops):
        what = words[1]
        if what == "init":
            address, count = self.address(ops[0]), self.value(ops[1], 32)

            def init(w, on):
                for lane in np.flatnonzero(on):
                    w.block.barriers[int(address(w)[lane])] = Barrier(int(count(w)[lane]))

            return init
        if what == "arrive":
            address = self.address(ops[1])
            bytes_ = self.value(ops[2], 32) if "expect_tx" in words else None

            def arrive(w, on):
                for lane in np.flatnonzero(on):
                    barrier = w.block.barriers[int(address(w)[lane])]
                    if bytes_:
                        barrier.bytes += int(bytes_(w)[lane])
                    barrier.arrive()

            return arrive
        if what in ("try_wait", "test_wait"):
            address, parity = self.address(ops[1]), self.value(ops[2], 32)

            def wait(w, on):
                at, wanted, done = address(w), parity(w), np.zeros(32, bool)
                barriers = [(lane, w.block.barriers[int(at[lane])]) for lane in np.flatnonzero(on)]
                for lane, barrier in barriers:
                    done[lane] = barrier.phase != int(wanted[lane]) & 1
                self.store(w, on, ops[0], done)
                if not done.any():
                    phases = {barrier: barrier.phase for _, barrier in barriers}
                    w.waits = lambda: any(barrier.phase != phase for barrier, phase in phases.items())

            return wait
        raise Fault(f"`{'.'.join(words)}` is not known here")

    def do_cp(self, words, ops):
        if words[1:3] == ["async", "bulk"]:
            if "prefetch" in words:
                return self.nothing(words, ops)
            if "tensor" in words:
                return self.box(ops)
            to, from_, bytes_, barrier = self.address(ops[0]), self.address(ops[1]), self.value(ops[2], 32), self.address(ops[3])

            def bulk(w, on):
                for lane in np.flatnonzero(on):
                    at, size = int(from_(w)[lane]) - GLOBAL_BASE, int(bytes_(w)[lane])
                    place = int(to(w)[lane])
                    memory = w.block.memory
                    if at % 16 or size % 16 or place % 16 or not memory.open[at:at + size].all() or size <= 0:
                        raise Fault(f"{size} bytes from {at:#x} to {place:#x}")
                    # What the copy reads it reads when it lands.
                    w.block.bulk.append((place, memory.bytes[at:at + size], int(barrier(w)[lane])))

            return bulk
        if words[2] == "commit_group":
            def commit(w, on):
                w.groups.append(w.copies)
                w.copies = []

            return commit
        if words[2] in ("wait_group", "wait_all"):
            left = int(ops[0]) if ops else 0

            def wait(w, on):
                while len(w.groups) > left:
                    for copy in w.groups.pop(0):
                        w.block.land(copy)

            return wait
        to, from_, size = self.address(ops[0]), self.address(ops[1]), int(ops[2])

        def copy(w, on):
            space, at = self.space(w, "global", from_(w), on)
            places = space.places(at, on, size)
            for lane in np.flatnonzero(on):
                place = int(to(w)[lane])
                if place % size or place + size > w.block.spaces["shared"].data.size:
                    raise Fault(f"a copy to shared address {place:#x}")
                w.copies.append((place, space.data[places[lane]:places[lane] + size], None))

        return copy

    def box(self, ops):
        to, barrier = self.address(ops[0]), self.address(ops[2])
        map_, corner = re.match(r"\[(.*?), \{(.*)\}\]", ops[1]).groups()
        map_, corner = self.value(map_, 64), [self.value(x.strip(), 32) for x in corner.split(",")]

        def run(w, on):
            memory = w.block.memory
            for lane in np.flatnonzero(on):
                at = int(map_(w)[lane])
                source = w.block.args[at - PARAM_BASE:] if at >= PARAM_BASE else memory.bytes[at - GLOBAL_BASE:at - GLOBAL_BASE + 8].tobytes()
                base, lengths, strides, sizes = memory.maps[int(np.frombuffer(source[:8], np.uint64)[0])]
                first = [int(np.int32(x(w).astype(np.uint32).view(np.int32)[lane])) for x in corner]

                def data(base=base, lengths=lengths, strides=strides, sizes=sizes, first=first):
                    places, inside = np.zeros(1, np.int64), np.ones(1, bool)
                    # The innermost axis varies fastest.
                    for length, stride, size, begin in zip(lengths, strides, sizes, first):
                        index = begin + np.arange(size)
                        places = (index * stride)[:, None] + places[None]
                        inside = ((index >= 0) & (index < length))[:, None] & inside[None]
                        places, inside = places.reshape(-1), inside.reshape(-1)
                    places = np.where(inside, places + base - GLOBAL_BASE, 0)
                    return np.where(inside, memory.bytes.view(np.uint16)[places // 2], 0).astype(np.uint16).view(np.uint8)

                place = int(to(w)[lane])
                if place % 128 or sizes[0] != 64:
                    raise Fault(f"a box of {sizes} to {place:#x}")
                w.block.bulk.append((place, data, int(barrier(w)[lane])))

        return run

    # --- products -------------------------------------------------------------------------------------------------------

    def do_mma(self, words, ops):
        """Of tf32 (k8), 16-bit floats (k16) or bytes (k32): a register has `per` values of neighbouring k."""
        whole, single = "m16n8k32" in words and words[-1] == "s32", "m16n8k8" in words and words[-2] == "tf32"
        if not whole and not single and not ("m16n8k16" in words and words[-1] == "f32"):
            raise Fault(f"`{'.'.join(words)}` is not known here")
        if single:
            per, number, result = 1, np.float64, np.float32
            left = right = lambda x: (x & np.uint32(0xffffe000)).view(np.float32)
        elif whole:
            per, number, result = 4, np.int64, np.int32
            left, right = ((lambda x, kind=kind: x.astype(np.uint8).view(kind)) for kind in ({"s8": np.int8, "u8": np.uint8}[w] for w in words[-3:-1]))
        else:
            per, number, result = 2, np.float64, np.float32
            half = f32_of_bf16 if words[-2] == "bf16" else lambda x: x.astype(np.uint16).view(np.float16)
            left = right = lambda x: half(x & np.uint32(0xffff))
        d = self.vector(ops[0])
        a, b, c = ([self.value(part, 32) for part in self.vector(op)] for op in ops[1:4])
        g, t = LANES // 4, LANES % 4

        def run(w, on):
            if not on.all():
                raise Fault("a product that not all lanes are at")
            A, B, C = (np.zeros(shape, number) for shape in ((16, 8 * per), (8 * per, 8), (16, 8)))
            for at in range(per):
                shift = np.uint32(32 // per * at)
                for i in range(4):
                    A[g + i % 2 * 8, per * t + at + i // 2 * 4 * per] = left(a[i](w) >> shift)
                for i in range(2):
                    B[per * t + at + i * 4 * per, g] = right(b[i](w) >> shift)
            for i in range(4):
                C[g + i // 2 * 8, 2 * t + i % 2] = c[i](w).astype(np.uint32).view(result)
            with np.errstate(all="ignore"):
                D = A @ B + C
            if whole and np.abs(D).max() >= 1 << 31:
                raise Fault("a sum of whole numbers overflows")
            for i in range(4):
                with np.errstate(all="ignore"):
                    self.store(w, on, d[i], D[g + i // 2 * 8, 2 * t + i % 2].astype(result).view(np.uint32))

        return run

    def do_wgmma(self, words, ops):
        if words[1] == "fence":
            return self.nothing(words, ops)
        if words[1] == "commit_group":
            def commit(w, on):
                w.product_groups.append(w.products)
                w.products = []

            return commit
        if words[1] == "wait_group":
            left = int(ops[0])

            def wait(w, on):
                while len(w.product_groups) > left:
                    for product in w.product_groups.pop(0):
                        product()

            return wait
        n = int(re.match(r"m64n(\d+)k16", words[4])[1])
        wide = f32_of_bf16 if words[-1] == "bf16" else lambda x: x.view(np.float16).astype(np.float32)
        d, in_registers = self.vector(ops[0]), ops[1].startswith("{")
        a = [self.value(part, 32) for part in self.vector(ops[1])] if in_registers else self.value(ops[1], 64)
        b, accumulate = self.value(ops[2], 64), ops[3]
        g, t = LANES // 4, LANES % 4

        def operand(w, descriptor, first, rows):
            """Rows of 16 values: K-major, with the 128-byte swizzle."""
            if descriptor >> 62 != 1:
                raise Fault("an operand without the 128-byte swizzle")
            start, stride = (descriptor & 0x3fff) << 4, (descriptor >> 32 & 0x3fff) << 4
            row = first + np.arange(rows)
            at = start + (row // 8 * stride + row % 8 * 128)[:, None] + 2 * np.arange(16)
            at ^= (at >> 7 & 7) << 4
            return wide(w.block.spaces["shared"].data.view(np.uint16)[at // 2]).astype(np.float64)

        def run(w, on):
            if not on.all():
                raise Fault("a product that not all lanes are at")
            keep = accumulate == "1" or bool(w.registers[accumulate][0])
            number = int(b(w)[0])
            if in_registers:
                A = np.zeros((16, 16))
                for half in (0, 1):
                    for i in range(4):
                        A[g + i % 2 * 8, 2 * t + half + i // 2 * 8] = wide(((a[i](w) >> np.uint32(16 * half)) & np.uint32(0xffff)).astype(np.uint16))
            else:
                first = int(a(w)[0])

            def product():
                left = A if in_registers else operand(w, first, w.number % 4 * 16, 16)
                D = left @ operand(w, number, 0, n).T
                for i in range(n // 2):
                    at = g + i % 4 // 2 * 8, i // 4 * 8 + 2 * t + i % 2
                    old = w.registers[d[i]].view(np.float32) if keep else np.float32(0)
                    w.registers[d[i]] = (D[at] + old).astype(np.float32).view(np.uint32)

            w.products.append(product)

        return run

    # --- running --------------------------------------------------------------------------------------------------------

    def run(self, memory, grid, threads, shared, args, seed):
        grid = (grid, 1) if isinstance(grid, int) else grid
        packed = bytearray(self.param_bytes)
        for (at, size), value in zip(self.params.values(), args, strict=True):
            data = np.asarray(value if isinstance(value, (np.ndarray, np.generic, bytes)) else np.uint64(value)).tobytes()
            packed[at:at + size] = data[:size]
        random = np.random.default_rng(seed)
        for y in range(grid[1]):
            for x in range(grid[0]):
                Block(self, memory, (x, y), grid, threads, shared, bytes(packed), random).run()
