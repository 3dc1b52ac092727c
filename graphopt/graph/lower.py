"""Inlines the bodies of our operators, for runtimes without function support."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir.passes.common as ir_passes

from graphopt import files
from graphopt.graph import reading, traversal, writing
from graphopt.ops import DOMAIN


def lower(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Writes a copy of the model in which every node of our domain is replaced by its standard ONNX definition.

    Returns:
        How many nodes were inlined.

    Raises:
        ModelLoadError: the model cannot be read.
        ModelSaveError: the result cannot be written, or would overwrite the input.
    """
    files.check_places({"OUT": Path(out)}, [Path(path)])
    work = reading.load(path).model
    files.check_places({"OUT": Path(out)}, {Path(t.path) for t in traversal.external_tensors(work)})
    count = sum(node.domain == DOMAIN for graph in traversal.graphs(work) for node in graph)
    ir_passes.InlinePass(criteria=lambda function: function.domain == DOMAIN)(work)
    for identifier in [i for i, f in work.functions.items() if f.domain == DOMAIN]:
        del work.functions[identifier]
    work.opset_imports.pop(DOMAIN, None)
    writing.save(work, Path(out))
    return count
