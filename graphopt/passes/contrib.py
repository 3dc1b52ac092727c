"""ONNX Runtime's contrib operators become standard ONNX, which the other passes match.

    SkipLayerNormalization(x, r) = LayerNormalization(x + r);  BiasGelu(x, b) = Gelu(x + b);  ...

Why it is legal: `graphopt/contrib` has a definition of each operator, which is tested against ONNX Runtime's kernel. A
model fused by ONNX Runtime's tools therefore becomes the same graph as the original model.

Conditions: the operator has a definition for the node's attributes and inputs, and for the model's opset. A node is not
rewritten if ONNX Runtime's kernel is faster on the target (NO_GAIN; docs/measurements/contrib_cpu.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphopt.contrib import CONTRIB, ContribOp
from graphopt.contrib.define import call_of, define
from graphopt.contrib.schema import DOMAIN
from graphopt.contrib.writer import Writer
from graphopt.errors import one_line
from graphopt.graph.editor import Editor
from graphopt.graph.traversal import tensor_bytes
from graphopt.graph.view import ANY
from graphopt.metadata import Numerics
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.profit import Candidate

# Size limit in bytes of the constants that shape inference reads (sizes, axes, pads).
MAX_CONSTANT_BYTES = 4096


@dataclass(frozen=True)
class ContribMatch:
    """A node and its operator."""

    node: ir.Node
    op: ContribOp


class Contrib(Pass[ContribMatch, ContribMatch]):
    name = "contrib"
    equation = "com.microsoft operators -> standard ONNX by their definitions, for the passes that follow"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({(DOMAIN, ANY), *CONTRIB})
    emits_unknown_types = True

    def match(self, node: ir.Node, editor: Editor) -> ContribMatch | None:
        if (node.domain, node.op_type, node.overload) in editor.model.functions:
            return None  # the model has its own definition
        op = CONTRIB.get((node.domain, node.op_type))
        if op is None:
            raise Refusal(Code.UNSUPPORTED_OP, f"graphopt has no definition of {node.op_type}", node)
        return ContribMatch(node, op)

    def legal(self, match: ContribMatch, editor: Editor) -> ContribMatch:
        if match.op.quantized and editor.target.device != "portable":
            raise Refusal(Code.QUANTIZED, match.op.kept_on_cpu, match.node)
        # Writes the nodes only to check their shapes. Kept nodes would count as readers of the inputs.
        writer, _ = define(match.op, match.node, editor)
        why = _shape_error(writer)
        writer.discard()
        if why:
            raise Refusal(Code.WRONG_SHAPE, f"the operands do not fit the definition: {why}", match.node)
        return match

    def candidate(self, plan: ContribMatch, editor: Editor) -> Candidate | None:
        node, op = plan.node, plan.op
        if editor.target.device == "portable":
            return None  # the target accepts standard ONNX only
        no_gain = op.kept_on_cpu if editor.target.device == "cpu" else op.kept_on_gpu
        if not no_gain and editor.target.device == "cpu" and _has_cache_or_causal_mask(op, node):
            no_gain = "ONNX Runtime's kernel appends to the cache and masks later tokens without a mask tensor"
        inputs = [v for v in node.inputs if v is not None]
        return editor.candidate(op.name, inputs, node.outputs[0], node, no_gain)

    def rewrite(self, plan: ContribMatch, editor: Editor) -> str:
        writer, outputs = define(plan.op, plan.node, editor)
        nodes = sum(n.op_type != "Constant" for n in writer.nodes)
        editor.replace([plan.node], writer.nodes, outputs, anchor=plan.node)
        return became(1, plan.op.form or f"{nodes} nodes of standard ONNX")


def _shape_error(writer: Writer) -> str:
    """Returns the error of shape inference for the standard nodes; "" if there is none.

    Runtimes check the shapes of standard operators when they load a model, and those of contrib operators only when
    they run it.
    """
    written = [node for node in writer.nodes if not _is_large(node)]
    inside = set(written)
    read = dict.fromkeys(v for node in written for v in node.inputs if v is not None)
    outside = [v for v in read if v.producer() not in inside]
    if any(v.type is None for v in outside):
        return ""  # inference reports an input without a type as an error
    given = [ir.serde.serialize_value(v) for v in outside]
    nodes = [ir.serde.serialize_node(node) for node in written]
    graph = onnx.helper.make_graph(nodes, "definition", given, [])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", writer.opset)])
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        return one_line(error)
    return ""


def _is_large(node: ir.Node) -> bool:
    """Returns whether a node is a constant above MAX_CONSTANT_BYTES, which the checked graph has as an input."""
    return node.op_type == "Constant" and tensor_bytes(node.attributes["value"].as_tensor()) > MAX_CONSTANT_BYTES


def _has_cache_or_causal_mask(op: ContribOp, node: ir.Node) -> bool:
    call = call_of(op, node)
    return bool(call.attributes.get("unidirectional") or "past" in call or "past_key" in call)
