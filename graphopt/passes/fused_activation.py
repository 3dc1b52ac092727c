"""Replaces each activation that no other node fuses by one com.graphopt node.

    x (erf(x / sqrt 2) + 1) / 2 -> FusedGelu;  with tanh -> FusedGeluTanh;  x tanh(softplus(x)) -> FusedMish;
    x clip(x / 6 + 1 / 2, 0, 1) -> FusedHardSwish

The standard operator Mish is also rewritten, and on CPUs the operators Gelu and HardSwish.

Why it is legal: the operators are defined by these equations. Constants agree with the definition within the relative
tolerance of the pass `activations`.

Conditions: no other node reads a value between x and the result; x is float or float16.

Where it is faster: on GPUs if the model's opset lacks the standard operator, because each node of the written-out form
is a kernel launch. ONNX Runtime also expands the operator Mish to several nodes. On CPUs our kernel is faster than ONNX
Runtime's for large tensors (docs/measurements/forms_cpu.md), except for HardSwish after a convolution.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.forms.activation import GATES, Form, simple_form, written_form
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import producer_of
from graphopt.metadata import Numerics
from graphopt.ops.fused_activation import FUSED
from graphopt.passes.base import Pass
from graphopt.remarks import became
from graphopt.targets.profit import Candidate

STANDARD = frozenset(("", op) for op in ("HardSwish", "Gelu", "Mish"))


class FusedActivation(Pass[Form, Form]):
    name = "fused_activation"
    equation = "x (erf(x / sqrt 2) + 1) / 2 -> FusedGelu;  FusedGeluTanh, FusedMish, FusedHardSwish"
    numerics = Numerics.REASSOCIATED
    anchors = GATES | STANDARD

    def match(self, node: ir.Node, editor: Editor) -> Form | None:
        if not editor.target.custom_ops:
            return None
        if (node.domain, node.op_type) not in STANDARD:
            form = written_form(node, editor)
        elif node.op_type == "Mish" or not editor.target.gpu_kernels:
            form = simple_form(node, editor)
        else:
            return None  # the provider has a kernel
        return form if form is not None and form.suffix in FUSED else None

    def legal(self, match: Form, editor: Editor) -> Form:
        last = match.nodes[-1]
        editor.require_dtype(match.x, last)
        editor.require_op(f"Fused{match.suffix}", match.x, last)
        match.require_closed()
        return match

    def candidate(self, plan: Form, editor: Editor) -> Candidate:
        op = f"Fused{plan.suffix}"
        return editor.candidate(op, (plan.x,), plan.y, plan.nodes[-1], _no_gain(plan, editor))

    def rewrite(self, plan: Form, editor: Editor) -> str:
        op = f"Fused{plan.suffix}"
        last = plan.nodes[-1]
        new = Builder(editor, last).emit(op, [plan.x], {})
        editor.replace(list(plan.nodes), [new], {plan.y: new.outputs[0]}, anchor=last)
        return became(len(plan.nodes), op)


def _no_gain(form: Form, editor: Editor) -> str:
    """Returns why ONNX Runtime's kernels are as fast as ours; "" if ours is faster."""
    if form.suffix == "HardSwish" and editor.target.device == "cpu" and producer_of(form.x, "Conv") is not None:
        return "ONNX Runtime computes HardSwish in the blocked layout of the convolution before it"
    return ""
