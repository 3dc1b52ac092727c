"""Written-out activations become the standard operator if the model's opset has it.

    Where(x > 0, x, a x), Max(x, a x), PRelu(x, a) -> LeakyRelu;  clip(a x + b, 0, c) / c -> HardSigmoid;
    x clip(x / 6 + 1 / 2, 0, 1) -> HardSwish;  x tanh(softplus(x)) -> Mish;  x (erf(x / sqrt 2) + 1) / 2 -> Gelu

Why it is legal: the operators are defined by these equations (ONNX operator specification); constants agree with the
definition within a relative tolerance that depends on the element type. If exp(x) of a written-out softplus overflows,
tanh(ln(Inf)) is 1, which is also the result of Mish.

Conditions: no other node reads a value between x and the result; x is float or float16; constants do not broadcast x;
Max needs 0 < a <= 1. Before opset 14 HardSwish becomes x HardSigmoid(x), two nodes instead of four. SiLU and quick Gelu
have no standard operator before opset 24. They are not rewritten to Swish-24 either: ONNX Runtime fuses their nodes
into its own kernel, but expands Swish into several nodes (docs/passes/activations.md).
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from graphopt.forms.activation import GATES, Form, almost_gelu, quick_gelu_slope, written_form
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import first_opset
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became

# Suffix of a written-out form (forms/activation.py) -> standard operator.
STANDARD = {
    **{name: name for name in ("LeakyRelu", "HardSigmoid", "HardSwish", "Mish", "Gelu")},
    "GeluTanh": "Gelu",
}
# HardSwish(x) = x HardSigmoid(x) with these attributes, for opsets without HardSwish.
HARD_SWISH_GATE: dict[str, Any] = {"alpha": 1 / 6, "beta": 0.5}
# MIGraphX parses only these; with an unknown operator the whole graph would run on the CPU.
KNOWN_TO_MIGRAPHX = frozenset({"LeakyRelu", "HardSigmoid", "HardSwish"})


class Activations(Pass[Form, Form]):
    name = "activations"
    equation = "Where(x > 0, x, a x) -> LeakyRelu;  x (erf(x / sqrt 2) + 1) / 2 -> Gelu;  HardSwish, HardSigmoid, Mish"
    numerics = Numerics.REASSOCIATED
    anchors = GATES

    def match(self, node: ir.Node, editor: Editor) -> Form | None:
        form = written_form(node, editor)
        if form is None and node.op_type == "Sigmoid" and (slope := quick_gelu_slope(node, editor)) is not None:
            detail = f"ONNX Runtime runs x Sigmoid({slope:.4g} x) faster than the operator Swish of opset 24"
            raise Refusal(Code.NO_GAIN, detail, node)
        if form is None and node.op_type == "Erf" and (slope := almost_gelu(node, editor)) is not None:
            raise Refusal(
                Code.ATTRIBUTE, f"the argument of erf is {slope:.8g} x, and Gelu has x / sqrt 2 = 0.70710678 x", node
            )
        if form is None or form.suffix not in STANDARD:
            return None
        if node.op_type == "HardSigmoid" and editor.opset(node) < first_opset(STANDARD[form.suffix]):
            return None  # x HardSigmoid(x) is already the rewritten form
        return form

    def legal(self, match: Form, editor: Editor) -> Form:
        op = STANDARD[match.suffix]
        opset = first_opset(op)
        last = match.nodes[-1]
        editor.require_dtype(match.x, last)
        if editor.opset(last) < opset and match.suffix != "HardSwish":
            raise Refusal(Code.OPSET, f"{op} is an operator from opset {opset} on", last)
        if editor.target.device == "migraphx" and op not in KNOWN_TO_MIGRAPHX:
            raise Refusal(Code.TARGET, f"MIGraphX has no {op}", last)
        match.require_closed()
        return match

    def rewrite(self, plan: Form, editor: Editor) -> str:
        op = STANDARD[plan.suffix]
        attributes: dict[str, Any] = dict(plan.attributes)
        if plan.suffix == "GeluTanh":
            attributes["approximate"] = "tanh"
        last = plan.nodes[-1]
        builder = Builder(editor, last)
        if plan.suffix == "HardSwish" and editor.opset(last) < first_opset("HardSwish"):
            op = "HardSigmoid and Mul"
            gate = builder.op("HardSigmoid", plan.x, _like=plan.y, **HARD_SWISH_GATE)
            y = builder.op("Mul", plan.x, gate)
        else:
            y = builder.op(op, plan.x, **attributes)
        editor.replace(list(plan.nodes), builder.nodes, {plan.y: y}, anchor=last)
        return became(len(plan.nodes), op)
