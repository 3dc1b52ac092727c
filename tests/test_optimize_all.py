"""`graphopt optimize-all`: many models, some of them bad, interrupted and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from graphopt.optimize_all import MANIFEST, optimize_all
from models import ZOO
from tests.conftest import CommandResult

pytestmark = pytest.mark.once


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three models, one of them with external weights, and one file that is not a model."""
    models = tmp_path / "models"
    (models / "deep" / "er").mkdir(parents=True)
    onnx.save(ZOO["resnet18"](small=True), models / "a.onnx")
    onnx.save(
        ZOO["mobilenet_v2"](small=True),
        models / "deep" / "b b.onnx",
        save_as_external_data=True,
        location="b.data",
        size_threshold=0,
    )
    onnx.save(ZOO["vgg16_bn"](small=True), models / "deep" / "er" / "c.onnx")
    (models / "damaged.onnx").write_bytes((models / "a.onnx").read_bytes()[:5000])
    return models


def lines(out: Path) -> list[str]:
    return [json.loads(line)["name"] for line in (out / MANIFEST).read_text().splitlines()]


def test_failures_are_listed_separately(
    folder: Path, tmp_path: Path, graphopt_command: Callable[..., CommandResult]
) -> None:
    out = tmp_path / "out"
    done = graphopt_command("optimize-all", folder, out, "--jobs", 2, "--target", "cpu", "--ignore-cost-model")
    assert done.exit_code == 1
    assert "4 models: 3 optimized, 0 unchanged, 1 failed" in done.stdout
    found = json.loads((out / "summary.json").read_text())
    assert [(f["name"], f["exit_code"]) for f in found["failures"]] == [("damaged.onnx", 3)]
    assert "not an ONNX model" in found["failures"][0]["message"]
    assert sorted(d["name"] for d in found["done"]) == ["a.onnx", "deep/b b.onnx", "deep/er/c.onnx"]
    for row in found["done"]:
        model = onnx.load(out / row["name"])
        assert len(model.graph.node) == row["nodes"][1] < row["nodes"][0]
        assert json.loads((out / "reports" / f"{row['name']}.json").read_text())["before"]
    assert sorted(p.name for p in (out / "deep").iterdir()) == ["b b.onnx", "b b.onnx.data", "er"]
    assert not (out / "damaged.onnx").exists()
    page = (out / "summary.html").read_text()
    assert "damaged.onnx" in page
    assert "deep/b%20b.onnx.json" in page

    # Nothing is done twice, but changed inputs and outputs are processed again.
    assert len(optimize_all(folder, out, options=("--target", "cpu", "--ignore-cost-model"))) == 4
    assert len(lines(out)) == 4
    (folder / "deep" / "b.data").write_bytes(bytes((folder / "deep" / "b.data").stat().st_size))
    (out / "a.onnx").unlink()
    (out / "deep" / "b b.onnx.data").unlink()
    optimize_all(folder, out, options=("--target", "cpu", "--ignore-cost-model"))
    assert sorted(lines(out)[4:]) == ["a.onnx", "deep/b b.onnx"]


def test_links_that_lead_to_the_models(tmp_path: Path, graphopt_command: Callable[..., CommandResult]) -> None:
    """A model that could not be optimized, because it would have overwritten itself, was deleted like a result."""
    models, link, out = tmp_path / "models", tmp_path / "link", tmp_path / "out"
    (models / "deep").mkdir(parents=True)
    out.mkdir()
    for place in (models / "a.onnx", models / "deep" / "b.onnx", tmp_path / "c.onnx"):
        onnx.save(ZOO["vgg16_bn"](small=True), place)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.onnx")}
    link.symlink_to(models)
    for folder, place in ((models, link), (link, models), (models, tmp_path), (models / "deep", models)):
        done = graphopt_command("optimize-all", folder, place)
        assert done.exit_code == 4
        assert "is or contains the input folder" in done.stderr
    (out / "deep").symlink_to(models / "deep")
    (out / "a.onnx").write_bytes(b"another's")
    (models / "a.onnx").write_bytes(b"none")
    done = graphopt_command("optimize-all", models, out, "--target", "cpu")
    assert done.exit_code == 1
    assert "2 models: 0 optimized, 0 unchanged, 2 failed" in done.stdout
    assert (out / "a.onnx").read_bytes() == b"another's"
    assert {p: p.read_bytes() for p in before} == before | {models / "a.onnx": b"none"}


def test_killed_and_run_again(folder: Path, tmp_path: Path) -> None:
    """Results before the kill are kept, even after a truncated last line; no incomplete files remain."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "graphopt", "optimize-all", str(folder), str(out), "--target", "cpu"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while running.poll() is None and not ((out / MANIFEST).exists() and "\n" in (out / MANIFEST).read_text()):
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):  # it may have ended in the meantime
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    before = lines(out)
    assert before
    with (out / MANIFEST).open("a") as manifest:
        manifest.write('{"name": "deep/er/c.onnx", "dig')
    outcomes = optimize_all(folder, out, options=("--target", "cpu"))
    assert {o.name: o.succeeded for o in outcomes} == {
        "a.onnx": True,
        "damaged.onnx": False,
        "deep/b b.onnx": True,
        "deep/er/c.onnx": True,
    }
    written = [json.loads(line)["name"] for line in (out / MANIFEST).read_text().splitlines() if line.endswith("}")]
    assert sorted(written) == sorted(o.name for o in outcomes)
    for outcome in outcomes:
        if outcome.succeeded:
            onnx.checker.check_model(str(out / outcome.name), full_check=False)


def test_a_model_that_exceeds_the_timeout(folder: Path, tmp_path: Path) -> None:
    outcomes = optimize_all(folder, tmp_path / "out", timeout=0.001)
    assert {o.exit_code for o in outcomes} == {124}
    assert not [*(tmp_path / "out").rglob("*.onnx")]


def test_a_job_that_did_not_start_is_repeated(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure for lack of memory or processes says nothing about the model."""
    (folder / "damaged.onnx").unlink()
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/none/python")
        assert {o.exit_code for o in optimize_all(folder, out)} == {125}
    for path in sorted(folder.rglob("*.onnx"))[1:]:
        path.unlink()
    assert [o.succeeded for o in optimize_all(folder, out)] == [True]


def test_one_run_at_a_time(folder: Path, tmp_path: Path, graphopt_command: Callable[..., CommandResult]) -> None:
    import fcntl

    out = tmp_path / "out"
    out.mkdir()
    with (out / MANIFEST).open("a") as manifest:
        fcntl.flock(manifest, fcntl.LOCK_EX)
        done = graphopt_command("optimize-all", folder, out)
    assert done.exit_code == 4
    assert "another" in done.stderr
    assert graphopt_command("optimize-all", tmp_path / "nowhere", out).exit_code == 3
    assert graphopt_command("optimize-all", folder, out, "--on", "mars").exit_code == 5
