"""Fuses LayerNorm and RMSNorm over the last axis, with the residual sum before them, and LayerNorm over axis 1.

    LayerNorm: Y = gamma * (S - mean(S)) / sqrt(var(S) + epsilon) + beta
    RMSNorm:   Y = gamma * S / sqrt(mean(S^2) + epsilon)                      S = X + R
    factored:  Y = S f + (beta - mean(S) f), f = gamma / sqrt(var(S) + epsilon)   (TensorFlow, Keras)

A written-out LayerNorm becomes FusedLayerNorm, or FusedLayerNormAdd if its input is a residual sum (AddSum if another
node reads the sum); a written-out RMSNorm becomes FusedRmsNorm[Add[Sum]]. A LayerNormalization or RMSNormalization
with a residual sum before it becomes the same fused operator. Without a residual sum this happens only on CPUs, where
our kernel is faster. On GPU targets the node is refused with NO_GAIN, unless a scale and a shift for each image follow
it (ada_layer_norm.py).

A LayerNorm over axis 1 (LayerNorm2d of SAM and ConvNeXt), written out or between two Transposes that move the channels
to the end and back, becomes FusedLayerNorm2d.

For targets without our operators a written-out LayerNorm becomes LayerNormalization(X - mean(X)) from opset 17 on. The
mean is subtracted first because runtimes may compute the variance as E[X^2] - E[X]^2 (onnxruntime 1.22 does). For rows
far from zero that gives errors of 4e-3 of the RMS, or NaN; the written-out nodes give 5e-6. Runtimes fuse one form
themselves (squares by Pow, then Div, gamma and beta): it is refused with NO_GAIN. On portable targets a written-out
RMSNorm becomes RMSNormalization from opset 23 on.

Why it is legal: LayerNorm of X - c equals that of X for any c that is constant in a row. The fused operators are
defined by these equations with statistics in at least float32. Half-precision models request float32 statistics by
Casts, which this pass removes.

Conditions: all means are over the last axis only, or, for a LayerNorm on targets with our operators, over axis 1 of
three or more axes; the axis has a static length that is not 1; gamma and beta are constants along it; epsilon is a
constant; no other node reads an intermediate value; both operands of the sum are proven to have the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from graphopt.forms.modulation import is_modulated
from graphopt.forms.row_statistics import RowNorm, is_deviation, match_factored_norm, match_row_norm, reduced_axes
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import first_opset
from graphopt.graph.view import (
    attribute_float,
    attribute_int,
    attribute_ints,
    is_read_once,
    other_input,
    producer_of,
    require_contained,
    require_input,
    sole_reader,
    to_channels_first,
    to_channels_last,
)
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class RowNormMatch:
    """One normalisation.

    Attributes:
        nodes: the nodes to remove, without the residual sum.
        X: the value that is normalised, before a Cast to float32 if there is one.
        centred: X - mean(X), after the Cast, of a written-out LayerNorm; mean(X) - X if `mean_first`.
        Y: the result, with scale and shift.
        gamma, beta: scale and shift [D], or None.
        rms: whether it is an RMSNorm, without mean and shift.
        D: the length of the normalised axis.
        residual: the Add that produces X, if it can be fused.
        standard: whether the norm is a standard node, not written out.
        over_channels: whether it normalises over axis 1 instead of the last.
    """

    nodes: tuple[ir.Node, ...]
    X: ir.Value
    centred: ir.Value | None
    Y: ir.Value
    gamma: Array | None
    beta: Array | None
    epsilon: float
    rms: bool
    D: int
    residual: ir.Node | None
    standard: bool
    mean_first: bool = False
    over_channels: bool = False

    @property
    def base(self) -> str:
        """The name of our operator without residual sum."""
        return "FusedRmsNorm" if self.rms else "FusedLayerNorm2d" if self.over_channels else "FusedLayerNorm"


# No real model has longer rows; a new gamma of that length could exhaust the memory.
MAX_COLUMNS = 2**24


class FuseRowNorm(Pass[RowNormMatch, RowNormMatch]):
    name = "fuse_row_norm"
    equation = "ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add -> FusedLayerNorm[Add] / FusedRmsNorm[Add]"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "Sqrt"), ("", "LayerNormalization"), ("", "RMSNormalization")})

    def match(self, node: ir.Node, editor: Editor) -> RowNormMatch | None:
        match = _match_written_out(node, editor) if node.op_type == "Sqrt" else _match_standard(node, editor)
        return match if match is None else _between_transposes(match, editor)

    def legal(self, match: RowNormMatch, editor: Editor) -> RowNormMatch:
        anchor = match.nodes[0]
        editor.require_dtype(match.X, anchor)
        require_contained(_replaced(match, editor), match.Y)
        if not _becomes_standard(match, editor):
            editor.require_op(match.base, match.X, anchor)
        return match

    def candidate(self, plan: RowNormMatch, editor: Editor) -> Candidate | None:
        if _becomes_standard(plan, editor):
            return _standard_candidate(plan, editor)
        # On CPUs our kernel takes a third to two thirds of the runtime's time (docs/measurements/norms_cpu.md).
        alone = plan.standard and plan.residual is None and not plan.over_channels and not is_modulated(plan.Y, editor)
        no_gain = "ONNX Runtime's kernel is as fast" if alone and editor.target.device != "cpu" else ""
        op = plan.base + ("Add" if plan.residual is not None else "")
        return editor.candidate(op, (plan.X,), plan.Y, plan.nodes[0], no_gain)

    def rewrite(self, plan: RowNormMatch, editor: Editor) -> str:
        anchor = plan.Y.producer()
        assert anchor is not None
        if _becomes_standard(plan, editor):
            return _write_standard(plan, anchor, editor)
        dtype = (editor.dtype(plan.X) or ir.DataType.FLOAT).numpy()
        label = plan.Y.name or "norm"
        gamma = np.ones(plan.D) if plan.gamma is None else plan.gamma
        parameters = [editor.initializer(anchor, gamma.astype(dtype), f"{label}_gamma")]
        if not plan.rms:
            beta = np.zeros(plan.D) if plan.beta is None else plan.beta
            parameters.append(editor.initializer(anchor, beta.astype(dtype), f"{label}_beta"))
        base, add = plan.base, plan.residual
        if add is None:
            new = Builder(editor, anchor).emit(base, [plan.X, *parameters], {"epsilon": plan.epsilon})
            editor.replace(list(plan.nodes), [new], {plan.Y: new.outputs[0]}, anchor=anchor)
            return became(len(plan.nodes), new.op_type)
        total = add.outputs[0]
        readers = [u for u in total.consumers() if u not in plan.nodes]
        suffix = "AddSum" if readers or total.is_graph_output() else "Add"
        operands = [v for v in add.inputs if v is not None]
        new = Builder(editor, anchor).emit(base + suffix, [*operands, *parameters], {"epsilon": plan.epsilon})
        # Readers of the sum may be before the norm, so the fused node takes the position of the Add.
        outputs = {plan.Y: new.outputs[0]}
        if suffix == "AddSum":
            outputs[total] = new.outputs[1]
        editor.replace([*plan.nodes, add], [new], outputs, anchor=add)
        return became(len(plan.nodes) + 1, new.op_type)


def _becomes_standard(match: RowNormMatch, editor: Editor) -> bool:
    if match.standard or editor.target.custom_ops:
        return False
    opset = editor.opset(match.nodes[0])
    if match.rms:
        return opset >= first_opset("RMSNormalization") and editor.target.device == "portable"
    return opset >= first_opset("LayerNormalization")


def _replaced(match: RowNormMatch, editor: Editor) -> tuple[ir.Node, ...]:
    """Returns the nodes to remove. The mean and X - mean(X) before a new standard node are kept."""
    if match.centred is None or not _becomes_standard(match, editor):
        return match.nodes
    centre = match.centred.producer()
    assert centre is not None
    kept = (centre, *(producer_of(v, "ReduceMean") for v in centre.inputs))
    return tuple(node for node in match.nodes if node not in kept)


def _standard_candidate(match: RowNormMatch, editor: Editor) -> Candidate | None:
    operators = {node.op_type for node in match.nodes}
    known = {"Pow", "Div"} <= operators and "Cast" not in operators
    if match.rms or not known or match.gamma is None or match.beta is None:
        return None
    no_gain = "runtimes fuse this form to LayerNormalization themselves"
    return editor.candidate("LayerNormalization", (match.X,), match.Y, match.nodes[0], no_gain)


def _write_standard(match: RowNormMatch, anchor: ir.Node, editor: Editor) -> str:
    x, label = match.centred or match.X, match.Y.name or "norm"
    dtype, x_dtype = editor.dtype(x), editor.dtype(match.X)
    assert dtype is not None
    gamma = np.ones(match.D) if match.gamma is None else match.gamma
    gamma = -gamma if match.mean_first else gamma
    builder = Builder(editor, anchor, label)
    parameters = [builder.initializer(gamma.astype(dtype.numpy()), "_gamma")]
    if match.beta is not None:
        parameters.append(builder.initializer(match.beta.astype(dtype.numpy()), "_beta"))
    op_type = "RMSNormalization" if match.rms else "LayerNormalization"
    y = builder.op(op_type, x, *parameters, axis=-1, epsilon=match.epsilon)
    if x_dtype is not None and dtype != x_dtype:
        y.dtype = dtype
        y = builder.cast(y, x_dtype)
    replaced = _replaced(match, editor)
    editor.replace(list(replaced), builder.nodes, {match.Y: y}, anchor=anchor)
    return became(len(replaced), op_type)


def _match_standard(node: ir.Node, editor: Editor) -> RowNormMatch | None:
    x, y = require_input(node, 0), node.outputs[0]
    axis, rank = attribute_int(node, "axis", -1), editor.shapes.rank(x)
    if axis != -1 and rank is None:
        raise Refusal(Code.UNKNOWN_RANK, f"the rank of {x.name} is not known", node)
    if not editor.shapes.is_last(axis, x):
        detail = f"the node normalises all axes from {axis} on, and the rank of its input is {rank}"
        raise Refusal(Code.WRONG_AXIS, detail, node)
    if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        raise Refusal(Code.ESCAPES, "another node reads the mean or the deviation", node)
    D = _last_dim(x, editor, node)
    # Below opset 17 LayerNormalization is ONNX Runtime's operator, which allows float16 data with float32 parameters.
    editor.require_equal_types((x, *node.inputs[1:], y), node)
    rms = node.op_type == "RMSNormalization"
    gamma = _row_parameter(editor.require_constant(node.inputs[1], "scale", node), D, node)
    beta = None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        beta = _row_parameter(editor.require_constant(node.inputs[2], "bias", node), D, node)
    if attribute_int(node, "stash_type", 1) != 1:
        raise Refusal(Code.ATTRIBUTE, "statistics are not in float32", node)
    epsilon = attribute_float(node, "epsilon", 1e-5)
    nodes, x = ((node,), x) if rms else _centring(x, node, editor)
    return RowNormMatch(nodes, x, None, y, gamma, beta, epsilon, rms, D, _residual(x, node, editor), standard=True)


def _centring(x: ir.Value, node: ir.Node, editor: Editor) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Returns a LayerNormalization and the redundant nodes before it that subtract the mean, and their common input."""
    centre = producer_of(x, "Sub")
    if centre is None or not is_read_once(x):
        return (node,), x
    source, mean = centre.inputs[0], producer_of(centre.inputs[1], "ReduceMean")
    if mean is None or source is None:
        return (node,), x
    rank = editor.shapes.rank(source)
    axes = reduced_axes(mean, rank, editor)
    is_mean_of_source = (
        mean.inputs[0] is source and attribute_int(mean, "keepdims", 1) and is_read_once(mean.outputs[0])
    )
    if not is_mean_of_source or axes != ((-1,) if rank is None else (rank - 1,)) or centre.graph is not node.graph:
        return (node,), x
    return (mean, centre, node), source


def _match_written_out(node: ir.Node, editor: Editor) -> RowNormMatch | None:
    core = match_row_norm(node, editor)
    factored = match_factored_norm(node, editor) if core is None else None
    if factored is not None:
        core = factored.norm
    if core is None:
        if is_deviation(node):
            why = "the deviation does not divide the value that it was computed from, or the axes are not static"
            raise Refusal(Code.UNSUPPORTED_OP, why, node)
        return None
    last = (-1,) if core.rank is None else (core.rank - 1,)
    over_channels = core.axes == (1,) != last and not core.rms and editor.target.custom_ops
    if core.axes != last and not over_channels:
        raise Refusal(Code.WRONG_AXIS, f"the mean is over axes {list(core.axes)} of rank {core.rank}", node)
    x = _before_widening(core.X, editor)
    D = _channels(core, editor, node) if over_channels else _last_dim(core.X, editor, node)
    tail = _Tail(core.Y, None, None, editor.dtype(core.X) == editor.dtype(x))
    if factored is not None:
        tail.gamma = _factored_parameter(factored.gamma, "gamma", core, D, editor)
        tail.beta = _factored_parameter(factored.beta, "beta", core, D, editor)
    while tail.fuse_reader(core, D, editor.dtype(x), editor):
        pass
    if not tail.has_type_of_x:
        raise Refusal(Code.MIXED_DTYPE, "the result is float32, and X is float16", node)
    nodes = (*core.nodes, *tail.nodes)
    return RowNormMatch(
        nodes, x, core.centred, tail.y, tail.gamma, tail.beta, core.epsilon, core.rms, D,
        None if over_channels else _residual(x, nodes[0], editor), standard=False, mean_first=core.mean_first,
        over_channels=over_channels,
    )  # fmt: skip


def _before_widening(x: ir.Value, editor: Editor) -> ir.Value:
    """Returns the float16 source of x if a Cast to float32 produces x, or x."""
    cast = producer_of(x, "Cast")
    source = cast.inputs[0] if cast is not None and editor.dtype(x) == ir.DataType.FLOAT else None
    return source if source is not None and editor.dtype(source) == ir.DataType.FLOAT16 else x


@dataclass
class _Tail:
    """The nodes after a norm that have been fused so far: a scale, a shift, and a Cast back to X's type.

    Attributes:
        y: the result of the last fused node.
        gamma, beta: scale and shift, or None.
        has_type_of_x: whether y has the type of X, possibly because of the Cast.
        nodes: the fused nodes.
    """

    y: ir.Value
    gamma: Array | None
    beta: Array | None
    has_type_of_x: bool
    nodes: list[ir.Node] = field(default_factory=list)

    def fuse_reader(self, core: RowNorm, D: int, x_dtype: ir.DataType | None, editor: Editor) -> bool:
        """Fuses the only reader of y if possible, and makes its result y; returns whether it did."""
        user = sole_reader(self.y)
        if user is None:
            return False
        if user.op_type == "Cast" and not self.has_type_of_x and attribute_int(user, "to", 0) == x_dtype:
            self.has_type_of_x = True
        elif user.op_type == "Mul" and self.gamma is None and self.beta is None:
            self.gamma = _operand(user, self.y, D, core, editor)
        elif user.op_type == "Add" and self.beta is None and not core.rms:
            self.beta = _operand(user, self.y, D, core, editor)
        else:
            return False
        if (user.op_type == "Mul" and self.gamma is None) or (user.op_type == "Add" and self.beta is None):
            return False
        self.nodes.append(user)
        self.y = user.outputs[0]
        return True


def _factored_parameter(value: ir.Value | None, what: str, core: RowNorm, D: int, editor: Editor) -> Array | None:
    if value is None:
        return None
    node = core.Y.producer()
    assert node is not None
    array = editor.require_constant(value, what, node)
    if array.ndim > 1 and (core.rank is None or array.ndim > core.rank):
        raise Refusal(Code.BROADCAST_GROWS, f"{what} has shape {array.shape}", node)
    return _row_parameter(array, D, node, _axes_after(core))


def _last_dim(x: ir.Value, editor: Editor, node: ir.Node) -> int:
    size = editor.shapes.last(x)
    return _length(None if size is None else size.value, "the last dimension", x, node)


def _channels(core: RowNorm, editor: Editor, node: ir.Node) -> int:
    dims = editor.shapes.dims(core.X) or editor.shapes.dims(core.centred)
    return _length(None if dims is None else dims[1].value, "the channels", core.X, node)


def _length(length: int | None, what: str, x: ir.Value, node: ir.Node) -> int:
    if length is None:
        raise Refusal(Code.UNKNOWN_SHAPE, f"{what} of {x.name} is not known", node)
    if length == 1:
        # LayerNormalization of onnxruntime 1.22 rejects rows of one element.
        raise Refusal(Code.WRONG_SHAPE, f"{x.name} has rows of one element", node)
    if not 0 <= length <= MAX_COLUMNS:
        raise Refusal(Code.WRONG_SHAPE, f"{x.name} has rows of {length} elements, which are too many", node)
    return length


def _axes_after(core: RowNorm) -> int:
    """Returns the number of axes of X after the normalised one."""
    return 0 if core.rank is None else core.rank - 1 - core.axes[0]


def _row_parameter(array: Array, D: int, node: ir.Node, axes_after: int = 0) -> Array:
    if array.size != 1 and not _is_along_axis(array, D, axes_after):
        raise Refusal(Code.WRONG_SHAPE, f"a parameter has shape {array.shape}, and a row has {D} elements", node)
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (D,))


def _is_along_axis(array: Array, D: int, axes_after: int) -> bool:
    """Returns whether an array has D elements, all along the axis before its last `axes_after` axes."""
    return array.size == D and array.ndim > axes_after and array.shape[array.ndim - 1 - axes_after] == D


def _operand(node: ir.Node, y: ir.Value, D: int, core: RowNorm, editor: Editor) -> Array | None:
    """Returns the operand of a Mul or Add as [D]; None unless it is a constant scalar or row and keeps y's shape."""
    array = editor.constant(other_input(node, y))
    rank = editor.shapes.rank(y)
    if array is None or (array.size != 1 and not _is_along_axis(array, D, _axes_after(core))):
        return None
    if array.ndim > 1 and (rank is None or array.ndim > rank):
        return None  # leading dimensions of size 1 in the constant would increase the rank of the result
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (D,))


def _residual(x: ir.Value, first: ir.Node, editor: Editor) -> ir.Node | None:
    """Returns the Add that produces x in the norm's graph if its operands have the same shape and element type."""
    add = producer_of(x, "Add")
    if add is None or add.graph is not first.graph:
        return None
    dims = [editor.shapes.dims(v) for v in add.inputs]
    same_type = len(editor.known_types(add.inputs)) <= 1
    return add if dims[0] is not None and dims[0] == dims[1] and same_type else None


def _between_transposes(match: RowNormMatch, editor: Editor) -> RowNormMatch:
    """Converts a match over the last axis between two Transposes to one over axis 1; otherwise returns the match."""
    to_end, back = producer_of(match.X, "Transpose"), sole_reader(match.Y, "Transpose")
    rank = editor.shapes.rank(match.X)
    if to_end is None or back is None or rank is None or rank < 3 or match.rms or match.over_channels:
        return match
    x, graph = to_end.inputs[0], match.nodes[0].graph
    perms = [attribute_ints(node, "perm", ()) for node in (to_end, back)]
    if x is None or perms != [to_channels_last(rank), to_channels_first(rank)] or not editor.target.custom_ops:
        return match
    if to_end.graph is not graph or back.graph is not graph:
        return match
    # The Transpose to the end is kept if another node reads it.
    front = () if any(reader not in match.nodes for reader in match.X.consumers()) else (to_end,)
    nodes = (*match.nodes, *(() if match.X.is_graph_output() else front), back)
    return replace(match, nodes=nodes, X=x, Y=back.outputs[0], over_channels=True)
