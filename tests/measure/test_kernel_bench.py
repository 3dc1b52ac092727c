"""`doctor --selftest --bench` on the CPU, and the script that reads its file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from graphopt.cli.root import app
from graphopt.errors import OptionError
from graphopt.measure import kernel_bench
from graphopt.measure.kernel_bench import Peaks, convolution, layer_norm, matmul, peaks_of
from graphopt.ops import OPS
from graphopt.runtime import selftest
from graphopt.runtime.discovery import DEVICE_PROVIDER, ROCM
from graphopt.runtime.routes import Gpu, Route
from scripts import fit_cost_model

FEW = (matmul(32, 64, 48), *(convolution(1, 32, 8, 32, op=op) for op in ("Conv", "WinogradConv")))


def test_the_report_of_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    few = {"ScaleShift": OPS["ScaleShift"]}
    with patch.object(selftest, "OPS", few), patch.multiple(kernel_bench, SHAPES=FEW, SECONDS_PER_SHAPE=0.0):
        result = CliRunner().invoke(app, ["doctor", "--selftest", "--bench", str(report)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "MatMul 32x64x48" in result.output and "not timed: " in result.output
    assert max(map(len, result.output.splitlines())) <= 140
    data = json.loads(report.read_text())
    assert data["command"] == "doctor" and data["selftest"]["results"] and data["routes"] is not None
    times = {t["name"]: t for t in data["bench"]["shapes"]}
    assert list(times) == [shape.name for shape in FEW]
    assert all(t["dtype"] == "float32" and t["milliseconds"] > 0 and t["share"] is None for t in times.values())
    assert data["bench"]["soak"] is None
    fit_cost_model.print_choices(data)
    printed = capsys.readouterr().out
    ratio = times["Conv 3x3 1x32x8x8 to 32"]["milliseconds"] / times["WinogradConv 3x3 1x32x8x8 to 32"]["milliseconds"]
    assert f"| {ratio:.2f} | " in printed and "| MatMul 32x64x48 | float32 |" in printed


def test_the_time_of_the_selftest_counts(tmp_path: Path) -> None:
    """If the self-test takes all of the time, no shape is timed: the report is complete within the limit."""
    report = tmp_path / "report.json"
    few = {"ScaleShift": OPS["ScaleShift"]}
    with patch.object(selftest, "OPS", few), patch.multiple(kernel_bench, SHAPES=FEW, SECONDS=0.0):
        result = CliRunner().invoke(app, ["doctor", "--selftest", "--bench", str(report)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    data = json.loads(report.read_text())
    assert data["bench"]["shapes"] == []
    assert data["bench"]["skipped"] == [f"{shape.name} {dtype}" for shape in FEW for dtype in ("float32", "float16")]


@pytest.mark.parametrize(("bench", "limit"), [(False, math.inf), (True, kernel_bench.SELFTEST_SECONDS)])
def test_the_selftest_of_a_report_has_a_limit(bench: bool, limit: float, tmp_path: Path) -> None:
    few = {"ScaleShift": OPS["ScaleShift"]}
    arguments = ["doctor", "--selftest", *(["--bench", str(tmp_path / "report.json")] if bench else [])]
    with (
        patch.object(selftest, "OPS", few),
        patch.object(kernel_bench, "SHAPES", ()),
        patch.object(selftest, "selftest", wraps=selftest.selftest) as called,
    ):
        CliRunner().invoke(app, arguments, env={"COLUMNS": "140"})
    assert called.call_args.kwargs["seconds"] == limit
    assert kernel_bench.SELFTEST_SECONDS < kernel_bench.SECONDS
    assert kernel_bench.SECONDS + kernel_bench.SOAK_SECONDS < 300


def test_bench_needs_the_selftest(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--bench", str(tmp_path / "report.json")])
    assert isinstance(result.exception, OptionError) and "--bench needs --selftest" in str(result.exception)


@pytest.mark.parametrize(("provider", "option"), [(ROCM, "device_id"), (DEVICE_PROVIDER, "device")])
def test_the_peaks_are_those_of_the_chosen_device(provider: str, option: str) -> None:
    slow, fast = (
        Gpu(i, "", "", "", "", 0, False, 1, rate, 1.0, 1.0, "", 32, (), None) for i, rate in enumerate((1, 2))
    )
    found = Route("", "", provider, devices=(slow, fast))
    with patch.object(kernel_bench, "gpu_routes", lambda: (found,)):
        assert [peaks_of((provider, {option: i})).bytes for i in (0, 1)] == [1, 2]


def test_the_share_is_of_the_peak_that_limits_a_shape() -> None:
    """A GEMM of 2 GFLOP at 1 TFLOPS takes 2 ms; 8 MiB of rows, read and written, at 1 GB/s 16.8 ms."""
    peaks = Peaks({"float32": 1e12}, 1e9)
    assert Peaks({"float32": 1e12}, 1e12).share(matmul(1000, 1000, 1000), "float32", 0.004) == pytest.approx(0.5)
    assert peaks.share(layer_norm(2048, 1024), "float32", 0.0336) == pytest.approx(0.5, rel=0.01)
    assert peaks.share(layer_norm(2048, 1024), "float16", 0.1) is None
