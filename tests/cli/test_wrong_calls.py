"""Wrong calls give one line with the error, the place, and the fix, and never a traceback."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.errors import EXIT_INTERNAL
from models import ZOO
from tests.rewriting import model_from_text

pytestmark = pytest.mark.once
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are not models, and two that are."""
    place = tmp_path_factory.mktemp("wrong")
    for name, member in (("a.pt", "a/data.pkl"), ("a.zip", "a.txt"), ("a.keras", "config.json")):
        with zipfile.ZipFile(place / name, "w") as archive:
            archive.writestr(member, "x")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    contents = {
        "old.pth": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
        "a.tflite": b"\x20\x00\x00\x00TFL3" + bytes(100),
        "a.ort": b"\x20\x00\x00\x00ORTM" + bytes(100),
        "a.pb": b"\x0a\x10\x0a\x05input\x12\x0bPlaceholder" + bytes(20),
        "a.safetensors": len(header).to_bytes(8, "little") + header + bytes(4),
        "a.gguf": b"GGUF" + bytes(60),
        "a.h5": b"\x89HDF\r\n\x1a\n" + bytes(60),
        "a.xml": b"<?xml version='1.0'?><net name='x' version='11'></net>",
        "empty.onnx": b"",
        "text.onnx": b"hello\n",
        "pointer.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n",
        "page.onnx": b"<!DOCTYPE html><html><body>404</body></html>",
    }
    for name, content in contents.items():
        (place / name).write_bytes(content)
    (place / "inner").mkdir()
    (place / "saved").mkdir()
    (place / "saved" / "saved_model.pb").write_bytes(b"x")
    ok = ZOO["resnet18"](small=True)
    onnx.save(ok, place / "ok.onnx")
    doubles: dict[str, Any] = {ok.graph.input[0].name: np.zeros((1, 3, 64, 64))}
    np.savez(place / "double.npz", **doubles)
    onnx.save(ZOO["resnet18"](small=True), place / "inner" / "m.onnx")
    (place / "half.onnx").write_bytes((place / "ok.onnx").read_bytes()[:2000])
    gelu = model_from_text("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    gelu.graph.node[0].op_type, gelu.opset_import[0].version = "Gelu", 20
    onnx.save(gelu, place / "gelu.onnx")
    return place


NO_DEVICE = "graphopt doctor shows every route to a GPU"


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("optimize a.pt o.onnx", 3, "a PyTorch file: export it to ONNX first (torch.onnx.export)"),
        ("optimize old.pth o.onnx", 3, "a PyTorch file: export it to ONNX first"),
        ("verify ok.onnx a.pt", 3, "a.pt: not an ONNX model (a PyTorch file: export it to ONNX first"),
        ("optimize a.zip o.onnx", 3, "a zip archive: unpack it first"),
        ("optimize a.keras o.onnx", 3, "a Keras model: export it to ONNX first"),
        ("optimize a.tflite o.onnx", 3, "a TensorFlow Lite model: export it to ONNX first"),
        ("optimize a.ort o.onnx", 3, "a model in ORT format: give the .onnx file"),
        ("optimize a.pb o.onnx", 3, "a TensorFlow model: export it to ONNX first"),
        ("optimize saved o.onnx", 3, "saved: a TensorFlow model: export it to ONNX first"),
        ("optimize a.safetensors o.onnx", 3, "safetensors, weights without a graph: export the model"),
        ("optimize a.gguf o.onnx", 3, "GGUF, weights without a graph"),
        ("optimize a.h5 o.onnx", 3, "an HDF5 file of Keras"),
        ("optimize a.xml o.onnx", 3, "if it is an OpenVINO model, give the .onnx file"),
        ("optimize empty.onnx o.onnx", 3, "the file is empty"),
        ("optimize text.onnx o.onnx", 3, "truncated, or another format"),
        ("optimize half.onnx o.onnx", 3, "truncated, or another format"),
        ("optimize pointer.onnx o.onnx", 3, "git lfs pull"),
        ("optimize page.onnx o.onnx", 3, "a page of HTML: download the file again"),
        ("optimize inner o.onnx", 3, "inner: a folder: pass a file in it, such as inner/m.onnx"),
        ("optimize ok.onnx no/o.onnx", 4, "no/o.onnx: the folder no does not exist"),
        ("optimize ok.onnx inner", 4, "inner: is a folder, not a file"),
        ("optimize ok.onnx o.onnx --report no/r.html", 4, "no/r.html: the folder no does not exist"),
        ("optimize ok.onnx o.onnx --only winograd", 5, "did you mean 'winograd_conv'?"),
        ("optimize ok.onnx o.onnx --target gfx942", 5, "did you mean 'rocm:gfx942'?"),
        ("optimize ok.onnx o.onnx --target portabel", 5, "did you mean 'portable'?"),
        ("optimize ok.onnx o.onnx --targt cpu", 2, "--target"),
        ("optimize ok.onnx o.onnx --inputs a.zip", 5, "verify --inputs compares outputs on them"),
        ("verify ok.onnx ok.onnx --inputs text.onnx", 2, "text.onnx: cannot be read as inputs: it is no .npz file"),
        ("verify ok.onnx ok.onnx --inputs double.npz", 2, "is float64, but the model needs float32"),
        ("optimize ok.onnx o.onnx --precision fp16 --inputs no.npz", 5, "no.npz: no such file or folder"),
        ("optimize ok.onnx o.onnx --tune --tune-seconds -1", 2, "'--tune-seconds'"),
        ("optimize ok.onnx o.onnx --threads -1", 2, "'--threads'"),
        ("verify ok.onnx ok.onnx --seed -1", 2, "'--seed'"),
        ("view ok.onnx --no-open --port 70000", 2, "'--port'"),
        ("serve-config ok.onnx triton", 2, "Missing option '--for'"),
        ("docs usag", 5, "did you mean 'usage'?"),
        ("optimize-all inner inner", 4, "inner: is or contains the input folder"),
        ("bench ok.onnx --dim bach=2", 5, "no symbolic dimension 'bach'"),
        ("bench ok.onnx --provider nothing", 5, "this runtime has no provider 'nothing'"),
        ("explain NO_GAINS", 5, "did you mean 'NO_GAIN'?"),
        ("explain ok.onnx --code NOGAIN", 5, "did you mean 'NO_GAIN'?"),
        (
            "lower gelu.onnx o.onnx --opset 17",
            5,
            "Gelu exists since opset 20: use --opset 20, or export the model",
        ),
    ],
)
def test_one_line_with_a_remedy(
    call: str, code: int, words: str, folder: Path, graphopt_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = graphopt_command(*call.split())
    assert words in done.stderr, done.stderr
    assert (done.exit_code, len(done.stderr.splitlines()), done.stdout) == (code, 1, "")
    assert str(folder) not in done.stderr and code != EXIT_INTERNAL and not (folder / "o.onnx").exists()


def test_a_missing_device_is_explained(
    folder: Path, graphopt_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message equals doctor's: the reason and, if there is one, the remedy."""
    if graphopt.session(folder / "ok.onnx").get_providers()[0] != "CPUExecutionProvider":
        pytest.skip("there is a GPU")
    monkeypatch.chdir(folder)
    reasons = [line.strip().rpartition(" (")[0] for line in graphopt_command("doctor").stdout.splitlines()]
    told = graphopt_command("bench", "ok.onnx", "--require-device").stderr
    assert NO_DEVICE in told and any(reason and reason in told for reason in reasons)
    with pytest.raises(graphopt.GraphoptError, match=NO_DEVICE):
        graphopt.session(folder / "ok.onnx", require_device=True)
    told = graphopt_command("bench", "ok.onnx", "--provider", "graphopt").stderr
    assert NO_DEVICE in told


def test_a_target_without_kernels_is_explained(folder: Path, graphopt_command: Command, tmp_path: Path) -> None:
    shown = graphopt_command("optimize", folder / "ok.onnx", tmp_path / "o.onnx", "--target", "rocm:gfx9999").stdout
    assert "optimized for rocm:gfx9999 (this library has no device code" in shown and "to fix it: " in shown


def test_errors_name_the_model_as_it_was_given(
    graphopt_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    text = "g (float[N, H] x) => (float[N, 1] y) { t = Add(x, k) y = MatMul(t, w) }"
    weights = {"k": np.ones((1, 32), np.float32), "w": np.ones((32, 1), np.float32)}
    onnx.save(model_from_text(text, weights), tmp_path / "sub" / "m.onnx")
    assert graphopt_command("bench", "sub/m.onnx", "--dim", "H=7").stderr.startswith("graphopt: sub/m.onnx: ")


def test_lines_of_a_folder_have_the_verdict(graphopt_command: Command, folder: Path, tmp_path: Path) -> None:
    done = graphopt_command("optimize-all", folder / "inner", tmp_path / "out", "--verify", "--target", "cpu")
    assert done.stdout.startswith("1/1 m.onnx: equal (") and ", 30 -> 21 nodes\n" in done.stdout
