"""Kernel, function body and numpy reference of every operator name agree, for each element type, on awkward shapes."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from graphopt.ops import OPS
from graphopt.ops.case import NodeCase, model_of
from graphopt.ops.cases import all_cases, cases_of
from graphopt.ops.schema import Array
from graphopt.runtime.discovery import CPU
from graphopt.runtime.sessions import configure

NODES_IN_A_SESSION = 16  # The time to create a session grows superlinearly with the number of nodes in inlined bodies.


# A case keeps its reference; each process of tests computes it only once.
cases_of_dtype = functools.cache(all_cases)


def run(cases: list[NodeCase], opset: int, *, kernels: bool, threads: int = 2) -> list[Array]:
    """Returns all outputs of all cases: with the library and no bodies in the model, or with bodies and no library."""
    outputs: list[Array] = []
    for begin in range(0, len(cases), NODES_IN_A_SESSION):
        model, feeds = model_of(cases[begin : begin + NODES_IN_A_SESSION], opset, bodies=not kernels)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads if kernels else 1  # only the kernels are ours
        if kernels:
            configure(options, [CPU], model=model)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outputs += session.run(None, feeds)
    return outputs


def disagreements(cases: list[NodeCase], outputs: list[Array], dtype: str) -> list[str]:
    """Returns a line for each case with an error above its tolerance."""
    found = []
    remaining = iter(outputs)
    for case in cases:
        got = [next(remaining) for _ in case.spec.outputs]
        error = case.error(got)
        wanted = case.inputs[0].dtype if case.spec.outputs_like_x else np.dtype(dtype)
        if any(y.dtype != wanted for y in got) or not error <= case.tolerance(dtype):
            shapes = [x.shape for x in case.inputs]
            found.append(f"{case.spec.name} of {shapes} {case.attributes}: {error:.2e} of RMS, {got[0].dtype}")
    assert next(remaining, None) is None
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels(dtype: str, threads: int) -> None:
    cases = cases_of_dtype(dtype=dtype)
    outputs = run(cases, 17, kernels=True, threads=threads)
    assert disagreements(cases, outputs, dtype) == []
    # Operators keep the shape of their first input if and only if they declare it.
    at = itertools.accumulate((len(case.spec.outputs) for case in cases), initial=0)
    others = {case.spec.name for case, i in zip(cases, at) if outputs[i].shape != case.inputs[0].shape}
    assert others == {case.spec.name for case in cases if not case.spec.keeps_shape}


# A body depends on the opset, not on the runtime: only the lowest and the highest opset run on both runtimes.
@pytest.mark.once
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bodies(dtype: str) -> None:
    cases = cases_of_dtype(dtype=dtype)
    assert disagreements(cases, run(cases, 17, kernels=False), dtype) == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("opset", [7, *(pytest.param(n, marks=pytest.mark.once) for n in (9, 11, 12, 13, 15, 18)), 21])
def test_bodies_in_models_of_other_opsets(opset: int, dtype: str) -> None:
    cases = [case for case in cases_of_dtype(limit=2, dtype=dtype) if case.spec.min_opset <= opset]
    assert disagreements(cases, run(cases, opset, kernels=False), dtype) == []


@pytest.mark.parametrize("kernels", [False, True])
def test_lowest_float_as_mask_value_is_minus_infinity_in_float16(kernels: bool) -> None:
    spec = OPS["FusedAttentionMask"]
    case = cases_of(spec)[0].cast("float16")
    case.attributes["mask_value"] = float(np.finfo(np.float32).min)
    case.inputs[3] = np.zeros(case.inputs[3].shape, dtype=np.bool_)
    (output,) = run([case], 17, kernels=kernels)
    assert np.isnan(output).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kernels", [False, True])
def test_activations_of_large_values_and_nan(dtype: str, kernels: bool) -> None:
    x = np.array([np.nan, 6e4, -6e4, 80.0, -80.0, 20.0, -20.0, 9.0, -9.0, 1e-4, -1e-4, 0.0, 3.0, -3.0, 1.0])
    cases = []
    for spec in OPS.values():
        if spec.name.startswith("ScaleShift") and "R" not in spec.inputs:
            case = cases_of(spec)[0]
            case.inputs[:] = [x.reshape(1, 1, -1), np.ones((1, 1)), np.zeros((1, 1))]
            cases.append(case.cast(dtype))
    for case, y in zip(cases, run(cases, 17, kernels=kernels), strict=True):
        (want,) = case.reference()
        got: npt.NDArray[np.float64] = y.astype(np.float64)
        rtol, atol = (1e-5, 1e-6) if dtype == "float32" else (1e-2, 1e-3)
        np.testing.assert_allclose(got[..., 1:], want[..., 1:], rtol=rtol, atol=atol, err_msg=case.spec.name)
        if kernels:
            assert np.isnan(got[..., 0]).all(), case.spec.name


@pytest.mark.parametrize("name", ["FusedAttention", "FusedAttentionBiasGqa"])
@pytest.mark.parametrize("opset", [13, 17])
def test_scores_beyond_float16_give_finite_results(name: str, opset: int) -> None:
    """Float16 pixels; computed by ONNX's reference, which rounds each result, while a runtime may skip that."""
    case = cases_of(OPS[name])[0].cast("float16")
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 4000, x.shape).astype(x.dtype) if i < 2 else x for i, x in enumerate(case.inputs)]
    case = replace(case, inputs=pixels, attributes={**case.attributes, "scale": 1.0})
    model, feeds = model_of([case], opset, bodies=True)
    got = ReferenceEvaluator(model).run(None, dict(feeds))
    assert isinstance(got, list) and case.error(got) <= case.tolerance("float16")
