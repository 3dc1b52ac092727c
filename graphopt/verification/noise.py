"""Copies of a model that round at random, to measure its rounding error.

All values that a computation rounds are rounded at random: weights once for each seed, results of nodes in each run.
The change of the outputs estimates the rounding error of an equivalent model with another order of summation or a
smaller precision. It is measured for this model and these inputs, for each output and each slice.

Noise is relative to a value, as rounding is. These values get none, because no computation rounds them:
- values that depend on no floating-point input and no weight: shapes, positions, masks made from integers;
- tensors that are inputs, or computed from inputs without weights, and hold only multiples of 0.5: masks of 0 and 1,
  time steps, thresholds;
- zeros, infinities, and the lowest values of a type, which mean "masked".

If two close values have noise of a common source, the noise cancels in their difference, but real rounding errors do
not. Operands of a sum with noise of the same source (`_Kind.sources`) therefore get separate noise. The inputs of norms
and softmaxes get separate noise as well, because these operators compute such differences internally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 in numpy
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.contrib.attention import MASK_FILTER
from graphopt.graph import inference
from graphopt.graph.build import Builder
from graphopt.graph.inference import RUNTIME_FLOATS
from graphopt.graph.operators.arguments import signature
from graphopt.graph.operators.traits import DATA_MOVEMENT, RECURRENT
from graphopt.graph.traversal import bodies, is_external, tensor_array, tensor_dims
from graphopt.graph.view import attribute_float, attribute_int, is_float
from graphopt.inputs.plan import map_arrays
from graphopt.verification.compare import FACTOR, FUNCTION_FLOOR, GATE_FLOOR, PARTIAL_SUMS, SINGLE, Rounding
from graphopt.verification.run import MAX_WEIGHTS_READ, weights_in_files
from graphopt.verification.variants import editor_of_copy, with_exact_sums

Array = npt.NDArray[Any]

# Sums of products. The rounding error of each partial sum is relative to the terms, not to the result. Noise on one
# operand models these errors; its unit grows with the root of the number of terms.
SUMS_OF_PRODUCTS = frozenset(
    "Attention Conv ConvTranspose DFT Einsum GRU Gemm LSTM MatMul MultiHeadAttention RNN STFT".split()
)
# Operators with noise even on inputs that hold only integers: the scaled scores are not integers, and the softmax
# subtracts the maximum of the scores.
SCALED = frozenset(("Attention", "MultiHeadAttention"))
# The number of terms if the weight is unknown.
USUAL_TERMS = 64
# Other sums, means and interpolations.
SUMS = frozenset(
    "Add AveragePool CumSum GlobalAveragePool GlobalLpPool GridSample GroupNormalization InstanceNormalization LRN "
    "LayerNormalization LogSoftmax LpNormalization LpPool Mean MeanVarianceNormalization RMSNormalization ReduceL1 "
    "ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare Resize RoiAlign "
    "RotaryEmbedding Softmax Sub Sum Upsample".split()
)
# Norms with kernels that may compute the variance as a difference of two means.
NORMS = frozenset(("LayerNormalization", "SkipLayerNormalization"))
# Norms that subtract a mean.
CENTRED = NORMS | {"GroupNormalization", "InstanceNormalization", "MeanVarianceNormalization"}
# Operators that add a negative value to the scores of masked keys -> indices of mask and bias.
MASKED = {"Attention": (3, 5), "DecoderMaskedMultiHeadAttention": (3, 4), "MultiHeadAttention": (4, 5)}
# Attention operators -> index of V, or of the input that V is computed from.
VALUES = {"Attention": 0, "DecoderMaskedMultiHeadAttention": 2, "MultiHeadAttention": 2}
# Operators that subtract the maximum.
SOFTMAXES = frozenset(("LogSoftmax", "Softmax"))
# Approximated functions; the error is relative to 1 where the result is smaller.
FUNCTIONS = frozenset(
    "Acos Asin Atan Celu Cos Elu Erf Gelu HardSigmoid HardSwish Log Mish Selu Sigmoid Sin Softplus Softsign Swish Tan "
    "Tanh".split()
)
# Operators with approximated gates: the error of a small state is not relative to it (`GATE_FLOOR`).
GATED = RECURRENT | {"DynamicQuantizeLSTM"}
# Operators without sums. Rounding their results adds no more error than rounding their inputs did, so they get noise
# only if they are rounded to half precision.
ELEMENTWISE = frozenset("BatchNormalization Div Exp LeakyRelu Mul Pow PRelu Reciprocal Sqrt ThresholdedRelu".split())
# Steps: operators that round to a grid, choose or compare -> indices of the inputs that they round, choose from or
# compare. A small change of such an input has no effect or a large effect.
STEPS: dict[str, tuple[int, ...]] = dict.fromkeys(
    "ArgMax ArgMin Cast Ceil DynamicQuantizeLSTM DynamicQuantizeLinear DynamicQuantizeMatMul Floor Hardmax "
    "QuantizeLinear Round TopK".split(),
    (0,),
) | dict.fromkeys("Greater GreaterOrEqual Less LessOrEqual NonMaxSuppression".split(), (0, 1))
INTEGERS = frozenset(ir.DataType[f"{sign}INT{bits}"] for sign in ("", "U") for bits in (8, 16, 32, 64))
# Constants of at most this many elements are probably epsilons, bounds and scales of a Resize, not weights.
SMALL_CONSTANT = 8
FLOAT, DOUBLE, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.BOOL
# Limit of the noise. It is too small to change infinities and the lowest values of a type.
BOUND = 1e30
OLDEST_OPSET = 7  # broadcasting
EQUAL_OF_FLOATS_OPSET = 11
# From this opset on runtimes lack kernels for random floats; Dropout in training mode gives random bits.
BITS_OPSET = 22
# The number of bits in a random value: its variance is within 2 % of a uniform distribution's.
BITS = 3
_POOL = 1 << 20  # random numbers of a draw of a weight; larger weights repeat them


@dataclass(frozen=True)
class Precision:
    """How the other model of a comparison rounds the values of this model.

    Attributes:
        activations: name of a value -> its rounding.
        weights: rounding of weights.
        inputs: rounding of inputs.
    """

    activations: Callable[[str], Rounding]
    weights: Rounding
    inputs: Rounding


def guessed(graph: ir.Graph) -> dict[ir.Value, ir.DataType]:
    """Gives results without an inferred type the type of the node's first floating-point input."""
    found: dict[ir.Value, ir.DataType] = {}
    for node in graph:
        for body in bodies(node):
            found |= guessed(body)
        given = (value.dtype or found.get(value) for value in node.inputs if value is not None)
        first = next((dtype for dtype in given if dtype in RUNTIME_FLOATS), None)
        if first is not None and node.outputs and node.outputs[0].name and node.outputs[0].dtype is None:
            found[node.outputs[0]] = first
    return found


def has_norms(graph: ir.Graph) -> bool:
    """Returns whether the graph or its bodies have norms that `NoisyModel` may replace by elementary operators."""
    return any(node.op_type in NORMS for node in ir.traversal.RecursiveGraphIterator(graph))


def has_softmax(graph: ir.Graph) -> bool:
    """Returns whether there is a softmax. If scores are far apart, it chooses one value, like a step."""
    return any(node.op_type in SOFTMAXES | SCALED for node in ir.traversal.RecursiveGraphIterator(graph))


def has_steps(graph: ir.Graph) -> bool:
    """Returns whether a node, also in bodies, rounds to a grid, chooses or compares."""
    return any(is_step(node) for node in ir.traversal.RecursiveGraphIterator(graph))


def is_step(node: ir.Node) -> bool:
    """Returns whether a node rounds floating-point values to a grid, chooses among them or compares them."""
    if _searches(node):
        return True
    if node.op_type not in STEPS or not any(is_float(node.inputs[i]) for i in STEPS[node.op_type]):
        return False
    return node.op_type != "Cast" or attribute_int(node, "to", 0) in INTEGERS


def _searches(node: ir.Node) -> bool:
    """Returns whether a node chooses among results of its bodies: BeamSearch, GreedySearch, Sampling."""
    return node.domain != "" and bool(bodies(node))


def is_exact_factor(tensor: ir.TensorProtocol) -> bool:
    """Returns whether multiplication by a small tensor is exact: all elements are powers of two or 0."""
    if tensor.dtype not in RUNTIME_FLOATS or is_external(tensor) or math.prod(tensor_dims(tensor)) > SMALL_CONSTANT:
        return False
    fraction, _ = np.frexp(tensor_array(tensor).astype(np.float64))
    return bool(np.isin(np.abs(fraction), (0, 0.5)).all())


def rounded_feeds(feeds: Mapping[str, Any], rounding: Rounding, seed: int) -> dict[str, Any]:
    """Returns inputs rounded at random."""
    rng = np.random.default_rng([seed, 1])
    return map_arrays(feeds, lambda a: with_noise(a, rounding.unit, rng) if a.dtype.kind in "fV" else a)


def with_noise(array: Array, unit: float, rng: np.random.Generator) -> Array:
    """Multiplies each element by 1 + unit * uniform(-1, 1), except infinities and lowest values.

    An array is not changed if all elements are multiples of 0.5.
    """
    return array if has_only_multiples_of_half(array) else _noise_on(array, unit, rng)


def has_only_multiples_of_half(array: Array) -> bool:
    """Returns whether all elements are multiples of 0.5."""
    flat = _wide(array).reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        return all(bool((2 * some == np.rint(2 * some)).all()) for some in (flat[:_POOL], flat))


def _wide(array: Array) -> Array:
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)


def _noise_on(array: Array, unit: float, rng: np.random.Generator) -> Array:
    flat = _wide(array).reshape(-1)
    pool = rng.random(min(_POOL, max(flat.size, 1)), flat.dtype)
    pool = (2 * pool - 1) * flat.dtype.type(unit)
    result = np.empty_like(flat)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _POOL):
            part = flat[start : start + _POOL]
            kept = ~(np.abs(part) < BOUND)
            result[start : start + _POOL] = np.where(kept, part, part + part * pool[: part.size])
        return result.reshape(array.shape).astype(array.dtype, copy=False)


def _lost(array: Array, dtype: str) -> Array:
    """Returns the change of float32 values when they are rounded to another type."""
    with np.errstate(over="ignore"):
        lost = array.astype(np.dtype(dtype)).astype(np.float32) - array
    return np.where(np.isfinite(lost), lost, 0)


@dataclass
class _Kind:
    """Properties of a value.

    Attributes:
        noisy: whether rounding changes it.
        raw: whether it is computed from floating-point inputs without weights.
        sources: the values at which its last noise was added; empty if it may have no noise.
        rounded: whether a kernel has rounded it since that noise was added.
    """

    noisy: bool = False
    raw: bool = False
    sources: frozenset[ir.Value] = frozenset()
    rounded: bool = False


class NoisyModel:
    """A copy of a model that rounds at random, differently for each seed.

    Args:
        model: functions inlined, types inferred, opset at least OLDEST_OPSET.
        precision: the rounding.
        guess: whether results of unknown type get the type of an input (`guessed`).
        overflows: whether values that are rounded to half precision become infinite beyond float16's range.
        steps: the least noise on inputs of STEPS, in units of SINGLE. More than 1 shows the effect of another step or
            choice, because with usual noise a value near a threshold crosses it in few draws only.
        noiseless: no random noise: norms are written out, sums are exact, and weights in `stored` are rounded.
        stored: names of weights that are rounded to nearest in the precision of weights, if `noiseless` is set.
    """

    def __init__(
        self,
        model: ir.Model,
        precision: Precision,
        *,
        guess: bool = False,
        overflows: bool = False,
        steps: float = 1.0,
        noiseless: bool = False,
        stored: frozenset[str] = frozenset(),
    ) -> None:
        self._editor = editor_of_copy(model)
        self._model = self._editor.model
        for value, dtype in guessed(self._model.graph).items() if guess else ():
            inference.suppose(self._model, value, dtype)
        self._precision, self._overflows = precision, overflows
        self._steps, self._noiseless, self._stored = steps, noiseless, stored
        self._opset = self._model.opset_imports.get("", 0)
        self._unread = weights_in_files(self._model) > MAX_WEIGHTS_READ
        # Functions of a generator and its seed that draw the noise, in order.
        self._draws: list[Callable[[np.random.Generator, int], None]] = []
        self._known: dict[ir.Value, _Kind] = {}
        # Weights that noise changes. Weights that are all zero also count as changed; small constants, and other
        # weights that are all multiples of 0.5, do not.
        self._changed: set[ir.Value] = set()
        # Constants that can be multiplied without rounding.
        self._exact_factors: set[ir.Value] = set()
        # Scalar constants that the noise of a graph shares, and the graphs that got noise.
        self._scalars: dict[tuple[ir.Graph | None, float, ir.DataType], ir.Value] = {}
        self._touched: set[ir.Graph | None] = set()
        for value in self._model.graph.inputs:
            if not value.is_initializer():
                self._known[value] = _Kind(noisy=is_float(value), raw=is_float(value))
        self._graph(self._model.graph)
        if noiseless:
            with_exact_sums(self._editor)

    @contextmanager
    def drawn(self, seed: int) -> Iterator[ir.Model]:
        """Yields the model with the noise of a seed; restores its weights on exit."""
        rng = np.random.default_rng(seed)
        tensors = [(value, value.const_value) for value in self._model.graph.initializers.values()]
        try:
            for draw in self._draws:
                draw(rng, seed)
            yield self._model
        finally:
            for value, tensor in tensors:
                value.const_value = tensor

    # -- the graph -----------------------------------------------------------------------------------------------------

    def _graph(self, graph: ir.Graph) -> None:
        for value in list(graph.initializers.values()):
            if (tensor := value.const_value) is not None:
                self._constant(tensor, value, partial(self._editor.set_data, value))
        for node in list(graph):
            if node.op_type == "Constant" and (attribute := node.attributes.get("value")) is not None:
                self._constant(attribute.as_tensor(), node.outputs[0], partial(self._set_constant, node))
            kinds = [self._kind(value) for value in node.inputs if value is not None]
            kinds += self._bodies(node, kinds)
            if node.op_type != "Constant":
                self._node(node, kinds)

    def _unit_of(self, value: ir.Value | None) -> Rounding:
        return self._precision.activations("" if value is None else value.name or "")

    def _kind(self, value: ir.Value | None) -> _Kind:
        return _Kind() if value is None else self._known.get(value, _Kind())

    def _bodies(self, node: ir.Node, kinds: Sequence[_Kind]) -> list[_Kind]:
        """Adds noise to the bodies of a node. Returns a noisy kind for each body that got noise."""
        inside: list[_Kind] = []
        for body in bodies(node):
            # An input of a body is noisy if any input of the node, or an earlier body, has noise.
            noisy = any(k.noisy for k in (*kinds, *inside))
            for value in body.inputs:
                self._known[value] = _Kind(noisy=noisy and is_float(value))
            self._graph(body)
            if _searches(node) and self._steps > 1:
                self._add_noise_to_scores(body)
            inside += [_Kind(noisy=True)] * (body in self._touched)
        return inside

    def _node(self, node: ir.Node, kinds: Sequence[_Kind]) -> None:
        """Adds noise before and after a node with inputs and bodies of these kinds."""
        noisy = [k for k in kinds if k.noisy]
        sources = frozenset[ir.Value]().union(*(k.sources for k in kinds))
        rounded = any(k.rounded for k in kinds) or self._rounds(node)
        kind = _Kind(bool(noisy), bool(noisy) and all(k.raw for k in noisy), sources, rounded)
        if not self._noiseless:
            self._round_separately(node)
            self._round_values(node)
        if node.op_type in NORMS:
            node = self._write_out(node, kind)
        if node.op_type in SUMS_OF_PRODUCTS and not self._is_coarse(node) and not self._noiseless:
            # The noise of the result has a new source, with two exceptions: products of integers are exact, and if all
            # products are 0, the result is the bias, which may have no noise.
            if self._round_operand(node) and not kind.raw and self._changed.issuperset(node.inputs[2:3]):
                kind = replace(kind, sources=frozenset(node.outputs[:1]), rounded=False)
            else:
                kind = replace(kind, sources=frozenset())
        if node.op_type in MASKED and node.domain == "com.microsoft" and not self._noiseless:
            self._round_bias(node)
        if self._steps > 1 and is_step(node) and not _searches(node):
            self._add_noise_to_step(node)
        for y in node.outputs:
            self._known[y] = kind if is_float(y) or y.dtype is None else _Kind()
            if y.name and kind.noisy and is_float(y) and self._is_rounded(node, y):
                moved_ = self._round_after(y, self._unit_of(y), node.op_type, kind.raw)
                # Values without weights may be integers, which get no noise, so their sources are kept.
                self._known[moved_] = kind if kind.raw else replace(kind, sources=frozenset((moved_,)), rounded=False)

    def _round_after(self, y: ir.Value, rounding: Rounding, op_type: str, raw: bool) -> ir.Value:
        """Adds noise to a result, and returns the sum."""
        producer = y.producer()
        assert producer is not None
        b = Builder(self._editor, producer)
        rounded = self._rounded(b, y, rounding, op_type, raw)
        self._editor.interpose(y, b.nodes, rounded)
        return rounded

    def _round_before(self, node: ir.Node, i: int, rounding: Rounding, raw: bool) -> None:
        """Adds noise to input `i` of a node alone."""
        x = node.inputs[i]
        assert x is not None
        b = Builder(self._editor, node)
        rounded = self._rounded(b, x, rounding, node.op_type, raw)
        self._editor.add_before(node, b.nodes)
        self._editor.set_input(node, i, rounded)

    # -- constants -----------------------------------------------------------------------------------------------------

    def _constant(self, tensor: ir.TensorProtocol, value: ir.Value, put: Callable[[Array], None]) -> None:
        """Records the properties of a constant, and the draws of its noise if it is a weight."""
        self._exact_factors |= {value} if is_exact_factor(tensor) else set()
        is_weight = tensor.dtype in RUNTIME_FLOATS and math.prod(tensor_dims(tensor)) > SMALL_CONSTANT
        unread = self._unread and is_external(tensor)
        if is_weight and not unread and (not self._noiseless or value.name in self._stored):
            array = tensor_array(tensor)
            keeps = self._noiseless or has_only_multiples_of_half(array)
            if not keeps or not array.any():
                self._changed.add(value)
            self._draws.append(partial(self._draw_weight, tensor, keeps, put))
        sources = frozenset((value,)) if value in self._changed else frozenset[ir.Value]()
        self._known[value] = _Kind(noisy=is_weight, sources=sources)

    def _draw_weight(
        self, tensor: ir.TensorProtocol, keeps: bool, put: Callable[[Array], None], rng: np.random.Generator, seed: int
    ) -> None:
        """Adds noise to a weight unless `keeps` is set.

        The draw of seed 0 also adds the error of rounding to a smaller type: twice, or once if `noiseless`.
        This error may have a pattern, for example in evenly increasing weights, and then accumulates in sums; random
        noise does not.
        """
        weights, array = self._precision.weights, tensor_array(tensor)
        result = array if keeps else _noise_on(array, weights.unit, rng)
        if seed == 0 and weights.dtype and array.dtype == np.float32:
            result = result + (1 if self._noiseless else 2) * _lost(array, weights.dtype)
        put(result)

    def _set_constant(self, node: ir.Node, array: Array) -> None:
        self._editor.set_attribute(node, "value", ir.Tensor(array))

    # -- operators -----------------------------------------------------------------------------------------------------

    def _is_coarse(self, node: ir.Node) -> bool:
        return any(self._unit_of(y).coarse for y in node.outputs if y.name)

    def _is_rounded(self, node: ir.Node, y: ir.Value) -> bool:
        """Returns whether noise is added to an output."""
        if self._noiseless:
            return False
        if node.domain != "" or node.op_type in SUMS | FUNCTIONS | GATED:
            return True
        if not self._unit_of(y).coarse:
            return False
        # DATA_MOVEMENT operators round only if the input is not coarse; a coarse input was rounded at its producer.
        x = node.inputs[0] if node.op_type in DATA_MOVEMENT else None
        moved = x is not None and not x.is_initializer()
        return node.op_type in ELEMENTWISE | SUMS_OF_PRODUCTS or (moved and not self._unit_of(x).coarse)

    def _round_operand(self, node: ir.Node) -> bool:
        """Adds noise for the rounding of partial sums to the first noisy operand; returns whether there is one."""
        for i, x in enumerate(node.inputs):
            kind = self._kind(x)
            if x is not None and kind.noisy and not x.is_initializer() and is_float(x):
                unit = SINGLE.unit * math.hypot(1, PARTIAL_SUMS * math.sqrt(_terms(node, i)))
                self._round_before(node, i, replace(SINGLE, unit=unit), kind.raw and node.op_type not in SCALED)
                return True
        return False

    def _rounds(self, node: ir.Node) -> bool:
        """Returns whether a kernel of a node rounds each element of its result."""
        if node.op_type in ("Mul", "Div") and not self._exact_factors.isdisjoint(node.inputs):
            return False
        return node.op_type in ELEMENTWISE | SUMS_OF_PRODUCTS | SUMS | FUNCTIONS

    def _round_separately(self, node: ir.Node) -> None:
        """Rounds the operands of a difference if their noise may have a common source."""
        if node.domain != "" or self._is_coarse(node):
            return
        kinds, inputs = [self._kind(value) for value in node.inputs], node.inputs
        # The index of an input, its rounding, and whether integers remain integers.
        chosen: list[tuple[int, Rounding, bool]] = []
        if node.op_type in ("Add", "Sub", "Sum") and len({k.sources for k in kinds}) == 1:
            chosen = [(i, SINGLE, k.raw) for i, k in enumerate(kinds) if k.noisy and k.rounded]
        elif node.op_type in CENTRED | SOFTMAXES | {"BatchNormalization"}:
            if kinds[0].noisy and not kinds[0].sources:
                chosen = [(0, SINGLE, kinds[0].raw and node.op_type in SOFTMAXES)]
            if node.op_type == "BatchNormalization":
                # Kernels compute x * s + (bias - mean * s). If these terms almost cancel, the result consists mostly of
                # rounding errors.
                stored = replace(SINGLE, unit=self._precision.weights.unit)
                separate = {*inputs[2:4]} & self._changed if inputs[2] is not inputs[3] else set()
                chosen += [(i, stored, False) for i in (2, 3) if inputs[i] not in separate]
        for i, rounding, raw in chosen:
            if is_float(x := inputs[i]) or (x is not None and x.dtype is None):
                self._round_before(node, i, rounding, raw)

    def _round_values(self, node: ir.Node) -> None:
        """Rounds V of an attention in half precision once more, in place of its probabilities.

        The probabilities are internal values and cannot be rounded. The effect on the sum of products is the same: each
        product changes by one unit, independently.
        """
        index = VALUES[node.op_type] if node.op_type in VALUES and node.domain == "com.microsoft" else len(node.inputs)
        if index < len(node.inputs) and is_float(node.inputs[index]):
            coarse = self._unit_of(node.inputs[index])
            if coarse.coarse:
                more = 2.0 if node.op_type == "Attention" else 1.0
                self._round_before(node, index, replace(coarse, unit=coarse.unit * math.sqrt(more)), raw=False)

    def _round_bias(self, node: ir.Node) -> None:
        """Rounds the bias of an attention, at masked keys, as coarsely as the sum of bias and masking value.

        Kernels may add the bias to the scores first, or to the mask. The order matters only in rows where every key is
        masked: there the softmax cancels the masking value, and the bias remains, rounded in its sum with -10000.
        """
        mask, bias = (node.inputs[i] if i < len(node.inputs) else None for i in MASKED[node.op_type])
        if mask is None or bias is None or bias.dtype not in RUNTIME_FLOATS or self._opset < EQUAL_OF_FLOATS_OPSET:
            return
        b = Builder(self._editor, node)
        # A mask is [B, T] or [B, S, T] with 0 at masked keys, or has one axis: B lengths, then elements that are not
        # used. It is reshaped to [B, 1, 1 or S, T], lengths to [B, 1, 1, 1].
        one = b.ints(1)
        keys, sizes = b.dim(bias, -1), b.op("Shape", mask)
        is_lengths = b.op("Equal", b.op("Shape", sizes), one)
        assert node.inputs[0] is not None
        batch = b.dim(node.inputs[0], 0)
        whole = b.concat([batch, one, b.ints(-1), keys], 0)
        shape = b.op("Where", is_lengths, b.ints(-1, 1, 1, 1), whole)
        numbers = b.slice(b.cast(b.op("Reshape", mask, shape), INT64), 0, 0, batch)
        ones = b.op("Expand", one, keys)
        position = b.op("CumSum", ones, b.array(np.array(0, np.int32)))
        hides_below = b.op("Where", is_lengths, position, ones)
        hidden = b.cast(b.op("Less", numbers, hides_below), FLOAT)

        added = attribute_float(node, "mask_filter_value", MASK_FILTER)
        single = b.cast(bias, FLOAT)
        size = b.mul(b.op("Abs", single), b.number(FACTOR, FLOAT))
        size = b.op("Min", size, b.number(self._unit_of(node.outputs[0]).unit * abs(added), FLOAT))
        size = b.mul(size, hidden)
        noise = b.mul(size, self._uniform(b, size, 1.0, FLOAT))
        rounded = b.cast(b.add(single, noise), bias.dtype)
        self._editor.add_before(node, b.nodes)
        self._editor.set_input(node, MASKED[node.op_type][1], rounded)
        self._touched.add(node.graph)

    def _write_out(self, node: ir.Node, kind: _Kind) -> ir.Node:
        """Writes a (Skip)LayerNormalization over the last axis as elementary operators.

        The variance is the mean of squared differences from the mean. A kernel may compute it as a difference of two
        means. The error of that difference is the same in every draw, and large if a row's mean is large compared with
        its standard deviation.

        Returns:
            The node with the result; the original if it is not written out.
        """
        skip, y = node.op_type == "SkipLayerNormalization", node.outputs[0]
        others = [o for o in node.outputs[1 : 3 if skip else None] if o.name]
        if node.domain != ("com.microsoft" if skip else "") or attribute_int(node, "axis", -1) != -1 or others:
            return node
        x, scale, *rest = node.inputs
        if y.dtype != FLOAT or x is None or x.dtype != FLOAT:
            return node
        b = Builder(self._editor, node)
        outputs: dict[ir.Value, ir.Value] = {}
        if skip:
            other, (scale, *rest) = scale, rest
            x = b.op("Sum", x, other, *[v for v in rest[1:2] if v is not None], _dtype=FLOAT)
            if not self._noiseless:
                x = self._rounded(b, x, self._unit_of(y), "Add", raw=False)
            outputs = {total: x for total in node.outputs[3:] if total.name}
        centred = b.sub(x, b.reduce("ReduceMean", x, -1))
        variance = b.reduce("ReduceMean", b.mul(centred, centred), -1)
        epsilon = attribute_float(node, "epsilon", 1e-12 if skip else 1e-5)
        normal = b.div(centred, b.op("Sqrt", b.add(variance, b.number(epsilon, FLOAT))))
        assert scale is not None
        # The caller adds the noise of the norm to the result of this Sum.
        result = b.op("Sum", b.mul(normal, scale), *[v for v in rest[:1] if v is not None])
        for made in b.nodes if self._noiseless else ():  # exact sums need the types
            made.outputs[0].dtype = FLOAT
        self._editor.replace([node], b.nodes, {y: result, **outputs}, anchor=node)
        self._known |= dict.fromkeys((result, *outputs.values()), kind)
        return b.nodes[-1]

    def _add_noise_to_step(self, node: ir.Node) -> None:
        """Adds noise to the inputs of a step, which may change its choice, but not to the values of a TopK."""
        for index in STEPS[node.op_type]:
            x = node.inputs[index]
            kind = self._kind(x)
            if x is None or not kind.noisy or not is_float(x):
                continue
            self._round_before(node, index, self._of_steps(x), kind.raw)
            if node.op_type == "TopK" and self._opset >= EQUAL_OF_FLOATS_OPSET and node.outputs[0].name:
                b = Builder(self._editor, node)
                indices = node.outputs[1] if len(node.outputs) > 1 else self._editor.add_output(node, INT64)
                indices.name = indices.name or self._editor.unique_name(f"{b.label}_indices")
                values = b.op("GatherElements", x, indices, axis=attribute_int(node, "axis", -1))
                self._editor.interpose(node.outputs[0], b.nodes, values)

    def _of_steps(self, value: ir.Value) -> Rounding:
        rounding = self._unit_of(value)
        return replace(rounding, unit=max(rounding.unit, self._steps * SINGLE.unit))

    def _add_noise_to_scores(self, body: ir.Graph) -> None:
        """Adds noise to the scores of a search, which may change the choice of the search."""
        for node in list(body):
            for y in node.outputs:
                if y.is_graph_output() and is_float(y):
                    self._round_after(y, self._of_steps(y), node.op_type, raw=False)

    # -- noise ---------------------------------------------------------------------------------------------------------

    def _number(self, b: Builder, number: float, dtype: ir.DataType = FLOAT) -> ir.Value:
        """Returns a scalar constant; the noise of a graph shares it."""
        key = b.anchor.graph, number, dtype
        if key not in self._scalars:
            self._scalars[key] = b.number(number, dtype)
        return self._scalars[key]

    def _uniform(self, b: Builder, x: ir.Value, unit: float, dtype: ir.DataType) -> ir.Value:
        """Writes uniform(-unit, unit) in the shape of x."""
        if self._opset < BITS_OPSET:
            uniform = b.op("RandomUniformLike", x, low=-unit, high=unit, seed=0.0, dtype=int(dtype))
            self._draws.append(partial(self._draw_seed, b.nodes[-1:], float))
            return uniform
        shape, training = b.op("Shape", x), self._number(b, 1, BOOL)

        def filled(number: float) -> ir.Value:
            return b.op("ConstantOfShape", shape, value=ir.Tensor(np.array([number]).astype(dtype.numpy())))

        drawn, nodes = [filled(-unit * (1 - 2.0**-BITS))], []
        for bit in range(BITS):
            # Dropout doubles the elements that it keeps: to unit, unit / 2, ...
            drawn.append(b.op("Dropout", filled(unit * 2.0 ** -(bit + 1)), None, training, seed=0))
            nodes.append(b.nodes[-1])
        self._draws.append(partial(self._draw_seed, nodes, int))
        return b.op("Sum", *drawn)

    def _draw_seed(
        self, nodes: Sequence[ir.Node], kind: type[float] | type[int], rng: np.random.Generator, seed: int
    ) -> None:
        first = int(rng.integers(1, 1 << 20))
        for i, node in enumerate(nodes):
            self._editor.set_attribute(node, "seed", kind(first + i))

    def _rounded(self, b: Builder, exact: ir.Value, rounding: Rounding, op_type: str, raw: bool) -> ir.Value:
        """Writes exact + clip(uniform(-unit, unit) * (|exact| + floor)) in float32.

        Float64 values are computed in float64, without clip and floor.
        """
        self._touched.add(b.anchor.graph)
        type_ = exact.dtype or FLOAT
        wide = type_ == DOUBLE
        single = wide or type_ == FLOAT
        x = exact if single else b.cast(exact, FLOAT)
        unit = rounding.unit * (2.0**-29 if wide and not rounding.coarse else 1.0)
        drawn = self._uniform(b, x, unit, DOUBLE if wide else FLOAT)
        least = FUNCTION_FLOOR if op_type in FUNCTIONS else GATE_FLOOR if op_type in GATED else 0.0
        floor = max(rounding.floor, least / rounding.unit)
        size = b.add(b.op("Abs", x), self._number(b, floor)) if floor and not wide else x
        noise = b.mul(size, drawn)
        if not wide and "min" in signature("Clip", self._opset).inputs:
            noise = b.op("Clip", noise, self._number(b, -BOUND), self._number(b, BOUND))
        elif not wide:
            noise = b.op("Clip", noise, min=-BOUND, max=BOUND)
        if raw and self._opset < EQUAL_OF_FLOATS_OPSET:
            twice = b.add(x, x)
            most = b.op("ReduceMax", b.sub(twice, b.op("Floor", twice)), keepdims=0)
            noise = b.mul(noise, b.cast(b.cast(most, BOOL), DOUBLE if wide else FLOAT))
        result = b.add(x, noise)
        if raw and self._opset >= EQUAL_OF_FLOATS_OPSET:
            twice = b.add(x, x)
            whole = b.cast(b.op("Equal", twice, b.op("Floor", twice)), FLOAT)
            result = b.op("Where", b.cast(b.op("ReduceMin", whole, keepdims=0), BOOL), x, result)
        if self._overflows and rounding.coarse:
            result = b.cast(b.cast(result, ir.DataType.FLOAT16), FLOAT)
        return result if single else b.cast(result, type_)


def _terms(node: ir.Node, operand: int) -> int:
    """Returns the number of products in each sum, from the shape of the weight; USUAL_TERMS if it is unknown.

    For ConvTranspose it is the number of input channels, although groups and overlapping taps change it.

    Args:
        node: an operator of SUMS_OF_PRODUCTS.
        operand: the index of the operand that the weight multiplies; the weight is the other one of the first two.
    """
    weight = node.inputs[1 - operand] if operand < 2 and len(node.inputs) > 1 else None
    tensor = weight.const_value if weight is not None and weight.is_initializer() else None
    shape, is_first = () if tensor is None else tensor_dims(tensor), operand == 1
    if node.op_type == "Conv" and len(shape) > 2 and not is_first:
        return math.prod(shape[1:])
    if node.op_type == "ConvTranspose" and len(shape) > 2 and not is_first:
        return shape[0]
    if node.op_type == "Gemm" and len(shape) == 2:
        transposed = attribute_int(node, "transA" if is_first else "transB", 0) != 0
        return shape[1] if is_first != transposed else shape[0]
    if node.op_type == "MatMul" and shape:
        return shape[-1] if is_first or len(shape) == 1 else shape[-2]
    return USUAL_TERMS
