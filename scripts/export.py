"""Writes models of PyTorch as ONNX files by its two exporters, each with inputs of two sizes in an .npz file beside it.

    venv-torch/bin/python scripts/export.py FOLDER [--only rt_detr,crnn] [--exporters torchscript17,dynamo20]
    venv-torch/bin/python scripts/export.py FOLDER --exporters dynamo20 --external-data
    venv-torch/bin/python scripts/export.py tests/passes/exported --forms

The models are those of models/pytorch/published.py, or with --forms those of models/pytorch/forms.py. A model that an
exporter cannot write is printed with its error. A second run writes the missing files. Environment:

    python -m venv venv-torch
    venv-torch/bin/pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
    venv-torch/bin/pip install torchvision timm transformers==5.24.0 diffusers onnxscript onnx
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import logging
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.pytorch.case import Case
from models.pytorch.published import MODELS, enliven

# Batch and length of the inputs: as exported, and others for the symbolic sizes.
EXPORTED, OTHER = (2, 7), (3, 9)


def export(build: Callable[[int, int], Case], exporter: str, file: Path, *, external_data: bool = False) -> None:
    """Writes build(batch, length) with livelier weights as `file`, and its inputs beside it.

    Args:
        build: gives the module, inputs of these sizes, and the axes that are symbolic.
        exporter: "torchscript" or "dynamo" with the opset.
        file: NAME.onnx; the inputs are "0:INPUT" and "1:INPUT" of NAME.npz.
        external_data: the weights are in NAME.onnx.data (dynamo only).

    Raises:
        Exception: whatever the exporter raises.
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
    # Before the model, whose file says that it is done.
    np.savez(file.with_suffix(".npz"), **feeds)  # type: ignore[arg-type]
    write(case, exporter, file, external_data=external_data)


def write(
    case: Case, exporter: str, file: Path, *, external_data: bool = False, outputs: list[str] | None = None
) -> None:
    """Exports a case as it is."""
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
    """Symbolic axes for torch.export: an entry for each parameter of forward, a tuple for its *inputs."""
    axes = [dict.fromkeys(case.axes.get(name, {}), torch.export.Dim.DYNAMIC) or None for name in case.inputs]
    result: list[Any] = []
    for parameter in inspect.signature(case.module.forward).parameters.values():
        if parameter.kind is not parameter.VAR_POSITIONAL:
            result.append(axes[len(result)])
        elif rest := tuple(axes[len(result) :]):
            result.append(rest)
    return tuple(result)


def write_form(case: Case, exporter: str, file: Path) -> None:
    """Exports a case, and removes the notes on where the exporter ran."""
    write(case, exporter, file, outputs=["y"])
    model = onnx.load(file)
    for node in model.graph.node:
        node.ClearField("doc_string")
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer)
    for part in (model, model.graph, *model.graph.node, *values):
        part.ClearField("metadata_props")
    onnx.save(model, file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda t: t.split(","), help=f"models out of {', '.join(MODELS)}")
    parser.add_argument("--exporters", type=lambda t: t.split(","), default=["torchscript17", "dynamo20"])
    parser.add_argument("--external-data", action="store_true", help="weights in NAME.onnx.data")
    parser.add_argument("--forms", action="store_true", help="the smallest models with a form that fuses")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if options.forms:
        from models.pytorch.forms import FORMS
    failed = 0
    for name in options.only or (FORMS if options.forms else MODELS):
        for exporter in options.exporters:
            file = options.folder / f"{name}-{exporter}.onnx"
            try:
                if options.forms:
                    torch.manual_seed(0)
                    file = options.folder / f"{name}-{exporter.rstrip('0123456789')}.onnx"
                    write_form(FORMS[name](), exporter, file)
                elif not file.exists():
                    export(MODELS[name], exporter, file, external_data=options.external_data)
                print(f"{file.stem}: {file.stat().st_size >> 10} KiB", flush=True)
            except Exception as error:  # whatever an exporter raises is its result
                failed += 1
                print(f"{file.stem}: {type(error).__name__}: {str(error)[:160]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
