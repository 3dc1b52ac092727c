"""Recognizes other formats than ONNX by the first bytes or the suffix of a file, for error messages with a remedy."""

from __future__ import annotations

from pathlib import Path

_PYTORCH = "a PyTorch file", "export it to ONNX first (torch.onnx.export)"
_TENSORFLOW = "a TensorFlow model", "export it to ONNX first (tf2onnx)"
_WEIGHTS = "weights without a graph", "export the model to ONNX first"
# (offset, bytes, (format, remedy))
_MAGIC: tuple[tuple[int, bytes, tuple[str, str]], ...] = (
    (4, b"TFL3", ("a TensorFlow Lite model", "export it to ONNX first (tf2onnx)")),
    (4, b"ORTM", ("a model in ORT format", "give the .onnx file that it was made from")),
    (0, b"GGUF", (f"GGUF, {_WEIGHTS[0]}", _WEIGHTS[1])),
    (0, b"\x89HDF", ("an HDF5 file of Keras", "export the model to ONNX first (tf2onnx)")),
    (0, b"\x80\x02", _PYTORCH),
    (0, b"ftrt", ("a TensorRT engine", "give the .onnx file that it was made from")),
    (0, b"\x1f\x8b", ("a gzip archive", "unpack it first")),
    (0, b"version https://git-lfs", ("a pointer of Git LFS", "get the file itself: git lfs pull")),
    (0, b"<!DOCTYPE html", ("a page of HTML", "download the file again: the server sent a page")),
    (0, b"<html", ("a page of HTML", "download the file again: the server sent a page")),
    (0, b"<?xml", ("an XML file", "if it is an OpenVINO model, give the .onnx file that it was made from")),
)
_HEAD = 64


def describe(path: Path, data: bytes | memoryview) -> str:
    """Returns the format and a remedy for a file that is not an ONNX model, such as "a PyTorch file: export it ...".

    Returns "" if the format is not recognized.
    """
    head, suffix = bytes(data[:_HEAD]), path.suffix.lower()
    found: tuple[str, str] | None = None
    if not head:
        found = "the file is empty", "write or download it again"
    elif head.startswith(b"PK"):
        torch = suffix in (".pt", ".pth", ".pt2", ".bin", ".ckpt") or b"/data.pkl" in head
        keras = "a Keras model", "export it to ONNX first (tf2onnx)"
        found = _PYTORCH if torch else keras if suffix == ".keras" else ("a zip archive", "unpack it first")
    elif head[8:9] == b"{" and int.from_bytes(head[:8], "little") < len(data):
        found = f"safetensors, {_WEIGHTS[0]}", _WEIGHTS[1]
    else:
        found = next((name for at, magic, name in _MAGIC if head[at:].lower().startswith(magic.lower())), None)
    if found is None and suffix == ".pb":
        found = _TENSORFLOW
    if found is None and suffix in (".pt", ".pth"):
        found = _PYTORCH
    return "" if found is None else ": ".join(found)


def describe_folder(path: Path) -> str:
    """Returns a remedy for a folder that was passed instead of a file, with the name of a model in it."""
    if (path / "saved_model.pb").exists():
        return ": ".join(_TENSORFLOW)
    models = sorted(path.glob("*.onnx"))
    if models:
        return f"a folder: pass a file in it, such as {models[0]}"
    return "a folder: pass an .onnx file"
