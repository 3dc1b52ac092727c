"""How far rounding moves a model: the honest error of any other order of summation, or of a smaller precision.

`noisy` makes a copy of a model in which every number that is rounded is rounded at random: weights once, results of
nodes at each run. What its outputs then differ from the model's own is what an honest rewrite may differ, on this
model, for these inputs, in this output and in each slice of it.

Noise is relative, since rounding is. Some numbers are left alone, because they are not rounded:
- those that depend on no float of the caller and on no weight: shapes, positions, masks made from integers;
- integers, and halves of them, that come straight from a float input: a mask of 0 and 1, a time step, a threshold;
- zeros, infinities, and the lowest numbers of all, which mean "masked".

Where a number is taken from one near it, what rounding left of either is all that remains. Noise on what both are made
of goes away there as they do, and what an operator subtracts inside is not seen at all. So what is read there is
rounded apart: operands of a sum whose last noise is the same (`_Kind.sources`), and what a norm or a softmax reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes  # noqa: F401  numpy knows bfloat16 by it
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.contrib.attention import MASK_FILTER
from graphopt.graph import inference
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.inference import RUNTIME_FLOATS
from graphopt.graph.operators.arguments import signature
from graphopt.graph.operators.traits import MOVES
from graphopt.graph.traversal import (
    bodies,
    is_external,
    tensor_array,
    tensor_dims,
    with_subgraphs,
)
from graphopt.graph.view import attribute_float, attribute_int, is_float
from graphopt.targets.target import Target
from graphopt.verification.exact import with_exact_sums
from graphopt.verification.run import MAX_WEIGHTS_READ, weights_in_files
from graphopt.verification.tolerances import FACTOR, FUNCTION_FLOOR, GATE_FLOOR, PARTIAL_SUMS, SINGLE, Rounding

Array = npt.NDArray[Any]

# Sums of products. Each partial sum is rounded, which is an error relative to the terms and not to what is left of
# them: as if what is multiplied were rounded more coarsely by the root of the number of terms.
SUMS_OF_PRODUCTS = frozenset(
    "Attention Conv ConvTranspose DFT Einsum GRU Gemm LSTM MatMul MultiHeadAttention RNN STFT".split()
)
# Whole numbers do not stay whole inside: a scale comes before a softmax, which takes the largest from all others.
SCALED = frozenset(("Attention", "MultiHeadAttention"))
# Terms of a product whose weight is not known.
USUAL_TERMS = 64
# Sums, means, interpolations, and sums of two.
SUMS = frozenset(
    "Add AveragePool CumSum GlobalAveragePool GlobalLpPool GridSample GroupNormalization InstanceNormalization LRN "
    "LayerNormalization LogSoftmax LpNormalization LpPool Mean MeanVarianceNormalization RMSNormalization ReduceL1 "
    "ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare Resize RoiAlign "
    "RotaryEmbedding Softmax Sub Sum Upsample".split()
)
# Their kernels may take the variance as a difference of two means.
NORMS = frozenset(("LayerNormalization", "SkipLayerNormalization"))
# Take a mean from what they read first.
CENTRED = NORMS | {"GroupNormalization", "InstanceNormalization", "MeanVarianceNormalization"}
# Add a number to the scores of keys that a mask hides, inside. Operator -> its mask and its bias, counted from 0.
MASKED = {"Attention": (3, 5), "DecoderMaskedMultiHeadAttention": (3, 4), "MultiHeadAttention": (4, 5)}
# Multiply probabilities, which lie inside, by the values that this input has or is made into.
VALUES = {"Attention": 0, "DecoderMaskedMultiHeadAttention": 2, "MultiHeadAttention": 2}
# Take the largest number from all others.
SOFTMAXES = frozenset(("LogSoftmax", "Softmax"))
# Approximated, with an error that is relative to 1 where the result is smaller.
FUNCTIONS = frozenset(
    "Acos Asin Atan Celu Cos Elu Erf Gelu HardSigmoid HardSwish Log Mish Selu Sigmoid Sin Softplus Softsign Swish Tan "
    "Tanh".split()
)
# So are the gates inside of these: a state of 1e-4 comes in steps of 2**-24.
RECURRENT = frozenset("DynamicQuantizeLSTM GRU LSTM RNN".split())
# One operand or two and nothing to sum: their error is at most that of what they read, except in a smaller precision.
ELEMENTWISE = frozenset("BatchNormalization Div Exp LeakyRelu Mul Pow PRelu Reciprocal Sqrt ThresholdedRelu".split())
# Round to a grid, choose or compare: what they read may move without any effect, or by a little and with a great one.
# Operator -> which of its inputs do so, counted from 0.
STEPS = {
    "ArgMax": (0,),
    "ArgMin": (0,),
    "Cast": (0,),
    "Ceil": (0,),
    "DynamicQuantizeLSTM": (0,),
    "DynamicQuantizeLinear": (0,),
    "DynamicQuantizeMatMul": (0,),
    "Floor": (0,),
    "Greater": (0, 1),
    "GreaterOrEqual": (0, 1),
    "Hardmax": (0,),
    "Less": (0, 1),
    "LessOrEqual": (0, 1),
    "NonMaxSuppression": (0, 1),
    "QuantizeLinear": (0,),
    "Round": (0,),
    "TopK": (0,),
}
INTEGERS = frozenset(ir.DataType[f"{sign}INT{bits}"] for sign in ("", "U") for bits in (8, 16, 32, 64))
# A handful of numbers are rather epsilons, bounds and scales of a Resize than weights.
SMALL_CONSTANT = 8
FLOAT, DOUBLE, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.BOOL
# Noise is added no larger than this: the lowest numbers stay what they are.
BOUND = 1e30
OLDEST_OPSET = 7  # Operands of different shapes.
EQUAL_OF_FLOATS_OPSET = 11
# From here on the runtimes have no kernel that draws numbers; Dropout as in training draws bits.
BITS_OPSET = 22
# Their number in a drawn one: its variance is within 2 % of a uniform one's.
BITS = 3
_POOL = 1 << 20


@dataclass(frozen=True)
class Precision:
    """Which unit of rounding the values of a model have in the model that it is compared with.

    Attributes:
        activations: name of a value -> its unit, relative to the value.
        weights: unit of the weights.
        inputs: unit of the inputs.
    """

    activations: Callable[[str], Rounding]
    weights: Rounding
    inputs: Rounding


class Noisy:
    """A copy of a model that rounds at random, each time that it is drawn in another way.

    Args:
        model: functions inlined, types inferred, of OLDEST_OPSET at least.
        precision: how coarse.
        guess: results whose type inference does not know have that of an input (`guessed`).
        overflows: what is rounded to half precision also has its range, beyond which numbers are infinite.
        steps: what STEPS read moves by so many units, which shows what one more step or another choice does: a number
            that lies near the end of a step is there for whoever computes it, but in few draws beyond the end.
        still: nothing is moved at random: norms are written out, sums exact, and the weights in `stored` rounded.
        stored: names of weights that are rounded to nearest, to the precision of weights, where `still` is set.
    """

    def __init__(
        self,
        model: ir.Model,
        precision: Precision,
        *,
        guess: bool = False,
        overflows: bool = False,
        steps: float = 1.0,
        still: bool = False,
        stored: frozenset[str] = frozenset(),
    ) -> None:
        self._model = inference.clone(model)
        for value, dtype in guessed(self._model.graph).items() if guess else ():
            inference.suppose(self._model, value, dtype)
        editor = Editor(self._model, Target("cpu"))
        noise = _Noise(editor, precision, overflows, steps, still, stored)
        noise.model()
        self._draws = noise.draws
        if still:
            with_exact_sums(editor)

    @contextmanager
    def drawn(self, seed: int) -> Iterator[ir.Model]:
        """The model with the noise of a seed; its weights are the original ones again afterwards."""
        rng = np.random.default_rng(seed)
        weights = self._model.graph.initializers.values()
        tensors = [(value, value.const_value) for value in weights]
        try:
            for draw in self._draws:
                draw(rng, seed)
            yield self._model
        finally:
            for value, tensor in tensors:
                value.const_value = tensor


def guessed(graph: ir.Graph) -> dict[ir.Value, ir.DataType]:
    """Types that inference does not know, of results of the runtime's own operators: a result has that of an input."""
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
    """Whether there are norms that `noisy` writes out, in bodies too."""
    return any(node.op_type in NORMS for inner in with_subgraphs(graph) for node in inner)


def has_softmax(graph: ir.Graph) -> bool:
    """Whether there is a softmax: where its largest scores are far apart it chooses one number, as a step does."""
    return any(node.op_type in SOFTMAXES | SCALED for inner in with_subgraphs(graph) for node in inner)


def has_steps(graph: ir.Graph) -> bool:
    """Whether a node rounds to a grid, chooses or compares, in bodies too."""
    return any(is_step(node) for inner in with_subgraphs(graph) for node in inner)


def is_step(node: ir.Node) -> bool:
    """Whether a node rounds real numbers to a grid, chooses among them or compares them."""
    if _searches(node):
        return True
    if node.op_type not in STEPS or not any(is_float(node.inputs[i]) for i in STEPS[node.op_type]):
        return False
    return node.op_type != "Cast" or attribute_int(node, "to", 0) in INTEGERS


def _searches(node: ir.Node) -> bool:
    """BeamSearch, GreedySearch, Sampling: choose among what their bodies compute."""
    return node.domain != "" and bool(bodies(node))


def is_exact_factor(tensor: ir.TensorProtocol) -> bool:
    """Whether a product with these few numbers is exact: each is a power of two or 0."""
    if tensor.dtype not in RUNTIME_FLOATS or is_external(tensor) or math.prod(tensor_dims(tensor)) > SMALL_CONSTANT:
        return False
    fraction, _ = np.frexp(tensor_array(tensor).astype(np.float64))
    return bool(np.isin(np.abs(fraction), (0, 0.5)).all())


def rounded_feeds(feeds: dict[str, Array], rounding: Rounding, seed: int) -> dict[str, Array]:
    """The inputs, rounded at random."""
    rng = np.random.default_rng([seed, 1])
    return {n: moved(a, rounding.unit, rng) if a.dtype.kind in "fV" else a for n, a in feeds.items()}


def moved(array: Array, unit: float, rng: np.random.Generator) -> Array:
    """Each number times 1 + unit * uniform(-1, 1), but for infinities and lowest numbers; whole and half ones stay."""
    return array if is_whole(array) else _noise_on(array, unit, rng)


def is_whole(array: Array) -> bool:
    """Whether all numbers are integers and halves of them."""
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
    """What numbers of float32 lose in another precision."""
    with np.errstate(over="ignore"):
        lost = array.astype(np.dtype(dtype)).astype(np.float32) - array
    return np.where(np.isfinite(lost), lost, 0)


@dataclass
class _Kind:
    """What is known of a value.

    Attributes:
        noisy: rounding moves it.
        raw: it comes from a float input without any weight.
        sources: where the last noise in it was added; empty where there may be none.
        rounded: a kernel rounds it since then.
    """

    noisy: bool = False
    raw: bool = False
    sources: frozenset[ir.Value] = frozenset()
    rounded: bool = False


class _Noise:
    """Puts noise into a model.

    Attributes:
        draws: functions of a generator and its seed, which draw the noise in order.
        changed: weights that are moved, which whole numbers and small ones are not, and zeros.
        known: what is known of values; of others nothing.
        exact: constants that numbers are multiplied by without being rounded.
        constants: numbers that the noise of a graph reads.
        touched: graphs with noise.
    """

    def __init__(
        self,
        editor: Editor,
        precision: Precision,
        overflows: bool,
        steps: float,
        still: bool,
        stored: frozenset[str],
    ) -> None:
        self.editor, self.precision = editor, precision
        self.overflows, self.steps, self.still, self.stored = overflows, steps, still, stored
        self.opset = editor.model.opset_imports.get("", 0)
        self.unread = weights_in_files(editor.model) > MAX_WEIGHTS_READ
        self.draws: list[Callable[[np.random.Generator, int], None]] = []
        self.changed: set[ir.Value] = set()
        self.known: dict[ir.Value, _Kind] = {}
        self.exact: set[ir.Value] = set()
        self.constants: dict[tuple[ir.Graph | None, float, ir.DataType], ir.Value] = {}
        self.touched: set[ir.Graph | None] = set()

    def model(self) -> None:
        graph = self.editor.model.graph
        for value in graph.inputs:
            if not value.is_initializer():
                self.known[value] = _Kind(noisy=is_float(value), raw=is_float(value))
        self.graph(graph)

    def graph(self, graph: ir.Graph) -> None:
        for value in list(graph.initializers.values()):
            if (tensor := value.const_value) is not None:
                self._constant(tensor, value, partial(self.editor.set_data, value))
        for node in list(graph):
            if node.op_type == "Constant" and (attribute := node.attributes.get("value")) is not None:
                self._constant(attribute.as_tensor(), node.outputs[0], partial(self._set_constant, node))
            kinds = [self._kind(value) for value in node.inputs if value is not None]
            kinds += self._bodies(node, kinds)
            if node.op_type != "Constant":
                self._node(node, kinds)

    def unit_of(self, value: ir.Value | None) -> Rounding:
        return self.precision.activations("" if value is None else value.name or "")

    def _kind(self, value: ir.Value | None) -> _Kind:
        return _Kind() if value is None else self.known.get(value, _Kind())

    def _bodies(self, node: ir.Node, kinds: Sequence[_Kind]) -> list[_Kind]:
        """The same in the bodies of a node, which reads what these name of the graphs around them."""
        inside: list[_Kind] = []
        for body in bodies(node):
            # What a body gets of its node is as noisy as what the node gets.
            noisy = any(k.noisy for k in (*kinds, *inside))
            for value in body.inputs:
                self.known[value] = _Kind(noisy=noisy and is_float(value))
            self.graph(body)
            if _searches(node) and self.steps > 1:
                self._other_choice(body)
            inside += [_Kind(noisy=True)] * (body in self.touched)
        return inside

    def _node(self, node: ir.Node, kinds: Sequence[_Kind]) -> None:
        """A node and what rounds before and after it, of inputs and bodies of these kinds."""
        noisy = [k for k in kinds if k.noisy]
        kind = _Kind(
            bool(noisy),
            bool(noisy) and all(k.raw for k in noisy),
            frozenset[ir.Value]().union(*(k.sources for k in kinds)),
            any(k.rounded for k in kinds) or self._rounds(node),
        )
        if not self.still:
            self._round_apart(node)
            self._round_values(node)
        if node.op_type in NORMS:
            node = self._write_out(node, kind)
        if node.op_type in SUMS_OF_PRODUCTS and not self._is_coarse(node) and not self.still:
            # Where nothing but a bias is left of it, that has to move, too; products of whole numbers are exact.
            if self._round_operand(node) and not kind.raw and self.changed.issuperset(node.inputs[2:3]):
                kind = replace(kind, sources=frozenset(node.outputs[:1]), rounded=False)
            else:
                kind = replace(kind, sources=frozenset())
        if node.op_type in MASKED and node.domain == "com.microsoft" and not self.still:
            self._round_bias(node)
        if self.steps > 1 and is_step(node) and not _searches(node):
            self._take_other_step(node)
        self._round_outputs(node, kind)

    def _round_outputs(self, node: ir.Node, kind: _Kind) -> None:
        for y in node.outputs:
            self.known[y] = kind if is_float(y) or y.dtype is None else _Kind()
            if y.name and kind.noisy and is_float(y) and self._is_rounded(node, y):
                rounded = self._round_behind(y, self.unit_of(y), node.op_type, kind.raw)
                # Whole numbers stay.
                self.known[rounded] = kind if kind.raw else replace(kind, sources=frozenset((rounded,)), rounded=False)

    def _round_behind(self, y: ir.Value, rounding: Rounding, op_type: str, raw: bool) -> ir.Value:
        """Lets the readers of a result read it with noise."""
        producer = y.producer()
        assert producer is not None
        b = Builder(self.editor, producer)
        rounded = self._rounded(b, y, rounding, op_type, raw)
        self.editor.interpose(y, b.nodes, rounded)
        return rounded

    def _round_before(self, node: ir.Node, i: int, rounding: Rounding, raw: bool) -> None:
        """Lets a node read its input `i` with noise."""
        x = node.inputs[i]
        assert x is not None
        b = Builder(self.editor, node)
        rounded = self._rounded(b, x, rounding, node.op_type, raw)
        self.editor.put_before(node, b.nodes)
        self.editor.set_input(node, i, rounded)

    def _constant(self, tensor: ir.TensorProtocol, value: ir.Value, put: Callable[[Array], None]) -> None:
        """Notes what is known of a constant, and draws its noise if it is a weight."""
        self.exact |= {value} if is_exact_factor(tensor) else set()
        is_weight = tensor.dtype in RUNTIME_FLOATS and math.prod(tensor_dims(tensor)) > SMALL_CONSTANT
        unread = self.unread and is_external(tensor)
        if is_weight and not unread and (not self.still or value.name in self.stored):
            array = tensor_array(tensor)
            whole = self.still or is_whole(array)
            if not whole or not array.any():
                self.changed.add(value)
            self.draws.append(partial(self._draw_weight, tensor, whole, put))
        sources = frozenset((value,)) if value in self.changed else frozenset[ir.Value]()
        self.known[value] = _Kind(noisy=is_weight, sources=sources)

    def _draw_weight(
        self,
        tensor: ir.TensorProtocol,
        whole: bool,
        put: Callable[[Array], None],
        rng: np.random.Generator,
        seed: int,
    ) -> None:
        """Moves a weight at random, or rounds it to nearest; in one draw by twice what that loses, too.

        What is lost may have a pattern (weights that grow evenly), and add up where noise does not.
        """
        weights, array = self.precision.weights, tensor_array(tensor)
        result = array if whole else _noise_on(array, weights.unit, rng)
        if seed == 0 and weights.dtype and array.dtype == np.float32:
            result = result + (1 if self.still else 2) * _lost(array, weights.dtype)
        put(result)

    def _set_constant(self, node: ir.Node, array: Array) -> None:
        self.editor.set_attribute(node, "value", ir.Tensor(array))

    def _is_coarse(self, node: ir.Node) -> bool:
        return any(self.unit_of(y).coarse for y in node.outputs if y.name)

    def _is_rounded(self, node: ir.Node, y: ir.Value) -> bool:
        if self.still:
            return False
        if node.domain != "" or node.op_type in SUMS | FUNCTIONS | RECURRENT:
            return True
        if not self.unit_of(y).coarse:
            return False
        # What is only moved has been rounded where it was made, or is rounded here first.
        x = node.inputs[0] if node.op_type in MOVES else None
        moved = x is not None and not x.is_initializer()
        return node.op_type in ELEMENTWISE | SUMS_OF_PRODUCTS or (moved and not self.unit_of(x).coarse)

    def _round_operand(self, node: ir.Node) -> bool:
        """Rounds one operand of a product as coarsely as the partial sums are; whether there is one."""
        for i, x in enumerate(node.inputs):
            kind = self._kind(x)
            if x is not None and kind.noisy and not x.is_initializer() and is_float(x):
                unit = SINGLE.unit * math.hypot(1, PARTIAL_SUMS * math.sqrt(_terms(node, i)))
                self._round_before(node, i, replace(SINGLE, unit=unit), kind.raw and node.op_type not in SCALED)
                return True
        return False

    def _rounds(self, node: ir.Node) -> bool:
        """Whether a node rounds each number that it makes, with or without noise on it."""
        if node.op_type in ("Mul", "Div") and not self.exact.isdisjoint(node.inputs):
            return False
        return node.op_type in ELEMENTWISE | SUMS_OF_PRODUCTS | SUMS | FUNCTIONS

    def _round_apart(self, node: ir.Node) -> None:
        """What a node takes from one another, rounded where the noise that is in it may be the same in both."""
        if node.domain != "" or self._is_coarse(node):
            return
        kinds, inputs = [self._kind(value) for value in node.inputs], node.inputs
        chosen: list[tuple[int, Rounding, bool]] = []  # Which input, how coarse, and whether whole numbers stay.
        if node.op_type in ("Add", "Sub", "Sum") and len({k.sources for k in kinds}) == 1:
            chosen = [(i, SINGLE, k.raw) for i, k in enumerate(kinds) if k.noisy and k.rounded]
        elif node.op_type in CENTRED and kinds[0].noisy and not kinds[0].sources:
            chosen = [(0, SINGLE, False)]
        elif node.op_type in SOFTMAXES and kinds[0].noisy and not kinds[0].sources:
            chosen = [(0, SINGLE, kinds[0].raw)]
        elif node.op_type == "BatchNormalization":
            chosen = [(0, SINGLE, False)] if kinds[0].noisy and not kinds[0].sources else []
            # x * s + (bias - mean * s): the last sum may leave nothing but what rounding left of either.
            stored = replace(SINGLE, unit=self.precision.weights.unit)
            apart = {*inputs[2:4]} & self.changed if inputs[2] is not inputs[3] else set()
            chosen += [(i, stored, False) for i in (2, 3) if inputs[i] not in apart]
        for i, rounding, raw in chosen:
            if is_float(x := inputs[i]) or (x is not None and x.dtype is None):
                self._round_before(node, i, rounding, raw)

    def _round_values(self, node: ir.Node) -> None:
        """The values of an attention in half precision, rounded once more: as if its probabilities were.

        Either moves a sum of their products by as much: each product by the unit, one independent of the other.
        """
        place = VALUES[node.op_type] if node.op_type in VALUES and node.domain == "com.microsoft" else len(node.inputs)
        if place < len(node.inputs) and is_float(node.inputs[place]):
            coarse = self.unit_of(node.inputs[place])
            if coarse.coarse:
                more = 2.0 if node.op_type == "Attention" else 1.0
                self._round_before(node, place, replace(coarse, unit=coarse.unit * math.sqrt(more)), raw=False)

    def _round_bias(self, node: ir.Node) -> None:
        """The bias of an attention, rounded on hidden keys as what is added to hide them is.

        Whether scores and bias are added first, or bias and mask, is the kernel's choice. It shows in rows that see no
        key: there all that is left of the bias is what -10000 leaves of it.
        """
        mask, bias = (node.inputs[i] if i < len(node.inputs) else None for i in MASKED[node.op_type])
        if mask is None or bias is None or bias.dtype not in RUNTIME_FLOATS or self.opset < EQUAL_OF_FLOATS_OPSET:
            return
        b = Builder(self.editor, node)
        # A mask is [B, T] or [B, S, T], 0 where it hides; or lengths [B], with more behind them: as [B, 1, 1 or S, T].
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
        size = b.op("Min", size, b.number(self.unit_of(node.outputs[0]).unit * abs(added), FLOAT))
        size = b.mul(size, hidden)
        noise = b.mul(size, self._uniform(b, size, 1.0, FLOAT))
        rounded = b.cast(b.add(single, noise), bias.dtype)
        self.editor.put_before(node, b.nodes)
        self.editor.set_input(node, MASKED[node.op_type][1], rounded)
        self.touched.add(node.graph)

    def _write_out(self, node: ir.Node, kind: _Kind) -> ir.Node:
        """LayerNormalization over the last axis, or a sum with it, by the mean of the squares about the mean.

        A runtime's kernel may take the difference of two means instead, which is another number where a row's mean is
        large against its spread, and the same one at every draw.

        Returns:
            The node that makes the result; the norm itself where it is not written out.
        """
        skip, y = node.op_type == "SkipLayerNormalization", node.outputs[0]
        others = [o for o in node.outputs[1 : 3 if skip else None] if o.name]
        if node.domain != ("com.microsoft" if skip else "") or attribute_int(node, "axis", -1) != -1 or others:
            return node
        x, scale, *rest = node.inputs
        if y.dtype != FLOAT or x is None or x.dtype != FLOAT:
            return node
        b = Builder(self.editor, node)
        outputs: dict[ir.Value, ir.Value] = {}
        if skip:
            other, (scale, *rest) = scale, rest
            x = b.op("Sum", x, other, *[v for v in rest[1:2] if v is not None], _dtype=FLOAT)
            if not self.still:
                x = self._rounded(b, x, self.unit_of(y), "Add", raw=False)
            outputs = {total: x for total in node.outputs[3:] if total.name}
        centred = b.sub(x, b.reduce("ReduceMean", x, -1))
        variance = b.reduce("ReduceMean", b.mul(centred, centred), -1)
        epsilon = attribute_float(node, "epsilon", 1e-12 if skip else 1e-5)
        normal = b.div(centred, b.op("Sqrt", b.add(variance, b.number(epsilon, FLOAT))))
        assert scale is not None
        # Rounded as the norm itself is.
        result = b.op("Sum", b.mul(normal, scale), *[v for v in rest[:1] if v is not None])
        for made in b.nodes if self.still else ():  # exact sums ask for it
            made.outputs[0].dtype = FLOAT
        self.editor.replace([node], b.nodes, {y: result, **outputs}, anchor=node)
        self.known |= dict.fromkeys((result, *outputs.values()), kind)
        return b.nodes[-1]

    def _take_other_step(self, node: ir.Node) -> None:
        """What a step reads, moved by several units; what is behind a TopK gets its numbers as they were."""
        for place in STEPS[node.op_type]:
            x = node.inputs[place]
            kind = self._kind(x)
            if x is None or not kind.noisy or not is_float(x):
                continue
            self._round_before(node, place, self._of_steps(x), kind.raw)
            if node.op_type == "TopK" and self.opset >= EQUAL_OF_FLOATS_OPSET and node.outputs[0].name:
                b = Builder(self.editor, node)
                indices = node.outputs[1] if len(node.outputs) > 1 else self.editor.add_output(node, INT64)
                indices.name = indices.name or self.editor.unique_name(f"{b.label}_indices")
                axis = attribute_int(node, "axis", -1)
                values = b.op("GatherElements", x, indices, axis=axis)
                self.editor.interpose(node.outputs[0], b.nodes, values)

    def _of_steps(self, value: ir.Value) -> Rounding:
        rounding = self.unit_of(value)
        return replace(rounding, unit=max(rounding.unit, self.steps * SINGLE.unit))

    def _other_choice(self, body: ir.Graph) -> None:
        """Numbers that a search chooses by, moved by several units."""
        for node in list(body):
            for y in node.outputs:
                if y.is_graph_output() and is_float(y):
                    self._round_behind(y, self._of_steps(y), node.op_type, raw=False)

    def _number(self, b: Builder, number: float, dtype: ir.DataType = FLOAT) -> ir.Value:
        """A scalar that all noise of a graph shares."""
        key = b.anchor.graph, number, dtype
        if key not in self.constants:
            self.constants[key] = b.number(number, dtype)
        return self.constants[key]

    def _uniform(self, b: Builder, x: ir.Value, unit: float, dtype: ir.DataType) -> ir.Value:
        """uniform(-unit, unit) of the shape of x."""
        if self.opset < BITS_OPSET:
            uniform = b.op("RandomUniformLike", x, low=-unit, high=unit, seed=0.0, dtype=int(dtype))
            self.draws.append(partial(self._draw_seed, b.nodes[-1:], float))
            return uniform
        shape, training = b.op("Shape", x), self._number(b, 1, BOOL)

        def filled(number: float) -> ir.Value:
            return b.op("ConstantOfShape", shape, value=ir.Tensor(np.array([number]).astype(dtype.numpy())))

        drawn, nodes = [filled(-unit * (1 - 2.0**-BITS))], []
        for bit in range(BITS):
            # What is kept of x is 2 x: here unit, unit / 2, ...
            drawn.append(b.op("Dropout", filled(unit * 2.0 ** -(bit + 1)), None, training, seed=0))
            nodes.append(b.nodes[-1])
        self.draws.append(partial(self._draw_seed, nodes, int))
        return b.op("Sum", *drawn)

    def _draw_seed(
        self, nodes: Sequence[ir.Node], kind: type[float] | type[int], rng: np.random.Generator, seed: int
    ) -> None:
        first = int(rng.integers(1, 1 << 20))
        for i, node in enumerate(nodes):
            self.editor.set_attribute(node, "seed", kind(first + i))

    def _rounded(self, b: Builder, exact: ir.Value, rounding: Rounding, op_type: str, raw: bool) -> ir.Value:
        """Exact + clip(uniform(-unit, unit) * (|exact| + floor)), in float32 unless it is in float64."""
        self.touched.add(b.anchor.graph)
        type_ = exact.dtype or FLOAT
        wide = type_ == DOUBLE
        single = wide or type_ == FLOAT
        x = exact if single else b.cast(exact, FLOAT)
        unit = rounding.unit * (2.0**-29 if wide and not rounding.coarse else 1.0)
        drawn = self._uniform(b, x, unit, DOUBLE if wide else FLOAT)
        least = FUNCTION_FLOOR if op_type in FUNCTIONS else GATE_FLOOR if op_type in RECURRENT else 0.0
        floor = max(rounding.floor, least / rounding.unit)
        size = b.add(b.op("Abs", x), self._number(b, floor)) if floor and not wide else x
        noise = b.mul(size, drawn)
        if not wide and "min" in signature("Clip", self.opset).inputs:
            noise = b.op("Clip", noise, self._number(b, -BOUND), self._number(b, BOUND))
        elif not wide:
            noise = b.op("Clip", noise, min=-BOUND, max=BOUND)
        if raw and self.opset < EQUAL_OF_FLOATS_OPSET:
            twice = b.add(x, x)
            most = b.op("ReduceMax", b.sub(twice, b.op("Floor", twice)), keepdims=0)
            noise = b.mul(noise, b.cast(b.cast(most, BOOL), DOUBLE if wide else FLOAT))
        result = b.add(x, noise)
        if raw and self.opset >= EQUAL_OF_FLOATS_OPSET:
            twice = b.add(x, x)
            whole = b.cast(b.op("Equal", twice, b.op("Floor", twice)), FLOAT)
            result = b.op("Where", b.cast(b.op("ReduceMin", whole, keepdims=0), BOOL), x, result)
        if self.overflows and rounding.coarse:
            result = b.cast(b.cast(result, ir.DataType.FLOAT16), FLOAT)
        return result if single else b.cast(result, type_)


def _terms(node: ir.Node, operand: int) -> int:
    """How many products of an operand are summed, by the weight that it is multiplied by."""
    weights = (v.const_value for v in node.inputs[1 - operand :] if v is not None and v.is_initializer())
    shape = next((tensor_dims(tensor) for tensor in weights if tensor is not None), ())
    if node.op_type == "Conv" and len(shape) > 2:
        return math.prod(shape[1:])
    if node.op_type == "ConvTranspose" and len(shape) > 2:
        return shape[0]
    if node.op_type == "Gemm" and len(shape) == 2:
        return shape[1] if attribute_int(node, "transB", 0) else shape[0]
    if node.op_type == "MatMul" and len(shape) >= 2:
        return shape[-2]
    return USUAL_TERMS
