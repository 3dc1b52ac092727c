"""Models with operators from a library of the user (--custom-ops)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.debug.bisect import bisect
from graphopt.errors import GraphoptError, OptionError, VerifyError

ROOT = Path(__file__).parents[2]
TEXT = """<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
g (float[N, 4] x) => (float[N, 4] y) {{ {} y = Relu (t) }}"""
# The library's operator, the same function in standard ONNX, and another function.
DOUBLED, SUM, TRIPLED = (
    "a = acme.Doubled (x) t = Identity (a)",
    "t = Add (x, x)",
    "two = Add (x, x) t = Add (two, x)",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("library") / "libacme.so"
    source = Path(__file__).with_name("custom_op.cpp")
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-I", str(ROOT / "native"), str(source), "-o", str(out)]
    subprocess.run(command, check=True)
    return out


def model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT.format(body))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(model(DOUBLED), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_every_session_registers_the_library(library: Path) -> None:
    report = graphopt.verify(model(DOUBLED), model(SUM), custom_ops=[library], effort="quick")
    assert report.equal, report.summary
    assert not graphopt.verify(model(DOUBLED), model(TRIPLED), custom_ops=[library], effort="quick").equal
    with pytest.raises(VerifyError, match=r"has no operator acme:Doubled: give the library .* with --custom-ops LIB"):
        graphopt.verify(model(DOUBLED), model(SUM), effort="quick")


def test_a_file_that_is_no_library(path: Path, tmp_path: Path) -> None:
    """The file is reported even if no session is needed: here the interfaces differ, and `optimize` runs nothing."""
    text, other = tmp_path / "text.txt", model(SUM)
    text.write_text("no library")
    other.graph.output[0].name = other.graph.node[-1].output[0] = "z"
    with pytest.raises(OptionError, match=r"text.txt: .* cannot load it"):
        graphopt.verify(path, other, custom_ops=[text])
    with pytest.raises(OptionError, match=r"text.txt: .* cannot load it"):
        graphopt.optimize(path, tmp_path / "out.onnx", custom_ops=[text])


@pytest.mark.parametrize(
    ("domain", "name", "called"),
    [("my_ops-v2", "Two", "my_ops-v2:Two"), ("org.pytorch/aten", "a::b", "org.pytorch/aten:a::b"), ("", "Two", "Two")],
)
def test_domains(domain: str, name: str, called: str) -> None:
    unknown = model("t = Identity (x)")
    unknown.opset_import.add(domain=domain or "my", version=1)
    unknown.graph.node[0].domain, unknown.graph.node[0].op_type = domain, name
    for use in (lambda: graphopt.verify(unknown, unknown), lambda: graphopt.session(unknown)):
        with pytest.raises(GraphoptError, match=f"has no operator {called}: give .* --custom-ops"):
            use()


@pytest.mark.parametrize(("domain", "name"), [("com.microsoft", "Two"), ("", "Gelu")])
def test_operators_of_a_newer_runtime(domain: str, name: str) -> None:
    unknown = model("t = Identity (x)")
    unknown.opset_import.add(domain="com.microsoft", version=1)
    unknown.graph.node[0].domain, unknown.graph.node[0].op_type = domain, name
    with pytest.raises(VerifyError, match="use a runtime that can, or export the model for this one"):
        graphopt.verify(unknown, unknown)


def test_a_session_for_the_user(path: Path, library: Path) -> None:
    x = np.array([[1, -2, 3, 0.5]], np.float32)
    (y,) = graphopt.session(path, ["CPUExecutionProvider"], custom_ops=[library]).run(None, {"x": x})
    np.testing.assert_array_equal(y, [[2, 0, 6, 1]])
    with pytest.raises(GraphoptError, match="custom_ops="):
        graphopt.session(path, ["CPUExecutionProvider"])


def test_bisect_and_bench(library: Path) -> None:
    found = bisect(model(DOUBLED), target="cpu", custom_ops=[library])
    assert (found.verdict.value, found.culprit, found.rewrites) == ("equal", None, 1)
    report = graphopt.bench(model(DOUBLED), providers=["cpu"], seconds=0.0, custom_ops=[library])
    assert report.rows[0].before.memory is not None  # measured in another process
    with pytest.raises(GraphoptError, match="--custom-ops"):
        graphopt.bench(model(DOUBLED), providers=["cpu"], seconds=0.0)


def test_command_line(path: Path, library: Path, graphopt_command: Callable[..., Any]) -> None:
    out = path.with_name("out.onnx")
    done = graphopt_command("optimize", path, out, "--target", "cpu", "--verify", "--custom-ops", library)
    assert done.exit_code == 0 and "equal" in done.stdout, done.stderr
    for command in (("verify", path, out), ("bench", path), ("bisect", path), ("optimize", path, out, "--verify")):
        done = graphopt_command(*command)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert "--custom-ops LIB" in done.stderr


def test_a_library_that_cannot_be_loaded(path: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file"):
        graphopt.verify(path, path, custom_ops=[tmp_path / "none.so"])
    with pytest.raises(OptionError, match=r"m\.onnx: onnxruntime.* cannot load it"):
        graphopt.verify(path, path, custom_ops=[path])
    with pytest.raises(OptionError, match="is a list"):
        graphopt.verify(path, path, custom_ops="lib.so")
