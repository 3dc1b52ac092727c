"""Runs every case with the kernels compiled for the CPU: both wave sizes, work-items in three orders.

Each order shows missing barriers with either wave size, so only the random order runs with both.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from ctypes import c_float, c_int, c_int32, c_int64
from typing import Any

import numpy as np
import pytest

from tests.hip import activations, channels_last_cases, fused_attention_cases, scatter_cases, tiles
from tests.hip.case import Case
from tests.hip.harness import ROOT, Array, Harness, HostKernels, Plan, build_for_tests, element_type, int64s
from tests.hip.registry import all_cases

pytestmark = pytest.mark.once

CASES = list(all_cases())
Libraries = dict[int, tuple[Harness, HostKernels]]
ORDERS = {32: (HostKernels.FORWARD, HostKernels.RANDOM), 64: (HostKernels.REVERSE, HostKernels.RANDOM)}
# The kernels that a macro of native/device/platform.h makes of a name.
SUFFIXES = {
    "KERNEL": [""],
    "KERNEL_OF": [""],
    "FLOAT_KERNELS": ["_f32", "_f16"],
    "BITS_KERNELS": ["_b8", "_b16", "_b32", "_b64"],
}


@pytest.fixture(scope="session")
def libraries() -> Libraries:
    folder = build_for_tests("gpu_harness", "hip_on_cpu_32", "hip_on_cpu_64")
    harness = Harness(folder / "libgpu_harness.so")
    return {wave: (harness, HostKernels(folder / f"libhip_on_cpu_{wave}.so")) for wave in (32, 64)}


def poison(nbytes: int) -> Array:
    """Returns memory that reads as NaN."""
    return np.full(max(nbytes, 1), 0xFF, np.uint8)


def plans_of(case: Case, harness: Harness, wave: int) -> list[Plan]:
    """Returns the plan that prepares weights, if the operator has any, and the plan of the operator."""
    facts = harness.typical_facts(f"cpu{wave}")
    return [make(harness, facts) for make in (case.prepare, case.plan) if make is not None]


def run(case: Case, plans: list[Plan], kernels: HostKernels, order: int) -> list[Array]:
    """Returns a case's outputs."""
    outputs = [poison(e.nbytes) for e in case.outputs()]
    buffers = {f"in{i}": x for i, x in enumerate(case.inputs)}
    buffers |= {f"out{i}": y for i, y in enumerate(outputs)}
    buffers |= {f"ws{i}": poison(n) for i, n in enumerate(plans[-1].workspace)}
    if case.prepare is not None:
        buffers["weights"] = poison(plans[0].weights)
    for plan in plans:
        for launch in plan.launches:
            kernels.launch(launch, buffers, order, seed=1)
    return case.view(outputs)


EMPTY = list(fused_attention_cases.empty_cases())


@pytest.mark.parametrize("case", CASES + EMPTY, ids=[c.name for c in CASES + EMPTY])
def test_case(case: Case, libraries: Libraries) -> None:
    wrong = []
    for wave, (harness, kernels) in libraries.items():
        plans = plans_of(case, harness, wave)
        for order in ORDERS[wave]:
            if message := case.check(run(case, plans, kernels, order)):
                wrong.append(f"waves of {wave}, order {order}: {message}")
    assert not wrong, "\n".join(wrong)


def test_names_of_cases_differ() -> None:
    """scripts/amd_cases.py names a folder after each case."""
    counts = Counter(case.name for case in CASES)
    assert not {name: n for name, n in counts.items() if n > 1}


@pytest.mark.parametrize("wave", [32, 64])
def test_every_kernel_has_eight_cases(wave: int, libraries: Libraries) -> None:
    harness, kernels = libraries[wave]
    counts: Counter[str] = Counter()
    for case in CASES:
        counts.update({launch["kernel"] for plan in plans_of(case, harness, wave) for launch in plan.launches})
    assert set(kernels.names) == set(counts)
    assert not {name: n for name, n in counts.items() if n < 8}


def test_the_walkthrough_plans_one_launch(libraries: Libraries) -> None:
    """The numbers of docs/walkthrough.md, "One call of ScaleShiftRelu"."""
    page = (ROOT / "docs" / "walkthrough.md").read_text()
    step = re.search(
        r"one launch of `(\w+)`: ([\d,]+) elements, ([\d,]+) for each work-group of (\d+), a grid of (\d+)", page
    )
    assert step is not None
    kernel, *numbers = step.groups()
    elements, in_group, threads, grid = (int(n.replace(",", "")) for n in numbers)
    harness, _ = libraries[32]
    sizes = (c_int64(1), c_int64(64), c_int64(56 * 56))
    relu = activations.parameters("Relu")[0]
    facts = harness.typical_facts("gfx1100")
    plan = harness.plan("scale_shift", facts, c_int(True), *sizes, c_int(False), c_int32(relu), c_float(0), c_float(0))
    (launch,) = plan.launches
    assert (launch["kernel"], launch["grid"][0], launch["block"][0]) == (kernel, grid, threads)
    assert elements == 64 * 56 * 56 and grid == -(-elements // in_group)


def test_every_kernel_file_is_compiled(libraries: Libraries) -> None:
    _, kernels = libraries[32]
    declared = set()
    for path in (ROOT / "native").rglob("*.hip"):
        text = re.sub(r"^#if defined\(__CUDACC__\)\n.*?^#endif$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for macro, name in re.findall(rf"^({'|'.join(SUFFIXES)})\((\w+),", text, re.MULTILINE):
            declared |= {name + suffix for suffix in SUFFIXES[macro]}
    assert len(declared) > 200 and declared <= set(kernels.names)


def test_a_scattered_sum_of_more_than_2_to_the_23_updates_does_not_overflow(libraries: Libraries) -> None:
    """Each update has almost 2^40 of the units in which scatter_reduce_* adds floats; the sum has 64 bits."""
    updates = np.full(2**23 + 8, 2 - 2**-23, np.float32)
    x, index = np.zeros(1, np.float32), np.zeros(updates.size, np.int32)
    y = np.array([updates.size * (2 - 2**-23)])
    case = scatter_cases.case("many", "ScatterElements", "add", (x, index, updates, y), [1, 1, 1, updates.size, 1, 0])
    harness, kernels = libraries[32]
    assert not case.check(run(case, plans_of(case, harness, 32), kernels, HostKernels.FORWARD))


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["f16", "f32"])
@pytest.mark.parametrize("rows", [64, 2048])
def test_attention_without_matrix_units_has_kernels_for_its_type(
    libraries: Libraries, rows: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AMD targets without matrix units have the kernels for few rows; those for many rows exist in float32 only."""
    harness, kernels = libraries[32]  # kernels without matrix units, like those of the targets below
    monkeypatch.setattr(fused_attention_cases, "reference", lambda *_: np.zeros((2, 16, rows, 64)))
    monkeypatch.setattr(fused_attention_cases, "signed", lambda _, *shape, dtype: np.zeros(shape, dtype))
    for bias in ("", "HST"):
        problem = fused_attention_cases.Problem(rows, rows, 64, B=2, heads=16, bias=bias)
        case = fused_attention_cases.case("rows", dtype, problem)
        for arch in ("gfx906", "gfx1030"):
            plan = case.plan(harness, harness.typical_facts(arch))
            names = {launch["kernel"] for launch in plan.launches}
            assert names <= set(kernels.names), names
            assert all("64" in name for name in names)


@pytest.mark.parametrize("tile", tiles.HALO + tiles.HALO_COPYING, ids=lambda tile: tile.size)
def test_pixels_too_many_for_a_tile_have_another(libraries: Libraries, tile: tiles.Tile) -> None:
    harness, _ = libraries[32]
    facts = harness.typical_facts("sm_90")
    for sizes in channels_last_cases.SHARED:
        plan = channels_last_cases.product("shared", sizes, False, tile.number, halo=True).plan(harness, facts)
        assert all(launch["kernel"].startswith(("conv_halo", "gemm_sum")) for launch in plan.launches)


def test_tiles_of_the_rest_begin_where_whole_rounds_end(libraries: Libraries) -> None:
    """Checks a convolution in two launches, with tiles that the CPU does not support."""
    harness, _ = libraries[32]
    many = (22, 8, 160, (40, 40), (40, 40), (3, 3), (1, 1), (1, 1), (1, 1), "Relu", True, True)
    pixels, filters = 22 * 40 * 40, 160
    plan = channels_last_cases.product("rounds", many, False, -1, halo=True).plan(
        harness, harness.typical_facts("sm_90")
    )
    end = 0
    for launch in plan.launches:
        found = re.fullmatch(r"conv_halo_(\d+)x(\d+)_f16", launch["kernel"])
        assert found is not None
        m, n = int(found[1]), int(found[2])
        slots = 6 * 8
        M, N, _, _, _, down, first, _ = struct.unpack_from("<8i", bytes.fromhex(launch["args"][0]["hex"]), slots)
        assert (M, N, first) == (pixels, filters, end) and launch["grid"] == [down * -(-N // n), 1, 1]
        end = first + down * m
    assert len(plan.launches) == 2 and end - m < pixels <= end


def test_matrices_beyond_a_grid_get_another_launch(libraries: Libraries) -> None:
    """Checks an integer GEMM: only the last launch runs, on the matrices beyond the first launch's grid."""
    harness, kernels = libraries[32]
    most, rest = 65535, 3
    a = np.arange(most + rest, dtype=np.int64)[:, None]
    b = np.array([[2, -3]], np.int64)
    numbers = int64s([1, 2, 1, 0, 0, 1, len(a), 1, 1])
    kinds = (element_type(np.int64), element_type(np.int64), int64s([0, 0, 0, 0, 0]))
    plan = harness.plan("integer_matmul", harness.typical_facts("cpu32"), *kinds, numbers)
    assert [launch["grid"] for launch in plan.launches] == [[1, 1, most], [1, 1, rest]]
    y = np.zeros((len(a), 2), np.int64)
    kernels.launch(plan.launches[1], {"in0": a, "in1": b, "out0": y}, HostKernels.FORWARD, seed=1)
    assert not y[:most].any() and (y[most:] == a[most:] * b).all()
