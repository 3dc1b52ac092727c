"""The answer is the first line; at 80 columns nothing is folded, and output to a file is not truncated."""

from __future__ import annotations

import fcntl
import io
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

import graphopt
from graphopt.cli import screen
from graphopt.errors import ModelLoadError
from graphopt.measure.bench import BenchReport, BenchRow, Setting, Timing
from graphopt.remarks import Remark
from graphopt.report.answer import answer, equality
from graphopt.report.data import ModelStats, Report
from graphopt.report.layers import grouped, where
from graphopt.report.layout import show, table
from graphopt.report.tables import print_findings
from graphopt.report.text import milliseconds, small
from graphopt.runtime.doctor import Findings
from graphopt.runtime.routes import Gpu, Library, Reason, Route
from graphopt.verification.report import NOISE
from graphopt.verification.verify import OutputComparison, Verdict, VerifyReport
from models import ZOO
from tests.rewriting import model_from_text

pytestmark = pytest.mark.once

DOUBT = "maybe slower (--ignore-cost-model also applies slower rewrites)"
TIMING = Timing(9, 10.0, 11.0, 0.01, 100.0)


def timed(*ratios: tuple[float, float, float, str]) -> BenchReport:
    setting = Setting("CPUExecutionProvider", 1, {}, "host")
    return BenchReport(rows=[BenchRow(setting, TIMING, TIMING, s, low, high, v) for s, low, high, v in ratios])


def compared(verdict: Verdict, rel_rms: float) -> VerifyReport:
    row = OutputComparison("y", "normal", True, "CPU", False, rel_rms, rel_rms, 120.0, 1.0, 1e-5, True, "")
    return VerifyReport(verdict, rows=[row])


def test_an_output_of_rounding_alone_is_not_the_worst() -> None:
    """A detector's map of values about 1e-9 may differ by its whole magnitude, and is still far within its limit."""
    row = compared(Verdict.EQUAL, 1.2e-6).rows[0]
    near = replace(row, slice_error=1.2e-6, slice_limit=1e-5)
    noise = replace(row, rel_rms=33.6, limit=602.0, slice_error=33.6, slice_limit=602.0)
    assert equality(VerifyReport(Verdict.EQUAL, rows=[noise, near])) == "equal (worst 1.2e-6)"
    assert equality(VerifyReport(Verdict.EQUAL, rows=[noise])) == ("equal (worst 6% of its limit)")
    assert equality(compared(Verdict.EQUAL, 0.0)) == "equal (same bits)"


def test_the_first_line_has_no_infinite_error_and_no_meaningless_one() -> None:
    row = replace(compared(Verdict.EQUAL, 3.4).rows[0], slice_error=0.02, slice_limit=0.1)
    assert equality(VerifyReport(Verdict.EQUAL, rows=[row])) == "equal (worst 20% of its limit)"
    other = replace(row, equal=False, rel_rms=math.inf, slice_error=math.inf, reason="shape (2, 3) became (2, 4)")
    assert equality(VerifyReport(Verdict.DIFFERENT, rows=[row, other])) == "different (shape (2, 3) became (2, 4))"
    noise = replace(row, reason=NOISE)
    assert equality(VerifyReport(Verdict.EQUAL, rows=[noise])) == "equal (inconclusive: rounding decides)"


def test_the_first_line_reports_refused_inputs() -> None:
    row = compared(Verdict.EQUAL, 1.2e-6).rows[0]
    report = VerifyReport(Verdict.EQUAL, rows=[row], skipped={"batch 1": "too small", "batch 2": "too small"})
    assert equality(report) == "equal (worst 1.2e-6; BEFORE refuses 2 of 3 input sets)"
    assert "refuses" not in equality(VerifyReport(Verdict.EQUAL, rows=[row], skipped={"batch 1": "too small"}))


def test_answer() -> None:
    report = Report("cpu", before=ModelStats({"Conv": 464}, 0, None), after=ModelStats({"Conv": 247}, 0, None))
    report.remarks = [Remark("fold_batch_norm", "APPLIED", ("Conv_1",), "")]
    faster = timed((1.29, 1.27, 1.31, "faster"))
    equal = compared(Verdict.EQUAL, 1.2e-6)
    said = answer(report, equal, faster, "resnet50.opt.onnx")
    assert said == "1.29x faster (1.27-1.31), equal (worst 1.2e-6), 464 -> 247 nodes, resnet50.opt.onnx"
    assert len(said) <= 80 + len("resnet50.opt.onnx")
    slower = answer(report, compared(Verdict.DIFFERENT, 0.02), timed((0.8, 0.5, 0.9, "slower")))
    assert slower == "1.25x slower (1.11-2.00), different (worst 0.02), 464 -> 247 nodes"
    assert answer(report, times=timed((1.01, 0.99, 1.03, "within noise"))).startswith("as fast within noise (0.99x-")
    several = timed((1.2, 1.1, 1.3, "faster"), (1.01, 0.99, 1.02, "within noise"))
    assert answer(report, times=several).startswith("as fast to 1.20x faster: 1 of 2 settings faster")
    one = Report("cpu", before=ModelStats({"Relu": 2}, 0, None), after=ModelStats({"Relu": 1}, 0, None))
    assert answer(one) == "2 -> 1 node"
    assert answer(Report("cpu", before=one.after, after=one.after)) == "unchanged: no pass finds anything to rewrite"


def test_repeated_layers_are_shown_once() -> None:
    names = [f"/encoder/layer.{i}/attention/MatMul_{j}" for i in range(12) for j in (1, 2)]
    assert where(names[::2]) == "/encoder/layer.{0-11}/attention/MatMul_1"
    assert where(names) == "/encoder/layer.{0-11}/attention/MatMul_{1-2}"
    assert where(["node_7", "node_9"]) == "node_{7,9}"
    assert where(["a1b2", "a3b4"]) == "a1b2 ... a3b4"  # a{1,3}b{2,4} would stand for four names
    kinds = grouped(names, kind=lambda n: n[-1], name=lambda n: n)
    assert [(g.kind, len(g.members)) for g in kinds] == [("1", 12), ("2", 12)]


def on_a_terminal(folder: Path, *arguments: object) -> str:
    """Returns the output of a command in a folder, on a terminal of 80 columns."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path(graphopt.__file__).parents[1])}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "graphopt", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=secondary, stdout=secondary, stderr=subprocess.DEVNULL, cwd=folder, env=environment
    )
    with process:
        os.close(secondary)
        text = b""
        try:
            while chunk := os.read(primary, 4096):
                text += chunk
        except OSError:  # the terminal's other end is closed
            pass
    os.close(primary)
    return text.decode()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Writes a model with names longer than a line; returns its path and the path for its rewrite."""
    model = ZOO["resnet18"](small=True)
    for node in model.graph.node:
        node.name = f"{node.name}_{'long' * 40}"
    onnx.save(model, tmp_path / "in.onnx")
    return tmp_path / "in.onnx", tmp_path / "out.onnx"


def test_no_line_is_wrapped_on_a_terminal(files: tuple[Path, Path]) -> None:
    path, out = files
    shown = on_a_terminal(path.parent, "optimize", path, out.name, "--target", "cpu", "-v")
    assert out.exists()
    first, *rest = shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert first == "30 -> 21 nodes"
    assert rest and all(len(line.split("\x1b")[0]) <= 80 for line in rest)
    tables = [line for line in rest if line.startswith(("BatchNormalization  ", "weights  ", "nodes  "))]
    assert len(tables) == 3


def test_nothing_is_cut_in_a_pipe(files: tuple[Path, Path], graphopt_command: Callable[..., Any]) -> None:
    path, out = files
    assert graphopt_command("optimize", path, out, "--target", "cpu", "--ignore-cost-model", "-q").stdout == ""
    shown = graphopt_command("diff", path, out).stdout
    assert shown.startswith("30 -> 12 nodes, 8 places rewritten\n")
    assert "long" * 40 in shown and "…" not in shown


class Terminal(io.StringIO):
    """Stdout that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


LONG = (
    "bisect a.onnx --target cpu --ignore-cost-model",
    "doctor",
    "optimize-all models OUT",
    "optimize a.onnx OUT --target cpu --tune --tune-seconds 1 --verify --bench",
)
COMMANDS = "optimize verify bench explain view diff bisect lower optimize-all serve-config passes doctor docs".split()
NET = """g (float[N, 4, 9, 9] x) => (float[N, 4, 9, 9] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    n = BatchNormalization (c, s, b, m, v)
    y = Relu (n)
}"""


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has names longer than a line, its rewrite, and a folder of models."""
    folder = tmp_path_factory.mktemp("long_names")
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(4, 4, 3, 3)), **{n: rng.uniform(0.5, 1.5, 4) for n in "sbmv"}}
    model = model_from_text(NET, {n: a.astype(np.float32) for n, a in weights.items()})
    for node in model.graph.node:
        node.name = f"/a/{node.op_type}/{'long' * 30}"
    onnx.save(model, folder / "a.onnx")
    graphopt.optimize(folder / "a.onnx", folder / "b.onnx", target="cpu", ignore_cost_model=True)
    (folder / "models").mkdir()
    onnx.save(model, folder / "models" / "m.onnx")
    return folder


def assert_fits(piped: str, shown: str) -> None:
    """Asserts that at 80 columns no line is longer, no row folds, no word is broken; and that a pipe gets all text."""
    assert piped and "…" not in piped and not re.search(r"\w\.\.\.$", piped, re.MULTILINE)
    lines = [line for line in shown.splitlines() if line.strip()]
    assert not [line for line in lines if len(line) > 80]
    # Times and their derived text differ from run to run; an abbreviated word contains an ellipsis.
    words = {*piped.split(), *"faster slower as fast within noise written to".split()}
    assert not [w for w in shown.split() if re.search("[A-Za-z]{2}", w) and "…" not in w and w not in words]
    # Continuation lines are indented: any other line must begin as it does in the pipe.
    starts = {line.split()[0] for line in piped.splitlines() if line.strip() and line[0] != " "} | {"as", "written"}
    rows = [line.split()[0] for line in lines if line[0] != " " and "…" not in line.split()[0]]
    assert not [w for w in rows if w not in starts and not re.fullmatch(r"[\d.x]+", w)]


@pytest.mark.parametrize(
    "command",
    [
        "optimize a.onnx OUT --target cpu --ignore-cost-model --explain",
        "explain a.onnx --target cpu",
        "explain a.onnx --provider migraphx",
        "verify a.onnx b.onnx --effort quick",
        "diff a.onnx b.onnx",
        "bench a.onnx b.onnx --threads 1 --seconds 0 --no-memory",
        "lower b.onnx OUT",
        "passes",
        "serve-config b.onnx OUT --for kserve",
        "--help",
        *(f"{name} --help" for name in COMMANDS),
        *(LONG if os.environ.get("GRAPHOPT_TEST_EVERY_COMMAND") else ()),  # scripts/sweep commands
    ],
)
def test_80_columns(
    command: str, long_names: Path, graphopt_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(long_names)
    piped = graphopt_command(*command.replace("OUT", f"{command.split()[0]}_1.onnx").split()).stdout
    window = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", window)
    graphopt_command(*command.replace("OUT", f"{command.split()[0]}_2.onnx").split())
    assert_fits(piped, window.getvalue().replace("_2.onnx", "_1.onnx"))


def test_doctor_fits() -> None:
    """Doctor with a GPU, its libraries, and a path longer than a line."""
    path = f"/opt/{'long/' * 30}lib.so"
    remedy = Reason("no_access", "this process may not open /dev/kfd, which the driver gives to a group", "usermod -a")
    device = Gpu(
        number=0,
        name="Instinct MI210",
        arch="gfx90a",
        code="gfx90a",
        bus_id="0000:c1:00.0",
        memory=64 << 30,
        integrated=False,
        compute_units=104,
        bytes_per_second=1.6e12,
        float32_flops=4.5e13,
        float16_flops=1.8e14,
        driver="HIP 7.0",
        wave=64,
        libraries=(Library("rocBLAS", path, "5.0.0", remedy),),
        reason=remedy,
    )
    route = Route("graphopt", "AMD GPUs through our provider", "GraphoptExecutionProvider", path, devices=(device,))
    found = Findings(
        rows=[("providers", "AProvider, " * 12), ("native library", path)],
        problems=[f"the native library cannot be used: {path}"],
        routes=[route],
    )
    piped, shown = io.StringIO(), io.StringIO()
    print_findings(found, Console(file=piped, width=screen.UNLIMITED))
    print_findings(found, Console(file=shown, width=80))
    assert_fits(piped.getvalue(), shown.getvalue())
    assert path in piped.getvalue() and "/lib.so" in shown.getvalue()


def test_commands_are_listed_in_the_order_of_use(graphopt_command: Callable[..., Any]) -> None:
    shown = graphopt_command("--help").stdout.split("Commands:\n")[1]
    assert [line.split()[0] for line in shown.splitlines()] == COMMANDS


def test_passes_without_work_are_one_line(files: tuple[Path, Path], graphopt_command: Callable[..., Any]) -> None:
    shown = graphopt_command("optimize", *files, "--target", "cpu", "-v").stdout
    (idle,) = [line for line in shown.splitlines() if line.startswith("no candidates of ")]
    assert "fuse_attention" in idle and "fold_batch_norm" not in idle
    assert "rewrites: " in shown and "fold_batch_norm 8" in shown


def test_usage_is_one_line(graphopt_command: Callable[..., Any]) -> None:
    for arguments, words in (
        (("optimize", "--nonsense"), "No such option"),
        (("optimize",), "Missing argument 'IN'"),
        (("nonsense",), "No such command"),
        (("optimize", "a", "--threads", "many"), "'many' is not an integer"),
    ):
        result = graphopt_command(*arguments)
        assert result.exit_code == 2 and words in result.stderr
        assert len(result.stderr.splitlines()) == 1 and result.stderr.endswith("--help)\n")
    help_text = graphopt_command("optimize", "--help").stdout
    assert all(len(line) <= 80 for line in help_text.splitlines())


@pytest.mark.parametrize(("given", "remedy"), [(("--dim", "N=8"), "--input-shape"), (("--threads", "2"), "--tune")])
def test_options_without_effect_are_refused(
    given: tuple[str, str], remedy: str, files: tuple[Path, Path], graphopt_command: Callable[..., Any]
) -> None:
    """Without --tune or --bench, --dim would have no effect, so it is refused."""
    result = graphopt_command("optimize", *files, *given)
    assert result.exit_code == 5 and f"{given[0]} needs --tune, --bench or --report" in result.stderr
    assert remedy in result.stderr and not files[1].exists()


def test_stdin_and_stdout(files: tuple[Path, Path]) -> None:
    """Reads a model from a pipe and writes one to stdout; printed text goes to stderr."""
    path, out = files
    command = [sys.executable, "-m", "graphopt", "optimize", "-", "-", "--target", "cpu", "--ignore-cost-model"]
    done = subprocess.run(command, input=path.read_bytes(), capture_output=True, check=True)
    assert b"winograd_conv 5" in done.stderr and b"written to stdout" in done.stderr
    graphopt.optimize(path, out, target="cpu", ignore_cost_model=True)
    assert done.stdout == out.read_bytes()
    bad = subprocess.run(command, input=b"no model", capture_output=True, check=False)
    assert bad.returncode == 3 and bad.stdout == b""
    assert bad.stderr == b"graphopt: stdin: not an ONNX model (truncated, or another format)\n"


def test_a_model_out_of_a_pipe(tmp_path: Path) -> None:
    """A pipe can only be read once: a second read of a named pipe blocks, and of <(...) finds nothing."""
    pipe, path, out = (tmp_path / name for name in ("pipe", "in.onnx", "out.onnx"))
    os.mkfifo(pipe)
    onnx.save(model_from_text("g (float[N] x) => (float[N] y) { y = Relu(x) }"), path)
    command = [sys.executable, "-m", "graphopt", "optimize", str(pipe), str(out), "--target", "cpu", "-q"]
    no_model = b"graphopt: %s: not an ONNX model (truncated, or another format)\n" % bytes(pipe)
    for model, code, words in ((path.read_bytes(), 0, b""), (b"no model", 3, no_model)):
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            pipe.write_bytes(model)
            _, err = process.communicate()
        assert (process.returncode, err) == (code, words)
    assert out.read_bytes() == path.read_bytes()
    with pytest.raises(ModelLoadError, match="is a pipe"):
        graphopt.optimize(pipe, out)


def test_github_annotations_and_summary(
    files: tuple[Path, Path], graphopt_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    shown = graphopt_command("optimize", *files, "--target", "cpu", "--ignore-cost-model", "-q", "--github").stdout
    assert shown == f"::notice file={files[0]},title=graphopt::30 -> 12 nodes, {DOUBT}, {files[1]}\n"
    text = summary.read_text()
    assert text.startswith("### in.onnx\n") and "| BatchNormalization | 8 | - |" in text


def test_formats_of_numbers() -> None:
    assert [milliseconds(n) for n in (0.3, 17.46, 999.4, 1212.4)] == ["0.300", "17.5", "999", "1,212"]
    assert [small(n) for n in (0.0, 1.2e-6, 3e-12, 0.022, 34.0)] == ["0", "1.2e-6", "3e-12", "0.022", "34"]


def test_numbers_are_never_cut() -> None:
    text = io.StringIO()
    console = Console(width=80, file=text)
    wide = table(("output", ">error / RMS", ">allowed", "worst slice", ""))
    wide.add_row("y" * 60, "6.43e-06", "1.97e-05", "[:, :, 82] 9.9e-07 of 1.1e-06", "[green]equal[/]")
    show(wide, console)
    lines = text.getvalue().splitlines()
    assert len(lines) == 2 and all(len(line) <= 80 for line in lines)
    assert all(word in lines[1] for word in ("6.43e-06", "1.97e-05", "equal", "…"))
