"""Replaces a BatchNormalization or a chain of constant affine nodes by one ScaleShift if it cannot be folded.

    BN(X)                              = scale * X + shift
    s2 * (s1 * X + t1) + t2            = (s2 s1) * X + (s2 t1 + t2)

On targets that accept only standard ONNX the chain becomes fewer standard nodes: one BatchNormalization if the chain
has one, or else at most one Mul and one Add.

Why it is legal: at inference BatchNormalization is an affine map of each channel (Ioffe and Szegedy, ICML 2015), and
affine maps compose; they are combined in float64 and cast once.

Conditions: inference mode; every parameter is a constant; intermediate values are read once and are not graph outputs;
the rank of X is known (scale and shift are written as [C, 1, .., 1]); at least one constant of a chain varies along
axis 1 (chains of scalars belong to activations and masks), and none along another axis; X is float or float16; no node
is the scale or shift of a written-out norm that runtimes fuse as a whole. The pass runs after folding, and after the
passes that fuse whole norms, because the last Mul and Add of a norm have the same form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.forms.affine import (
    ELEMENTWISE,
    Affine,
    batch_norm_affine,
    elementwise_affine,
    elementwise_operands,
    per_channel,
    require_finite,
)
from graphopt.forms.row_statistics import fused_by_runtimes
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import is_read_once
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN
from graphopt.ops.schema import MIN_OPSET, Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal
from graphopt.targets.profit import Candidate

SCALE_SHIFT = (DOMAIN, "ScaleShift")
BATCH_NORM = ("", "BatchNormalization")
AFFINE = ELEMENTWISE | {SCALE_SHIFT}


@dataclass(frozen=True)
class ScaleShiftMatch:
    """A BatchNormalization, or a chain of affine nodes.

    Attributes:
        nodes: the nodes, producers first.
        maps: the affine map of each node.
        standard: whether they become standard operators.
    """

    nodes: tuple[ir.Node, ...]
    maps: tuple[Affine, ...]
    standard: bool = False

    @property
    def X(self) -> ir.Value:
        return self.maps[0].X


@dataclass(frozen=True)
class ScaleShiftPlan:
    """A chain with its combined map.

    Attributes:
        match: the nodes.
        scale, shift: the combined map in X's dtype, [C, 1, .., 1].
    """

    match: ScaleShiftMatch
    scale: Array
    shift: Array


class ScaleShift(Pass[ScaleShiftMatch, ScaleShiftPlan]):
    name = "scale_shift"
    equation = "BN(X), or a chain of per-channel Mul and Add -> ScaleShift(X) = scale X + shift"
    numerics = Numerics.REASSOCIATED
    anchors = AFFINE | {BATCH_NORM}
    fallback = True

    def match(self, node: ir.Node, editor: Editor) -> ScaleShiftMatch | None:
        if not editor.target.custom_ops and (chain := _standard_chain(node, editor)) is not None:
            return chain
        if (node.domain, node.op_type) == BATCH_NORM:
            return ScaleShiftMatch((node,), (batch_norm_affine(node, editor),))
        # Most affine nodes have no affine producer. Constants are read only if there is one.
        first = _affine_producer(node, editor)
        if first is None or (last := _affine(node, editor)) is None or (before := _affine(first, editor)) is None:
            return None
        maps = (before, last)
        if not any(_varies(m) for m in maps) or any(_varies_elsewhere(m, editor.shapes.rank(before.X)) for m in maps):
            return None
        return ScaleShiftMatch((first, node), maps)

    def legal(self, match: ScaleShiftMatch, editor: Editor) -> ScaleShiftPlan:
        node, x = match.nodes[0], match.X
        for member in match.nodes:
            if (norm := fused_by_runtimes(member, editor)) is not None:
                raise Refusal(Code.NO_GAIN, f"the node is part of {norm}, which runtimes fuse as a whole", node)
        if not match.standard:
            editor.require_op("ScaleShift", x, node)
        dtype = editor.require_dtype(x, node)
        dims = editor.require_dims(x, node, least=2)
        C = max(m.scale.size for m in match.maps)
        channels = dims[1].value
        if channels not in (None, C):
            raise Refusal(
                Code.WRONG_SHAPE, f"the constant has {C} elements, and the data has {channels} channels", node
            )
        if channels is None and (node.domain, node.op_type) in ELEMENTWISE:
            # Axis 1 of X could have size 1 and be broadcast; BatchNormalization and ScaleShift exclude that.
            raise Refusal(Code.UNKNOWN_SHAPE, f"the number of channels of {x.name} is not known", node)
        scale, shift = np.ones(C), np.zeros(C)
        for m, owner in zip(match.maps, match.nodes):
            is_norm = (owner.domain, owner.op_type) == BATCH_NORM
            s, t = (a if is_norm else per_channel(a, len(dims), 1, C, owner) for a in (m.scale, m.shift))
            scale, shift = s * scale, s * shift + t
        column = (C, *([1] * (len(dims) - 2)))
        return ScaleShiftPlan(
            match,
            require_finite(scale.reshape(column), dtype.numpy(), "the scale", node),
            require_finite(shift.reshape(column), dtype.numpy(), "the shift", node),
        )

    def candidate(self, plan: ScaleShiftPlan, editor: Editor) -> Candidate | None:
        match = plan.match
        if match.standard:
            return None
        return editor.candidate("ScaleShift", (match.X,), match.nodes[-1].outputs[0], match.nodes[-1])

    def rewrite(self, plan: ScaleShiftPlan, editor: Editor) -> str:
        nodes, x = plan.match.nodes, plan.match.X
        if plan.match.standard:
            return _rewrite_standard(plan, editor)
        last = nodes[-1]
        label = last.name or last.outputs[0].name
        scale = editor.initializer(last, plan.scale, f"{label}_scale")
        shift = editor.initializer(last, plan.shift, f"{label}_shift")
        # Unlike BatchNormalization, ScaleShift tells shape inference the number of channels.
        editor.needs_inference |= editor.shapes.dim(x, 1).value != len(plan.scale)
        new = Builder(editor, last).emit("ScaleShift", [x, scale, shift], {})
        editor.replace(list(nodes), [new], {last.outputs[0]: new.outputs[0]}, anchor=last)
        return f"{' and '.join(n.op_type for n in nodes)} became ScaleShift"


def _standard_chain(node: ir.Node, editor: Editor) -> ScaleShiftMatch | None:
    """Returns the chain of affine nodes that ends in `node` if fewer standard nodes can replace it, or None."""
    nodes: list[ir.Node] = []
    maps: list[Affine] = []
    current: ir.Node | None = node
    while current is not None and current.graph is node.graph and editor.opset(current) >= MIN_OPSET:
        is_norm = (current.domain, current.op_type) == BATCH_NORM
        try:
            found = batch_norm_affine(current, editor) if is_norm else elementwise_affine(current, editor)
        except Refusal:
            break
        if found is None or (not is_norm and _varies_elsewhere(found, editor.shapes.rank(found.X))):
            break
        nodes.insert(0, current)
        maps.insert(0, found)
        if not is_read_once(found.X):
            break
        current = found.X.producer()
    if not any(_varies(m) for m in maps):
        return None
    operators = 1 if any((n.domain, n.op_type) == BATCH_NORM for n in nodes) else max(1, _operators(maps))
    return ScaleShiftMatch(tuple(nodes), tuple(maps), standard=True) if len(nodes) > operators else None


def _operators(maps: list[Affine]) -> int:
    """Returns an upper bound of the number of Mul and Add nodes that the combined map needs."""
    return any(np.any(m.scale != 1) for m in maps) + any(np.any(m.shift != 0) for m in maps)


def _rewrite_standard(plan: ScaleShiftPlan, editor: Editor) -> str:
    nodes, x, scale, shift = plan.match.nodes, plan.match.X, plan.scale, plan.shift
    last = nodes[-1]
    builder = Builder(editor, last)
    if any((n.domain, n.op_type) == BATCH_NORM for n in nodes):
        constants = {"scale": scale, "shift": shift, "mean": np.zeros_like(scale), "variance": np.ones_like(scale)}
        inputs = [builder.initializer(array.reshape(-1), f"_{name}") for name, array in constants.items()]
        x = builder.op("BatchNormalization", x, *inputs, epsilon=0.0)
    else:
        constants = {"Mul": scale} if np.any(scale != 1) else {}
        if np.any(shift != 0) or not constants:  # an identity map becomes one Add of 0
            constants["Add"] = shift
        for op, array in constants.items():
            x = builder.op(op, x, builder.initializer(array, f"_{op}"), _like=last.outputs[0])
    editor.replace(list(nodes), builder.nodes, {last.outputs[0]: x}, anchor=last)
    return f"{' and '.join(n.op_type for n in nodes)} became {' and '.join(n.op_type for n in builder.nodes)}"


def _is_scale_shift(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == SCALE_SHIFT


def _affine_producer(node: ir.Node, editor: Editor) -> ir.Node | None:
    """Returns the affine node before `node` if only `node` reads its result. Reads no constants.

    Raises:
        Refusal: OVERRIDABLE: callers may override the constant of `node`, and an affine node precedes it. Without that
            affine node, `node` is not a candidate.
    """
    refused: Refusal | None = None
    if _is_scale_shift(node):
        operands = node.inputs[:1]
    else:
        try:
            found = elementwise_operands(node, editor)
            operands = () if found is None else found[:1]
        except Refusal as why:
            refused, operands = why, node.inputs
    for x in operands:
        first = None if x is None else x.producer()
        if x is None or first is None or first.graph is not node.graph or not is_read_once(x):
            continue
        if (first.domain, first.op_type) in AFFINE:
            if refused is not None:
                raise refused
            return first
    return None


def _affine(node: ir.Node, editor: Editor) -> Affine | None:
    if not _is_scale_shift(node):
        return elementwise_affine(node, editor)
    x, scale, shift = node.inputs
    s, t = editor.constant(scale), editor.constant(shift)
    return None if x is None or s is None or t is None else Affine(x, s.astype(np.float64), t.astype(np.float64))


def _varies(m: Affine) -> bool:
    return m.scale.size > 1


def _varies_elsewhere(m: Affine, rank: int | None) -> bool:
    """Returns whether the constant is known to vary along an axis other than 1."""
    if rank is None or m.scale.size == 1:
        return False
    axis = 1 - (rank - m.scale.ndim)
    return not 0 <= axis < m.scale.ndim or m.scale.shape[axis] != m.scale.size
