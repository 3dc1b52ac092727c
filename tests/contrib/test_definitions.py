"""Definitions and references of contrib operators, against the kernels and schemas of a supporting runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from graphopt.contrib import CONTRIB, ContribOp
from graphopt.contrib.schema import REQUIRED, formal
from graphopt.verification.verify import verify
from tests.contrib.case import Case
from tests.contrib.nodes import RUNTIME, disagreement, judge, lowered, model_of, run
from tests.contrib.references import draw, reference
from tests.contrib.table import without_kernel

OPSETS = (11, 13, 17, 18, 20, 21)
ALL = [pytest.param(op, id=op.name) for op in CONTRIB.values()]


@pytest.mark.parametrize("op", ALL)
def test_definition_reference_and_kernel_agree(op: ContribOp) -> None:
    """Draws attributes, optional inputs and optional outputs; `scripts/sweep` tests many more nodes.

    ONNX Runtime's kernel is run if the table says that it has one.
    """
    verdicts = [judge(op, seed, OPSETS[seed % len(OPSETS)]) for seed in range(6)]
    assert [v.fault for v in verdicts if v.fault] == []
    assert not all(v.refused for v in verdicts)
    assert any(v.kernel for v in verdicts) == (op.name not in without_kernel(RUNTIME))


def test_definitions_in_half_precision() -> None:
    """Constants and casts follow the node's type; quantized operators have no float16, and two refuse it."""
    for op in CONTRIB.values():
        if op.quantized or op.name in ("CropAndResize", "Inverse"):
            continue
        case = draw(op, 1)
        case.inputs = {n: x.astype(np.float16) if x.dtype == np.float32 else x for n, x in case.inputs.items()}
        case.tolerance = 2e-2
        standard, refused = lowered(model_of(op, case, 17))
        assert not refused, op.name
        got = run(standard, {n: x for n, x in case.inputs.items() if n not in case.constants})
        assert disagreement(case, reference(op, case), got) == "", op.name


@pytest.mark.skipif(RUNTIME < (1, 32), reason="schemas have grown since")
def test_facts_are_those_of_the_runtime_s_schemas() -> None:
    schemas = {(s.domain, s.name): s for s in runtime.get_all_operator_schema()}
    for op in CONTRIB.values():
        schema = schemas[op.domain, op.name]
        assert [formal(n) for n in op.inputs] == [i.name for i in schema.inputs], op.name
        for mine, theirs in zip((*op.inputs, *op.outputs), (*schema.inputs, *schema.outputs), strict=True):
            assert mine.endswith("?") == (theirs.option.name == "Optional"), (op.name, mine)
        assert [formal(n) for n in op.outputs] == [o.name for o in schema.outputs], op.name
        assert sorted(op.attributes) == sorted(schema.attributes), op.name
        for name, attribute in schema.attributes.items():
            assert (op.attributes[name] is REQUIRED) == attribute.required, (op.name, name)
            default = onnx.AttributeProto.FromString(attribute._default_value)
            if default.type and not attribute.required:
                value = onnx.helper.get_attribute_value(default)
                value = value.decode() if isinstance(value, bytes) else value
                mine = op.attributes[name]
                assert mine == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), (op.name, name)


def test_a_window_of_no_tokens_has_no_definition() -> None:
    """With a window of 0 a query attends to one key in onnxruntime 1.22 and to none in 1.32, without documentation."""
    op = CONTRIB["com.microsoft", "GroupQueryAttention"]
    draws = (draw(op, seed) for seed in range(100))
    case = next(c for c in draws if c.attributes.get("local_window_size") == 1)
    case.attributes["local_window_size"] = 0
    _, refused = lowered(model_of(op, case, 17))
    assert len(refused) == 1
    assert "local_window_size 0" in refused[0]


@pytest.mark.parametrize("axis", [3, -4, -(2**63)])
def test_an_axis_beyond_the_rank_has_no_definition(axis: int) -> None:
    """The runtime's QLinearSoftmax computes a result anyway."""
    op = CONTRIB["com.microsoft", "QLinearSoftmax"]
    case = draw(op, 0)
    case.inputs["X"] = case.inputs["X"].reshape(-1)[:6].reshape(1, 2, 3)
    model = model_of(op, case, 17)
    attributes = model.graph.node[0].attribute
    kept = [a for a in attributes if a.name != "axis"]
    del attributes[:]
    attributes.extend([*kept, onnx.helper.make_attribute("axis", axis)])
    _, refused = lowered(model)
    assert len(refused) == 1
    assert f"axis {axis} at rank 3" in refused[0]


def test_verify_names_the_key_that_windows_differ_by() -> None:
    op = CONTRIB["com.microsoft", "GroupQueryAttention"]
    draws = (draw(op, seed) for seed in range(100))
    newer = {"head_sink", "q_norm_weight", "k_norm_weight"}  # inputs that ONNX Runtime's CPU kernel lacks, or did
    drawn = (c for c in draws if c.attributes.get("local_window_size") == 1 and not newer & c.inputs.keys())
    case = next(c for c in drawn if c.inputs["query"].shape[1] > 1)
    case.attributes.pop("smooth_softmax", None)
    model = model_of(op, case, 17)
    standard, refused = lowered(model)
    assert not refused
    report = verify(model, standard, inputs={n: x for n, x in case.inputs.items() if n not in case.constants})
    told = [n for n in report.notes if "attends to n + 1 keys" in n]
    assert report.equal == (RUNTIME >= (1, 31)) and len(told) == (RUNTIME < (1, 31))


@pytest.mark.skipif(RUNTIME < (1, 31), reason="its kernel reads memory that was never written")
@pytest.mark.parametrize("attributes", [{}, {"local_window_size": 2}, {"local_window_size": 2, "softcap": 2.0}])
def test_queries_in_the_padding_attend_to_their_sequence(attributes: dict[str, float]) -> None:
    """Sequences of 5, 2 and 1 tokens, padded to 5: each row equals that of ONNX Runtime's kernel, zeros included."""
    op = CONTRIB["com.microsoft", "GroupQueryAttention"]
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((3, 5, heads * 16)) for n, heads in (("query", 2), ("key", 1), ("value", 1))}
    feeds = {n: x.astype(np.float32) for n, x in inputs.items()}
    feeds |= {"seqlens_k": np.array([4, 1, 0], np.int32), "total_sequence_length": np.array(5, np.int32)}
    dims: dict[str, tuple[int | str, ...]] = {n: ("B", "S", x.shape[-1]) for n, x in inputs.items()}
    case = Case(feeds, {"num_heads": 2, "kv_num_heads": 1, **attributes}, ("output",), dims=dims)
    model = model_of(op, case, 17)
    standard, refused = lowered(model)
    assert not refused
    np.testing.assert_allclose(run(standard, feeds)["output"], run(model, feeds)["output"], atol=2e-6)
