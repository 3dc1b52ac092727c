"""What a graph does with the numbers of its inputs: which of them index a table, hide positions, or decide something.

Integers are followed through casts, moves and arithmetic with constants, a x + b, to the nodes that give them a
meaning: Gather and its relatives bound them by the size of what they index, Equal and its relatives name numbers next
to which something changes, Mod and Clip bound them themselves, Where and large factors make masks of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from graphopt.graph.messages import bodies
from graphopt.inputs.trees import MOST_COLUMNS, Columns, Ensemble, columns_of, ensemble, moved_columns

# A factor of this size turns what is not 0 into "hidden"; so does minus this, added to a score.
HIDES = 1e3
# Their results are numbers of their first input, of another type perhaps, beside others that say nothing of its use.
HAND_ON = frozenset(
    "Cast CastLike Compress Expand Flatten Identity Pad Reshape ScatterElements Slice Split Squeeze Tile Transpose "
    "Unsqueeze".split()
)
LOGIC = frozenset("And Not Or Xor".split())
COMPARISONS = frozenset("Equal Greater GreaterOrEqual Less LessOrEqual".split())
# Operators that append new steps to a cache -> the inputs of the cache. Concat does so at any input.
CACHES = {
    "Attention": (4, 5),
    "DecoderMaskedMultiHeadAttention": (5, 6),
    "GroupQueryAttention": (3, 4),
    "MultiHeadAttention": (6, 7),
}
TREES = frozenset(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"))
# Operators that round real numbers to integers: near k + 0.5, and at integers.
ROUNDS_TO_NEAREST, ROUNDS_ONE_WAY = frozenset(("QuantizeLinear", "Round")), frozenset(("Ceil", "Floor"))
# What these read at the given places are sizes, counts.
SIZES = {
    "AffineGrid": (1,),
    "BeamSearch": (1, 2, 3, 4),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "Expand": (1,),
    "GreedySearch": (1, 2),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "NonMaxSuppression": (2,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (3,),
    "STFT": (1, 3),
    "Sampling": (1, 2),
    "Slice": (1, 2, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}
# The whole numbers that a float holds, as bits.
WHOLE_BITS: dict[int, int] = {
    onnx.TensorProto.BFLOAT16: 8,
    onnx.TensorProto.FLOAT16: 11,
    onnx.TensorProto.FLOAT: 24,
    onnx.TensorProto.DOUBLE: 53,
}
INTEGERS = frozenset(getattr(onnx.TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64))
# What a size is besides, as `Use` calls it.
_BESIDE_SIZE = {"Loop": "turns", "Reshape": "rest"}
# Their results are as large as these sizes say.
SHAPES = frozenset("ConstantOfShape Expand MaxUnpool Reshape Resize".split())
AXES = {
    **dict.fromkeys(
        "CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare Squeeze Unsqueeze".split(),
        1,
    ),
    "Pad": 3,
    "Slice": 3,
}
SCALES = {"Resize": 2, "Upsample": 1}
# What is computed so from a size is one, too.
ARITHMETIC = HAND_ON | frozenset(
    "Abs Add Ceil Concat Div Floor Gather Max Min Mod Mul Neg Pow ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "Round Sqrt Sub Sum Where".split()
)


@dataclass
class Use:
    """How one input is used.

    Attributes:
        low, high: numbers that what it indexes has; None where nothing is indexed.
        negative: whether indices may be below 0: count from the end, or lose their sign.
        reach: how far below 0 then.
        turning: numbers next to which something changes: of comparisons, bounds of Clip, multiples of Mod.
        mask: whether it hides positions where it is 0.
        additive: whether it is added before a Softmax: 0 keeps, a large negative number hides.
        size: whether it says how large something is.
        shapes: what results are declared as whose shape it is.
        rest: whether one of its numbers may be -1, for what is left.
        axes: whether it names axes.
        scale: whether pixels are resized by it.
        turns: whether it says how often a Loop runs.
        condition: whether a branch depends on it.
        keys: what it is looked up by.
        bits: of the whole numbers that survive a float on the way back to an integer; None where there is none.
        cache: whether it is joined along an axis with other values, as what a decoder keeps is with new steps.
        multiplied: whether a MatMul reads its elements as they are.
        ties: (factor, offset, step): factor * x + offset is rounded to an integer, with ties at multiples of the step
            between two of them: 0.5, or 0 where the integers themselves decide.
        divisor: whether integers are divided by it.
        loops: whether a Loop's condition depends on it: a large number would take too many turns.
        foreign: whether an operator of another domain reads it: the runtime's own trust their lengths.
        trees: tree ensembles that read its columns.
        computed: whether anything but moves, comparisons and trees reads it.
    """

    low: int | None = None
    high: int | None = None
    negative: bool = False
    reach: int | None = None
    turning: set[float] = field(default_factory=set)
    mask: bool = False
    additive: bool = False
    size: bool = False
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    rest: bool = False
    axes: bool = False
    scale: bool = False
    turns: bool = False
    condition: bool = False
    keys: set[int] = field(default_factory=set)
    bits: int | None = None
    cache: bool = False
    multiplied: bool = False
    ties: set[tuple[float, float, float]] = field(default_factory=set)
    divisor: bool = False
    loops: bool = False
    foreign: bool = False
    trees: list[Ensemble] = field(default_factory=list)
    computed: bool = False

    def add(self, other: Use) -> None:
        """What another model does with the same input, as far as that calls for other numbers."""
        self.turning |= other.turning
        self.keys |= other.keys
        self.ties |= other.ties
        self.trees += other.trees
        self.divisor, self.loops = self.divisor or other.divisor, self.loops or other.loops
        self.computed = self.computed or other.computed
        self.bits = min((b for b in (self.bits, other.bits) if b is not None), default=None)


@dataclass(frozen=True)
class _Trace:
    """A value as a * x + b for each input x that it is made of.

    Attributes:
        factors: a by x.
        offset: b.
        free: behind a Mod or Clip, where any x will do.
        folded: its absolute value.
    """

    factors: tuple[tuple[str, float], ...]
    offset: float = 0.0
    free: bool = False
    folded: bool = False

    def scaled(self, factor: float, shift: float = 0.0) -> _Trace:
        """The value times a factor, plus a shift; of one that is not folded."""
        return _Trace(tuple((x, factor * a) for x, a in self.factors), factor * self.offset + shift, self.free)


def uses_of(model: onnx.ModelProto) -> dict[str, Use]:
    """By the names of all graph inputs. Calls of functions are not followed: inline them first."""
    tracer = _Tracer({v.name: Use() for v in model.graph.input})
    known = {t.name: tuple(t.dims) for t in model.graph.initializer}
    traces = {v.name: _Trace(((v.name, 1.0),)) for v in model.graph.input if v.name not in known}
    tracer.shapes |= known
    for value in (*model.graph.value_info, *model.graph.output):
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if all(n > 0 for n in dims):
            tracer.declared[value.name] = tuple(dims)
    for tensor in model.graph.initializer:
        tracer.constant(tensor.name, tensor)
    for value in model.graph.input:
        if value.name in traces and (columns := columns_of(value)):
            tracer.columns[value.name] = columns
    tracer.graph(model.graph, traces, {name: frozenset((name,)) for name in traces})
    return tracer.uses


def only_compared(model: onnx.ModelProto) -> frozenset[str]:
    """Inputs that are moved and compared, and that nothing else reads; a call of a function is something else."""
    return frozenset(name for name, use in uses_of(model).items() if not use.computed)


@dataclass
class _Tracer:
    uses: dict[str, Use]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    declared: dict[str, tuple[int, ...]] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)  # of what went through a float
    vectors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)  # constants of a few elements
    columns: dict[str, Columns] = field(default_factory=dict)
    looping: int = 0  # how many bodies of a Loop are around the graph

    def constant(self, name: str, tensor: onnx.TensorProto) -> None:
        self.shapes[name] = tuple(tensor.dims)
        if math.prod(tensor.dims) <= MOST_COLUMNS and tensor.data_location != onnx.TensorProto.EXTERNAL:
            self.vectors[name] = numpy_helper.to_array(tensor).reshape(-1)
            if self.vectors[name].size <= 1:
                self.numbers[name] = self.vectors[name]

    def graph(self, graph: onnx.GraphProto, traces: dict[str, _Trace], origins: dict[str, frozenset[str]]) -> None:
        """Notes what the nodes of a graph, and of the bodies in it, do with the inputs that they read.

        Args:
            graph: to be walked.
            traces: of the values that are known before it.
            origins: value -> the inputs that it is computed from; of integers, and of what becomes such.
        """
        softmaxed = _before_softmax(graph)
        for tensor in graph.initializer:
            self.constant(tensor.name, tensor)
        for node in graph.node:
            self._node(node, traces, softmaxed)
            self._floats(node, origins)
            self._sizes(node, origins)
            self._columns(node)
            self._loop(node, origins)
            for body in bodies(node):
                inner = dict(origins)
                self.looping += node.op_type == "Loop"
                self.graph(body, dict(traces), inner)
                self.looping -= node.op_type == "Loop"
                made = frozenset[str]().union(*(inner.get(v.name, ()) for v in body.output))
                for name in node.output if made else ():
                    origins[name] = origins.get(name, frozenset()) | made

    def _node(self, node: onnx.NodeProto, traces: dict[str, _Trace], softmaxed: set[str]) -> None:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    self.constant(node.output[0], attribute.t)
                elif attribute.name in ("value_int", "value_float"):
                    number = attribute.i if attribute.name == "value_int" else attribute.f
                    self.numbers[node.output[0]], self.shapes[node.output[0]] = np.array([number]), ()
            return
        self._shape(node)
        given = [traces.get(name) for name in node.input]
        for place, trace in enumerate(given):
            if trace is not None:
                self._meaning(node, place, trace, softmaxed)
        made = self._made(node, given)
        if made is not None and node.output:
            for name in node.output:
                traces[name] = made
            if not made.folded and any(abs(a) >= HIDES for _, a in made.factors):
                self._each(made, lambda use: setattr(use, "mask", True))

    def _sizes(self, node: onnx.NodeProto, origins: dict[str, frozenset[str]]) -> None:
        """Sizes, also such as are computed from several inputs."""
        for place in SIZES.get(node.op_type, ()):
            for name in origins.get(node.input[place], ()) if place < len(node.input) else ():
                self.uses[name].size = True
        if node.op_type in ARITHMETIC:
            made = frozenset[str]().union(*(origins.get(name, ()) for name in node.input))
            if made:
                origins.update(dict.fromkeys(node.output, made))

    def _loop(self, node: onnx.NodeProto, origins: dict[str, frozenset[str]]) -> None:
        """Inputs that may decide how often a Loop runs: its condition, and comparisons in its body."""
        read = node.input[1:2] if node.op_type == "Loop" else ()
        if self.looping and node.op_type in COMPARISONS:
            read = node.input
        for name in (origin for value in read for origin in origins.get(value, ())):
            self.uses[name].loops = True

    def _columns(self, node: onnx.NodeProto) -> None:
        """Columns of inputs on their way to tree ensembles."""
        if node.op_type in TREES:
            found = ensemble(node, self.columns.get(node.input[0], []))
            for name in {place.input for place in found.columns.values()}:
                self.uses[name].trees.append(found)
        elif (made := moved_columns(node, self.columns, self.vectors)) is not None:
            self.columns[node.output[0]] = made

    def _floats(self, node: onnx.NodeProto, origins: dict[str, frozenset[str]]) -> None:
        """Integers that become floats and integers again."""
        if node.op_type not in ARITHMETIC:
            return
        held = [self.bits[name] for name in node.input if name in self.bits]
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        if to in WHOLE_BITS and origins.get(node.input[0]):
            held.append(WHOLE_BITS[to])
        elif to in INTEGERS and held:
            for name in origins.get(node.input[0], ()):
                self.uses[name].add(Use(bits=min(held)))
            return
        if held:
            self.bits |= dict.fromkeys(node.output, min(held))

    def _shape(self, node: onnx.NodeProto) -> None:
        """Tables that are cast or taken out of their quantized form keep their shape."""
        if node.op_type in ("Cast", "DequantizeLinear", "Identity") and node.input[0] in self.shapes:
            self.shapes[node.output[0]] = self.shapes[node.input[0]]
        if node.op_type in ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape") and node.input[0] in self.numbers:
            self.numbers[node.output[0]] = self.numbers[node.input[0]]

    def _number(self, name: str) -> float | None:
        array = self.numbers.get(name)
        return float(array[0]) if array is not None and array.size == 1 and array.dtype.kind in "fiub" else None

    def _made(self, node: onnx.NodeProto, given: list[_Trace | None]) -> _Trace | None:
        """What the node's result is, as far as it can be followed."""
        first = given[0] if given else None
        if node.op_type in HAND_ON or (node.op_type == "Gather" and first is not None):
            return first
        if node.op_type in ("Concat", "Max", "Min", "Sum", "Where"):
            made = next((t for t in given[1 if node.op_type == "Where" else 0 :] if t is not None), None)
            clipped = node.op_type in ("Max", "Min") and any(self._number(name) is not None for name in node.input)
            return replace(made, free=True) if made is not None and clipped else made
        if node.op_type == "Abs" and first is not None:
            return replace(first, folded=True)
        if any(t is not None and t.folded for t in given):
            return None
        if node.op_type == "Neg" and first is not None:
            return first.scaled(-1.0)
        if node.op_type in ("Mod", "Clip") and first is not None:
            return _Trace(first.factors, first.offset, free=True)
        if node.op_type in ("Add", "Div", "Mul", "Sub") and len(given) == 2:
            left, right = given
            if left is not None and right is not None:
                return _sum(node.op_type, left, right)
            return self._with_constant(node, left, right)
        return None

    def _with_constant(self, node: onnx.NodeProto, left: _Trace | None, right: _Trace | None) -> _Trace | None:
        """Add, Div, Mul or Sub of one trace, left or right, and a constant."""
        trace = left or right
        constant = self._number(node.input[1] if left is not None else node.input[0])
        if trace is None or constant is None:
            return None
        if node.op_type in ("Add", "Sub"):
            flip = -1.0 if node.op_type == "Sub" and left is None else 1.0
            shift = -constant if node.op_type == "Sub" and left is not None else constant
            return trace.scaled(flip, shift)
        if node.op_type == "Div" and (left is None or constant == 0):
            return None
        return trace.scaled(constant if node.op_type == "Mul" else 1 / constant)

    def _meaning(self, node: onnx.NodeProto, place: int, trace: _Trace, softmaxed: set[str]) -> None:
        """What the node tells of the inputs behind the trace, which is its input at that place."""
        op = node.op_type
        rows = self._rows(node, place)
        marks = _marks(op, place)
        self._directly(node, place, trace)
        if node.domain not in ("", "ai.onnx", "ai.onnx.ml"):
            self._each(trace, lambda use: setattr(use, "foreign", True))
        if (tie := self._tie(node, place)) is not None and len(trace.factors) == 1 and trace.factors[0][1]:
            name, factor = trace.factors[0]
            self.uses[name].ties.add((factor * tie[0], trace.offset * tie[0] + tie[1], tie[2]))
        if rows is not None:
            self._index(trace, rows)
        elif marks:
            for name in marks:
                self._each(trace, lambda use, name=name: setattr(use, name, True))
            if op in SHAPES and "size" in marks and (declared := self.declared.get(node.output[0])):
                self._each(trace, lambda use: use.shapes.append(declared))
        elif (turning := self._turns_at(node, place)) is not None:
            self._turning(trace, turning)
        elif op == "LabelEncoder":
            self._keys(trace, labels(node))
        elif op in LOGIC or (op == "Where" and place == 0) or (op == "Cast" and _casts_to_bool(node)):
            self._each(trace, lambda use: setattr(use, "mask", True))
        elif op == "Add" and node.output[0] in softmaxed and len(trace.factors) == 1 and trace.factors[0][1] == 1:
            self._each(trace, lambda use: setattr(use, "additive", True))

    def _directly(self, node: onnx.NodeProto, place: int, trace: _Trace) -> None:
        """Marks how a node uses the unchanged elements of an input."""
        op = node.op_type
        if len(trace.factors) != 1 or trace.factors[0][1] != 1 or trace.offset != 0 or trace.folded:
            return
        use = self.uses[trace.factors[0][0]]
        use.cache = use.cache or op == "Concat" or place in CACHES.get(op, ())
        use.multiplied = use.multiplied or op == "MatMul"
        compared = op in HAND_ON | COMPARISONS | TREES | {"Shape", "Size"} or (op in ("Gather", "Where") and place == 0)
        use.computed = use.computed or not compared

    def _tie(self, node: onnx.NodeProto, place: int) -> tuple[float, float, float] | None:
        """Returns (factor, offset, tie) if the node rounds this input to integers, else None."""
        if place:
            return None
        if node.op_type == "QuantizeLinear":
            scale = self._number(node.input[1])
            return None if not scale else (1 / scale, 0.0, 0.5)
        if node.op_type in ROUNDS_TO_NEAREST:
            return (1.0, 0.0, 0.5)
        to_integer = node.op_type == "Cast" and any(a.name == "to" and a.i in INTEGERS for a in node.attribute)
        return (1.0, 0.0, 0.0) if to_integer or node.op_type in ROUNDS_ONE_WAY else None

    def _rows(self, node: onnx.NodeProto, place: int) -> int | None:
        """How many rows there are to choose from, where the input at that place is an index."""
        op, inputs = node.op_type, node.input
        table = self.shapes.get(inputs[0])
        if op in ("Gather", "GatherElements", "ScatterElements") and place == 1 and table:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            return table[axis] if -len(table) <= axis < len(table) else None
        if op in ("GatherND", "ScatterND") and place == 1 and table:
            return min(table)
        if op == "OneHot" and place == 0 and (depth := self._number(inputs[1])) is not None:
            return int(depth)
        if op == "EmbedLayerNormalization" and place < 2 and (embeddings := self.shapes.get(inputs[2 + place])):
            return embeddings[0]
        return None

    def _turns_at(self, node: onnx.NodeProto, place: int) -> list[float] | None:
        """The numbers next to which the node's result changes, as the input at that place does; None where none are."""
        op, inputs = node.op_type, node.input
        if op in COMPARISONS and (number := self._number(inputs[1 - place])) is not None:
            return [number]
        if op == "Clip" and place == 0:
            bounds = [n for name in inputs[1:] if (n := self._number(name)) is not None]
            return bounds + [a.f for a in node.attribute if a.name in ("min", "max")]
        if op == "Mod" and place == 0 and (number := self._number(inputs[1])) is not None:
            return [-number, 0, number, 2 * number]
        return None

    def _index(self, trace: _Trace, rows: int) -> None:
        if trace.free or rows < 1:
            return
        share = len(trace.factors)
        for name, factor in trace.factors:
            if factor == 0:
                continue
            least = -(rows - 1) if trace.folded else 0
            ends = sorted(((least - trace.offset) / factor / share, (rows - 1 - trace.offset) / factor / share))
            use = self.uses[name]
            low, high = math.ceil(ends[0] - 1e-9), math.floor(ends[1] + 1e-9)
            from_the_end = share == 1 and factor == 1 and trace.offset == 0 and not trace.folded
            if trace.folded:
                # What is below 0 may count from the end elsewhere; how far, the smaller of the two says.
                use.reach = -low if use.reach is None else min(use.reach, -low)
                use.negative = use.negative or use.low is None
                low = 0
            else:
                use.negative = from_the_end and (use.negative or use.low is None)
                if from_the_end:
                    use.reach = rows if use.reach is None else min(use.reach, rows)
            use.low = low if use.low is None else max(use.low, low)
            use.high = high if use.high is None else min(use.high, high)

    def _turning(self, trace: _Trace, numbers: list[float]) -> None:
        if len(trace.factors) == 1 and trace.factors[0][1] != 0:
            name, factor = trace.factors[0]
            both = [*numbers, *(-n for n in numbers)] if trace.folded else numbers
            self.uses[name].turning |= {(n - trace.offset) / factor for n in both if math.isfinite(n)}

    def _keys(self, trace: _Trace, keys: Collection[Any]) -> None:
        if len(trace.factors) == 1 and trace.factors[0][1] == 1 and trace.offset == 0 and not trace.folded:
            self.uses[trace.factors[0][0]].keys |= {key for key in keys if isinstance(key, int)}

    def _each(self, trace: _Trace, change: Any) -> None:
        for name, _ in trace.factors:
            change(self.uses[name])


def labels(node: onnx.NodeProto) -> dict[Any, Any]:
    """Key -> label of a LabelEncoder."""
    given = {a.name.split("_")[0]: onnx.helper.get_attribute_value(a) for a in node.attribute}
    keys, values = (
        numpy_helper.to_array(v).reshape(-1).tolist() if isinstance(v, onnx.TensorProto) else v
        for v in (given.get("keys", ()), given.get("values", ()))
    )
    return dict(zip(keys, values))


def _marks(op: str, place: int) -> list[str]:
    """The attributes of Use that an operator sets of its input at a place, whatever else the node says."""
    marks = ["size"] if place in SIZES.get(op, ()) else []
    if marks and op in _BESIDE_SIZE:
        marks.append(_BESIDE_SIZE[op])
    if not marks and place == AXES.get(op):
        marks = ["axes"]
    if not marks and place == SCALES.get(op):
        marks = ["scale"]
    if op in ("Div", "Mod") and place == 1:
        marks = ["divisor"]
    return ["condition"] if op == "If" and place == 0 else marks


def _sum(op: str, left: _Trace, right: _Trace) -> _Trace | None:
    """The Add or Sub of both; None for other operators, whose results are no such traces."""
    if op not in ("Add", "Sub"):
        return None
    other = right if op == "Add" else right.scaled(-1.0)
    return _Trace(left.factors + other.factors, left.offset + other.offset, left.free or right.free)


def _casts_to_bool(node: onnx.NodeProto) -> bool:
    return any(a.name == "to" and a.i == onnx.TensorProto.BOOL for a in node.attribute)


def _before_softmax(graph: onnx.GraphProto) -> set[str]:
    """Values that reach a Softmax through moves and sums alone."""
    found: set[str] = set()
    for node in reversed(graph.node):
        if node.op_type == "Softmax":
            found.add(node.input[0])
        elif node.op_type in HAND_ON | {"Add", "Where"} and any(o in found for o in node.output):
            found |= {name for name in node.input if name}
    return found
