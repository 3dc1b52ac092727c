"""`graphopt serve-config`: writes a folder that an engine serves directly."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from graphopt import files
from graphopt.errors import GraphoptError, ModelSaveError, OptionError
from graphopt.graph import reading, writing
from graphopt.graph.reading import data_files, read_proto
from graphopt.inputs.declared import Input, required_inputs, symbols
from graphopt.inputs.plan import normal_feeds
from graphopt.runtime.discovery import CPU, library_path
from graphopt.runtime.sessions import session
from graphopt.serving.configs import ENGINES
from graphopt.serving.deployment import DATATYPES, MODEL, SETTINGS, Deployment, Tensor

# Allowed difference of a row's outputs in a batch and alone, relative to their RMS; kernels may sum in another order.
_ROUNDING = {"FP16": 2e-2, "FP32": 1e-3, "FP64": 1e-6}
# Limit of the total number of input elements in the test of merging.
_MOST_ELEMENTS = 1 << 24


def write(
    model: Path,
    out: Path,
    engine: str,
    *,
    name: str = "",
    version: int = 1,
    max_batch: int | None = None,
    delay_ms: float = 2.0,
    instances: int = 1,
    threads: int = 0,
    devices: Sequence[int] = (),
    sizes: Mapping[str, int] | None = None,
    seen_at: Path | None = None,
) -> tuple[Deployment, list[str]]:
    """Writes a model and the files that an engine needs to serve it into a folder, which may contain other models.

    Args:
        model: a model file, usually one written by `graphopt optimize`.
        out: the folder.
        engine: a key of `ENGINES`.
        name: name of the model in URLs; by default the name of the file.
        version: version number, at least 1.
        max_batch: the largest number of rows in a batch; 1 does not merge requests. The default is 8 if rows are
            independent, which a test run determines.
        delay_ms: milliseconds that a request waits for others.
        instances: number of processes, replicas or instances.
        threads: threads of each instance; 0 leaves the choice to the runtime.
        devices: indices of the GPUs that the instances share.
        sizes: symbolic dimension -> size, for the warm-up.
        seen_at: path of the folder in the engine's container.

    Returns:
        The written deployment, and notes for the user.

    Raises:
        OptionError: an option does not fit the model.
        ModelLoadError: the model cannot be read.
        ModelSaveError: the folder cannot be written.
    """
    if engine not in ENGINES:
        raise OptionError(f"--for {engine}: choose one of {', '.join(ENGINES)}")
    name = name or re.sub(r"[^A-Za-z0-9_-]", "_", model.name.removesuffix(".onnx"))
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise OptionError(f"--name '{name}': use letters, digits, _, - and ., and do not begin with - or .")
    for what, number in {"--version": version, "--instances": instances, "--max-batch": max_batch}.items():
        if number is not None and number < 1:
            raise OptionError(f"{what} {number}: give a number of at least 1")
    proto = read_proto(model)
    unknown = [symbol for symbol in sizes or {} if symbol not in symbols(proto)]
    if unknown:
        raise OptionError(f"--dim {unknown[0]}: the model has {', '.join(symbols(proto)) or 'no symbolic dimension'}")
    notes: list[str] = []
    if max_batch != 1:
        reason = why_not_merged(proto, model, sizes or {})
        if reason:
            if max_batch is not None:
                raise OptionError(f"--max-batch {max_batch}: requests cannot be merged: {reason}")
            notes.append(f"requests are not merged: {reason}")
        max_batch = 1 if reason else max_batch or 8
    deployment = Deployment(
        name,
        version,
        tuple(_tensor(model, v) for v in required_inputs(proto)),
        tuple(_tensor(model, v) for v in proto.graph.output),
        max_batch,
        delay_ms if max_batch > 1 else 0.0,
        instances,
        threads,
        tuple(devices),
        _warm_up(proto, max_batch, sizes or {}, notes),
    )
    _write_folder(model, out, engine, deployment, seen_at or Path(os.path.abspath(out)))
    return deployment, notes


def _write_folder(model: Path, out: Path, engine: str, deployment: Deployment, seen_at: Path) -> None:
    version = f"{deployment.name}/{deployment.version}"
    texts = dict(ENGINES[engine](deployment, seen_at))
    folders = [out / version]
    if engine == "triton":
        folders = [out / "onnxruntime" / version, out / "python" / version]
        _make_folder(out)
        files.write(out / "libgraphopt.so", library_path().read_bytes())
    for folder in folders:  # settings are written last, because servers look for them
        _make_folder(folder)
        if data_files(model):
            writing.save(reading.load(model).model, folder / MODEL)
        else:
            writing.copy_file(model, folder / MODEL)
    for path, text in texts.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        files.write(out / path, text)
    for folder in folders:
        files.write(folder / SETTINGS, deployment.to_json())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelSaveError(f"{folder}: cannot be created: {error.strerror or error}") from None


def _tensor(model: Path, value: onnx.ValueInfoProto | Input) -> Tensor:
    kind, called = value.type.WhichOneof("value"), f"{model}: '{value.name}'"
    if kind != "tensor_type":
        kind = {"optional_type": "an optional value"}.get(str(kind), f"a {str(kind).removesuffix('_type')}")
        raise OptionError(f"{called} is {kind}, but engines support tensors only; cut the model there")
    tensor = value.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        datatype = next(name for name, known in DATATYPES.items() if known == dtype)
    except (KeyError, StopIteration):
        type_name = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise OptionError(
            f"{called} has type {type_name}, which servers do not support; cast it in the model"
        ) from None
    if not tensor.HasField("shape"):
        raise OptionError(f"{called} has no rank in the model, but servers need one; declare its shape")
    return Tensor(value.name, datatype, tuple(d.dim_value if d.dim_value > 0 else -1 for d in tensor.shape.dim))


def _warm_up(
    proto: onnx.ModelProto, max_batch: int, sizes: Mapping[str, int], notes: list[str]
) -> tuple[dict[str, list[int]], ...]:
    """Returns input shapes for one row and for a full batch.

    Returns none, and adds a note, if a size is unknown or an input is a string tensor.
    """
    unknown = [s for s, role in symbols(proto).items() if s not in sizes and not (role == "batch" and max_batch > 1)]
    if unknown:
        notes.append(f"the model is not warmed up: give sizes (--dim {unknown[0]}=SIZE) for {', '.join(unknown)}")
        return ()
    if text := _text_input(proto):
        notes.append(f"the model is not warmed up: input '{text}' is a string tensor, which graphopt cannot generate")
        return ()
    sets = []
    for rows in dict.fromkeys((1, max_batch)):
        bound = {s: rows for s, role in symbols(proto).items() if role == "batch"} | dict(sizes)
        sets.append({v: [*array.shape] for v, array in normal_feeds(proto, bound).items()})
    return tuple(sets)


def _text_input(proto: onnx.ModelProto) -> str:
    """Returns the first input that contains strings; "" if none does."""
    found = (v.name for v in required_inputs(proto) if v.type.tensor_type.elem_type == onnx.TensorProto.STRING)
    return next(found, "")


def why_not_merged(proto: onnx.ModelProto, model: Path, sizes: Mapping[str, int]) -> str:
    """Returns why requests must not be merged into a batch; "" if they may.

    All first axes must be symbolic, and each row must have the same outputs in a batch as alone. Shapes do not show the
    second condition (attention over the first axis, statistics over the batch), so it is tested on random inputs.

    Args:
        proto: the model.
        model: its file.
        sizes: symbolic dimension -> size; others have a default.
    """
    values = [*required_inputs(proto), *proto.graph.output]
    for value in values:
        dims = value.type.tensor_type.shape.dim
        if not dims or dims[0].dim_value > 0:
            return f"the first axis of '{value.name}' is not a symbolic batch axis"
    roles = symbols(proto)
    batch = [s for s, role in roles.items() if role == "batch"]
    others = {s: 64 if role == "image" else 16 for s, role in roles.items() if role != "batch"} | dict(sizes)
    if text := _text_input(proto):
        return f"input '{text}' is a string tensor, which graphopt cannot generate to test whether rows are independent"
    together = normal_feeds(proto, others | dict.fromkeys(batch, 3))
    if sum(array.size for array in together.values()) > _MOST_ELEMENTS:
        return "its inputs are too large to test whether rows are independent"
    try:
        opened = session(model, [CPU], log_severity_level=4)
        merged = opened.run(None, together)
        alone = [opened.run(None, {n: a[row : row + 1] for n, a in together.items()}) for row in range(3)]
    except GraphoptError:
        raise
    except Exception as error:  # the runtime's exception classes share no public base
        return f"the test whether rows are independent failed: {str(error).strip()[:300]}"
    for value, whole, *rows in zip(proto.graph.output, merged, *alone):
        if any(row.shape != whole[:1].shape for row in rows) or len(whole) != 3:
            return f"output '{value.name}' does not have one row for each row of the inputs"
        got = np.concatenate(rows)
        if not _alike(got, whole, _ROUNDING.get(_tensor(model, value).datatype, 0.0)):
            return f"rows are not independent: output '{value.name}' of a row depends on other rows"
    return ""


def _alike(a: np.ndarray, b: np.ndarray, rounding: float) -> bool:
    if not rounding:
        return bool((a == b).all())
    finite = b[np.isfinite(b)]
    scale = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=0, atol=rounding * scale, equal_nan=True))
