"""The forms that PyTorch's exporters write (scripts/export.py --forms) are fused, with correct results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt import optimize
from tests.rewriting import Array, assert_same_outputs

FOLDER = Path(__file__).parent / "exported"
SIZES = {"batch": 2, "length": 5, "height": 6, "width": 8}
# Model -> our nodes in the result, for both exporters and both targets; lstm_cells becomes ONNX's LSTM.
FORMS = {
    "layer_norm_2d_sam": ["FusedLayerNorm2d"],
    "layer_norm_2d_sam_hf": ["FusedLayerNorm2d"],
    "layer_norm_2d_timm": ["FusedLayerNorm2d"],
    "ada_ln_dit": ["FusedAdaLayerNorm"],
    "ada_ln_residual": ["FusedAdaLayerNorm", "FusedAdaLayerNormAddSum"],
    "rope_llama": ["FusedRotary", "FusedRotary"],
    "rope_phi": ["FusedRotary", "FusedRotary"],
    "rope_gptj": ["FusedRotaryInterleaved", "FusedRotaryInterleaved"],
    "rope_flux": ["FusedRotaryInterleaved", "FusedRotaryInterleaved"],
    "rope_timm": ["FusedRotaryInterleaved", "FusedRotaryInterleaved"],
    "rope_pairs": ["FusedRotary", "FusedRotary"],
    "swiglu": ["GatedSilu"],
    "swiglu_phi3": ["GatedHalvesSilu"],
    "geglu": ["GatedHalvesGelu"],
    "geglu_gemma": ["GatedGeluTanh"],
    "glu": ["GatedHalvesSigmoid"],
    "lstm_cells": [],
}
# Operators that an unfused form would leave; a Sigmoid is also used to compute AdaLN's scale.
LEFT = {"ReduceMean", "Sqrt", "LayerNormalization", "Neg", "Sigmoid", "Gelu", "Erf", "Tanh"}
EXPORTERS = ("torchscript", "dynamo")
# TorchScript's rope_flux contains a shape that no runtime can run.
CELLS = [
    (form, exporter) for form in FORMS for exporter in EXPORTERS if (form, exporter) != ("rope_flux", "torchscript")
]


def feeds_of(model: onnx.ModelProto) -> dict[str, Array]:
    rng = np.random.default_rng(20)
    feeds = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        # Dynamo invents symbols: an unknown one is the batch if it is the first axis, otherwise the length.
        shape = [d.dim_value or SIZES.get(d.dim_param, 2 if i == 0 else 5) for i, d in enumerate(dims)]
        feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


@pytest.mark.parametrize("target", ["cpu", "rocm"])
@pytest.mark.parametrize(("form", "exporter"), CELLS)
def test_exported_form(form: str, exporter: str, target: str) -> None:
    model = onnx.load(FOLDER / f"{form}-{exporter}.onnx")
    after, _ = optimize(model, target=target)
    ours = [n.op_type for n in after.graph.node if n.domain and not n.op_type.startswith(("Linear", "FusedConv"))]
    assert ours == FORMS[form]
    left = {n.op_type for n in after.graph.node} & (LEFT - {"Sigmoid"} if "ada_ln" in form else LEFT)
    assert not left
    assert_same_outputs(model, after, feeds_of(model))
