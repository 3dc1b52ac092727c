"""Output files (graphopt/files.py): users' files are not overwritten, replaced by other file types, or left over."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import files
from graphopt.cli.root import app
from graphopt.errors import ModelSaveError
from graphopt.lower import lower
from tests.rewriting import model_from_text

pytestmark = pytest.mark.once


def command(*arguments: object) -> None:
    """Runs the command line in this process; our exceptions are not converted."""
    app([str(a) for a in arguments], standalone_mode=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Writes a model with a possible rewrite and external weights."""
    model = model_from_text(
        "g (float[N, 64] x) => (float[N, 64] y) { t = MatMul (x, w)  u = Add (t, b)  v = Identity (u)  y = Relu (v) }",
        {"w": np.ones((64, 64), np.float32), "b": np.ones(64, np.float32)},
    )
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.weights", size_threshold=64)
    return folder / "m.onnx"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_out_that_is_no_file_is_refused(path: Path, tmp_path: Path) -> None:
    fifo, folder, sock = tmp_path / "fifo", tmp_path / "folder", tmp_path / "socket"
    os.mkfifo(fifo)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(sock))
        device = Path("/dev/null")
        link = tmp_path / "link"
        link.symlink_to(device)
        loop = tmp_path / "loop"
        loop.symlink_to(loop)
        for place in (fifo, folder, sock, device, link, loop):
            before = place.lstat()
            for write in (graphopt.optimize, lower):
                with pytest.raises(ModelSaveError, match=r"is a|cannot be written"):
                    write(path, place)
            assert (place.lstat().st_mode, place.lstat().st_ino) == (before.st_mode, before.st_ino)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("relative", [True, False])
def test_a_link_is_kept(path: Path, tmp_path: Path, there: bool, relative: bool) -> None:
    target = path.parent / "real.onnx"
    link = path.parent / "link.onnx"
    link.symlink_to(target.name if relative else target)
    if there:
        target.write_bytes(b"old")
    old = target.open("rb") if there else None
    graphopt.optimize(path, link)
    assert link.is_symlink()
    assert not target.is_symlink()
    onnx.checker.check_model(str(target))
    if old is not None:
        with old:
            assert old.read() == b"old"  # replaced, not overwritten in place


def test_a_link_into_a_missing_folder_names_this_folder(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.onnx").symlink_to(tmp_path / "missing" / "real.onnx")
    with pytest.raises(ModelSaveError, match=f"the folder {tmp_path / 'missing'} does not exist"):
        graphopt.optimize(path, tmp_path / "link.onnx")


def test_a_link_to_a_folder_where_the_weights_would_not_be_found(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.onnx"
    link.symlink_to(path.parent / "real.onnx")
    with pytest.raises(ModelSaveError, match="another folder"):
        graphopt.optimize(path, link)
    assert not (path.parent / "real.onnx").exists()
    graphopt.optimize(path, link, external_data=False)
    onnx.load(link)


def test_a_model_in_a_cache_of_links(path: Path, tmp_path: Path) -> None:
    """Hugging Face's cache: model and weights are links to files with other names, in another folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for i, file in enumerate(sorted(path.parent.iterdir())):
        file.rename(blobs / f"{i}")
        (snapshot / file.name).symlink_to(Path("..") / "blobs" / f"{i}")
    out = tmp_path / "out.onnx"
    graphopt.optimize(snapshot / "m.onnx", out)
    tensor = next(t for t in onnx.load(out).graph.initializer if list(t.dims) == [64, 64])
    assert (onnx.numpy_helper.to_array(tensor) == 1).all()


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", "IN", "IN.weights"),
        ("optimize", "IN", "OUT", "--json", "IN"),
        ("optimize", "IN", "OUT", "--json", "IN.weights"),
        ("optimize", "IN", "OUT", "--report", "IN"),
        ("optimize", "IN", "OUT", "--json", "OUT"),
        ("optimize", "IN", "OUT", "--json", "OUT.data", "--external-data"),
        ("optimize", "IN", "OUT", "--json", "R", "--report", "R"),
        ("optimize", "IN", "OUT", "--json", "HARDLINK"),
        ("optimize", "IN", "OUT", "--json", "LINK"),
        ("optimize", "IN", "OUT", "--json", "NOWHERE"),
        ("optimize", "IN", "--dry-run", "--json", "IN"),
        ("optimize", "IN", "IN", "--in-place", "--report", "IN"),
        ("optimize", "IN", "OUT", "--tuning-cache", "IN"),
        ("lower", "IN", "IN"),
        ("lower", "IN", "IN.weights"),
        ("bisect", "IN", "--out", "IN"),
        ("bisect", "IN", "--out", "IN.weights"),
        ("bisect", "IN", "--out", "NOWHERE"),
        ("bisect", "IN", "--providers", "cpu,cpu", "--out", "LINK"),
    ],
)
def test_no_output_replaces_another_file(path: Path, arguments: tuple[str, ...]) -> None:
    folder = path.parent
    (folder / "hard").hardlink_to(path)
    (folder / "link").symlink_to(path)
    names = {
        "IN": path,
        "IN.weights": folder / "m.weights",
        "OUT": folder / "out.onnx",
        "OUT.data": folder / "out.onnx.data",
        "R": folder / "report",
        "HARDLINK": folder / "hard",
        "LINK": folder / "link",
        "NOWHERE": folder / "missing" / "report",
    }
    before = contents(folder)
    with pytest.raises(ModelSaveError):
        command(*(names.get(a, a) for a in arguments))
    assert contents(folder) == before


def test_a_report_may_run_through_a_pipe(path: Path) -> None:
    fifo = path.parent / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
        command("optimize", path, "--dry-run", "--quiet", "--json", fifo)
        assert b'"format": 1' in reader.communicate()[0]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_permissions(path: Path, tmp_path: Path) -> None:
    """A new file gets the umask's permissions; a replacement gets those of the old file."""
    out = tmp_path / "out.onnx"
    old = os.umask(0o027)
    try:
        graphopt.optimize(path, out)
        assert stat.S_IMODE(out.stat().st_mode) == 0o640
        out.chmod(0o604)
        graphopt.optimize(path, out)
        assert stat.S_IMODE(out.stat().st_mode) == 0o604
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)


def test_a_long_name(path: Path) -> None:
    out = path.parent / ("n" * 245 + ".onnx")
    graphopt.optimize(path, out)
    onnx.load(out)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("old")

    def broken(file: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.write(place, broken)
    assert contents(tmp_path) == {"file": b"old"}


@pytest.mark.parametrize("old", ["none", "a model", "IN"])
@pytest.mark.parametrize("weights", ["--external-data", "--no-external-data"])
def test_a_failed_report_restores_the_old_model(path: Path, old: str, weights: str) -> None:
    """Writing to /dev/full fails like a full disk, when the last file is written."""
    out, page = path.parent / "out.onnx", path.parent / "page.html"
    page.write_text("earlier")
    if old == "a model":
        graphopt.optimize(path, out)
    arguments = [path, *([path, "--in-place"] if old == "IN" else [out]), weights, "--report", page]
    before, names = contents(path.parent), sorted(p.stat().st_ino for p in path.parent.iterdir())
    with pytest.raises(ModelSaveError, match="/dev/full: cannot be written: No space left"):
        command("optimize", *arguments, "--no-verify", "--no-bench", "--quiet", "--json", "/dev/full")
    assert contents(path.parent) == before
    assert sorted(p.stat().st_ino for p in path.parent.iterdir()) == names
    command("optimize", *arguments, "--no-verify", "--no-bench", "--quiet", "--json", path.parent / "r.json")
    assert page.read_text() != "earlier"
    assert not list(path.parent.glob(".graphopt*"))


def test_terminated(tmp_path: Path) -> None:
    """SIGTERM, which schedulers and containers send, leaves no incomplete files."""
    code = """
import pathlib, sys, time
from graphopt import files
from graphopt.cli import run
def slow(file):
    file.write(b"half")
    print("writing", flush=True)
    time.sleep(600)
run.app = lambda **_: files.write(pathlib.Path(sys.argv[1]), slow)
run.run()
"""
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "out"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
