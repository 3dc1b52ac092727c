"""Which nodes of a model a provider will take, and why not the others.

What is asked, so that the answer is the provider's own: for `graphopt` the native library, which answers by the table
and the rules of the provider; for `cpu` the runtime's registry of kernels; for `migraphx` and `hip-ep` tables of
what their sources list, at a named commit (`peers/`).

A runtime simplifies a model before it asks providers: nodes whose inputs never change are computed once, functions are
inlined. So is done here; what else it fuses or drops is not foreseen, and the nodes of the file are what is told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from graphopt.placement import ours, peers
from graphopt.placement.cpu import CpuKernels, cpu_kernels
from graphopt.remarks import node_label
from graphopt.targets.target import Target

PROVIDERS = ("graphopt", "cpu", *peers.NAMES)
# Where a node ends that none takes, and one that is computed while the session is made.
NOWHERE, ONCE = "none", "constant"
# onnxruntime's MIGraphX provider gives a graph with more nodes that it lacks to the CPU as a whole.
_MOST_LACKING = 10
# They make what no constant can be.
_NO_TENSORS = frozenset("Optional SequenceConstruct SequenceErase SequenceInsert SplitToSequence".split())
# Larger constants are no axes, sizes or limits.
_MOST_ELEMENTS = 4096


@dataclass(frozen=True)
class PlacedNode:
    """A node of the model.

    Attributes:
        name: the node's, or what stands for it.
        op: its operator, with the domain where it is not ONNX's.
        body: the node whose body it is in; "" in the main graph.
        provider: who takes it: the one that was asked about, "cpu", "none", or "constant": it is computed while the
            session is made.
        reason: why the provider that was asked about does not, or what is to be said of it all the same.
    """

    name: str
    op: str
    body: str
    provider: str
    reason: str = ""


@dataclass(frozen=True)
class Group:
    """Nodes of one operator that are placed for one reason."""

    provider: str
    op: str
    reason: str
    names: tuple[str, ...]


@dataclass
class Forecast:
    """What a provider will take of a model.

    Attributes:
        provider: a word of PROVIDERS.
        nodes: all of the model and of its bodies.
        source: where the answer comes from.
        notes: what else is to be known.
    """

    provider: str
    nodes: list[PlacedNode] = field(default_factory=list)
    source: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        return Counter(n.provider for n in self.nodes)

    def groups(self) -> list[Group]:
        """What the provider does not take, or takes with something to say; the largest first."""
        found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for n in self.nodes:
            if n.reason:
                found[n.provider, n.op, n.reason].append(n.name)
        groups = [Group(*key, tuple(names)) for key, names in found.items()]
        return sorted(groups, key=lambda g: (g.provider != NOWHERE, -len(g.names)))

    def answer(self) -> str:
        """In one line, as `bench --placement` says what happened."""
        counts = self.counts
        run = len(self.nodes) - counts[ONCE]
        line = f"{counts[self.provider]} of {run} nodes on {self.provider}"
        for other in ("cpu", NOWHERE):
            if other != self.provider and counts[other]:
                kinds = Counter(n.op for n in self.nodes if n.provider == other)
                said = ", ".join(f"{op} {n}" for op, n in kinds.most_common(5)) + (", .." if len(kinds) > 5 else "")
                line += f"; {'CPU' if other == 'cpu' else 'nowhere'}: {counts[other]} ({said})"
        return line + (f"; {counts[ONCE]} computed once" if counts[ONCE] else "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": 1,
            "provider": self.provider,
            "source": self.source,
            "counts": dict(self.counts),
            "notes": self.notes,
            "nodes": [
                {"name": n.name, "op": n.op, "body": n.body, "provider": n.provider, "reason": n.reason}
                for n in self.nodes
            ],
        }


def forecast(
    model: Any, provider: str = "graphopt", *, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> Forecast:
    """Says of each node which provider takes it.

    Args:
        model: in any form that `optimize` takes.
        provider: "graphopt", "cpu", "migraphx" or "hip-ep"; what it leaves goes to the CPU where that has a kernel.
        input_shapes: fixes the dimensions of inputs.

    Raises:
        ModelLoadError: the model cannot be read.
        OptionError: an unknown provider, or an unknown input.
        RuntimeMissingError: what has to be asked is not installed.
    """
    if provider not in PROVIDERS:
        raise OptionError(f"unknown provider '{provider}'; choose {', '.join(PROVIDERS)}")
    source = reading.load(model)
    work = source.model
    if input_shapes:
        inference.set_input_shapes(work, input_shapes)
    # Beside other providers our library is not registered, and the runtime inlines our operators, too.
    keeps = DOMAIN if provider in ("graphopt", "cpu") else None
    ir_passes.InlinePass(criteria=lambda function: function.domain != keeps)(work)
    with reading.blamed_on_the_model(source):
        inference.infer(work)
    for graph in traversal.graphs(work):
        for value in graph.initializers.values():
            # A file may say something else of a constant than its type, and that is then all that is read.
            if value.type is None and value.const_value is not None:
                value.type = ir.TensorType(value.const_value.dtype)
                value.shape = ir.Shape(value.const_value.shape.numpy())
    found = Forecast(provider)
    kernels = cpu_kernels()
    if kernels.unknown and provider == "cpu":
        raise RuntimeMissingError(f"this onnxruntime does not tell which kernels it has: {kernels.unknown}")
    editor = Editor(work, Target("cpu"))
    _add_shapes((node for graph in traversal.graphs(work) for node in graph), editor)
    peer = peers.read(provider) if provider in peers.NAMES else None
    if peer is not None:
        found.source = f"{peer.list} of {peer.repository} at {peer.commit[:10]} ({peer.date})"
        if peer.provider:
            found.source += f", and what {peer.provider['repository']} at {peer.provider['commit'][:10]} hands on to it"
    else:
        found.source = "the native library" if provider == "graphopt" else "the runtime's registry of kernels"
    question = _Question(provider, kernels, peer, editor, work.opset_imports)
    question.leave_open(work)
    # Bodies first: what a provider takes in them decides on the nodes around them.
    placed = [question.place(graph, parents) for graph, parents in reversed(list(_graphs(work.graph)))]
    found.nodes = [node for nodes in reversed(placed) for node in nodes]
    if kernels.unknown:
        found.notes.append("whether the CPU provider has kernels for the rest is not known: this runtime does not tell")
    _add_notes(found)
    return found


@dataclass
class _Question:
    """Who takes the nodes of a graph, asked for one graph after another.

    Attributes:
        working_inside: nodes of graphs that are still to come, with a node in their bodies that the provider takes.
        late: nodes out of definitions, which the runtime puts in after it has computed what never changes.
        open: values whose sizes inference knows, and the runtime does not when it computes what never changes.
    """

    provider: str
    kernels: CpuKernels
    peer: peers.Peer | None
    editor: Editor
    imports: Mapping[str, int]
    working_inside: set[ir.Node] = field(default_factory=set)
    late: set[ir.Node] = field(default_factory=set)
    open: set[ir.Value] = field(default_factory=set)

    def leave_open(self, model: ir.Model) -> None:
        """Finds the shapes of the main graph that stay open.

        The runtime follows a value that makes shapes only where it knows all of its numbers: what it has computed is a
        constant when it infers again. Our inference knows the second of two sizes without the first.
        """
        asked = {n.inputs[0] for n in model.graph if n.op_type == "Shape" and not n.domain}
        self.open = {v for v in asked if v is not None and v.shape is not None and v.shape.is_static()}
        message = inference.without_weights(model) if self.open else onnx.ModelProto()
        while self.open:
            numbers = {v.name: n for v, n in self._constants(model.graph)[1].items() if v.producer() is not None}
            known = _static(message, numbers)
            left = {v for v in self.open if v.name not in known and not v.is_initializer()} if known else set()
            if left == self.open:
                return
            self.open = left

    def place(
        self, graph: ir.Graph, parents: Sequence[ir.Node], settled: Mapping[ir.Node, str] = MappingProxyType({})
    ) -> list[PlacedNode]:
        """The nodes of a graph that is inside of others, the outermost first.

        What was settled before definitions were put in, why the provider does not take a node, stays so.
        """
        constant, small = self._constants(graph)
        folded = _folded(graph, constant)
        nodes = [n for n in graph if n.op_type != "Constant" or n.domain]
        once = [all(o in constant or o in folded for o in n.outputs) for n in nodes]
        left = [n for n, known in zip(nodes, once, strict=True) if not known]
        reasons = [""] * len(left)
        if self.peer is not None:
            reasons = [self.peer.refuse(n) for n in left]
        elif self.provider == "graphopt":
            versions = [_version(n, self.imports.get(n.domain, 1)) for n in left]
            parent = parents[-1] if parents else None
            reasons = ours.refusals(
                left, versions, constant, small, folded, parent, graph.outputs, self.working_inside,
                [n for n, reason in settled.items() if reason],
            )  # fmt: skip
            reasons = [settled.get(n, reason) for n, reason in zip(left, reasons, strict=True)]
            if self._inline([n for n, reason in zip(left, reasons, strict=True) if reason]):
                return self.place(graph, parents, dict(zip(left, reasons, strict=True)))
        why = dict(zip(left, reasons, strict=True))
        body = node_label(parents[-1]) if parents else ""
        if any(not reason for reason in reasons):
            self.working_inside.update(parents)
        return [self._placed(node, body, why.get(node)) for node in nodes]

    def _inline(self, nodes: Sequence[ir.Node]) -> bool:
        """Puts definitions in the place of nodes for which nobody has a kernel; the runtime then asks once more."""
        changed = False
        for node in nodes:
            opset = self.imports.get(node.domain, 1)
            if not self._has_a_kernel(node) and (inside := self.kernels.definition(node, opset)):
                _replace(node, inside)
                _add_shapes(inside, self.editor)
                self.late.update(inside)
                changed = True
        return changed

    def _constants(self, graph: ir.Graph) -> tuple[set[ir.Value], dict[ir.Value, Array]]:
        """The values that a runtime knows before the first run, and the numbers of small ones."""
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
            if node in self.late or not self._never_changes(node, constant) or not self._has_a_kernel(node):
                continue
            constant.update(node.outputs)
            for value in node.outputs:
                elements = self.editor.shapes.elements(value)
                if elements is not None and elements.integers is not None:
                    numbers = np.array(elements.integers, elements.dtype.numpy())
                    small[value] = numbers.reshape(elements.items.shape)
        return constant, small

    def _never_changes(self, node: ir.Node, constant: set[ir.Value]) -> bool:
        if traversal.bodies(node) or node.op_type in RANDOM or node.op_type in _NO_TENSORS:
            return False
        inputs = [v for v in node.inputs if v is not None]
        if node.op_type == "Shape" and node.domain == "" and inputs[0] not in self.open:
            shape = inputs[0].shape
            if shape is not None and shape.is_static():
                return True
        return all(v in constant for v in inputs) and bool(inputs or node.op_type == "Constant")

    def _has_a_kernel(self, node: ir.Node) -> bool:
        """Whether the runtime can compute it beforehand: definitions, and Casts around a node, are put in later."""
        return self.kernels.refuse(node, self.imports.get(node.domain, 1)) == ("", "")

    def _placed(self, node: ir.Node, body: str, reason: str | None) -> PlacedNode:
        name = node_label(node)
        op = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        if reason is None:
            return PlacedNode(name, op, body, ONCE)
        if self.provider != "cpu" and not reason:
            limits = self.peer.limits(node) if self.peer is not None else ""
            return PlacedNode(name, op, body, self.provider, f"limits: {limits}" if limits else "")
        lacking, said = self.kernels.refuse(node, self.imports.get(node.domain, 1))
        text = "; CPU: ".join(t for t in (reason, lacking or said) if t)
        return PlacedNode(name, op, body, NOWHERE if lacking else "cpu", text)


def _replace(node: ir.Node, inside: Sequence[ir.Node]) -> None:
    """Puts nodes in the place of one, between values of the same names."""
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
    wanted = [v for v in node.outputs if v.name]  # an output that is left out has no name
    ir.convenience.replace_nodes_and_values(graph, node, [node], inside, wanted, [made[v.name] for v in wanted])


def _add_shapes(nodes: Iterable[ir.Node], editor: Editor) -> None:
    """Sizes that follow from shapes which are all numbers: the runtime computes such shapes before it asks."""
    for value in (v for node in nodes for v in node.outputs):
        if value.shape is None and (dims := editor.shapes.dims(value)) is not None:
            sizes = [d.value for d in dims]
            if None not in sizes:
                value.shape = ir.Shape(sizes)


def _add_notes(found: Forecast) -> None:
    if found.provider == "migraphx" and found.counts["cpu"] > _MOST_LACKING:
        found.notes.append(
            f"onnxruntime's MIGraphX provider gives a graph with more than {_MOST_LACKING} nodes that it lacks to the "
            "CPU as a whole"
        )
    elif found.provider == "migraphx" and found.counts["cpu"]:
        found.notes.append(
            "where it lacks a node, onnxruntime's MIGraphX provider gives parts between such nodes to the CPU, too: "
            "those with no recurrent layer, and no product, convolution or pool of more than 300 elements"
        )
    if found.provider == "hip-ep" and found.counts["cpu"] + found.counts[NOWHERE]:
        found.notes.append("hip-ep compiles a graph as a whole: where it lacks one node, all go to the CPU")
    if found.counts[NOWHERE]:
        found.notes.append("a session cannot be made: no provider has a kernel for some nodes")


def _graphs(graph: ir.Graph, parents: tuple[ir.Node, ...] = ()) -> Iterator[tuple[ir.Graph, tuple[ir.Node, ...]]]:
    """Every graph, with the nodes that it is inside of, the outermost first."""
    yield graph, parents
    for node in graph:
        for inner in traversal.bodies(node):
            yield from _graphs(inner, (*parents, node))


def _version(node: ir.Node, opset: int) -> int:
    """The version of the node's operator, as the runtime counts it."""
    try:
        return int(
            onnx.defs.get_schema(node.op_type, opset, "" if node.domain == "ai.onnx" else node.domain).since_version
        )
    except onnx.defs.SchemaError:
        return 1  # operators of others than ONNX have one version


def _folded(graph: ir.Graph, constant: set[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Results of BatchNormalization that the runtime folds into the convolution before it, and the convolution's."""
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
    """Names of values whose sizes follow from shapes and these constants; none where inference fails."""
    known = onnx.ModelProto()
    known.CopyFrom(message)
    del known.graph.node[:]
    known.graph.node.extend(n for n in message.graph.node if not n.output or any(o not in numbers for o in n.output))
    known.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for name, x in numbers.items())
    try:
        graph = onnx.shape_inference.infer_shapes(known, check_type=False, strict_mode=False, data_prop=False).graph
    except Exception:  # as where types and shapes are inferred: an invalid corner decides nothing
        return set()
    return {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
        and all(d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)
    }
