"""Usability: quick start-up, no surprises, messages that name the right form."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
import typer
from typer.core import TyperGroup

import graphopt
from graphopt import progress
from graphopt.cli.overview import OVERVIEW
from graphopt.cli.root import NAMES, app
from graphopt.errors import OptionError
from graphopt.graph import reading
from graphopt.progress import Steps
from graphopt.remarks import became
from models import ZOO

Command = Callable[..., Any]


def loaded_by(*arguments: str) -> set[str]:
    """Returns the modules of graphopt and the packages of others that `graphopt ARGUMENTS` executes."""
    code = textwrap.dedent(
        """
        import sys
        from graphopt.__main__ import main
        try:
            main()
        except SystemExit:
            pass
        done = {n for n, m in list(sys.modules.items()) if type(m).__name__ != "_LazyModule"}
        print("\\n" + " ".join(n for n in done if "." not in n or n.startswith("graphopt")))
        """
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.once
@pytest.mark.parametrize(
    "arguments",
    [
        "optimize --help",
        "optimize --no-such",
        "optimize a.onnx --threads many",
        "optimize a.onnx --tune-seconds x",
        "lower a.onnx --opset 1.5",
        "verify --json",
        "nonsense",
    ],
)
def test_quick_commands_import_few_modules(arguments: str) -> None:
    loaded = loaded_by(*arguments.split())
    assert "typer" in loaded
    assert not loaded & {"sympy", "onnx", "onnx_ir", "numpy", "onnxruntime", "jinja2", "rich", "pydantic"}
    modules = {f"graphopt.cli.{name.replace('-', '_')}" for name in NAMES}
    assert len(loaded & modules) <= 2, "a command and one that it shares something with"


@pytest.mark.once
def test_version_and_help_load_nothing() -> None:
    for arguments in (["--version"], ["--help"], []):
        loaded = loaded_by(*arguments)
        assert not loaded & {"sympy", "onnx", "onnx_ir", "numpy", "typer", "inspect", "json", "re"}
        assert {name for name in loaded if name.startswith("graphopt")} == {
            "graphopt",
            "graphopt.__main__",
            "graphopt.cli",
            "graphopt.cli.overview",
        }


@pytest.mark.once
def test_the_constant_help_equals_that_of_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="graphopt")
    assert isinstance(group, TyperGroup)
    assert TyperGroup.get_help(group, context) == OVERVIEW.rstrip() == group.get_help(context)


@pytest.mark.once
def test_a_missing_file_is_reported_before_slow_imports(tmp_path: Path) -> None:
    for command in ("optimize", "verify", "diff"):
        assert not loaded_by(command, str(tmp_path / "no.onnx"), str(tmp_path / "b.onnx")) & {"onnx", "numpy", "rich"}


@pytest.mark.once
def test_optimize_imports_only_required_modules(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ZOO["resnet18"](small=True, dynamic=True), path)
    loaded = loaded_by("optimize", str(path), "--dry-run", "-q", "--target", "cpu")
    assert "onnx_ir" in loaded and not loaded & {"sympy", "onnxruntime", "jinja2", "rich"}
    later = ("half_precision", "bfloat16", "report.tables", "verification.verify", "measure.bench", "measure.tune")
    assert not loaded & {f"graphopt.{name}" for name in later}


@pytest.mark.once
def test_ctrl_c_prints_a_message(tmp_path: Path) -> None:
    """Ctrl-C during a command prints a message; typer would exit silently."""
    # A shell's background job starts with SIGINT ignored, and so do its child processes.
    code = "import signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from graphopt import cli\nfrom graphopt.cli.root import app\n"
    code += "@app.command()\ndef wait() -> None:\n    print('ready', flush=True)\n    time.sleep(600)\n"
    code += "sys.argv = ['graphopt', 'wait']\ncli.main()\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == b"graphopt: interrupted\n"


@pytest.mark.once
def test_too_little_memory_is_one_line() -> None:
    code = "import sys\nfrom graphopt import cli\nfrom graphopt.cli.root import app\n"
    code += "@app.command()\ndef fill() -> None:\n    bytearray(1 << 62)\n"
    code += "sys.argv = ['graphopt', 'fill']\ncli.main()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    wanted = (
        "graphopt: not enough memory: give smaller sizes (--dim, --input-shape) or use a machine with more memory\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", wanted)


@pytest.mark.once
def test_shell_completion() -> None:
    environment = {**os.environ, "_GRAPHOPT_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    for words, wanted in (
        ("graphopt ver", "verify"),
        ("graphopt --ver", "--version"),
        ("graphopt optimize --tun", "--tune"),
        ("graphopt optimize --only win", "winograd_conv"),
    ):
        environment |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        code = "import graphopt.cli\ngraphopt.cli.main()"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert wanted in done.stdout.split(), done.stderr


@pytest.mark.once
def test_full_disks_and_closed_outputs() -> None:
    """A full disk gives one line of error, a closed reader none, and a closed stdout no failure."""
    full = "graphopt: [Errno 28] No space left on device\n"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for command, codes, said in (
        ("--version >/dev/full", (4,), full),
        ("passes >/dev/full", (4,), full),
        ("--version | true; exit ${PIPESTATUS[0]}", (0, 141), ""),
        ("docs >&-", (0,), ""),
    ):
        line = ["bash", "-c", f"{sys.executable} -m graphopt {command}"]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in codes and done.stderr == said, (line, done)


@pytest.mark.once
def test_one_node_became() -> None:
    assert became(1, "X") == "1 node became X"
    assert became(2, "X") == "2 nodes became X"


@pytest.mark.once
def test_options_name_the_right_form(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ZOO["resnet18"](small=True), path)
    for options, words in (
        (("--dim", "batch"), "NAME=8"),
        (("--dim", "batch=0"), "NAME=8"),
        (("--only", "winograd"), "the passes are contrib, "),
        (("--input-shape", "x=1x3"), "NAME:1x3x224x224"),
    ):
        result = graphopt_command("optimize", path, "--dry-run", *options)
        assert result.exit_code == OptionError.exit_code and words in result.stderr, result.stderr
        assert len(result.stderr.splitlines()) == 1
    for command, option, text, form in (
        ("verify", "--rtol", "y:z", "OUTPUT:NUMBER"),
        ("verify", "--atol", "none", "OUTPUT:NUMBER"),
        ("verify", "--range", "x:3:1", "NAME:LO:HI"),
        ("verify", "--range", "x:0:inf", "NAME:LO:HI"),
        ("verify", "--range", "x:nan:1", "NAME:LO:HI"),
        ("verify", "--batch", "1,b", "1,8,64"),
        ("bench", "--threads", "one", "1,8,64"),
        ("bench", "--dim", "batch=1,", "NAME=64,128"),
        ("explain", "--dim", "batch=1,2", "batch=1"),
    ):
        result = graphopt_command(command, path, option, text)
        assert result.exit_code == OptionError.exit_code and option in result.stderr and form in result.stderr
    for option, text, words in (("--threads", "many", "an integer"), ("--tune-seconds", "long", "a number")):
        result = graphopt_command("optimize", path, "--dry-run", option, text)
        wanted = f"graphopt: Invalid value for '{option}': '{text}' is not {words} (see graphopt optimize --help)\n"
        assert (result.exit_code, result.stderr) == (2, wanted)


def test_a_path_without_out_gives_a_model(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ZOO["resnet18"](small=True), path)
    model, report = graphopt.optimize(path, target="cpu", ignore_cost_model=True)
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
def test_weights_on_disk_are_not_copied_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    model = ZOO["resnet18"](small=True)
    onnx.save(model, path, save_as_external_data=True, location="in.data", size_threshold=0)
    optimized, _ = graphopt.optimize(path, target="cpu", only=["clean_up"])
    assert any(isinstance(v.const_value, ir.ExternalTensor) for v in optimized.graph.initializers.values())
    assert graphopt.session(optimized, ["CPUExecutionProvider"]).get_outputs()


def test_a_string_instead_of_a_list() -> None:
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
    graph.nodes[1].name = graph.nodes[0].name  # graphsurgeon warns about equal names
    capfd.readouterr()
    optimized, _ = graphopt.optimize(graph, target="cpu", ignore_cost_model=True)
    assert optimized.metadata_props["graphopt.numerics"] == "approximate"
    again, _ = graphopt.optimize(optimized, target="cpu", ignore_cost_model=True)
    assert again.metadata_props == optimized.metadata_props
    assert capfd.readouterr() == ("", "")


# The oldest and the newest supported version, where stubs and syntax differ most; scripts/sweep types adds the others.
PYTHONS = os.environ.get("GRAPHOPT_TEST_PYTHONS", "3.10 3.14").split()


def examples() -> dict[str, str]:
    """Returns the Python blocks of the documentation as separate files."""
    docs = Path(graphopt.__file__).parents[1] / "docs"
    found = {}
    for page in ("../README.md", *(f"{name}.md" for name in ("usage", "guide", "measuring", "recipes", "provider"))):
        for i, block in enumerate(re.findall(r"^```python\n(.*?)^```", (docs / page).read_text(), re.M | re.S)):
            if "import torch" not in block and "import" in block:
                found[f"{Path(page).stem.lower()}_{i}.py"] = block
    return found


@pytest.mark.once
def test_the_documented_calls_are_typed(tmp_path: Path) -> None:
    """A user's project, and the examples of the documentation, pass mypy --strict."""
    pytest.importorskip("mypy", reason="the environment of the newest runtime has no development tools")
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
                graphopt.optimize(source, profit=tuning.profit, target="cpu", precision="bf16")
                try:
                    graphopt.optimize(source, target="rocm:gfx942")
                except (graphopt.ModelLoadError, graphopt.OptionError) as error:
                    print(error.exit_code)
                return timed.rows[0].before.median_ms
            """
        )
    )
    shown = examples()
    assert len(shown) > 10
    for name, text in shown.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    environment = {**os.environ, "MYPYPATH": str(Path(graphopt.__file__).parents[1])}
    checks = {
        version: subprocess.Popen(
            [*command, "--python-version", version, "user.py", *shown],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for version in PYTHONS
    }
    for version, check in checks.items():
        said, _ = check.communicate()
        assert check.returncode == 0, f"{version}: {said}"


@pytest.mark.once
def test_progress_names_the_step_and_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 2.0, 8.0, 40.0])
    monkeypatch.setattr(progress, "perf_counter", lambda: next(clock))
    said: list[str] = []
    steps = Steps(said.append, [("a", 1), ("b", 2), ("c", 1), ("d", 1)])
    steps.begin()
    steps.begin("on 3 inputs")
    steps.begin()
    steps.begin()
    assert said == [
        "a (1 of 4)",
        "b on 3 inputs (2 of 4, about 8 s left)",
        "c (3 of 4, about 5 s left)",
        "d (4 of 4, about 10 s left)",
    ]


@pytest.mark.once
def test_long_operations_report_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ZOO["resnet18"](small=True, dynamic=True)
    path = tmp_path / "in.onnx"
    onnx.save(before, path)
    said: list[str] = []
    monkeypatch.setattr(reading, "BLOCK", 1 << 12)
    after, _ = graphopt.optimize(path, target="cpu", progress=said.append)
    first, *read, shapes, rewriting = said
    assert (first, shapes, rewriting) == ("loading (1 of 3)", "inferring shapes (2 of 3)", "rewriting (3 of 3)")
    assert len(read) > 2
    assert all(re.fullmatch(r"reading in\.onnx: \d+ of \d+ MiB, about \d+ s left", line) for line in read)
    said.clear()
    graphopt.verify(before, after, effort="quick", progress=said.append)
    assert [line.split(" (")[1][:6] for line in said] == [f"{i} of {len(said)}" for i in range(1, len(said) + 1)]
    said.clear()
    graphopt.bench(before, after, providers=["cpu"], threads=(1,), seconds=0.01, memory=False, progress=said.append)
    assert all(line.endswith(" s left)") for line in said) and len(said) == 2


if __name__ == "__main__":  # writes the examples to a folder, for pyright
    place = Path(tempfile.mkdtemp())
    for file, text in examples().items():
        (place / file).write_text(text)
    print(place)
