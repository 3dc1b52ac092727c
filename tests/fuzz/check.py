"""Properties of every random graph: the invariants, and equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import graphopt
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN
from graphopt.verification.compare import LIMITS, deviation
from tests.fuzz.generator import generate
from tests.rewriting import Array, run
from tests.verification.reference64 import in_float64

# Runs a model on another device than ONNX Runtime's CPU provider.
Runner = Callable[[onnx.ModelProto, dict[str, Array]], list[Array]]

# A different summation order may change a result by this many times the effect of one unit in the last place of all
# values.
UNITS = 8.0


class BatchNormalization(OpRun):
    """Inference-mode BatchNormalization. Below opset 14 ONNX's evaluator uses batch statistics, or fails."""

    def _run(
        self, x: Array, scale: Array, shift: Array, mean: Array, var: Array, epsilon: float = 1e-5, **_: Any
    ) -> tuple[Array]:
        column = (-1, *[1] * (x.ndim - 2))
        normalized = (x - mean.reshape(column)) / np.sqrt(var + x.dtype.type(epsilon)).reshape(column)
        return ((normalized * scale.reshape(column) + shift.reshape(column)).astype(x.dtype),)


def check(seed: int, device: Runner | None = None) -> bool:
    """Checks the graph of one seed by function bodies, with the library and on a device.

    Returns:
        False if ONNX Runtime refuses the graph.

    Raises:
        AssertionError: a wrong result, a changed interface, a lost shape, or a second run that changes the model again.
    """
    generated = generate(seed)
    model, feeds = generated.model, generated.feeds
    try:
        onnx.checker.check_model(model)
        want = run(model, feeds)
    except Exception:  # ONNX Runtime cannot run this model
        return False
    before = model.SerializeToString(deterministic=True)
    every, target = seed % 4 != 0, "cpu" if device is None else "cuda"
    after, _ = graphopt.optimize(model, target=target, ignore_cost_model=every, check=True)
    assert model.SerializeToString(deterministic=True) == before, f"seed {seed}: the argument changed"
    again, _ = graphopt.optimize(after, target=target, ignore_cost_model=every)
    assert again.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True), (
        f"seed {seed}: a second run changes something"
    )
    _check_shapes(seed, model, after)
    ours = any(o.domain == DOMAIN for o in after.opset_import)
    ways = {"bodies": run(after, feeds)}
    if ours:
        ways["library"] = run(after, feeds, library=True)
    if device is not None:
        ways["device"] = device(after, feeds)
    # With values close to float16's maximum, ONNX Runtime and our kernels may overflow in different rows.
    overflows = generated.half and not all(map(_within_half, want))
    for way, outputs in ways.items():
        numerics = Numerics.APPROXIMATE if ours and way != "bodies" else Numerics.REASSOCIATED
        if generated.half:
            numerics = Numerics.FP16
        for i, got in enumerate(outputs):
            if overflows:
                assert (got.dtype, got.shape) == (want[i].dtype, want[i].shape), f"seed {seed}, output {i}"
                continue
            if want[i].size == got.size == 0 and want[i].shape != got.shape:
                # The CPU provider's ReduceMean keeps the reduced axis of an empty tensor. ONNX and our shape rules do
                # not.
                assert got.dtype == want[i].dtype, f"seed {seed}, output {i}"
                dims = _dims(model.graph.output[i])
                fits = dims is None or _says_as_much(list(got.shape), dims)
                assert fits, f"seed {seed}, output {i}, {way}: shape {got.shape}"
                continue
            structure, _, moved = _difference(want[i], got)
            assert not structure, f"seed {seed}, output {i}, {way}: {structure}"
            if moved <= LIMITS[numerics]:
                continue
            limit = UNITS * _sensitivity(model, feeds, want[i], i)
            if moved > limit and generated.half:
                # ONNX Runtime keeps float32 between nodes. Our kernels round to float16, as the definition of each node
                # requires.
                rounded: Any = ReferenceEvaluator(model, new_ops=[BatchNormalization]).run(None, feeds)
                limit = 3 * _difference(want[i], rounded[i])[2]
            elif moved > limit:
                # Where rounding dominates the original's output, ours may deviate from float64 by at most three times
                # as much.
                wide: Any = ReferenceEvaluator(in_float64(model), new_ops=[BatchNormalization]).run(None, _wide(feeds))
                exact = wide[i].astype(got.dtype)
                assert exact.shape == got.shape, (
                    f"seed {seed}, output {i}, {way}: {moved:.3g} of RMS, limit {limit:.3g}"
                )
                _, error, moved = _difference(exact, got)
                limit = 3 * _difference(exact, want[i])[2]
                if error <= np.finfo(np.float32).eps * max(map(_rms, want)):
                    continue  # the exact value is zero and the error is at the rounding level of the largest output
            assert moved <= limit, f"seed {seed}, output {i}, {way}: {moved:.3g} of RMS, limit {limit:.3g}"
    return True


def _difference(want: Any, got: Any) -> tuple[str, float, float]:
    """Returns a difference in structure or integers ("" if none), the largest error, and this error over the RMS."""
    found = deviation(want, got)
    other = found.structure or ("values differ" if found.discrete and found.max_abs else "")
    return other, found.max_abs, found.relative


def _check_shapes(seed: int, model: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Checks that onnx infers for every remaining value the shape that it inferred before."""
    known, still = _inferred(model), _inferred(after)
    # An output keeps the declared shape, even where inference knew more; that also limits the nodes that read it.
    declared = {o.name: _dims(o) for o in model.graph.output}
    if not all(_says_as_much(dims, known[name]) for name, dims in declared.items() if name in known):
        return
    # In a branch onnx follows Shape arithmetic, but not the constants that our rewrites replace it with.
    if any(node.op_type == "If" for node in model.graph.node):
        return
    for name in known.keys() & {output for node in after.graph.node for output in node.output}:
        assert _says_as_much(still.get(name), known[name]), f"seed {seed}: {name} {known[name]}, now {still.get(name)}"


def _inferred(model: onnx.ModelProto) -> dict[str, list[int | None]]:
    """Returns the shapes that onnx infers for the values of the main graph, with None for a symbolic dimension."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    found = {v.name: _dims(v) for v in (*graph.value_info, *graph.output)}
    return {name: dims for name, dims in found.items() if dims is not None}


def _dims(value: onnx.ValueInfoProto) -> list[int | None] | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]


def _says_as_much(now: list[int | None] | None, before: list[int | None]) -> bool:
    return now is not None and len(now) == len(before) and all(b in (None, n) for n, b in zip(now, before))


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(array.astype(np.float64) ** 2))) if array.size and array.dtype.kind == "f" else 0.0


def _wide(feeds: dict[str, Array]) -> dict[str, Array]:
    return {name: a.astype(np.float64) if a.dtype == np.float32 else a for name, a in feeds.items()}


def _within_half(array: Array) -> bool:
    """Whether all values are so far below float16's maximum that another summation order cannot overflow."""
    return array.size == 0 or bool(np.all(np.abs(array.astype(np.float32)) < 1e4))


def _sensitivity(model: onnx.ModelProto, feeds: dict[str, Array], want: Array, output: int) -> float:
    """Returns the change of an output, in units of its RMS, when all values change by one unit in the last place."""
    moved = 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for tensor in copy.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f":
                tensor.CopyFrom(numpy_helper.from_array(_nudged(array, rng), tensor.name))
        nudged = {name: _nudged(a, rng) if a.dtype.kind == "f" else a for name, a in feeds.items()}
        moved = max(moved, _difference(want, run(copy, nudged)[output])[2])
    return moved


def _nudged(array: Array, rng: np.random.Generator) -> Array:
    towards = np.where(rng.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype)
    return np.asarray(np.nextafter(array, towards))
