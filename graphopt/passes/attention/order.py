"""Moves the steps between the two MatMuls of an attention into the order of the fused node."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from graphopt.graph.shapes.sizes import ONE
from graphopt.graph.view import GraphView, producer_of
from graphopt.passes.attention.mask_factor import condition_of, hidden_value
from graphopt.passes.attention.match import MAX_PATH, Attention, Condition, Term, score_dims, terms_and_conditions
from graphopt.passes.attention.readings import Add, ScoreFactor, Step, Unchanged
from graphopt.passes.attention.scores import Scores
from graphopt.remarks import Code, Refusal


def apply_steps(found: Attention, steps: Sequence[Step], following: Sequence[ir.Node]) -> Attention:
    """Moves the steps into the order scale, soft cap, additive terms, masks.

    Args:
        found: the attention without its steps.
        steps: the steps from the scores to the softmax.
        following: the nodes from the softmax to the context MatMul.

    Raises:
        Refusal: another order would change the results.
    """
    scores = Scores(found)
    pending: ScoreFactor | None = None  # until the next term shows whether the factor is a mask
    for step in steps:
        if pending is not None and not isinstance(step, Unchanged):
            _apply_mask_factor(pending, step, scores)
            pending = None
        elif isinstance(step, ScoreFactor):
            pending = step
        else:
            step.apply(scores)
    if pending is not None:
        pending.apply(scores)
    scores.require_keys_last()
    scores.follow_probabilities(following)
    return scores.to_attention()


def _apply_mask_factor(factor: ScoreFactor, term: Step, scores: Scores) -> None:
    """Adds s mask + c (1 - mask) to the scores as a mask; refuses a factor if `term` is not c (1 - mask)."""
    number = None
    if isinstance(term, Add):
        number = hidden_value(factor.operand, term.operand, term.number, scores.graph)
    if number is None:
        factor.apply(scores)
    else:
        scores.hide(number, condition_of(factor.operand, factor.node, scores.view, scores.graph), term.node)


def mask_values_refusal(steps: Sequence[Step], graph: GraphView) -> Refusal | None:
    """Returns the refusal of a mask factor that may have elements other than 0 and 1, or None."""
    for factor, term in itertools.pairwise(steps):
        if not isinstance(factor, ScoreFactor) or factor.refusal is None or not isinstance(term, Add):
            continue
        constant = graph.is_constant(factor.operand)
        if not constant and hidden_value(factor.operand, term.operand, term.number, graph):
            return Refusal(Code.MASK_VALUES, f"{factor.operand.name} may have elements other than 0 and 1", factor.node)
    return None


def drop_zero_terms(found: Attention) -> Attention:
    """Removes the terms that add 0 to every score and the masks that keep every score, if they are constant.

    Exporters write them for models without padding. A term that is larger than the scores remains, because it repeats
    them.
    """
    if found.window is not None:  # its variants have the guard of an Attention node only with a bias or a mask
        return found
    base = score_dims(found)

    def has_effect(term: Term | Condition) -> bool:
        dims = found.graph.shapes.dims(term.value) if term.view is None else None
        if dims is None or len(dims) > len(base):
            return True
        if any(size not in (ONE, of_scores) for size, of_scores in zip(reversed(dims), reversed(base))):
            return True
        neutral = term.keeps if isinstance(term, Condition) else term.mask is not None and term.mask[1]
        return _only_element(term.value, found.graph) is not neutral

    return replace(
        found,
        terms=tuple(filter(has_effect, found.terms)),
        conditions=tuple(filter(has_effect, found.conditions)),
    )


def _only_element(value: ir.Value | None, graph: GraphView) -> bool | None:
    """Returns whether all elements of a constant are 1 (True) or all are 0 (False); None otherwise."""
    for _ in range(MAX_PATH):
        array = graph.constant(value)
        if array is not None:
            return next((bool(n) for n in (0, 1) if array.size and np.all(array == n)), None)
        node = producer_of(value, "Cast", "Expand", "Identity", "Reshape", "Unsqueeze", "Where")
        if node is None:
            return None
        value = node.inputs[0]  # a Cast keeps 0 and 1 in every type
        if node.op_type == "Where":
            condition = _only_element(value, graph)
            if condition is None:
                return None
            value = node.inputs[1 if condition else 2]
    return None


def find_causal(found: Attention) -> Attention:
    """Replaces a constant term or mask that hides exactly the keys after each query by the Causal step.

    Every query sees a key, so no row is fully masked, and -inf has the same effect as the Causal step. Another very low
    value has the same effect only without other terms and masks. These may hide all keys of a row that the constant
    leaves visible. The original then averages over the keys that the constant hides, but the Causal step does not.
    """
    base = score_dims(found)
    rows, keys = base[-2].value, base[-1].value
    if rows is None or keys is None or keys < rows:
        return found
    alone = len(found.terms) + len(found.conditions) == 1
    for term in terms_and_conditions(found):
        array = found.graph.constant(term.value) if term.view is None else None
        if array is None or array.ndim < 2 or array.shape[-2:] != (rows, keys) or array.size != rows * keys:
            continue
        matrix = array.reshape(rows, keys)
        visible = np.tri(rows, keys, keys - rows, dtype=np.bool_)
        if isinstance(term, Condition):
            hidden = np.full(1, found.mask_value)
            same = np.array_equal(matrix == term.keeps, visible)
        else:
            hidden = matrix[~visible]
            same = term.factor == 1.0 and term.mask is None and not matrix[visible].any()
        if same and (hidden <= (-1e30 if alone else -np.inf)).all():
            return replace(
                found,
                causal=True,
                terms=tuple(t for t in found.terms if t is not term),
                conditions=tuple(c for c in found.conditions if c is not term),
            )
    return found
