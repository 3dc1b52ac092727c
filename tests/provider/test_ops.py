"""Every operator that the provider supports, alone in a graph, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphopt.ops import DOMAIN, OPS
from graphopt.ops.cases import cases_of
from tests.hip import (
    elementwise_cases,
    logic_cases,
    row_norm_cases,
    scale_shift_cases,
    unary_cases,
    winograd_conv_cases,
)
from tests.hip.case import compare, signed, tolerance_of
from tests.provider.worker import Array, model_of, run

ALONE = {"min_nodes": "1"}
DTYPES = (np.float32, np.float16)


def check(
    worker: ProcessPoolExecutor,
    node: Any,
    inputs: dict[str, Array],
    expected: list[Array],
    constants: dict[str, Array] | None = None,
    tolerance: float | None = None,
    opset: int = 17,
) -> None:
    """Asserts that the node runs on the device, and that its outputs are the float64 references rounded to its type."""
    outputs = list(node.output)
    truth = {name: int(TensorProto.BOOL) for name, y in zip(outputs, expected) if y.dtype == np.bool_}
    model = model_of([node], inputs, outputs, constants, opset, truth)
    outcome = worker.submit(run, model, inputs, ALONE).result()
    assert outcome.on_device(node.op_type) == 1, outcome.placement
    dtype = next(iter(inputs.values())).dtype
    for got, wanted in zip(outcome.outputs, expected, strict=True):
        assert got.shape == wanted.shape
        limit = tolerance if tolerance is not None else tolerance_of(dtype)
        message = compare(got, wanted.astype(got.dtype), limit)
        assert not message, message


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "LeakyRelu": {"alpha": 0.1},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "Elu": {"alpha": 0.7},
}
# ONNX has no operators of these names with one input, or expands the operator before the provider sees it (Mish).
NOT_NODES = ("Copy", "Clip", "GeluTanh", "Silu", "Mish")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [op for op in elementwise_cases.UNARY if op not in NOT_NODES])
def test_unary(op: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    case = elementwise_cases.case("unary", dtype, op, (2, 3, 5, 8))
    node = helper.make_node(op, ["x"], ["y"], **ATTRIBUTES.get(op, {}))
    check(worker, node, {"x": case.inputs[0]}, case.expected, opset=20)


@pytest.mark.parametrize("op", [op for op in logic_cases.OPS if not op.startswith(("IsPos", "IsNeg"))])
def test_comparisons_and_logic(op: str, worker: ProcessPoolExecutor) -> None:
    """Comparisons and logic with broadcasting, in each type that the operator supports."""
    for dtype in logic_cases.OPS[op][1]:
        case = logic_cases.case("truth", dtype, op, (2, 3, 5, 7), (5, 1))
        node = helper.make_node(op, list("ab")[: len(case.inputs)], ["y"])
        check(worker, node, dict(zip("ab", case.inputs)), case.outputs(), tolerance=0, opset=20)


@pytest.mark.parametrize(
    ("attributes", "op"), [({"detect_negative": 0}, "IsPositiveInf"), ({"detect_positive": 0}, "IsNegativeInf")]
)
def test_infinities_of_one_sign(attributes: dict[str, Any], op: str, worker: ProcessPoolExecutor) -> None:
    case = logic_cases.case("truth", np.float32, op, (4, 9))
    node = helper.make_node("IsInf", ["a"], ["y"], **attributes)
    check(worker, node, {"a": case.inputs[0]}, case.outputs(), tolerance=0, opset=20)


SMALL_RESULTS: dict[str, tuple[Callable[[Array], Array], Array]] = {
    "Softplus": (lambda x: np.logaddexp(x, 0), np.linspace(-60, 20, 801, dtype=np.float32)),
    "Log": (np.log, 1 + np.linspace(-0.5, 0.5, 1001, dtype=np.float32) ** 3),
    "Elu": (lambda x: np.where(x < 0, np.expm1(x), x), -np.logspace(-9, 1, 200, dtype=np.float32)),
}


@pytest.mark.parametrize("op", SMALL_RESULTS)
def test_small_results_keep_their_digits(op: str, worker: ProcessPoolExecutor) -> None:
    """Errors are relative to each element, so a small e^x or x must not be lost in 1 + e^x or e^x - 1."""
    function, x = SMALL_RESULTS[op]
    outcome = worker.submit(run, model_of([helper.make_node(op, ["x"], ["y"])], {"x": x}, ["y"]), {"x": x}, ALONE)
    np.testing.assert_allclose(outcome.result().outputs[0], function(x.astype(np.float64)), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", unary_cases.OPS)
def test_function_of_one_number(op: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    case = unary_cases.case("unary", dtype, op, 1001)
    attributes: dict[str, Any] = {"alpha": unary_cases.ALPHA} if op in ("ThresholdedRelu", "QuickGelu") else {}
    domain = "com.microsoft" if op == "QuickGelu" else ""
    node = helper.make_node(op, ["x"], ["y"], domain=domain, **attributes)
    check(worker, node, {"x": case.inputs[0]}, case.expected, opset=20)


def test_sines_of_large_numbers(worker: ProcessPoolExecutor) -> None:
    """Subtracting multiples of pi must keep all digits, up to the largest float."""
    edges = np.array(
        [8191.9995, 8192, -8192, 0, -0.0, 1e-30, np.pi, np.inf, -np.inf, np.nan, 1e30, 3.4028235e38, -2e38, 4194303.5],
        np.float32,
    )
    large = np.geomspace(9e3, 3.4e38, 5000)
    x = np.concatenate([np.linspace(-9e3, 9e3, 5000), large, -large, edges]).astype(np.float32)
    for op, function in (("Sin", np.sin), ("Cos", np.cos)):
        model = model_of([helper.make_node(op, ["x"], ["y"])], {"x": x}, ["y"])
        (y,) = worker.submit(run, model, {"x": x}, ALONE).result().outputs
        with np.errstate(invalid="ignore"):
            wanted = function(x.astype(np.float64))
        np.testing.assert_allclose(y, wanted, rtol=0, atol=3e-7)


def test_rounding_operators(worker: ProcessPoolExecutor) -> None:
    """Results are exact, also at the largest floats with a fraction; halves are rounded to even."""
    edges = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388607.5, 8388608, -8388607.5, 3e9, np.inf, -np.inf, np.nan, 0]
    x = np.array([*edges, *np.linspace(-5, 5, 41)], np.float32)
    for op, function in (("Round", np.round), ("Floor", np.floor), ("Ceil", np.ceil), ("Sign", np.sign)):
        model = model_of([helper.make_node(op, ["x"], ["y"])], {"x": x}, ["y"])
        (y,) = worker.submit(run, model, {"x": x}, ALONE).result().outputs
        np.testing.assert_array_equal(y, function(x.astype(np.float64)), err_msg=op)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_tanh(dtype: Any, worker: ProcessPoolExecutor) -> None:
    case = elementwise_cases.case("unary", dtype, "GeluTanh", (3, 7))
    node = helper.make_node("Gelu", ["x"], ["y"], approximate="tanh")
    check(worker, node, {"x": case.inputs[0]}, case.expected, opset=20)


@pytest.mark.parametrize("limits", ["both", "min", "max", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_clip(dtype: Any, limits: str, worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(1), 3, 5, dtype=dtype)
    low, high = limits in ("both", "min"), limits in ("both", "max")
    node = helper.make_node("Clip", ["x", "low" if low else "", "high" if high else ""], ["y"])
    constants = {k: np.array(v, dtype) for k, v, on in (("low", -0.5, low), ("high", 0.75, high)) if on}
    wide = x.astype(np.float64)
    y = np.clip(wide, -0.5 if low else -np.inf, 0.75 if high else np.inf)
    check(worker, node, {"x": x}, [y], constants)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", [((2, 3, 4, 8), (3, 1, 1)), ((5, 1), (2, 1, 7)), ((2, 3), (2, 3)), ((), (3,))])
@pytest.mark.parametrize("op", [op for op in elementwise_cases.BINARY if op != "Fmod"])
def test_binary(op: str, shapes: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    if op == "PRelu":
        shapes = (shapes[0] if len(shapes[0]) == 4 else (4, 3), (3, 1, 1) if len(shapes[0]) == 4 else (3,))
    case = elementwise_cases.case("binary", dtype, op, *shapes)
    node = helper.make_node(op, ["a", "b"], ["y"])
    check(worker, node, dict(zip("ab", case.inputs)), case.expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_of_special_values(dtype: Any, worker: ProcessPoolExecutor) -> None:
    numbers = [0.0, 0.5, 1, 2, 2.5, 3, 5, math.inf]
    if dtype == np.float32:
        numbers += [2.0**23 + 1, 2.0**24 + 2]  # the last odd integers of float32 are below 2^24
    x, y = np.meshgrid([*numbers, *(-n for n in numbers), math.nan], [*numbers, *(-n for n in numbers), math.nan])
    feeds: dict[str, Array] = {"x": x.astype(dtype), "y": y.astype(dtype)}
    model = model_of([helper.make_node("Pow", ["x", "y"], ["z"])], feeds, ["z"])
    got = worker.submit(run, model, feeds, ALONE).result().outputs[0]
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    np.testing.assert_allclose(got, expected, rtol=1e-3, err_msg=f"{x} to the power of {y}")
    zeros = got == 0
    np.testing.assert_array_equal(np.signbit(got[zeros & (x == 0)]), np.signbit(expected[zeros & (x == 0)]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_max_of_three(dtype: Any, worker: ProcessPoolExecutor) -> None:
    rng = np.random.default_rng(2)
    a, b, c = signed(rng, 2, 1, 5, dtype=dtype), signed(rng, 3, 1, dtype=dtype), signed(rng, 2, 3, 5, dtype=dtype)
    y = np.maximum(np.maximum(a, b), c).astype(np.float64)
    check(worker, helper.make_node("Max", ["a", "b", "c"], ["y"]), {"a": a, "b": b, "c": c}, [y])


@pytest.mark.parametrize("dtype", DTYPES)
def test_where(dtype: Any, worker: ProcessPoolExecutor) -> None:
    rng = np.random.default_rng(3)
    a, b = signed(rng, 2, 3, 8, dtype=dtype), signed(rng, 8, dtype=dtype)
    mask = rng.integers(0, 2, (3, 1)).astype(bool)
    node = helper.make_node("Where", ["mask", "a", "b"], ["y"])
    check(worker, node, {"a": a, "b": b, "mask": mask}, [np.where(mask, a, b).astype(np.float64)])


VIEWS: tuple[tuple[str, dict[str, Any], list[int] | None, Callable[[Array], Array]], ...] = (
    ("Identity", {}, None, lambda x: x),
    ("Reshape", {}, [0, -1, 2], lambda x: x.reshape(2, 15, 2)),
    ("Reshape", {}, [5, 12], lambda x: x.reshape(5, 12)),
    ("Flatten", {"axis": 2}, None, lambda x: x.reshape(6, 10)),
    ("Flatten", {"axis": -1}, None, lambda x: x.reshape(30, 2)),
    ("Unsqueeze", {}, [0, -1], lambda x: x.reshape(1, 2, 3, 5, 2, 1)),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "attributes", "argument", "reference"), VIEWS)
def test_view(op: str, attributes: Any, argument: Any, reference: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(4), 2, 3, 5, 2, dtype=dtype)
    constants = {} if argument is None else {"s": np.array(argument, np.int64)}
    node = helper.make_node(op, ["x", *constants], ["y"], **attributes)
    check(worker, node, {"x": x}, [reference(x).astype(np.float64)], constants, tolerance=0)


@pytest.mark.parametrize("axes", [None, [1], [-2, 1]])
def test_squeeze(axes: list[int] | None, worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(5), 2, 1, 3, 1, 4)
    constants = {} if axes is None else {"axes": np.array(axes, np.int64)}
    y = np.squeeze(x, None if axes is None else tuple(axes)).astype(np.float64)
    check(worker, helper.make_node("Squeeze", ["x", *constants], ["y"]), {"x": x}, [y], constants, tolerance=0)


OURS: tuple[tuple[str, dict[str, Any], Any, int], ...] = (
    ("ScaleShiftAddRelu", {}, scale_shift_cases.case("s", np.float32, 2, 5, (7, 9), "Relu", True), 3),
    ("ScaleShiftAddRelu", {}, scale_shift_cases.case("s", np.float16, 2, 5, (7, 9), "Relu", True), 3),
    (
        "WinogradConvAddSilu",
        {"pads": [1, 1, 1, 1]},
        winograd_conv_cases.case("c", np.float32, (2, 5, 9, 11, 7), (1, 1, 1, 1), "Silu", True),
        3,
    ),
    (
        "FusedLayerNormAddSum",
        {"epsilon": 1e-3},
        row_norm_cases.case("n", np.float16, 3, 64, False, True, True),
        2,
    ),
)


# One operator name for each kernel, since all activations and suffixes use the same code.
FORMS = (
    "FusedLayerNorm2d", "FusedAdaLayerNormAddSum", "FusedRotary", "FusedRotaryInterleaved", "GatedSilu",
    "GatedHalvesGelu", "FusedConvTransposeAddPRelu",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", FORMS)
def test_forms(op: str, dtype: str, worker: ProcessPoolExecutor) -> None:
    for case in cases_of(OPS[op])[:4]:
        cast = case.cast(dtype)
        names = [f"x{i}" for i in range(len(cast.inputs))]
        outputs = [f"y{i}" for i in range(len(case.spec.outputs))]
        node = helper.make_node(op, names, outputs, domain=DOMAIN, **case.attributes)
        feeds = dict(zip(names, cast.inputs, strict=True))
        check(worker, node, feeds, list(cast.reference()), {}, tolerance=cast.tolerance(dtype))


@pytest.mark.parametrize(("op", "attributes", "case", "first_constant"), OURS)
def test_domain(op: str, attributes: Any, case: Any, first_constant: int, worker: ProcessPoolExecutor) -> None:
    arrays = list(case.inputs)
    if op.startswith("ScaleShift"):
        arrays[1], arrays[2] = (v.reshape(-1, 1, 1) for v in arrays[1:3])
    names = [f"x{i}" for i in range(len(arrays))]
    constant = (1, 2) if first_constant == 3 else (2, 3)
    node = helper.make_node(op, names, [f"y{i}" for i in range(len(case.expected))], domain=DOMAIN, **attributes)
    inputs = {n: x for i, (n, x) in enumerate(zip(names, arrays)) if i not in constant}
    constants = {n: x for i, (n, x) in enumerate(zip(names, arrays)) if i in constant}
    check(worker, node, inputs, case.expected, constants, case.tolerance)
