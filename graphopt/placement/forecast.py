"""Predicts the nodes of a model that a provider will claim, and the reasons why it will not claim the other nodes.

The sources are: for `graphopt` the native library, with the provider's own table and rules; for `cpu` the runtime's
registry of kernels; for `migraphx` and `hip-ep` tables that were made from their source code at a given commit
(`provider_tables/`).

The forecast folds constants and inlines functions, as the runtime does before it queries providers. It does not predict
other fusions and removals, so the result also lists nodes that these would remove.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as ir_passes

from graphopt.errors import OptionError, RuntimeMissingError
from graphopt.graph import inference, reading, traversal
from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import RANDOM
from graphopt.graph.traversal import tensor_array
from graphopt.ops import DOMAIN
from graphopt.ops.schema import Array
from graphopt.placement import ours, provider_tables
from graphopt.placement.cpu import CpuKernels, cpu_kernels
from graphopt.remarks import node_label
from graphopt.targets.target import Target

PROVIDERS = ("graphopt", "cpu", *provider_tables.NAMES)
# The provider of a node without a kernel, and of a node that is computed at session creation.
NO_PROVIDER, CONSTANT = "none", "constant"
# With more unsupported nodes than this, onnxruntime's MIGraphX provider leaves the whole graph to the CPU.
_MOST_UNSUPPORTED = 10
# Operators with an output that is not a tensor, and so never a constant.
_NO_TENSORS = frozenset("Optional SequenceConstruct SequenceErase SequenceInsert SplitToSequence".split())
# Constants of more elements are not axes, sizes or limits; the provider does not need their elements.
_MOST_ELEMENTS = 4096


@dataclass(frozen=True)
class PlacedNode:
    """A node of the model.

    Attributes:
        name: the node's name, or a label.
        op: its operator, with the domain if it is not ONNX's.
        body: the control-flow node that contains it; "" in the main graph.
        provider: the provider that runs it: the queried one, "cpu", "none", or "constant" (computed at session
            creation).
        reason: why the queried provider does not run it, or a note about how it runs.
    """

    name: str
    op: str
    body: str
    provider: str
    reason: str = ""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one operator with the same provider and reason."""

    provider: str
    op: str
    reason: str
    names: tuple[str, ...]


@dataclass
class Forecast:
    """The predicted placement of a model.

    Attributes:
        provider: the queried provider, one of PROVIDERS.
        nodes: all nodes of the model and of its control-flow bodies.
        source: the source of the prediction.
        notes: remarks about the whole model.
        claimed: for our provider, the groups of connected nodes that it claims, with estimated times.
    """

    provider: str
    nodes: list[PlacedNode] = field(default_factory=list)
    source: str = ""
    notes: list[str] = field(default_factory=list)
    claimed: list[ours.Group] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """The number of nodes of each provider."""
        return Counter(n.provider for n in self.nodes)

    def groups(self) -> list[NodeGroup]:
        """Returns the nodes with a reason, grouped; nodes without a kernel first, then the largest groups."""
        found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for n in self.nodes:
            if n.reason:
                found[n.provider, n.op, n.reason].append(n.name)
        groups = [NodeGroup(*key, tuple(names)) for key, names in found.items()]
        return sorted(groups, key=lambda g: (g.provider != NO_PROVIDER, -len(g.names)))

    def answer(self) -> str:
        """Returns a one-line summary, in the form of `bench --placement`."""
        counts = self.counts
        run = len(self.nodes) - counts[CONSTANT]
        line = f"{counts[self.provider]} of {run} nodes on {self.provider}"
        for other in ("cpu", NO_PROVIDER):
            if other != self.provider and counts[other]:
                kinds = Counter(n.op for n in self.nodes if n.provider == other)
                listed = ", ".join(f"{op} {n}" for op, n in kinds.most_common(5)) + (", .." if len(kinds) > 5 else "")
                line += f"; {'CPU' if other == 'cpu' else 'nowhere'}: {counts[other]} ({listed})"
        return line + (f"; {counts[CONSTANT]} computed once" if counts[CONSTANT] else "")

    def to_dict(self) -> dict[str, Any]:
        """Returns the forecast for JSON."""
        return {
            "format": 1,
            "provider": self.provider,
            "source": self.source,
            "counts": dict(self.counts),
            "notes": self.notes,
            "claimed": [asdict(g) for g in self.claimed],
            "nodes": [asdict(n) for n in self.nodes],
        }


def forecast(
    model: Any,
    provider: str = "graphopt",
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    min_nodes: int = 0,
) -> Forecast:
    """Predicts the provider of each node.

    Args:
        model: the model, in any form that `optimize` accepts.
        provider: "graphopt", "cpu", "migraphx" or "hip-ep". Nodes that it does not claim run on the CPU, if the CPU
            provider has a kernel.
        input_shapes: fixed dimensions of inputs, by input name.
        min_nodes: the option `min_nodes` of our provider in the later session.

    Raises:
        ModelLoadError: the model cannot be read.
        OptionError: an unknown provider, or an unknown input.
        RuntimeMissingError: ONNX Runtime or the native library is missing, or ("cpu") the runtime does not list its
            kernels.
    """
    if provider not in PROVIDERS:
        raise OptionError(f"unknown provider '{provider}'; choose {', '.join(PROVIDERS)}")
    source = reading.load(model)
    work = source.model
    if input_shapes:
        inference.set_input_shapes(work, input_shapes)
    # With other providers our library is not registered, so the runtime inlines our operators as well.
    keeps = DOMAIN if provider in ("graphopt", "cpu") else None
    ir_passes.InlinePass(criteria=lambda function: function.domain != keeps)(work)
    with reading.as_load_error(source):
        inference.infer(work)
    for graph in traversal.graphs(work):
        for value in graph.initializers.values():
            # If the file has a value_info without a type for an initializer, onnx_ir does not add the tensor's type.
            if value.type is None and value.const_value is not None:
                value.type = ir.TensorType(value.const_value.dtype)
                value.shape = ir.Shape(value.const_value.shape.numpy())
    found = Forecast(provider)
    kernels = cpu_kernels()
    if kernels.unknown and provider == "cpu":
        raise RuntimeMissingError(f"this onnxruntime does not list its kernels: {kernels.unknown}")
    editor = Editor(work, Target("cpu"))
    _add_shapes(traversal.nodes(work), editor)
    table = provider_tables.read(provider) if provider in provider_tables.NAMES else None
    if table is not None:
        found.source = f"{table.list} of {table.repository} at {table.commit[:10]} ({table.date})"
        if table.provider:
            commit = table.provider["commit"][:10]
            found.source += f", and the nodes that {table.provider['repository']} at {commit} passes to it"
    else:
        found.source = "the native library" if provider == "graphopt" else "the runtime's registry of kernels"
    placement = _Placement(provider, kernels, table, editor, work.opset_imports, min_nodes)
    placement.find_open_shapes(work)
    # Bodies are placed first, because a provider claims a control-flow node depending on the claims in its bodies.
    placed = [placement.place(graph, parents) for graph, parents in reversed(list(_graphs(work.graph)))]
    found.nodes = [node for nodes in reversed(placed) for node in nodes]
    found.claimed = sorted(placement.claimed, key=lambda g: -g.nodes)
    if kernels.unknown:
        found.notes.append("this runtime does not list its kernels: the other nodes may have no CPU kernel either")
    _add_notes(found)
    return found


@dataclass
class _Placement:
    """Places the nodes of one graph after another, bodies before the graphs that contain them.

    Attributes:
        provider: the queried provider.
        kernels: the kernels of the CPU provider.
        table: the table of another project's provider.
        editor: the model.
        imports: the model's opset of each domain.
        min_nodes: the option of our provider.
        with_claimed_bodies: control-flow nodes with a claimed node in a body, which is placed before their graph.
        inlined: nodes of inlined definitions; not folded, because the runtime inlines after constant folding.
        open_shapes: inputs of Shape nodes with a static shape that the runtime does not know during constant folding.
        claimed: the groups that our provider claims in the graphs placed so far.
    """

    provider: str
    kernels: CpuKernels
    table: provider_tables.ProviderTable | None
    editor: Editor
    imports: Mapping[str, int]
    min_nodes: int
    with_claimed_bodies: set[ir.Node] = field(default_factory=set)
    inlined: set[ir.Node] = field(default_factory=set)
    open_shapes: set[ir.Value] = field(default_factory=set)
    claimed: list[ours.Group] = field(default_factory=list)

    def find_open_shapes(self, model: ir.Model) -> None:
        """Finds the static shapes of the main graph that the runtime does not know during constant folding.

        The runtime folds a shape computation only if it knows every element. It then infers shapes again with the
        results as constants. Our inference also tracks single elements of a shape, so it knows more shapes.
        """
        read_by_shape = {n.inputs[0] for n in model.graph if n.op_type == "Shape" and not n.domain}
        self.open_shapes = {v for v in read_by_shape if v is not None and v.shape is not None and v.shape.is_static()}
        message = inference.without_weights(model) if self.open_shapes else onnx.ModelProto()
        while self.open_shapes:
            numbers = {v.name: n for v, n in self._constants(model.graph)[1].items() if v.producer() is not None}
            known = _static(message, numbers)
            left = {v for v in self.open_shapes if v.name not in known and not v.is_initializer()} if known else set()
            if left == self.open_shapes:
                return
            self.open_shapes = left

    def place(
        self, graph: ir.Graph, parents: Sequence[ir.Node], settled: Mapping[ir.Node, str] = MappingProxyType({})
    ) -> list[PlacedNode]:
        """Places the nodes of a graph.

        Args:
            graph: the graph.
            parents: the nodes that contain it, the outermost first.
            settled: the reasons of nodes that were placed before definitions were inlined; they are final.
        """
        constant, small = self._constants(graph)
        folded = _folded(graph, constant)
        nodes = [n for n in graph if n.op_type != "Constant" or n.domain]
        once = [all(o in constant or o in folded for o in n.outputs) for n in nodes]
        left = [n for n, known in zip(nodes, once, strict=True) if not known]
        reasons = [""] * len(left)
        if self.table is not None:
            reasons = [self.table.refuse(n) for n in left]
        elif self.provider == "graphopt":
            versions = [_version(n, self.imports.get(n.domain, 1)) for n in left]
            parent = parents[-1] if parents else None
            reasons, groups = ours.place(
                left, versions, constant, small, folded, parent, graph.outputs, self.with_claimed_bodies,
                [n for n, reason in settled.items() if reason], self.min_nodes,
            )  # fmt: skip
            reasons = [settled.get(n, reason) for n, reason in zip(left, reasons, strict=True)]
            if self._inline([n for n, reason in zip(left, reasons, strict=True) if reason]):
                return self.place(graph, parents, dict(zip(left, reasons, strict=True)))
            self.claimed += groups
        why = dict(zip(left, reasons, strict=True))
        body = node_label(parents[-1]) if parents else ""
        if any(not reason for reason in reasons):
            self.with_claimed_bodies.update(parents)
        return [self._placed(node, body, why.get(node)) for node in nodes]

    def _inline(self, nodes: Sequence[ir.Node]) -> bool:
        """Inlines the definitions of nodes without a kernel, as the runtime does before it queries providers again.

        Returns:
            Whether the graph changed.
        """
        changed = False
        for node in nodes:
            opset = self.imports.get(node.domain, 1)
            if not self._has_a_kernel(node) and (inside := self.kernels.definition(node, opset)):
                _replace(node, inside)
                _add_shapes(inside, self.editor)
                self.inlined.update(inside)
                changed = True
        return changed

    def _constants(self, graph: ir.Graph) -> tuple[set[ir.Value], dict[ir.Value, Array]]:
        """Returns the values that the runtime knows before the first run, and the elements of the small ones."""
        constant: set[ir.Value] = set()
        small: dict[ir.Value, Array] = {}
        for node in graph:
            for value in node.inputs:
                tensor = self.editor.tensor(value)
                if value is None or tensor is None:
                    continue
                constant.add(value)
                if tensor.size <= _MOST_ELEMENTS and tensor.dtype != ir.DataType.STRING:
                    small[value] = tensor_array(tensor)
            if node in self.inlined or not self._is_constant(node, constant) or not self._has_a_kernel(node):
                continue
            constant.update(node.outputs)
            for value in node.outputs:
                elements = self.editor.shapes.elements(value)
                if elements is not None and elements.integers is not None:
                    numbers = np.array(elements.integers, elements.dtype.numpy())
                    small[value] = numbers.reshape(elements.items.shape)
        return constant, small

    def _is_constant(self, node: ir.Node, constant: set[ir.Value]) -> bool:
        if traversal.bodies(node) or node.op_type in RANDOM or node.op_type in _NO_TENSORS:
            return False
        inputs = [v for v in node.inputs if v is not None]
        if node.op_type == "Shape" and node.domain == "" and inputs[0] not in self.open_shapes:
            shape = inputs[0].shape
            if shape is not None and shape.is_static():
                return True
        return all(v in constant for v in inputs) and bool(inputs or node.op_type == "Constant")

    def _has_a_kernel(self, node: ir.Node) -> bool:
        """Returns whether a CPU kernel runs the node directly, as constant folding requires.

        The runtime inlines definitions and inserts Casts only after constant folding.
        """
        return self.kernels.refuse(node, self.imports.get(node.domain, 1)) == ("", "")

    def _placed(self, node: ir.Node, body: str, reason: str | None) -> PlacedNode:
        name = node_label(node)
        op = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        if reason is None:
            return PlacedNode(name, op, body, CONSTANT)
        if self.provider != "cpu" and not reason:
            limits = self.table.limits(node) if self.table is not None else ""
            return PlacedNode(name, op, body, self.provider, f"limits: {limits}" if limits else "")
        refusal, note = self.kernels.refuse(node, self.imports.get(node.domain, 1))
        text = "; CPU: ".join(t for t in (reason, refusal or note) if t)
        return PlacedNode(name, op, body, NO_PROVIDER if refusal else "cpu", text)


def _replace(node: ir.Node, inside: Sequence[ir.Node]) -> None:
    """Replaces a node by the nodes `inside`, connected by value names."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    label = node_label(node)
    outer = {v.name: v for v in node.inputs if v is not None}
    made = {v.name: v for n in inside for v in n.outputs}
    definition = inside[0].graph
    assert isinstance(definition, ir.Graph)
    definition.outputs.clear()
    for inner in inside:
        definition.remove(inner)
        inner.name = f"{label}/{inner.op_type}"
        for i, value in enumerate(inner.inputs):
            if value is not None and value.name not in made:
                inner.replace_input_with(i, outer[value.name])
    for value in made.values():
        value.name = f"{label}/{value.name}"
    wanted = [v for v in node.outputs if v.name]  # an omitted output has no name
    ir.convenience.replace_nodes_and_values(graph, node, [node], inside, wanted, [made[v.name] for v in wanted])


def _add_shapes(nodes: Iterable[ir.Node], editor: Editor) -> None:
    """Adds the shapes that follow from static shapes; the runtime computes these before it queries providers."""
    for value in (v for node in nodes for v in node.outputs):
        if value.shape is None and (dims := editor.shapes.dims(value)) is not None:
            sizes = [d.value for d in dims]
            if None not in sizes:
                value.shape = ir.Shape(sizes)


def _add_notes(found: Forecast) -> None:
    if found.provider == "migraphx" and found.counts["cpu"] > _MOST_UNSUPPORTED:
        found.notes.append(
            f"with more than {_MOST_UNSUPPORTED} unsupported nodes, onnxruntime's MIGraphX provider leaves the whole "
            "graph to the CPU"
        )
    elif found.provider == "migraphx" and found.counts["cpu"]:
        found.notes.append(
            "with unsupported nodes, onnxruntime's MIGraphX provider also leaves some parts between them to the CPU: "
            "parts without a recurrent layer and without a GEMM, convolution or pool of more than 300 elements"
        )
    if found.provider == "hip-ep" and found.counts["cpu"] + found.counts[NO_PROVIDER]:
        found.notes.append("hip-ep compiles a graph as a whole: one unsupported node leaves all nodes to the CPU")
    if found.counts[NO_PROVIDER]:
        found.notes.append("session creation will fail: no provider has a kernel for some nodes")


def _graphs(graph: ir.Graph, parents: tuple[ir.Node, ...] = ()) -> Iterator[tuple[ir.Graph, tuple[ir.Node, ...]]]:
    """Yields every graph with the nodes that contain it, the outermost first."""
    yield graph, parents
    for node in graph:
        for inner in traversal.bodies(node):
            yield from _graphs(inner, (*parents, node))


def _version(node: ir.Node, opset: int) -> int:
    """Returns the version of the node's operator in an opset."""
    try:
        return int(
            onnx.defs.get_schema(node.op_type, opset, "" if node.domain == "ai.onnx" else node.domain).since_version
        )
    except onnx.defs.SchemaError:
        return 1  # operators of other domains have one version


def _folded(graph: ir.Graph, constant: set[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Returns the outputs of BatchNormalization nodes that the runtime folds into a Conv -> the Conv's output."""
    folded = {}
    for node in graph:
        if node.op_type != "BatchNormalization" or node.domain or any(v not in constant for v in node.inputs[1:]):
            continue
        x = node.inputs[0]
        producer = None if x is None else x.producer()
        if x is None or producer is None or producer.op_type != "Conv" or x.is_graph_output() or len(x.uses()) != 1:
            continue
        if all(v in constant for v in producer.inputs[1:] if v is not None) and len(node.outputs) == 1:
            folded[node.outputs[0]] = x
    return folded


def _static(message: onnx.ModelProto, numbers: Mapping[str | None, Array]) -> set[str]:
    """Returns the names of values with a static shape, given these constants; none if inference fails."""
    known = onnx.ModelProto()
    known.CopyFrom(message)
    del known.graph.node[:]
    known.graph.node.extend(n for n in message.graph.node if not n.output or any(o not in numbers for o in n.output))
    known.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for name, x in numbers.items())
    try:
        graph = onnx.shape_inference.infer_shapes(known, check_type=False, strict_mode=False, data_prop=False).graph
    except Exception:  # an invalid node makes onnx's inference fail; the shapes are then unknown
        return set()
    return {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
        and all(d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)
    }
