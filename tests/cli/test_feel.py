"""What people notice without being told: quick starts, no surprises, messages that name the right form."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.remarks import became
from models import ZOO

Command = Callable[..., Any]


def loaded_by(*arguments: str) -> set[str]:
    """Top-level modules that are executed by `graphopt ARGUMENTS`."""
    code = textwrap.dedent(
        """
        import sys
        from graphopt.__main__ import main
        try:
            main()
        except SystemExit:
            pass
        done = {n for n, m in list(sys.modules.items()) if type(m).__name__ != "_LazyModule"}
        print("\\n" + " ".join(n for n in done if "." not in n))
        """
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.once
@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("optimize", "--help"), ("optimize", "--no-such")])
def test_what_starts_quickly_loads_little(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by(*arguments)
    assert "typer" in loaded
    assert not loaded & {"sympy", "onnx", "onnx_ir", "numpy", "onnxruntime", "jinja2", "rich"}


@pytest.mark.once
def test_work_starts_without_sympy(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ZOO["resnet18"](small=True, dynamic=True), path)
    loaded = loaded_by("optimize", str(path), "--dry-run", "-q", "--target", "cpu")
    assert "onnx_ir" in loaded and not loaded & {"sympy", "onnxruntime", "jinja2"}


@pytest.mark.once
def test_ctrl_c_says_so(tmp_path: Path) -> None:
    """In the middle of a command, where typer would end without a word."""
    # A shell's background job starts with SIGINT ignored, and so do the processes that it starts.
    code = "import signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from graphopt import cli\nfrom graphopt.cli.root import app\n"
    code += "@app.command()\ndef wait() -> None:\n    print('ready', flush=True)\n    time.sleep(600)\n"
    code += "sys.argv = ['graphopt', 'wait']\ncli.main()\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == b"graphopt: interrupted\n"


@pytest.mark.once
def test_shell_completion() -> None:
    environment = {**os.environ, "_GRAPHOPT_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    for words, wanted in (("graphopt optimize --tun", "--tune"), ("graphopt optimize --only win", "winograd_conv")):
        environment |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        code = "import graphopt.cli\ngraphopt.cli.main()"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert wanted in done.stdout.split(), done.stderr


@pytest.mark.once
def test_one_node_became() -> None:
    assert became(1, "X") == "1 node became X"
    assert became(2, "X") == "2 nodes became X"


@pytest.mark.once
def test_options_name_the_right_form(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ZOO["resnet18"](small=True), path)
    for options, words in (
        (("--threads", "-1"), "give 1, 2, ..., or 0"),
        (("--dim", "batch"), "NAME=8"),
        (("--dim", "batch=0"), "NAME=8"),
        (("--only", "winograd"), "the passes are clean_up, "),
        (("--input-shape", "x=1x3"), "NAME:1x3x224x224"),
    ):
        result = graphopt_command("optimize", path, "--dry-run", *options)
        assert result.exit_code == OptionError.exit_code and words in result.stderr, result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_path_without_out_gives_a_model(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ZOO["resnet18"](small=True), path)
    model, report = graphopt.optimize(path, target="cpu", all_sites=True)
    assert isinstance(model, ir.Model) and report.changed
    assert os.listdir(tmp_path) == ["in.onnx"]
    proto = ir.to_proto(model)
    x = {"input": np.ones([d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim], np.float32)}
    feeds = {proto.graph.input[0].name: x["input"]}
    results = [graphopt.session(m, ["CPUExecutionProvider"]).run(None, feeds)[0] for m in (model, proto, path)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], results[2], rtol=1e-3, atol=1e-5)
    with pytest.raises(OptionError, match="cannot run a list"):
        graphopt.session([])


@pytest.mark.once
def test_weights_on_disk_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    model = ZOO["resnet18"](small=True)
    onnx.save(model, path, save_as_external_data=True, location="in.data", size_threshold=0)
    optimized, _ = graphopt.optimize(path, target="cpu", only=["clean_up"])
    assert any(isinstance(v.const_value, ir.ExternalTensor) for v in optimized.graph.initializers.values())
    assert graphopt.session(optimized, ["CPUExecutionProvider"]).get_outputs()


def test_a_text_where_a_list_is_meant() -> None:
    model = ZOO["resnet18"](small=True)
    calls: list[Callable[[], object]] = [
        lambda: graphopt.optimize(model, only="winograd_conv"),
        lambda: graphopt.optimize(model, skip="winograd_conv"),
        lambda: graphopt.bench(model, providers="cpu"),
        lambda: graphopt.session(model, providers="CPUExecutionProvider"),
    ]
    for call in calls:
        with pytest.raises(OptionError, match=r"is a list: give \['"):
            call()


@pytest.mark.once
def test_a_graphsurgeon_graph_keeps_metadata_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    graph = gs.import_onnx(ZOO["resnet18"](small=True))
    graph.nodes[1].name = graph.nodes[0].name  # of which graphsurgeon warns
    capfd.readouterr()
    optimized, _ = graphopt.optimize(graph, target="cpu", all_sites=True)
    assert optimized.metadata_props["graphopt.numerics"] == "approximate"
    again, _ = graphopt.optimize(optimized, target="cpu", all_sites=True)
    assert again.metadata_props == optimized.metadata_props
    assert capfd.readouterr() == ("", "")


@pytest.mark.once
def test_the_documented_calls_are_typed(tmp_path: Path) -> None:
    """A user's project under mypy --strict."""
    (tmp_path / "user.py").write_text(
        textwrap.dedent(
            """
            from pathlib import Path

            import onnx_ir

            import graphopt


            def convert(source: Path) -> float:
                out, report = graphopt.optimize(source, source.with_suffix(".opt.onnx"), only=["clean_up"])
                model, _ = graphopt.optimize(source)
                again: onnx_ir.Model = graphopt.optimize(model)[0]
                graphopt.session(again, ["CPUExecutionProvider"])
                verified = graphopt.verify(source, out, effort="quick")
                if not verified:
                    print(verified.summary, report.before.nodes if report.before else {})
                timed = graphopt.bench(source, out, threads=(1,))
                tuning = graphopt.tune(source, seconds=1.0)
                graphopt.optimize(source, profit=tuning.profit)
                return timed.rows[0].before.median_ms
            """
        )
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    environment = {**os.environ, "MYPYPATH": str(Path(graphopt.__file__).parents[1])}
    done = subprocess.run([*command, "user.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
