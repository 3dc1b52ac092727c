"""Compares the CPU's cost model with its measurements, and fits its constants to them.

    python scripts/fit_cost_model.py                    # docs/measurements/winograd_cpu.md, one thread, batch 1
    python scripts/bench_ops.py winograd > here.md && python scripts/fit_cost_model.py here.md

    graphopt doctor --selftest --bench report.json && python scripts/fit_cost_model.py report.json

From a table it prints the measured and the modelled times and their ratios for each shape. Then it prints the constants
of graphopt/targets/cpu.py beside those of a least-squares fit of the relative error. The fit excludes shapes with fewer
than 16 channels, where the formula intentionally underestimates. Nothing is written: to adopt the fitted constants,
copy them to targets/cpu.py and the measurements to docs/measurements/; tests/targets/test_cpu.py compares the two.

From a report it prints the chosen and the fastest implementation for each shape. For each convolution it prints the
speedup of WinogradConv beside the decision of graphopt/targets/profit.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graphopt.runtime.discovery import CPU
from graphopt.targets import cpu as targets_cpu
from graphopt.targets.profit import winograd_is_faster
from graphopt.targets.target import parse_target

MEASUREMENTS = Path(__file__).resolve().parent.parent / "docs" / "measurements" / "winograd_cpu.md"


@dataclass(frozen=True)
class Row:
    """Microseconds of a 3x3 convolution from C to M channels on H x H pixels."""

    C: int
    H: int
    M: int
    direct: float
    winograd: float


def read(path: Path) -> list[Row]:
    """Returns the first table of `scripts/bench_ops.py winograd` in a file."""
    rows: list[Row] = []
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 5 and cells[1][:1].isdigit():
            C, H, M = (int(n) for n in cells[1].split("x"))
            rows.append(Row(C, H, M, float(cells[2]) * 1e3, float(cells[3]) * 1e3))
        elif rows and not line.startswith("|"):
            break
    return rows


def fit(rows: list[Row]) -> dict[str, float]:
    """Fits the constants of targets_cpu to the rows by the relative error of each time.

    A time is a sum of terms, each divided by a rate, so it is linear in the reciprocal rates. The coefficient of a term
    that the rows do not determine is 0. The times of the direct convolution give the rates. The times of F(4x4), in the
    rows for which the model chooses it, give the cost of its transform and the overhead of its GEMMs.
    """
    rows = [row for row in rows if row.C >= 16]
    direct = [(18 * r.C * -(-r.M // 8) * 8 * r.H**2, 36 * r.C * r.M, 4 * (r.C + r.M) * r.H**2) for r in rows]
    multiply_add, weight, tensor = _nonnegative(direct, [r.direct for r in rows])
    f4x4_rows = [r for r in rows if r.H > 14 or (r.H == 14 and 144 * r.C * r.M <= 12 << 20)]
    tiles = [(-(-r.H // 4)) ** 2 for r in f4x4_rows]
    winograd = [
        (72 * t * r.C * r.M * multiply_add + 144 * r.C * r.M * weight, t * (r.C + r.M), 0.0)
        for r, t in zip(f4x4_rows, tiles, strict=True)
    ]
    overhead, transform, _ = _nonnegative(winograd, [r.winograd for r in f4x4_rows])
    return {
        "RATE": 1 / multiply_add if multiply_add else float("inf"),
        "WEIGHT_RATE": 1 / weight if weight else float("inf"),
        "TENSOR_RATE": 1 / tensor if tensor else float("inf"),
        "OVERHEAD": overhead,
        "TRANSFORM[4]": transform / overhead,
    }


def _nonnegative(terms: Sequence[tuple[float, float, float]], times: Sequence[float]) -> list[float]:
    """Returns coefficients >= 0 that minimize the relative error of the sums. Tries every subset of the terms."""
    matrix = np.array(terms) / np.array(times)[:, None]
    best, least = [0.0] * 3, np.inf
    for used in ([0, 1, 2], [0, 1], [0, 2], [1, 2], [0], [1], [2]):
        used = [column for column in used if matrix[:, column].any()]
        scale = np.abs(matrix[:, used]).max(axis=0)
        found = np.linalg.lstsq(matrix[:, used] / scale, np.ones(len(times)), rcond=None)[0] / scale
        error = float(np.square(matrix[:, used] @ found - 1).sum())
        if (found >= 0).all() and error < least:
            best, least = [0.0] * 3, error
            for column, value in zip(used, found, strict=True):
                best[column] = float(value)
    return best


def print_choices(report: dict[str, Any]) -> None:
    """Prints the loss of each choice of the planner, and the speedup of each Winograd convolution."""
    device = report["selftest"]["device"]
    print(f"{device['name']} {device['arch']} {device['driver']}\n")
    rows = report["bench"]["shapes"]
    inputs = {row["name"]: row["inputs"] for row in rows}
    times: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["milliseconds"] is not None:
            times.setdefault((row["name"], row["dtype"]), {})[row["implementation"]] = row["milliseconds"]
    print("| shape | type | chosen ms | fastest ms | fastest implementation | chosen / fastest |")
    print("|---|---|--:|--:|---|--:|")
    for (name, dtype), by in times.items():
        if "" in by:
            fastest = min(by, key=by.__getitem__)
            cells = (name, dtype, f"{by['']:.3f}", f"{by[fastest]:.3f}", fastest or "chosen")
            print(f"| {' | '.join(cells)} | {by[''] / by[fastest]:.2f} |")
    target = parse_target("cpu" if report["selftest"]["provider"] == CPU else "rocm")
    print("\n| convolution | type | Conv ms | WinogradConv ms | ratio | rewritten |\n|---|---|--:|--:|--:|---|")
    for (name, dtype), by in times.items():
        winograd = times.get((f"Winograd{name}", dtype), {})
        if name.startswith("Conv 3x3") and "" in by and "" in winograd:
            (_, C, H, _), (M, *_), _ = inputs[name]
            rewritten = "yes" if winograd_is_faster(target, C, M, H, H) else "no"
            times_and_ratio = f"{by['']:.3f} | {winograd['']:.3f} | {by[''] / winograd['']:.2f}"
            print(f"| {name} | {dtype} | {times_and_ratio} | {rewritten} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", type=Path, nargs="?", default=MEASUREMENTS)
    measurements = parser.parse_args().measurements
    if measurements.suffix == ".json":
        print_choices(json.loads(measurements.read_text()))
        return
    rows = read(measurements)
    print("| C x H x M | ORT ms | formula | ours ms | formula | ratio | formula |\n|---|--:|--:|--:|--:|--:|--:|")
    for r in rows:
        direct, winograd = (time(r.C, r.M, r.H, r.H) for time in (targets_cpu.direct_time, targets_cpu.winograd_time))
        print(
            f"| {r.C}x{r.H}x{r.M} | {r.direct / 1e3:.3f} | {direct / 1e3:.3f} | {r.winograd / 1e3:.3f} "
            f"| {winograd / 1e3:.3f} | {r.direct / r.winograd:.2f} | {direct / winograd:.2f} |"
        )
    current = {name: getattr(targets_cpu, name) for name in ("RATE", "WEIGHT_RATE", "TENSOR_RATE", "OVERHEAD")}
    current["TRANSFORM[4]"] = targets_cpu.TRANSFORM[4]
    print("\n| constant | in targets/cpu.py | fitted to this table |\n|---|--:|--:|")
    for name, value in fit(rows).items():
        print(f"| {name} | {current[name]:.4g} | {value:.4g} |")


if __name__ == "__main__":
    main()
