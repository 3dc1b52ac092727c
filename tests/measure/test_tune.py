"""`tune` measures candidates, decides by the measurements, and a cache transfers its decisions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.errors import GraphoptError, ModelLoadError, OptionError
from graphopt.measure.tune import (
    CACHE_FORMAT,
    Measured,
    Measurement,
    Tuning,
    TuningCache,
    _cut_out,
    _OnlyCandidate,
    _Work,
    fastest,
)
from graphopt.targets.profit import Candidate, Workload
from graphopt.targets.target import Target
from models import ZOO
from tests.rewriting import assert_same_outputs, model_from_text

WIN, LOSS, UNCLEAR = Measurement(1.4, 1.3, 1.5), Measurement(0.8, 0.7, 0.9), Measurement(1.2, 0.6, 1.9)
SITE = Workload("Conv_1", "WinogradConv", "float", (("batch", 8, None, 4), (8, 8, 3, 3)), ("Relu",), ("Add",))


def small(name: str = "resnet18") -> onnx.ModelProto:
    return ZOO[name](small=True, dynamic=True)


def test_a_measurement_decides_only_beyond_noise() -> None:
    assert WIN.is_faster is True
    assert LOSS.is_faster is False
    assert UNCLEAR.is_faster is None
    assert Measurement(1.0, 0.99, 1.01).is_faster is False  # certainly not faster


def test_class_of_a_candidate() -> None:
    assert SITE.key({"batch": 2}) == "WinogradConv float 2x8x?x4 8x8x3x3 between Relu and Add with batch=2"
    known = Workload("Conv_2", "WinogradConv", "float", ((1, 8, 4, 4),), (), ())
    assert known.key({"batch": 2}) == "WinogradConv float 1x8x4x4 between - and -"


@pytest.mark.parametrize(
    ("measurement", "no_gain", "rewritten"),
    [
        (WIN, "", True), (WIN, "too small", True), (LOSS, "", False), (LOSS, "too small", False),
        (UNCLEAR, "", True), (UNCLEAR, "too small", False), (None, "", True), (None, "too small", False),
    ],
)  # fmt: skip
def test_measurements_overrule_estimates(measurement: Measurement | None, no_gain: str, rewritten: bool) -> None:
    workload = Workload("n", "ScaleShift", "float", ((1, 2),), (), ())
    measurements = {} if measurement is None else {workload.key({}): measurement}
    assert (Measured(measurements, {}).decline(Candidate(no_gain, lambda: workload)) == "") == rewritten


def test_the_time_of_the_whole_model_decides() -> None:
    rng = np.random.default_rng(0)

    def around(milliseconds: float) -> list[float]:
        return [float(t) for t in rng.normal(milliseconds, 0.05 * milliseconds, 99)]

    assert fastest({"measurements": around(10), "estimates": around(10), "none": around(12)}) == "measurements"
    assert fastest({"measurements": around(12), "estimates": around(10), "none": around(11)}) == "estimates"
    assert fastest({"measurements": around(12), "estimates": around(11), "none": around(9)}) == "none"


@pytest.mark.parametrize("name", ["resnet18", "bert", "sd_block"])
def test_cut_out_candidates_compute_the_same(name: str, tmp_path: Path) -> None:
    model = small(name)
    sizes = {"sequence": 16} if name == "bert" else {}
    work = _Work(tmp_path, model, Target("cpu"), "CPUExecutionProvider", 1, sizes)
    classes = {s.key(work.sizes): s for s in work.candidates.values()}
    rewritten = 0
    for workload in classes.values():
        cut, feeds = _cut_out(work, workload)
        assert len(cut.graph.node) < len(onnx.load(work.plain).graph.node)
        sides = []
        for rewrite in (False, True):
            profit = _OnlyCandidate(workload.label, rewrite=rewrite)
            side, _ = graphopt.optimize(cut, target="cpu", profit=profit)
            sides.append(side)
        ours = [Counter(n.domain for n in side.graph.node)["com.graphopt"] for side in sides]
        if profit.was_considered:
            assert ours[1] == ours[0] + 1, workload
            assert_same_outputs(sides[0], sides[1], feeds, tolerance=1e-4)
            rewritten += 1
    assert rewritten >= len(classes) / 2


def decided(model: onnx.ModelProto, tuning: Tuning) -> dict[str, int]:
    after, _ = graphopt.optimize(model, target="cpu", profit=tuning.profit)
    return dict(Counter(n.op_type for n in after.graph.node if n.domain == "com.graphopt"))


def cached(path: Path, model: onnx.ModelProto, measurement: Measurement, **other_machine: Any) -> dict[str, Any]:
    """Returns options for `tune` with a cache that has one measurement for every class of the model."""
    work = _Work(path.parent, model, Target("cpu"), "CPUExecutionProvider", 1, {})
    measurements = {s.key(work.sizes): measurement for s in work.candidates.values()}
    options: dict[str, Any] = {"target": "cpu", "threads": 1, "cache": path}
    TuningCache().write(path)
    here = graphopt.tune(model, measure=False, **options).machine
    TuningCache({type(here)(**{**vars(here), **other_machine}): measurements}).write(path)
    return options


def test_cache_decides_without_measuring(tmp_path: Path) -> None:
    model, path = small(), tmp_path / "cache.json"
    options = cached(path, model, WIN)
    convolutions = sum(node.op_type == "Conv" for node in model.graph.node)
    assert sum(decided(model, graphopt.tune(model, measure=False, **options)).values()) == convolutions
    options = cached(path, model, LOSS)
    assert decided(model, graphopt.tune(model, measure=False, **options)) == {}
    # Measurements of another machine do not apply here; by the estimates only the stem, with 8 channels, is rewritten.
    options = cached(path, model, WIN, device="another")
    elsewhere = graphopt.tune(model, measure=False, **options)
    assert (elsewhere.measurements, decided(model, elsewhere)) == ({}, {"FusedConvRelu": 1})
    assert "estimated" in elsewhere.notes[0]


def test_a_clear_measurement_is_not_repeated(tmp_path: Path) -> None:
    model = small()
    options = cached(tmp_path / "cache.json", model, WIN)
    steps: list[str] = []
    again = graphopt.tune(model, seconds=0.1, progress=steps.append, **options)
    assert [step.partition(" (")[0] for step in steps] == ["timing the whole model"]
    assert set(again.measurements.values()) == {WIN}
    assert set(again.whole_model) == {"measurements", "estimates", "none"}


def test_measurements_are_kept(tmp_path: Path) -> None:
    model, path = small(), tmp_path / "cache.json"
    tuning = graphopt.tune(model, target="cpu", threads=1, seconds=2.0, cache=path)
    assert tuning.measurements
    assert TuningCache.read(path).entries == {tuning.machine: tuning.measurements}
    assert json.loads(path.read_text())["entries"][0]["machine"]["provider"] == "CPUExecutionProvider"


def test_tuned_model_is_right(tmp_path: Path) -> None:
    model = small("yolo")
    tuning = graphopt.tune(model, target="cpu", threads=1, seconds=2.0)
    after, _ = graphopt.optimize(model, target="cpu", profit=tuning.profit)
    report = graphopt.verify(model, after)
    assert report.equal, report.summary


def test_candidates_are_measured_in_the_final_precision(tmp_path: Path) -> None:
    work = _Work(tmp_path, small(), Target("rocm"), "CPUExecutionProvider", 1, {}, "fp16")
    assert not any(t.data_type == onnx.TensorProto.FLOAT16 for t in onnx.load(work.plain).graph.initializer)
    asked = 0
    for workload in {s.key(work.sizes): s for s in work.candidates.values()}.values():
        cut, feeds = _cut_out(work, workload)
        profit = _OnlyCandidate(workload.label, rewrite=True)
        side = work.rewritten_cut(cut, profit)
        asked += profit.was_considered
        types = {i.type.tensor_type.elem_type for i in side.graph.input}
        assert types == {onnx.TensorProto.FLOAT16}
        path = tmp_path / "side.onnx"
        onnx.save(side, path)
        work.runner(path, feeds)()
    assert asked
    whole = onnx.load(work.rewritten(_OnlyCandidate("", rewrite=True), "whole"))
    assert any(t.data_type == onnx.TensorProto.FLOAT16 for t in whole.graph.initializer)


def test_measurements_hold_for_one_precision(tmp_path: Path) -> None:
    model, path = small(), tmp_path / "cache.json"
    options = cached(path, model, WIN)
    assert graphopt.tune(model, measure=False, **options).measurements
    assert not graphopt.tune(model, measure=False, precision="fp16", **options).measurements
    tuning = graphopt.tune(model, target="cpu", threads=1, seconds=1.0, precision="fp16")
    assert tuning.machine.precision == "fp16"
    assert set(tuning.whole_model) == {"measurements", "estimates", "none"}


MACHINE = '{"device": "", "provider": "", "threads": 1, "runtime": "", "library": ""}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", '{"format": 1, "entries": [{}]}', '{"format": 99, "entries": []}'),
        f'{{"format": {CACHE_FORMAT}, "entries": [{{"machine": {MACHINE}, "measurements": []}}]}}',
    ],
)
def test_broken_cache(text: str, tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_text(text)
    with pytest.raises(ModelLoadError, match="tuning cache"):
        graphopt.tune(small(), target="cpu", cache=tmp_path / "cache.json")


def test_nothing_to_tune_for_standard_onnx() -> None:
    with pytest.raises(OptionError, match="nothing to tune"):
        graphopt.tune(small(), target="migraphx")


def test_sizes_that_the_model_refuses() -> None:
    with pytest.raises(GraphoptError, match=r"does not run with .*sequence=4096"):
        graphopt.tune(small("bert"), target="cpu", sizes={"sequence": 4096})


def test_errors_name_the_file_that_does_not_run(tmp_path: Path) -> None:
    model = model_from_text("g (float[2] x) => (float[2] y) { y = Neg(x) }", {})
    model.ir_version = 99
    onnx.save(model, tmp_path / "new.onnx")
    with pytest.raises(GraphoptError, match=rf"^{tmp_path}/new.onnx: onnxruntime.* cannot load it"):
        graphopt.tune(tmp_path / "new.onnx", target="cpu")
    onnx.save(model_from_text("g (int4[2] x) => (float[2] y) { y = Cast <to = 1> (x) }", {}), tmp_path / "int4.onnx")
    for command in (graphopt.tune, lambda path, target: graphopt.limit_error(path, 0.1)):
        with pytest.raises(GraphoptError, match=rf"^{tmp_path}/int4.onnx: input 'x' has type INT4"):
            command(tmp_path / "int4.onnx", target="cpu")


def test_accepted_inputs_are_searched() -> None:
    text = "g (float[2, 3] x, int64[1] a) => (float[N, M] y) { y = ReduceSum <keepdims = 1> (x, a) }"
    assert graphopt.tune(model_from_text(text, {}), target="cpu", threads=1, seconds=0.0).measurements == {}


def test_command(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    path, out, cache, report = (tmp_path / n for n in ("in.onnx", "out.onnx", "cache.json", "report.json"))
    onnx.save(small(), path)
    options = ["--target", "cpu", "--threads", "1", "--dim", "batch=2", "--tuning-cache", cache, "--json", report]
    shown = graphopt_command("optimize", path, out, "--tune", "--tune-seconds", "1", "-v", *options)
    assert shown.exit_code == 0, shown.stderr
    assert "whole model: by measurements" in shown.stdout
    assert all(" 2x" in n for n in json.loads(report.read_text())["tuning"]["measurements"])
    from_cache = graphopt_command("optimize", path, out, *options)
    assert from_cache.exit_code == 0
    assert "whole model" not in from_cache.stdout
    missing = graphopt_command("optimize", path, out, "--tuning-cache", tmp_path / "no.json")
    assert missing.exit_code == ModelLoadError.exit_code
