"""`bench --provider graphopt` measures sessions on our provider."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import graphopt
from graphopt.measure.bench import BenchReport, bench
from models import ZOO


def _bench(before: bytes, after: bytes) -> BenchReport:
    import onnx

    sides = [onnx.load_from_string(m) for m in (before, after)]
    return bench(*sides, providers=["graphopt"], seconds=0.01, memory=False, require_device=True)


def test_both_sides_on_the_device(worker: ProcessPoolExecutor) -> None:
    before = ZOO["resnet18"](small=True)
    after, _ = graphopt.optimize(before, target="cuda")
    report = worker.submit(_bench, before.SerializeToString(), after.SerializeToString()).result()
    assert {row.setting.provider for row in report.rows} == {"GraphoptExecutionProvider"}
    assert {row.setting.io for row in report.rows} == {"host", "device"}, report.notes
    assert all(row.speedup is not None and row.speedup > 0 for row in report.rows)
