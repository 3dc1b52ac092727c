"""The tables of GEMM tiles, native/gemm/tiles.h."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.hip.harness import ROOT

TABLES = ("VECTOR", "VECTOR_F16", "STRIDED", "ALIGNED", "WARPGROUP", "INTEGER_WARPGROUP")


@dataclass(frozen=True)
class Tile:
    """A row: its value of `GemmTile`, its size in kernel names, and the remaining columns."""

    number: int
    size: str
    columns: tuple[str, ...]


def _rows() -> Iterator[tuple[str, Tile]]:
    text = (ROOT / "native" / "gemm" / "tiles.h").read_text()
    number = 0
    for table in TABLES:
        body = re.search(rf"^#define GEMM_{table}_TILES\(TILE\)(.*?[^\\])\n", text, re.MULTILINE | re.DOTALL)
        assert body is not None
        for row in re.findall(r"\bTILE\((.*?)(?=\bTILE\(|$)", body[1], re.DOTALL):
            size, *columns = re.findall(r"\w+", row)
            yield table, Tile(number, size, tuple(columns))
            number += 1


_ALL = list(_rows())
VECTOR, VECTOR_F16, STRIDED, ALIGNED, WARPGROUP, INTEGER_WARPGROUP = (
    [tile for of, tile in _ALL if of == table] for table in TABLES
)
# Winograd's kernels use all tiles of the vector unit.
ALL_VECTOR = VECTOR + VECTOR_F16


def _aligned(column: int) -> tuple[list[Tile], list[Tile]]:
    """Returns the aligned tiles with kernels on AMD and the CPU, and those with kernels on NVIDIA only.

    Args:
        column: The index of the column with the targets of the kernels.
    """
    targets = [(tile, tile.columns[column]) for tile in ALIGNED]
    assert {of for _, of in targets} <= {"kNone", "kAll", "kThroughRegisters", "kCopiesToLds"}
    return (
        [tile for tile, of in targets if of in ("kAll", "kThroughRegisters")],
        [tile for tile, of in targets if of == "kCopiesToLds"],
    )


# The loaders of their operands: dense.h and im2col.h, halo.h, packed.h (native/gemm/loaders/); or int8.
DENSE, DENSE_COPYING = _aligned(0)
HALO, HALO_COPYING = _aligned(1)
PACKED, PACKED_COPYING = _aligned(2)
INT8, INT8_COPYING = _aligned(3)


def of_type(suffix: str) -> list[Tile]:
    """Returns the tiles for operands of any layout, f32 or f16. The last one of f16 uses the vector unit."""
    return STRIDED + VECTOR_F16 if suffix == "f16" else VECTOR
