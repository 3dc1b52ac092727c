"""Finds the first value of a model that two providers compute differently.

Values become outputs in the order of the graph, VALUES_PER_RUN at a time, until one differs by more than rounding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from graphopt.graph import inference, reading, traversal
from graphopt.runtime.custom_ops import registering_custom_ops
from graphopt.verification.variants import with_outputs
from graphopt.verification.verify import Verdict, VerifyReport, verify

# The most outputs of one run, because all values of a model may not fit into memory together.
VALUES_PER_RUN = 64


@dataclass(frozen=True)
class FirstDifference:
    """The first difference of two providers.

    Attributes:
        values: the number of values of the model.
        verdict: the verdict of `verify` on the whole model; if it is RANDOM, no provider is at fault.
        value: the first value that differs; None if the outputs are equal.
        node: the node that computes it, as "Conv 'layer1.conv'".
        alone: whether it differs only as the single output: more outputs prevent the fusion of its node with earlier
            ones.
        summary: the summary of `verify` with this value as the output; of the whole model if the outputs are equal, or
            if `alone`.
        minimal: a model of that node alone; None if it cannot be cut out.
    """

    values: int
    verdict: Verdict
    value: str | None
    node: str
    alone: bool
    summary: str
    minimal: ir.Model | None


@registering_custom_ops
def first_difference(
    model: Any,
    providers: Sequence[str],
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    seed: int = 0,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
) -> FirstDifference:
    """Compares one model on two providers, value by value in the order of the graph.

    Args:
        model: as for `verify`; its weights must fit into one message, 2 GiB.
        providers: two, as for `verify`; the first is the reference.
        inputs: as for `verify`.
        seed: as for `verify`.
        custom_ops: as for `verify`.

    Raises:
        OptionError: not two providers, or one that this runtime lacks.
        ModelLoadError: the model cannot be read.
        VerifyError: a provider refuses the model.
    """
    model = reading.load(model).model
    nodes = {str(value.name): node for node in model.graph for value in node.outputs if value.name}
    whole = verify(model, model, providers=providers, inputs=inputs, seed=seed)
    if whole.verdict != Verdict.DIFFERENT:
        return FirstDifference(len(nodes), whole.verdict, None, "", False, whole.summary, None)
    typed = model.clone()
    inference.infer(typed)

    def observed(names: Sequence[str]) -> VerifyReport:
        """Verifies with these outputs, on the inputs with the largest difference."""
        copy = with_outputs(typed, names)
        for value in copy.graph.outputs:
            inference.declare(copy, value)
        inference.forget(copy)
        return verify(copy, copy, providers=providers, inputs=whole.feeds, seed=seed)

    def found(value: str, summary: str, *, alone: bool) -> FirstDifference:
        node = nodes[value]
        label = f"{node.op_type} '{node.name}'" if node.name else node.op_type
        return FirstDifference(len(nodes), Verdict.DIFFERENT, value, label, alone, summary, _alone(model, node))

    values = list(nodes)
    for start in range(0, len(values), VALUES_PER_RUN):
        chunk = values[start : start + VALUES_PER_RUN]
        different = {row.name for row in observed(chunk).rows if not row.equal}
        for name in chunk:
            if name in different:
                return found(name, observed([name]).summary, alone=False)
    # Additional outputs prevent the fusion that causes the difference. A binary search with single outputs finds the
    # value, up to the first output of the model that differs.
    wrong = [values.index(row.name) for row in whole.rows if not row.equal and row.name in nodes]
    good, bad = -1, min(wrong, default=len(values) - 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if observed([values[middle]]).verdict == Verdict.DIFFERENT:
            bad = middle
        else:
            good = middle
    return found(values[bad], whole.summary, alone=True)


def _alone(model: ir.Model, node: ir.Node) -> ir.Model | None:
    """Cuts out a node; the values that it reads become inputs. Returns None if it has bodies or no inputs."""
    inputs = [v for v in dict.fromkeys(node.inputs) if v is not None and not v.is_initializer()]
    if not inputs or traversal.bodies(node):
        return None
    graph = ir.convenience.extract(model.graph, inputs, [o for o in node.outputs if o.name])
    return ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))
