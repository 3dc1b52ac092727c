"""Estimates the cost of running a model on inputs of given shapes: multiply-adds and peak memory.

The shape engine (`graph/shapes`) gives the dimensions of every value for the concrete shapes. A value with an unknown
dimension, such as the boxes behind a NonMaxSuppression, counts as large as the largest input of its node. A body of a
Loop counts `LOOP_TURNS` times, that of a Scan once for each slice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from graphopt.graph import traversal
from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import RECURRENT
from graphopt.graph.shapes.facts import MAX_ELEMENTS, MICROSOFT
from graphopt.graph.shapes.sizes import Size
from graphopt.inputs.declared import required_inputs
from graphopt.targets.target import Target

# What reading an element, writing one, and starting a node cost, in multiply-adds: about 0.3 ns, 0.8 ns and 5 us of a
# core.
PER_READ, PER_WRITTEN, PER_NODE = 12, 32, 200_000
LOOP_TURNS = 16
# Read no more of a large input than they write, and their indices.
CHOOSING, GATHERED = frozenset(("Gather", "GatherElements", "GatherND", "Shape", "Size", "Slice")), 2
# Bytes of an element of unknown type.
USUAL_BYTES = 4
PRODUCTS = frozenset(
    "DynamicQuantizeMatMul FusedMatMul MatMul MatMulInteger MatMulIntegerToFloat MatMulNBits QLinearMatMul".split()
)
# Attention -> the inputs that are its query, its key, and the keys that it keeps, counted from 0.
ATTENTION = {
    "Attention": (0, 1, 4),
    f"{MICROSOFT}.Attention": (0, 0, 4),
    f"{MICROSOFT}.DecoderMaskedMultiHeadAttention": (0, 1, 5),
    f"{MICROSOFT}.GroupQueryAttention": (0, 1, 3),
    f"{MICROSOFT}.MultiHeadAttention": (0, 1, 6),
}
# Memory limits of control groups, versions 2 and 1.
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """The cost of a run.

    Attributes:
        bytes: the peak of live tensors and workspace, weights not included.
        work: multiply-adds; memory traffic and node overhead converted to multiply-adds.
        outputs: bytes of the model's outputs.
    """

    bytes: int
    work: int
    outputs: int = 0


def installed_memory() -> int:
    """Bytes of memory that this process may use: of the machine, or of its control group where that is less."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in map(Path, LIMITS):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            sizes.append(int(text))
    return min(sizes)


class Estimator:
    """Estimates runs of one model.

    Args:
        model: functions inlined; weights that are not in the message do not matter.
        light: the same `without_weights`, where it is there; it loses the shapes of results.
    """

    def __init__(self, model: onnx.ModelProto, light: ir.Model | None = None) -> None:
        self._model = light or without_weights(model)
        for graph in traversal.with_subgraphs(self._model.graph):
            for node in graph:
                for value in node.outputs:
                    value.shape = None
        self._inputs = {value.name for value in required_inputs(model)}
        self._found: dict[tuple[tuple[str, Shape], ...], Cost] = {}

    def of(self, shapes: Mapping[str, Shape]) -> Cost:
        """The cost of inputs of these shapes, by name; other inputs keep their declared shapes."""
        key = tuple(sorted(shapes.items()))
        if key not in self._found:
            for value in self._model.graph.inputs:
                if value.name is not None and value.name in shapes:
                    value.shape = ir.Shape(shapes[value.name])
            walk = _Walk(Editor(self._model, Target("cpu")))
            cost = walk.cost(self._model.graph)
            given = sum(walk.bytes(v) for v in self._model.graph.inputs if v.name in self._inputs)
            self._found[key] = replace(cost, bytes=cost.bytes + given)
        return self._found[key]


def without_weights(model: onnx.ModelProto) -> ir.Model:
    """Returns a copy without weight data: larger initializers become inputs of the same shape."""
    given = model.graph
    named = {value.name for value in given.input}
    small = [t for t in given.initializer if not _is_large(t)]
    large = [(t.name, t.data_type, t.dims) for t in given.initializer if _is_large(t) and t.name not in named]
    large += [(t.values.name, t.values.data_type, t.dims) for t in given.sparse_initializer]
    inputs = [*given.input, *(onnx.helper.make_tensor_value_info(*declared) for declared in large)]
    graph = onnx.GraphProto(name=given.name, node=given.node, input=inputs, output=given.output, initializer=small)
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import, graph=graph)
    return ir.serde.deserialize_model(light)


def _is_large(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL or math.prod(tensor.dims) > MAX_ELEMENTS


@dataclass
class _Walk:
    """Walks the nodes of a graph in order and tracks the live tensors."""

    editor: Editor
    elements: dict[ir.Value, int] = field(default_factory=dict)

    def cost(self, graph: ir.Graph) -> Cost:
        last: dict[ir.Value, int] = {}
        for place, node in enumerate(graph):
            for inner in [
                node,
                *(n for body in traversal.bodies(node) for n in ir.traversal.RecursiveGraphIterator(body)),
            ]:
                last.update((value, place) for value in inner.inputs if value is not None)
        last.update(dict.fromkeys(graph.outputs, len(graph)))
        ends: dict[int, list[ir.Value]] = {}
        for value, place in last.items():
            if value.producer() is not None:
                ends.setdefault(place, []).append(value)
        work, live, peak = 0, 0, 0
        alive: dict[ir.Value, int] = {}
        for place, node in enumerate(graph):
            made, inside, more = self._node(node)
            work += made
            for value in node.outputs:
                alive[value] = self.bytes(value) if value in last else 0
                live += alive[value]
            peak = max(peak, live + inside)
            work += more
            live -= sum(alive.pop(value, 0) for value in ends.get(place, ()))
        return Cost(peak, work, sum(map(self.bytes, graph.outputs)))

    def _node(self, node: ir.Node) -> tuple[int, int, int]:
        """Returns the work of a node, its workspace in bytes, and the work of its bodies."""
        given = [self._count(value) for value in node.inputs if value is not None]
        if node.op_type in ("Resize", "Upsample"):
            self._resize(node)
        for value in node.outputs:
            self._measure(value, max(given, default=1))
        written = sum(map(self._count, node.outputs))
        moved = PER_READ * min(sum(given), written * GATHERED if node.op_type in CHOOSING else sum(given))
        work, inside = self._sums(node)
        turns = self._turns(node)
        bodies = [self.cost(body) for body in traversal.bodies(node)]
        inside += max((body.bytes for body in bodies), default=0)
        work += moved + PER_WRITTEN * written + PER_NODE
        return work, inside, turns * sum(body.work for body in bodies)

    def _resize(self, node: ir.Node) -> None:
        """Declares the output dimensions of a Resize: the shape engine ignores fractional scales."""
        first = self._shape(node.inputs[0])
        sizes, scales = (
            self.editor.shapes.elements(node.inputs[i]) if i < len(node.inputs) else None
            for i in (3, len(node.inputs) - 1)
        )
        if first and sizes is not None and (numbers := sizes.integers) is not None and len(numbers) == len(first):
            self.editor.shapes.declare(node.outputs[0], [Size.of(n) for n in numbers])
        elif first and scales is not None and scales.items.size == len(first):
            factors = [float(getattr(e, "value", e) or 0) for e in scales.items.flat]
            self.editor.shapes.declare(node.outputs[0], [Size.of(int(n * f)) for n, f in zip(first, factors)])

    def _turns(self, node: ir.Node) -> int:
        if node.op_type == "Loop":
            return LOOP_TURNS
        dims = self._shape(node.inputs[-1]) if node.op_type == "Scan" and node.inputs else None
        return dims[0] if dims else 1

    def _measure(self, value: ir.Value, fallback: int) -> None:
        dims = self.editor.shapes.dims(value)
        if dims is None:
            self.elements[value] = fallback
            return
        known = [size.value for size in dims]
        count = math.prod(n for n in known if n is not None)
        self.elements[value] = count if None not in known else max(count, fallback)

    def _count(self, value: ir.Value) -> int:
        if value not in self.elements:
            self._measure(value, 1)
        return self.elements[value]

    def bytes(self, value: ir.Value) -> int:
        """Returns the size of a value in bytes; elements of unknown type count `USUAL_BYTES`."""
        bits = value.dtype.bitwidth if value.dtype not in (None, ir.DataType.UNDEFINED, ir.DataType.STRING) else 0
        return self._count(value) * (bits // 8 or USUAL_BYTES)

    def _shape(self, value: ir.Value | None) -> Sequence[int] | None:
        """The dimensions of a value; None unless all are known."""
        dims = self.editor.shapes.dims(value)
        known = [size.value for size in dims] if dims is not None else [None]
        return None if None in known else [n for n in known if n is not None]

    def _sums(self, node: ir.Node) -> tuple[int, int]:
        """Returns the multiply-adds and the workspace in bytes of a node."""
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        first, second = (self._shape(node.inputs[i]) if i < len(node.inputs) else None for i in (0, 1))
        made = self._count(node.outputs[0]) if node.outputs else 0
        if name in ATTENTION and first:
            return self._attention(node, *ATTENTION[name])
        if node.op_type in RECURRENT and first and second:
            return 2 * math.prod(first[:-1]) * math.prod(second[1:]), 0
        if node.op_type in ("Conv", "ConvInteger", "QLinearConv"):
            weight = self._shape(node.inputs[3 if node.op_type == "QLinearConv" else 1])
            return made * math.prod(weight[1:]) if weight else 0, 0
        if node.op_type == "ConvTranspose" and first and second:
            columns = math.prod(first) * math.prod(second[1:])
            return columns, USUAL_BYTES * columns // max(first[1], 1)
        if node.op_type == "Gemm" and first:
            transposed = node.attributes.get("transA")
            return made * first[0 if transposed is not None and transposed.as_int() else -1], 0
        if node.op_type == "Einsum":
            return self._einsum(node), 0
        return (made * first[-1] if first and node.op_type in PRODUCTS else 0), 0

    def _attention(self, node: ir.Node, query: int, key: int, past: int) -> tuple[int, int]:
        """Returns multiply-adds and bytes of scores: Q K^T and P V, [batch, heads, queries, keys] each."""
        shapes = [self._shape(node.inputs[i]) if i < len(node.inputs) else None for i in (query, key, past)]
        q, k, kept = shapes[0], shapes[1] or shapes[0], shapes[2]
        if not q or not k or len(q) < 3:
            return 0, 0
        names = ("q_num_heads", "num_heads")
        heads = next((node.attributes[n].as_int() for n in names if n in node.attributes), q[1] if len(q) == 4 else 1)
        keys = k[-2] + (kept[-2] if kept and len(kept) >= 4 else 0)
        scores = q[0] * heads * q[-2] * keys
        width = q[-1] if len(q) == 4 else q[-1] // max(heads, 1)
        return 2 * scores * width, 2 * USUAL_BYTES * scores

    def _einsum(self, node: ir.Node) -> int:
        letters: dict[str, int] = {}
        operands = node.attributes["equation"].as_string().replace(" ", "").partition("->")[0].split(",")
        for names, value in zip(operands, node.inputs):
            letters.update(zip(names, self._shape(value) or ()))
        return math.prod(letters.values())
