"""The native library in real sessions: errors instead of crashes, sharing, threads, memory, exported symbols."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.ops import DOMAIN, OPS
from graphopt.ops.schema import Dialect
from graphopt.runtime.discovery import CPU, library_path
from graphopt.runtime.sessions import configure

Array = npt.NDArray[Any]
OPSET = 17


def model(
    op: str,
    shapes: Sequence[Sequence[int | str]],
    attributes: Mapping[str, Any],
    *,
    types: Sequence[int] | None = None,
    constants: Mapping[int, Array] | None = None,
    bodies: bool = False,
    outputs: int = 1,
) -> bytes:
    """Returns a model of one node called `the_node`; its inputs are x0, x1, ... and its outputs y0, ..."""
    types = types or [TensorProto.FLOAT] * len(shapes)
    constants = constants or {}
    names = [f"x{i}" for i in range(len(shapes))]
    results = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, "the_node", domain=DOMAIN, **attributes)],
        "g",
        [
            helper.make_tensor_value_info(names[i], types[i], shape)
            for i, shape in enumerate(shapes)
            if i not in constants
        ],
        [helper.make_tensor_value_info(name, types[0], None) for name in results],
        [numpy_helper.from_array(value, names[i]) for i, value in constants.items()],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    if bodies:
        proto.functions.append(OPS[op].function_proto(Dialect(OPSET)))
    serialized: bytes = proto.SerializeToString()
    return serialized


def session(serialized: bytes, *, library: bool = True, spins: bool = True, **settings: Any) -> Any:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    for name, value in settings.items():
        setattr(options, name, value)
    if library:
        configure(options, [CPU], model=serialized)
    return ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


PERMS = {"q_perm": [0, 1, 2, 3], "k_perm": [0, 1, 3, 2], "v_perm": [0, 1, 2, 3], "o_perm": [0, 1, 2, 3]}
ATTENTION: dict[str, Any] = {"scale": 1.0, **PERMS}
NORM: dict[str, Any] = {"num_groups": 2, "epsilon": 1e-5}
PADS = {"pads": [1, 1, 1, 1]}
WINDOW: dict[str, Any] = {"pads": [0] * 4, "strides": [1, 1], "dilations": [1, 1], "group": 1}
TRANSPOSED: dict[str, Any] = {**WINDOW, "output_padding": [0, 0]}
POOL: dict[str, Any] = {"kernel_shape": [2, 2], "pads": [0] * 4, "strides": [1, 1], "dilations": [1, 1]}

# op, input shapes, attributes, pattern of the message
MALFORMED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("ScaleShift", [(3,), (3,), (3,)], {}, r"X must have rank 2 or more, got \[3\]"),
    ("ScaleShift", [(2, 3, 4), (4, 1), (3, 1)], {}, r"scale must be \[3,1\], got \[4,1\]"),
    ("ScaleShift", [(2, 3, 4), (3, 1), (3,)], {}, r"shift must be \[3,1\], got \[3\]"),
    ("ScaleShiftAdd", [(2, 3), (3,), (3,), (1, 3)], {}, r"R must have the shape of X, \[2,3\], got \[1,3\]"),
    ("ScaleShiftLeakyRelu", [(2, 3), (3,), (3,)], {}, "'alpha' of type float is required"),
    ("ScaleShiftLeakyRelu", [(2, 3), (3,), (3,)], {"alpha": 1}, "'alpha' of type float is required"),
    ("ScaleShiftClip", [(2, 3), (3,), (3,)], {"min": 0.0}, "'max' of type float is required"),
    ("ScaleShift", [(1,) * 20, (1,) * 19, (1,) * 19], {}, "rank 20 is not supported"),
    ("WinogradConv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], {}, "'pads' of type ints is required"),
    ("WinogradConv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], {"pads": [1, 1]}, "'pads' must be"),
    ("WinogradConv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], {"pads": [1] * 100}, "'pads' must be"),
    ("WinogradConv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], {"pads": [-1, 0, 0, 0]}, "'pads' must be"),
    ("WinogradConv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], {"pads": [2**62, 0, 2**62, 0]}, "'pads' must be"),
    ("WinogradConv", [(1, 3, 8, 8), (4, 3, 5, 5), (4,)], PADS, r"W must be \[M,C,3,3\]"),
    ("WinogradConv", [(1, 2, 8, 8), (4, 3, 3, 3), (4,)], PADS, "has 2 channels"),
    ("WinogradConv", [(3, 8, 8), (4, 3, 3, 3), (4,)], PADS, r"X must be \[N,C,H,W\]"),
    ("WinogradConv", [(1, 3, 8, 8), (4, 3, 3, 3), (3,)], PADS, r"B must be \[4\], got \[3\]"),
    ("WinogradConv", [(1, 3, 1, 8), (4, 3, 3, 3), (4,)], {"pads": [0, 0, 0, 0]}, "smaller than the 3x3 window"),
    ("WinogradConvAdd", [(1, 3, 8, 8), (4, 3, 3, 3), (4,), (1, 4, 1, 1)], PADS, "R must have the shape of Y"),
    (
        "FusedLayerNormAddSumIntoWindows",
        [(1, 2, 2, 8), (1, 2, 2, 8), (8,), (8,)],
        {"image": [2, 2], "window": [1, 1], "shift": [0, 0], "epsilon": 1e-5},
        r"X must be \[N, 4, D\], got \[1,2,2,8\]",
    ),
    (
        "FusedLayerNormIntoWindows",
        [(1, 2, 3, 8), (8,), (8,)],
        {"image": [2, 2], "window": [1, 1], "shift": [0, 0], "epsilon": 1e-5},
        r"X must be \[N, 2, 2, D\] or \[N, 4, D\], got \[1,2,3,8\]",
    ),
    ("FusedAttention", [(1, 2, 3, 4)] * 3, {**PERMS}, "'scale' of type float is required"),
    ("FusedAttention", [(1, 2, 3, 4)] * 3, {**ATTENTION, "q_perm": [0, 1, 2, 2]}, "'q_perm' must permute"),
    ("FusedAttention", [(1, 2, 3, 4)] * 3, {**ATTENTION, "q_perm": [0]}, "'q_perm' must permute"),
    ("FusedAttention", [(1, 2, 3, 4)] * 3, {**ATTENTION, "o_perm": [0, 1]}, "'o_perm'"),
    ("FusedAttention", [(2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)], ATTENTION, "rank differs from the length of its perm"),
    ("FusedAttention", [(1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 4)], ATTENTION, "head size"),
    ("FusedAttention", [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 9, 4)], ATTENTION, "keys"),
    ("FusedAttention", [(2, 2, 3, 4), (3, 2, 3, 4), (3, 2, 3, 4)], ATTENTION, "do not broadcast"),
    ("FusedAttentionGqa", [(1, 3, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)], ATTENTION, "multiple"),
    ("FusedAttentionBias", [(1, 2, 3, 4)] * 3 + [(5, 1, 1, 3)], ATTENTION, "bias .* does not broadcast to the scores"),
    ("FusedAttentionBias", [(1, 2, 3, 4)] * 3 + [(1, 1, 2, 3, 3)], ATTENTION, "bias .* does not broadcast"),
    ("FusedGroupNorm", [(1, 3, 4), (3,), (3,)], NORM, "3 channels do not divide into 2 groups"),
    ("FusedGroupNorm", [(1, 4, 4), (4,), (4,)], {**NORM, "num_groups": 0}, "'num_groups' must be positive"),
    ("FusedGroupNorm", [(1, 4, 4), (2,), (4,)], NORM, r"gamma must be \[4\]"),
    ("FusedLayerNorm", [(2, 4), (4,), (2,)], {"epsilon": 1e-5}, r"beta must be \[4\]"),
    ("FusedLayerNorm", [(2, 4), (4,), (4,)], {}, "'epsilon' of type float is required"),
    ("FusedRmsNormAdd", [(2, 4), (1, 4), (4,)], {"epsilon": 1e-5}, "R must have the shape of X"),
    (
        "FusedConv",
        [(1, 3, 8, 8), (4, 3, 2, 2), (4,)],
        {**WINDOW, "dilations": 1},
        "'dilations' must be 2 integers from 1",
    ),
    ("FusedConv", [(1, 3, 8, 8), (4, 3, 2, 2), (4,)], {**WINDOW, "pads": 0}, "'pads' must be 4 integers from 0"),
    (
        "FusedConv",
        [(1, 3, 8, 8), (4, 3, 2, 2), (4,)],
        {**WINDOW, "pads": [2**31, 0, 0, 0]},
        "'pads' must be .* 2147483647",
    ),
    ("FusedConv", [(1, 3, 8, 8), (4, 3, 2, 2), (4,)], {**WINDOW, "strides": 1}, "one to three numbers"),
    *(
        ("FusedConvTranspose", [x, w, (4,)], {**TRANSPOSED, **attributes}, said)
        for x, w, attributes, said in (
            ((1, 3, 8, 8), (3, 4, 2, 2), {"output_padding": [0]}, "'output_padding' must be 2 integers from 0"),
            ((1, 3, 8, 8), (3, 4, 2, 2), {"strides": 1}, "one to three numbers"),
            ((1, 3, 8, 8), (3, 2, 2, 2), {"group": 2}, "does not divide into 2 groups"),
            ((1, 2, 8, 8), (3, 4, 2, 2), {}, "has 2 channels"),
            ((1, 3, 8), (3, 4, 2, 2), {}, "differ in their axes"),
            ((1, 3, 8, 8), (3, 4, 2, 2), {"pads": [5, 0, 5, 0]}, "the pads are larger than the result"),
            ((1, 3, 8, 8), (3, 5, 2, 2), {}, r"B must be \[5\]"),
            ((1, 3, 8, 8), (3, 4, 2, 2), {"strides": [2**31 - 1] * 2}, "too large"),
        )
    ),
    (
        "MaxPoolPlanes",
        [(1, 3, 8, 8)],
        {**POOL, "kernel_shape": [2**62 + 1, 2], "dilations": [2, 1]},
        "'kernel_shape' must be",
    ),
    ("MaxPoolPlanes", [(1, 3, 8, 8)], {**POOL, "pads": [2**63 - 1] * 4}, "'pads' must be 4 integers from 0"),
]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(("op", "shapes", "attributes", "message"), MALFORMED)
def test_malformed_nodes_are_errors_that_name_the_node(
    op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], message: str, static: bool
) -> None:
    declared = shapes if static else [[f"d{i}_{j}" for j in range(len(s))] for i, s in enumerate(shapes)]
    with pytest.raises(Exception, match=message) as caught:
        session(model(op, declared, attributes, outputs=len(OPS[op].outputs))).run(
            None, {f"x{i}": np.ones(shape, np.float32) for i, shape in enumerate(shapes)}
        )
    assert op in str(caught.value)
    assert "the_node" in str(caught.value)


def test_other_element_types_are_refused() -> None:
    shapes = [(2, 3), (3,), (3,)]
    for types in ([TensorProto.DOUBLE] * 3, [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.FLOAT]):
        with pytest.raises(Exception, match=r"ScaleShift"):
            session(model("ScaleShift", shapes, {}, types=types))


def test_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(Exception, match="the_node"):
        session(model("ScaleShift", [(2, 3), (3,)], {}))


def test_two_registrations_on_one_options_object_are_an_error_and_no_crash() -> None:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library_path()))
    options.register_custom_ops_library(str(library_path()))
    with pytest.raises(Exception, match="Domain already set"):
        ort.InferenceSession(model("ScaleShift", [(2, 3), (3,), (3,)], {}), options, providers=["CPUExecutionProvider"])
    assert session(model("ScaleShift", [(2, 3), (3,), (3,)], {})) is not None


def test_operators_of_the_model_alone_are_described() -> None:
    """ONNX Runtime makes a schema of each registered operator in each session. Newer libraries' names are not ours."""
    script = """
        import onnx
        import onnx.parser

        from graphopt.runtime.sessions import operators_of

        body = onnx.parser.parse_graph("b () => (float[2, 3] y) { y = com.graphopt.GatedRelu(x0, x0) }")
        node = onnx.helper.make_node("ScaleShift", ["x0", "x1", "x1"], ["t"], domain=DOMAIN)
        choice = onnx.helper.make_node("If", ["c"], ["u"], then_branch=body, else_branch=body)
        proto = onnx.load_from_string(model("ScaleShiftRelu", [(2, 3), (3,), (3,)], {}))
        proto.graph.node.extend([node, choice])
        proto.functions.add(name="f", domain="mine").node.add(op_type="FusedAttention", domain=DOMAIN)
        assert operators_of(proto) == {"ScaleShiftRelu", "ScaleShift", "GatedRelu", "FusedAttention"}

        serialized = model("ScaleShiftRelu", [(2, 3), (3,), (3,)], {})
        feeds = {f"x{i}": normal(*shape) for i, shape in enumerate([(2, 3), (3,), (3,)])}
        expected = session(serialized).run(None, feeds)
        for names in ("ScaleShiftRelu", "ScaleShiftRelu,OfTomorrow", None):
            options = ort.SessionOptions()
            if names is not None:
                options.add_session_config_entry("graphopt.operators", names)
            options.register_custom_ops_library(str(library_path()))
            created = ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
            np.testing.assert_array_equal(created.run(None, feeds), expected)
        for names in ("", "ScaleShift"):
            options = ort.SessionOptions()
            options.add_session_config_entry("graphopt.operators", names)
            options.register_custom_ops_library(str(library_path()))
            try:
                ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
            except Exception as error:
                assert "ScaleShiftRelu" in str(error), error
            else:
                raise AssertionError(names)
    """
    result = run_script(script, GRAPHOPT_LOG="1")
    assert result.returncode == 0, result.stderr
    registered = [int(n) for n in re.findall(r"graphopt: (\d+) kernels registered", result.stderr)]
    every = sum(len(spec.X_types or spec.dtypes) for spec in OPS.values())
    one = len(OPS["ScaleShiftRelu"].dtypes)
    assert registered == [one, one, every, 0, len(OPS["ScaleShift"].dtypes)]


def test_strassen_can_be_disabled() -> None:
    """Without it, a row's rounding depends on no other row of the batch."""
    rng = np.random.default_rng(0)
    constants = {
        1: rng.standard_normal((512, 512), np.float32),
        2: rng.standard_normal(512, np.float32),
    }
    serialized = model("Linear", [("rows", 512), (512, 512), (512,)], {}, constants=constants)
    x = rng.standard_normal((128, 512), np.float32)

    def is_independent(setting: str | None) -> bool:
        options = ort.SessionOptions()
        if setting is not None:
            options.add_session_config_entry("graphopt.strassen", setting)
        options.register_custom_ops_library(str(library_path()))
        session = ort.InferenceSession(serialized, options, providers=[CPU])
        (together,), (alone,) = session.run(None, {"x0": x}), session.run(None, {"x0": x[:50]})
        np.testing.assert_allclose(together, x @ constants[1] + constants[2], atol=1e-3)
        return np.array_equal(together[:50], alone)

    assert is_independent("0")
    assert not is_independent("1")
    assert not is_independent(None)
    with pytest.raises(Exception, match=r"graphopt\.strassen must be 0 or 1, got 'no'"):
        is_independent("no")


def test_symbolic_shapes_pass_through() -> None:
    def shape(op: str, shapes: Sequence[Any], attributes: Mapping[str, Any]) -> list[int | str]:
        result: list[int | str] = session(model(op, shapes, attributes)).get_outputs()[0].shape
        return result

    assert shape("ScaleShiftRelu", [["N", 3, "H"], (3, 1), (3, 1)], {}) == ["N", 3, "H"]
    assert shape("FusedGroupNorm", [["N", 4, "H"], (4,), (4,)], NORM) == ["N", 4, "H"]
    assert shape("FusedRmsNorm", [["N", "T", 8], (8,)], {"epsilon": 1e-5}) == ["N", "T", 8]
    conv = [["N", 3, "H", 8], (4, 3, 3, 3), (4,)]
    assert shape("WinogradConv", conv, PADS) == ["N", 4, "H", 8]
    assert shape("WinogradConv", conv, {"pads": [0, 0, 1, 0]}) == ["N", 4, "(H)-1", 6]
    attention = [["B", "S", 4, 8], ["B", "T", 4, 8], ["B", "T", 4, 6]]
    perms = {"q_perm": [0, 2, 1, 3], "k_perm": [0, 2, 3, 1], "v_perm": [0, 2, 1, 3], "o_perm": [0, 2, 1, 3]}
    assert shape("FusedAttention", attention, {"scale": 1.0, **perms}) == ["B", "S", 4, 6]
    rank3 = {"q_perm": [0, 1, 2], "k_perm": [0, 2, 1], "v_perm": [0, 1, 2], "o_perm": [1, 0, 2]}
    assert shape("FusedAttention", [(1, 5, 8), ("B", 7, 8), ("B", 7, 4)], {"scale": 1.0, **rank3}) == [5, "B", 4]


def test_unknown_dims_do_not_confuse_the_memory_planner() -> None:
    """Two intermediate tensors with unknown dims must not be assumed equally large."""
    nodes = [
        helper.make_node("Reshape", ["x", "wide"], ["a"]),
        helper.make_node("ScaleShift", ["a", "one", "zero"], ["b"], domain=DOMAIN),
        helper.make_node("Reshape", ["b", "tall"], ["c"]),
        helper.make_node("Concat", ["c", "c"], ["d"], axis=1),
        helper.make_node("ScaleShift", ["d", "one_d", "zero_d"], ["e"], domain=DOMAIN),
        helper.make_node("Add", ["e", "d"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, [2]) for name in ("wide", "tall")]
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["c" if len(name) < 5 else "d"])
        for name in ("one", "zero", "one_d", "zero_d")
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    x = normal(24)
    feeds = {"x": x, "wide": np.array([4, 6]), "tall": np.array([8, 3])}
    feeds |= {"one": np.ones(6, np.float32), "zero": np.zeros(6, np.float32)}
    feeds |= {"one_d": np.ones(6, np.float32), "zero_d": np.zeros(6, np.float32)}
    (y,) = session(proto.SerializeToString()).run(None, feeds)
    want = np.concatenate([x.reshape(8, 3)] * 2, axis=1) * 2
    np.testing.assert_allclose(y, want, rtol=1e-6)


def test_results_written_over_inputs() -> None:
    """ONNX Runtime may let an output reuse the memory of input 0; graph inputs and live values must be unchanged."""
    nodes, previous = [], "x"
    for i in range(6):
        op = ["ScaleShiftSilu", "FusedGroupNorm", "FusedLayerNorm"][i % 3]
        parameters = {"ScaleShiftSilu": ["column", "column"], "FusedGroupNorm": ["gamma", "gamma"]}.get(
            op, ["row", "row"]
        )
        attributes: dict[str, Any] = {"ScaleShiftSilu": {}, "FusedGroupNorm": NORM}.get(op, {"epsilon": 1e-5})
        nodes.append(helper.make_node(op, [previous, *parameters], [f"v{i}"], domain=DOMAIN, **attributes))
        previous = f"v{i}"
    nodes.append(helper.make_node("Add", ["v2", previous], ["y"]))
    constants = {"column": normal(4, 1), "gamma": normal(4), "row": normal(6)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    x = normal(3, 4, 6)
    before = x.copy()
    (got,) = session(proto.SerializeToString()).run(None, {"x": x})
    proto.functions.extend(OPS[op].function_proto(Dialect(OPSET)) for op in {n.op_type for n in nodes} if op in OPS)
    (want,) = session(proto.SerializeToString(), library=False).run(None, {"x": x})
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{"enable_cpu_mem_arena": False}, {"intra_op_num_threads": 1}, {}])
def test_session_settings(settings: dict[str, Any]) -> None:
    shapes = [(1, 16, 20, 20), (16, 16, 3, 3), (16,)]
    values = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    feeds = {f"x{i}": value for i, value in enumerate(values)}
    (got,) = session(model("WinogradConv", shapes, PADS), **settings).run(None, feeds)
    (want,) = OPS["WinogradConv"].reference(*values, **PADS)
    np.testing.assert_allclose(got, want, atol=1e-3)


def test_weights_that_change_between_runs_are_not_remembered() -> None:
    shapes = [(1, 8, 9, 9), (8, 8, 3, 3), (8,)]
    runner = session(model("WinogradConvRelu", shapes, PADS))
    for seed in range(3):
        values = [normal(*shape, seed=10 * seed + i) for i, shape in enumerate(shapes)]
        (got,) = runner.run(None, {f"x{i}": value for i, value in enumerate(values)})
        (want,) = OPS["WinogradConvRelu"].reference(*values, **PADS)
        np.testing.assert_allclose(got, want, atol=1e-3)


@pytest.mark.parametrize("op", ["WinogradConvSilu", "FusedAttentionMask", "FusedGroupNormMish", "FusedLayerNorm"])
def test_concurrent_runs(op: str) -> None:
    """Many threads in one session get the same results as a single one."""
    constants: dict[int, Array] = {}
    attributes: dict[str, Any]
    if op.startswith("WinogradConv"):
        shapes, attributes = [(1, 8, 17, 19), (12, 8, 3, 3), (12,)], PADS
        constants = {1: normal(12, 8, 3, 3), 2: normal(12)}
    elif op.startswith("FusedAttention"):
        shapes, attributes = [(1, 4, 33, 16)] * 3 + [(33, 33)], {**ATTENTION, "mask_value": -1e4}
    elif op.startswith("FusedGroupNorm"):
        shapes, attributes = [(1, 4, 100, 90), (4,), (4,)], NORM
    else:
        shapes, attributes = [(70, 64), (64,), (64,)], {"epsilon": 1e-5}
    types = [TensorProto.BOOL if "Mask" in op and i == 3 else TensorProto.FLOAT for i in range(len(shapes))]
    runner = session(model(op, shapes, attributes, types=types, constants=constants))

    def feeds(seed: int) -> dict[str, Array]:
        return {
            f"x{i}": (normal(*shape, seed=10 * seed + i) > 0 if types[i] == TensorProto.BOOL else
                      normal(*shape, seed=10 * seed + i))
            for i, shape in enumerate(shapes)
            if i not in constants
        }  # fmt: skip

    alone = [runner.run(None, feeds(seed))[0] for seed in range(8)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        mine = feeds(seed)
        for _ in range(20):
            if not np.array_equal(runner.run(None, mine)[0], alone[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_work_is_lost_among_threads() -> None:
    """On one processor, woken threads run first, which makes unexpected threads take tasks."""
    layers, width = 40, 256
    nodes = [
        helper.make_node("FusedLayerNorm", [f"x{i}", "scale", "shift"], [f"x{i + 1}"], domain=DOMAIN, epsilon=1e-5)
        for i in range(layers)
    ]
    constants = {"scale": normal(width, seed=1), "shift": normal(width, seed=2)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, (64, width))],
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    serialized = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    x = normal(64, width)
    same: list[bool] = []

    def work() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        (alone,) = session(serialized, intra_op_num_threads=1).run(None, {"x0": x})
        for _ in range(12):
            runner = session(serialized, intra_op_num_threads=4, spins=False)
            same.extend(np.array_equal(runner.run(None, {"x0": x})[0], alone) for _ in range(6))

    thread = threading.Thread(target=work)  # its affinity ends with it
    thread.start()
    thread.join()
    assert same == [True] * 72


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with this module's helpers imported, in a separate process."""
    prelude = "from tests.runtime.test_native_library import *\n"
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("limit", ["abc", "10x", "-1", str(2**60)])
def test_an_invalid_limit_of_shared_weights_is_named(limit: str, tmp_path: Path) -> None:
    script = """
        shapes = [(1, 4, 8, 8), (4, 4, 2, 2), (4,)]
        constants = {1: normal(4, 4, 2, 2), 2: normal(4)}
        session(model("FusedConv", shapes, WINDOW, constants=constants)).run(None, {"x0": normal(1, 4, 8, 8)})
    """
    result = run_script(script, GRAPHOPT_WEIGHTS=str(tmp_path), GRAPHOPT_WEIGHTS_LIMIT=limit)
    assert result.returncode == 0, result.stderr
    assert f"GRAPHOPT_WEIGHTS_LIMIT must be a number of MiB, not '{limit}'" in result.stderr
    assert not list(tmp_path.iterdir())


def megabytes() -> float:
    """Returns the anonymous memory of this process in MiB, resident or swapped; file pages are not counted.

    Excludes freed memory kept by malloc, which is 0 or 2 MiB depending on the order of frees.
    """
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status", encoding="ascii") as status:
        kilobytes = re.findall(r"(?:RssAnon|VmSwap):\s+(\d+) kB", status.read())
    return sum(map(int, kilobytes)) / 1024


def test_sessions_share_transformed_weights_and_free_them() -> None:
    script = """
        import gc

        def serialized(seed):
            weights = {1: normal(512, 512, 3, 3, seed=seed), 2: normal(512)}
            return model("WinogradConv", [(1, 512, 14, 14), (512, 512, 3, 3), (512,)], PADS, constants=weights)

        session(serialized(1))  # what the runtime and malloc keep for good
        gc.collect()
        mine = serialized(2)
        base = megabytes()
        first = session(mine)
        one = megabytes() - base
        second = session(mine)
        two = megabytes() - base
        del first, second
        gc.collect()
        print(one, two - one, megabytes() - base)
    """
    result = run_script(script, MALLOC_MMAP_THRESHOLD_="65536")  # makes free() return large blocks immediately
    assert result.returncode == 0, result.stderr
    one, second, left = map(float, result.stdout.split())
    raw = 512 * 512 * 9 * 4 / 2**20
    assert one > 2.5 * raw  # the session's weights, a copy to compare with, and their transform
    assert second < 1.8 * raw  # another copy of the weights, no transform
    assert left < 1.8 * raw


def test_sessions_leak_no_memory() -> None:
    """Fits a line through the memory after equal parts of the sessions; checks that a leak of 4 KiB would be found."""
    counted = 10000 if os.environ.get("GRAPHOPT_TEST_EVERYTHING") else 300  # number for scripts/sweep
    result = run_script(f"""
        import gc

        weights = {{1: normal(64, 64, 3, 3), 2: normal(64)}}
        serialized = model("WinogradConvRelu", [(1, 64, 8, 8), (64, 64, 3, 3), (64,)], PADS, constants=weights)
        x = {{"x0": normal(1, 64, 8, 8)}}
        lost = []

        def growth(sessions, leak):
            marks = []
            for i in range(sessions):
                session(serialized).run(None, x)
                lost.append(os.urandom(leak))
                if (i + 1) % (sessions // 20) == 0:
                    gc.collect()
                    marks.append((i, 1024 * megabytes()))
            return np.polyfit(*zip(*marks), 1)[0]

        growth(100, 0)
        print(growth({counted}, 0), growth(60, 4096))
    """)
    assert result.returncode == 0, result.stderr
    kept, leaking = map(float, result.stdout.split())
    assert kept < 2 < leaking  # KiB for each session


def test_disabled_kernels_run_their_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(2, 3), (3,), (3,)]
    monkeypatch.setenv("GRAPHOPT_DISABLE", "ScaleShiftRelu,FusedAttention*,FusedAttentionGqa")
    feeds = {f"x{i}": normal(*shape, seed=i) for i, shape in enumerate(shapes)}
    session(model("ScaleShift", shapes, {})).run(None, feeds)
    session(model("ScaleShiftRelu", shapes, {}, bodies=True)).run(None, feeds)
    with pytest.raises(Exception, match=r"ScaleShiftRelu.* is not a registered function/op"):
        session(model("ScaleShiftRelu", shapes, {}))
    with pytest.raises(Exception, match=r"FusedAttentionGqa.* is not a registered function/op"):
        session(model("FusedAttentionGqa", [(1, 2, 3, 4)] * 3, ATTENTION))
    monkeypatch.setenv("GRAPHOPT_DISABLE", "ScaleShiftRelo")
    with pytest.raises(Exception, match="no op is called 'ScaleShiftRelo'"):
        session(model("ScaleShift", shapes, {}))


def test_log_names_an_unknown_instruction_set() -> None:
    result = run_script('session(model("ScaleShift", [(2, 3), (3,), (3,)], {}))', GRAPHOPT_LOG="1", GRAPHOPT_ISA="AVX2")
    assert result.returncode == 0, result.stderr
    assert "; GRAPHOPT_ISA is ignored: 'AVX2' is not a name" in result.stderr


def test_log_names_kernels_and_why_not_others() -> None:
    script = """
session(model("ScaleShift", [(2, 3), (3,), (3,)], {}))
for channels, size in ((1, 8), (64, 7), (64, 56), (512, 16)):
    shapes = [(1, channels, size, size), (max(64, channels), channels, 3, 3), (max(64, channels),)]
    conv = session(model("WinogradConv", shapes, {"pads": [1, 1, 1, 1]}))
    conv.run(None, {f"x{i}": np.ones(shape, np.float32) for i, shape in enumerate(shapes)})
"""
    result = run_script(script, GRAPHOPT_LOG="1", GRAPHOPT_ISA="baseline")
    assert result.returncode == 0, result.stderr
    kernels = len(OPS["ScaleShift"].dtypes)
    assert f"graphopt: {kernels} kernels registered; on the CPU: baseline; not amx: " in result.stderr
    few = "too few channels to pay for the transforms"
    large, rows, small = "F(4x4, 3x3)", "F(4x4, 3x3), half-transformed weights", "F(2x2, 3x3)"
    for said in (
        f"im2col GEMM; not {large}: {few}; not {rows}: {few}; not {small}: {few}",
        f"{small}; not {large}: {small} should be faster; not {rows}: {small} should be faster",
        large,
        f"{rows}; not {large}: the transformed weights would need too much memory",
    ):
        assert f"graphopt: WinogradConv node 'the_node': {said}\n" in result.stderr
    assert "graphopt: ScaleShift float node 'the_node' on baseline" in result.stderr


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs binutils")
def test_exports_and_system_requirements() -> None:
    symbols = subprocess.run(
        ["objdump", "-T", str(library_path())], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    exported = {line.split()[-1] for line in symbols if line[:8].strip("0123456789abcdef") == "" and "*UND*" not in line
                and ".text" in line}  # fmt: skip
    providers = {"CreateEpFactories", "ReleaseEpFactory"}
    reports = {"DescribeDevices", "FinishLoading", "ForecastGraph", "Implementations", "Memory", "Regions"}
    assert exported <= {"RegisterCustomOps", *providers, *(f"Graphopt{name}" for name in reports)}
    assert "RegisterCustomOps" in exported
    versions = {tuple(map(int, v.split("."))) for line in symbols for v in re.findall(r"GLIBC_([0-9.]+)", line)}
    assert max(versions) <= (2, 34)
    assert not [line for line in symbols if "GLIBCXX_" in line]  # libstdc++ is linked statically
    # At most the version of libgcc's unwinder in GCC 4.2.
    gcc = {tuple(map(int, v.split("."))) for line in symbols for v in re.findall(r"GCC_([0-9.]+)", line)}
    assert max(gcc) <= (4, 2, 0)
    needed = subprocess.run(["objdump", "-p", str(library_path())], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"NEEDED\s+(\S+)", needed)) <= {
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "ld-linux-x86-64.so.2",
    }
