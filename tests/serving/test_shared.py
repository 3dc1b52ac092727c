"""Weights in memory that all workers of a machine share (graphopt/serving/shared.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from graphopt.serving import shared
from graphopt.serving.served import Served
from graphopt.serving.shared import shared_form, weights_folder
from graphopt.serving.write import write
from tests.hip.harness import ROOT
from tests.serving.zoo import feeds_of, run, save


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("resnet18", tmp_path_factory.mktemp("model") / "resnet.onnx")


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    folder.chmod(0o700)
    form = shared_form(model, folder)
    assert form is not None
    return form


def test_the_form_computes_the_same(model: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared form gives bit-identical results, the next worker reuses it, and mapping it needs little memory."""
    monkeypatch.setenv(shared.FOLDER, str(made.parent.parent))
    before = {p: p.stat().st_ino for p in made.parent.iterdir()}
    assert shared_form(model, made.parent.parent) == made
    assert {p: p.stat().st_ino for p in made.parent.iterdir()} == before
    write(model, tmp_path, "litserve", name="model")
    served = Served(tmp_path / "model" / "1")
    feeds = feeds_of("resnet18", 2, 0)
    for name, array in run(model, feeds).items():
        assert np.array_equal(served.run(feeds)[name], array)
    assert f"{made}.data" in Path("/proc/self/maps").read_text()


def test_a_damaged_form_is_not_used(model: Path, made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / made.parent.name
    place.mkdir(parents=True)
    for path in made.parent.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    assert shared_form(model, tmp_path) == place / "model.onnx"
    data = bytearray((place / "model.onnx.data").read_bytes())
    data[len(data) // 2] ^= 1
    (place / "model.onnx.data").write_bytes(data)
    assert shared_form(model, tmp_path) is None
    assert f"{place / 'model.onnx.data'} is damaged; remove {place}" in capfd.readouterr().err
    (place / "hashes.json").write_text("[]")
    assert shared_form(model, tmp_path) is None
    assert f"{place / 'hashes.json'} is damaged; remove {place}" in capfd.readouterr().err


def test_a_folder_that_others_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(shared.FOLDER, str(tmp_path / "weights"))
    assert weights_folder() == tmp_path / "weights"
    assert (tmp_path / "weights").stat().st_mode & 0o777 == 0o700
    (tmp_path / "weights").chmod(0o777)
    assert weights_folder() is None
    assert f"other users may write to {tmp_path / 'weights'}" in capfd.readouterr().err
    monkeypatch.setenv(shared.FOLDER, "off")
    assert weights_folder() is None
    assert not capfd.readouterr().err


def test_a_shared_form_with_other_outputs_is_not_used(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The form is compared before other workers can see it, and the next worker does not build it again."""
    calls = []

    class Wrong:
        def run(self, _: object, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            calls.append(feeds)
            return [array + 1e-6 for array in run(model, feeds).values()]

    monkeypatch.setattr(shared, "load_shared_form", lambda _: Wrong())
    shared.write_shared_form(model, tmp_path)
    assert calls and [p.name for p in tmp_path.iterdir()] == ["why-not"]
    assert "has different outputs" in (tmp_path / "why-not").read_text()
    monkeypatch.setattr(shared, "_key", lambda _: tmp_path.name)
    assert shared_form(model, tmp_path.parent) is None
    assert "has different outputs" in capfd.readouterr().err


def test_writers_that_are_killed_and_writers_at_once(model: Path, tmp_path: Path) -> None:
    """Of three workers that start at once one writes, also if another was killed while it wrote."""
    code = f"from pathlib import Path; from graphopt.serving.shared import shared_form; \
print(shared_form(Path({str(model)!r}), Path({str(tmp_path)!r})))"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    victim = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while not [*tmp_path.glob("unfinished-*")] and victim.poll() is None:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    workers = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = {worker.communicate()[0].strip() for worker in workers}
    (form,) = told
    assert Path(form).is_file() and re.fullmatch(r"[0-9a-f]{32}", Path(form).parent.name)
    hashes = json.loads((Path(form).parent / "hashes.json").read_text())
    assert {*hashes} == {"model.onnx", "model.onnx.data"}


def test_the_size_of_the_folder_is_limited(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def place(name: str, used: float) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "hashes.json").write_text("{}")
        (folder / "model.onnx.data").write_bytes(bytes(1 << 20))
        os.utime(folder, (used, used))
        return folder

    old, young = place("old", 1000), place("young", 2000)
    killed = tmp_path / "unfinished-x"
    killed.mkdir()
    os.utime(killed, (1000, 1000))
    monkeypatch.setenv(shared.LIMIT, "2")
    shared._make_room(tmp_path, 1 << 18)
    assert not old.exists() and young.exists() and not killed.exists()
    monkeypatch.setenv(shared.LIMIT, "0")
    assert shared_form(model, tmp_path) is None
    assert f"{shared.LIMIT}=0" in capfd.readouterr().err
