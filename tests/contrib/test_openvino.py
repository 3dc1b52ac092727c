"""Models written by `lower --to standard` load in OpenVINO and agree; needs openvino (scripts/sweep)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.contrib import CONTRIB, ContribOp
from graphopt.lower import lower
from graphopt.ops.schema import Array
from models import ZOO
from models.pypi import TRAINED, fetch
from tests.contrib.case import Case
from tests.contrib.nodes import disagreement, lowered, model_of
from tests.contrib.references import draw, reference
from tests.rewriting import run
from tests.verification.test_verify import feeds_of

openvino = pytest.importorskip("openvino")


def compute(model: onnx.ModelProto, feeds: Mapping[str, Array], folder: Path) -> list[Array]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    core = openvino.Core()
    # On some machines the default is bfloat16.
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled({name: np.array(x, order="C") for name, x in feeds.items()})
    return [results[i] for i in range(len(model.graph.output))]


def computed_wrongly(op: ContribOp, case: Case, opset: int) -> bool:
    """Whether OpenVINO 2026.4 computes a wrong result for this standard ONNX."""
    if op.name == "QLinearAveragePool":  # it pads with the integer 0 instead of the zero point
        return bool(case.attributes.get("count_include_pad"))
    if op.name == "NhwcConv":  # one channel, a window of one element, padding: sometimes it reads uninitialized memory
        return case.inputs["W"].size == 1
    # It applies scales of output channels to input channels.
    return op.name == "QLinearConv" and opset < 13 and case.inputs["w_scale"].ndim == 1


@pytest.mark.parametrize("name", list(ZOO))
def test_zoo(name: str, tmp_path: Path) -> None:
    before = ZOO[name](small=True)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    onnx.save(after, tmp_path / "after.onnx")
    lower(tmp_path / "after.onnx", tmp_path / "plain.onnx", to="standard")
    feeds = feeds_of(before, 2)
    outputs = compute(onnx.load(tmp_path / "plain.onnx"), feeds, tmp_path)
    for want, got in zip(run(before, feeds), outputs, strict=True):
        rms = float(np.sqrt(np.mean(want.astype(np.float64) ** 2)))
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-3 * rms)


# The form of 4-bit weights, Gelu and norms changes at opsets 20 and 21, that of reduction axes at 13 and 18.
@pytest.mark.parametrize("opset", [12, 17, 21])
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in CONTRIB.values()])
def test_contrib_operators(op: ContribOp, opset: int, tmp_path: Path) -> None:
    held = 0
    for seed in range(8):
        case = draw(op, seed)
        standard, refused = lowered(model_of(op, case, opset))
        if computed_wrongly(op, case, opset) or refused or any(x.size == 0 for x in case.inputs.values()):
            continue
        feeds = {n: x for n, x in case.inputs.items() if n not in case.constants}
        outputs = compute(standard, feeds, tmp_path)
        got = dict(zip([o.name for o in standard.graph.output], outputs, strict=True))
        case.tolerance = max(case.tolerance, 1e-4)
        assert disagreement(case, reference(op, case), got) == "", (seed, case.attributes)
        held += 1
    assert held


# OpenVINO does not read the original silero_vad either: ranks in its If are unknown.
@pytest.mark.parametrize("name", [n for n in TRAINED if n != "silero_vad"])
def test_trained_models(name: str, tmp_path: Path) -> None:
    """Optimized trained models, lowered to standard ONNX."""
    path = fetch(name)
    graphopt.optimize(path, tmp_path / "after.onnx", target="cpu", ignore_cost_model=True)
    done = lower(tmp_path / "after.onnx", tmp_path / "plain.onnx", to="standard")
    assert done.kept == []
    before, plain = onnx.load(path), onnx.load(tmp_path / "plain.onnx")
    for feeds in TRAINED[name].feeds:
        given = feeds(np.random.default_rng(5))
        for want, got in zip(run(before, given), compute(plain, given, tmp_path), strict=True):
            rms = float(np.sqrt(np.mean(want.astype(np.float64) ** 2)))
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * rms)
