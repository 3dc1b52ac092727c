"""A Gather of rows after a GEMM moves before it; and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt import optimize
from graphopt.passes.gather_rows import GatherRows
from graphopt.passes.hoist_gather import HoistGather
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(34)
FOLDER = Path(__file__).parent / "exported"
WHOLE = "p = MatMul(x, W) a = Add(p, b) y = Gather <axis = 1> (a, rows)"


def draw(*shape: int, T: str = "float") -> Array:
    return RNG.standard_normal(shape).astype({"float": np.float32, "float16": np.float16}[T])


def product(
    body: str,
    dims: str = "N, 6, 24",
    constants: Mapping[str, Any] | None = None,
    *,
    T: str = "float",
    bias: tuple[int, ...] = (16,),
    outputs: str = "",
) -> onnx.ModelProto:
    numbers = {"rows": np.array([5, 0, -2])} | {k: np.array(v, np.int64) for k, v in (constants or {}).items()}
    numbers |= {"W": draw(24, 16, T=T), "b": draw(*bias, T=T)}
    return model_from_text(f"g ({T}[{dims}] x) => ({T} y{outputs}) {{ {body} }}", numbers)


def check(model: onnx.ModelProto, *inputs: Array, tolerance: float = 1e-5) -> list[str]:
    result = rewrite(model, [HoistGather()])
    for x in inputs:
        assert_same_outputs(model, result.proto, {"x": x}, tolerance)
    return result.op_types


MOVED = ["Gather", "MatMul", "Add"]


@pytest.mark.parametrize("bias", [(16,), (1, 1, 16), (1,), ()])
@pytest.mark.parametrize("dims", ["N, 6, 24", "2, 6, 24"])
def test_fewer_rows(dims: str, bias: tuple[int, ...]) -> None:
    ops = check(product(WHOLE, dims, bias=bias), draw(2, 6, 24))
    assert ops == MOVED


def test_without_a_bias() -> None:
    assert check(product("a = MatMul(x, W) y = Gather <axis = 1> (a, rows)"), draw(2, 6, 24)).count("Add") == 0


def test_half_precision() -> None:
    ops = check(product(WHOLE, T="float16"), draw(2, 6, 24, T="float16"), tolerance=2e-3)
    assert ops == MOVED


@pytest.mark.parametrize("dims", ["N, 2, 6, 24", "3, 2, 6, 24"])
def test_rows_of_several_tokens(dims: str) -> None:
    """After a Reshape each gathered row is one, two or four rows of the GEMM; a second Reshape restores the shape."""
    for tokens in (1, 2, 4):
        body = """p = MatMul(x, W) a = Add(b, p) v = Reshape(a, view) g = Gather <axis = 1> (v, some)
            y = Reshape(g, last)"""
        shapes = {"view": [-1, 12 // tokens, 16 * tokens], "last": [-1, 2, 8 * tokens], "some": [2, 0]}
        ops = check(product(body, dims, shapes), draw(3, 2, 6, 24))
        assert [op for op in ops if op != "Reshape"] == MOVED


def test_as_many_rows_of_a_copy() -> None:
    """The Gather moves before the GEMM, where it is merged with the Transpose."""
    body = """t = Transpose <perm = [0, 2, 1, 3]> (x) p = MatMul(t, W) a = Add(p, b) v = Reshape(a, tokens)
        y = Gather <axis = 1> (v, order)"""
    model = product(body, "N, 3, 4, 24", {"tokens": [-1, 12, 16], "order": RNG.permutation(12)})
    result = rewrite(model, [GatherRows(), HoistGather()])
    assert result.op_types == ["Reshape", *MOVED]
    assert_same_outputs(model, result.proto, {"x": draw(2, 3, 4, 24)})


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("target", ["cpu", "rocm"])
def test_exported_sam(exporter: str, target: str) -> None:
    """After the attention one Gather merges heads and windows and crops the padding; the GEMM reads its result."""
    before = onnx.load(FOLDER / f"sam-{exporter}.onnx")
    after, _ = optimize(before, target=target)
    nodes = list(after.graph.node)
    behind = [n.op_type for n in nodes[[n.op_type for n in nodes].index("FusedAttentionBias") + 1 :]]
    assert behind[:3] == ["Reshape", "Gather", "Reshape"]
    assert not {"Transpose", "Slice"} & set(behind)
    for batch in (1, 3):
        assert_same_outputs(before, after, {"x": draw(batch, 6, 6, 32)}, tolerance=5e-5)


def test_other_gathers_are_no_candidates() -> None:
    for body in (
        "a = MatMul(x, W) y = Gather <axis = 2> (a, rows)",
        "a = MatMul(x, W) y = Gather <axis = 1> (a, one)",
        "a = Relu(x) y = Gather <axis = 1> (a, rows)",
    ):
        assert rewrite(product(body, constants={"one": [[1]]}), [HoistGather()]).remarks == []


def test_a_reshape_that_splits_columns_is_kept() -> None:
    body = "a = MatMul(x, W) v = Reshape(a, view) y = Gather <axis = 1> (v, rows)"
    assert rewrite(product(body, constants={"view": [-1, 12, 8]}), [HoistGather()]).remarks == []


REFUSED = {
    "UNKNOWN_SHAPE": product(WHOLE, "N, S, 24"),
    "WRONG_SHAPE": product(WHOLE, bias=(6, 16)),
    "OTHER_USES": product(WHOLE + " z = Relu(a)", outputs=", float z"),
    "GRAPH_OUTPUT": product(WHOLE, outputs=", float a"),
    "NO_GAIN": product(WHOLE, constants={"rows": [5, 4, 3, 2, 1, 0]}),
}


@pytest.mark.parametrize("code", REFUSED)
def test_refused(code: str) -> None:
    result = rewrite(REFUSED[code], [HoistGather()])
    assert result.codes() == [code]
    assert result.op_types == [n.op_type for n in REFUSED[code].graph.node]
