"""A failure during the writing of a model leaves the complete old or the complete new file, and no other files."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.errors import ModelSaveError

pytestmark = pytest.mark.once

INTERRUPTED = 130
CANNOT_BE_WRITTEN = 4


def model(folder: Path, *, external: bool, channels: int = 64) -> Path:
    """Writes Conv and BatchNormalization, with weights that are rewritten, and a second Conv with unchanged weights."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=(channels, channels, 3, 3)) for n in ("w", "v")}
    arrays |= {n: rng.uniform(0.5, 1, size=channels) for n in ("s", "b", "m", "r")}
    weights = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "r"], ["n"]),
        helper.make_node("Conv", ["n", "v"], ["y"], pads=[1] * 4),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", channels, 8, 8]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path = folder / "in.onnx"
    onnx.save(made, path, save_as_external_data=external, location="in.data", size_threshold=1024)
    return path


def digest(path: Path) -> str:
    """Returns the digest of a model with its weights; fails if a required file is missing or truncated."""
    onnx.checker.check_model(path)
    loaded = onnx.load(path)
    return hashlib.sha256(loaded.SerializeToString(deterministic=True)).hexdigest()


def command(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "graphopt", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


WRITER = """
import sys, graphopt
print("ready", flush=True)
while True:
    graphopt.optimize(sys.argv[1], sys.argv[2], target="cpu")
"""


@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
def test_killed_at_any_moment(external: bool, tmp_path: Path) -> None:
    """A process that writes repeatedly is killed at random moments: every reader of OUT finds a complete model."""
    path, out = model(tmp_path, external=external), tmp_path / "out.onnx"
    graphopt.optimize(path, out, target="cpu")
    want, rng = digest(out), np.random.default_rng(1)
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, path, out], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.02, 0.3))
        writer.kill()
        writer.wait()
        assert digest(out) == want


@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
def test_two_processes_on_one_output(external: bool, tmp_path: Path) -> None:
    path, out = model(tmp_path, external=external), tmp_path / "out.onnx"
    writers = [command("optimize", path, out, "--target", "cpu", "-q") for _ in range(3)]
    for writer in writers:
        _, err = writer.communicate()
        assert writer.returncode == 0, err
    alone = tmp_path / "alone"
    alone.mkdir()
    graphopt.optimize(path, alone / "out.onnx", target="cpu")
    assert digest(out) == digest(alone / "out.onnx")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the file size fails in the middle of a write, as a full disk does."""
    for external in (False, True):
        folder = tmp_path / str(external)
        folder.mkdir()
        path, out = model(folder, external=external), folder / "out.onnx"
        out.write_bytes(b"old")
        before = sorted(os.listdir(folder))
        script = f"""
import resource, signal, sys
from graphopt import cli
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
sys.argv = ["graphopt", "optimize", {str(path)!r}, {str(out)!r}, "--target", "cpu"]
cli.main()
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == CANNOT_BE_WRITTEN, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1 and "cannot be written: File too large" in done.stderr
        assert out.read_bytes() == b"old"
        assert sorted(os.listdir(folder)) == before


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = model(tmp_path, external=False)
    process = command("optimize", path, tmp_path / "out.onnx", "--target", "cpu", "--json", tmp_path / "no" / "r.json")
    _, err = process.communicate()
    assert process.returncode == CANNOT_BE_WRITTEN
    assert len(err.strip().splitlines()) == 1 and err.startswith("graphopt: ")


def test_an_unwritable_folder(tmp_path: Path) -> None:
    """No user may write to /proc/self/fdinfo, not even root."""
    path = model(tmp_path, external=False)
    with pytest.raises(ModelSaveError, match=r"cannot be written|not writable"):
        graphopt.optimize(path, "/proc/self/fdinfo/out.onnx", target="cpu")


def test_the_input_disappears(tmp_path: Path) -> None:
    """Data files are deleted between reading and writing."""
    path = model(tmp_path, external=True)
    other = tmp_path / "other"
    other.mkdir()

    def remove(step: str) -> None:
        if step.startswith("writing"):
            (tmp_path / "in.data").unlink()

    with pytest.raises(ModelSaveError, match="cannot be written"):
        graphopt.optimize(path, other / "out.onnx", target="cpu", progress=remove)
    assert os.listdir(other) == []


def test_the_disk_runs_full_while_data_is_copied(tmp_path: Path) -> None:
    path = model(tmp_path, external=True)
    other = tmp_path / "other"
    other.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ModelSaveError, match="File too large"):
            graphopt.optimize(path, other / "out.onnx", target="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(other) == []


def interrupted_after(moment: float, script: str, *arguments: object) -> tuple[int, str]:
    """Returns exit code and stderr of a script that gets SIGINT this many seconds after it has printed "ready"."""
    # A shell's background job starts with SIGINT ignored, and so do its child processes.
    handler = "import signal\nfrom graphopt.__main__ import leave, main\nsignal.signal(signal.SIGINT, leave)\n"
    command = [sys.executable, "-c", handler + script, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    return process.returncode, err


COMMAND = """
import sys
import graphopt.cli
print("ready", flush=True)
sys.argv = ["graphopt", *sys.argv[1:]]
main()
"""
IMPORTS = """
import sys
print("ready", flush=True)
sys.argv = ["graphopt", "passes"]
main()
"""


def test_interrupted_during_imports() -> None:
    interrupted = 0
    for moment in (0.02, 0.05, 0.1, 0.2, 0.4):
        code, err = interrupted_after(moment, IMPORTS)
        assert code in (0, INTERRUPTED), err
        if code == INTERRUPTED:
            interrupted += 1
            assert err == "graphopt: interrupted\n"
    assert interrupted


# Sends the signal at the moment of the run that MOMENT defines, found by Python's profiler hook.
AT_A_MOMENT = """
import os, signal, sys
import graphopt.cli
from graphopt.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)
def send(frame, event, what):
    if moment(frame, event, what):
        sys.setprofile(None)
        print("sent", flush=True)
        kill()
def kill():
    os.kill(os.getpid(), number)
MOMENT
number = int(sys.argv.pop())
sys.argv = ["graphopt", *sys.argv[1:]]
sys.setprofile(send)
main()
"""
# Python code inside the initialization of onnx's compiled module, which cannot propagate an exception.
INSIDE_AN_EXTENSION = """
def moment(frame, event, _):
    while frame is not None and frame.f_code.co_qualname != "ExtensionFileLoader.exec_module":
        frame = frame.f_back
    return event == "call" and frame is not None and frame.f_locals["module"].__name__.startswith("onnx.")
"""
# Python reports an exception in a finalizer and continues.
IN_A_FINALIZER = """
class Last:
    def __del__(self):
        kill()
def send(frame, event, what):
    if frame.f_code.co_name == "save":
        sys.setprofile(None)
        print("sent", flush=True)
        Last()
"""
# The work is done, and the exit code is about to be returned.
AT_THE_END = """
import graphopt.cli.run
def moment(frame, event, _):
    return event == "call" and frame.f_code is signal.signal.__code__ and frame.f_back.f_code.co_name == "run"
"""
# The file has its final name, and the weights that it refers to are still in a temporary file.
JUST_IN_PLACE = """
def moment(frame, event, what):
    return event == "c_return" and what is os.replace and str(frame.f_locals.get("target")).endswith("out.onnx")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("moment", "stays"),
    [(INSIDE_AN_EXTENSION, False), (IN_A_FINALIZER, False), (AT_THE_END, True), (JUST_IN_PLACE, True)],
    ids=["inside an extension", "in a finalizer", "at the end", "just in place"],
)
def test_interrupted_at(moment: str, stays: bool, number: signal.Signals, tmp_path: Path) -> None:
    path, out = model(tmp_path, external=True, channels=512), tmp_path / "out.onnx"
    before = sorted(os.listdir(tmp_path))
    script = AT_A_MOMENT.replace("MOMENT", moment)
    command = [sys.executable, "-c", script, "optimize", str(path), str(out), "--target", "cpu", str(int(number))]
    run = subprocess.run(command, capture_output=True, text=True)
    assert "sent\n" in run.stdout, run.stderr
    expected = 0 if moment is AT_THE_END else INTERRUPTED if number == signal.SIGINT else 128 + number
    assert run.returncode == expected, run.stderr
    assert run.stderr == ("graphopt: interrupted\n" if expected == INTERRUPTED else "")
    left = sorted(set(os.listdir(tmp_path)) - set(before))
    assert left == (["out.onnx", "out.onnx.data"] if stays else [])
    if stays:
        onnx.load(out)


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C at any moment of the work: exit code 130, no traceback, no incomplete files."""
    path, out = model(tmp_path, external=True, channels=512), tmp_path / "out.onnx"
    before = sorted(os.listdir(tmp_path))
    interrupted = 0
    for moment in (0.01, 0.05, 0.1, 0.2, 0.4):
        code, err = interrupted_after(moment, COMMAND, "optimize", path, out, "--target", "cpu")
        assert code in (0, INTERRUPTED), err
        assert "Traceback" not in err
        if code == INTERRUPTED:
            interrupted += 1
            assert len(err.strip().splitlines()) <= 1
            left = set(os.listdir(tmp_path)) - set(before)
            assert left in (set(), {"out.onnx", "out.onnx.data"})  # nothing, or both files if it was already printing
            if left:
                onnx.load(out)
        for written in set(os.listdir(tmp_path)) - set(before):
            (tmp_path / written).unlink()
    assert interrupted
