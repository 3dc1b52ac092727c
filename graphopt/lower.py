"""Inlines the bodies of our operators, for runtimes without function support."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir.passes.common as ir_passes

from graphopt import model as models
from graphopt.errors import OptionError
from graphopt.ops import DOMAIN
from graphopt.ops.schema import BODY_OPSET


def lower(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Writes a copy of the model in which every node of our domain is replaced by its standard ONNX definition.

    Returns:
        How many nodes were inlined.

    Raises:
        ModelLoadError: the model cannot be read.
        ModelSaveError: the result cannot be written.
        OptionError: the model's opset is older than that of the bodies.

    """
    source = models.load(path)
    work = source.model
    count = sum(node.domain == DOMAIN for graph in models.graphs(work) for node in graph)
    opset = work.opset_imports.get("", BODY_OPSET)
    if count and opset < BODY_OPSET:
        raise OptionError(f"{path}: lower needs a model of opset {BODY_OPSET} or later, this one has {opset}")
    for function in work.functions.values():
        if function.domain == DOMAIN:
            # The bodies mean the same in every opset from theirs on.
            function.opset_imports[""] = opset
    ir_passes.InlinePass(criteria=lambda function: function.domain == DOMAIN)(work)
    for identifier in [i for i, f in work.functions.items() if f.domain == DOMAIN]:
        del work.functions[identifier]
    work.opset_imports.pop(DOMAIN, None)
    models.save(source, work, Path(out))
    return count
