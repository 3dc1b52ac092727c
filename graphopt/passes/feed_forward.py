"""A fully connected layer and its activation or residual sum become one node, on GPUs and, if large, on CPUs.

    act(MatMul(X, W) + b) -> Linear<act>(X, W, b);  MatMul(X, W) + b + R -> LinearAdd(X, W, b, R)

A Gemm is matched like a MatMul with its bias.

Why it is legal: the operators are defined by these equations.

Conditions: W is a constant matrix, b a constant that adds one value to each column; no other node reads a value between
the GEMM and the result; R is proven to have the shape of the sum, so nothing broadcasts; all types are float, or all
are float16; a Gemm has alpha = beta = 1 and does not transpose X. Nodes that our operators cannot fuse remain after the
Linear.

Where it is faster: on GPUs, because without it our provider runs bias, activation and residual sum as separate kernels,
and a written-out activation as several. Linear is the vendor's GEMM with an epilogue or one more kernel, or our GEMM.
On CPUs ONNX Runtime fuses bias and activation itself. There our GEMM is faster only in float32, if the weight is large
or if X is known to have many rows (`linear_is_faster`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from graphopt.forms.activation import Form, form_of
from graphopt.forms.affine import row_of_columns
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes import sizes
from graphopt.graph.traversal import tensor_dims
from graphopt.graph.view import (
    attribute_float,
    attribute_int,
    other_input,
    producer_of,
    require_contained,
    require_input,
    require_one_graph,
    require_read_once,
    sole_reader,
)
from graphopt.metadata import Numerics
from graphopt.ops import OPS
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.cpu import linear_is_faster, linear_time
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class LinearMatch:
    """A GEMM with its bias and the activation or residual sum that follows.

    Attributes:
        gemm: the MatMul or Gemm.
        bias: the Add after a MatMul, or `gemm` itself.
        b: the bias, or None.
        form: the activation, or None.
        add: the Add of the residual, or None; never set together with `form`.
        precision: suffix of the operator's name.
    """

    gemm: ir.Node
    bias: ir.Node
    b: ir.Value | None
    form: Form | None = None
    add: ir.Node | None = None
    precision: str = ""

    @property
    def name(self) -> str:
        tail = self.form.suffix if self.form is not None else "" if self.add is None else "Add"
        return f"Linear{tail}{self.precision}"

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes in topological order."""
        rest = (self.add,) if self.add is not None else () if self.form is None else self.form.nodes
        return (*dict.fromkeys((self.gemm, self.bias)), *rest)

    @property
    def Y(self) -> ir.Value:
        return self.nodes[-1].outputs[0]

    @property
    def residual(self) -> ir.Value | None:
        if self.add is None:
            return None
        return other_input(self.add, self.bias.outputs[0])


class FeedForward(Pass[LinearMatch, LinearMatch]):
    name = "feed_forward"
    equation = "act(MatMul(X, W) + b) -> Linear<act>;  MatMul(X, W) + b + R -> LinearAdd"
    numerics = Numerics.REASSOCIATED
    hides_from_bfloat16 = True
    anchors = frozenset({("", "MatMul"), ("", "Gemm")})

    def match(self, node: ir.Node, editor: Editor) -> LinearMatch | None:
        match = layer_at(node, editor)
        if match is None:
            return None
        form, add, w = match.form, match.add, node.inputs[1]
        if _is_graph_input(w) and (form is not None or add is not None):
            editor.require_constant(w, "the weight", node)
        if not _is_faster(match, editor):
            if form is None and add is None:
                return None
            layer = [node.op_type, *(["bias"] if match.bias is not node else []), form.suffix if form else "residual"]
            raise Refusal(
                Code.NO_GAIN,
                f"our kernels are not faster than ONNX Runtime's for {', '.join(layer)}{_estimate(match, editor)}",
                node,
            )
        return drop_unfusible_tail(match, editor)

    def legal(self, match: LinearMatch, editor: Editor) -> LinearMatch:
        gemm, w = match.gemm, require_input(match.gemm, 1)
        editor.require_op(match.name, w, gemm)
        if editor.is_constant(gemm.inputs[0]):
            raise Refusal(Code.NO_GAIN, "X is constant, so runtimes fold the result when they load the model", gemm)
        if gemm.op_type == "Gemm":
            for name, wanted in (("alpha", 1.0), ("beta", 1.0)):
                if attribute_float(gemm, name, 1.0) != wanted:
                    raise Refusal(Code.ATTRIBUTE, f"{name} is {attribute_float(gemm, name, 1.0)}", gemm)
            if attribute_int(gemm, "transA", 0):
                raise Refusal(Code.ATTRIBUTE, "X is transposed", gemm)
            if attribute_int(gemm, "transB", 0):
                require_read_once(w, gemm)  # otherwise the file would store W twice
        if not editor.is_constant(w):
            editor.require_constant(w, "the weight", gemm)
        if (rank := editor.shapes.rank(w)) != 2:
            raise Refusal(Code.WRONG_RANK, f"{w.name} has rank {rank}", gemm)
        editor.require_dtype(w, gemm)
        editor.require_equal_types((*gemm.inputs[:2], match.residual), gemm)
        require_one_graph([match.bias], gemm)
        if match.b is not None:
            _bias(match, match.b, editor)
        return match

    def candidate(self, plan: LinearMatch, editor: Editor) -> Candidate:
        operands = [v for v in plan.gemm.inputs[:2] if v is not None]
        return editor.candidate(plan.name, operands, plan.Y, plan.gemm)

    def rewrite(self, plan: LinearMatch, editor: Editor) -> str:
        gemm, last = plan.gemm, plan.nodes[-1]
        x, w = require_input(gemm, 0), self.weight(gemm, editor)
        b = _no_bias(plan, editor) if plan.b is None else _bias(plan, plan.b, editor)
        if isinstance(b, np.ndarray):
            b = editor.initializer(gemm, b, f"{w.name}_bias" if plan.b is None else f"{plan.b.name}_row")
        inputs = [x, w, b] + ([] if plan.residual is None else [plan.residual])
        attributes = {} if plan.form is None else plan.form.attributes
        new = Builder(editor, last).emit(plan.name, inputs, attributes)
        editor.replace(list(plan.nodes), [new], {plan.Y: new.outputs[0]}, anchor=last)
        return became(len(plan.nodes), plan.name)

    def weight(self, gemm: ir.Node, editor: Editor) -> ir.Value:
        """Returns the weight as [K, N] for the new operator."""
        w = require_input(gemm, 1)
        if not _is_transposed(gemm):
            return w
        return editor.initializer(gemm, _transposed(w, editor), f"{w.name}_transposed")


def layer_at(node: ir.Node, editor: Editor) -> LinearMatch | None:
    """Returns the layer of a GEMM, with its bias and the node that follows; None for a GEMM of two computed values."""
    w = node.inputs[1]
    if w is None or not (_is_weight(w, editor) or _is_graph_input(w)):
        return None
    bias, b = node, node.inputs[2] if len(node.inputs) > 2 else None
    if node.op_type == "MatMul":
        add = sole_reader(node.outputs[0], "Add")
        b = None if add is None else next((v for v in add.inputs if _is_weight(v, editor)), None)
        if add is not None and b is not None:
            bias = add
    if not _is_weight(w, editor) and not _is_weight(b, editor) and editor.shapes.rank(w) != 2:
        return None  # a GEMM of two computed values: attention over cached keys
    y = bias.outputs[0]
    form = form_of(y, editor)
    add = sole_reader(y, "Add") if form is None else None
    if add is not None and any(_is_weight(v, editor) for v in add.inputs):
        add = None
    return LinearMatch(node, bias, b, form, add)


def drop_unfusible_tail(match: LinearMatch, editor: Editor) -> LinearMatch:
    """Returns the layer without its activation or residual sum if our operators cannot fuse it."""
    return match if _can_fuse_tail(match, editor) else replace(match, form=None, add=None)


def _is_faster(match: LinearMatch, editor: Editor) -> bool:
    if editor.target.gpu_kernels:
        return match.b is not None
    K, N = _weight_sizes(match, editor)
    return K is not None and N is not None and linear_is_faster(K, N, _rows(match.gemm, editor))


def _estimate(match: LinearMatch, editor: Editor) -> str:
    """Returns a text with the time estimated for both GEMMs if the sizes are known on a CPU; "" otherwise."""
    (K, N), rows = _weight_sizes(match, editor), _rows(match.gemm, editor)
    if editor.target.gpu_kernels or K is None or N is None or rows is None:
        return ""
    return f": both take an estimated {linear_time(K, N, rows):.1f} us for {rows}x{K} by {K}x{N}"


def _weight_sizes(match: LinearMatch, editor: Editor) -> tuple[int | None, int | None]:
    """Returns the rows and columns of a float32 weight on a CPU; None if unknown, and for other weights and targets."""
    w = match.gemm.inputs[1]
    dims = editor.shapes.dims(w)
    if editor.target.device != "cpu" or editor.dtype(w) != ir.DataType.FLOAT or dims is None or len(dims) != 2:
        return None, None
    columns = _column_axis(match.gemm)
    return dims[1 - columns].value, dims[columns].value


def _rows(gemm: ir.Node, editor: Editor) -> int | None:
    """Returns the number of rows of X; None if an axis before the last is unknown."""
    dims = editor.shapes.dims(gemm.inputs[0])
    return None if dims is None else sizes.product(dims[:-1]).value


def _is_transposed(gemm: ir.Node) -> bool:
    """Returns whether W is stored as [N, K]."""
    return gemm.op_type == "Gemm" and bool(attribute_int(gemm, "transB", 0))


def _column_axis(gemm: ir.Node) -> int:
    """Returns the axis of W that has size N."""
    return 0 if _is_transposed(gemm) else 1


def _is_weight(value: ir.Value | None, editor: Editor) -> bool:
    """Returns whether a value is a constant, or an initializer that callers may override (`legal` refuses it)."""
    return editor.is_constant(value) or (value is not None and value.is_initializer())


def _is_graph_input(value: ir.Value | None) -> bool:
    """Returns whether a weight is a graph input, possibly cast or transposed, as some exporters write it."""
    while (node := producer_of(value, "Cast", "Transpose")) is not None:
        value = node.inputs[0]
    return value is not None and value.is_graph_input() and not value.is_initializer()


def _can_fuse_tail(match: LinearMatch, editor: Editor) -> bool:
    """Returns whether our operators can fuse the activation or residual sum."""
    if match.name not in OPS or any(node.graph is not match.gemm.graph for node in match.nodes):
        return False
    try:
        require_contained(match.nodes, match.Y)
    except Refusal:
        return False
    if match.add is None:
        return True
    shapes = editor.shapes
    dims = shapes.dims(match.residual)
    return dims is not None and dims == shapes.dims(match.bias.outputs[0])


def _no_bias(match: LinearMatch, editor: Editor) -> Array:
    w = editor.tensor(match.gemm.inputs[1])
    assert w is not None, "`legal` requires a constant"
    return np.zeros(tensor_dims(w)[_column_axis(match.gemm)], w.dtype.numpy())


def _bias(match: LinearMatch, b: ir.Value, editor: Editor) -> ir.Value | Array:
    """Returns the bias with shape [N]: the model's value, or a new array if the value has another shape.

    Raises:
        Refusal: the bias is not one value for each column.
    """
    gemm = match.gemm
    array = editor.require_constant(b, "the bias", match.bias)
    dims = editor.shapes.dims(gemm.inputs[1])
    N = None if dims is None else dims[_column_axis(gemm)].value
    if array.shape == (N,):
        return b
    rank = editor.shapes.rank(gemm.outputs[0])
    return row_of_columns(array, "the bias", N, rank, match.bias)


def _transposed(w: ir.Value, editor: Editor) -> ir.LazyTensor:
    """Returns the transposed matrix, computed when the model is written."""
    tensor = editor.tensor(w)
    assert tensor is not None
    rows, columns = tensor_dims(tensor)
    return ir.LazyTensor(
        lambda: ir.Tensor(np.ascontiguousarray(tensor.numpy().T)), tensor.dtype, ir.Shape((columns, rows))
    )
