"""Estimates the cost of running a model on inputs of given shapes: multiply-adds and peak memory.

The shape engine (`graph/shapes`) computes the dimensions of every value from the shapes of the inputs. A value with an
unknown dimension, such as the boxes after a NonMaxSuppression, is assumed to be as large as the largest input of its
node. The body of a Loop counts `LOOP_ITERATIONS` times, the body of a Scan once for each slice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from graphopt.graph.operators.traits import PAST_KEYS, RECURRENT
from graphopt.graph.shapes.facts import MICROSOFT
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.traversal import bodies, with_subgraphs
from graphopt.graph.view import GraphView, attribute_int, attribute_string
from graphopt.targets.target import Target

# The cost of reading an element, of writing one and of starting a node, in multiply-adds: about 0.3 ns, 0.8 ns and 5 us
# of a core.
PER_READ, PER_WRITTEN, PER_NODE = 12, 32, 200_000
LOOP_ITERATIONS = 16
# Operators that read only part of a large input: READS_PER_WRITTEN elements (data and index) for each written element.
PARTIAL_READERS, READS_PER_WRITTEN = frozenset(("Gather", "GatherElements", "GatherND", "Shape", "Size", "Slice")), 2
# Bytes of an element of unknown type, of a string, and of an element with fewer than 8 bits.
DEFAULT_ELEMENT_BYTES = 4
MATMULS = frozenset(
    "DynamicQuantizeMatMul FusedMatMul MatMul MatMulInteger MatMulIntegerToFloat MatMulNBits QLinearMatMul".split()
)
# Memory limits of control groups, versions 2 and 1.
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """The cost of a run.

    Attributes:
        bytes: the peak of live tensors and workspace, weights not included.
        work: multiply-adds, including memory traffic and node overhead converted to multiply-adds.
        outputs: bytes of the model's outputs.
    """

    bytes: int
    work: int
    outputs: int = 0


def installed_memory() -> int:
    """Returns the bytes of memory that this process may use: the machine's, or the limit of its control group."""
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
        model: the model, with inlined functions; its weights need no data. The estimator changes its shapes.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        remove_result_shapes(model.graph)
        self._found: dict[tuple[tuple[str, Shape], ...], Cost] = {}

    def of(self, shapes: Mapping[str, Shape]) -> Cost:
        """Returns the cost of a run. `shapes` maps input names to shapes; other inputs keep their declared shapes."""
        key = tuple(sorted(shapes.items()))
        if key not in self._found:
            inputs = self._model.graph.inputs
            for value in inputs:
                if (shape := shapes.get(str(value.name))) is not None:
                    value.shape = ir.Shape(shape)
            walk = _GraphCost(GraphView(self._model, Target("cpu")))
            cost = walk.cost(self._model.graph)
            given = sum(walk.bytes(value) for value in inputs if not value.is_initializer())
            self._found[key] = replace(cost, bytes=cost.bytes + given)
        return self._found[key]


def remove_result_shapes(graph: ir.Graph) -> None:
    """Removes the declared shapes of node outputs, also in bodies: they may be valid only for the declared inputs."""
    for inner in with_subgraphs(graph):
        for node in inner:
            for value in node.outputs:
                value.shape = None


@dataclass
class _GraphCost:
    """Adds up the cost of a graph's nodes in order and tracks the live tensors."""

    view: GraphView
    elements: dict[ir.Value, int] = field(default_factory=dict)

    def cost(self, graph: ir.Graph) -> Cost:
        last: dict[ir.Value, int] = {}
        for position, node in enumerate(graph):
            inside = (n for body in bodies(node) for graph in with_subgraphs(body) for n in graph)
            for reader in (node, *inside):
                last.update((value, position) for value in reader.inputs if value is not None)
        last.update(dict.fromkeys(graph.outputs, len(graph)))
        last_uses: dict[int, list[ir.Value]] = {}
        for value, position in last.items():
            if value.producer() is not None:
                last_uses.setdefault(position, []).append(value)
        work, live, peak = 0, 0, 0
        alive: dict[ir.Value, int] = {}
        for position, node in enumerate(graph):
            own, workspace = self._node(node)
            work += own
            for value in node.outputs:
                alive[value] = self.bytes(value) if value in last else 0
                live += alive[value]
            peak = max(peak, live + workspace)
            live -= sum(alive.pop(value, 0) for value in last_uses.get(position, ()))
        return Cost(peak, work, sum(map(self.bytes, graph.outputs)))

    def _node(self, node: ir.Node) -> tuple[int, int]:
        """Returns the work of a node and its bodies, and the workspace in bytes."""
        given = [self._count(value) for value in node.inputs if value is not None]
        if node.op_type in ("Resize", "Upsample"):
            self._resize(node)
        for value in node.outputs:
            self._measure(value, max(given, default=1))
        written = sum(map(self._count, node.outputs))
        reads = sum(given)
        if node.op_type in PARTIAL_READERS:
            reads = min(reads, written * READS_PER_WRITTEN)
        work, workspace = self._multiply_adds(node)
        inner = [self.cost(body) for body in bodies(node)]
        work += (
            PER_READ * reads
            + PER_WRITTEN * written
            + PER_NODE
            + self._trip_count(node) * sum(cost.work for cost in inner)
        )
        return work, workspace + max((cost.bytes for cost in inner), default=0)

    def _resize(self, node: ir.Node) -> None:
        """Declares the output dimensions of a Resize; the shape engine infers only its rank."""
        first = self._shape(node.inputs[0])
        sizes, scales = (
            self.view.shapes.elements(node.inputs[i]) if i < len(node.inputs) else None
            for i in (3, len(node.inputs) - 1)
        )
        if first and sizes is not None and (numbers := sizes.integers) is not None and len(numbers) == len(first):
            self.view.shapes.declare(node.outputs[0], [Size.of(n) for n in numbers])
        elif first and scales is not None and scales.items.size == len(first):
            factors = [float(getattr(e, "value", e) or 0) for e in scales.items.flat]
            self.view.shapes.declare(node.outputs[0], [Size.of(int(n * f)) for n, f in zip(first, factors)])

    def _trip_count(self, node: ir.Node) -> int:
        if node.op_type == "Loop":
            return LOOP_ITERATIONS
        dims = self._shape(node.inputs[-1]) if node.op_type == "Scan" and node.inputs else None
        return dims[0] if dims else 1

    def _measure(self, value: ir.Value, fallback: int) -> None:
        dims = self.view.shapes.dims(value)
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
        """Returns the size of a value in bytes; see `DEFAULT_ELEMENT_BYTES`."""
        bits = value.dtype.bitwidth if value.dtype not in (None, ir.DataType.UNDEFINED, ir.DataType.STRING) else 0
        return self._count(value) * (bits // 8 or DEFAULT_ELEMENT_BYTES)

    def _shape(self, value: ir.Value | None) -> Sequence[int] | None:
        """Returns the dimensions of a value; None unless all are known."""
        dims = self.view.shapes.dims(value)
        known = [size.value for size in dims] if dims is not None else [None]
        return None if None in known else [n for n in known if n is not None]

    def _multiply_adds(self, node: ir.Node) -> tuple[int, int]:
        """Returns the multiply-adds and the workspace in bytes of a node."""
        first, second = (self._shape(node.inputs[i]) if i < len(node.inputs) else None for i in (0, 1))
        made = self._count(node.outputs[0]) if node.outputs else 0
        if node.op_type in PAST_KEYS and node.domain in ("", MICROSOFT) and first:
            return self._attention(node)
        if node.op_type in RECURRENT and first and second:
            return 2 * math.prod(first[:-1]) * math.prod(second[1:]), 0
        if node.op_type in ("Conv", "ConvInteger", "QLinearConv"):
            weight = self._shape(node.inputs[3 if node.op_type == "QLinearConv" else 1])
            return made * math.prod(weight[1:]) if weight else 0, 0
        if node.op_type == "ConvTranspose" and first and second:
            columns = math.prod(first) * math.prod(second[1:])
            return columns, DEFAULT_ELEMENT_BYTES * columns // max(first[1], 1)
        if node.op_type == "Gemm" and first:
            return made * first[0 if attribute_int(node, "transA", 0) else -1], 0
        if node.op_type == "Einsum":
            return self._einsum(node), 0
        return (made * first[-1] if first and node.op_type in MATMULS else 0), 0

    def _attention(self, node: ir.Node) -> tuple[int, int]:
        """Returns the multiply-adds of Q K^T and P V, and the bytes of the scores Q K^T and the probabilities P.

        Scores and probabilities have the shape [batch, heads, queries, keys].
        """
        # com.microsoft.Attention computes Q, K and V from its first input.
        key = 0 if node.domain and node.op_type == "Attention" else 1
        indices = (0, key, PAST_KEYS[node.op_type])
        shapes = [self._shape(node.inputs[i]) if i < len(node.inputs) else None for i in indices]
        q, k, kept = shapes[0], shapes[1] or shapes[0], shapes[2]
        if not q or not k or len(q) < 3:
            return 0, 0
        heads = attribute_int(node, "q_num_heads", attribute_int(node, "num_heads", q[1] if len(q) == 4 else 1))
        keys = k[-2] + (kept[-2] if kept and len(kept) >= 4 else 0)
        scores = q[0] * heads * q[-2] * keys
        width = q[-1] if len(q) == 4 else q[-1] // max(heads, 1)
        return 2 * scores * width, 2 * DEFAULT_ELEMENT_BYTES * scores

    def _einsum(self, node: ir.Node) -> int:
        letters: dict[str, int] = {}
        operands = attribute_string(node, "equation", "").replace(" ", "").partition("->")[0].split(",")
        for names, value in zip(operands, node.inputs):
            shape = self._shape(value) or ()
            before, dots, after = names.partition("...")
            letters.update(zip(before, shape))
            if dots:  # the axes of "..." are counted from its last one
                covered = shape[len(before) : len(shape) - len(after)]
                letters.update((f"...{i}", size) for i, size in enumerate(reversed(covered)))
                letters.update(zip(reversed(after), reversed(shape)))
        return math.prod(letters.values())
