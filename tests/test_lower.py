"""`graphopt lower`: operators of a single runtime become standard ONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.lower import lower
from models import ZOO
from tests.passes.test_contrib import FUSED, WEIGHTS, D, draw, model
from tests.rewriting import assert_same_outputs


def lowered(before: onnx.ModelProto, folder: Path, **options: Any) -> tuple[onnx.ModelProto, Any]:
    onnx.save(before, folder / "in.onnx")
    done = lower(folder / "in.onnx", folder / "out.onnx", **options)
    return onnx.load(folder / "out.onnx"), done


@pytest.mark.parametrize("opset", [None, 13, 21])
def test_both_domains_become_standard(tmp_path: Path, opset: int | None) -> None:
    before = model(FUSED, WEIGHTS, opset=17 if opset is None else 11)
    ours, _ = graphopt.optimize(before, target="cpu", only=["contrib", "fuse_row_norm"])
    assert any(n.domain == "com.graphopt" for n in ours.graph.node)
    after, done = lowered(ours, tmp_path, to="standard", opset=opset)
    assert {n.domain for n in after.graph.node} == {""}
    assert [(i.domain, i.version) for i in after.opset_import] == [("", opset or 17)]
    assert not after.functions
    assert done.inlined == 1
    assert done.kept == []
    onnx.checker.check_model(after, full_check=True)
    assert_same_outputs(before, after, {"x": draw(2, 5, D)}, tolerance=1e-4)


def test_the_default_keeps_com_microsoft_operators(tmp_path: Path) -> None:
    after, done = lowered(model(FUSED, WEIGHTS), tmp_path)
    assert [n.op_type for n in after.graph.node if n.domain] == ["MultiHeadAttention", "SkipLayerNormalization"]
    assert done.inlined == 0


def test_kept_operators_are_listed(tmp_path: Path, graphopt_command: Callable[..., Any]) -> None:
    text = f"""g (float[B, S, {D}] x) => (float[B, S, {D}] y) {{
        z = com.microsoft.LongformerAttention<num_heads = 4>(x)  y = com.microsoft.Gelu(z) }}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    result = graphopt_command("lower", tmp_path / "in.onnx", tmp_path / "out.onnx", "--to", "standard")
    assert result.exit_code == 0
    assert "kept: LongformerAttention->z: graphopt has no definition of LongformerAttention" in result.stdout
    imports = {i.domain for i in onnx.load(tmp_path / "out.onnx").opset_import}
    assert "com.microsoft" in imports


def test_verified(tmp_path: Path, graphopt_command: Callable[..., Any]) -> None:
    text = "g (float[B, 8] x) => (float[B, 8] y) { z = com.microsoft.FastGelu(x, c)  y = com.microsoft.QuickGelu(z) }"
    onnx.save(model(text, {"c": draw(8)}), tmp_path / "in.onnx")
    arguments = ("lower", tmp_path / "in.onnx", tmp_path / "out.onnx", "--to", "standard", "--opset", 20, "--verify")
    result = graphopt_command(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "2 nodes replaced by definitions (FastGelu 1, QuickGelu 1)" in result.stdout
    assert "opset 20" in result.stdout
    assert "equal" in result.stdout


def test_weights_of_a_quantized_product_stay_packed(tmp_path: Path) -> None:
    K, N, blocks = 128, 64, 4
    weights = {
        "w": np.random.default_rng(0).integers(0, 256, (N, blocks, 16), np.uint8),
        "s": draw(N, blocks),
    }
    product = f"com.microsoft.MatMulNBits<K = {K}, N = {N}, bits = 4, block_size = 32>(x, w, s)"
    text = f"g (float[B, {K}] x) => (float[B, {N}] y) {{ y = {product} }}"
    before = model(text, weights, opset=21)
    after, _ = lowered(before, tmp_path, to="standard")
    assert "DequantizeLinear" in [n.op_type for n in after.graph.node]
    assert after.ByteSize() < before.ByteSize() + 1000
    assert_same_outputs(before, after, {"x": draw(3, K)}, tolerance=1e-4)


def test_errors_are_readable(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--to plain: choose onnxruntime or standard"):
        lowered(model(FUSED, WEIGHTS), tmp_path, to="plain")
    gelu = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 20]> g (float[4] x) => (float[4] y) { y = Gelu(x) }'
    )
    for opset, why in ((7, "Gelu"), (99, "between 1 and")):
        with pytest.raises(OptionError, match=f"^--opset {opset}: onnx's version converter failed: [^/`$]*{why}"):
            lowered(gelu, tmp_path, opset=opset)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_zoo_model(tmp_path: Path, name: str) -> None:
    after, _ = graphopt.optimize(ZOO[name](small=True), target="cpu", ignore_cost_model=True)
    plain, done = lowered(after, tmp_path, to="standard")
    assert done.inlined > 0
    assert {n.domain for n in plain.graph.node} == {""}
