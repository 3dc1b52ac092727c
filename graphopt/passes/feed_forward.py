"""Feed-forward layers are looked at and left: act(MatMul(X, W) + b) + R has no operator of ours.

What follows the product costs about a tenth of it once the runtime has fused bias and activation itself
(docs/measurements/norms_cpu.md), which a product of our own would lose to one that is tuned for every CPU. On GPUs the
products belong to the vendor's library. Each site gets its remark, so that nobody looks for a fusion that never fires.
"""

from __future__ import annotations

from typing import NoReturn

import onnx_ir as ir

from graphopt.editor import Editor
from graphopt.forms.activation import form_of
from graphopt.passes.base import Numerics, Pass
from graphopt.remarks import Code, Refusal


class FeedForward(Pass[NoReturn]):
    name = "feed_forward"
    equation = "act(MatMul(X, W) + b) + R stays: the runtime fuses bias and activation itself"
    numerics = Numerics.EXACT
    anchors = frozenset({("", "MatMul"), ("", "Gemm")})

    def match(self, node: ir.Node, editor: Editor) -> None:
        if not editor.is_constant(node.inputs[1]):
            return
        y, parts = node.outputs[0], [node.op_type]
        bias = _only_add(y, editor) if node.op_type == "MatMul" else None
        if bias is not None and any(editor.is_constant(v) for v in bias.inputs):
            y = bias.outputs[0]
            parts.append("bias")
        form = form_of(y, editor)
        residual = _only_add(y, editor) if form is None else None
        if form is not None:
            parts.append(form.suffix)
        elif residual is not None and not any(editor.is_constant(v) for v in residual.inputs):
            parts.append("residual")
        else:
            return
        raise Refusal(
            Code.NO_GAIN,
            f"{', '.join(parts)}: what the runtime leaves of it is less than a product of ours loses",
            node,
        )

    def legal(self, match: NoReturn, editor: Editor) -> None: ...

    def rewrite(self, match: NoReturn, editor: Editor) -> str:
        return match


def _only_add(value: ir.Value, editor: Editor) -> ir.Node | None:
    reader = value.consumers()[0] if editor.only_use(value) else None
    return reader if reader is not None and (reader.domain, reader.op_type) == ("", "Add") else None
