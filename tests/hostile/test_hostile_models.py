"""Models constructed to break readers, each given to the command line in a process with bounded memory and time."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt import cli
from tests.hostile.limits import bound_memory, bound_processor
from tests.rewriting import model_from_text

pytestmark = pytest.mark.once

MEMORY = 4 * 2**30
SECONDS = 30
INVALID = 3


@dataclass(frozen=True)
class Done:
    """The exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: object) -> Done:
    """Runs `graphopt ARGUMENTS` in a forked child, which does not have to repeat the imports."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            bound_memory(MEMORY)
            bound_processor(SECONDS)
            code = 1
            try:
                sys.stdout, sys.stderr = out, err
                sys.argv = ["graphopt", *map(str, arguments)]
                cli.main()
                code = 0
            except SystemExit as exit_:
                code = int(exit_.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                out.flush()
                err.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read())


def model(
    nodes: list[onnx.NodeProto],
    initializers: list[TensorProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """Returns a model from x to y, both float [N, 3]."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], initializers or [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=functions or [])


def relu() -> onnx.NodeProto:
    return helper.make_node("Relu", ["x"], ["y"], name="relu")


def nested(depth: int) -> bytes:
    """Returns nested If nodes as bytes, since protobuf does not serialize messages of this depth."""

    def field(number: int, data: bytes) -> bytes:
        length, varint = len(data), b""
        while length >= 0x80:
            varint += bytes([length & 0x7F | 0x80])
            length >>= 7
        return bytes([number << 3 | 2]) + varint + bytes([length]) + data

    graph = field(1, field(1, b"x") + field(2, b"z") + field(4, b"Relu")) + field(12, field(1, b"z"))
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph) + bytes([20 << 3 | 0x80, 1, 5])
        node = field(1, b"c") + field(2, b"z") + field(4, b"If") + field(5, attribute)
        graph = field(1, node) + field(12, field(1, b"z"))
    return bytes([1 << 3, 8]) + field(7, graph) + field(8, bytes([2 << 3, 17]))


def long_chain_reversed() -> onnx.ModelProto:
    """Returns a chain of 20,000 nodes in reverse order."""
    names = ["x", *(f"v{i}" for i in range(20_000)), "y"]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    return model(nodes[::-1])


def recursive_function(calls: str) -> onnx.ModelProto:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function(
            "local", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="local")], opset
        )
        for name, other in zip("fg", calls)
    ]
    return model([helper.make_node("f", ["x"], ["y"], domain="local")], [], functions)


def function_without_text(text: bytes) -> bytes:
    """Returns a model with a function that contains a byte that is not UTF-8.

    A rewrite triggers shape inference, which serializes the function.
    """
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own-import", 1)]
    body = [helper.make_node("Relu", ["a"], ["b"])]
    functions = [helper.make_function("own-domain", "own-name", ["a"], ["b"], body, imports, doc_string="own-note")]
    made = model_from_text(
        """g (float[N, C, 4] x) => (float[N, C, 4] y) <float[2] s = {1.0, 2.0}> {
        y = BatchNormalization (x, s, s, s, s) }""",
        check=False,
    )
    made.opset_import.add(domain="own-domain", version=1)
    made.functions.extend(functions)
    data: bytes = made.SerializeToString()
    before, _, after = data.rpartition(text)
    return before + b"\x80" + text[1:] + after


def exponential_functions() -> onnx.ModelProto:
    """Returns functions that each call the next one twice: inlining them would give 2^60 nodes."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = []
    for i in range(60):
        calls = [helper.make_node(f"f{i + 1}", [a], [b], domain="local") for a, b in (("a", "t"), ("t", "b"))]
        functions.append(helper.make_function("local", f"f{i}", ["a"], ["b"], calls, opset))
    last = [helper.make_node("Relu", ["a"], ["b"])]
    functions.append(helper.make_function("local", "f60", ["a"], ["b"], last, opset))
    return model([helper.make_node("f0", ["x"], ["y"], domain="local")], [], functions)


def giant(op: str, *shape: int) -> onnx.ModelProto:
    """Returns a constant subgraph with a result larger than the memory of any machine."""
    dims = numpy_helper.from_array(np.array(shape, np.int64), "dims")
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    inputs = {"ConstantOfShape": ["dims"], "Expand": ["one", "dims"], "Tile": ["one", "dims"]}[op]
    nodes = [helper.make_node(op, inputs, ["c"]), helper.make_node("ReduceMax", ["c"], ["m"], keepdims=0)]
    return model([*nodes, helper.make_node("Add", ["x", "m"], ["y"])], [dims, one])


def giant_range() -> onnx.ModelProto:
    limits = [numpy_helper.from_array(np.array(n, np.int64), f"r{i}") for i, n in enumerate((0, 2**62, 1))]
    nodes = [helper.make_node("Range", ["r0", "r1", "r2"], ["c"]), helper.make_node("Shape", ["c"], ["s"])]
    nodes += [helper.make_node("Cast", ["s"], ["f"], to=1), helper.make_node("Add", ["x", "f"], ["y"])]
    return model(nodes, limits)


def giant_input() -> onnx.ModelProto:
    made = model([relu()])
    for value in (*made.graph.input, *made.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = 2**62
    return made


def initializer(**fields: object) -> onnx.ModelProto:
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    for name, value in fields.items():
        if isinstance(value, list | tuple):
            del getattr(w, name)[:]
            getattr(w, name).extend(value)
        else:
            setattr(w, name, value)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [w])


def wrong_attribute(op: str, **attributes: Any) -> onnx.ModelProto:
    inputs = {"Conv": ["x", "x"], "Transpose": ["x"], "Gemm": ["x", "x"], "Softmax": ["x"], "Cast": ["x"]}[op]
    return model([helper.make_node(op, inputs, ["y"], **attributes)])


def norm_of_rows(columns: int) -> onnx.ModelProto:
    """Returns a decomposed layer normalization without scale and shift."""
    made = model_from_text(
        """g (float[2, 7] x) => (float[N, D] y) <float e = {0.1}> {
        m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) p = Mul (d, d)
        v = ReduceMean <axes = [-1]> (p) a = Add (v, e) s = Sqrt (a) y = Div (d, s) }""",
        check=False,
    )
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = columns
    return made


def attention_with_perm_of_rank_5() -> onnx.ModelProto:
    return model_from_text(
        """g (float[1, 2, 3, 4] q, float[1, 2, 4, 3] k) => (float[A, B, C, D] y) {
        s = MatMul (q, k) p = Softmax <axis = -1> (s) o = MatMul (p, q)
        y = Transpose <perm = [0, 2, 3, 1, 4]> (o) }""",
        check=False,
    )


# Name -> model, and the words of the expected error, or None where an error and a result are both acceptable.
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto | bytes], str | None]] = {
    "nested 30": (lambda: nested(30), "reads 'c', which nothing produces"),
    "nested 5,000": (lambda: nested(5000), "not an ONNX model"),
    "reversed chain": (long_chain_reversed, None),
    "function calls itself": (lambda: recursive_function("fg"), None),
    "functions call each other": (lambda: recursive_function("gf"), None),
    **{
        f"function whose {text} is no UTF-8": (partial(function_without_text, text.encode()), "not UTF-8")
        for text in ("own-domain", "own-name", "own-import", "own-note")
    },
    "2^60 calls": (exponential_functions, None),
    "giant ConstantOfShape": (lambda: giant("ConstantOfShape", 2**20, 2**20, 2**20), None),
    "negative ConstantOfShape": (lambda: giant("ConstantOfShape", -5), None),
    "giant Expand": (lambda: giant("Expand", 2**31, 2**31), None),
    "giant Tile": (lambda: giant("Tile", 2**40), None),
    "giant Range": (giant_range, None),
    "giant input": (giant_input, None),
    "dims overflow": (lambda: initializer(dims=[2**62, 2**62, 16], raw_data=b""), "'w'"),
    "dims times 0": (lambda: initializer(dims=[2**62, 0], raw_data=b"\0"), "'w' has 1 bytes"),
    "negative dim": (lambda: initializer(dims=[-3], raw_data=bytes(12)), "negative"),
    "too few bytes": (lambda: initializer(raw_data=bytes(11)), "need 12"),
    "too many numbers": (lambda: initializer(float_data=[1.0] * 4), "need 3"),
    "no element type": (lambda: initializer(data_type=0, raw_data=bytes(12)), "no element type"),
    "unknown element type": (lambda: initializer(data_type=99, raw_data=bytes(12)), "99"),
    "strings as weights": (lambda: initializer(data_type=8, string_data=[b"a"]), None),
    "perm out of range": (lambda: wrong_attribute("Transpose", perm=[5, -9]), None),
    "perm of another type": (lambda: wrong_attribute("Transpose", perm="01"), None),
    "strides of 0": (lambda: wrong_attribute("Conv", strides=[0, 0], kernel_shape=[3, 3]), None),
    "group 0": (lambda: wrong_attribute("Conv", group=0), None),
    "axis out of range": (lambda: wrong_attribute("Softmax", axis=2**62), None),
    "cast to nothing": (lambda: wrong_attribute("Cast", to=77), None),
    "norm of giant rows": (lambda: norm_of_rows(2**40), None),
    "norm of negative rows": (lambda: norm_of_rows(-5), None),
    "attention with a perm of rank 5": (attention_with_perm_of_rank_5, None),
    "NaN alpha": (lambda: wrong_attribute("Gemm", alpha=float("nan")), None),
}


@pytest.mark.parametrize("name", MODELS)
def test_hostile_model(name: str, tmp_path: Path) -> None:
    build, words = MODELS[name]
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    made = build()
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    done = command("optimize", path, out, "--target", "cpu", "--ignore-cost-model")
    assert done.returncode in ((INVALID,) if words else (0, INVALID)), done.stderr[-2000:]
    files = ["in.onnx"]
    if done.returncode == 0:
        onnx.ModelProto.FromString(out.read_bytes())
        files.append("out.onnx")
    else:
        assert done.stderr.startswith("graphopt: ") and len(done.stderr.strip().splitlines()) == 1
        assert words is None or words in done.stderr
    assert sorted(os.listdir(tmp_path)) == files


def external(folder: Path, **entries: str) -> Path:
    """Writes a model Y = X + w with the given external-data entries for w, and returns its path."""
    (folder / "w.data").write_bytes(bytes(4096))
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.data", "offset": "0", "length": "12", **entries}.items():
        w.external_data.add(key=key, value=value)
    path = folder / "in.onnx"
    path.write_bytes(model([helper.make_node("Add", ["x", "w"], ["y"])], [w]).SerializeToString())
    return path


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "4090"},
        {"offset": "-12"},
        {"offset": "9223372036854775807"},
        {"offset": "99999999999999999999999"},
        {"offset": "twelve"},
        {"length": "-1"},
        {"length": "18446744073709551615"},
        {"length": "0x0c"},
        {"location": ""},
        {"location": "."},
        {"location": "w.data\0.png"},
        {"location": "a" * 5000},
        {"location": "../w.data"},
        {"location": "/etc/hostname"},
        {"location": "pipe"},
    ],
    ids=lambda entries: str(entries)[:40],
)
def test_hostile_external_data(entries: dict[str, str], tmp_path: Path) -> None:
    path = external(tmp_path, **entries)
    os.mkfifo(tmp_path / "pipe")
    done = command("optimize", path, tmp_path / "out.onnx", "--target", "cpu")
    assert done.returncode == INVALID, done.stderr[-2000:]
    assert done.stderr.startswith("graphopt: ") and len(done.stderr.strip().splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["in.onnx", "pipe", "w.data"]


def test_a_name_with_control_characters_is_shown_escaped(tmp_path: Path) -> None:
    """Control characters are escaped in the terminal report, in JSON and in HTML."""
    evil = "a\x1b]0;title\x07\nb\u202e\x9b31m[red]</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    w = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info(evil, TensorProto.FLOAT, None)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name=evil), helper.make_node(evil, ["c"], [evil], domain=evil)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(evil, 1)]
    made = helper.make_model(helper.make_graph(nodes, evil, [x], [y], [w]), ir_version=8, opset_imports=opsets)
    path = tmp_path / "in.onnx"
    path.write_bytes(made.SerializeToString())
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    # No runtime has this operator, so verification and timing are impossible.
    wanted = ("--explain", "--json", report, "--report", page, "--no-verify", "--no-bench")
    done = command("optimize", path, tmp_path / "out.onnx", "--target", "cpu", *wanted)
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr + report.read_text()
    assert "\\x1b" in done.stdout and "\\u001b" in report.read_text()
    assert all(c.isprintable() or c == "\n" for c in shown)
    html = page.read_text()
    assert "<script>alert" not in html and "<img src=x" not in html
    assert not any(ord(c) < 32 and c not in "\n\t" for c in html)
    explained = command("explain", path, "--target", "cpu")
    assert all(c.isprintable() or c == "\n" for c in explained.stdout)
