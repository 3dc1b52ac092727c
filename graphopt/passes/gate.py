"""Fuses an activation times another value: gated feed-forward layers (SwiGLU, GEGLU, ReGLU, GLU).

    act(A) B -> Gated<act>(A, B);  act(X[.., :D]) X[.., D:] -> GatedHalves<act>(X), also with exchanged halves

N. Shazeer, "GLU Variants Improve Transformer", 2020.

Why it is legal: the operators are defined by these equations.

Conditions: the activation is one of Relu, Sigmoid, Silu, Gelu, GeluTanh, and only the Mul reads it; A and B are proven
to have the same shape, so nothing broadcasts, and have the same type, float or float16. A Mul that broadcasts the
activation (the scale of squeeze and excitation) is not a gate. For GatedHalves a Split in two or two Slices of the last
axis produce A and B, and no other node reads these halves.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.forms.activation import Form, simple_form, written_form
from graphopt.forms.halves import half_of
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import ONE, Size
from graphopt.graph.view import other_input, producer_of, require_one_graph, sole_reader
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN, OPS
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

# Anchors that are whole activations. They are not part of the written-out form of another gated activation.
WHOLE_ACTIVATIONS = frozenset({("", "Relu"), ("", "Gelu"), (DOMAIN, "FusedGelu"), (DOMAIN, "FusedGeluTanh")})


@dataclass(frozen=True)
class GateMatch:
    """A Mul of an activation and another value.

    Attributes:
        form: the activation of A.
        mul: the Mul.
        other: B.
        X: the value that A and B are halves of, or None.
        gate: the index of the half A.
        splits: the nodes that split X.
    """

    form: Form
    mul: ir.Node
    other: ir.Value
    X: ir.Value | None = None
    gate: int = 0
    splits: tuple[ir.Node, ...] = ()

    @property
    def name(self) -> str:
        return f"Gated{'' if self.X is None else 'Halves'}{self.form.suffix}"


class Gate(Pass[GateMatch, GateMatch]):
    name = "gate"
    equation = "act(A) B -> Gated<act>(A, B);  GatedHalves<act>(X) if A and B are the halves of X"
    numerics = Numerics.REASSOCIATED
    anchors = WHOLE_ACTIVATIONS | {("", op) for op in ("Sigmoid", "Erf", "Tanh")}

    def match(self, node: ir.Node, editor: Editor) -> GateMatch | None:
        is_whole_activation = (node.domain, node.op_type) in WHOLE_ACTIVATIONS
        if is_whole_activation and sole_reader(node.outputs[0], "Mul") is None:
            return None  # the cheap test is first, because most activations are not multiplied
        form = (None if is_whole_activation else written_form(node, editor)) or simple_form(node, editor)
        if form is None or f"Gated{form.suffix}" not in OPS or form.attributes:
            return None
        mul = sole_reader(form.y, "Mul")
        if mul is None or mul.inputs[0] is mul.inputs[1]:
            return None
        other = other_input(mul, form.y)
        if other is None or editor.is_constant(other):
            return None
        dims, others = editor.shapes.dims(form.x), editor.shapes.dims(other)
        if dims != others and _broadcasts(dims, others):
            return None
        match = GateMatch(form, mul, other)
        first, second = half_of(form.x, editor), half_of(other, editor)
        if first is None or second is None or first.X is not second.X or first.index == second.index:
            return match
        # If other nodes read the halves, the halves are computed anyway, and GatedHalves saves nothing.
        if any(reader not in (*form.nodes, mul) for v in (form.x, other) for reader in v.consumers()):
            return match
        return GateMatch(form, mul, other, first.X, first.index, (first.split, second.split))

    def legal(self, match: GateMatch, editor: Editor) -> GateMatch:
        a, b, mul = match.form.x, match.other, match.mul
        match.form.require_closed()
        require_one_graph(match.form.nodes, mul)
        dims, others = editor.shapes.dims(a), editor.shapes.dims(b)
        if dims is None or others is None or dims != others:
            raise Refusal(Code.UNKNOWN_SHAPE, f"it is not proven that {a.name} and {b.name} have the same shape", mul)
        editor.require_equal_types((a, b), mul)
        editor.require_dtype(a, mul)
        if not dims:
            raise Refusal(Code.WRONG_RANK, f"{a.name} is a scalar", mul)
        editor.require_op(match.name, a, mul)
        return match

    def candidate(self, plan: GateMatch, editor: Editor) -> Candidate:
        conv = producer_of(plan.form.x, "Conv")
        fused = conv is not None and editor.target.device == "cpu" and plan.form.suffix in ("Relu", "Sigmoid")
        no_gain = "ONNX Runtime fuses the activation into the convolution" if fused else ""
        operands = (plan.form.x, plan.other) if plan.X is None else (plan.X,)
        return editor.candidate(plan.name, operands, plan.mul.outputs[0], plan.mul, no_gain)

    def rewrite(self, plan: GateMatch, editor: Editor) -> str:
        mul = plan.mul
        if plan.X is None:
            new = Builder(editor, mul).emit(plan.name, [plan.form.x, plan.other], {})
        else:
            new = Builder(editor, mul).emit(plan.name, [plan.X], {"gate": plan.gate})
        nodes = [*dict.fromkeys(plan.splits), *plan.form.nodes, mul]
        editor.replace(nodes, [new], {mul.outputs[0]: new.outputs[0]}, anchor=mul)
        return became(len(nodes), plan.name)


def _broadcasts(dims: tuple[Size, ...] | None, others: tuple[Size, ...] | None) -> bool:
    """Returns whether one of two shapes is known to broadcast to the other: another rank, or a dimension of 1."""
    if dims is None or others is None:
        return False
    return len(dims) != len(others) or any(a != b and ONE in (a, b) for a, b in zip(dims, others))
