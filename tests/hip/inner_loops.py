"""Bounds the speed of the inner loops of AMD kernels, from their machine code.

The inner loop of a kernel is one path through its innermost loop with matrix instructions. The path is chosen by, in
this order: the most matrix instructions, the most 128-bit loads, the fewest instructions of nested loops, the most
bytes written to LDS, the fewest instructions. It then contains no code for edges and unusual strides.

Two numbers bound its speed, both relative to the peak of the matrix units. `busiest` assumes that all units work at the
same time: the unit with the most clocks bounds the loop. `simulated` runs the loop in all waves of a compute unit. A
wave issues its instructions in order. An instruction waits for its unit, for registers written by the matrix and vector
units, for the counters of s_waitcnt, and at barriers. Accesses to memory have one latency, and LDS has no bank
conflicts.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tests.hip.architectures import architectures

Listing = Sequence[tuple[int, str]]  # address and text of each instruction; a branch's text ends in @ADDRESS


@dataclass(frozen=True)
class Rates:
    """A compute unit, in clocks.

    Sources: AMD's instruction set guides of CDNA 2, CDNA 3, RDNA 3 and RDNA 4 (passes of the matrix instructions, waves
    and wave instructions); the white papers of CDNA 3 and RDNA (bytes a clock of LDS and of the first cache); LLVM's
    scheduling model of GFX11 (a vector unit with separate transcendental unit, their latencies). The latencies of LDS
    and memory are round numbers for an unloaded LDS and a hit in the L2.
    """

    simds: int
    issue: int  # from one instruction of a wave to the next
    vector: int  # vector instruction
    slow: int  # transcendental instruction, 32-bit integer multiplication
    vector_latency: int
    matrix: int  # 16 x 16 x 16 float16 multiplication at the peak
    shortest_matrix: int  # minimum of a matrix instruction
    matrix_f32: int  # 16 x 16 x 4 float32 multiplication; 0: none
    shared: bool  # matrix instructions run on the vector unit; transcendental ones have a separate unit
    lds_latency: int
    matrix_latency: int = 8  # beyond the instruction's clocks
    lds_bytes: int = 128  # in a clock
    memory_bytes: int = 64  # in a clock
    memory_latency: int = 500
    int8_rate: int = 1  # int8 multiplications in the time of one in float16


def rates(arch: str) -> Rates:
    row = architectures()[arch]
    cdna = row["wave"] == "64"
    simds = 4 if cdna else 2
    matrix = 2 * 16**3 * simds // max(1, int(row["matrix_flops"]))
    int8_rate = 2 if arch.startswith(("gfx94", "gfx95", "gfx12")) else 1
    if cdna:
        return Rates(simds, 4, 4, 16, 4, matrix, 16, 32, False, 128, int8_rate=int8_rate)
    return Rates(simds, 1, 1, 4, 5, matrix, 0, 0, True, 64, int8_rate=int8_rate)


MATRIX = re.compile(r"v_(?:mfma|wmma)_(?:f32|i32)_(\d+)x(\d+)x(\d+)_?(f32|f16|i8|iu8)")
SLOW = re.compile(r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)_|v_mul_(lo|hi)_[iu]32|v_mad_(co_)?[iu]64_[iu]32")
REGISTER = re.compile(r"\b([va])(?:(\d+)\b|\[(\d+):(\d+)\])")
WIDTH = re.compile(r"_(?:dwordx(\d)|dword|[bu](\d+)|f(\d+))")
MEMORY = ("global_", "flat_", "buffer_load", "buffer_store", "scratch_")


def access_bits(name: str) -> int:
    """Returns the bits that a load or store moves for each lane; 32 for a byte or half."""
    found = WIDTH.search(name)
    words, *bits = found.groups() if found else (None, None, None)
    size = 32 * int(words) if words else max(32, int(next(filter(None, bits), 32)))
    return size * (2 if re.match(r"ds_(load|store|read|write)_?2", name) else 1)


def registers(text: str) -> tuple[str, ...]:
    found = []
    for bank, one, first, last in REGISTER.findall(text):
        found += [bank + one] if one else [f"{bank}{i}" for i in range(int(first), int(last) + 1)]
    return tuple(found)


def waits(text: str) -> dict[str, int]:
    """Returns the counters ("memory", "LDS") that an instruction waits for, and the values that they must reach."""
    name, _, operand = text.partition(" ")
    if name == "s_waitcnt":
        found = dict(re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", text))
        return {unit: int(found[key]) for key, unit in (("vmcnt", "memory"), ("lgkmcnt", "LDS")) if key in found}
    if name == "s_wait_loadcnt_dscnt":
        return {"memory": int(operand, 0) >> 8 & 63, "LDS": int(operand, 0) & 63}
    unit = {"s_wait_loadcnt": "memory", "s_wait_dscnt": "LDS", "s_wait_kmcnt": "LDS"}.get(name)
    return {unit: int(operand, 0)} if unit else {}


@dataclass(frozen=True)
class Instruction:
    """One instruction of a loop, with its costs for one wave."""

    text: str
    unit: str  # matrix, vector, transcendental, LDS, memory, scalar or barrier
    clocks: int = 1  # clocks of the unit
    latency: int = 0  # from its start to the use of its result
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    waits: dict[str, int] = field(default_factory=dict)
    peak_clocks: int = 0  # clocks of a matrix instruction at the peak


def instruction(arch: str, text: str) -> Instruction:
    """Returns an instruction with its unit and clocks."""
    r, wave = rates(arch), int(architectures()[arch]["wave"])
    name, _, operands = text.partition(" ")
    if name.startswith("v_"):
        # The halves of a dual instruction are separated by ::.
        halves = [half.strip().partition(" ")[2].partition(", ") for half in text.split(" :: ")]
        writes = tuple(one for first, _, _ in halves for one in registers(first))
        reads = tuple(one for _, _, rest in halves for one in registers(rest))
        found = MATRIX.match(name)
        if found:
            size = int(found[1]) * int(found[2]) * int(found[3])
            peak = r.matrix_f32 * size // 1024 if found[4] == "f32" else r.matrix * size // 4096
            if found[4].endswith("8"):
                peak //= r.int8_rate
            clocks = max(r.shortest_matrix, peak)
            return Instruction(text, "matrix", clocks, clocks + r.matrix_latency, reads, writes, peak_clocks=peak)
        if SLOW.match(name):
            unit = "transcendental" if r.shared else "vector"
            return Instruction(text, unit, r.slow, r.slow - r.vector + r.vector_latency, reads, writes)
        return Instruction(text, "vector", r.vector, r.vector_latency, reads, writes)
    if name.startswith("ds_"):
        clocks = wave * access_bits(name) // 8 // r.lds_bytes
        return Instruction(text, "LDS", max(1, clocks), r.lds_latency, registers(operands))
    if name.startswith(MEMORY):
        clocks = wave * access_bits(name) // 8 // r.memory_bytes
        return Instruction(text, "memory", max(1, clocks), r.memory_latency, registers(operands))
    if name in ("s_barrier", "s_barrier_wait"):
        return Instruction(text, "barrier", 0)
    return Instruction(text, "scalar", int(operands, 0) + 1 if name == "s_nop" else 1, waits=waits(text))


def units_of(r: Rates, one: Instruction, simd: int) -> dict[tuple[str, int], int]:
    """Returns the units that an instruction occupies, and for how long. All SIMDs share LDS and the first cache."""
    if one.unit == "matrix" and not r.shared:
        return {("vector", simd): r.vector, ("matrix", simd): one.clocks}
    if one.unit == "transcendental":
        return {("vector", simd): r.vector, ("transcendental", simd): one.clocks}
    if one.unit in ("matrix", "vector"):
        return {("vector", simd): one.clocks}
    return {(one.unit, 0): one.clocks} if one.unit in ("LDS", "memory") else {}


@dataclass
class Loop:
    """The inner loop of a kernel, as one wave runs it."""

    arch: str
    code: list[Instruction]

    @cached_property
    def clocks(self) -> Counter[str]:
        """The clocks of each unit for one wave."""
        found: Counter[str] = Counter()
        for one in self.code:
            found[one.unit] += one.clocks
        return found

    @cached_property
    def lds_bits(self) -> Counter[int]:
        """The number of LDS accesses of each width in bits."""
        return Counter(access_bits(one.text.split()[0]) for one in self.code if one.unit == "LDS")

    def count(self, pattern: str) -> int:
        return sum(bool(re.match(pattern, one.text)) for one in self.code)

    def busiest(self) -> float:
        """Returns the share of the matrix units' peak if the busiest unit is always busy."""
        r = rates(self.arch)
        total: Counter[str] = Counter()
        for one in self.code:
            for (unit, _), clocks in units_of(r, one, 0).items():
                total[unit] += clocks * (r.simds if unit in ("LDS", "memory") else 1)
        return sum(one.peak_clocks for one in self.code) / max(total.values())

    def alone(self, waves: int) -> int:
        """Returns the clocks of a round if a compute unit has one work-group of `waves` waves."""
        return (run(self, 1, waves, 18).clocks - run(self, 1, waves, 6).clocks) // 12

    def simulated(self, groups: int, waves: int) -> float:
        """Returns the share of the matrix units' peak, with `groups` work-groups of `waves` waves on a compute unit.

        It is measured from the end of the fastest wave's 6th round of the loop to the end of its 18th round.
        """
        first, last = run(self, groups, waves, 6), run(self, groups, waves, 18)
        return (last.matrix - first.matrix) / (rates(self.arch).simds * (last.clocks - first.clocks))


@dataclass
class Wave:
    group: int
    simd: int
    at: int = 0
    rounds: int = 0
    ready: dict[str, int] = field(default_factory=dict)  # the first clock that can read a register
    pending: dict[str, list[int]] = field(default_factory=lambda: {"LDS": [], "memory": []})  # ends of accesses

    def start(self, one: Instruction, now: int) -> int:
        """Returns the clock at which the wave can issue an instruction if its units are free."""
        at = max([now, *(self.ready.get(name, 0) for name in (*one.reads, *one.writes))])
        for unit, value in one.waits.items():
            if len(self.pending[unit]) > value:
                at = max(at, self.pending[unit][-value - 1])
        return at

    def issue(self, one: Instruction, at: int) -> None:
        self.ready.update(dict.fromkeys(one.writes, at + one.latency))
        for unit, value in one.waits.items():
            self.pending[unit] = self.pending[unit][-value:] if value else []
        if one.unit in self.pending:
            self.pending[one.unit].append(at + one.clocks + one.latency)


@dataclass(frozen=True)
class Run:
    clocks: int
    matrix: int  # clocks of the matrix instructions of all waves, at the peak


def run(loop: Loop, groups: int, waves: int, rounds: int) -> Run:
    """Runs the loop in all waves of a compute unit, until one of them has run it `rounds` times.

    Waves are assigned to the SIMDs in turn. Work-groups start one after the other, within the time of one round. If two
    waves wait for a unit, the one with the lower index runs first.
    """
    r = rates(loop.arch)
    free: dict[tuple[str, int], int] = {}
    arrived: dict[int, list[int]] = {}
    all_waves = [Wave(i // waves, i % r.simds) for i in range(groups * waves)]
    length = sum(one.clocks for one in loop.code)
    queue = [(wave.group * length // groups, i) for i, wave in enumerate(all_waves)]
    matrix = 0
    while True:
        now, which = heapq.heappop(queue)
        wave = all_waves[which]
        one = loop.code[wave.at]
        units = units_of(r, one, wave.simd)
        start = max([wave.start(one, now), *(free.get(unit, 0) for unit in units)])
        if start > now:
            heapq.heappush(queue, (start, which))
            continue
        free.update({unit: start + clocks for unit, clocks in units.items()})
        wave.issue(one, start)
        matrix += one.peak_clocks
        end = start + max(r.issue, one.clocks if one.unit == "scalar" else 0)
        wave.at += 1
        if wave.at == len(loop.code):
            wave.at, wave.rounds = 0, wave.rounds + 1
            if wave.rounds == rounds:
                return Run(end, matrix)
        resumed = [which]
        if one.unit == "barrier":
            there = arrived.setdefault(wave.group, [])
            there.append(which)
            resumed = arrived.pop(wave.group) if len(there) == waves else []
        for i in resumed:
            heapq.heappush(queue, (end, i))


# --- The inner loop of a kernel


@dataclass
class Block:
    code: list[str]
    after: list[int]  # the blocks that may follow


def blocks_of(listing: Listing) -> list[Block]:
    """Returns the basic blocks in the order of their addresses. The first one is the entry."""
    places = {address: at for at, (address, _) in enumerate(listing)}
    targets = {}
    for at, (_, text) in enumerate(listing):
        branch = re.match(r"s_c?branch\S* @(\d+)", text)
        if branch:
            targets[at] = places[int(branch[1])]
    starts = {0, *targets.values()}
    starts |= {at + 1 for at, (_, text) in enumerate(listing) if at in targets or text.startswith("s_endpgm")}
    ordered = sorted(start for start in starts if start < len(listing))
    number = {start: i for i, start in enumerate(ordered)}
    blocks = []
    for start, stop in zip(ordered, [*ordered[1:], len(listing)], strict=True):
        code = [text for _, text in listing[start:stop]]
        after = [number[targets[stop - 1]]] if stop - 1 in targets else []
        if not code[-1].startswith(("s_branch", "s_endpgm")) and stop < len(listing):
            after.append(number[stop])
        blocks.append(Block(code, after))
    return blocks


def reverse_postorder(blocks: Sequence[Block]) -> list[int]:
    seen, order = {0}, []
    stack = [(0, iter(blocks[0].after))]
    while stack:
        block, rest = stack[-1]
        following = next((b for b in rest if b not in seen), None)
        if following is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(blocks[following].after)))
    return order[::-1]


def natural_loops(blocks: Sequence[Block], order: Sequence[int]) -> dict[int, set[int]]:
    """Returns the blocks of each natural loop by its header. `order` is a reverse postorder."""
    before: dict[int, list[int]] = {b: [] for b in order}
    for b in order:
        for following in blocks[b].after:
            before[following].append(b)
    dominators = dict.fromkeys(order, (1 << len(blocks)) - 1)  # a bit for each block
    dominators[0] = 1
    changed = True
    while changed:
        changed = False
        for b in order[1:]:
            common = -1
            for earlier in before[b]:
                common &= dominators[earlier]
            changed |= dominators[b] != common | 1 << b
            dominators[b] = common | 1 << b
    loops: dict[int, set[int]] = {}
    for b in order:
        for header in blocks[b].after:
            if dominators[b] >> header & 1:
                body = loops.setdefault(header, {header})
                stack = [b]
                while stack:
                    one = stack.pop()
                    if one not in body:
                        body.add(one)
                        stack += before[one]
    return loops


Value = tuple[int, ...]


def value_of(code: Sequence[str], nested: bool = False) -> Value:
    """Returns the terms by which paths are compared, the most important one first (see the module's docstring)."""
    matrix = sum(bool(MATRIX.match(text)) for text in code)
    wide = sum(bool(re.match(r"(global|flat|buffer)_load_(dwordx4|b128)", text)) for text in code)
    written = sum(access_bits(text.split()[0]) for text in code if text.startswith(("ds_write", "ds_store")))
    return matrix, wide, -len(code) * nested, written, -len(code)


def main_path(
    blocks: Sequence[Block], header: int, body: set[int], order: Sequence[int], nested: set[int]
) -> list[str]:
    """Returns the instructions of the best path from the header of a loop back to it."""
    place = {b: i for i, b in enumerate(order)}
    best = {header: (value_of(blocks[header].code), blocks[header].code)}
    ends = []
    for b in sorted(body, key=lambda b: place[b]):
        if b not in best:
            continue
        value, path = best[b]
        for following in blocks[b].after:
            if following == header:
                ends.append((value, path))
            elif following in body and place[following] > place[b]:
                block = blocks[following].code
                total = tuple(map(sum, zip(value, value_of(block, following in nested), strict=True)))
                if following not in best or total > best[following][0]:
                    best[following] = (total, path + block)
    return max(ends)[1]


def inner_loop(arch: str, listing: Listing) -> Loop | None:
    """Returns the inner loop of a kernel: of several, the one with the most matrix instructions; None without any."""
    blocks = blocks_of(listing)
    order = reverse_postorder(blocks)
    loops = natural_loops(blocks, order)
    has_matrix = {header for header, body in loops.items() if any(value_of(blocks[b].code)[0] for b in body)}
    paths = []
    for header in has_matrix:
        inside = loops.keys() & loops[header] - {header}
        if not inside & has_matrix:
            nested = {b for other in inside for b in loops[other]}
            paths.append(main_path(blocks, header, loops[header], order, nested))
    if not paths:
        return None
    return Loop(arch, [instruction(arch, text) for text in max(paths, key=value_of)])
