"""What is known of dimensions and of the small tensors computed from them.

A dimension is a `Size`: an integer times a product of atoms, where an atom is a dimension that cannot be taken apart
further. Sizes that compare equal are equal for every input of the model; sizes that differ may still be equal.
Symbols that a model declares are trusted as the ONNX IR specification defines them: one name, one value in a graph.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.ops import DOMAIN

# One match may walk up this many nodes, and so deep; beyond that a dimension stays an atom. Keeps passes linear.
MAX_STEPS = 1500
MAX_DEPTH = 60
# Only shapes, axes and scalars are evaluated, never weights.
MAX_ELEMENTS = 64

# Torch's dynamo exporter names dimensions by expressions of its own symbols, such as 4*s21.
PRODUCT = re.compile(r"(\d+|[A-Za-z_]\w*)(\*(\d+|[A-Za-z_]\w*))+")

# Operators whose first output has the shape of their first input.
SAME_SHAPE = frozenset(
    "Abs BatchNormalization Cast CastLike Clip Cos Dropout Elu Erf Exp Floor Gelu GroupNormalization HardSigmoid "
    "HardSwish Identity InstanceNormalization IsInf IsNaN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization "
    "Mish Neg Not PRelu RMSNormalization Reciprocal Relu RotaryEmbedding Round Selu Sigmoid Sign "
    "SimplifiedLayerNormalization Sin Softmax Softplus Sqrt Swish Tanh Trilu QuantizeLinear DequantizeLinear".split()
)
# Operators whose outputs have the rank of the first input.
SAME_RANK = frozenset("Concat Conv CumSum GatherElements Pad ScatterElements Slice Split Tile".split())
# And operators of our own of which the same is true.
SAME_SHAPE_OWN = ("ScaleShift", "FusedGroupNorm", "FusedLayerNorm", "FusedRmsNorm")
BROADCASTING = frozenset(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor".split()
)


@dataclass(frozen=True)
class Size:
    """coefficient * product of atoms (sorted). An atom is a symbol or (id of a value, axis)."""

    coefficient: int
    atoms: tuple[str, ...] = ()

    @property
    def value(self) -> int | None:
        """The number, when it is one."""
        return None if self.atoms and self.coefficient else self.coefficient

    def __mul__(self, other: Size) -> Size:
        return Size(self.coefficient * other.coefficient, tuple(sorted(self.atoms + other.atoms)))

    def divided_by(self, other: Size) -> Size | None:
        """The exact quotient, or None when it is not one of sizes."""
        if other.coefficient == 0 or self.coefficient % other.coefficient:
            return None
        atoms = list(self.atoms)
        for atom in other.atoms:
            if atom not in atoms:
                return None
            atoms.remove(atom)
        return Size(self.coefficient // other.coefficient, tuple(atoms))


ONE = Size(1)


def keeps_shape(node: ir.Node) -> bool:
    """Whether the first output has the shape of the first input."""
    if node.domain == DOMAIN:
        return node.op_type.startswith(SAME_SHAPE_OWN)
    return node.domain == "" and node.op_type in SAME_SHAPE


def _is_convolution(node: ir.Node) -> bool:
    own = node.domain == DOMAIN and node.op_type.startswith("WinogradConv")
    return own or (node.domain == "" and node.op_type == "Conv")


Element = Size | float


def product(sizes: Sequence[Size]) -> Size:
    return math.prod(sizes, start=ONE)


@dataclass(frozen=True)
class Small:
    """A scalar (`rank` 0) or a vector of sizes and numbers."""

    rank: int
    elements: tuple[Element | None, ...]


@dataclass
class Shapes:
    """Answers questions about one model; keeps what it found until the model changes, so make a new one per match."""

    editor: Editor
    _dims: dict[tuple[ir.Value, int], Size] = field(default_factory=dict)
    _small: dict[ir.Value, Small | None] = field(default_factory=dict)
    _ranks: dict[ir.Value, int | None] = field(default_factory=dict)
    _steps: int = 0
    _depth: int = 0

    @property
    def _exhausted(self) -> bool:
        return self._steps > MAX_STEPS or self._depth > MAX_DEPTH

    def renew(self) -> Shapes:
        """The same knowledge with a fresh budget, for whoever asks about all values of a graph in order."""
        self._steps = 0
        return self

    # -- ranks and dimensions --------------------------------------------------------------------------------------

    def rank(self, value: ir.Value | None) -> int | None:
        """The rank, from the value's own shape or from what makes it."""
        if value is None:
            return None
        rank = self.editor.rank(value)
        if rank is not None:
            return rank
        if value not in self._ranks:
            self._ranks[value] = None
            node = value.producer()
            self._steps += 1
            self._depth += 1
            if node is not None and not self._exhausted and not any(a.is_ref() for a in node.attributes.values()):
                self._ranks[value] = self._rank_of_node(node, value)
            self._depth -= 1
        return self._ranks[value]

    def _rank_of_node(self, node: ir.Node, value: ir.Value) -> int | None:
        op = node.op_type
        first = node.inputs[0] if node.inputs else None
        if first is None or (value is not node.outputs[0] and op != "Split"):
            return None
        if keeps_shape(node):
            return self.rank(first)
        if node.domain != "":
            return None
        if op in SAME_RANK:
            return self.rank(first)
        second = node.inputs[1] if len(node.inputs) > 1 else None
        if op == "Transpose" and "perm" in node.attributes:
            return len(node.attributes["perm"].as_ints())
        if op == "Transpose":
            return self.rank(first)
        if op == "Reshape":
            return self._length(second)
        if op == "ConstantOfShape":
            return self._length(first)
        if op == "Expand":
            ranks = [self.rank(first), self._length(second)]
        elif op in BROADCASTING or op == "MatMul":
            ranks = [self.rank(v) for v in node.inputs if v is not None]
        elif op in ("Unsqueeze", "Squeeze", "Gather"):
            added = self._added_rank(node, second)
            known = self.rank(first)
            if known is None or added is None:
                return None
            return known - added if op == "Squeeze" else known + added
        elif op.startswith("Reduce"):
            kept = node.attributes["keepdims"].as_int() if "keepdims" in node.attributes else 1
            return self.rank(first) if kept else None
        elif op in ("Gemm", "Flatten"):
            return 2
        else:
            return None
        numbers = [r for r in ranks if r is not None]
        if len(numbers) < len(ranks) or (op == "MatMul" and min(numbers) < 2):
            return None
        return max(numbers)

    def _added_rank(self, node: ir.Node, second: ir.Value | None) -> int | None:
        if node.op_type == "Gather":
            indices = self.rank(second)
            return None if indices is None else indices - 1
        return len(node.attributes["axes"].as_ints()) if "axes" in node.attributes else self._length(second)

    def _length(self, vector: ir.Value | None) -> int | None:
        """How many elements a vector has."""
        small = self.small(vector)
        if small is not None:
            return len(small.elements)
        return self.dim(vector, 0).value if vector is not None and self.rank(vector) == 1 else None

    def dims(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Every dimension, or None when the rank is not known."""
        rank = self.rank(value)
        if value is None or rank is None:
            return None
        return tuple(self.dim(value, axis) for axis in range(rank))

    def dim(self, value: ir.Value, axis: int) -> Size:
        """One dimension; `axis` counts from the front. The value's rank must be known."""
        path: list[tuple[ir.Value, int]] = []
        key: tuple[ir.Value, int] | None = (value, axis)
        while key is not None and key not in self._dims:
            # A question that comes back to itself (never in a valid graph) finds the atom.
            self._dims[key] = self._atom(*key)
            path.append(key)
            # Long chains of nodes that keep dimensions are walked here and not by recursion.
            key = self._above(*key)
        if key is not None:
            found = self._dims[key]
        else:
            self._depth += 1
            found = self._dim(*path[-1])
            self._depth -= 1
        self._dims.update(dict.fromkeys(path, found))
        return found

    def declare(self, value: ir.Value, dims: Sequence[Size | None]) -> None:
        """What is known of a value that no node makes yet; None is a size that is not."""
        self._ranks[value] = len(dims)
        self._dims.update({(value, axis): size for axis, size in enumerate(dims) if size is not None})

    def _declared(self, value: ir.Value, axis: int) -> int | str | None:
        shape = self.editor.shape(value)
        return shape[axis] if shape is not None and axis < len(shape) else None

    def _atom(self, value: ir.Value, axis: int) -> Size:
        declared = self._declared(value, axis)
        if not isinstance(declared, str):
            return Size(1, (f"{id(value)}.{axis}",))
        if PRODUCT.fullmatch(declared):
            factors = declared.split("*")
            return product([Size(int(f)) if f.isdigit() else Size(1, (f,)) for f in factors])
        return Size(1, (declared,))

    def _node_of(self, value: ir.Value, axis: int) -> ir.Node | None:
        """The node that tells more of a dimension than the declared shape does."""
        declared = self._declared(value, axis)
        # Shape inference invents names for what it does not know; the node may tell more.
        if isinstance(declared, int) or (declared is not None and not declared.startswith("unk__")):
            return None
        node = value.producer()
        if node is None or self._exhausted or (value is not node.outputs[0] and node.op_type != "Split"):
            return None
        if any(a.is_ref() for a in node.attributes.values()):
            return None
        return node if node.domain == "" or keeps_shape(node) or _is_convolution(node) else None

    def _dim(self, value: ir.Value, axis: int) -> Size:
        declared = self._declared(value, axis)
        if isinstance(declared, int):
            return Size(declared)
        node = self._node_of(value, axis)
        self._steps += 1
        return (self._dim_of_node(node, value, axis) if node is not None else None) or self._atom(value, axis)

    def _above(self, value: ir.Value, axis: int) -> tuple[ir.Value, int] | None:
        """The input's dimension that a dimension of the output certainly is, where one look at the node tells."""
        node = self._node_of(value, axis)
        self._steps += 1
        if node is None:
            return None
        first = node.inputs[0] if node.inputs else None
        rank = self.rank(value)
        if first is None or rank is None:
            return None
        if keeps_shape(node):
            return (first, axis) if self.rank(first) == rank else None
        if node.op_type == "Transpose":
            perm = node.attributes.get("perm")
            if perm is not None and perm.is_ref():
                return None
            source = perm.as_ints()[axis] if perm is not None else rank - 1 - axis
            return (first, source) if self.rank(first) == rank else None
        if _is_convolution(node):
            return (first, axis) if self.rank(first) == rank and self._keeps_extent(node, axis, rank) else None
        if node.op_type == "MatMul" and axis == rank - 2:
            rank_first = self.rank(first)
            return (first, rank_first - 2) if rank_first is not None and rank_first >= 2 else None
        if node.op_type in BROADCASTING:
            behind = axis - rank
            large: dict[int | str | None, tuple[ir.Value, int]] = {}
            for operand in node.inputs:
                operand_rank = self.rank(operand)
                if operand is None or operand_rank is None:
                    return None
                if -behind <= operand_rank:
                    size = self._declared(operand, operand_rank + behind)
                    if size is None:
                        return None
                    if size != 1:
                        large.setdefault(size, (operand, operand_rank + behind))
            return next(iter(large.values())) if len(large) == 1 else None
        return None

    def _keeps_extent(self, node: ir.Node, axis: int, rank: int) -> bool:
        """Whether a convolution of stride 1 pads an axis by just what its kernel takes away."""
        if axis < 2 or any(a.is_ref() for a in node.attributes.values()):
            return axis == 0
        kernel = self._declared(node.inputs[1], axis) if node.inputs[1] is not None else None
        attributes = {n: node.attributes[n].as_ints() for n in ("pads", "strides", "dilations") if n in node.attributes}
        spatial = rank - 2
        ones = [1] * spatial
        if attributes.get("strides", ones)[axis - 2] != 1 or not isinstance(kernel, int):
            return False
        auto_pad = node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else "NOTSET"
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            return True
        pads = [0] * (2 * spatial) if auto_pad == "VALID" else attributes.get("pads", [0] * (2 * spatial))
        return pads[axis - 2] + pads[axis - 2 + spatial] == attributes.get("dilations", ones)[axis - 2] * (kernel - 1)

    def _dim_of_node(self, node: ir.Node, value: ir.Value, axis: int) -> Size | None:
        first = node.inputs[0] if node.inputs else None
        rank = self.rank(value)
        if first is None or rank is None:
            return None
        if node.op_type == "Reshape":
            resolved = self.reshaped(node)
            return None if resolved is None or axis >= len(resolved) else resolved[axis]
        if node.op_type in BROADCASTING:
            return self._broadcast([v for v in node.inputs if v is not None], axis - rank)
        if node.op_type == "MatMul":
            a, b = node.inputs[0], node.inputs[1]
            rank_a, rank_b = self.rank(a), self.rank(b)
            if a is None or b is None or rank_a is None or rank_b is None or min(rank_a, rank_b) < 2:
                return None
            if axis == rank - 1:
                return self.dim(b, rank_b - 1)
            return self._broadcast([a, b], axis - rank)
        if node.op_type == "Gemm":
            if axis == 0 and "transA" not in node.attributes:
                return self.dim(first, 0) if self.rank(first) == 2 else None
            return None
        if node.op_type == "Unsqueeze":
            axes = self._axes(node, rank)
            if axes is None:
                return None
            if axis in axes:
                return ONE
            return self.dim(first, axis - sum(a < axis for a in axes)) if self.rank(first) is not None else None
        if node.op_type == "Squeeze":
            rank_in = self.rank(first)
            axes = self._axes(node, rank_in) if rank_in is not None else None
            if axes is None or rank_in is None:
                return None
            return self.dim(first, [a for a in range(rank_in) if a not in axes][axis])
        if node.op_type == "Concat":
            along = node.attributes["axis"].as_int()
            if along % rank != axis:
                return self.dim(first, axis) if self.rank(first) == rank else None
            return None
        if node.op_type == "Gather":
            along = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            rank_data, rank_indices = self.rank(first), self.rank(node.inputs[1])
            if rank_data is None or rank_indices is None or node.inputs[1] is None:
                return None
            along %= rank_data
            if axis < along:
                return self.dim(first, axis)
            if axis < along + rank_indices:
                return self.dim(node.inputs[1], axis - along)
            return self.dim(first, axis - rank_indices + 1)
        if node.op_type == "Slice":
            named = self.small(node.inputs[3]) if len(node.inputs) > 3 else None
            numbers = [_whole(a) for a in named.elements] if named is not None else [None]
            sliced = [n % rank for n in numbers if n is not None]
            return self.dim(first, axis) if len(sliced) == len(numbers) and axis not in sliced else None
        if node.op_type == "Split":
            along = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            return self.dim(first, axis) if along % rank != axis else None
        if node.op_type.startswith("Reduce"):
            axes_of = self._axes(node, rank)
            return None if axes_of is None else ONE if axis in axes_of else self.dim(first, axis)
        if node.op_type == "Tile":
            repeats = self.small(node.inputs[1])
            if repeats is None or len(repeats.elements) != rank or self.rank(first) != rank:
                return None
            times = repeats.elements[axis]
            return self.dim(first, axis) * times if isinstance(times, Size) else None
        if node.op_type == "Expand":
            target = self.small(node.inputs[1])
            rank_in = self.rank(first)
            if target is None or rank_in is None:
                return None
            behind = axis - rank
            wanted = target.elements[behind] if -behind <= len(target.elements) else ONE
            have = self.dim(first, rank_in + behind) if -behind <= rank_in else ONE
            if have == ONE:
                return wanted if isinstance(wanted, Size) else None
            return have if have.value is not None or wanted in (have, ONE) else None
        return None

    def _broadcast(self, values: Sequence[ir.Value], behind: int) -> Size | None:
        """The dimension at `behind` (negative) of values broadcast together."""
        found: Size | None = None
        for value in values:
            rank = self.rank(value)
            if rank is None:
                return None
            size = self.dim(value, rank + behind) if -behind <= rank else ONE
            if size == ONE or size == found:
                continue
            if size.value is not None:
                return size
            if found is not None:
                return None
            found = size
        return found or ONE

    def reshaped(self, node: ir.Node) -> tuple[Size, ...] | None:
        """The dimensions that a Reshape makes, with 0 and -1 resolved; None when the rank is not known."""
        target = self.small(node.inputs[1]) if len(node.inputs) > 1 else None
        data = node.inputs[0]
        if target is None or data is None or target.rank != 1:
            return None
        allow_zero = node.attributes.get("allowzero")
        if allow_zero is not None and allow_zero.is_ref():
            return None
        keep_zero = allow_zero is not None and allow_zero.as_int() == 1
        source = self.dims(data)
        result: list[Size | None] = []
        inferred: int | None = None
        for i, element in enumerate(target.elements):
            if element == Size(-1):
                inferred = i
                result.append(None)
            elif element == Size(0) and not keep_zero:
                if source is None or i >= len(source):
                    return None
                result.append(source[i])
            elif isinstance(element, Size) and element.coefficient >= 0:
                result.append(element)
            else:
                result.append(Size(1, (f"{id(node)}.{i}",)))
        if inferred is not None:
            rest = product([r for r in result if r is not None])
            # 0 in the rest leaves -1 undefined; symbols are dimensions of data that is there.
            quotient = product(source).divided_by(rest) if source is not None else None
            result[inferred] = quotient or Size(1, (f"{id(node)}.{inferred}",))
        return tuple(r for r in result if r is not None)

    # -- small tensors -----------------------------------------------------------------------------------------

    def small(self, value: ir.Value | None) -> Small | None:
        """The elements of a scalar or vector that is constant or computed from shapes; None when it is neither."""
        if value is None:
            return None
        if value not in self._small:
            self._small[value] = None
            self._depth += 1
            self._small[value] = self._evaluate(value)
            self._depth -= 1
        return self._small[value]

    def number(self, value: ir.Value | None) -> float | None:
        """The number that a tensor of one element holds for every input of the model, or None."""
        constant = self.editor.scalar(value)
        if constant is not None:
            return constant
        small = self.small(value)
        if small is None or len(small.elements) != 1 or small.elements[0] is None:
            return None
        element = small.elements[0]
        return float(element) if isinstance(element, float) else _float(element)

    def _evaluate(self, value: ir.Value) -> Small | None:
        tensor = self.editor.tensor(value)
        if tensor is not None:
            return _constant(tensor)
        node = value.producer()
        self._steps += 1
        if node is None or node.domain != "" or self._exhausted or len(node.outputs) != 1:
            return None
        if any(a.is_ref() for a in node.attributes.values()):
            return None
        first = node.inputs[0] if node.inputs else None
        if node.op_type == "Shape":
            dims = self.dims(first)
            if dims is None:
                return None
            start = node.attributes["start"].as_int() if "start" in node.attributes else 0
            end = node.attributes["end"].as_int() if "end" in node.attributes else len(dims)
            return Small(1, dims[start:end])
        data = self.small(first)
        if data is None and node.op_type != "Where":
            return None
        return self._evaluate_node(node, data or Small(0, ()))

    def _evaluate_node(self, node: ir.Node, data: Small) -> Small | None:
        op = node.op_type
        if op == "Identity":
            return data
        if op == "Cast":
            to = ir.DataType(node.attributes["to"].as_int())
            if to in (ir.DataType.INT64, ir.DataType.INT32):
                whole = all(isinstance(e, Size) for e in data.elements)
                return data if whole else Small(data.rank, tuple(_integer(e) for e in data.elements))
            if to in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
                # Symbols stay sizes: they can be cast back (Shape -> float -> Floor -> int chains of tracers).
                return data
            return None
        if op in ("Sqrt", "Reciprocal", "Neg", "Floor", "Ceil"):
            return Small(data.rank, tuple(_unary(op, e) for e in data.elements))
        if op in ("Squeeze", "Unsqueeze", "Reshape"):
            rank = self.editor.rank(node.outputs[0])
            if rank is None:
                rank = {"Squeeze": 0, "Unsqueeze": 1}.get(op)
                if rank is None or (rank == 1) != (data.rank == 0):
                    return None
            if rank > 1 or (rank == 0 and len(data.elements) != 1):
                return None
            return Small(rank, data.elements)
        if op in ("Add", "Sub", "Mul", "Div", "Pow"):
            other = self.small(node.inputs[1])
            return None if other is None else _binary(op, data, other)
        if op == "Concat":
            parts = [self.small(v) for v in node.inputs]
            if any(p is None or p.rank != 1 for p in parts):
                return None
            return Small(1, tuple(e for p in parts if p is not None for e in p.elements))
        if op == "Gather":
            indices = self.small(node.inputs[1])
            if data.rank != 1 or indices is None or any(_whole(i) is None for i in indices.elements):
                return None
            picked = [int(_whole(i) or 0) for i in indices.elements]
            if any(not -len(data.elements) <= i < len(data.elements) for i in picked):
                return None
            return Small(indices.rank, tuple(data.elements[i] for i in picked))
        if op == "Slice":
            arguments = [self.small(v) for v in node.inputs[1:]]
            numbers: list[int] = []
            for argument in arguments:
                number = _whole(argument.elements[0]) if argument is not None and len(argument.elements) == 1 else None
                if number is None:
                    return None
                numbers.append(number)
            if data.rank != 1 or len(numbers) < 2 or (len(numbers) > 3 and numbers[3] != 1):
                return None
            return Small(1, data.elements[numbers[0] : numbers[1]])
        if op == "ConstantOfShape":
            count = _whole(data.elements[0]) if len(data.elements) == 1 else None
            fill = node.attributes["value"].as_tensor() if "value" in node.attributes else None
            if count is None or not 0 <= count <= MAX_ELEMENTS or fill is None:
                return None
            one = _constant(fill)
            return None if one is None else Small(1, one.elements * count)
        if op == "Where":
            return self._where(node)
        return None

    def _where(self, node: ir.Node) -> Small | None:
        """Where(Equal(a, constant), x, y) of vectors: how tracers write Expand's -1."""
        condition = node.inputs[0]
        equal = condition.producer() if condition is not None else None
        if equal is None or equal.op_type != "Equal":
            return None
        parts = [self.small(v) for v in (*equal.inputs, *node.inputs[1:])]
        size = max((len(p.elements) for p in parts if p is not None), default=0)
        columns: list[tuple[Element | None, ...]] = []
        for p in parts:
            if p is None or len(p.elements) not in (1, size):
                return None
            columns.append(p.elements * size if len(p.elements) == 1 else p.elements)
        chosen: list[Element | None] = []
        for a, b, x, y in zip(*columns):
            if a is not None and a == b:
                chosen.append(x)
            elif _differ(a, b):
                chosen.append(y)
            else:
                chosen.append(x if x == y else None)
        return Small(1, tuple(chosen))

    def _axes(self, node: ir.Node, rank: int) -> list[int] | None:
        """The axes of Squeeze or Unsqueeze, an attribute before opset 13."""
        if "axes" in node.attributes:
            return [a % rank for a in node.attributes["axes"].as_ints()]
        axes = self.small(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes is None:
            return None
        numbers = [_whole(a) for a in axes.elements]
        return None if None in numbers else [int(n or 0) % rank for n in numbers]


def _constant(tensor: ir.TensorProtocol) -> Small | None:
    if (
        tensor.size > MAX_ELEMENTS
        or len(tensor.shape) > 1
        or not (tensor.dtype.is_integer() or _is_float(tensor.dtype))
    ):
        return None
    array = tensor.numpy()
    if tensor.dtype.is_integer():
        return Small(array.ndim, tuple(Size(int(i)) for i in array.reshape(-1)))
    return Small(array.ndim, tuple(float(f) for f in array.reshape(-1).astype(np.float64)))


def _is_float(dtype: ir.DataType) -> bool:
    return dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def _whole(element: Element | None) -> int | None:
    return element.value if isinstance(element, Size) else None


def _float(element: Element | None) -> float | None:
    if isinstance(element, Size):
        return None if element.value is None else float(element.value)
    return element


def _integer(element: Element | None) -> Size | None:
    if isinstance(element, Size) or element is None:
        return element
    return Size(int(element)) if math.isfinite(element) else None


def _differ(a: Element | None, b: Element | None) -> bool:
    """True when the two are different for sure; a symbol is a dimension, so it is never negative."""
    known_a, known_b = _float(a), _float(b)
    if known_a is not None and known_b is not None:
        return known_a != known_b
    symbol, number = (a, known_b) if known_a is None else (b, known_a)
    return isinstance(symbol, Size) and symbol.coefficient > 0 and number is not None and number < 0


def _unary(op: str, element: Element | None) -> Element | None:
    if isinstance(element, Size) and op in ("Floor", "Ceil"):
        return element
    if isinstance(element, Size) and op == "Neg":
        return Size(-element.coefficient, element.atoms)
    number = _float(element)
    if number is None:
        return None
    if op == "Sqrt":
        return math.sqrt(number) if number >= 0 else None
    if op == "Reciprocal":
        return 1.0 / number if number else None
    if op == "Neg":
        return -number
    return float(math.floor(number) if op == "Floor" else math.ceil(number))


def _binary(op: str, a: Small, b: Small) -> Small | None:
    size = max(len(a.elements), len(b.elements))
    if any(len(s.elements) not in (1, size) for s in (a, b)):
        return None
    left = a.elements * size if len(a.elements) == 1 else a.elements
    right = b.elements * size if len(b.elements) == 1 else b.elements
    return Small(max(a.rank, b.rank), tuple(_arithmetic(op, x, y) for x, y in zip(left, right)))


def _arithmetic(op: str, x: Element | None, y: Element | None) -> Element | None:
    if isinstance(x, Size) and isinstance(y, Size):
        if op == "Mul":
            return x * y
        if op == "Div" and (exact := x.divided_by(y)) is not None:
            return exact
        if op in ("Add", "Sub") and x.atoms == y.atoms:
            sign = 1 if op == "Add" else -1
            return Size(x.coefficient + sign * y.coefficient, x.atoms)
        if op in ("Add", "Sub") and y == Size(0):
            return x
        if op in ("Div", "Pow", "Add", "Sub"):
            return None
    left, right = _float(x), _float(y)
    if left is None or right is None:
        return None
    if op == "Div":
        return left / right if right else None
    if op == "Pow":
        try:
            power = math.pow(left, right)
        except (OverflowError, ValueError):
            return None
        return power
    return {"Add": left + right, "Sub": left - right, "Mul": left * right}[op]
