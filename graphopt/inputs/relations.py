"""Derives the relations between the sizes of a model's inputs from its nodes.

The shape engine represents the dimensions of inputs as symbols. Nodes require that sizes are equal, for example in
broadcasting, along the summed axis of a MatMul, in Concat and in attention; these equations are solved for symbols. The
mask of an attention, for example, is as long as cached and new keys together, T = P + S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from graphopt.graph.cost import remove_result_shapes
from graphopt.graph.operators.traits import BROADCASTING, PAST_KEYS
from graphopt.graph.shapes.sizes import ONE, Floor, Size, total
from graphopt.graph.view import GraphView, attribute_int
from graphopt.inputs.declared import declared_size, deserialized, dims_of, required_inputs
from graphopt.ops.schema import NUMPY_BROADCASTING_OPSET
from graphopt.targets.target import Target

# Indices of GroupQueryAttention's inputs.
GQA_SEQLENS_K, GQA_TOTAL, GQA_BIAS = 5, 6, 10
# Operators through which `_source` follows a value back. _SAME keep its elements, _MOVES also move them, _COUNTS count.
_SAME = frozenset(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
_MOVES = _SAME | {"Transpose"}
_COUNTS = _SAME | {"Add", "ReduceSum", "Sub"}


@dataclass(frozen=True)
class Length:
    """An input that holds the numbers of keys of a GroupQueryAttention's sequences.

    Attributes:
        cached, new: sizes of the cache and of the new steps.
        is_last_index: whether it holds the index of the last key of each sequence, one less than the number of keys.
    """

    cached: Size
    new: Size
    is_last_index: bool

    def fill(
        self, shape: tuple[int, ...], sizes: Mapping[str, int], mask: str, rng: np.random.Generator
    ) -> npt.NDArray[Any]:
        """Returns the number of keys of each sequence, or the index of its last key if `is_last_index`.

        If `is_last_index` is set and `mask` names a kind of mask, all sequences but the first may be shorter.
        """
        cached, new = (size.evaluate(sizes) or 0 for size in (self.cached, self.new))
        array = np.full(shape, cached + new - self.is_last_index)
        if self.is_last_index and mask and array.size > 1:
            array.reshape(-1)[1:] = rng.integers(self.least(sizes), cached + new + 1, array.size - 1) - 1
        return array

    def least(self, sizes: Mapping[str, int]) -> int:
        """Returns the least number of keys of a sequence: the number of new keys if there are cached keys, else 1.

        With fewer keys ONNX Runtime's kernel reads outside of the cache, or does not terminate.
        """
        return (self.new.evaluate(sizes) or 1) if self.cached.evaluate(sizes) else 1

    def filled_up(self, mask: npt.NDArray[np.bool_], sizes: Mapping[str, int]) -> npt.NDArray[np.bool_]:
        """Shows hidden keys of each row of a mask, the first ones first, until the row has `least` keys."""
        rows = mask.reshape(-1, mask.shape[-1])
        for row in rows:
            missing = max(0, self.least(sizes) - int(row.sum()))
            row[np.flatnonzero(~row)[:missing]] = True
        return mask


@dataclass
class Relations:
    """Relations between the sizes of inputs.

    Attributes:
        sums: symbol -> its value as a sum of other symbols.
        cached: symbols of cached steps of a decoder.
        new: symbols of the steps that are appended to the cached ones.
        lengths: inputs that hold the number of keys, in total or of each sequence.
        counted: masks from which the model computes the number of keys of each sequence, by summing rows.
    """

    sums: dict[str, Size] = field(default_factory=dict)
    cached: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    lengths: dict[str, Length] = field(default_factory=dict)
    counted: dict[str, Length] = field(default_factory=dict)

    def completed(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Returns a copy of `sizes` in which each size that a relation determines is computed from the other sizes."""
        found = dict(sizes)
        for symbol, size in self.sums.items():
            number = size.evaluate(found)
            if number is not None and number >= 0:
                found[symbol] = number
        return found


def relations_of(message: onnx.ModelProto, free: Sequence[str], model: ir.Model | None = None) -> Relations:
    """Returns the relations between the sizes of a model's inputs.

    Args:
        message: the model with functions inlined.
        free: the symbols that may be chosen; of two related symbols, one that is never negative is determined by the
            other, or else the later one in this list.
        model: `deserialized(message)`, if the caller has it. The shapes of its results are removed.
    """
    return _Reader(message, model or deserialized(message)).read(list(free))


class _Reader:
    def __init__(self, message: onnx.ModelProto, model: ir.Model) -> None:
        self.graph = model.graph
        remove_result_shapes(self.graph)
        self.view = GraphView(model, Target("cpu"))
        self.shapes = self.view.shapes
        given = {value.name: value for value in required_inputs(message) if value.type.HasField("tensor_type")}
        for value in self.graph.inputs:
            if value.name in given:
                self.shapes.declare(value, list(map(declared_size, given[value.name].dims)))
        made = {value.name: dims_of(value) for value in message.graph.output}
        self.outputs = [(v, list(map(declared_size, made[str(v.name)]))) for v in self.graph.outputs]
        self.equations: list[Size] = []
        self.found = Relations()

    def read(self, free: list[str]) -> Relations:
        for node in self.graph:
            self._node(node)
        for value, sizes in self.outputs:
            dims = self.shapes.dims(value)
            for size, dim in zip(sizes, dims) if dims is not None and len(dims) == len(sizes) else ():
                # A symbol that occurs only in outputs has no relation to inputs.
                if all(symbol in free for symbols, _ in size.terms for symbol in symbols):
                    self._equate(size, dim)
        self._solve(free)
        symbols = set(free) - self.found.sums.keys()
        self.found.cached = [s for s in dict.fromkeys(self.found.cached) if s in symbols]
        self.found.new = [s for s in dict.fromkeys(self.found.new) if s in symbols and s not in self.found.cached]
        return self.found

    def _node(self, node: ir.Node) -> None:
        shapes = [self.shapes.dims(value) if value is not None else None for value in node.inputs]
        name = node.op_type
        if name in BROADCASTING and self.view.opset(node) >= NUMPY_BROADCASTING_OPSET:
            self._broadcast([s for s in shapes if s is not None])
        elif name == "MatMul" and shapes[0] and shapes[1]:
            a, b = shapes[0], shapes[1]
            self._equate(a[-1], b[-2] if len(b) > 1 else b[0])
            self._broadcast([a[:-2], b[:-2]])
        elif name == "Gemm" and shapes[0] and shapes[1] and len(shapes[0]) == len(shapes[1]) == 2:
            of_a, of_b = not attribute_int(node, "transA", 0), attribute_int(node, "transB", 0) != 0
            self._equate(shapes[0][of_a], shapes[1][of_b])
        elif name == "Concat":
            self._concat(node, [s for s in shapes if s is not None])
        elif name in ("Attention", "MultiHeadAttention") and shapes[0] and len(shapes) > 1:
            self._attention(node, shapes)
        elif name == "GroupQueryAttention" and shapes[0]:
            self._grouped(node, shapes)

    def _equate(self, a: Size, b: Size) -> None:
        if a != b:
            self.equations.append(b - a)

    def _broadcast(self, shapes: Sequence[Sequence[Size]]) -> None:
        """Equates the sizes of each axis, except sizes that are known to be 1."""
        for axis in range(1, max(map(len, shapes), default=0) + 1):
            sizes = [s[-axis] for s in shapes if len(s) >= axis and s[-axis] != ONE]
            for other in sizes[1:]:
                self._equate(sizes[0], other)

    def _concat(self, node: ir.Node, shapes: Sequence[Sequence[Size]]) -> None:
        if len({len(s) for s in shapes}) != 1 or len(shapes) != len(node.inputs):
            return
        along = attribute_int(node, "axis", 0) % max(len(shapes[0]), 1)
        for axis in range(len(shapes[0])):
            for other in shapes[1:] if axis != along else ():
                self._equate(shapes[0][axis], other[axis])
        sources = [self._source(value, _MOVES) for value in node.inputs]
        given = [i for i, v in enumerate(sources) if v is not None and (v.is_graph_input() or v.is_initializer())]
        # The first operand that is an input or initializer is the cache; the other operands are new steps.
        if len(shapes[0]) > 1 and given and (cached := _symbol(shapes[given[0]][along])):
            self._note_cache(cached, [s[along] for i, s in enumerate(shapes) if i != given[0]])

    def _note_cache(self, cached: str, others: Sequence[Size]) -> None:
        self.found.cached.append(cached)
        self.found.new += [
            symbol for size in others for symbols, _ in size.terms for symbol in symbols if symbol != cached
        ]

    def _attention(self, node: ir.Node, shapes: Sequence[tuple[Size, ...] | None]) -> None:
        """Relates the sizes of ONNX's Attention and the runtime's MultiHeadAttention."""
        if node.domain and node.op_type == "Attention":
            return
        places = (2, 5 if node.domain else 3, PAST_KEYS[node.op_type])
        v, mask, past = (shapes[i] if i < len(shapes) else None for i in places)
        q, k = shapes[0], shapes[1]
        if q is None or k is None or len(k) not in (3, 4) or len(q) not in (3, 4):
            return
        self._equate(q[0], k[0])
        if v is not None and len(v) == len(k):
            self._equate(k[-2], v[-2])
        keys = k[-2]
        if past is not None and len(past) == 4:
            self._past(node, q[0], k[-2])
            keys = past[-2] + k[-2]
        if mask:
            self._equate(mask[-1], keys)
            if len(mask) > 1 and mask[-2] != ONE:
                self._equate(mask[-2], q[-2])
            if len(mask) == 4 and mask[0] != ONE:
                self._equate(mask[0], q[0])
        padding = shapes[4] if node.domain and len(shapes) > 4 else None
        if padding and len(padding) == 2:
            self._equate(padding[0], q[0])
            self._equate(padding[1], keys)

    def _past(self, node: ir.Node, batch: Size, new: Size) -> None:
        """Relates the sizes of cached keys and values, [batch, heads, steps, channels]."""
        first = PAST_KEYS[node.op_type]
        found = [self.shapes.dims(value) for value in node.inputs[first : first + 2]]
        known = [dims for dims in found if dims is not None and len(dims) == 4]
        for dims in known:
            self._equate(batch, dims[0])
            self._equate(known[0][2], dims[2])
            if cached := _symbol(dims[2]):
                self._note_cache(cached, [new])

    def _grouped(self, node: ir.Node, shapes: Sequence[tuple[Size, ...] | None]) -> None:
        """Relates the sizes of a GroupQueryAttention, and finds the inputs with its lengths."""
        q = shapes[0]
        if q is None or len(q) != 3:
            return
        past, bias = (shapes[i] if i < len(shapes) else None for i in (PAST_KEYS[node.op_type], GQA_BIAS))
        seqlens_k, total_keys = (node.inputs[i] if i < len(node.inputs) else None for i in (GQA_SEQLENS_K, GQA_TOTAL))
        cached = past[2] if past is not None and len(past) == 4 else Size.of(0)
        self._past(node, q[0], q[1])
        for value, is_last_index in ((seqlens_k, True), (total_keys, False)):
            source = self._source(value)
            if source is not None and source.is_graph_input():
                self.found.lengths[str(source.name)] = Length(cached, q[1], is_last_index)
        if (source := self._source(seqlens_k, _COUNTS)) is not None and source.name not in self.found.lengths:
            self.found.counted[str(source.name)] = Length(cached, q[1], is_last_index=True)
        if dims := self.shapes.dims(seqlens_k):
            self._equate(dims[0], q[0])
        elements = self.shapes.elements(total_keys)
        if elements is not None and elements.items.size == 1 and isinstance(size := elements.items.item(), Size):
            self._equate(size, cached + q[1])
        if bias:
            self._equate(bias[-1], cached + q[1])

    def _source(self, value: ir.Value | None, through: frozenset[str] = _SAME) -> ir.Value | None:
        """Follows a value back through casts, reshapes or the given operators to its source."""
        while value is not None and (node := value.producer()) is not None:
            if node.op_type not in through:
                return None
            value = node.inputs[0]
        return value

    def _solve(self, free: list[str]) -> None:
        waiting = list(self.equations)
        while waiting:
            equation = waiting.pop(0)
            found = _solved(equation, free)
            if found is None:
                continue
            symbol, size = found
            free.remove(symbol)
            self.found.sums = {s: _replaced(other, symbol, size) for s, other in self.found.sums.items()}
            self.found.sums[symbol] = size
            waiting = [_replaced(other, symbol, size) for other in waiting]


def _solved(equation: Size, free: Sequence[str]) -> tuple[str, Size] | None:
    """Solves equation = 0 for a free symbol: (symbol, value), or None."""
    symbols = [symbol for terms, _ in equation.terms for symbol in terms]
    if any(symbol.startswith("?") for symbol in symbols):
        return None
    choices = []
    for terms, coefficient in equation.terms:
        if len(terms) == 1 and abs(coefficient) == 1 and terms[0] in free and _appears(terms[0], equation) == 1:
            alone = Size(((terms, coefficient),))
            size = alone - equation if coefficient == 1 else equation - alone
            # A sum of sizes is always a valid size; a difference may be negative.
            choices.append((size.never_negative, free.index(terms[0]), terms[0], size))
    if not choices:
        return None
    never_negative, _, symbol, size = max(choices, key=lambda c: c[:2])
    return (symbol, size) if never_negative or size.terms else None


def _appears(symbol: str, size: Size) -> int:
    """Returns the number of terms with a symbol, also inside floor divisions."""
    return sum(
        any(s == symbol or (isinstance(s, Floor) and _appears(symbol, s.inside)) for s in symbols)
        for symbols, _ in size.terms
    )


def _replaced(size: Size, symbol: str, by: Size) -> Size:
    """Returns the size with a symbol replaced by a size."""
    return total(
        math.prod((by if s == symbol else Size.symbol(s) for s in symbols), start=Size.of(coefficient))
        for symbols, coefficient in size.terms
    )


def _symbol(size: Size) -> str | None:
    """Returns the symbol that a size consists of, or None."""
    if len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1:
        return size.terms[0][0][0]
    return None
