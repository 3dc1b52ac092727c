"""GroupNorm in every exported form becomes FusedGroupNorm.

    Y = gamma * (X - mean) / sqrt(var + epsilon) + beta        mean and var per image and group of channels

Forms: Reshape - InstanceNormalization - Reshape [- Mul] [- Add] (both torch exporters up to opset 20), the standard
GroupNormalization (18: scale per group, 21: per channel), and the same Reshapes around written-out statistics
(ReduceMean - Sub - square - ReduceMean - Add - Sqrt - Div).

Why it is legal: a Reshape of [N, C, ...] to [N, G, -1] keeps the order of elements. If G divides C, a row of the
reshaped tensor holds C / G consecutive channels of one image, which are a group. InstanceNormalization normalises those
rows; its scale and bias, one for each group, fold into gamma and beta. The second Reshape restores X's shape.

On targets that accept only standard ONNX, GroupNormalization becomes the form that exporters write. ONNX Runtime has no
kernel for GroupNormalization and runs its function body; MIGraphX parses only version 18.

Conditions: X has a known rank >= 3 and a static C that G divides; the first Reshape is proven to group the channels,
the second to restore X's shape; scale, bias, gamma and beta are constants along the channel axis; no other node reads
an intermediate value.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import ne

import numpy as np
import onnx_ir as ir

from graphopt.forms.row_statistics import match_row_norm
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import GROUP_NORM_OF_CHANNELS_OPSET
from graphopt.graph.traversal import tensor_dims
from graphopt.graph.view import (
    attribute_float,
    attribute_int,
    other_input,
    producer_of,
    require_contained,
    require_input,
    sole_reader,
)
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class GroupNormMatch:
    """The nodes to remove, and the inputs and attributes of the fused node; gamma and beta are float64 [C]."""

    nodes: tuple[ir.Node, ...]
    X: ir.Value
    Y: ir.Value
    gamma: Array
    beta: Array
    num_groups: int
    epsilon: float


class FuseGroupNorm(Pass[GroupNormMatch, GroupNormMatch]):
    name = "fuse_group_norm"
    equation = "Reshape, InstanceNormalization, Reshape, Mul, Add -> FusedGroupNorm"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "InstanceNormalization"), ("", "GroupNormalization"), ("", "Sqrt")})

    def match(self, node: ir.Node, editor: Editor) -> GroupNormMatch | None:
        if node.op_type == "GroupNormalization":
            return _match_standard(node, editor)
        if node.op_type == "InstanceNormalization":
            return _match_instance_norm(node, editor)
        return _match_written_out(node, editor)

    def legal(self, match: GroupNormMatch, editor: Editor) -> GroupNormMatch:
        anchor = match.nodes[0]
        if editor.target.custom_ops:
            editor.require_op("FusedGroupNorm", match.X, anchor)
        elif anchor.op_type != "GroupNormalization":
            raise Refusal(
                Code.TARGET,
                "GroupNormalization is slower in ONNX Runtime, and MIGraphX does not support version 21",
                anchor,
            )
        elif editor.dtype(match.X) == ir.DataType.FLOAT16:
            raise Refusal(Code.WRONG_DTYPE, "InstanceNormalization may compute float16 statistics in float16", anchor)
        editor.require_dtype(match.X, anchor)
        require_contained(match.nodes, match.Y)
        return match

    def candidate(self, plan: GroupNormMatch, editor: Editor) -> Candidate:
        return editor.candidate("FusedGroupNorm", (plan.X,), plan.Y, plan.nodes[0])

    def rewrite(self, plan: GroupNormMatch, editor: Editor) -> str:
        anchor = plan.Y.producer()
        assert anchor is not None
        dtype = editor.dtype(plan.X)
        assert dtype is not None  # `legal` requires one of FLOATS
        name = plan.Y.name or "group_norm"
        if not editor.target.custom_ops:
            return _write_out(plan, anchor, editor)
        gamma = editor.initializer(anchor, plan.gamma.astype(dtype.numpy()), f"{name}_gamma")
        beta = editor.initializer(anchor, plan.beta.astype(dtype.numpy()), f"{name}_beta")
        attributes = {"num_groups": plan.num_groups, "epsilon": plan.epsilon}
        fused = Builder(editor, anchor).emit("FusedGroupNorm", [plan.X, gamma, beta], attributes)
        editor.replace(list(plan.nodes), [fused], {plan.Y: fused.outputs[0]}, anchor=anchor)
        return became(len(plan.nodes), f"FusedGroupNorm, {plan.gamma.size} channels in {plan.num_groups} groups")


def _write_out(match: GroupNormMatch, anchor: ir.Node, editor: Editor) -> str:
    """Writes Reshape - InstanceNormalization - Reshape - Mul - Add in float32."""
    sizes, name = editor.shapes.dims(match.X), match.Y.name or "group_norm"
    assert sizes is not None
    b = Builder(editor, anchor, name)
    ones = b.initializer(np.ones(match.num_groups, np.float32), "_ones")
    zeros = b.initializer(np.zeros(match.num_groups, np.float32), "_zeros")
    groups = b.initializer(np.array([0, match.num_groups, -1]), "_groups")
    grouped = b.op("Reshape", match.X, groups, _dtype=FLOAT)
    normalized = b.op("InstanceNormalization", grouped, ones, zeros, epsilon=match.epsilon, _dtype=FLOAT)
    dims = [0, *(-1 if d.value is None else d.value for d in sizes[1:])]  # 0 copies X's dimension
    static = dims.count(-1) < 2
    whole = b.initializer(np.array(dims), "_shape") if static else b.op("Shape", match.X, _dtype=ir.DataType.INT64)
    column = (match.gamma.size, *(1 for _ in sizes[2:]))
    gamma, beta = (array.astype(np.float32).reshape(column) for array in (match.gamma, match.beta))
    restored = b.op("Reshape", normalized, whole, _dtype=FLOAT)
    scaled = b.op("Mul", restored, b.initializer(gamma, "_gamma"), _dtype=FLOAT)
    y = b.op("Add", scaled, b.initializer(beta, "_beta"), _dtype=FLOAT)
    editor.replace(list(match.nodes), b.nodes, {match.Y: y}, anchor=anchor)
    return "GroupNormalization became Reshape, InstanceNormalization, Reshape, Mul, Add"


def _channels(x: ir.Value, editor: Editor, node: ir.Node) -> int:
    C = editor.require_dims(x, node, least=3)[1].value
    if C is None:
        raise Refusal(Code.UNKNOWN_SHAPE, f"the number of channels of {x.name} is not known", node)
    return C


def _match_standard(node: ir.Node, editor: Editor) -> GroupNormMatch:
    x, (scale, bias) = require_input(node, 0), node.inputs[1:3]
    C = _channels(x, editor, node)
    groups = attribute_int(node, "num_groups", 0)
    if groups <= 0 or C % groups:
        raise Refusal(Code.WRONG_SHAPE, f"{groups} groups do not divide {C} channels", node)
    if attribute_int(node, "stash_type", 1) != 1:
        raise Refusal(Code.ATTRIBUTE, "statistics are not in float32", node)
    size = groups if editor.opset(node) < GROUP_NORM_OF_CHANNELS_OPSET else C
    parameters = []
    for value, what in ((scale, "scale"), (bias, "bias")):
        array = editor.require_constant(value, what, node).reshape(-1)
        if array.size != size:
            raise Refusal(Code.WRONG_SHAPE, f"{what} has {array.size} elements, not {size}", node)
        parameters.append(np.repeat(array.astype(np.float64), C // size))
    epsilon = attribute_float(node, "epsilon", 1e-5)
    return GroupNormMatch((node,), x, node.outputs[0], parameters[0], parameters[1], groups, epsilon)


def _match_instance_norm(node: ir.Node, editor: Editor) -> GroupNormMatch | None:
    grouped, (scale, bias) = require_input(node, 0), node.inputs[1:3]
    before = producer_of(grouped, "Reshape")
    if before is None:
        return None  # a plain InstanceNormalization
    s = editor.require_constant(scale, "scale", node).reshape(-1).astype(np.float64)
    b = editor.require_constant(bias, "bias", node).reshape(-1).astype(np.float64)
    epsilon = attribute_float(node, "epsilon", 1e-5)
    return _between_reshapes(before, (node,), node.outputs[0], s, b, epsilon, editor)


def _match_written_out(node: ir.Node, editor: Editor) -> GroupNormMatch | None:
    statistics = match_row_norm(node, editor)
    if statistics is None or statistics.rms:
        return None
    before = producer_of(statistics.X, "Reshape")
    if before is None:
        return None
    dims = editor.shapes.dims(statistics.X)
    axes = statistics.axes
    if dims is None or len(dims) < 3 or axes != tuple(range(2, len(dims))):
        return None
    groups = dims[1].value
    if groups is None:
        raise Refusal(Code.UNKNOWN_SHAPE, f"the number of groups of {statistics.X.name} is not known", node)
    ones, zeros = np.ones(groups), np.zeros(groups)
    return _between_reshapes(before, statistics.nodes, statistics.Y, ones, zeros, statistics.epsilon, editor)


def _between_reshapes(
    before: ir.Node, core: tuple[ir.Node, ...], normalized: ir.Value, s: Array, b: Array, epsilon: float, editor: Editor
) -> GroupNormMatch | None:
    """Matches the nodes around `core`, which normalises the rows of `before`'s output.

    `core` multiplies each row by an element of s [groups] and adds one of b [groups].
    """
    x, grouped = before.inputs[0], before.outputs[0]
    reshapes = [u for u in normalized.consumers() if u.op_type == "Reshape" and u.inputs[0] is normalized]
    if x is None or not reshapes:
        return None
    after = reshapes[0]
    C = _channels(x, editor, before)
    groups = s.size
    shape = editor.shapes.dims(x)
    assert shape is not None
    if C % groups:
        raise Refusal(Code.WRONG_SHAPE, f"{groups} groups do not divide {C} channels", before)
    # [N, G, -1], or [N, G, C / G, ...] for the written-out form.
    dims = editor.shapes.reshaped(before) or editor.shapes.dims(grouped)
    if dims is None or len(dims) < 2 or dims[0] != shape[0] or dims[1].value != groups:
        raise Refusal(Code.UNKNOWN_SHAPE, f"it is not proven that {grouped.name} has shape [N, {groups}, ...]", before)
    if not restores_shape(after, x, editor):
        raise Refusal(
            Code.UNKNOWN_SHAPE, f"it is not proven that {after.outputs[0].name} has the shape of {x.name}", after
        )
    gamma, beta = np.repeat(s, C // groups), np.repeat(b, C // groups)
    nodes, y = [before, *core, after], after.outputs[0]
    rank = len(shape)
    for op_type in ("Mul", "Add"):
        user = sole_reader(y, op_type)
        if user is None:
            continue
        parameter = channel_parameter(other_input(user, y), rank, C, editor)
        if parameter is None:
            break
        gamma, beta = (gamma * parameter, beta * parameter) if op_type == "Mul" else (gamma, beta + parameter)
        nodes.append(user)
        y = user.outputs[0]
    return GroupNormMatch(tuple(nodes), x, y, gamma, beta, groups, epsilon)


def channel_parameter(value: ir.Value | None, rank: int, C: int, editor: Editor) -> Array | None:
    """Returns a constant as [C] in float64 if it varies only along axis 1 of a tensor of rank `rank`, or None."""
    tensor = editor.tensor(value)
    if tensor is None:
        return None
    dims = tensor_dims(tensor)
    if len(dims) > rank:
        return None
    aligned = (1,) * (rank - len(dims)) + dims
    if aligned[1] not in (1, C) or any(d != 1 for i, d in enumerate(aligned) if i != 1):
        return None
    return np.broadcast_to(tensor.numpy().astype(np.float64).reshape(-1), (C,))


def restores_shape(reshape: ir.Node, like: ir.Value, editor: Editor) -> bool:
    """Returns whether the Reshape's result is proven to have the shape of `like`, given an equal number of elements."""
    shapes = editor.shapes
    wanted, found = shapes.dims(like), (shapes.reshaped(reshape), shapes.dims(reshape.outputs[0]))
    # The number of elements is the same, so one dimension follows from the others.
    return wanted is not None and any(
        got is not None and len(got) == len(wanted) and sum(map(ne, got, wanted)) <= 1 for got in found
    )
