"""`optimize` prints the state of the result first and at most five lines after it, and exits with a documented code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer

import graphopt
from graphopt.cli import optimize as command
from graphopt.errors import EXIT_NOT_COVERED, EXIT_SLOWER, VerifyError
from graphopt.measure.bench import BenchReport, BenchRow, Setting, Timing
from graphopt.report import answer
from graphopt.report.data import ModelStats, Report
from graphopt.verification.verify import Verdict, VerifyReport
from models import ZOO
from tests.rewriting import model_from_text

pytestmark = pytest.mark.once
ROOT = Path(graphopt.__file__).parents[1]
Command = Callable[..., Any]
UNCHANGED = "g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"


@pytest.fixture
def run(graphopt_command: Command, tmp_path: Path) -> Command:
    """Optimizes a model for the CPU; returns exit code, stdout and stderr, with paths reduced to names."""

    def optimize(model: onnx.ModelProto, *options: str) -> tuple[int, list[str], str]:
        onnx.save(model, tmp_path / "in.onnx")
        done = graphopt_command("optimize", tmp_path / "in.onnx", tmp_path / "out.onnx", "--target", "cpu", *options)
        return done.exit_code, done.stdout.replace(f"{tmp_path}/", "").splitlines(), done.stderr

    return optimize


def unchanged() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    return model_from_text(UNCHANGED, {"w": rng.normal(size=(4, 4, 3, 3)).astype(np.float32)})


def test_unchanged(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal files are not timed."""
    monkeypatch.delattr("graphopt.measure.bench.bench")
    code, lines, _ = run(unchanged(), "--bench")
    assert (code, lines[0]) == (0, "unchanged: no rewrite is faster here (2 candidates are slower)")
    assert lines[1:] == ["written to out.onnx", "optimized for cpu"]


def test_unchanged_and_verified(run: Command) -> None:
    code, lines, _ = run(unchanged(), "--verify")
    assert code == 0 and lines[0].startswith("unchanged: no rewrite is faster here (2 candidates are slower), equal (")


def test_unchanged_for_reasons_other_than_cost(run: Command) -> None:
    model = model_from_text("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    assert run(model)[1][0] == "unchanged: no pass finds anything to rewrite"
    model.opset_import[0].version = 99
    assert run(model)[1] == [
        "unchanged: opset 99 is newer than any that graphopt knows (26)",
        *("written to out.onnx", "optimized for cpu"),
    ]
    assert run(unchanged(), "--input-shape", "x:1x4x8x8")[1][0].startswith("inputs changed, nodes unchanged: ")


def test_rewritten(run: Command) -> None:
    model = ZOO["resnet18"](small=True)
    code, lines, _ = run(model)
    assert (code, lines[0]) == (0, "30 -> 21 nodes")
    nodes = "nodes: BatchNormalization 8 -> 0, Conv 8 -> 7, FusedConvRelu 0 -> 1, 1 more"
    assert lines[1:3] == ["written to out.onnx, weights 43.4 KiB -> 42.2 KiB", nodes]
    assert re.fullmatch(r"rewrites: fold_batch_norm 8, fused_conv 1, fuse_epilogue 1 \(\d+\.\d\d s in all\)", lines[3])
    assert lines[4] == "optimized for cpu; -v shows 13 refusals" and len(lines) == 5
    code, lines, _ = run(model, "--ignore-cost-model")
    assert lines[0] == "30 -> 12 nodes, maybe slower (--ignore-cost-model also applies slower rewrites)"
    assert len(lines) <= 6 and all(len(line) <= 100 for line in lines)
    assert len(run(model, "-v")[1]) > 10


def test_not_verified(run: Command) -> None:
    """ONNX Runtime refuses the model with any input: OUT is written without a comparison."""
    text = "g (float[N, 4] x) => (float[N, 4] y) { z = Identity(x) t = Add(z, z) y = Neg(t) }"
    model = model_from_text(text)
    model.graph.node[-1].op_type, model.graph.node[-1].domain = "Mystery", "other"
    model.opset_import.add(domain="other", version=1)
    code, lines, told = run(model, "--verify", "--only", "clean_up")
    assert code == VerifyError.exit_code and "Mystery" in told
    assert lines[0].startswith("not verified (") and lines[0].endswith("), 3 -> 2 nodes")
    assert lines[1] == "written to out.onnx"


def test_partly_verified(run: Command) -> None:
    """One branch is not taken with any input."""
    text = """g (float[N, 4] x) => (float[N, 4] y) {
        z = Identity(x)
        n = Constant <value = float {-1.0}> ()
        a = Abs(z) s = ReduceMin <keepdims = 0> (a) c = Less(s, n)
        y = If(c) <then_branch = t () => (float[N, 4] u) { u = Neg(z) },
                   else_branch = e () => (float[N, 4] v) { v = Exp(z) }>
    }"""
    code, lines, _ = run(model_from_text(text), "--verify", "--only", "clean_up")
    assert code == 0 and re.match(r"partly verified: equal \(.*; \d not covered\), \d -> \d nodes", lines[0]), lines
    assert run(model_from_text(text), "--verify", "--only", "clean_up", "--strict")[0] == EXIT_NOT_COVERED


def slower() -> BenchReport:
    timing = Timing(9, 10.0, 11.0, 0.01, 100.0)
    setting = Setting("CPUExecutionProvider", 1, {}, "host")
    return BenchReport(rows=[BenchRow(setting, timing, timing, 0.8, 0.5, 0.9, "slower")])


def test_slower(capsys: pytest.CaptureFixture[str]) -> None:
    """A measurement is shown as one ratio, without an estimate."""
    report = Report("cpu", before=ModelStats({"Conv": 3}, 0, None), after=ModelStats({"Conv": 2}, 0, None))
    report.warning = "maybe slower (--ignore-cost-model also applies slower rewrites)"
    report.remarks = graphopt.optimize(ZOO["resnet18"](small=True), target="cpu")[1].remarks
    found = command._Found(report, VerifyReport(Verdict.EQUAL), slower())
    command._print(found, None, Path("out.onnx"), explain=False, verbose=True)
    said = capsys.readouterr().out
    assert said.startswith("1.25x slower (1.11-2.00), equal, 3 -> 2 nodes\n")
    assert {*re.findall(r"\d\.\d\dx?(?= (?:slower|faster))", said)} == {"1.25x"} and "0.80" not in said
    command._end(found, strict=False)
    with pytest.raises(typer.Exit) as ended:
        command._end(found, strict=True)
    assert ended.value.exit_code == EXIT_SLOWER


def test_notes_fill_the_remaining_lines() -> None:
    report = Report("cpu", notes=[f"note {i}" for i in range(9)])
    assert answer.details(report, written="a.onnx") == [
        *("written to a.onnx", "note 0", "note 1", "note 2"),
        "optimized for cpu; -v shows 6 notes",
    ]


def test_at_most_five_lines_with_everything() -> None:
    """The result has a data file, different weights, times in several settings, refusals and notes."""
    _, report = graphopt.optimize(ZOO["resnet18"](small=True), target="cpu")
    report.notes = ["a", "b"]
    report.files = {"out.onnx": 10, "out.onnx.data": 1 << 20}
    times = slower()
    times.rows *= 2
    lines = answer.details(report, times, "out.onnx")
    assert len(lines) == 5 and lines[-1] == "optimized for cpu; -v shows 13 refusals and 2 notes"
    assert lines[0] == "written to out.onnx, weights 43.4 KiB -> 42.2 KiB, weights in out.onnx.data (1.0 MiB)"


def test_codes_are_documented() -> None:
    text = (ROOT / "docs" / "options.md").read_text()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)}
    failures = {error.exit_code for error in graphopt.GraphoptError.__subclasses__()}
    assert failures | {0, 1, 8, EXIT_NOT_COVERED, 10, EXIT_SLOWER, 130, 141, 143} == codes


@pytest.mark.parametrize(("precision", "ignore_cost_model"), [(None, True), ("bf16", False), ("bf16", True)])
@pytest.mark.parametrize("name", ["mobilenet_v2", "gpt2", "chess", "yolo"])
def test_rewrites_do_not_change_multiply_adds(name: str, precision: Any, ignore_cost_model: bool) -> None:
    """A rewrite saves memory traffic, not multiply-adds; with an unknown size there is no count."""
    before = ZOO[name](small=True)
    _, report = graphopt.optimize(before, target="cpu", precision=precision, ignore_cost_model=ignore_cost_model)
    assert report.before is not None and report.after is not None and report.changed
    if report.before.multiply_adds is not None:
        assert report.after.multiply_adds == report.before.multiply_adds > 0


def test_multiply_adds_of_an_attention() -> None:
    """Two products of 2 heads, 3 queries, 5 keys and 8 channels, before and after the rewrite."""
    text = """g (float[1, 2, 3, 8] q, float[1, 2, 5, 8] k, float[1, 2, 5, 8] v) => (float[1, 2, 3, 8] y) {
        y = Attention (q, k, v)
    }"""
    _, report = graphopt.optimize(model_from_text(text, opset=23), target="cpu", ignore_cost_model=True)
    assert report.changed and report.before is not None and report.after is not None
    assert report.before.multiply_adds == report.after.multiply_adds == 2 * 2 * 3 * 5 * 8


def test_multiply_adds_of_a_transposed_product() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[5, 3] a, float[5, 7] b) => (float[3, 7] y) { y = com.microsoft.FusedMatMul <transA = 1> (a, b) }"""
    _, report = graphopt.optimize(onnx.parser.parse_model(text), target="cpu")
    assert report.before is not None and report.before.multiply_adds in (None, 3 * 5 * 7)
