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

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes  # noqa: F401  numpy knows bfloat16 by it
import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

from graphopt.contrib.attention import MASK_FILTER
from graphopt.graph.messages import bodies, opset_of
from graphopt.graph.operators.traits import MOVES
from graphopt.graph.reading import FIRST_OVERRIDABLE_IR_VERSION
from graphopt.verification.exact import with_exact_sums
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
INTEGERS = frozenset(getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64))
# A handful of numbers are rather epsilons, bounds and scales of a Resize than weights.
SMALL_CONSTANT = 8
FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE))
# Noise is added no larger than this: the lowest numbers stay what they are.
BOUND = 1e30
OLDEST_OPSET = 7  # Operands of different shapes.
CURRENT_OPSET = 11  # Clip takes its bounds as inputs, Equal takes floats.
# From here on the runtimes have no kernel that draws numbers; Dropout as in training draws bits.
BITS_OPSET = 22
# Their number in a drawn one: its variance is within 2 % of a uniform one's.
BITS = 3
# Bytes of weights that are worth a way of their own into a session.
LARGE = 1 << 16
_PREFIX = "graphopt_rounding"
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


@dataclass(frozen=True)
class Noisy:
    """A model that rounds at random.

    Attributes:
        model: without its large weights: a message of them would be written and read again for nothing.
        weights: these by name.
    """

    model: onnx.ModelProto
    weights: dict[str, Array]


def noisy(
    model: onnx.ModelProto,
    types: dict[str, int],
    precision: Precision,
    seed: int,
    *,
    overflows: bool = False,
    steps: float = 1.0,
    still: bool = False,
    stored: frozenset[str] = frozenset(),
) -> Noisy | None:
    """A copy that rounds at random; None where it cannot be made (the opset is too old).

    Args:
        model: functions inlined; weights that are not inside stay as they are.
        types: element types of all values by name, subgraphs included.
        precision: how coarse.
        seed: of the noise.
        overflows: what is rounded to half precision also has its range, beyond which numbers are infinite.
        steps: what STEPS read moves by so many units, which shows what one more step or another choice does: a number
            that lies near the end of a step is there for whoever computes it, but in few draws beyond the end.
        still: nothing is moved at random: norms are written out, sums exact, and the weights in `stored` rounded.
        stored: names of weights that are rounded to nearest, to the precision of weights, where `still` is set.
    """
    opset = opset_of(model)
    if opset < OLDEST_OPSET:
        return None
    rng = np.random.default_rng(seed)
    copy = onnx.ModelProto()
    _copy_but(model, copy, "graph")
    _copy_but(model.graph, copy.graph, "initializer")
    weights = _Weights(
        rng, precision.weights.unit, precision.weights.dtype if seed == 0 else "", still=still, stored=stored
    )
    apart: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        array = weights.array(tensor, tensor.name)
        if array is not None and array.nbytes >= LARGE and array.dtype.kind == "f":
            apart[tensor.name] = array
            outside = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            outside.data_location = TensorProto.EXTERNAL
            outside.external_data.add(key="location", value=tensor.name)
            copy.graph.initializer.append(outside)
        else:
            copy.graph.initializer.append(tensor if array is None else numpy_helper.from_array(array, tensor.name))
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    exact = {t.name for t in model.graph.initializer if is_exact_factor(t)}
    noise = _Noise(types, precision.activations, rng, shapes, exact, overflows, steps, opset, still)
    known = {t.name: weights.kind(t, t.name) for t in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in known:
            is_float = value.type.tensor_type.elem_type in FLOATS
            known[value.name] = _Kind(noisy=is_float, raw=is_float)
    noise.graph(copy.graph, known, weights)
    if still:
        with_exact_sums(copy.graph, types, shapes, _PREFIX, opset)
    copy.graph.initializer.extend(noise.constants())
    _without_listed_initializers(copy)
    return Noisy(copy, apart)


def _without_listed_initializers(model: onnx.ModelProto) -> None:
    """Up to IR version 3 each initializer is listed as an input, without being one; those of the noise are not."""
    if model.ir_version < FIRST_OVERRIDABLE_IR_VERSION:
        model.ir_version = FIRST_OVERRIDABLE_IR_VERSION
        constant = {t.name for t in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in constant]
        del model.graph.input[:]
        model.graph.input.extend(inputs)


def is_exact_factor(tensor: onnx.TensorProto) -> bool:
    """Whether a product with these few numbers is exact: each is a power of two or 0."""
    few = tensor.data_type in FLOATS and tensor.data_location != TensorProto.EXTERNAL
    if not few or math.prod(tensor.dims) > SMALL_CONSTANT:
        return False
    fraction, _ = np.frexp(numpy_helper.to_array(tensor).astype(np.float64))
    return bool(np.isin(np.abs(fraction), (0, 0.5)).all())


def has_norms(graph: onnx.GraphProto) -> bool:
    """Whether there are norms that `noisy` writes out, in bodies too."""
    return any(node.op_type in NORMS or any(map(has_norms, bodies(node))) for node in graph.node)


def is_step(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    """Whether a node rounds real numbers to a grid, chooses among them or compares them."""
    if _searches(node):
        return True
    if node.op_type not in STEPS or not any(types.get(node.input[i]) in FLOATS for i in STEPS[node.op_type]):
        return False
    return node.op_type != "Cast" or next((a.i for a in node.attribute if a.name == "to"), 0) in INTEGERS


def _searches(node: onnx.NodeProto) -> bool:
    """BeamSearch, GreedySearch, Sampling: choose among what their bodies compute."""
    return node.domain not in ("", "ai.onnx") and any(True for _ in bodies(node))


def has_softmax(graph: onnx.GraphProto) -> bool:
    """Whether there is a softmax: where its largest scores are far apart it chooses one number, as a step does."""
    return any(node.op_type in SOFTMAXES | SCALED or any(map(has_softmax, bodies(node))) for node in graph.node)


def has_steps(graph: onnx.GraphProto, types: Mapping[str, int]) -> bool:
    """Whether there is such a node, in bodies too."""
    return any(is_step(node, types) or any(has_steps(body, types) for body in bodies(node)) for node in graph.node)


def rounded_feeds(feeds: dict[str, Array], rounding: Rounding, seed: int) -> dict[str, Array]:
    """The inputs, rounded at random."""
    rng = np.random.default_rng([seed, 1])
    return {n: moved(a, rounding.unit, rng) if a.dtype.kind in "fV" else a for n, a in feeds.items()}


def moved(array: Array, unit: float, rng: np.random.Generator) -> Array:
    """Each number times 1 + unit * uniform(-1, 1), but for infinities and lowest numbers; whole and half ones stay."""
    wide = array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        if all(bool((2 * some == np.rint(2 * some)).all()) for some in (wide.reshape(-1)[:_POOL], wide)):
            return array
    pool = rng.random(min(_POOL, max(wide.size, 1)), wide.dtype)
    pool = (2 * pool - 1) * wide.dtype.type(unit)
    flat = wide.reshape(-1)
    result = np.empty_like(flat)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _POOL):
            part = flat[start : start + _POOL]
            kept = ~(np.abs(part) < BOUND)
            result[start : start + _POOL] = np.where(kept, part, part + part * pool[: part.size])
        return result.reshape(array.shape).astype(array.dtype, copy=False)


def _copy_but(source: Message, target: Message, left_out: str) -> None:
    """Every field that `source` has but one, so that weights are not copied only to be replaced."""
    for descriptor, value in source.ListFields():
        if descriptor.name == left_out:
            continue
        if hasattr(value, "extend"):
            getattr(target, descriptor.name).extend(value)
        elif isinstance(value, Message):
            getattr(target, descriptor.name).CopyFrom(value)
        else:
            setattr(target, descriptor.name, value)


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
    sources: frozenset[str] = frozenset()
    rounded: bool = False


@dataclass
class _Weights:
    """Noise on the weights.

    Attributes:
        rng: of the noise.
        unit: relative to the weight.
        dtype: a precision that they are rounded to as well, twice as far: what is lost may have a pattern (weights that
            grow evenly), and add up where noise does not.
        still: those of `stored` are rounded to `dtype` alone, and no other changes.
        stored: their names.
        changed: names of those that were moved, which whole numbers and small ones are not, and of zeros.
    """

    rng: np.random.Generator
    unit: float
    dtype: str = ""
    still: bool = False
    stored: frozenset[str] = frozenset()
    changed: set[str] = field(default_factory=set)

    def is_weight(self, tensor: onnx.TensorProto) -> bool:
        return tensor.data_type in FLOATS and int(np.prod(tensor.dims)) > SMALL_CONSTANT

    def kind(self, tensor: onnx.TensorProto, name: str) -> _Kind:
        sources = frozenset((name,)) if name in self.changed else frozenset[str]()
        return _Kind(noisy=self.is_weight(tensor), sources=sources)

    def moved(self, tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
        array = self.array(tensor, name)
        return tensor if array is None else numpy_helper.from_array(array, tensor.name)

    def array(self, tensor: onnx.TensorProto, name: str) -> Array | None:
        """The weight with its noise; None where the tensor stays as it is."""
        outside = tensor.data_location == TensorProto.EXTERNAL
        if outside or not self.is_weight(tensor) or (self.still and name not in self.stored):
            return None
        array = numpy_helper.to_array(tensor)
        result = array if self.still else moved(array, self.unit, self.rng)
        if result is not array or not array.any():
            self.changed.add(name)
        if self.dtype and array.dtype == np.float32:
            with np.errstate(over="ignore"):
                lost = array.astype(np.dtype(self.dtype)).astype(np.float32) - array
            result = result + np.where(np.isfinite(lost), lost if self.still else 2 * lost, 0)
        return result


@dataclass
class _Noise:
    types: dict[str, int]
    unit_of: Callable[[str], Rounding]
    rng: np.random.Generator
    shapes: dict[str, tuple[int, ...]]
    exact: set[str]  # constants that numbers are multiplied by without being rounded
    overflows: bool
    steps: float
    opset: int
    still: bool
    made: Iterator[int] = field(default_factory=itertools.count)
    floors: set[float] = field(default_factory=set)

    def constants(self) -> Iterable[onnx.TensorProto]:
        for name, value in (("low", -BOUND), ("high", BOUND), *((f"floor_{f}", f) for f in sorted(self.floors))):
            yield helper.make_tensor(f"{_PREFIX}_{name}", TensorProto.FLOAT, (), [value])
        if self.opset >= BITS_OPSET:
            yield helper.make_tensor(f"{_PREFIX}_training", TensorProto.BOOL, (), [True])

    def graph(self, graph: onnx.GraphProto, outer: dict[str, _Kind], weights: _Weights) -> None:
        known = dict(outer)
        for tensor in graph.initializer:
            if tensor.name not in known:  # those of the main graph are moved already
                self.shapes[tensor.name] = tuple(tensor.dims)
                self.exact |= {tensor.name} if is_exact_factor(tensor) else set()
                tensor.CopyFrom(weights.moved(tensor, tensor.name))
                known[tensor.name] = weights.kind(tensor, tensor.name)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            self._constant(node, known, weights)
            kinds = [known.get(name, _Kind()) for name in node.input if name]
            kinds += self._bodies(node, kinds, known, weights)
            nodes += [node] if node.op_type == "Constant" else self._node(node, kinds, known, weights)
        del graph.node[:]
        graph.node.extend(nodes)

    def _bodies(
        self, node: onnx.NodeProto, kinds: Sequence[_Kind], known: dict[str, _Kind], weights: _Weights
    ) -> list[_Kind]:
        """The same in the bodies of a node, which reads what these name of the graphs around them."""
        inside: list[_Kind] = []
        for body in bodies(node):
            # What a body gets of its node is as noisy as what the node gets.
            noisy = any(k.noisy for k in (*kinds, *inside))
            for value in body.input:
                floating = self.types.get(value.name, value.type.tensor_type.elem_type) in FLOATS
                known[value.name] = _Kind(noisy=noisy and floating)
            self.graph(body, known, weights)
            if _searches(node):
                if self.steps > 1:
                    self._other_choice(body)
                self._declare_constants(body)
            inside += [_Kind(noisy=True) for n in body.node for o in n.output if o.startswith(_PREFIX)][:1]
        return inside

    def _node(
        self, node: onnx.NodeProto, kinds: Sequence[_Kind], known: dict[str, _Kind], weights: _Weights
    ) -> list[onnx.NodeProto]:
        """A node and what rounds before and after it, of inputs and bodies of these kinds."""
        noisy = [k for k in kinds if k.noisy]
        kind = _Kind(
            bool(noisy),
            bool(noisy) and all(k.raw for k in noisy),
            frozenset().union(*(k.sources for k in kinds)),
            any(k.rounded for k in kinds) or self._rounds(node),
        )
        nodes = [] if self.still else [*self._rounded_apart(node, known, weights), *self._rounded_values(node)]
        if node.op_type in NORMS and (written := self._written_out(node)) is not None:
            known |= {name: kind for n in written for name in n.output if not name.startswith(_PREFIX)}
            nodes += written[:-1]
            node = written[-1]
        if node.op_type in SUMS_OF_PRODUCTS and not self._is_coarse(node) and not self.still:
            operand = list(self._rounded_operand(node, known))
            nodes += operand
            # Where nothing but a bias is left of it, that has to move, too; products of whole numbers are exact.
            if operand and not kind.raw and weights.changed.issuperset(node.input[2:3]):
                kind = replace(kind, sources=frozenset(node.output[:1]), rounded=False)
            else:
                kind = replace(kind, sources=frozenset())
        if node.op_type in MASKED and node.domain == "com.microsoft" and not self.still:
            nodes += self._rounded_bias(node)
        extra: list[onnx.NodeProto] = []
        if self.steps > 1 and is_step(node, self.types) and not _searches(node):
            before, extra = self._other_step(node, known)
            nodes += before
        return [*nodes, node, *extra, *self._rounded_outputs(node, kind, known)]

    def _rounded_outputs(self, node: onnx.NodeProto, kind: _Kind, known: dict[str, _Kind]) -> list[onnx.NodeProto]:
        """What rounds the outputs of a node, which get other names in it."""
        extra: list[onnx.NodeProto] = []
        for i, name in enumerate(node.output):
            floating = self.types.get(name) in FLOATS
            known[name] = kind if floating or name not in self.types else _Kind()
            if name and kind.noisy and floating and self._is_rounded(node, name):
                node.output[i] = f"{_PREFIX}_{next(self.made)}"
                extra += self._rounding(
                    node.output[i], name, self.types[name], self.unit_of(name), node.op_type, kind.raw
                )
                if not kind.raw:  # whole numbers stay
                    known[name] = replace(kind, sources=frozenset((name,)), rounded=False)
        return extra

    def _constant(self, node: onnx.NodeProto, known: dict[str, _Kind], weights: _Weights) -> None:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    self.exact |= {node.output[0]} if is_exact_factor(attribute.t) else set()
                    attribute.t.CopyFrom(weights.moved(attribute.t, node.output[0]))
                    known[node.output[0]] = weights.kind(attribute.t, node.output[0])

    def _is_coarse(self, node: onnx.NodeProto) -> bool:
        return any(self.unit_of(name).coarse for name in node.output if name)

    def _is_rounded(self, node: onnx.NodeProto, name: str) -> bool:
        if self.still:
            return False
        if node.domain not in ("", "ai.onnx") or node.op_type in SUMS | FUNCTIONS | RECURRENT:
            return True
        if not self.unit_of(name).coarse:
            return False
        # What is only moved has been rounded where it was made, or is rounded here first.
        moved = node.op_type in MOVES and node.input[0] not in self.shapes
        return node.op_type in ELEMENTWISE | SUMS_OF_PRODUCTS or (moved and not self.unit_of(node.input[0]).coarse)

    def _rounded_operand(self, node: onnx.NodeProto, known: dict[str, _Kind]) -> Iterator[onnx.NodeProto]:
        """One operand of a product, rounded as coarsely as the partial sums are."""
        for i, name in enumerate(node.input):
            kind = known.get(name, _Kind())
            if kind.noisy and name not in self.shapes and self.types.get(name) in FLOATS:
                terms = self._terms(node, i)
                rounding = replace(SINGLE, unit=SINGLE.unit * math.hypot(1, PARTIAL_SUMS * math.sqrt(terms)))
                node.input[i] = f"{_PREFIX}_{next(self.made)}"
                raw = kind.raw and node.op_type not in SCALED
                yield from self._rounding(name, node.input[i], self.types[name], rounding, node.op_type, raw)
                return

    def _rounds(self, node: onnx.NodeProto) -> bool:
        """Whether a node rounds each number that it makes, with or without noise on it."""
        if node.op_type in ("Mul", "Div") and not self.exact.isdisjoint(node.input):
            return False
        return node.op_type in ELEMENTWISE | SUMS_OF_PRODUCTS | SUMS | FUNCTIONS

    def _rounded_apart(
        self, node: onnx.NodeProto, known: Mapping[str, _Kind], weights: _Weights
    ) -> Iterator[onnx.NodeProto]:
        """What a node takes from one another, rounded where the noise that is in it may be the same in both."""
        if node.domain not in ("", "ai.onnx") or self._is_coarse(node):
            return
        kinds = [known.get(name, _Kind()) for name in node.input]
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
            stored = replace(SINGLE, unit=weights.unit)
            apart = {*node.input[2:4]} & weights.changed if node.input[2] != node.input[3] else set()
            chosen += [(i, stored, False) for i in (2, 3) if node.input[i] not in apart]
        for i, rounding, raw in chosen:
            name = node.input[i]
            if self.types.get(name, TensorProto.FLOAT) in FLOATS:
                node.input[i] = f"{_PREFIX}_{next(self.made)}"
                yield from self._rounding(name, node.input[i], self.types.get(name, 1), rounding, node.op_type, raw)

    def _rounded_values(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The values of an attention in half precision, rounded once more: as if its probabilities were.

        Either moves a sum of their products by as much: each product by the unit, one independent of the other.
        """
        place = VALUES[node.op_type] if node.op_type in VALUES and node.domain == "com.microsoft" else len(node.input)
        for name in node.input[place : place + 1]:
            if self.types.get(name) in FLOATS and self.unit_of(name).coarse:
                node.input[place] = f"{_PREFIX}_{next(self.made)}"
                coarse, more = self.unit_of(name), 2.0 if node.op_type == "Attention" else 1.0
                rounding = replace(coarse, unit=coarse.unit * math.sqrt(more))
                yield from self._rounding(name, node.input[place], self.types[name], rounding, node.op_type, raw=False)

    def _rounded_bias(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The bias of an attention, rounded on hidden keys as what is added to hide them is.

        Whether scores and bias are added first, or bias and mask, is the kernel's choice. It shows in rows that see no
        key: there all that is left of the bias is what -10000 leaves of it.
        """
        mask, bias = (node.input[i] if i < len(node.input) else "" for i in MASKED[node.op_type])
        if not mask or self.types.get(bias) not in FLOATS or self.opset < CURRENT_OPSET:
            return []
        here = f"{_PREFIX}_{next(self.made)}"
        nodes: list[onnx.NodeProto] = []

        def add(op: str, inputs: list[str], suffix: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(op, inputs, [f"{here}_{suffix}"], **attributes))
            return f"{here}_{suffix}"

        def constant(suffix: str, type_: int, numbers: list[Any], dims: tuple[int, ...] = (1,)) -> str:
            return add("Constant", [], suffix, value=helper.make_tensor("", type_, dims, numbers))

        def integers(suffix: str, *numbers: int) -> str:
            return constant(suffix, TensorProto.INT64, list(numbers), (len(numbers),))

        # A mask is [B, T] or [B, S, T], 0 where it hides; or lengths [B], with more behind them: as [B, 1, 1 or S, T].
        one, last = integers("one", 1), integers("last", -1)
        keys = add("Gather", [add("Shape", [bias], "bias_shape"), last], "keys")
        sizes = add("Shape", [mask], "sizes")
        is_lengths = add("Equal", [add("Shape", [sizes], "rank"), one], "is_lengths")
        batch = add("Gather", [add("Shape", [node.input[0]], "query_shape"), integers("zero", 0)], "batch")
        whole = add("Concat", [batch, one, last, keys], "whole", axis=0)
        shape = add("Where", [is_lengths, integers("each", -1, 1, 1, 1), whole], "shape")
        numbers = add("Cast", [add("Reshape", [mask, shape], "numbers")], "wide", to=TensorProto.INT64)
        numbers = add("Slice", [numbers, integers("start", 0), batch, integers("axis", 0)], "first")
        ones = add("Expand", [one, keys], "ones")
        position = add("CumSum", [ones, constant("along", TensorProto.INT32, [0], ())], "position")
        hides_below = add("Where", [is_lengths, position, ones], "hides_below")
        hidden = add("Cast", [add("Less", [numbers, hides_below], "less")], "hidden", to=TensorProto.FLOAT)

        added = next((a.f for a in node.attribute if a.name == "mask_filter_value"), MASK_FILTER)
        unit = self.unit_of(node.output[0]).unit
        size = add("Abs", [add("Cast", [bias], "single", to=TensorProto.FLOAT)], "abs")
        size = add("Mul", [size, constant("factor", TensorProto.FLOAT, [FACTOR])], "most")
        size = add("Min", [size, constant("unit", TensorProto.FLOAT, [unit * abs(added)])], "size")
        size = add("Mul", [size, hidden], "amplitude")
        drawn = f"{here}_draw"  # `_uniform` names nodes of its own after it
        nodes += self._uniform(drawn, size, 1.0, TensorProto.FLOAT)
        noise = add("Mul", [size, f"{drawn}_random"], "noise")
        result = add("Add", [f"{here}_single", noise], "sum")
        node.input[MASKED[node.op_type][1]] = add("Cast", [result], "bias", to=self.types[bias])
        return nodes

    def _written_out(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """LayerNormalization over the last axis, or a sum with it, by the mean of the squares about the mean.

        A runtime's kernel may take the difference of two means instead, which is another number where a row's mean is
        large against its spread, and the same one at every draw.
        """
        attributes = {a.name: a for a in node.attribute}
        axis = attributes["axis"].i if "axis" in attributes else -1
        skip = node.op_type == "SkipLayerNormalization"
        domains = ("com.microsoft",) if skip else ("", "ai.onnx")
        if node.domain not in domains or axis != -1 or any(node.output[1 : 3 if skip else None]):
            return None
        if self.types.get(node.output[0]) != TensorProto.FLOAT or self.types.get(node.input[0]) != TensorProto.FLOAT:
            return None
        here = f"{_PREFIX}_{next(self.made)}"
        nodes: list[onnx.NodeProto] = []

        def add(op: str, inputs: list[str], suffix: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(op, inputs, [f"{here}_{suffix}"], **attributes))
            return f"{here}_{suffix}"

        def mean(x: str, suffix: str) -> str:
            if self.opset < 18:
                return add("ReduceMean", [x], suffix, axes=[-1])
            last = helper.make_tensor(f"{here}_last", TensorProto.INT64, [1], [-1])
            return add("ReduceMean", [x, add("Constant", [], f"{suffix}_axis", value=last)], suffix)

        epsilon = attributes["epsilon"].f if "epsilon" in attributes else 1e-12 if skip else 1e-5
        least = helper.make_tensor(f"{here}_least", TensorProto.FLOAT, [], [epsilon])
        x, scale, *bias = node.input
        if skip:
            x, other, scale, *rest = node.input
            bias, more = rest[:1], [name for name in rest[1:2] if name]
            exact, x = add("Sum", [x, other, *more], "exact"), f"{here}_total"
            if self.still:
                nodes.append(helper.make_node("Identity", [exact], [x]))
            else:
                nodes += self._rounding(exact, x, TensorProto.FLOAT, self.unit_of(node.output[0]), "Add", raw=False)
            if any(node.output[3:]):
                nodes.append(helper.make_node("Identity", [x], [node.output[3]]))
        centred = add("Sub", [x, mean(x, "mean")], "centred")
        variance = mean(add("Mul", [centred, centred], "square"), "variance")
        root = add("Sqrt", [add("Add", [variance, add("Constant", [], "epsilon", value=least)], "sum")], "root")
        scaled = add("Mul", [add("Div", [centred, root], "normal"), scale], "scaled")
        last_inputs = [scaled, bias[0]] if bias and bias[0] else [scaled]
        # Rounded as the norm itself is.
        nodes.append(helper.make_node("Sum", last_inputs, node.output[:1], name=node.name))
        return nodes

    def _other_step(
        self, node: onnx.NodeProto, known: dict[str, _Kind]
    ) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
        """What a step reads, moved by several units: nodes before it, and behind a TopK its numbers as they were."""
        before: list[onnx.NodeProto] = []
        behind: list[onnx.NodeProto] = []
        for place in STEPS[node.op_type]:
            name = node.input[place]
            kind = known.get(name, _Kind())
            if not kind.noisy or self.types.get(name) not in FLOATS:
                continue
            rounding = self.unit_of(name)
            rounding = replace(rounding, unit=max(rounding.unit, self.steps * SINGLE.unit))
            node.input[place] = f"{_PREFIX}_{next(self.made)}"
            before += self._rounding(name, node.input[place], self.types[name], rounding, node.op_type, kind.raw)
            if node.op_type == "TopK" and self.opset >= CURRENT_OPSET:
                values, axis = node.output[0], next((a.i for a in node.attribute if a.name == "axis"), -1)
                indices = node.output[1] if len(node.output) > 1 and node.output[1] else f"{_PREFIX}_{next(self.made)}"
                del node.output[:]
                node.output.extend([f"{_PREFIX}_{next(self.made)}", indices])
                if values:
                    behind.append(helper.make_node("GatherElements", [name, indices], [values], axis=axis))
        return before, behind

    def _other_choice(self, body: onnx.GraphProto) -> None:
        """Numbers that a search chooses by, moved by several units."""
        chosen_by = {v.name: self.types.get(v.name, v.type.tensor_type.elem_type) for v in body.output}
        nodes: list[onnx.NodeProto] = []
        for node in body.node:
            nodes.append(node)
            for i, name in enumerate(node.output):
                if chosen_by.get(name) in FLOATS:
                    rounding = self.unit_of(name)
                    rounding = replace(rounding, unit=max(rounding.unit, self.steps * SINGLE.unit))
                    node.output[i] = f"{_PREFIX}_{next(self.made)}"
                    nodes += self._rounding(node.output[i], name, chosen_by[name], rounding, node.op_type, raw=False)
        del body.node[:]
        body.node.extend(nodes)

    def _declare_constants(self, body: onnx.GraphProto) -> None:
        """What the body of an operator of its own reads outside, onnxruntime 1.22 knows by declarations alone."""
        read = {name for node in body.node for name in node.input}
        declared = (helper.make_tensor_value_info(t.name, t.data_type, ()) for t in self.constants())
        body.value_info.extend(value for value in declared if value.name in read)

    def _terms(self, node: onnx.NodeProto, operand: int) -> int:
        shape = next((self.shapes[n] for n in node.input[1 - operand :] if n in self.shapes), ())
        if node.op_type == "Conv" and len(shape) > 2:
            return math.prod(shape[1:])
        if node.op_type == "ConvTranspose" and len(shape) > 2:
            return shape[0]
        if node.op_type == "Gemm" and len(shape) == 2:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            return shape[1] if transposed else shape[0]
        if node.op_type == "MatMul" and len(shape) >= 2:
            return shape[-2]
        return USUAL_TERMS

    def _uniform(self, here: str, x: str, unit: float, dtype: int) -> Iterator[onnx.NodeProto]:
        """`here`_random = uniform(-unit, unit) of the shape of x."""
        seed = int(self.rng.integers(1, 1 << 20))
        result = f"{here}_random"
        if self.opset < BITS_OPSET:
            yield helper.make_node(
                "RandomUniformLike", [x], [result], low=-unit, high=unit, seed=float(seed), dtype=dtype
            )
            return
        yield helper.make_node("Shape", [x], [f"{here}_shape"])

        def filled(name: str, number: float) -> onnx.NodeProto:
            return helper.make_node(
                "ConstantOfShape", [f"{here}_shape"], [name], value=helper.make_tensor("", dtype, [1], [number])
            )

        lowest = f"{here}_lowest"
        yield filled(lowest, -unit * (1 - 2.0**-BITS))
        drawn = [lowest]
        for bit in range(BITS):
            # What is kept of x is 2 x: here unit, unit / 2, ...
            yield filled(f"{here}_bit{bit}", unit * 2.0 ** -(bit + 1))
            drawn.append(f"{here}_drawn{bit}")
            bits = [f"{here}_bit{bit}", "", f"{_PREFIX}_training"]
            yield helper.make_node("Dropout", bits, [drawn[-1]], seed=seed + bit)
        yield helper.make_node("Sum", drawn, [result])

    def _rounding(
        self, exact: str, name: str, type_: int, rounding: Rounding, op_type: str, raw: bool
    ) -> Iterator[onnx.NodeProto]:
        """`name` = exact + clip(uniform(-unit, unit) * (|exact| + floor)), in float32 unless it is in float64."""
        here = f"{_PREFIX}_{next(self.made)}"

        def node(op: str, inputs: list[str], suffix: str, **attributes: Any) -> onnx.NodeProto:
            return helper.make_node(op, inputs, [f"{here}_{suffix}"], **attributes)

        x = exact
        wide = type_ == TensorProto.DOUBLE
        if type_ not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            yield node("Cast", [exact], "wide", to=TensorProto.FLOAT)
            x = f"{here}_wide"
        unit = rounding.unit * (2.0**-29 if wide and not rounding.coarse else 1.0)
        yield from self._uniform(here, x, unit, TensorProto.DOUBLE if wide else TensorProto.FLOAT)
        size = x
        least = FUNCTION_FLOOR if op_type in FUNCTIONS else GATE_FLOOR if op_type in RECURRENT else 0.0
        floor = max(rounding.floor, least / rounding.unit)
        if floor and not wide:
            self.floors.add(floor)
            yield node("Abs", [x], "abs")
            yield node("Add", [f"{here}_abs", f"{_PREFIX}_floor_{floor}"], "size")
            size = f"{here}_size"
        yield node("Mul", [size, f"{here}_random"], "product")
        noise = f"{here}_product"
        if not wide:
            if self.opset < CURRENT_OPSET:
                yield node("Clip", [noise], "clipped", min=-BOUND, max=BOUND)
            else:
                yield node("Clip", [noise, f"{_PREFIX}_low", f"{_PREFIX}_high"], "clipped")
            noise = f"{here}_clipped"
        if raw and self.opset < CURRENT_OPSET:
            yield node("Add", [x, x], "twice")
            yield node("Floor", [f"{here}_twice"], "floor")
            yield node("Sub", [f"{here}_twice", f"{here}_floor"], "fraction")
            yield node("ReduceMax", [f"{here}_fraction"], "most", keepdims=0)
            yield node("Cast", [f"{here}_most"], "broken", to=TensorProto.BOOL)
            yield node("Cast", [f"{here}_broken"], "factor", to=TensorProto.DOUBLE if wide else TensorProto.FLOAT)
            yield node("Mul", [noise, f"{here}_factor"], "chosen")
            noise, raw = f"{here}_chosen", False
        last = x == exact and not raw and not (self.overflows and rounding.coarse)
        if last:
            yield helper.make_node("Add", [x, noise], [name])
            return
        yield node("Add", [x, noise], "sum")
        result = f"{here}_sum"
        if raw:
            yield node("Add", [x, x], "twice")
            yield node("Floor", [f"{here}_twice"], "floor")
            yield node("Equal", [f"{here}_twice", f"{here}_floor"], "whole")
            yield node("Cast", [f"{here}_whole"], "ones", to=TensorProto.FLOAT)
            yield node("ReduceMin", [f"{here}_ones"], "least", keepdims=0)
            yield node("Cast", [f"{here}_least"], "integers", to=TensorProto.BOOL)
            yield node("Where", [f"{here}_integers", x, result], "chosen")
            result = f"{here}_chosen"
        if self.overflows and rounding.coarse:
            yield node("Cast", [result], "half", to=TensorProto.FLOAT16)
            yield node("Cast", [f"{here}_half"], "single", to=TensorProto.FLOAT)
            result = f"{here}_single"
        to_half = x != exact
        yield (
            helper.make_node("Cast", [result], [name], to=type_)
            if to_half
            else helper.make_node("Identity", [result], [name])
        )
