"""Operators with several implementations: which is chosen, and why those before it are not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.runtime.discovery import library_path
from tests.hip.case import signed
from tests.hip.harness import ROOT


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Writes a model of a 1x1 convolution, a 3x3 convolution and a matrix multiplication, which runs with two sizes."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "pixels"),
        helper.make_node("Conv", ["a", "w3"], ["b"], "windows", pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["b", "m"], ["y"], "product"),
    ]
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, [0.5] * size)
        for name, shape, size in (("w1", (3, 20, 1, 1), 60), ("w3", (3, 3, 3, 3), 81), ("m", (4, 4), 16))
    ]
    channels = (("x", 20), ("y", 3))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", C, "H", 4]) for n, C in channels]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    return tmp_path / "model.onnx"


def run(model: Path, kernels: str, **options: str) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent("""
        import sys, json
        import numpy as np
        import onnxruntime as ort
        ort.register_execution_provider_library("graphopt", sys.argv[1])
        options = ort.SessionOptions()
        devices = [d for d in ort.get_ep_devices() if d.ep_name == "GraphoptExecutionProvider"]
        options.add_provider_for_devices(devices[:1], {"min_nodes": "2"} | json.loads(sys.argv[3]))
        session = ort.InferenceSession(sys.argv[2], options)
        (x,) = session.get_inputs()
        dtype = np.float16 if "float16" in x.type else np.float32
        for rows in (5, 6):
            session.run(None, {"x": np.ones((1, x.shape[1], rows, 4), dtype)})
    """)
    command = [sys.executable, "-c", script, str(library_path()), str(model), json.dumps(options)]
    environment = {**os.environ, "GRAPHOPT_HOST_KERNELS": kernels, "GRAPHOPT_LOG": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_the_choice_and_its_reasons_are_printed_once(model: Path, kernels: str) -> None:
    done = run(model, kernels)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if ", inputs " in line]
    assert lines == [
        "graphopt: Conv node 'pixels', inputs [1,20,5,4] [3,20,1,1]: pointwise by built-in GEMM; "
        "not pointwise by built-in kernel for few channels: too many channels or filters; "
        "not pointwise by cuBLAS or rocBLAS: there is none for host memory",
        "graphopt: Conv node 'windows', inputs [1,3,5,4] [3,3,3,3]: built-in implicit GEMM; "
        "not pointwise by built-in kernel for few channels: not a pointwise convolution; "
        "not pointwise by cuBLAS or rocBLAS: not a pointwise convolution; "
        "not pointwise by built-in GEMM: not a pointwise convolution; "
        "not cuDNN or MIOpen: there is none for host memory",
        "graphopt: MatMul node 'product', inputs [1,3,5,4] [4,4]: built-in GEMM; "
        "not cuBLAS or rocBLAS: there is none for host memory",
    ]


def test_few_channels_of_planes(tmp_path: Path, kernels: str) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "few"),
        helper.make_node("Conv", ["a", "v"], ["c"], "fewer"),
        helper.make_node("Conv", ["c", "v"], ["d"], "strided", strides=[2, 2]),
        helper.make_node("Conv", ["d", "v"], ["e"], "padded", pads=[1, 0, 0, 0]),
        helper.make_node("Conv", ["e", "g"], ["f"], "grouped", group=2),
        helper.make_node("Conv", ["f", "u"], ["h"], "without bias"),
        helper.make_node("Conv", ["h", "m", "n"], ["y"], "many"),
    ]
    shapes = {"w": (4, 16, 1, 1), "b": (4,), "v": (4, 4, 1, 1), "g": (4, 2, 1, 1), "u": (5, 4, 1, 1)}
    shapes |= {"m": (13, 5, 1, 1), "n": (13,)}
    weights = [numpy_helper.from_array(np.full(shape, 0.5, np.float32), name) for name, shape in shapes.items()]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", C, "H", 4]) for n, C in (("x", 16), ("y", None)))
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(made, tmp_path / "model.onnx")
    done = run(tmp_path / "model.onnx", kernels)
    few = "pointwise by built-in kernel for few channels"
    assert chosen(done, "few") == chosen(done, "fewer") == [few]
    for name in ("strided", "padded", "grouped", "without bias", "many"):
        assert few not in chosen(done, name)


@pytest.mark.parametrize("channels", [3, 8, 30])
def test_float16_depthwise_convolutions_need_no_layout_change(channels: int, tmp_path: Path, kernels: str) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "pixels"),
        helper.make_node("Conv", ["a", "w2"], ["y"], "windows", group=channels, pads=[1, 1, 1, 1]),
    ]
    weights = [
        numpy_helper.from_array(np.full(shape, 0.5, np.float16), name)
        for name, shape in (("w1", (channels, 3, 1, 1)), ("w2", (channels, 1, 3, 3)))
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["N", C, "H", 4]) for n, C in (("x", 3), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "model.onnx")
    done = run(tmp_path / "model.onnx", kernels, channels_last="1")
    assert chosen(done, "windows") == ["built-in depthwise kernel"]


def test_an_option_selects_one_implementation(model: Path, kernels: str) -> None:
    done = run(model, kernels, implementation="2")
    assert done.returncode != 0
    assert "node 'windows'" in done.stderr
    assert "pointwise by built-in GEMM refuses this call: not a pointwise convolution" in done.stderr
    assert "there are 6 implementations" in run(model, kernels, implementation="6").stderr


def test_a_failure_lists_all_nodes_that_are_refused(tmp_path: Path, kernels: str) -> None:
    nodes = [helper.make_node("Conv", ["x", f"w{k}"], [name], name, pads=[k // 2] * 4) for name, k in
             (("first", 3), ("pixels", 1), ("last", 5))]  # fmt: skip
    nodes.append(helper.make_node("Relu", ["first"], ["after"], "after"))
    weights = [numpy_helper.from_array(np.ones((3, 3, k, k), np.float32), f"w{k}") for k in (1, 3, 5)]
    x, *outputs = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3, "H", 4]) for n in ("x", "pixels", "last", "after")
    )
    graph = helper.make_graph(nodes, "g", [x], outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    done = run(tmp_path / "model.onnx", kernels, implementation="2")
    assert done.returncode != 0
    refused = re.findall(r"node '(\w+)', inputs.*: pointwise by built-in GEMM refuses this call: not a", done.stderr)
    assert set(refused) == {"first", "last"}
    assert "'after'" not in done.stderr


@pytest.mark.parametrize("number", ["4294967295", "99999999999999999999", "-1", "1x"])
def test_the_option_implementation_must_be_a_number(number: str, model: Path, kernels: str) -> None:
    done = run(model, kernels, implementation=number)
    assert done.returncode != 0
    assert f"option implementation must be a number from 0 to 2147483647, not '{number}'" in done.stderr


def chosen(done: subprocess.CompletedProcess[str], node: str) -> list[str]:
    """Returns the implementation that the log names for each size."""
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if f"node '{node}'" in line]
    return [line.split("]: ")[1].split(";")[0] for line in lines]


@pytest.mark.parametrize("regions", ["0", "1"])
def test_the_fastest_is_measured_once(regions: str, model: Path, kernels: str, tmp_path: Path) -> None:
    file = tmp_path / "measured"
    options = {"measured": str(file), "regions": regions, "min_nodes": "1"}
    first = run(model, kernels, **options)
    rows = [line.split("\t") for line in file.read_text().splitlines()]
    # A row for each convolution and size; each has a general and a specialized built-in kernel.
    assert len(rows) == 4 and all(len(row) == 3 for row in rows)
    assert {row[2] for row in rows} <= {"pointwise by built-in GEMM", "built-in implicit GEMM",
                                        "built-in direct kernel"}  # fmt: skip
    timed = [line for line in first.stderr.splitlines() if line.endswith(" us, captured")]
    assert sum("built-in implicit GEMM: " in line for line in timed) == 4
    assert chosen(first, "windows")[0].endswith(", as measured")
    second = run(model, kernels, **options)
    assert " us" not in second.stderr
    assert len(file.read_text().splitlines()) == 4
    assert chosen(second, "pixels") == chosen(first, "pixels")


def test_measurements_apply_to_equal_problems_only(model: Path, kernels: str, tmp_path: Path) -> None:
    file = tmp_path / "measured"
    run(model, kernels, measured=str(file), min_nodes="1")
    slow = "built-in direct kernel"
    lines = file.read_text().splitlines()
    file.write_text("".join(f"{line.rpartition(chr(9))[0]}\t{slow}\n" for line in lines) + "an unrelated line\n")
    done = run(model, kernels, measured=str(file), min_nodes="1")
    assert chosen(done, "pixels") == chosen(done, "windows") == [f"{slow}, as measured"]
    file.write_text("".join(f"another GPU, {line}\n" for line in lines))
    assert " us, captured\n" in run(model, kernels, measured=str(file)).stderr
    # An unknown implementation name.
    file.write_text("".join(f"{line.rpartition(chr(9))[0]}\tby magic\n" for line in lines))
    assert chosen(run(model, kernels, measured=str(file)), "pixels") == ["pointwise by built-in GEMM"]


def test_measurements_that_cannot_be_written_are_reported_and_used(model: Path, kernels: str, tmp_path: Path) -> None:
    done = run(model, kernels, measured=str(tmp_path / "missing" / "measured"), min_nodes="1")
    assert "graphopt: measurements can't be written to" in done.stderr
    assert chosen(done, "windows")[0].endswith(", as measured")


def test_tuning_measures_implementations(model: Path, kernels: str, tmp_path: Path) -> None:
    """Sessions reuse the measurements that `optimize --tune` stores next to its cache."""
    cache, record = tmp_path / "cache.json", tmp_path / "cache.json.measured"
    command = [sys.executable, "-m", "graphopt", "optimize", str(model), str(tmp_path / "tuned.onnx")]
    command += ["--target", "cuda", "--tune", "--tune-seconds", "1", "--dim", "H=5", "--tuning-cache", str(cache), "-v"]
    environment = {**os.environ, "GRAPHOPT_HOST_KERNELS": kernels, "COLUMNS": "500"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"fastest implementations: {record}" in done.stdout
    tuned = record.read_text().splitlines()
    assert len(tuned) == 2 and all(" in 1 5 4 out 1 5 4 " in line for line in tuned)
    later = run(tmp_path / "tuned.onnx", kernels, measured=str(record), min_nodes="1")
    assert chosen(later, "windows")[0].endswith(", as measured")
    # The session adds both convolutions at the size that was not tuned.
    assert record.read_text().splitlines()[:2] == tuned
    assert len(record.read_text().splitlines()) == 4


def saved(path: Path, text: str, **weights: tuple[int, ...]) -> Path:
    """Writes a model from x float [1, 3, rows, 4] to y; weights with names that begin with h are float16."""
    graph = f"g (float[1, 3, rows, 4] x) => (float[a, b, c, d] y) {{ {text} }}"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    for name, shape in weights.items():
        dtype = np.float16 if name.startswith("h") else np.float32
        made.graph.initializer.append(numpy_helper.from_array(np.full(shape, 0.5, dtype), name))
    path.write_bytes(made.SerializeToString())
    return path


def test_an_implicit_gemm_replaces_a_pointwise_one_of_two_launches(kernels: str, tmp_path: Path) -> None:
    """A 1x1 convolution runs as an implicit GEMM if that saves a launch and its tiles fill the device."""
    text = """[few] a = Conv(x, few, few_bias)  [bare] b = Conv(x, bare)  [many] c = Conv(x, many, many_bias)
              y = Concat<axis = 1>(a, b, c)"""
    shapes = {"few": (17, 3, 1, 1), "few_bias": (17,), "bare": (8192, 3, 1, 1), "many": (8192, 3, 1, 1)}
    model = saved(tmp_path / "model.onnx", text, many_bias=(8192,), **shapes)
    done = run(model, kernels, regions="0", min_nodes="1")
    assert chosen(done, "few") == chosen(done, "bare") == ["pointwise by built-in GEMM"]
    assert chosen(done, "many") == ["built-in implicit GEMM"]
    assert "not pointwise by built-in GEMM: needs more than one launch" in done.stderr


def test_an_image_with_few_filters_is_not_padded_for_a_gemm(kernels: str, tmp_path: Path) -> None:
    text = """h = Cast<to = 10>(x)  [few] a = Conv(h, hfew)  [many] b = Conv(h, hmany)  c = Concat<axis = 1>(a, b)
              y = Cast<to = 1>(c)"""
    model = saved(tmp_path / "model.onnx", text, hfew=(31, 3, 3, 3), hmany=(32, 3, 3, 3))
    done = run(model, kernels, channels_last="1", min_nodes="1")
    assert chosen(done, "few") == ["built-in kernel between transpositions"]
    assert chosen(done, "many") == ["built-in channels-last implicit GEMM with padded channels"]


LAYERS, WIDTH = ("q", "k", "v"), 16


@pytest.mark.parametrize("shared", [False, True])
def test_layers_that_share_an_input_run_as_one_gemm(tmp_path: Path, kernels: str, shared: bool) -> None:
    """Layers that share an input run as one GEMM if their results are adjacent, each aligned to the next.

    The table before the weights leaves space in its block of constants for the first layer's weights only. With
    `shared` an earlier layer uses the bias of the first layer, as layers without a bias share their zeros.
    """
    rng = np.random.default_rng(0)
    constants = {"table": np.zeros(((32 << 20) // 4 // WIDTH - WIDTH, WIDTH), np.float32)}
    constants["table"][:5] = signed(rng, 5, WIDTH)
    for n in LAYERS:
        constants |= {f"w{n}": signed(rng, WIDTH, WIDTH), f"b{n}": signed(rng, WIDTH)}
    constants["before"] = signed(rng, WIDTH, WIDTH) * np.float32(1 / 64)
    earlier = [
        helper.make_node("MatMul", ["rows_of_x", "before"], ["m"]),
        helper.make_node("Add", ["m", "bq"], ["x"]),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows_of_x" if shared else "x"]),
        *(earlier if shared else ()),
        *(helper.make_node("MatMul", ["x", f"w{n}"], [f"m{n}"]) for n in LAYERS),
        *(helper.make_node("Add", [f"m{n}", f"b{n}"], [n]) for n in LAYERS),
        helper.make_node("Mul", ["q", "k"], ["qk"]),
        helper.make_node("Sub", ["qk", "v"], ["y"]),
    ]
    i = helper.make_tensor_value_info("i", TensorProto.INT64, ["rows"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [i], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(graphopt.optimize(made, target="cuda")[0].SerializeToString())
    script = textwrap.dedent("""
        import sys
        import numpy as np
        import onnxruntime as ort
        from tests.provider.worker import library_path, new_session
        ort.register_execution_provider_library("graphopt", str(library_path()))
        session = new_session(open(f"{sys.argv[1]}/model.onnx", "rb").read(), {"min_nodes": "1"})
        np.savez(f"{sys.argv[1]}/y.npz", *(session.run(None, {"i": np.arange(rows)})[0] for rows in (4, 5)))
    """)
    environment = {**os.environ, "GRAPHOPT_HOST_KERNELS": kernels, "GRAPHOPT_LOG": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    of_three = [line for line in done.stderr.splitlines() if " [16,16]" * 3 in line and ": Linear node" in line]
    chosen = [line.split(": ")[2].split(";")[0] for line in of_three]
    assert chosen == ["all layers in one built-in GEMM", "each layer by built-in GEMM"], done.stderr
    x = constants["table"][:5].astype(np.float64)
    if shared:
        x = x @ constants["before"] + constants["bq"]
    q, k, v = (x @ constants[f"w{n}"] + constants[f"b{n}"] for n in LAYERS)
    expected = q * k - v
    for got in np.load(tmp_path / "y.npz").values():
        assert np.abs(got - expected[: len(got)]).max() < 1e-5
