"""ONNX's node tests: with every legal rewrite each model must still give the outputs that ship with the test.

A model that ONNX Runtime cannot run before optimization, or runs to different results, does not count; every other
failure is ours.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import graphopt
from graphopt.ops import DOMAIN
from graphopt.runtime.discovery import CPU
from graphopt.runtime.sessions import configure
from tests.conformance.node_cases import node_cases

CASES = node_cases()
LIGHT = sorted(Path(onnx.__file__).parent.glob("backend/test/data/light/light_*.onnx"))

NEWEST_IR_VERSION = 10  # of onnxruntime 1.22


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # thousands of sessions, few long runs
    if any(f.domain == DOMAIN for f in model.functions):
        configure(options, [CPU], model=model)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def agrees(got: Any, want: Any, rtol: float, atol: float) -> bool:
    if isinstance(want, list | tuple):
        pairs = zip(got, want, strict=True)
        return len(got) == len(want) and all(agrees(g, w, rtol, atol) for g, w in pairs)
    if want is None or got is None:
        return got is want
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if got.dtype.kind not in "fc":
        return bool(np.array_equal(got, want))
    return bool(np.allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True))


@pytest.mark.parametrize("name", sorted(CASES))
def test_optimized_model_gives_the_shipped_outputs(name: str) -> None:
    case = CASES[name]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, NEWEST_IR_VERSION)
    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True, check=True)
    try:
        before = session(model)
    except Exception:  # ONNX Runtime has no kernel for it; only the absence of an exception in optimize was tested
        return
    after_session = session(after)
    for inputs, outputs in case.data_sets or ():
        feeds = {v.name: x for v, x in zip(model.graph.input, inputs, strict=True)}
        try:
            plain = before.run(None, feeds)
        except Exception:  # types that ONNX Runtime's Python interface does not support
            return
        if agrees(plain, list(outputs), case.rtol, case.atol):
            assert agrees(after_session.run(None, feeds), list(outputs), case.rtol, case.atol)


@pytest.mark.parametrize("name", ["test_affine_grid_2d_expanded", "test_affine_grid_2d_align_corners_expanded"])
def test_models_still_load_at_the_default_level(name: str) -> None:
    """At its default level ONNX Runtime folds more constants, here an If with a constant condition and then a Range."""
    model = onnx.ModelProto()
    model.CopyFrom(CASES[name].model)
    model.ir_version = min(model.ir_version, NEWEST_IR_VERSION)
    after, _ = graphopt.optimize(model, target="cpu")
    for each in (model, after):
        ort.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replaces the constant weights that the light models generate at run time, which would hide a wrong fold."""
    rng = np.random.default_rng(0)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = shapes[node.input[0]]
            values = rng.standard_normal(shape, np.float32)
            if len(shape) == 1:
                values = np.abs(values) + np.float32(0.5)  # a variance among them must be positive
            else:
                values *= np.float32(max(int(np.prod(shape[1:])), 1) ** -0.5)
            model.graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
        else:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


# Fully connected layers of 240 to 500 MB: one of three models, on one runtime; scripts/sweep runs all on both.
LARGE = ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512")
if not os.environ.get("GRAPHOPT_TEST_EVERYTHING"):
    LIGHT = [path for path in LIGHT if path.stem not in LARGE[1:]]


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.once] * (p.stem in LARGE)) for p in LIGHT]
)
def test_light_models_keep_their_outputs(path: Path) -> None:
    model = with_random_weights(onnx.load(path))
    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    weights = {t.name for t in model.graph.initializer}
    feeds = {
        v.name: np.random.default_rng(1)
        .standard_normal([d.dim_value or 1 for d in v.type.tensor_type.shape.dim])
        .astype(np.float32)
        for v in model.graph.input
        if v.name not in weights
    }
    for want, got in zip(session(model).run(None, feeds), session(after).run(None, feeds), strict=True):
        rms = float(np.sqrt(np.mean(want.astype(np.float64) ** 2)))
        assert np.abs(got - want).max() <= 1e-3 * rms
