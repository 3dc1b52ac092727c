"""Rounds the operands of matrix multiplications to bfloat16 where this is faster (`--precision bf16`).

    act(MatMul(X, W) + b) -> Linear<act>Bf16(X, W, b);  MatMul(X, W) + b + R -> LinearAddBf16(X, W, b, R)   also Gemm
    act(Conv(X, W, B) + R) -> FusedConv[Add]<act>Bf16(X, W, B, R)                         also WinogradConv, FusedConv
    FusedAttention<form>   -> FusedAttention<form>Bf16                                 except the forms Gqa and Softcap
    MatMul(A, B) c         -> MatMulBf16(A, B)                       A, B activations, or Transposes of them; c a scalar
    tensors between FusedConv..Bf16: see nchw2c_convolutions and nchw2c_pools

These passes run after all others, and only with `--precision bf16`. Tensors are float32 in the file and between nodes,
except tensors that every reader rounds. A node rounds its own operands; their products are exact in float32, and sums
are accumulated in float32. Statistics, residual sums, activations and the model's interface lose no precision. Nothing
overflows, because bfloat16 has the range of float32. The passes round weights so that the errors of a sum cancel
(rounded_weight). The operators round the weights again, which changes nothing.

Conditions: the conditions of `feed_forward`; element type float32; opset 13, which the function bodies need.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.build import Builder
from graphopt.graph.editor import Attribute, Editor
from graphopt.graph.operators.traits import QUANTIZATION
from graphopt.graph.shapes import sizes
from graphopt.graph.view import attribute_int, attribute_ints, is_op, producer_of, require_input, sole_reader
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.activation import SLOPED
from graphopt.passes.attention.match import identity_perm
from graphopt.passes.attention.operands import factor_of
from graphopt.passes.base import Pass
from graphopt.passes.feed_forward import FeedForward, LinearMatch, drop_unfusible_tail, layer_at
from graphopt.passes.fused_conv import ConvMatch, conv_at, conv_node, emit_conv, require_conv
from graphopt.precision.nchw2c_convolutions import CONVOLUTIONS, MAX_ACTIVATION, between_convolutions
from graphopt.precision.rounded_weight import rounded
from graphopt.remarks import Code, Refusal, became, node_label
from graphopt.targets.cpu import (
    bfloat16_attention_no_gain,
    bfloat16_depthwise_no_gain,
    bfloat16_linear_no_gain,
    bfloat16_matmul_no_gain,
    bfloat16_no_gain,
)
from graphopt.targets.profit import Candidate

NAME = "bfloat16"
SUFFIX = "Bf16"
MATMUL = f"MatMul{SUFFIX}"


class LinearToBf16(FeedForward):
    """Rounds the operands of fully connected layers.

    Args:
        keep: names of nodes and operators that keep float32.
    """

    name = NAME
    equation = "act(MatMul(X, W) + b) -> Linear<act>Bf16;  MatMul(X, W) + b + R -> LinearAddBf16"
    numerics = Numerics.BF16

    def __init__(self, keep: Collection[str]) -> None:
        self.keep = frozenset(keep)

    def match(self, node: ir.Node, editor: Editor) -> LinearMatch | None:
        found = layer_at(node, editor)
        return None if found is None else drop_unfusible_tail(replace(found, precision=SUFFIX), editor)

    def legal(self, match: LinearMatch, editor: Editor) -> LinearMatch:
        _require_unkept(self.keep, match.nodes, match.gemm)
        editor.require_dtype(require_input(match.gemm, 1), match.gemm, ir.DataType.FLOAT)
        super().legal(match, editor)
        return match

    def candidate(self, plan: LinearMatch, editor: Editor) -> Candidate:
        dims = editor.shapes.dims(plan.gemm.inputs[1]) or ()
        size = math.prod(d.value for d in dims if d.value is not None)
        x = editor.shapes.dims(plan.gemm.inputs[0])
        rows = None if x is None else sizes.product(x[:-1]).value
        no_gain = bfloat16_linear_no_gain(rows, size)
        return replace(super().candidate(plan, editor), no_gain=no_gain)

    def weight(self, gemm: ir.Node, editor: Editor) -> ir.Value:
        return rounded(super().weight(gemm, editor), gemm, editor, terms_first=True)


@dataclass(frozen=True)
class Convolution(ConvMatch):
    """A Conv, FusedConv or WinogradConv with its fused residual sum and activation.

    Attributes:
        name: the operator that replaces it.
        rest: the inputs after the bias, without the slope.
        slope: slope of the fused PRelu, which becomes a separate node; None without one.
    """

    name: str = f"FusedConv{SUFFIX}"
    rest: tuple[ir.Value, ...] = ()
    slope: ir.Value | None = None


class ConvToBf16(Pass[Convolution, Convolution]):
    """Rounds the operands of convolutions.

    Args:
        keep: names of nodes and operators that keep float32.
    """

    name = f"{NAME}_conv"  # the pipeline identifies passes by name
    equation = "act(Conv(X, W, B) + R) -> FusedConv[Add]<act>Bf16"
    numerics = Numerics.BF16
    anchors = frozenset({("", "Conv")} | {(DOMAIN, name) for name in CONVOLUTIONS if SUFFIX not in name})

    def __init__(self, keep: Collection[str]) -> None:
        self.keep = frozenset(keep)

    def match(self, node: ir.Node, editor: Editor) -> Convolution | None:
        found = conv_at(node, editor)
        if found.depthwise and not between_convolutions(node, editor):
            return None  # a depthwise convolution gains only from the NCHW2c layout between convolutions
        if node.domain != DOMAIN:
            return Convolution(**vars(found))
        suffix = node.op_type.removeprefix("WinogradConv").removeprefix("FusedConv").removesuffix(SLOPED)
        rest = tuple(v for v in node.inputs[3:] if v is not None)
        slope = rest[-1] if node.op_type.endswith(SLOPED) else None
        own: dict[str, Any] = {name: a.value for name, a in node.attributes.items() if name not in found.attributes}
        return Convolution(
            **vars(found) | {"attributes": {**found.attributes, **own}},
            name=f"FusedConv{suffix}{SUFFIX}",
            rest=rest if slope is None else rest[:-1],
            slope=slope,
        )

    def legal(self, match: Convolution, editor: Editor) -> Convolution:
        _require_unkept(self.keep, [match.node], match.node)
        editor.require_op(match.name, match.W, match.node)
        require_conv(match, editor)
        editor.require_dtype(match.W, match.node, ir.DataType.FLOAT)
        return match

    def candidate(self, plan: Convolution, editor: Editor) -> Candidate:
        y = plan.node.outputs[0]
        if plan.depthwise:
            return editor.candidate(plan.name, (plan.X, plan.W), y, plan.node, _depthwise_no_gain(plan.node, editor))
        dims = editor.shapes.dims(y)
        pixels = [d.value for d in dims[2:]] if dims is not None else [None] * len(plan.kernel)
        winograd = plan.node.op_type.startswith("WinogradConv")
        no_gain = bfloat16_no_gain(plan.C, plan.M, math.prod(plan.kernel), pixels, winograd)
        beside = (n for n in (*_producers(plan.X), *_readers(y)) if n is not plan.node)
        if any(_keeps_blocked_layout(n, editor) for n in beside):
            no_gain = "ONNX Runtime would reorder the NCHWc layout of the depthwise convolution next to it"
        return editor.candidate(plan.name, (plan.X, plan.W), y, plan.node, no_gain)

    def rewrite(self, plan: Convolution, editor: Editor) -> str:
        plan = replace(plan, W=rounded(plan.W, plan.node, editor, terms_first=False))
        if plan.slope is None:
            return emit_conv(plan.name, plan, editor, plan.rest)
        node, new = plan.node, conv_node(plan.name, plan, editor, plan.rest)
        if (shape := node.outputs[0].shape) is not None:
            new.outputs[0].shape = ir.Shape(shape)
            inference.declare(editor.model, new.outputs[0])
        builder = Builder(editor, node, node.name or plan.name)
        y = builder.op("PRelu", new.outputs[0], plan.slope, _dtype=ir.DataType.FLOAT)
        editor.replace([node], [new, *builder.nodes], {node.outputs[0]: y}, anchor=node)
        return f"{plan.name} and PRelu"


@dataclass(frozen=True)
class AttentionMatch:
    """A FusedAttention and the name of the operator that replaces it."""

    node: ir.Node
    name: str


class AttentionToBf16(Pass[AttentionMatch, AttentionMatch]):
    """Rounds the operands of attention.

    Args:
        keep: names of nodes and operators that keep float32.
    """

    name = f"{NAME}_attention"
    equation = "FusedAttention<form> -> FusedAttention<form>Bf16"
    numerics = Numerics.BF16
    anchors = frozenset((DOMAIN, name) for name in OPS if name.startswith("FusedAttention") and SUFFIX not in name)

    def __init__(self, keep: Collection[str]) -> None:
        self.keep = frozenset(keep)

    def match(self, node: ir.Node, editor: Editor) -> AttentionMatch:
        return AttentionMatch(node, node.op_type + SUFFIX)

    def legal(self, match: AttentionMatch, editor: Editor) -> AttentionMatch:
        node = match.node
        _require_unkept(self.keep, [node], node)
        if match.name not in OPS:
            raise Refusal(Code.UNSUPPORTED_OP, f"graphopt has no operator {match.name}", node)
        q = require_input(node, 0)
        editor.require_op(match.name, q, node)
        editor.require_dtype(q, node, ir.DataType.FLOAT)
        return match

    def candidate(self, plan: AttentionMatch, editor: Editor) -> Candidate:
        node = plan.node
        q, k = require_input(node, 0), require_input(node, 1)
        dims = editor.shapes.dims(q)
        queries = dims[node.attributes["q_perm"].as_ints()[-2]].value if dims is not None else None
        keys = editor.shapes.dims(k)
        no_gain = bfloat16_attention_no_gain(queries, None if keys is None else sizes.product(keys).value)
        return editor.candidate(plan.name, (q, k), node.outputs[0], node, no_gain)

    def rewrite(self, plan: AttentionMatch, editor: Editor) -> str:
        node = plan.node
        inputs = [v for v in node.inputs if v is not None]
        new = Builder(editor, node).emit(plan.name, inputs, {n: a.value for n, a in node.attributes.items()})
        editor.replace([node], [new], {node.outputs[0]: new.outputs[0]}, anchor=node)
        return "matrix multiplications in bfloat16"


@dataclass(frozen=True)
class Factor:
    """An operand of a MatMul: a value with its axes in the order of `perm`.

    Attributes:
        perm: the permutation of the axes; empty if the rank is unknown.
        transpose: the Transpose with that perm, if the MatMul is its only reader.
    """

    value: ir.Value
    perm: tuple[int, ...]
    transpose: ir.Node | None = None


@dataclass(frozen=True)
class MatMulMatch:
    """A MatMul of two activations with the Transposes before it and the scaling after it.

    Attributes:
        scaled: the Mul or Div of the result by a scalar, or None.
        alpha: the factor that `scaled` applies; 1 without it.
    """

    node: ir.Node
    A: Factor
    B: Factor
    scaled: ir.Node | None
    alpha: float

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes in topological order."""
        all_of_them = (self.A.transpose, self.B.transpose, self.node, self.scaled)
        return tuple(n for n in all_of_them if n is not None)


class MatMulToBf16(Pass[MatMulMatch, MatMulMatch]):
    """Rounds the operands of MatMuls of two activations.

    Args:
        keep: names of nodes and operators that keep float32.
    """

    name = f"{NAME}_matmul"
    equation = "MatMul(A, B) c -> MatMulBf16(A, B)"
    numerics = Numerics.BF16
    anchors = frozenset({("", "MatMul")})

    def __init__(self, keep: Collection[str]) -> None:
        self.keep = frozenset(keep)

    def match(self, node: ir.Node, editor: Editor) -> MatMulMatch | None:
        a, b = require_input(node, 0), require_input(node, 1)
        if any(editor.is_constant(v) or v.is_initializer() for v in (a, b)):
            return None  # a fully connected layer, which LinearToBf16 has refused
        A, B = _factor(a, node, 1, editor), _factor(b, node, 2, editor)
        if _sizes(A, editor)[-1:] == [1]:
            return None  # K is 1: mostly the angles of rotary positions, which rounding would change
        scaled = sole_reader(node.outputs[0], "Mul", "Div")
        factor = None if scaled is None or scaled.graph is not node.graph else factor_of(scaled, editor)
        scale, alpha = (None, 1.0) if factor is None else (scaled, factor[1])
        return MatMulMatch(node, A, B, scale, alpha)

    def legal(self, match: MatMulMatch, editor: Editor) -> MatMulMatch:
        node = match.node
        _require_unkept(self.keep, [node] if match.scaled is None else [node, match.scaled], node)
        for factor in (match.A, match.B):
            editor.require_op(MATMUL, factor.value, node)
            if (source := factor.value.producer()) is not None and source.op_type in QUANTIZATION:
                raise Refusal(
                    Code.QUANTIZED, f"{factor.value.name} is dequantized, and runtimes multiply its integers", node
                )
            editor.require_dtype(factor.value, node, ir.DataType.FLOAT)
            if not factor.perm:
                raise Refusal(Code.UNKNOWN_RANK, f"the rank of {factor.value.name} is not known", node)
            if len(factor.perm) < 2:
                raise Refusal(Code.WRONG_RANK, f"{factor.value.name} is a vector", node)
        return match

    def candidate(self, plan: MatMulMatch, editor: Editor) -> Candidate:
        no_gain = bfloat16_matmul_no_gain(_sizes(plan.A, editor), _sizes(plan.B, editor))
        result = plan.nodes[-1].outputs[0]
        return editor.candidate(MATMUL, (plan.A.value, plan.B.value), result, plan.node, no_gain)

    def rewrite(self, plan: MatMulMatch, editor: Editor) -> str:
        last = plan.nodes[-1]
        attributes: dict[str, Attribute] = {"alpha": plan.alpha, "a_perm": plan.A.perm, "b_perm": plan.B.perm}
        new = Builder(editor, plan.node).emit(MATMUL, (plan.A.value, plan.B.value), attributes)
        editor.replace(list(plan.nodes), [new], {last.outputs[0]: new.outputs[0]}, anchor=last)
        return became(len(plan.nodes), MATMUL)


def _require_unkept(keep: Collection[str], nodes: Iterable[ir.Node], node: ir.Node) -> None:
    """Checks that the caller keeps none of the nodes in float32, by its name or operator.

    Raises:
        Refusal: KEPT.
    """
    if any(name in keep for n in nodes for name in (node_label(n), n.op_type)):
        raise Refusal(Code.KEPT, "--keep-float names the node or its operator", node)


def _factor(value: ir.Value, matmul: ir.Node, last: int, editor: Editor) -> Factor:
    """Returns an operand of a MatMul.

    A Transpose before the MatMul is included if only the MatMul reads its result, and if it moves the last axis of its
    input to one of the last `last` axes.
    """
    rank = editor.shapes.rank(value)
    own = () if rank is None else identity_perm(rank)
    transpose = producer_of(value, "Transpose")
    if transpose is None or sole_reader(value) is not matmul or transpose.graph is not matmul.graph:
        return Factor(value, own)
    perm = attribute_ints(transpose, "perm", tuple(reversed(own)))
    source = require_input(transpose, 0)
    return Factor(source, perm, transpose) if len(perm) - 1 in perm[-last:] else Factor(value, own)


def _sizes(factor: Factor, editor: Editor) -> list[int | None]:
    """Returns the shape of the operand after the permutation."""
    dims = editor.shapes.dims(factor.value)
    return [None if dims is None else dims[axis].value for axis in factor.perm]


def _is_depthwise(node: ir.Node, editor: Editor) -> bool:
    shape = editor.shapes.dims(node.inputs[1]) if is_op(node, "Conv") else None
    return shape is not None and shape[1].value == 1 and attribute_int(node, "group", 1) > 1


def _depthwise_no_gain(node: ir.Node, editor: Editor) -> str:
    """Returns why a depthwise Conv between convolutions is not faster in bfloat16; "" if it is."""
    w, y = editor.shapes.dims(node.inputs[1]), editor.shapes.dims(node.outputs[0])
    kernel = [d.value or 0 for d in w[2:]] if w is not None else []
    strides, dilations = (attribute_ints(node, name, (1,) * len(kernel)) for name in ("strides", "dilations"))
    return bfloat16_depthwise_no_gain(kernel, strides, dilations, [d.value for d in y[1:]] if y else [None] * 3)


def _keeps_blocked_layout(node: ir.Node, editor: Editor) -> bool:
    """Returns whether a node is a depthwise convolution that ONNX Runtime will run in its NCHWc layout."""
    if not _is_depthwise(node, editor):
        return False
    return not between_convolutions(node, editor) or bool(_depthwise_no_gain(node, editor))


def _producers(value: ir.Value | None) -> Iterator[ir.Node]:
    """Yields the producer of a value, the producer of its first input, and so on, up to and including a Conv."""
    for _ in range(MAX_ACTIVATION):
        producer = value.producer() if value is not None else None
        if producer is None:
            return
        yield producer
        if producer.op_type == "Conv":
            return
        value = producer.inputs[0] if producer.inputs else None


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yields the direct and indirect readers of a value, up to and including Convs."""
    front = [value]
    for _ in range(MAX_ACTIVATION):
        readers = [reader for v in front for reader in v.consumers()]
        yield from readers
        front = [o for reader in readers if reader.op_type != "Conv" for o in reader.outputs]
