"""Inputs from the caller: arrays by name, or files.

A file NAME.npz has arrays by the names of the inputs. A folder has one or several sets:
- NAME.npy for each input, one set;
- *.npz, one set each;
- input_0.pb, input_1.pb, ... in the order of the graph's inputs, one set, or folders test_data_set_0, ... with such
  files. This is the layout of ONNX's own test data. The type of the input decides whether a file is a TensorProto, a
  SequenceProto or an OptionalProto.
"""

from __future__ import annotations

import itertools
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google.protobuf.message
import numpy as np
import onnx
from onnx import numpy_helper

from graphopt import files
from graphopt.errors import ModelSaveError, VerifyError
from graphopt.inputs.plan import Case

# The start of the names of folders of ONNX's test data; a number follows.
SET = "test_data_set_"


def given_cases(inputs: str | os.PathLike[str] | Mapping[str, Any], model: onnx.ModelProto) -> list[Case]:
    """Returns the caller's inputs.

    Args:
        inputs: name -> array, or the path of a file or folder for `load_inputs`.
        model: the model.

    Raises:
        VerifyError: there are none, or an array has another type than the model's input.
    """
    cases = [Case("given", dict(inputs))] if isinstance(inputs, Mapping) else load_inputs(Path(inputs), model)
    for case in cases:
        for value in model.graph.input:
            given, kind = case.feeds.get(value.name), value.type.tensor_type.elem_type
            if kind and isinstance(given, np.ndarray) and given.dtype.kind in "fiub":
                wanted = onnx.helper.tensor_dtype_to_np_dtype(kind)
                if wanted.isbuiltin == 1 and given.dtype != wanted:
                    problem = f"input '{value.name}' is {given.dtype}, but the model needs {wanted}"
                    raise VerifyError(f"{case.name}: {problem}")
    return cases


def load_inputs(source: Path, model: onnx.ModelProto) -> list[Case]:
    """Reads all sets of a file or folder.

    Raises:
        VerifyError: there are none, or a file cannot be read.
    """
    if not source.exists():
        raise VerifyError(f"{source}: no such file or folder")
    try:
        if source.is_file():
            if not zipfile.is_zipfile(source):
                raise ValueError("it is no .npz file (numpy.savez writes one)")
            return [Case(source.name, _arrays(np.load(source)))]
        cases = []
        for folder in sorted(p for p in source.glob(f"{SET}*") if p.is_dir()) or [source]:
            protos = sorted(folder.glob("input_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
            if protos:
                cases.append(Case(folder.name, _protos(protos, model)))
        arrays = {p.stem: np.load(p) for p in sorted(source.glob("*.npy"))}
        if arrays:
            cases.append(Case(source.name, _arrays(arrays)))
        cases += [Case(p.name, _arrays(np.load(p))) for p in sorted(source.glob("*.npz"))]
    except (OSError, ValueError, IndexError, zipfile.BadZipFile, google.protobuf.message.DecodeError) as error:
        raise VerifyError(f"{source}: cannot be read as inputs: {error}") from None
    if not cases:
        raise VerifyError(f"{source}: contains no inputs (.npz, .npy or input_0.pb files)")
    return cases


def save_case(folder: Path, model: onnx.ModelProto, feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> Path:
    """Writes inputs and outputs in the layout of ONNX's test data: FOLDER/test_data_set_0/input_0.pb, output_0.pb, ...

    Existing sets are kept; the new one has the next free number.

    Args:
        folder: the folder; it is created if necessary.
        model: the model; the order of its inputs and outputs gives the numbers.
        feeds: input -> array.
        outputs: output -> value.

    Returns:
        The folder of the set.

    Raises:
        ModelSaveError: a file cannot be written.
    """
    target = next(t for i in itertools.count() if not (t := folder / f"{SET}{i}").exists())
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise ModelSaveError(f"{target}: cannot be written: {error.strerror}") from None
    given = [value for value in model.graph.input if value.name in feeds]
    for kind, values, arrays in (("input", given, feeds), ("output", model.graph.output, outputs)):
        for i, value in enumerate(values):
            if arrays.get(value.name) is not None:
                files.write(target / f"{kind}_{i}.pb", _message(arrays[value.name], value).SerializeToString())
    return target


def _message(value: Any, declared: onnx.ValueInfoProto) -> Any:
    """Converts a value to the message of its declared type: a tensor, a sequence or an optional."""
    kind = declared.type.WhichOneof("value")
    if kind == "optional_type":
        return numpy_helper.from_optional(value, declared.name)
    if kind == "sequence_type" or isinstance(value, list):
        return numpy_helper.from_list([np.asarray(a) for a in value], declared.name)
    return numpy_helper.from_array(np.asarray(value), declared.name)


def _arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Converts strings to objects, as the runtime needs them."""
    return {n: a.astype(object) if a.dtype.kind in "US" else a for n, a in arrays.items()}


def _protos(paths: list[Path], model: onnx.ModelProto) -> dict[str, Any]:
    """Reads messages; a message that does not name an input belongs to the input with the same index."""
    initializers = {t.name for t in model.graph.initializer}
    values = sorted(model.graph.input, key=lambda value: value.name in initializers)
    types = {value.name: value.type.WhichOneof("value") for value in values}
    if len(paths) > len(values):
        raise ValueError(f"{len(paths)} inputs, but the model has {len(values)}")
    feeds = {}
    for path, value in zip(paths, values):
        messages: dict[str | None, Any] = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
        message = messages.get(types[value.name], onnx.TensorProto)()
        message.ParseFromString(path.read_bytes())
        feeds[message.name if message.name in types else value.name] = _value(message)
    return feeds


def _value(message: Any) -> Any:
    if isinstance(message, onnx.SequenceProto):
        return [_strings(a) for a in numpy_helper.to_list(message)]
    if isinstance(message, onnx.OptionalProto):
        return _strings(numpy_helper.to_optional(message))
    return _strings(numpy_helper.to_array(message))


def _strings(array: Any) -> Any:
    """Decodes an array of bytes; returns other values unchanged."""
    if isinstance(array, np.ndarray) and array.dtype == object:
        decoded = [s.decode("utf-8") if isinstance(s, bytes) else s for s in array.reshape(-1)]
        return np.array(decoded, object).reshape(array.shape)
    return array
