"""The planner's choice of GEMM tiles on AMD, against an independent implementation of both estimates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ctypes import c_float, c_int, c_int32, c_int64
from dataclasses import dataclass

import numpy as np
import pytest

from tests.hip import tiles
from tests.hip.architectures import architectures
from tests.hip.harness import ROOT, Harness, build_for_tests, element_type, int64s

pytestmark = pytest.mark.once

SHAPES = (
    (128, 16384, 4096), (128, 4096, 4096), (16384, 256, 1024), (1024, 1280, 320), (256, 2304, 768), (784, 192, 768),
    (49, 768, 3072), (8, 1000, 2048), (4096, 4096, 4096), (197, 768, 3072), (3136, 96, 384), (64, 64, 64),
)  # fmt: skip
LEAST_GAIN = 1.15
MAX_SPLITS = 16


@dataclass(frozen=True)
class Choice:
    size: str
    tiles: int
    splits: int


@dataclass(frozen=True)
class Tile:
    """A row of GEMM_ALIGNED_TILES for one wave size. `fitted` and `counted`: fraction of the peak, step, overhead."""

    size: str
    m: int
    n: int
    depth: int
    fitted: tuple[float, ...]
    counted: tuple[float, ...]


def numbers(text: str) -> list[tuple[float, ...]]:
    """Returns the arguments of each cost(...)."""
    return [tuple(map(float, found.split(","))) for found in re.findall(r"cost\(([\d., ]+)\)", text)]


def tiles_of(wave: int) -> Iterator[Tile]:
    """Yields the tiles with kernels for dense operands."""
    text = (ROOT / "native" / "gemm" / "tiles.h").read_text()
    counted = {size: numbers(costs) for size, costs in re.findall(r"\{GemmTile::kAligned(\w+), (cost.*)\},", text)}
    rows = text.partition("#define GEMM_ALIGNED_TILES(TILE)")[2].partition("#define")[0]
    for tile in tiles.DENSE:
        (row,) = re.findall(rf"TILE\({tile.size}, kAll(.*?)(?:TILE|\n\n)", rows, re.DOTALL)
        m, n, _, _, depth, *_ = map(int, re.findall(r"shape\(([\d, ]+)\)", row)[1 if wave == 64 else 2].split(","))
        yield Tile(tile.size, m, n, depth, numbers(row)[0], counted[tile.size][wave == 32])


class Estimates:
    """Estimated clocks of a GEMM on an architecture's typical product."""

    def __init__(self, arch: str, M: int, N: int, K: int) -> None:
        row = architectures()[arch]
        self.M, self.N, self.K = M, N, K
        self.units, self.wave = int(row["compute_units"]), int(row["wave"])
        self.flops, self.bytes = int(row["matrix_flops"]), float(row["bytes_per_second"]) / float(row["clock_hz"])
        self.fitted: dict[Choice, float] = {}
        self.counted: dict[Choice, float] = {}
        for tile in tiles_of(self.wave):
            self._add(tile)

    def _add(self, tile: Tile) -> None:
        count = -(-self.M // tile.m) * -(-self.N // tile.n)
        for wanted in range(1, MAX_SPLITS + 1):
            steps = -(-self.K // wanted // tile.depth)
            if wanted > 1 and (steps < 2 or count >= self.units):
                return
            splits = -(-self.K // (steps * tile.depth))
            groups = -(-count * splits // self.units)
            sums = (4000 + (8 * splits + 2) * self.M * self.N / self.bytes) if splits > 1 else 0

            def busy(cost: tuple[float, ...], steps: int = steps, groups: int = groups) -> float:
                fraction, step, overhead = cost
                work = 2 * tile.m * tile.n * steps * tile.depth / (self.flops * fraction)
                return max(groups * (work + overhead), steps * step)

            l2 = 2 * groups * (tile.m + tile.n) * steps * tile.depth / (54 if self.wave == 64 else 25)
            memory = 2 * (self.M * self.K + self.K * self.N + self.M * self.N) / self.bytes
            choice = Choice(tile.size, count, splits)
            self.fitted[choice] = busy(tile.fitted) + sums
            self.counted[choice] = 1000 + max(busy(tile.counted) + sums, l2, memory)


def planned(harness: Harness, arch: str, M: int, N: int, K: int) -> Choice:
    more = (c_float(1), c_float(0), c_int(1), c_int64(1), c_int(0), c_int32(0), c_float(0), c_float(0))
    sizes = (c_int64(M), c_int64(N), c_int64(K), c_int(0), c_int(0))
    facts = harness.typical_facts(arch)
    plan = harness.plan("gemm", facts, c_int(1), *sizes, *more, int64s([0, 0]), c_int(1), c_int32(-1))
    found = re.fullmatch(r"gemm_panels_(\w+)_f16", plan.launches[0]["kernel"])
    assert found is not None
    return Choice(found[1], plan.launches[0]["grid"][0], plan.launches[0]["grid"][2])


@pytest.fixture(scope="module")
def harness() -> Harness:
    return Harness(build_for_tests("gpu_harness") / "libgpu_harness.so")


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
def test_the_choice_changes_only_for_a_clear_gain(arch: str, harness: Harness) -> None:
    """The tile with the least fitted cost is replaced where another one has a counted cost lower by 15 %."""
    changed = 0
    for shape in SHAPES:
        estimates = Estimates(arch, *shape)
        fitted = min(estimates.fitted, key=estimates.fitted.__getitem__)
        counted = min(estimates.counted, key=estimates.counted.__getitem__)
        is_better = estimates.counted[fitted] > LEAST_GAIN * estimates.counted[counted]
        changed += is_better
        assert planned(harness, arch, *shape) == (counted if is_better else fitted), shape
    assert 0 < changed < len(SHAPES)


@pytest.mark.parametrize(
    ("M", "bits", "size", "kernel"),
    [
        (1024, 4, 32, "warpgroups_4_256x128_f16"),
        (256, 8, 128, "warpgroups_8_256x128_f16"),
        (128, 4, 32, "warpgroups_4_128x128_f16"),
        (1024, 2, 32, "warpgroups_2_256x128_f16"),
        (1024, 4, 16, "4_256x128_f16"),  # warpgroups have no kernels for small blocks
    ],
)
def test_many_rows_of_packed_weights_run_on_warpgroups(
    M: int, bits: int, size: int, kernel: str, harness: Harness
) -> None:
    sizes = (c_int64(M), c_int64(14336), c_int64(4096), c_int(bits), c_int64(size))
    flags = (c_int * 5)(True, True, False, False, True)
    facts = harness.typical_facts("sm_90")
    plan = harness.plan("matmul_nbits", facts, c_int(1), *sizes, flags, c_int32(-1))
    assert [launch["kernel"] for launch in plan.launches] == [f"matmul_nbits_{kernel}"]


# Numbers of integer_gemm_cases.Numbers.plan_numbers: one matrix, N, K, types, kinds of zero points, flags, activation.
@pytest.mark.parametrize(
    ("M", "N", "K", "output", "kernel"),
    [
        (6272, 256, 1024, np.uint8, "warpgroups_gemm_64x64_u8"),
        (25088, 512, 256, np.int8, "warpgroups_gemm_128x128_u8"),
        (6272, 256, 1024, np.float32, "gemm_"),  # warpgroups only store bytes
        (6272, 264, 1024, np.uint8, "gemm_"),  # and rows of whole vectors
        (49, 512, 2048, np.uint8, "gemm_"),  # few rows need splits of K
    ],
)
def test_many_rows_of_integers_run_on_warpgroups(
    M: int, N: int, K: int, output: type, kernel: str, harness: Harness
) -> None:
    types = (element_type(dtype).value for dtype in (np.uint8, np.int8, output))
    columns = int64s([1, N, K, *types, 0, 0, True, True, True, True, output != np.float32, 0])
    flags = (c_int(False), c_int(True), c_int32(-1))
    facts = harness.typical_facts("sm_90")
    plan = harness.plan("integer_gemm", facts, int64s([M, N, K, 0, 0]), columns, (c_float * 9)(1), *flags)
    assert plan.launches[0]["kernel"].startswith(f"integer_{kernel}")
