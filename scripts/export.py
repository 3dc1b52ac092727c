"""Exports PyTorch models with PyTorch's two ONNX exporters, and inputs of two sizes to an .npz file next to each.

    venv-torch/bin/python scripts/export.py FOLDER [--only rt_detr,crnn] [--exporters torchscript17,dynamo20]
    venv-torch/bin/python scripts/export.py FOLDER --exporters dynamo20 --external-data
    venv-torch/bin/python scripts/export.py tests/passes/exported --forms

The models are those of models/pytorch/published.py, or with --forms those of models/pytorch/forms.py. If an exporter
cannot write a model, its error is printed. A second run writes the missing files. Environment:

    python -m venv venv-torch
    venv-torch/bin/pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
    venv-torch/bin/pip install torchvision timm transformers==5.24.0 diffusers onnxscript onnx
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.pytorch.export import export, write_form
from models.pytorch.published import MODELS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda t: t.split(","), help=f"models out of {', '.join(MODELS)}")
    parser.add_argument("--exporters", type=lambda t: t.split(","), default=["torchscript17", "dynamo20"])
    parser.add_argument("--external-data", action="store_true", help="weights in NAME.onnx.data")
    parser.add_argument("--forms", action="store_true", help="export minimal models of the forms that passes fuse")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if options.forms:
        from models.pytorch.forms import FORMS
    for name in options.only or (FORMS if options.forms else MODELS):
        for exporter in options.exporters:
            file = options.folder / f"{name}-{exporter}.onnx"
            try:
                if options.forms:
                    torch.manual_seed(0)
                    file = file.with_stem(file.stem.rstrip("0123456789"))
                    write_form(FORMS[name](), exporter, file)
                elif not file.exists():
                    export(MODELS[name], exporter, file, external_data=options.external_data)
                print(f"{file.stem}: {file.stat().st_size >> 10} KiB", flush=True)
            except Exception as error:  # any exception of an exporter is its result
                print(f"{file.stem}: {type(error).__name__}: {str(error)[:160]}", flush=True)


if __name__ == "__main__":
    main()
