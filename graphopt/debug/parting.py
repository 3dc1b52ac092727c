"""Finds the first value of a model at which two providers part.

The question of `bisect` for one file instead of one rewrite: two providers give different outputs, so which node is it
that one of them computes otherwise? Values are made outputs in the order of the graph, some at a time, until one of
them differs by more than rounding explains.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from graphopt.graph import inference, reading, writing
from graphopt.runtime.custom_ops import registering_custom_ops
from graphopt.verification.run import with_outputs
from graphopt.verification.verify import Verdict, VerifyReport, verify

# How many values are outputs at once: all values of a model may not fit into memory together.
AT_ONCE = 64


@dataclass(frozen=True)
class Parting:
    """Where two providers part.

    Attributes:
        values: how many values the model has.
        verdict: of `verify` on the whole model; where it is RANDOM no provider can be blamed.
        value: the first that differs; None when the outputs do not.
        node: what computes it, as "Conv 'layer1.conv'".
        alone: it differs only while no other value is an output: a provider computes it together with what follows.
        summary: what `verify` said about it, or about the whole model when the outputs do not differ.
        minimal: a model of that node alone; None when there is none.
    """

    values: int
    verdict: Verdict
    value: str | None
    node: str
    alone: bool
    summary: str
    minimal: ir.Model | None


@registering_custom_ops
def first_parting(
    model: Any,
    providers: Sequence[str],
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    seed: int = 0,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
) -> Parting:
    """Compares one model on two providers, value by value in the order of the graph.

    Args:
        model: as for `verify`; its weights must fit into one message, 2 GiB.
        providers: two, as for `verify`; the first one is taken to be right.
        inputs: as for `verify`.
        seed: as for `verify`.
        custom_ops: as for `verify`.

    Raises:
        OptionError: not two providers, or one that this runtime has not.
        ModelLoadError: the model cannot be read.
        VerifyError: a provider refuses the model.
    """
    model = reading.load(model).model
    nodes = {str(value.name): node for node in model.graph for value in node.outputs if value.name}
    whole = verify(model, model, providers=providers, inputs=inputs, seed=seed)
    if whole.verdict != Verdict.DIFFERENT:
        return Parting(len(nodes), whole.verdict, None, "", False, whole.summary, None)
    # The input set that shows it most is enough from here on.
    feeds = whole.feeds
    typed = model.clone()
    inference.infer(typed)

    def observed(names: Sequence[str]) -> VerifyReport:
        copy = with_outputs(typed, names)
        for value in copy.graph.outputs:
            inference.declare(copy, value)
        inference.forget(copy)
        return verify(copy, copy, providers=providers, inputs=feeds, seed=seed)

    values = list(nodes)
    for start in range(0, len(values), AT_ONCE):
        chunk = values[start : start + AT_ONCE]
        different = {row.name for row in observed(chunk).rows if not row.equal}
        for name in chunk:
            if name in different:
                return _found(model, nodes, name, observed([name]).summary, alone=False)
    # Nothing differs when it is looked at: some provider fuses. Each value by itself, halving what is left.
    good, bad = -1, len(values) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if observed([values[middle]]).verdict == Verdict.DIFFERENT:
            bad = middle
        else:
            good = middle
    return _found(model, nodes, values[bad], whole.summary, alone=True)


def _found(model: ir.Model, nodes: Mapping[str, ir.Node], value: str, summary: str, *, alone: bool) -> Parting:
    node = nodes[value]
    named = f"{node.op_type} '{node.name}'" if node.name else node.op_type
    return Parting(len(nodes), Verdict.DIFFERENT, value, named, alone, summary, _alone(model, value))


def _alone(model: ir.Model, value: str) -> ir.Model | None:
    """The node that computes a value, with what it reads as inputs."""
    node = next(n for n in model.graph if any(o.name == value for o in n.outputs))
    inputs = [v for v in dict.fromkeys(node.inputs) if v is not None and not v.is_initializer()]
    if not inputs or any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return None
    graph = ir.convenience.extract(model.graph, inputs, [o for o in node.outputs if o.name])
    return ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))


def first_parting_in_file(
    path: str | os.PathLike[str], out: Path | None, providers: Sequence[str], **options: Any
) -> Parting:
    """`first_parting` over a file; writes the minimal model to `out`.

    Raises:
        ModelSaveError: the minimal model cannot be written, or would overwrite the model or its weights.
    """
    if out is not None:
        writing.check_place("--out", out, [Path(path), *reading.data_files(Path(path))])
    result = first_parting(path, providers, **options)
    if out is not None and result.minimal is not None:
        writing.save(result.minimal, out)
    return result
