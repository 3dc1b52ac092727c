"""Measures the effect of a fault on the outputs, in units of the noise floor.

ONNX Runtime runs all files without optimizations on the inputs of `subjects.inputs`. The noise floor of a pair of files
is, for each output element, the maximum of three differences: the difference before a fault is planted; the effect of
changing every float weight and input by one unit in the last place of the pair's precision; and the effect, in BEFORE,
of the same change to every softmax score (adding a mask of -10000 rounds a score to thousandths). The effect of a fault
is the largest one over the whole output and over each slice along each axis, since a score of 0.5 beside a box of 2,000
pixels has a scale of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import graphopt
from tests.rewriting import Array
from tests.verification.planted.registry import DOMAIN
from tests.verification.planted.subjects import weights_of

# The noise floor counts as at least this fraction of the RMS of a slice.
FLOOR = 1e-6
# An axis with more entries enumerates positions, so its slices are not measured separately.
GROUPS = 1024
PERTURBATIONS = 3
# The unit in the last place of 1 in bfloat16.
BRAIN = 2.0**-7
Feeds = Mapping[str, Array]


def session(model: onnx.ModelProto, library: bool) -> ort.InferenceSession:
    """Opens a session without optimizations; with the library it runs kernels, without it function bodies."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if library:
        options.register_custom_ops_library(str(graphopt.library_path()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def computes_in_bfloat16(model: onnx.ModelProto) -> bool:
    """Whether GraphOpt nodes round operands to bfloat16; the weights in such a file are float32."""
    return any(n.domain == DOMAIN and n.op_type.endswith("Bf16") for n in model.graph.node)


def perturbed(model: onnx.ModelProto, unit: float, seed: int) -> onnx.ModelProto:
    """Returns a copy with each element of float weights with more than 8 elements one unit in the last place off."""
    rng = np.random.default_rng(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for i, array in list(weights_of(copy)):
        # Smaller constants are not weights, for example the 1 in 1 - mask, or the scales of a Resize.
        if array.size > 8:
            moved = nudged(array, max(unit, float(np.finfo(array.dtype).eps)), rng)
            copy.graph.initializer[i].CopyFrom(numpy_helper.from_array(moved, copy.graph.initializer[i].name))
    return copy


def with_rounded_scores(model: onnx.ModelProto, unit: float, seed: int) -> onnx.ModelProto:
    """Returns a copy that multiplies each Softmax input of the main graph by about 1 - `unit`, 1 or 1 + `unit`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    # Infinities and very large negative scores mean "masked" and are kept: a multiplication could overflow.
    copy.graph.initializer.append(numpy_helper.from_array(np.float32(1e30), "rounded_scores/bound"))
    for i, node in enumerate(model.graph.node):
        if node.op_type == "Softmax" and node.domain == "":
            x, y = node.input[0], f"rounded_scores/{i}"
            low, high = 1 - 1.5 * unit, 1 + 1.5 * unit
            copy.graph.node.extend(
                [
                    helper.make_node(
                        "RandomUniformLike", [x], [f"{y}/factor"], low=low, high=high, seed=float(seed + i)
                    ),
                    helper.make_node("Mul", [x, f"{y}/factor"], [f"{y}/moved"]),
                    helper.make_node("Abs", [x], [f"{y}/size"]),
                    helper.make_node("Less", [f"{y}/size", "rounded_scores/bound"], [f"{y}/near"]),
                    helper.make_node("Where", [f"{y}/near", f"{y}/moved", x], [y]),
                ]
            )
            node = copy.graph.node.add()
            node.CopyFrom(model.graph.node[i])
            node.input[0] = y
        else:
            copy.graph.node.add().CopyFrom(node)
    return copy


def nudged(array: Array, unit: float, rng: np.random.Generator) -> Array:
    """Changes each element by the fraction `unit`, up or down, except infinities and elements that would overflow."""
    signs = rng.integers(0, 2, array.shape) * 2 - 1
    with np.errstate(all="ignore"):
        moved = np.asarray(array.astype(np.float64) * (1 + signs * unit)).astype(array.dtype)
    return np.asarray(np.where(np.isfinite(moved), moved, array))


def distance(want: Array, got: Array) -> Array:
    """|want - got| for each element in float64; inf where only one of them is finite, or where strings differ."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return np.full(want.shape, np.inf)
    if want.dtype.kind not in "biuf":
        return np.where(want == got, 0.0, np.inf)
    a, b = want.astype(np.float64), got.astype(np.float64)
    with np.errstate(all="ignore"):
        far = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(far), far, np.inf))


def _slices(array: Array) -> Iterator[Array]:
    """The largest element of the whole array, then of each slice along each axis with at most GROUPS entries."""
    yield array.max(initial=0.0).reshape(1)
    for axis, entries in enumerate(array.shape):
        if 1 < entries <= GROUPS and array.ndim > 1:
            yield array.max(axis=tuple(i for i in range(array.ndim) if i != axis), initial=0.0)


def _rms(array: Array) -> Iterator[Array]:
    a = np.where(np.isfinite(array.astype(np.float64)), array.astype(np.float64), 0.0)
    yield np.sqrt(np.mean(a * a)).reshape(1) if a.size else np.zeros(1)
    for axis, entries in enumerate(array.shape):
        if 1 < entries <= GROUPS and array.ndim > 1:
            yield np.sqrt(np.mean(a * a, axis=tuple(i for i in range(array.ndim) if i != axis)))


class Pair:
    """BEFORE, the file to plant faults in, and the noise floor between them.

    Args:
        before: the original model.
        base: the file that faults are planted in.
        sets: input sets; those that BEFORE refuses are skipped.
        exact: no correct rewrite rounds the inputs.
    """

    def __init__(
        self, before: onnx.ModelProto, base: onnx.ModelProto, sets: Sequence[Feeds], *, exact: bool = False
    ) -> None:
        halves = any(a.dtype == np.float16 for _, a in weights_of(base))
        bf16 = computes_in_bfloat16(base)
        self.unit = BRAIN if bf16 else float(np.finfo(np.float16 if halves else np.float32).eps)
        self.modes = [False, True] if any(n.domain == DOMAIN for n in base.graph.node) else [False]
        self.names = [o.name for o in before.graph.output]
        self.sets: list[Feeds] = []
        self._want: dict[tuple[bool, int], list[Array]] = {}
        self._noise: dict[tuple[bool, int], list[Array]] = {}
        original = session(before, False)
        based = {mode: session(base, mode) for mode in self.modes}
        shaken = [session(perturbed(base, self.unit, seed), self.modes[-1]) for seed in range(PERTURBATIONS)]
        if not (halves or bf16) and any(n.op_type == "Softmax" for n in before.graph.node):
            scores = [
                session(with_rounded_scores(before, self.unit, 100 * seed), False) for seed in range(PERTURBATIONS)
            ]
        else:
            scores = []
        rng = np.random.default_rng(1)
        for feeds in sets:
            try:
                first = original.run(None, dict(feeds))
            except Exception:
                continue
            k = len(self.sets)
            self.sets.append(feeds)
            base_outputs = {mode: based[mode].run(None, dict(feeds)) for mode in self.modes}
            shaky = []
            for other in shaken:
                near = {n: nudged(a, self.unit, rng) if _is_measured(a) and not exact else a for n, a in feeds.items()}
                shaky.append(other.run(None, near))
            rounded = [other.run(None, dict(feeds)) for other in scores]
            for mode in self.modes:
                want = base_outputs[mode]
                self._want[mode, k] = want
                others = [first, *shaky, *base_outputs.values()]
                self._noise[mode, k] = [
                    np.max([distance(w, o[i]) for o in others] + [distance(first[i], o[i]) for o in rounded], axis=0)
                    for i, w in enumerate(want)
                ]

    def effect(self, faulty: onnx.ModelProto) -> float:
        """Returns the largest ratio of difference to noise floor; inf on failure or another interface."""
        worst = 0.0
        for mode in self.modes:
            try:
                runner = session(faulty, mode)
                if [o.name for o in runner.get_outputs()] != self.names:
                    return float("inf")
                for k, feeds in enumerate(self.sets):
                    got = runner.run(None, dict(feeds))
                    for w, g, h in zip(self._want[mode, k], got, self._noise[mode, k], strict=True):
                        worst = max(worst, _ratio(w, g, h))
            except Exception:
                return float("inf")
        return worst


def _is_measured(array: Array) -> bool:
    """Whether an input holds measured values; an input of only zeros and ones is a mask, which is exact."""
    return array.dtype.kind == "f" and not np.isin(array, (0, 1)).all()


def _ratio(want: Array, got: Array, noise: Array) -> float:
    if want.shape != got.shape or want.dtype != got.dtype:
        return float("inf")
    if not want.size:
        return 0.0
    far = distance(want, got)
    if not far.any():
        return 0.0
    if want.dtype.kind not in "f":
        return float("inf") if not noise.any() else 0.0
    whole = float(next(_rms(want))[0])
    # An element's error may be 0 by chance: it counts as at least a quarter of the largest, relative to the RMS.
    relative = 0.25 * float(noise.max()) / whole if whole else 0.0
    worst = 0.0
    for f, h, scale in zip(_slices(far), _slices(noise), _rms(want), strict=True):
        with np.errstate(all="ignore"):
            limit = np.maximum(np.maximum(h, FLOOR * scale), np.maximum(relative * scale, 1e-12 * whole + 1e-30))
            ratio = np.where(np.isinf(h), 0.0, f / limit)
        worst = max(worst, float(np.nanmax(ratio, initial=0.0)))
    return worst
