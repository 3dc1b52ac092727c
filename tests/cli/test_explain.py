"""`explain` covers every node, and computes its numbers from the shapes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.report.account import Status, account
from models import ZOO
from tests.rewriting import model_from_text

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.once

Command = Callable[..., Any]


@pytest.mark.parametrize("name", ["resnet18", "bert", "gpt2"])
def test_every_node_is_in_one_group(name: str) -> None:
    model = ZOO[name](small=True, dynamic=True)
    found = account(model, target="cpu")
    labels = [label for g in found.groups for s in g.subgraphs for label in s.labels]
    names = [n.name or f"{n.op_type}->{n.output[0]}" for n in model.graph.node]
    assert sorted(labels) == sorted(names)
    _, report = graphopt.optimize(model, target="cpu")
    shown = {r for g in found.groups for s in g.subgraphs for r in s.remarks} | set(found.elsewhere)
    assert {r for r in report.remarks if not r.applied} <= shown
    assert sum(g.share for g in found.groups) == pytest.approx(1)
    assert sum(g.byte_share for g in found.groups) == pytest.approx(1)
    fates = [g.first.status for g in found.groups]
    assert fates == sorted(fates, key=list(Status).index)


def test_multiply_adds_and_bytes() -> None:
    """[2, 3] times [3, 5]: 30 multiply-adds, and 6 + 15 + 10 floats read and written; Neg reads and writes 10 + 10."""
    text = "g (float[N, 3] x, float[3, 5] w) => (float[N, 5] y) {{ t = MatMul (x, w)  y = {} (t) }}"
    found = account(model_from_text(text.format("Neg"), {}), target="cpu", sizes={"N": 2})
    assert (found.multiply_adds, found.bytes, found.sizes, found.unknown) == (30, 4 * 51, {"N": 2}, 0)
    product = found.groups[0]
    assert product.share == 1.0 and product.byte_share == pytest.approx(31 / 51)
    assert product.first.reason == "its weight is the graph input 'w' with unknown values"
    layer = account(model_from_text(text.format("Relu"), {}), target="cpu").groups[0].first
    assert layer.status == Status.COULD_GAIN and [r.code for r in layer.remarks] == ["NOT_CONSTANT"]


def test_sizes_after_computed_paddings() -> None:
    """Sizes after the paddings of torch's F.pad, which TorchScript exports as a computation in reverse order."""
    text = """g (float[1, 2, 8] x) => (float[N, C, L] y) {
        a = Reshape (given, pairs)
        b = Slice (a, last, first, rows, back)
        c = Transpose <perm = [1, 0]> (b)
        d = Reshape (c, flat)
        p = Pad (x, d)
        y = Conv <kernel_shape = [3]> (p, w)
    }"""
    integers = {"given": [2, 1, 0, 0, 0, 0], "pairs": [-1, 2], "flat": [-1]}
    integers |= {"last": [-1], "first": [-9], "rows": [0], "back": [-1]}
    constants = {name: np.array(values) for name, values in integers.items()}
    found = account(model_from_text(text, {**constants, "w": np.ones((4, 2, 3), np.float32)}), target="cpu")
    assert found.multiply_adds == 4 * 2 * 3 * 9 and found.unknown == 0  # 8 + 3 padded, minus 2


def test_lengths_grow_until_a_kernel_fits() -> None:
    """A filter bank of 400 samples gives no frame for a recording of the default length, 128."""
    text = "g (float[N, 1, T] x) => (float[N, 2, F] y) {{ y = Conv {} (x, w) }}"
    weights = {"w": np.ones((2, 1, 400), np.float32)}
    for attributes, length, frames in (
        ("<strides = [160]>", 512, 1),
        ("<strides = [160], kernel_shape = [400], pads = [136, 136]>", 128, 1),
        ("<kernel_shape = [400], dilations = [2]>", 1024, 226),
        ('<strides = [160], auto_pad = "SAME_UPPER">', 128, 1),
    ):
        found = account(model_from_text(text.format(attributes), weights), target="cpu")
        assert (found.sizes, found.multiply_adds) == ({"N": 1, "T": length}, 2 * 400 * frames)
    given = account(model_from_text(text.format("<strides = [160]>"), weights), target="cpu", sizes={"T": 400})
    assert given.sizes == {"N": 1, "T": 400}


def test_texts_have_no_size() -> None:
    lower = 'StringNormalizer <case_change_action = "LOWER">'
    text = f"g (string[3] x) => (string[3] y) {{ t = Identity (x)  y = {lower} (t) }}"
    found = account(model_from_text(text, {}), target="cpu")
    assert (found.bytes, found.unknown) == (0, 1)


def test_layers_are_one_line(graphopt_command: Command, tmp_path: Path) -> None:
    nodes, weights = "", {}
    for i in range(12):
        nodes += f"b{i} = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, w{i}) "
        weights[f"w{i}"] = np.full((1, 1, 3, 3), i, np.float32)
    joined = f"y = Concat <axis = 1> ({', '.join(f'b{i}' for i in range(12))})"
    text = f"g (float[1, 1, 8, 8] x) => (float[1, 12, 4, 4] y) {{ {nodes} {joined} }}"
    model = model_from_text(text, weights)
    for i, node in enumerate(model.graph.node[:-1]):
        node.name = f"/encoder/layer.{i}/Conv"
    onnx.save(model, tmp_path / "m.onnx")
    shown = graphopt_command("explain", tmp_path / "m.onnx", "--target", "cpu").stdout
    assert "Conv in 12 layers: /encoder/layer.{0-11}/Conv\n" in shown
    assert shown.count("the strides are [2, 2]") == 1


def test_candidates_without_gain_are_one_line(graphopt_command: Command, tmp_path: Path) -> None:
    """Convolutions of different sizes are one group, with the estimated times of one of them."""
    text = "t1 = Conv (x, a)  t2 = Conv (t1, b)  t3 = Conv (t2, a)  y = Identity (t3)"
    weights = {"a": np.ones((64, 64, 1, 1), np.float32), "b": np.ones((64, 64, 3, 3), np.float32)}
    model = model_from_text(f"g (float[1, 64, 56, 56] x) => (float y) {{ {text} }}", weights, check=False)
    onnx.save(model, tmp_path / "m.onnx")
    printed = graphopt_command("explain", tmp_path / "m.onnx", "--target", "cpu", "--only", "fused_conv").stdout
    assert "Conv in 3 places" in printed
    assert printed.count("refused fused_conv: NO_GAIN: for example, FusedConv takes an estimated") == 1


def test_options(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(ZOO["resnet18"](small=True), path)
    data = json.loads(graphopt_command("explain", path, "--target", "cpu", "--json").stdout)
    assert data["command"] == "explain" and data["multiply_adds"] > 0
    everything = graphopt_command("explain", path, "--target", "cpu").stdout
    attribute = graphopt_command("explain", path, "--target", "cpu", "--code", "ATTRIBUTE").stdout
    assert ": NO_GAIN" in everything and "ATTRIBUTE" in attribute
    # A group is shown completely, with other refusals of its nodes.
    assert attribute.count("refused winograd_conv") == attribute.count(": ATTRIBUTE") > 0
    assert "winograd_conv" not in graphopt_command("explain", path, "--target", "cpu", "--skip", "winograd_conv").stdout
    assert "there is no code 'NO'" in graphopt_command("explain", path, "--code", "NO").stderr
    assert "no symbolic dimension 'batch'" in graphopt_command("explain", path, "--dim", "batch=2").stderr


def test_explain_code(graphopt_command: Command) -> None:
    assert graphopt_command("explain", "NO_GAIN").stdout == (ROOT / "docs/refusals/NO_GAIN.md").read_text()
    other = graphopt_command("explain", "NO_GAINS")
    assert (other.exit_code, "there is no file or code 'NO_GAINS'" in other.stderr) == (5, True)
