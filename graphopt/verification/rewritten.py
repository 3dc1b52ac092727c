"""What was rewritten, as far as that decides how exactly an output must be the same: from the nodes behind it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from graphopt.graph import traversal
from graphopt.graph.operators.traits import MOVES, PRODUCTS
from graphopt.metadata import METADATA_NUMERICS, Numerics
from graphopt.ops import DOMAIN
from graphopt.precision.channel_pairs import SUFFIX as PAIRS_SUFFIX
from graphopt.verification.noise import Precision
from graphopt.verification.tolerances import BRAIN, HALF, SINGLE, stored

WINOGRAD = "WinogradConv"
BRAIN_SUFFIX = "Bf16"  # of operators that round their first two inputs, and attention its third as well
ATTENTION = "FusedAttention"
_COARSE = {ir.DataType.FLOAT16: Numerics.FP16, ir.DataType.BFLOAT16: Numerics.BF16}
# Nothing is computed in the precision of what they read or make.
_PASSED_ON = MOVES | {"Cast"}


@dataclass
class _Behind:
    """The values and nodes that an output depends on."""

    values: set[ir.Value] = field(default_factory=set)
    nodes: set[ir.Node] = field(default_factory=set)


@dataclass(frozen=True)
class Rewritten:
    """What was rewritten between two models.

    Attributes:
        classes: of each output, by the function bodies.
        approximated: outputs behind which a kernel approximates, which its body does not.
        coarse: names of values of BEFORE that AFTER rounds to half precision; those that it no longer has count as what
            reads them, and those that BEFORE has not as what they are made of.
        stored: names of weights that AFTER reads in half precision, or casts to it.
        has_ours: whether an output depends on a node of ours.
    """

    classes: dict[str, Numerics]
    approximated: frozenset[str]
    coarse: frozenset[str]
    stored: frozenset[str]
    has_ours: bool

    def precision(self, numerics: Numerics, *, inputs_in_half: bool) -> Precision:
        """Which value of BEFORE is rounded how, for outputs of this class."""
        coarse = {Numerics.FP16: HALF, Numerics.BF16: BRAIN}.get(numerics, SINGLE)
        return Precision(
            activations=lambda name: coarse if name in self.coarse else SINGLE,
            weights=stored(coarse if self.stored else SINGLE),
            inputs=coarse if inputs_in_half or self.coarse else SINGLE,
        )


def rewritten(before: ir.Model, after: ir.Model) -> Rewritten:
    """What was rewritten between two models, whose types are inferred."""
    exact = after.metadata_props.get(METADATA_NUMERICS, "").lower() == "exact"
    classes, approximated = {}, set()
    rounded: set[ir.Value] = set()
    stored: set[ir.Value] = set()
    ours: set[ir.Node] = set()
    attentions: set[ir.Node] = set()
    for old, new in zip(before.graph.outputs, after.graph.outputs):
        behind = [_behind(old), _behind(new)]
        halves = _used_halves(behind)
        own = {n for n in behind[1].nodes if n.domain == DOMAIN}
        brain = {n for n in own if n.op_type.endswith(BRAIN_SUFFIX)}
        numerics = max([Numerics.REASSOCIATED, *(_COARSE[v.dtype] for v in halves if v.dtype is not None)])
        if brain:
            numerics = max(numerics, Numerics.BF16)
            attentions |= {n for n in brain if n.op_type.startswith(ATTENTION)}
            halves |= {v for n in brain for v in n.inputs[: 3 if n in attentions else 2] if v is not None}
        classes[str(old.name)] = Numerics.EXACT if exact else numerics
        if not exact and not halves and any(n.op_type.startswith(WINOGRAD) for n in own):
            approximated.add(str(old.name))
        ours |= own
        stored |= {v for v in halves if _is_stored(v)}
        rounded |= {v for v in halves if not _is_stored(v)}
    names = _names_before(rounded) | _made_of(before, rounded)
    names |= _factors(before, after, {str(o.name) for n in attentions for o in n.outputs})
    return Rewritten(classes, frozenset(approximated), _coarse(before, after, names), _sources(stored), bool(ours))


def _used_halves(behind: Sequence[_Behind]) -> set[ir.Value]:
    """Values in float16, where something is computed or stored in it, and in bfloat16 likewise."""
    halves = {v for b in behind for v in b.values if v.dtype in _COARSE}
    used = {v.dtype for v in halves if _is_used(v)}
    return {v for v in halves if v.dtype in used}


def _names_before(rounded: Collection[ir.Value]) -> set[str]:
    """What BEFORE calls values that AFTER rounds to half precision."""
    # A tensor that lies in pairs of channels is BEFORE's of the name in front.
    names = {str(v.name).removesuffix(PAIRS_SUFFIX) for v in rounded}
    for value in rounded:
        # What is read through a Cast to half precision is rounded there, and what comes from one was.
        producer = value.producer()
        if producer is not None and producer.op_type == "Cast":
            names.add(str(producer.inputs[0].name) if producer.inputs[0] is not None else "")
        names |= {str(o.name) for u in value.consumers() if u.op_type == "Cast" for o in u.outputs}
    return names


def _made_of(before: ir.Model, rounded: set[ir.Value]) -> set[str]:
    """For values of AFTER that BEFORE has not, the nearest that it has among what they are made of.

    An operator of BEFORE that AFTER spells out has the numbers that AFTER rounds inside.
    """
    known = {str(v.name) for graph in traversal.graphs(before) for v in graph.inputs}
    known |= {str(v.name) for graph in traversal.graphs(before) for node in graph for v in node.outputs}
    found: set[str] = set()
    seen: set[ir.Node] = set()
    waiting = [v for v in rounded if str(v.name).removesuffix(PAIRS_SUFFIX) not in known]
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        for value in node.inputs:
            if value is not None and value.name in known:
                found.add(str(value.name))
            elif value is not None:
                waiting.append(value)
    return found


def _factors(before: ir.Model, after: ir.Model, results: set[str]) -> set[str]:
    """Names of what products multiply on the way to these results, as far as AFTER no longer has the values there.

    Attention rounds the probabilities, which only BEFORE has.
    """
    left = {v.name for graph in traversal.graphs(after) for node in graph for v in node.outputs}
    found: set[str] = set()
    seen: set[ir.Node] = set()
    waiting = [v for graph in traversal.graphs(before) for node in graph for v in node.outputs if v.name in results]
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        inputs = [v for v in node.inputs if v is not None]
        if node.op_type in PRODUCTS:
            found |= {str(v.name) for v in inputs}
        waiting += [v for v in inputs if v.name not in left]
    return found


def _coarse(before: ir.Model, after: ir.Model, names: set[str]) -> frozenset[str]:
    """Names of BEFORE's values among these, and of values that AFTER no longer has and that only such are made of."""
    if not names:
        return frozenset()
    left = {v.name for graph in traversal.graphs(after) for node in graph for v in node.outputs}
    for graph in [*traversal.with_subgraphs(before.graph)]:
        for node in reversed(graph):
            readers = [o.name for v in node.outputs for u in v.consumers() for o in u.outputs]
            if any(r in names for r in readers):
                names |= {str(v.name) for v in node.outputs if v.name not in left}
    return frozenset(names)


def _is_used(value: ir.Value) -> bool:
    """Whether something is computed or stored in this precision: a Cast there and back is an error."""
    producer = value.producer()
    if producer is None or value.is_graph_output():
        return True
    return any(node.op_type not in _PASSED_ON for node in (producer, *(use.node for use in value.uses())))


def _is_stored(value: ir.Value) -> bool:
    """A weight, or one that was moved or cast."""
    producer = value.producer()
    if producer is None:
        return value.is_initializer()
    if producer.op_type == "Constant":
        return True
    moves = producer.op_type in _PASSED_ON
    source = producer.inputs[0] if producer.inputs else None
    return moves and source is not None and _is_stored(source)


def _sources(stored: set[ir.Value]) -> frozenset[str]:
    """Names of these weights, and of what they were moved or cast from."""
    names: set[str] = set()
    for value in stored:
        source: ir.Value | None = value
        while source is not None:
            names.add(str(source.name))
            producer = source.producer()
            source = producer.inputs[0] if producer is not None and producer.inputs else None
    return frozenset(names)


def _behind(output: ir.Value) -> _Behind:
    found = _Behind()
    waiting = [output]
    while waiting:
        value = waiting.pop()
        if value in found.values:
            continue
        found.values.add(value)
        node = value.producer()
        if node is None or node in found.nodes:
            continue
        found.nodes.add(node)
        waiting += [v for v in (*node.inputs, *node.outputs) if v is not None]
        for graph in traversal.bodies(node):
            for inner in ir.traversal.RecursiveGraphIterator(graph):
                found.nodes.add(inner)
                waiting += [v for v in (*inner.inputs, *inner.outputs) if v is not None]
            waiting += [*graph.outputs]
    return found
