"""GatherBlockQuantized on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.hip.case import FLOATS, Case, tolerance_of
from tests.hip.harness import Array, Harness, Plan, int64s


@dataclass(frozen=True)
class Table:
    """Quantized x of a shape, gathered along one axis, with blocks along another one."""

    shape: tuple[int, ...]
    gather: int
    axis: int
    block: int
    indices: int


TABLES = (
    Table((9, 64), 0, 1, 32, 5), Table((7, 72), 0, 1, 16, 11), Table((20, 40), 0, 1, 128, 3),
    Table((40, 6), 1, 0, 16, 4), Table((3, 5, 32), 0, 2, 16, 7), Table((4, 3, 34), 1, 2, 16, 6),
    Table((2, 50, 8), 2, 1, 16, 9), Table((50, 3), 0, 0, 16, 30),
)  # fmt: skip


def packed(codes: Array, bits: int) -> Array:
    """Returns the integers of the last axis in bytes, low bits first, with zeros up to the end of a byte."""
    each = 8 // bits
    rows = codes.reshape(-1, codes.shape[-1])
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % each))).astype(np.uint8) & (1 << bits) - 1
    shifts = (np.arange(each) * bits).astype(np.uint8)
    return np.asarray(np.bitwise_or.reduce(rows.reshape(len(rows), -1, each) << shifts, axis=-1))


def case(name: str, dtype: Any, table: Table, bits: int, kind: str, points: bool, narrow: bool) -> Case:
    """`kind`: "int4" and "uint4" are packed across rows; the zero points of "uint8" end at a byte in each row."""
    rng = np.random.default_rng([*table.shape, bits])
    low = -(1 << bits - 1) if kind == "int4" else 0
    blocks = list(table.shape)
    blocks[table.axis] = -(-blocks[table.axis] // table.block)
    codes = rng.integers(low, low + (1 << bits), table.shape)
    scales = (rng.random(blocks) + 0.5).astype(dtype)
    default = 1 << bits - 1 if kind == "uint8" else 0
    zero = rng.integers(low, low + (1 << bits), blocks) if points else np.full(blocks, default)
    size = table.shape[table.gather]
    index = rng.integers(-size, size, table.indices).astype(np.int32 if narrow else np.int64)
    index[-1] = size if table.indices > 4 else index[-1]  # out of range: zeros

    def spread(values: Array) -> Array:
        return np.take(values, np.arange(table.shape[table.axis]) // table.block, table.axis).astype(np.float64)

    weights = (codes - spread(zero)) * spread(scales)
    y = np.take(weights, index, table.gather, mode="wrap")
    y = y * np.expand_dims(index < size, tuple(i for i in range(len(table.shape)) if i != table.gather))
    rows = kind == "uint8"
    stored = [packed(x if rows else x.reshape(1, -1), bits) for x in (codes, zero)]

    def plan(harness: Harness, facts: int) -> Plan:
        flags = map(c_int, (bits, kind == "int4", points, default, narrow, dtype == np.float16))
        sizes: list[int] = []
        for axis in (table.gather, table.axis):
            before, after = table.shape[:axis], table.shape[axis + 1 :]
            sizes += [int(np.prod(before)), table.shape[axis], int(np.prod(after))]
            sizes.append(table.block if len(sizes) > 4 else table.indices)
        row = blocks[-1] if rows else int(np.prod(blocks))
        return harness.plan("gather_block_quantized", facts, *flags, int64s([*sizes, row]))

    inputs = [stored[0], index, scales, *(stored[1:] if points else [])]
    return Case(name, "GatherBlockQuantized", inputs, [y], plan, tolerance_of(dtype), output_dtype=dtype)


def cases() -> Iterator[Case]:
    for suffix, dtype in FLOATS:
        for i, table in enumerate(TABLES):
            for kind, bits in (("int4", 4), ("uint4", 4), ("uint8", 2), ("uint8", 4), ("uint8", 8)):
                if kind == "uint8" and table.shape[-1] % (8 // bits):
                    continue  # its rows must be whole bytes
                name = f"gather_block_quantized_{suffix}-{kind}_{bits}-{i}"
                yield case(name, dtype, table, bits, kind, i % 3 != 1, i % 2 == 1)
