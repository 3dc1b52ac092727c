"""How a graph uses its inputs: as indices of a table, masks, sizes, or operands of comparisons.

`_Tracer` follows each input x through casts, data movement and arithmetic with constants, as a x + b. The nodes that
read these values determine which elements are valid (Gather), where the result changes (Equal, Clip, Mod) and which
elements hide positions (Where, large factors).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from graphopt.graph.operators.arguments import AXES_ARGUMENTS, argument_name, is_size
from graphopt.graph.operators.traits import ARITHMETIC, COMPARISONS, DATA_MOVEMENT, LOGIC, PAST_KEYS, REDUCTIONS
from graphopt.graph.shapes.facts import EXACT_BITS
from graphopt.graph.traversal import bodies, is_external, tensor_array, tensor_dims
from graphopt.graph.view import GraphView, attribute_float, attribute_int
from graphopt.inputs.trees import MOST_COLUMNS, Columns, Ensemble, attributes_of, columns_of, ensemble, output_columns
from graphopt.targets.target import Target

# An input with a factor of this size is a mask. An additive mask hides positions with elements below -HIDES.
HIDES = 1e3
# Operators that return elements of their first input: their result has the trace of this input.
ELEMENT_COPYING = DATA_MOVEMENT - {"Gather"} | {"Cast", "CastLike", "Compress", "Pad", "ScatterElements"}
# Operators that compute sizes from sizes.
SIZE_ARITHMETIC = (ELEMENT_COPYING | ARITHMETIC | REDUCTIONS).union(
    "Abs Ceil Concat Floor Gather Max Min Mod Neg Pow Round Sqrt Sum Where".split()
)
# com.microsoft operator -> inputs that are counts.
COUNTS = {"BeamSearch": (1, 2, 3, 4), "GreedySearch": (1, 2), "Sampling": (1, 2)}
# Float type -> bits of the integers that it holds exactly.
FLOAT_BITS = EXACT_BITS | {ir.DataType.BFLOAT16: 8}
# Operator -> the attributes of `Use` that its input of sizes sets, if they differ from ("size",).
SIZE_MARKS = {"Loop": ("size", "is_trip_count"), "Reshape": ("size", "rest")}


@dataclass
class Use:
    """How the model uses one input.

    Attributes:
        low, high: the valid indices; None if the input is no index.
        negative: whether indices may be negative: they count from the end, or only their absolute value is used.
        reach: the absolute value of the lowest valid index.
        thresholds: elements next to which results change: operands of comparisons, bounds of Clip, multiples of Mod.
        mask: whether it hides positions where it is 0.
        additive: whether it is added before a Softmax: 0 keeps, a large negative element hides.
        size: whether it is a size or a count.
        shapes: declared shapes of the results that have its elements as their shape.
        rest: whether one element may be -1, the remaining size of a Reshape.
        axes: whether its elements are axes.
        scale: whether it holds the scales of a Resize.
        is_trip_count: whether it is the trip count of a Loop.
        condition: whether it is the condition of an If.
        keys: the keys of a LabelEncoder that reads it.
        bits: number of bits of the integers that survive its conversion to a float and back; None without such a
            conversion.
        cache: whether an operator appends new steps to it, as to a decoder's cache.
        multiplied: whether a MatMul reads it with unchanged elements.
        ties: (factor, offset, tie): factor * x + offset is rounded to an integer, and the result changes at integer +
            tie. The tie is 0.5, or 0 for operators that round in one direction.
        divisor: whether it divides integers.
        loops: whether the condition of a Loop depends on it: a large element would cause too many iterations.
        foreign: whether an operator outside of ONNX's domains reads it. Large integers are not tried then, because ONNX
            Runtime's own operators do not check lengths.
        trees: the tree ensembles that read its columns.
        computed: whether nodes other than data movement, comparisons and tree ensembles read it.
    """

    low: int | None = None
    high: int | None = None
    negative: bool = False
    reach: int | None = None
    thresholds: set[float] = field(default_factory=set)
    mask: bool = False
    additive: bool = False
    size: bool = False
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    rest: bool = False
    axes: bool = False
    scale: bool = False
    is_trip_count: bool = False
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
        """Adds uses by another model that require additional elements."""
        self.thresholds |= other.thresholds
        self.keys |= other.keys
        self.ties |= other.ties
        self.trees += other.trees
        self.divisor, self.loops = self.divisor or other.divisor, self.loops or other.loops
        self.computed = self.computed or other.computed
        self.bits = min((b for b in (self.bits, other.bits) if b is not None), default=None)


@dataclass(frozen=True)
class _Trace:
    """A value as the sum of a x + b over inputs x.

    Attributes:
        factors: (x, a).
        offset: b.
        free: whether a Mod, Clip, Max or Min limits the value, so that any x is valid.
        folded: whether it is the absolute value of the sum.
    """

    factors: tuple[tuple[str, float], ...]
    offset: float = 0.0
    free: bool = False
    folded: bool = False

    @property
    def single(self) -> tuple[str, float] | None:
        """The input and its factor if the value depends on one input."""
        return self.factors[0] if len(self.factors) == 1 and self.factors[0][1] else None

    @property
    def unchanged(self) -> str | None:
        """The input with the same elements as the value."""
        same = self.single is not None and self.single[1] == 1 and self.offset == 0 and not self.folded
        return self.factors[0][0] if same else None

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, (self.offset, *(a for _, a in self.factors))))

    def scaled(self, factor: float, shift: float = 0.0) -> _Trace:
        """Returns the trace of factor * value + shift; the value is not folded."""
        return _Trace(tuple((x, factor * a) for x, a in self.factors), factor * self.offset + shift, self.free)


def uses_of(model: ir.Model) -> dict[str, Use]:
    """Returns the uses of all graph inputs by name. Calls of functions are not followed: inline them first."""
    tracer = _Tracer(model)
    tracer.walk(model.graph)
    return tracer.uses


def only_compared(model: ir.Model) -> frozenset[str]:
    """Returns the inputs that nodes only move, compare or pass to tree ensembles.

    A call of a function counts as another use.
    """
    return frozenset(name for name, use in uses_of(model).items() if not use.computed)


class _Tracer:
    """Follows the inputs of a model through its nodes.

    Attributes:
        uses: input -> its uses.
        traces: values that are affine functions of inputs.
        origins: inputs, and values that SIZE_ARITHMETIC or bodies compute from them -> the inputs that they depend on.
        bits: values that were converted to a float -> bits of the integers that it holds exactly.
        columns: values with known columns of inputs.
    """

    def __init__(self, model: ir.Model) -> None:
        self.view = GraphView(model, Target("cpu"))
        self.uses = {str(v.name): Use() for v in model.graph.inputs}
        required = {v: str(v.name) for v in model.graph.inputs if not v.is_initializer()}
        self.traces = {v: _Trace(((name, 1.0),)) for v, name in required.items()}
        self.origins = {v: frozenset((name,)) for v, name in required.items()}
        self.bits: dict[ir.Value, int] = {}
        self.columns: dict[ir.Value, Columns] = {v: columns for v in required if (columns := columns_of(v))}
        self.before_softmax: set[ir.Value] = set()

    def walk(self, graph: ir.Graph, *, in_loop: bool = False) -> None:
        """Follows the nodes of a graph and of the bodies in it."""
        self.before_softmax |= _before_softmax(graph)
        for node in graph:
            self._trace(node)
            self._follow_floats(node)
            self._follow_sizes(node)
            self._follow_columns(node)
            self._note_loop(node, in_loop)
            for body in bodies(node):
                self.walk(body, in_loop=in_loop or node.op_type == "Loop")
                if sources := self._sources(body.outputs):
                    for output in node.outputs:
                        self.origins[output] = self.origins.get(output, frozenset()) | sources

    def _sources(self, values: Iterable[ir.Value | None]) -> frozenset[str]:
        """Returns the inputs that any of these values depends on."""
        return frozenset[str]().union(*(self.origins.get(v, ()) for v in values if v is not None))

    def _trace(self, node: ir.Node) -> None:
        given = [self.traces.get(value) if value is not None else None for value in node.inputs]
        for index, trace in enumerate(given):
            if trace is not None:
                self._note(node, index, trace)
        if any(given) and (result := self._result(node, given)) is not None and result.is_finite:
            self.traces.update(dict.fromkeys(node.outputs, result))
            scales = node.op_type in ("Div", "Mul")
            if scales and not result.folded and any(abs(a) >= HIDES for _, a in result.factors):
                self._mark(result, "mask")

    def _follow_sizes(self, node: ir.Node) -> None:
        """Marks sizes, including sizes that are computed from several inputs."""
        for index, value in enumerate(node.inputs):
            if value in self.origins and "size" in self._marks(node, index):
                for name in self._sources((value,)):
                    self.uses[name].size = True
        if node.op_type in SIZE_ARITHMETIC and (sources := self._sources(node.inputs)):
            self.origins.update(dict.fromkeys(node.outputs, sources))

    def _note_loop(self, node: ir.Node, in_loop: bool) -> None:
        """Marks inputs on which the end of a Loop may depend: through its condition, or a comparison in its body."""
        read = node.inputs[1:2] if node.op_type == "Loop" else ()
        if in_loop and node.op_type in COMPARISONS:
            read = node.inputs
        for name in self._sources(read):
            self.uses[name].loops = True

    def _follow_columns(self, node: ir.Node) -> None:
        """Follows columns of inputs to tree ensembles."""
        columns = [self.columns.get(value, []) if value is not None else [] for value in node.inputs]
        if node.op_type.startswith("TreeEnsemble"):
            trees = ensemble(node, columns[0])
            for name in {column.input for column in trees.columns.values()}:
                self.uses[name].trees.append(trees)
        elif any(columns):
            second = self._constant(node.inputs[1]) if len(node.inputs) > 1 else None
            if (result := output_columns(node, columns, second)) is not None:
                self.columns[node.outputs[0]] = result

    def _follow_floats(self, node: ir.Node) -> None:
        """Follows integers that are converted to floats and back."""
        if node.op_type not in SIZE_ARITHMETIC:
            return
        bits = [self.bits[value] for value in node.inputs if value in self.bits]
        to, sources = ir.DataType(attribute_int(node, "to", 0)), self._sources(node.inputs[:1])
        if to.is_integer() and bits:
            for name in sources:
                self.uses[name].add(Use(bits=min(bits)))
            return
        if to in FLOAT_BITS and sources:
            bits.append(FLOAT_BITS[to])
        if bits:
            self.bits.update(dict.fromkeys(node.outputs, min(bits)))

    # -- constants -----------------------------------------------------------------------------------------------------

    def _tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Returns the tensor of a constant, or the default of an overridable initializer."""
        return value.const_value if value is not None and value.const_value is not None else self.view.tensor(value)

    def _constant(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        """Returns the elements of a small constant, flattened."""
        tensor = self._tensor(value)
        if tensor is None or is_external(tensor) or math.prod(tensor_dims(tensor)) > MOST_COLUMNS:
            return None
        return tensor_array(tensor).reshape(-1)

    def _number(self, value: ir.Value | None) -> float | None:
        """Returns the element of a constant of size 1, also of one that is cast or reshaped."""
        array = self._constant(_skip_back(value, "Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"))
        return float(array[0]) if array is not None and array.size == 1 and array.dtype.kind in "fiub" else None

    def _dims(self, value: ir.Value | None) -> tuple[int, ...]:
        """Returns the dimensions of a constant, also a converted or quantized one; () of other values."""
        source = _skip_back(value, "Cast", "DequantizeLinear", "Identity")
        if (tensor := self._tensor(source)) is not None:
            return tensor_dims(tensor)
        return _static_shape(source) if source is not None and source.is_initializer() else ()

    # -- results -------------------------------------------------------------------------------------------------------

    def _result(self, node: ir.Node, given: list[_Trace | None]) -> _Trace | None:
        """Returns the trace of a node's result, if it is an affine function of inputs."""
        op, first = node.op_type, given[0]
        if op in ELEMENT_COPYING or op == "Gather":
            return first
        if op in ("Concat", "Max", "Min", "Sum", "Where"):
            trace = next((t for t in given[op == "Where" :] if t is not None), None)
            limited = op in ("Max", "Min") and any(self._number(value) is not None for value in node.inputs)
            return replace(trace, free=True) if trace is not None and limited else trace
        if op == "Abs" and first is not None:
            return replace(first, folded=True)
        if any(t is not None and t.folded for t in given):
            return None
        if op == "Neg" and first is not None:
            return first.scaled(-1.0)
        if op in ("Mod", "Clip") and first is not None:
            return _Trace(first.factors, first.offset, free=True)
        if op in ARITHMETIC and len(given) == 2:
            left, right = given
            if left is not None and right is not None:
                return _sum(op, left, right)
            return self._with_constant(node, left, right)
        return None

    def _with_constant(self, node: ir.Node, left: _Trace | None, right: _Trace | None) -> _Trace | None:
        """Returns the trace of arithmetic with one trace, `left` or `right`, and a constant."""
        trace, op = left or right, node.op_type
        constant = self._number(node.inputs[1 if left is not None else 0])
        if trace is None or constant is None or (op == "Div" and (left is None or constant == 0)):
            return None
        if op in ("Add", "Sub"):
            flip = -1.0 if op == "Sub" and left is None else 1.0
            return trace.scaled(flip, -constant if op == "Sub" and left is not None else constant)
        return trace.scaled(constant if op == "Mul" else 1 / constant)

    # -- uses ----------------------------------------------------------------------------------------------------------

    def _note(self, node: ir.Node, index: int, trace: _Trace) -> None:
        """Notes how a node uses the model's inputs in the trace of its input `index`."""
        op = node.op_type
        if trace.unchanged is not None:
            self._note_unchanged(node, index, self.uses[trace.unchanged])
        if node.domain not in ("", "ai.onnx.ml"):
            self._mark(trace, "foreign")
        single = trace.single
        if single is not None and (tie := self._tie(node, index)) is not None:
            scale, half = tie
            self.uses[single[0]].ties.add((scale * single[1], scale * trace.offset, half))
        if (rows := self._rows(node, index)) is not None:
            self._limit(trace, rows)
        elif marks := self._marks(node, index):
            self._mark(trace, *marks)
            shape = _static_shape(node.outputs[0]) if "size" in marks else ()
            if shape and (op == "ConstantOfShape" or self._argument(node, index) in ("output_shape", "shape", "sizes")):
                for name, _ in trace.factors:
                    self.uses[name].shapes.append(shape)
        elif (thresholds := self._thresholds(node, index)) is not None:
            if single is not None:
                values = thresholds + [-n for n in thresholds] * trace.folded
                self.uses[single[0]].thresholds |= {(n - trace.offset) / single[1] for n in values if math.isfinite(n)}
        elif op == "LabelEncoder" and trace.unchanged is not None:
            self.uses[trace.unchanged].keys |= {key for key in labels(node) if isinstance(key, int)}
        elif op in LOGIC or (op == "Where" and index == 0) or _casts_to(node, ir.DataType.BOOL):
            self._mark(trace, "mask")
        elif op == "Add" and node.outputs[0] in self.before_softmax and single is not None and single[1] == 1:
            self._mark(trace, "additive")

    def _note_unchanged(self, node: ir.Node, index: int, use: Use) -> None:
        """Notes how a node uses the unchanged elements of an input."""
        op = node.op_type
        use.cache = use.cache or op == "Concat" or (op in PAST_KEYS and index - PAST_KEYS[op] in (0, 1))
        use.multiplied = use.multiplied or op == "MatMul"
        compared = op in ELEMENT_COPYING | COMPARISONS | {"Shape", "Size"} or op.startswith("TreeEnsemble")
        use.computed = use.computed or not (compared or (op in ("Gather", "Where") and index == 0))

    def _mark(self, trace: _Trace, *marks: str) -> None:
        for name, _ in trace.factors:
            for mark in marks:
                setattr(self.uses[name], mark, True)

    def _argument(self, node: ir.Node, index: int) -> str:
        return argument_name(node.op_type, self.view.opset_at(node), index)

    def _marks(self, node: ir.Node, index: int) -> tuple[str, ...]:
        """Returns the attributes of `Use` that input `index` of a node sets by its meaning."""
        op, argument = node.op_type, self._argument(node, index)
        if is_size(op, argument) or index in COUNTS.get(op, ()):
            return SIZE_MARKS.get(op, ("size",))
        if argument in AXES_ARGUMENTS:
            return ("axes",)
        if argument == "scales":
            return ("scale",)
        if op in ("Div", "Mod") and index == 1:
            return ("divisor",)
        return ("condition",) if op == "If" else ()

    def _tie(self, node: ir.Node, index: int) -> tuple[float, float] | None:
        """Returns (factor, tie) if a node rounds factor * x to integers, else None; see `Use.ties`."""
        op = node.op_type
        if index:
            return None
        if op == "QuantizeLinear":
            scale = self._number(node.inputs[1])
            return (1 / scale, 0.5) if scale else None
        if op == "Round":
            return 1.0, 0.5
        to_integer = op == "Cast" and ir.DataType(attribute_int(node, "to", 0)).is_integer()
        return (1.0, 0.0) if to_integer or op in ("Ceil", "Floor") else None

    def _rows(self, node: ir.Node, index: int) -> int | None:
        """Returns the number of rows of a constant table if input `index` is an index into it, else None."""
        op, inputs = node.op_type, node.inputs
        if op in ("Gather", "GatherElements", "ScatterElements") and index == 1 and (table := self._dims(inputs[0])):
            axis = attribute_int(node, "axis", 0)
            return table[axis] if -len(table) <= axis < len(table) else None
        if op in ("GatherND", "ScatterND") and index == 1 and (table := self._dims(inputs[0])):
            return min(table)
        if op == "OneHot" and index == 0 and (depth := self._number(inputs[1])) is not None:
            return int(depth)
        if op == "EmbedLayerNormalization" and index < 2 and (table := self._dims(inputs[2 + index])):
            return table[0]
        return None

    def _thresholds(self, node: ir.Node, index: int) -> list[float] | None:
        """Returns the values of input `index` where the node's result changes; None for other nodes."""
        op, inputs = node.op_type, node.inputs
        if op in COMPARISONS and (number := self._number(inputs[1 - index])) is not None:
            return [number]
        if op == "Clip" and index == 0:
            bounds = [n for value in inputs[1:] if (n := self._number(value)) is not None]
            return bounds + [attribute_float(node, name, 0.0) for name in ("min", "max") if name in node.attributes]
        if op == "Mod" and index == 0 and (number := self._number(inputs[1])) is not None:
            return [-number, 0, number, 2 * number]
        return None

    def _limit(self, trace: _Trace, rows: int) -> None:
        """Limits the inputs of a trace that is an index into this many rows."""
        if trace.free or rows < 1:
            return
        share = len(trace.factors)
        for name, factor in trace.factors:
            if factor == 0:
                continue
            use = self.uses[name]
            lowest = -(rows - 1) if trace.folded else 0
            bounds = sorted((index - trace.offset) / factor / share for index in (lowest, rows - 1))
            low, high = math.ceil(bounds[0] - 1e-9), math.floor(bounds[1] + 1e-9)
            reach = None
            if trace.folded:
                # Another reader may count negative elements from the end, so the smaller reach is valid for both.
                use.negative, reach, low = use.negative or use.low is None, -low, 0
            else:
                from_the_end = share == 1 and trace.unchanged is not None
                use.negative = from_the_end and (use.negative or use.low is None)
                reach = rows if from_the_end else None
            if reach is not None:
                use.reach = reach if use.reach is None else min(use.reach, reach)
            use.low = low if use.low is None else max(use.low, low)
            use.high = high if use.high is None else min(use.high, high)


def labels(node: ir.Node) -> dict[Any, Any]:
    """Returns key -> label of a LabelEncoder."""
    given = {name.split("_")[0]: value for name, value in attributes_of(node).items()}
    return dict(zip(given.get("keys", ()), given.get("values", ())))


def _skip_back(value: ir.Value | None, *op_types: str) -> ir.Value | None:
    """Follows a value back through the first inputs of operators of these types."""
    while value is not None and (node := value.producer()) is not None and node.op_type in op_types:
        value = node.inputs[0]
    return value


def _static_shape(value: ir.Value) -> tuple[int, ...]:
    """Returns the declared shape if all of its sizes are known and positive, else ()."""
    dims = value.shape.dims if value.shape is not None else ()
    return tuple(d for d in dims if isinstance(d, int)) if all(isinstance(d, int) and d > 0 for d in dims) else ()


def _sum(op: str, left: _Trace, right: _Trace) -> _Trace | None:
    """Returns the trace of an Add or Sub; None for other operators."""
    if op not in ("Add", "Sub"):
        return None
    other = right if op == "Add" else right.scaled(-1.0)
    # One factor for each input, because a chain of values that are added to themselves would double the number of
    # factors each time.
    factors = dict(left.factors)
    for x, factor in other.factors:
        factors[x] = factors.get(x, 0.0) + factor
    return _Trace(tuple(factors.items()), left.offset + other.offset, left.free or right.free)


def _casts_to(node: ir.Node, dtype: ir.DataType) -> bool:
    return node.op_type == "Cast" and attribute_int(node, "to", 0) == dtype


def _before_softmax(graph: ir.Graph) -> set[ir.Value]:
    """Returns the values that reach a Softmax through data movement, Add and Where alone."""
    found: set[ir.Value] = set()
    for node in reversed(graph):
        if node.op_type == "Softmax":
            read = node.inputs[:1]
        elif node.op_type in ELEMENT_COPYING | {"Add", "Where"} and any(output in found for output in node.outputs):
            read = node.inputs
        else:
            continue
        found.update(value for value in read if value is not None)
    return found
