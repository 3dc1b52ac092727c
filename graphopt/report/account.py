"""Accounts for every node of a model: its multiply-adds and bytes, its rewrites, and the reasons for refusals.

Every node is in one group. Similar nodes with names that differ only in numbers, as in repeated layers, form one group.
The groups are sorted by their result (the order of `Status`), and then by their share of the model.
"""

from __future__ import annotations

import enum
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

import graphopt
from graphopt.debug.diff import Neighbourhood, neighbourhoods
from graphopt.graph import inference, reading, traversal
from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import ARITHMETIC, LINEAR
from graphopt.graph.view import attribute_ints, attribute_string
from graphopt.inputs.declared import size_of, symbols, unnamed
from graphopt.ops import DOMAIN
from graphopt.passes import Pass
from graphopt.passes.plugins import installed
from graphopt.remarks import Code, Refusal, Remark, node_label
from graphopt.report.data import Report
from graphopt.report.layers import grouped
from graphopt.report.multiply_adds import multiply_adds
from graphopt.report.text import operators
from graphopt.targets.target import Target, TargetName

# Operators that process no elements: they return their input with another shape, a shape or a constant.
_VIEWS = frozenset("Constant Flatten Identity Reshape Shape Size Squeeze Unsqueeze".split())
_MOVES = frozenset(
    "Concat DepthToSpace Expand Gather GatherElements GatherND Pad Resize ScatterElements ScatterND Slice SpaceToDepth "
    "Split Tile Transpose Upsample".split()
)
_WINDOWS = frozenset("AveragePool Conv ConvInteger LpPool MaxPool".split())
# How often the default sizes of images and lengths are doubled if a kernel is larger than its input.
MAX_DOUBLINGS = 8
# The name of a node or value in the detail of a remark, if it contains a digit. Sizes begin with a digit, names do not.
_NAME = re.compile(r"[A-Za-z/][\w./:]*\d[\w./:]*")
# Sizes and estimated times in the detail of a candidate that would not be faster.
_NUMBER = re.compile(r"\b\d[\dx.]*|\?")
_ACTIVATIONS = frozenset(
    "Celu Clip Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Sigmoid Softplus Softsign Swish "
    "Tanh".split()
)


class Status(enum.Enum):
    """Result of a group, in the order of usefulness to the user."""

    COULD_GAIN = "refused, with a remedy"
    NO_GAIN = "legal, but not faster here"
    REFUSED = "refused, without a remedy"
    LEFT = "no pass rewrites it"
    REWRITTEN = "rewritten"


@dataclass(frozen=True)
class Subgraph:
    """A node, or several nodes that were rewritten together.

    Attributes:
        operators: their operators, "Conv, BatchNormalization, Relu".
        into: the operators that replace them; "" if none do.
        labels: labels of the nodes.
        multiply_adds: multiply-adds in one run.
        bytes: bytes of inputs, weights and outputs in one run.
        status: its result.
        remarks: remarks of passes.
        reason: why no pass rewrites it; "" if there are remarks.
    """

    operators: str
    into: str
    labels: tuple[str, ...]
    multiply_adds: int
    bytes: int
    status: Status
    remarks: tuple[Remark, ...]
    reason: str = ""

    @property
    def kind(self) -> tuple[Any, ...]:
        """The key that all subgraphs of a group share."""
        remarks = ((r.pass_name, r.code, _without_names(r)) for r in self.remarks)
        return self.status, self.operators, self.into, tuple(dict.fromkeys(remarks)), self.reason


def _without_names(remark: Remark) -> str:
    """Returns the detail of a refusal without names, and without numbers if the candidate would not be faster."""
    if remark.applied:
        return ""
    text = _NAME.sub("", remark.detail)
    return _NUMBER.sub("", text) if remark.code == Code.NO_GAIN.name else text


@dataclass(frozen=True)
class AccountGroup:
    """Similar subgraphs, usually one in each of several layers.

    Attributes:
        where: one pattern for their names.
        places: the number of layers or places, " in 12 layers"; "" for a single subgraph.
        multiply_adds, bytes: sums over all subgraphs in one run.
        share, byte_share: shares of the model's multiply-adds and bytes, from 0 to 1.
    """

    subgraphs: tuple[Subgraph, ...]
    where: str
    places: str
    multiply_adds: int
    bytes: int
    share: float
    byte_share: float

    @property
    def first(self) -> Subgraph:
        return self.subgraphs[0]

    @property
    def cost(self) -> float:
        """The larger of the two shares: an upper bound of a rewrite's effect."""
        return max(self.share, self.byte_share)


@dataclass
class Account:
    """Account of a whole model.

    Attributes:
        groups: all groups, by result (the order of `Status`), then by `cost`.
        multiply_adds, bytes: totals of one run at `sizes`.
        sizes: symbolic dimension -> size.
        unknown: number of nodes with an unknown size; they count as 0.
        elsewhere: refusals at nodes that passes created and removed again.
        report: result of `optimize`.
    """

    groups: list[AccountGroup] = field(default_factory=list)
    multiply_adds: int = 0
    bytes: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    elsewhere: list[Remark] = field(default_factory=list)
    report: Report = field(default_factory=lambda: Report(""))

    def share_of(self, status: Status) -> tuple[float, float]:
        """Returns the shares of multiply-adds and of bytes of all groups with this result."""
        members = [g for g in self.groups if g.first.status == status]
        return sum(g.share for g in members), sum(g.byte_share for g in members)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": 1,
            "target": self.report.target,
            "sizes": self.sizes,
            "multiply_adds": self.multiply_adds,
            "bytes": self.bytes,
            "unknown_nodes": self.unknown,
            "elsewhere": [r.to_dict() for r in self.elsewhere],
            "groups": [
                {
                    "status": g.first.status.name.lower(),
                    "operators": g.first.operators,
                    "into": g.first.into,
                    "where": g.where,
                    "subgraphs": [list(s.labels) for s in g.subgraphs],
                    "multiply_adds": g.multiply_adds,
                    "bytes": g.bytes,
                    "share": g.share,
                    "byte_share": g.byte_share,
                    "remarks": [r.to_dict() for s in g.subgraphs for r in s.remarks],
                    "reason": g.first.reason,
                }
                for g in self.groups
            ],
        }


def account(
    model: Any,
    *,
    target: TargetName | str = "auto",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    ignore_cost_model: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Account:
    """Optimizes a copy of a model, and returns the share and the result of each node.

    Args:
        model: the model, in any form that `optimize` accepts; it is not changed.
        target: as for `optimize`.
        only: as for `optimize`.
        skip: as for `optimize`.
        input_shapes: as for `optimize`.
        sizes: symbolic dimension -> size, as for `side`.
        ignore_cost_model: as for `optimize`.
        progress: as for `optimize`.

    Raises:
        ModelLoadError: the model cannot be read.
        OptionError: an unknown pass, target, input or dimension.
    """
    if progress is not None:
        progress("analyzing the original model")
    before = side(model, input_shapes=input_shapes, sizes=sizes)
    after, report = graphopt.optimize(
        reading.load(model).model,
        target=target,
        only=only,
        skip=skip,
        input_shapes=input_shapes,
        ignore_cost_model=ignore_cost_model,
        progress=progress,
    )
    found = Account(report=report, sizes=before.sizes)
    nodes = {n.outputs[0].name or "": n for n in before.nodes if n.outputs}
    subgraphs = list(_subgraphs(nodes, neighbourhoods(before.model, after), report))
    found.multiply_adds, found.bytes = (sum(getattr(s, a) for s in subgraphs) for a in ("multiply_adds", "bytes"))
    found.unknown = sum(_bytes(n) is None for n in nodes.values())
    for group in grouped(subgraphs, kind=lambda s: s.kind, name=lambda s: s.labels[-1]):
        adds, bytes_ = (sum(getattr(s, a) for s in group.members) for a in ("multiply_adds", "bytes"))
        shares = adds / max(found.multiply_adds, 1), bytes_ / max(found.bytes, 1)
        found.groups.append(AccountGroup(group.members, group.where, group.places, adds, bytes_, *shares))
    shown = {r for s in subgraphs for r in s.remarks}
    found.elsewhere = [r for r in dict.fromkeys(report.remarks) if not r.applied and r not in shown]
    order = list(Status)
    found.groups.sort(key=lambda g: (order.index(g.first.status), -g.cost))
    return found


@dataclass
class Side:
    """A model with the shapes of its values for given sizes of its symbolic dimensions.

    Attributes:
        model: the model.
        nodes: nodes of all its graphs in order, without the function bodies of our operators.
        sizes: symbolic dimension -> size.
    """

    model: ir.Model
    nodes: list[ir.Node]
    sizes: dict[str, int]

    def bytes_of(self, node: ir.Node) -> int | None:
        """Returns the bytes that a node reads and writes in one run; None if a size is unknown."""
        return _bytes(node)


def side(
    model: Any, *, input_shapes: Mapping[str, Sequence[int]] | None = None, sizes: Mapping[str, int] | None = None
) -> Side:
    """Reads a model and infers its shapes.

    Args:
        model: the model, in any form that `optimize` accepts.
        input_shapes: as for `optimize`.
        sizes: symbolic dimension -> size; others have the defaults of `bench`, doubled if a kernel exceeds its input.

    Raises:
        ModelLoadError: the model cannot be read.
        OptionError: an unknown input or dimension.
    """
    from graphopt.measure.bench import size_grid

    source = reading.load(model)
    loaded = source.model
    inference.set_input_shapes(loaded, input_shapes or {})
    proto = source.proto if source.proto is not None else ir.to_proto(loaded)
    interface, given = _with_shapes(proto, loaded), sizes or {}
    grid = size_grid(interface, {s: [n] for s, n in given.items()}, ())[0]
    free = [s for s, role in symbols(interface).items() if role != "batch" and s not in given]
    declared = [value.shape for value in loaded.graph.inputs]
    for doublings in range(MAX_DOUBLINGS + 1 if free else 1):
        bound = {s: n << doublings if s in free else n for s, n in grid.items()}
        inference.forget(loaded)
        for value, shape in zip(loaded.graph.inputs, declared, strict=True):
            value.shape = shape
        _bind(loaded, bound)
        inference.infer(loaded)
        if not any(_exceeds_input(node) for node in traversal.own_nodes(loaded)):
            break
    _set_shapes(loaded)
    if any(_is_unknown(value) for node in traversal.own_nodes(loaded) for value in node.outputs):
        _set_folded_shapes(loaded)
    return Side(loaded, list(traversal.own_nodes(loaded)), bound)


def _exceeds_input(node: ir.Node) -> bool:
    """Returns whether the kernel of a convolution or a pooling is larger than its padded input."""
    shapes = [None if value is None else value.shape for value in node.inputs[:2]]
    if node.op_type not in _WINDOWS or not shapes or shapes[0] is None:
        return False
    data, weight = shapes[0], shapes[1] if len(shapes) > 1 else None
    try:
        own = weight.numpy()[2:] if weight is not None and weight.is_static() else ()
        kernel = attribute_ints(node, "kernel_shape", own)
        pads = attribute_ints(node, "pads", (0,) * 2 * len(kernel))
        dilations = attribute_ints(node, "dilations", (1,) * len(kernel))
        if "SAME" in attribute_string(node, "auto_pad", "NOTSET"):
            return False
    except Refusal:  # an attribute of another type
        return False
    padding = [before + after for before, after in zip(pads, pads[len(kernel) :])]
    axes = zip(data[2:], padding, kernel, dilations)
    return any(isinstance(dim, int) and dim + pad < (k - 1) * step + 1 for dim, pad, k, step in axes)


def _with_shapes(proto: onnx.ModelProto, model: ir.Model) -> onnx.ModelProto:
    """Returns a model that has only the inputs, with their current shapes, and the names of the initializers."""
    interface = onnx.ModelProto()
    interface.graph.initializer.extend(onnx.TensorProto(name=t.name) for t in proto.graph.initializer)
    interface.graph.input.extend(ir.serde.serialize_value(v) for v in model.graph.inputs)
    return interface


def _bind(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Replaces symbolic dimensions of the inputs by sizes."""
    for value in model.graph.inputs:
        if value.shape is None:
            continue
        dims: list[int | str | None] = []
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, int):
                dims.append(dim)
                continue
            size = size_of(dim.value or unnamed(value.name, axis), sizes)
            dims.append(dim.value if size is None else size)
        value.shape = ir.Shape(dims)


def _set_shapes(model: ir.Model) -> None:
    """Sets shapes that depend on shape arithmetic, which onnx's inference does not evaluate."""
    shapes = Editor(model, Target("portable")).shapes
    for node in traversal.own_nodes(model):
        for value in node.outputs:
            if _is_unknown(value):
                dims = shapes.dims(value)
                known = [d.value for d in dims or () if d.value is not None]
                if dims is not None and len(known) == len(dims):
                    value.shape = ir.Shape(known)


def _set_folded_shapes(model: ir.Model) -> None:
    """Sets shapes that depend on folded constants, for instance paddings that the exporter computes by nodes."""
    folded, _ = graphopt.optimize(model.clone(), target="portable", only=("clean_up",))
    inference.infer(folded)
    _set_shapes(folded)
    found: dict[str, ir.Shape | None] = {}
    for node in traversal.own_nodes(folded):
        for value in node.outputs:
            if value.name and not _is_unknown(value):
                same = value.name not in found or found[value.name] == value.shape  # branches may share a name
                found[value.name] = value.shape if same else None
    for node in traversal.own_nodes(model):
        for value in node.outputs:
            if _is_unknown(value) and (shape := found.get(value.name or "")) is not None:
                value.shape = shape.copy()


def _is_unknown(value: ir.Value) -> bool:
    return value.shape is None or not value.shape.is_static()


def _subgraphs(nodes: Mapping[str, ir.Node], changed: Iterable[Neighbourhood], report: Report) -> Iterable[Subgraph]:
    remarks_at: dict[str, list[Remark]] = defaultdict(list)
    for remark in report.remarks:
        for label in remark.nodes[:1]:
            remarks_at[label].append(remark)
    rewritten = set()
    for region in changed:
        old = [nodes[n.outputs[0]] for n in region.removed if n.outputs and n.outputs[0] in nodes]
        if not old:
            continue
        rewritten.update(old)
        labels = dict.fromkeys(n.label for n in (*region.removed, *region.added))
        remarks = tuple(r for label in labels for r in remarks_at[label])
        into = operators(n.op_type for n in region.added)
        yield _subgraph(old, into, _status(remarks, changed=True), remarks)
    for node in nodes.values():
        if node in rewritten:
            continue
        remarks = tuple(remarks_at[node_label(node)])
        yield _subgraph([node], "", _status(remarks, changed=False), remarks, "" if remarks else _why_left(node))


def _subgraph(
    nodes: Sequence[ir.Node], into: str, status: Status, remarks: tuple[Remark, ...], reason: str = ""
) -> Subgraph:
    adds = sum(multiply_adds(n) or 0 for n in nodes)
    bytes_ = sum(_bytes(n) or 0 for n in nodes)  # counts values between the nodes twice: written and read
    labels = tuple(node_label(n) for n in nodes)
    return Subgraph(operators(n.op_type for n in nodes), into, labels, adds, bytes_, status, remarks, reason)


def _status(remarks: Iterable[Remark], *, changed: bool) -> Status:
    refused = [Code[r.code] for r in remarks if not r.applied]
    if any(code != Code.NO_GAIN and not code.advice.startswith("nothing") for code in refused):
        return Status.COULD_GAIN
    if Code.NO_GAIN in refused:
        return Status.NO_GAIN
    if changed:
        return Status.REWRITTEN
    return Status.REFUSED if refused else Status.LEFT


def _is_bias(node: ir.Node) -> bool:
    """Returns whether a node adds a constant to the result of a matrix multiplication or convolution."""
    producers = (v.producer() for v in node.inputs if v is not None)
    return node.op_type == "Add" and _constants(node) and any(n is not None and n.op_type in LINEAR for n in producers)


def _constants(node: ir.Node) -> bool:
    """Returns whether a node reads a constant."""
    return any(v is not None and v.const_value is not None for v in node.inputs)


def _bytes(node: ir.Node) -> int | None:
    """Returns the bytes that a node reads and writes in one run; None if a size is unknown."""
    if node.domain == "" and node.op_type in _VIEWS:
        return 0
    total = 0
    for value in (*node.inputs, *node.outputs):
        if value is None or (not value.name and value.producer() is node):
            continue
        if value.dtype == ir.DataType.STRING:  # the lengths of strings are unknown
            return None
        if value.const_value is not None:
            total += traversal.tensor_bytes(value.const_value)
        elif value.shape is not None and value.shape.is_static() and value.dtype is not None:
            total += math.prod(value.shape.numpy()) * value.dtype.bitwidth // 8
        else:
            return None
    return total


def _why_left(node: ir.Node) -> str:
    """Returns why no pass has a remark about a node."""
    op_type = node.op_type
    if node.domain not in ("", DOMAIN):
        return f"graphopt has no pass for the domain {node.domain}"
    if node.domain == DOMAIN:
        return "already an operator of graphopt"
    if op_type in _VIEWS:
        return "changes only the shape or a name, and moves no data"
    if op_type in _MOVES:
        return "moves data without computing; passes match through it if possible"
    if op_type in LINEAR and len(node.inputs) > 1 and node.inputs[1] is not None:
        weight = node.inputs[1]
        if weight.is_graph_input() and not weight.is_initializer():
            return f"its weight is the graph input '{weight.name}' with unknown values"
        if weight.const_value is None and op_type in ("MatMul", "Gemm"):
            return "both operands are computed, and the node is in no known form of attention"
    if op_type == "Conv":
        kernel = attribute_ints(node, "kernel_shape", ())
        if kernel and kernel != (3, 3):
            return f"for a kernel of {'x'.join(map(str, kernel))} the runtime's own convolution is the fastest"
    if op_type in LINEAR:
        if any(_is_bias(reader) for reader in node.outputs[0].consumers()):
            return "no pass fuses a matrix multiplication and its bias for this target"
        return "no neighbouring node can be folded or fused into it"
    if _is_bias(node):
        return "no pass fuses the bias of a matrix multiplication for this target"
    if op_type in _ACTIVATIONS:
        return "already a single operator that runtimes support"
    if op_type in ARITHMETIC and not _constants(node):
        return "both inputs are computed, so there is no constant to fold"
    looking = [p.name for p in installed() if isinstance(p, Pass) and ("", op_type) in p.anchors]
    if looking:
        return f"does not match the pattern of {' or '.join(looking)}"
    return "no pass rewrites this operator alone"
