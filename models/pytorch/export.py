"""Exports a case by one of PyTorch's two exporters."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from models.pytorch.case import Case
from models.pytorch.published import enliven

# Batch and length of the inputs: EXPORTED for the export, OTHER to test symbolic sizes.
EXPORTED, OTHER = (2, 7), (3, 9)


def export(build: Callable[[int, int], Case], exporter: str, file: Path, *, external_data: bool = False) -> None:
    """Exports build(batch, length) with non-trivial weights to `file`, and writes its inputs to NAME.npz.

    Args:
        build: returns the module, inputs of these sizes, and the symbolic axes.
        exporter: "torchscript" or "dynamo" with the opset.
        file: NAME.onnx; the inputs are "0:INPUT" and "1:INPUT" of NAME.npz.
        external_data: stores the weights in NAME.onnx.data (dynamo only).

    Raises:
        Exception: any exception of the exporter.
    """
    torch.manual_seed(0)
    case = build(*EXPORTED)
    enliven(case.module)
    feeds: dict[str, np.ndarray] = {}
    for i, (batch, length) in enumerate((EXPORTED, OTHER)):
        torch.manual_seed(batch)
        found = build(batch, length).inputs
        case.inputs = case.inputs if i else found
        feeds |= {f"{i}:{name}": tensor.numpy() for name, tensor in found.items()}
    # Written first: the existence of the model file means that the export is complete.
    np.savez(file.with_suffix(".npz"), **feeds)  # type: ignore[arg-type]
    write(case, exporter, file, external_data=external_data)


def write(
    case: Case, exporter: str, file: Path, *, external_data: bool = False, outputs: list[str] | None = None
) -> None:
    """Exports a case with the weights that it has."""
    kind, opset = re.fullmatch(r"(torchscript|dynamo)(\d+)", exporter).groups()  # type: ignore[union-attr]
    shared = {"input_names": list(case.inputs), "output_names": outputs, "opset_version": int(opset)}
    inputs = tuple(case.inputs.values())
    module = case.module.eval()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
            if kind == "torchscript":
                torch.onnx.export(module, inputs, str(file), dynamic_axes=case.axes, dynamo=False, **shared)
            else:
                program = torch.export.export(module, inputs, strict=False, dynamic_shapes=_dynamic_shapes(case))
                torch.onnx.export(
                    program, (), str(file), dynamo=True, verbose=False, external_data=external_data, **shared
                )
    except Exception:
        file.unlink(missing_ok=True)
        raise


def _dynamic_shapes(case: Case) -> tuple[Any, ...]:
    """Returns the symbolic axes for torch.export: an entry for each parameter of forward, a tuple for its *inputs."""
    axes = [dict.fromkeys(case.axes.get(name, {}), torch.export.Dim.DYNAMIC) or None for name in case.inputs]
    result: list[Any] = []
    for parameter in inspect.signature(case.module.forward).parameters.values():
        if parameter.kind is not parameter.VAR_POSITIONAL:
            result.append(axes[len(result)])
        elif rest := tuple(axes[len(result) :]):
            result.append(rest)
    return tuple(result)


def write_form(case: Case, exporter: str, file: Path) -> None:
    """Exports a case, and removes the metadata about the exporter's environment."""
    write(case, exporter, file, outputs=["y"])
    model = onnx.load(file)
    for node in model.graph.node:
        node.ClearField("doc_string")
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer)
    for part in (model, model.graph, *model.graph.node, *values):
        part.ClearField("metadata_props")
    onnx.save(model, file)
