"""Files that ONNX Runtime has fused and saved are read as the original operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

import graphopt
from models import ZOO
from tests.rewriting import assert_same_outputs
from tests.verification.test_verify import feeds_of


def saved(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize(
    ("name", "fused", "becomes"),
    [
        ("bert", "SkipLayerNormalization", ("FusedLayerNormAdd", "FusedAttention")),
        ("unet", "FusedConv", ("WinogradConvRelu",)),
    ],
)
def test_same_operators_of_ours(name: str, fused: str, becomes: tuple[str, ...], tmp_path: Path) -> None:
    model = ZOO[name](small=True)
    before = saved(model, tmp_path / "saved.onnx")
    assert fused in {n.op_type for n in before.graph.node if n.domain == "com.microsoft"}
    ends = []
    for form in (model, before):
        after, _ = graphopt.optimize(form, target="cpu", ignore_cost_model=True)
        ends.append(Counter(n.op_type for n in after.graph.node if n.domain == "com.graphopt"))
        assert not [n.op_type for n in after.graph.node if n.domain == "com.microsoft"]
    assert ends[0] == ends[1]
    assert all(any(op.startswith(b) for op in ends[1]) for b in becomes), ends[1]
    # onnxruntime 1.22 cannot load all of its saved models at the default level (gemm_input_shape exists twice).
    assert_same_outputs(before, after, feeds_of(model, 2), tolerance=1e-4)
