"""Fuses a LayerNorm with the scale A and shift B that the model computes for each image (AdaLN).

    FusedLayerNorm[Add[Sum]](X, gamma, beta) A + B
        = FusedAdaLayerNorm[Add[Sum]](X, gamma A, beta A + B)        A and B are [N, 1, .., D]

W. Peebles, S. Xie, "Scalable Diffusion Models with Transformers", ICCV 2023: A = 1 + scale, B = shift.

Why it is legal: FusedAdaLayerNorm is defined by that equation. gamma A and beta A + B are one row for each image. If
gamma is 1, gamma A is not computed; if beta is 0, beta A + B is not computed.

Conditions: no other node reads the norm or its product with A; A and B have the rank of X, size D along the last axis
and size 1 along the axes between the first and the last. Along the first axis both have the size of X, or both have
size 1. X, A and B have the same type.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.forms.modulation import Modulation, is_row_of_each_image, modulation_of
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.shapes.sizes import shape_text
from graphopt.graph.view import attribute_float, require_input, require_one_graph
from graphopt.metadata import Numerics
from graphopt.ops import DOMAIN
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became

NORMS = ("FusedLayerNorm", "FusedLayerNormAdd", "FusedLayerNormAddSum")


@dataclass(frozen=True)
class AdaMatch:
    """A fused LayerNorm with its scale and shift, and the insertion point of the new node."""

    norm: ir.Node
    modulation: Modulation
    insertion_point: ir.Node

    @property
    def name(self) -> str:
        return self.norm.op_type.replace("FusedLayerNorm", "FusedAdaLayerNorm")

    @property
    def data(self) -> tuple[ir.Value, ...]:
        """X, and R if any."""
        return tuple(v for v in self.norm.inputs[:-2] if v is not None)


class AdaLayerNorm(Pass[AdaMatch, AdaMatch]):
    name = "ada_layer_norm"
    equation = "FusedLayerNorm(X) A + B -> FusedAdaLayerNorm(X, A, B) with one A and one B for each image"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset((DOMAIN, name) for name in NORMS)

    def match(self, node: ir.Node, editor: Editor) -> AdaMatch | None:
        modulation = modulation_of(node.outputs[0], editor)
        return None if modulation is None else AdaMatch(node, modulation, modulation.shifted)

    def legal(self, match: AdaMatch, editor: Editor) -> AdaMatch:
        norm, modulation = match.norm, match.modulation
        x = require_input(norm, 0)
        require_one_graph(modulation.nodes, norm)
        dims = editor.shapes.dims(x)
        for what, value in (("the scale", modulation.scale), ("the shift", modulation.shift)):
            given = editor.shapes.dims(value)
            if dims is None or given is None:
                raise Refusal(Code.UNKNOWN_SHAPE, f"the shape of {what} {value.name} or of {x.name} is not known", norm)
            if len(dims) < 2 or not is_row_of_each_image(given, dims):
                raise Refusal(
                    Code.WRONG_SHAPE, f"{what} has shape {shape_text(given)}, which is not one row per image", norm
                )
            if given[0] != dims[0] and given[0].value != 1:
                code = Code.UNKNOWN_SHAPE if None in (given[0].value, dims[0].value) else Code.WRONG_SHAPE
                raise Refusal(code, f"{what} has {given[0]} images, and {x.name} has {dims[0]}", norm)
        first = [(editor.shapes.dims(v) or ())[0] for v in (modulation.scale, modulation.shift)]
        if first[0] != first[1]:
            raise Refusal(Code.WRONG_SHAPE, f"the scale has {first[0]} images, and the shift has {first[1]}", norm)
        editor.require_equal_types((x, modulation.scale, modulation.shift), norm)
        editor.require_op(match.name, x, norm)
        return AdaMatch(norm, modulation, _insertion_point(match, editor))

    def rewrite(self, plan: AdaMatch, editor: Editor) -> str:
        norm, modulation = plan.norm, plan.modulation
        gamma, beta = norm.inputs[-2:]
        scale, shift, dtype = modulation.scale, modulation.shift, editor.dtype(require_input(norm, 0))
        builder = Builder(editor, modulation.shifted)
        beta_is_zero, gamma_is_one = (array is not None and bool((array == number).all())
                     for array, number in ((editor.constant(beta), 0), (editor.constant(gamma), 1)))  # fmt: skip
        if not beta_is_zero:
            scaled_beta = builder.op("Mul", scale, beta, _hint=f"{builder.label}/beta", _dtype=dtype)
            shift = builder.op("Add", scaled_beta, shift, _hint=f"{builder.label}/shift", _dtype=dtype)
        if not gamma_is_one:
            scale = builder.op("Mul", scale, gamma, _hint=f"{builder.label}/scale", _dtype=dtype)
        epsilon = attribute_float(norm, "epsilon", 1e-5)
        fused = builder.emit(plan.name, [*plan.data, scale, shift], {"epsilon": epsilon})
        outputs = {modulation.shifted.outputs[0]: fused.outputs[0]}
        if len(norm.outputs) > 1:
            outputs[norm.outputs[1]] = fused.outputs[1]
        editor.replace([*modulation.nodes, norm], builder.nodes, outputs, anchor=plan.insertion_point)
        return became(3, plan.name)


def _insertion_point(match: AdaMatch, editor: Editor) -> ir.Node:
    """Returns the insertion point of the new node, which is after its inputs and before the readers of its sum.

    Raises:
        Refusal: the sum is read before scale and shift are computed.
    """
    norm, modulation = match.norm, match.modulation
    readers = list(norm.outputs[1].consumers()) if len(norm.outputs) > 1 else []
    if not readers:
        return modulation.shifted
    graph = norm.graph
    assert graph is not None
    order = {node: i for i, node in enumerate(graph)}
    # The position of a reader in a branch is not known, because the node with the branch may be anywhere.
    if all(order.get(reader, -1) > order[modulation.shifted] for reader in readers):
        return modulation.shifted
    producers = [value.producer() for value in (modulation.scale, modulation.shift)]
    if all(node is None or order.get(node, -1) < order[norm] for node in producers):
        return norm
    raise Refusal(Code.ESCAPES, "the sum is read before scale and shift are computed", norm)
