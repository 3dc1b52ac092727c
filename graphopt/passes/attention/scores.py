"""Collects the steps from the scores to a softmax in the order of the fused node: scale, soft cap, terms, masks.

A step in another position is moved by an identity of real numbers, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from graphopt.graph.view import attribute_int
from graphopt.passes.attention.match import Attention, Condition, ScoresView, Term, same_dims
from graphopt.remarks import Code, Refusal


class Scores:
    """The scores after the steps applied so far; `view` is their shape if a Reshape changed it, or None."""

    def __init__(self, found: Attention) -> None:
        self.graph = found.graph
        self.view: ScoresView | None = None
        self._found = found
        self._scale = found.scale
        self._softcap = found.softcap
        self._terms: list[Term] = []
        self._conditions: list[Condition] = []
        self._mask_value = found.mask_value
        self._restoring_reshapes: dict[ScoresView, ir.Node] = {}
        self._casts: list[tuple[ir.DataType, ir.Node]] = []
        self._wide: list[ir.Node] = []
        self._dtype = self._current_dtype = found.graph.dtype(found.scores.outputs[0])

    def cast(self, node: ir.Node) -> None:
        self._current_dtype = ir.DataType(attribute_int(node, "to", 0))
        if self._current_dtype not in (self._dtype, ir.DataType.FLOAT):
            raise Refusal(Code.MIXED_DTYPE, f"scores are cast to {self._current_dtype.name}", node)

    def multiply(self, number: float, node: ir.Node) -> None:
        """Multiplies the scores and all steps applied so far by a factor."""
        if not math.isfinite(number):
            raise Refusal(Code.NOT_FINITE, f"the scores are multiplied by {number}", node)
        self._scale *= number
        if self._softcap is not None:
            self._softcap *= number
        self._terms = [replace(t, factor=t.factor * number) for t in self._terms]
        if self._conditions:
            self._mask_value = float(np.float32(self._mask_value) * np.float32(number))

    def cap(self, node: ir.Node) -> None:
        if self._softcap is not None or self._terms or self._conditions:
            raise Refusal(Code.UNSUPPORTED_OP, "Tanh follows a mask, a bias or another Tanh", node)
        self._softcap = 1.0

    def add(self, term: Term) -> None:
        self._masks_to_terms(term.node)
        self._record_wide_step(term.node)
        self._terms.append(term)

    def hide(self, number: float, condition: Condition, node: ir.Node) -> None:
        """Adds a mask at `node`; `number` replaces the masked scores."""
        self._record_wide_step(node)
        if self._conditions and self._mask_value != number:
            raise Refusal(Code.UNSUPPORTED_OP, "two masks write different values", condition.node)
        self._mask_value = number
        self._conditions.append(condition)

    def reshape(self, node: ir.Node) -> None:
        base, dims = self.graph.shapes.dims(self._found.scores.outputs[0]), self.graph.shapes.reshaped(node)
        if base is None or dims is None or not dims:
            raise Refusal(Code.UNKNOWN_SHAPE, "the scores are reshaped, and the new shape is not known", node)
        if not same_dims(dims, base):
            self.view = ScoresView(dims, node)
            return
        if self.view is not None:
            self._restoring_reshapes[self.view] = node
        self.view = None

    def _record_wide_step(self, node: ir.Node) -> None:
        if self._current_dtype != self._dtype:
            self._wide.append(node)

    def _masks_to_terms(self, node: ir.Node) -> None:
        """Turns masks before a bias into biases: where(m, s, c) + b = s + where(m, 0, c) + b.

        For float32 scores below 1e30 this is exact if c is -inf, or so large in magnitude that s + c = c.
        """
        if not self._conditions:
            return
        hidden = self._mask_value
        if hidden > -1e38 or self._dtype != ir.DataType.FLOAT:
            raise Refusal(Code.MASK_ORDER, f"a bias is added after a mask that writes {hidden:g}", node)
        for c in self._conditions:
            self._terms.append(Term(c.value, c.node, c.view, mask=(hidden, c.keeps), numeric=c.numeric))
        self._conditions = []

    def require_keys_last(self) -> None:
        """Requires that the last axis is the axis of the keys.

        Raises:
            Refusal: the softmax is not over the keys, or its axis is not known.
        """
        view, base = self.view, self.graph.shapes.dims(self._found.scores.outputs[0])
        if view is None or (base is not None and view.dims[-1] == base[-1]):
            return
        if base is None or None in (view.dims[-1].value, base[-1].value):
            raise Refusal(Code.UNKNOWN_SHAPE, "it is not known whether the softmax is over the keys", view.reshape)
        raise Refusal(Code.WRONG_AXIS, "the last axis of the softmax is not that of the keys", view.reshape)

    def follow_probabilities(self, nodes: Sequence[ir.Node]) -> None:
        """Follows the nodes from the softmax to the context MatMul, which must restore the shape of the scores."""
        swapped: ir.Node | None = None
        for node in nodes:
            if node.op_type == "Cast":
                self._casts.append((ir.DataType(attribute_int(node, "to", 0)), node))
            elif node.op_type == "Transpose":
                swapped = node
            elif node.op_type == "Reshape":
                if swapped is not None:
                    why = "the probabilities are transposed, then reshaped"
                    raise Refusal(Code.UNSUPPORTED_OP, why, swapped, node)
                self.reshape(node)
            if swapped is not None and self.view is not None:
                raise Refusal(Code.UNSUPPORTED_OP, "the probabilities are reshaped, then transposed", node)
        if self.view is not None:
            why = "the probabilities do not have the shape of the scores"
            raise Refusal(Code.WRONG_SHAPE, why, self.view.reshape)

    def to_attention(self) -> Attention:
        """Returns the attention with the collected steps."""
        return replace(
            self._found,
            scale=self._scale,
            softcap=self._softcap,
            terms=tuple(self._terms),
            conditions=tuple(self._conditions),
            mask_value=self._mask_value,
            restoring_reshapes=self._restoring_reshapes,
            casts=tuple(self._casts),
            wide_steps=tuple(self._wide),
        )
