"""Reads any form of a model into an `onnx_ir.Model`; writing.py returns it in the same form.

Forms: a path, an `onnx.ModelProto`, an `onnx_ir.Model`, the program object of `torch.onnx.export` (any object with an
`onnx_ir.Model` as `.model`) and an `onnx_graphsurgeon.Graph`. Weights in data files are not read until they are needed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google.protobuf.message
import numpy as np
import onnx
import onnx_ir as ir

from graphopt import shared_weights
from graphopt.errors import GraphoptError, ModelLoadError
from graphopt.graph import formats, messages
from graphopt.graph.operators.traits import CONTROL_FLOW
from graphopt.graph.traversal import (
    captures,
    element_bits,
    foreign_bodies,
    graphs,
    tensor_dims,
    tensors,
)
from graphopt.progress import Progress, time_left

# From this IR version on an initializer that is also a graph input can be overridden by callers.
FIRST_OVERRIDABLE_IR_VERSION = 4

# Bytes of a large file that are read at a time.
BLOCK = 1 << 26

# The largest dense form of a sparse initializer.
MAX_DENSE_BYTES = 1 << 30

# The other name of the default domain.
ONNX_DOMAIN = "ai.onnx"


@dataclass
class Source:
    """A loaded model, with the information to return it in its original form.

    Attributes:
        model: a model that may be changed; never the caller's object.
        original: the caller's object.
        path: the file, if it was read from one.
        proto: the message that `model` was read from; None if there is none, or if loading sorted nodes or renamed
            domains.
        data_files: the files with its external data.
        graphs: every graph of the loaded model.
    """

    model: ir.Model
    original: Any
    path: Path | None = None
    proto: onnx.ModelProto | None = None
    data_files: frozenset[Path] = frozenset()
    graphs: tuple[ir.Graph, ...] = ()


def load(original: Any, progress: Progress | None = None, *, copy: bool = True) -> Source:
    """Loads any form of a model without changing it.

    Args:
        original: the model.
        progress: called repeatedly with a line of text while a large file is read.
        copy: False uses an `onnx.ModelProto` without copying it; then the message must not be changed.

    Raises:
        ModelLoadError: a missing or unreadable file, not ONNX, truncated, inputs without a producer, a cyclic graph, or
            external data that is missing, out of range or outside the model's folder.
    """
    path: Path | None = None
    proto: onnx.ModelProto | None = None
    if isinstance(original, str | os.PathLike):
        path = Path(original)
        proto = read_proto(path, progress)
        model = _deserialize(proto, str(path))
    elif isinstance(original, onnx.ModelProto):
        proto = original
        if copy or _is_sparse(proto.graph):
            proto = onnx.ModelProto()
            proto.CopyFrom(original)
        model = _deserialize(proto, "the model")
    elif isinstance(original, ir.Model):
        model = original.clone()
    elif is_graphsurgeon(original):
        model = _deserialize(_exported(original), "the graph")
    elif isinstance(getattr(original, "model", None), ir.Model):
        model = original.model.clone()
    else:
        raise ModelLoadError(
            f"a {type(original).__name__} is not a model; "
            "give a path, onnx.ModelProto, onnx_ir.Model, torch.onnx program or onnx_graphsurgeon.Graph"
        )
    what = str(path) if path else "the model"
    found = list(graphs(model))
    in_order = _check_structure(found, what)
    data_files = None
    if path is not None:
        shared_weights.check(path, model.metadata_props)
        data_files = _DataFiles(path)
    external = set()
    for tensor in tensors(found):
        if isinstance(tensor, ir.serde.TensorProtoTensor):
            _check_embedded_data(tensor, what)
        elif isinstance(tensor, ir.ExternalTensor):
            if data_files is not None:
                data_files.check(tensor)
            else:
                _check_data_file(tensor)
            external.add(Path(tensor.path))
    if model.ir_version < FIRST_OVERRIDABLE_IR_VERSION:
        # Below this version every initializer is also a graph input, but runtimes treat it as a constant.
        freeze_initializers(model)
        model.ir_version = FIRST_OVERRIDABLE_IR_VERSION
    if proto is not None and in_order and len(found) > 1:
        _read_captures(model.graph, proto.graph)
    is_unchanged = _normalize_domains(model, proto) and in_order
    return Source(model, original, path, proto if is_unchanged else None, frozenset(external), tuple(found))


def _exported(graph: Any) -> onnx.ModelProto:
    """Converts a graphsurgeon Graph to a message, with the metadata that `in_original_form` stored in the Graph."""
    import onnx_graphsurgeon as gs
    from onnx_graphsurgeon.logger import G_LOGGER

    with G_LOGGER.suppress():
        proto: onnx.ModelProto = gs.export_onnx(graph)
    onnx.helper.set_model_props(proto, vars(graph).get("metadata_props", {}))
    return proto


def freeze_initializers(model: ir.Model) -> list[str]:
    """Removes initializers from the graph inputs, so callers cannot override them; returns their names."""
    graph = model.graph
    frozen = [v for v in graph.inputs if v.is_initializer()]
    if frozen:
        kept = [v for v in graph.inputs if not v.is_initializer()]
        graph.inputs.clear()
        graph.inputs.extend(kept)
    return [str(v.name) for v in frozen]


def _normalize_domains(model: ir.Model, proto: onnx.ModelProto | None) -> bool:
    """Renames the default domain from "ai.onnx" to "" (synonyms in the ONNX IR specification).

    If a domain is imported under both names, the version of the last import counts, as in runtimes.

    Returns:
        Whether nothing changed.
    """
    imports = [(o.domain, o.version) for o in proto.opset_import] if proto is not None else None
    changed = _normalize_imports(model.opset_imports, imports)
    for function in model.functions.values():
        changed |= _normalize_imports(function.opset_imports, None)
    return not changed


def _normalize_imports(imports: dict[str, int], in_order: Iterable[tuple[str, int]] | None) -> bool:
    if ONNX_DOMAIN not in imports:
        return False
    versions = [v for d, v in in_order or imports.items() if d in ("", ONNX_DOMAIN)]
    del imports[ONNX_DOMAIN]
    imports[""] = versions[-1]
    return True


def read_proto(path: Path, progress: Progress | None = None) -> onnx.ModelProto:
    """Reads the protobuf message in a file, but not its external data.

    Args:
        path: the file.
        progress: called repeatedly with a line of text while a large file is read.

    Raises:
        ModelLoadError: missing, unreadable, empty, a pipe, not a protobuf message, or not an ONNX model.
    """
    if path.is_fifo():
        raise ModelLoadError(f"{path}: is a pipe, but graphopt reads a model more than once: write it to a file first")
    try:
        data = _read(path, progress or (lambda _: None))
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ModelLoadError(f"{path}: {formats.describe_folder(path)}") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except google.protobuf.message.DecodeError:
        why = formats.describe(path, data) or "truncated, or another format"
        raise ModelLoadError(f"{path}: not an ONNX model ({why})") from None
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelLoadError(f"{path}: not an ONNX model ({formats.describe(path, data) or 'it has no graph'})")
    return proto


def _read(path: Path, say: Progress) -> bytes | memoryview:
    """Reads a file, with progress reports for a large one."""
    size = path.stat().st_size
    if size < 2 * BLOCK:  # also true of devices, which have size 0
        return path.read_bytes()
    data, done, start = bytearray(size), 0, time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(memoryview(data)[done : done + BLOCK]):
            done += count
            left = (time.perf_counter() - start) * (size - done) / done
            say(f"reading {path.name}: {done >> 20} of {size >> 20} MiB, {time_left(left)}")
    return memoryview(data)[:done]


def data_files(path: Path) -> list[Path]:
    """Returns the files with a model's external data.

    Raises:
        ModelLoadError: see `read_proto`.
    """
    return [path.parent / location for location in messages.external_files(read_proto(path))]


def _deserialize(proto: onnx.ModelProto, what: str) -> ir.Model:
    # onnx_ir ignores training_info and sparse initializers silently.
    if proto.training_info:
        raise ModelLoadError(f"{what}: has training_info, which graphopt does not support")
    _make_dense(proto.graph, what)
    try:
        return ir.serde.deserialize_model(proto)
    except Exception as error:  # onnx_ir reports malformed models with many exception types
        if kind := _unsupported_type(proto.graph):
            remedy = "; export it without ZipMap (skl2onnx: options={'zipmap': False})" if kind == "map" else ""
            problem = f"has values of {kind} type, which graphopt does not support"
            raise ModelLoadError(f"{what}: {problem}{remedy}") from None
        raise ModelLoadError(f"{what}: not a valid ONNX model: {cause(error)}") from None


def _make_dense(graph: onnx.GraphProto, what: str) -> None:
    """Converts sparse initializers to dense ones, as runtimes do when they load a model.

    Raises:
        ModelLoadError: a sparse initializer violates the specification, has its elements in a file, or is too large.
    """
    for sparse in graph.sparse_initializer:
        label = f"{what}: sparse initializer '{sparse.values.name}'"
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in (sparse.values, sparse.indices)):
            raise ModelLoadError(f"{label} has its elements in a file, which graphopt does not support")
        dims = [*sparse.dims]
        try:
            values, indices = map(onnx.numpy_helper.to_array, (sparse.values, sparse.indices))
            if math.prod(dims) * values.itemsize > MAX_DENSE_BYTES:
                raise ValueError(f"a dense tensor of shape {dims} does not fit into a message")
            if (indices < 0).any():
                raise IndexError("an index is negative")
            dense = np.zeros(dims, values.dtype)
            if indices.ndim == 1:
                dense.reshape(-1)[indices] = values
            else:
                dense[tuple(indices.T)] = values
        except (ValueError, IndexError, TypeError) as error:
            raise ModelLoadError(f"{label} cannot be read: {cause(error)}") from None
        graph.initializer.append(onnx.numpy_helper.from_array(dense, sparse.values.name))
    del graph.sparse_initializer[:]
    for node in graph.node:
        if node.op_type in CONTROL_FLOW:
            for body in messages.bodies(node):
                _make_dense(body, what)


def _is_sparse(graph: onnx.GraphProto) -> bool:
    """Returns whether a graph or its bodies have sparse initializers."""
    inner = (body for node in graph.node for body in messages.bodies(node))
    return bool(graph.sparse_initializer) or any(map(_is_sparse, inner))


def _unsupported_type(graph: onnx.GraphProto) -> str:
    """Returns the kind of the first type in a graph that onnx_ir does not support, "map" or "opaque"; or ""."""
    work = [info.type for info in (*graph.input, *graph.output, *graph.value_info)]
    while work:
        held = work.pop()
        for kind in ("map", "opaque"):
            if held.HasField(f"{kind}_type"):
                return kind
        work += [t.elem_type for t in (held.sequence_type, held.optional_type) if t.HasField("elem_type")]
    for node in graph.node:
        for body in messages.bodies(node):
            if found := _unsupported_type(body):
                return found
    return ""


def _root(error: BaseException) -> BaseException:
    """Returns the innermost cause of an exception."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def cause(error: BaseException) -> str:
    """Returns the message of the innermost cause on one line."""
    return " ".join(str(_root(error)).split())[:300]


def is_graphsurgeon(original: Any) -> bool:
    """Returns whether an object is an `onnx_graphsurgeon.Graph`, by its module: hasattr on a Graph prints messages."""
    return type(original).__module__.startswith("onnx_graphsurgeon.")


def _elements_per_entry(data_type: int) -> float:
    """Returns the number of elements in one entry of a typed field of TensorProto."""
    if data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        return 0.5
    # Elements of 2 and of 4 bits are packed into bytes.
    return {2: 4, 4: 2}.get(element_bits(data_type), 1)


def _check_embedded_data(tensor: ir.serde.TensorProtoTensor, what: str) -> None:
    """Checks that the data of an initializer matches its shape and type."""
    proto = tensor.raw
    data_type = proto.data_type
    if data_type == onnx.TensorProto.STRING:
        return
    if data_type == onnx.TensorProto.UNDEFINED:
        raise ModelLoadError(f"{what}: initializer '{proto.name}' has no element type")
    dims = tensor_dims(tensor)
    size = math.prod(dims)
    if dims and min(dims) < 0:
        raise ModelLoadError(f"{what}: initializer '{proto.name}' has a negative dimension")
    if proto.HasField("raw_data"):
        have, need, unit = len(proto.raw_data), (size * element_bits(data_type) + 7) // 8, "bytes"
    else:
        entries = max(len(getattr(proto, f)) for f in _TYPED_FIELDS)
        have, need, unit = entries, math.ceil(size / _elements_per_entry(data_type)), "elements"
    if have != need:
        label = f"{what}: initializer '{proto.name}'"
        raise ModelLoadError(f"{label} has {have} {unit}, its shape and type need {need}")


_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def _check_data_file(tensor: ir.ExternalTensor) -> None:
    """Checks the file with a tensor's external data, for a model in memory.

    For a message, the file's location is relative to the working directory, as in runtimes.

    Raises:
        ModelLoadError: the file is missing or too short, or the length does not match the tensor's shape and type.
    """
    label, path = f"the model: external data of '{tensor.name}'", Path(tensor.path)
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        raise ModelLoadError(
            f"{label} is missing: no file {str(path)!r}; give the model's path, or load its data first "
            "(onnx.load_external_data_for_model)"
        ) from None
    _check_range(tensor, size, label)


def _check_range(tensor: ir.ExternalTensor, size: int, label: str) -> None:
    """Checks that a tensor's bytes match its shape and type, and are within a file of `size` bytes."""
    need = tensor.nbytes
    offset = tensor.offset or 0
    length = need if tensor.length is None else tensor.length
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelLoadError(f"{label} ends beyond the file {os.fspath(tensor.location)!r} ({size} bytes)")
    if length != need:
        raise ModelLoadError(f"{label} has {length} bytes, its shape and type need {need}")


class _DataFiles:
    """The files with the external data of a model."""

    def __init__(self, model: Path) -> None:
        self._model = model
        # Runtimes look for data files in the folder of the model's path. If the path is a link, its target may be in
        # another folder, as in Hugging Face's cache.
        self._folders = list(dict.fromkeys((model.parent.resolve(), model.resolve().parent)))
        self._found: dict[str, tuple[Path, int]] = {}

    def check(self, tensor: ir.ExternalTensor) -> None:
        """Checks a tensor's file, and sets its folder in the tensor.

        Raises:
            ModelLoadError: the file is missing, too short or outside the model's folder, or the length does not match
                the shape and type of the tensor.
        """
        label = f"{self._model}: external data of '{tensor.name}'"
        location = os.fspath(tensor.location)
        if location not in self._found:
            self._found[location] = self._find(Path(location), label)
        folder, size = self._found[location]
        real = (folder / location).resolve()
        if not real.is_relative_to(folder):
            # onnx_ir refuses links out of a folder; `_find` has checked that this link leads to a folder of the model.
            folder, tensor._location = real.parent, real.name
        tensor.base_dir = folder
        _check_range(tensor, size, label)

    def _find(self, location: Path, label: str) -> tuple[Path, int]:
        """Returns the folder of a file, and the file's size in bytes."""
        try:
            folder = next((f for f in self._folders if (f / location).exists()), self._folders[0])
            outside = not any((folder / location).resolve().is_relative_to(f) for f in self._folders)
            if location.is_absolute() or ".." in location.parts or outside:
                raise ModelLoadError(f"{label} is outside the model's folder: {str(location)!r}")
            if not (folder / location).is_file():
                raise ModelLoadError(f"{label} is missing: no file {str(location)!r} beside the model")
            return folder, (folder / location).stat().st_size
        except (OSError, ValueError) as error:  # an invalid file name
            raise ModelLoadError(f"{label} is missing: {str(location)[:80]!r}: {error.args[-1]}") from None


def _check_structure(graphs: Iterable[ir.Graph], what: str) -> bool:
    """Checks that every input has a producer, and sorts unordered graphs; returns whether all were in order."""
    in_order = True
    for graph in graphs:
        seen: set[ir.Node] = set()
        ordered = True
        texts: list[str | None] = [graph.name, *[v.name for v in graph.inputs], *graph.initializers.data]
        for node in graph:
            texts += (node.op_type, node.domain, node.name)
            texts += [v.name for v in node.outputs]
            texts += node.attributes.data
            for value in node.inputs:
                if value is None:
                    continue
                producer = value.producer()
                if producer is None:
                    if not (value.is_graph_input() or value.is_initializer()):
                        raise ModelLoadError(
                            f"{what}: node '{node.name or node.op_type}' reads '{value.name}', which nothing produces"
                        )
                elif producer.graph is graph and producer not in seen:
                    ordered = False
            seen.add(node)
        _require_text(what, texts)
        if not ordered:
            in_order = False
            try:
                graph.sort()
            except ValueError:
                raise ModelLoadError(f"{what}: the graph '{graph.name}' has a cycle") from None
        for value in graph.outputs:
            if value.producer() is None and not (value.is_graph_input() or value.is_initializer()):
                raise ModelLoadError(f"{what}: nothing produces the graph output '{value.name}'")
    return in_order


def _require_text(what: str, texts: Collection[str | None]) -> None:
    # Protobuf returns text that is not UTF-8 as bytes.
    if bytes in map(type, texts):
        text = next(text for text in texts if isinstance(text, bytes))
        raise ModelLoadError(f"{what}: {text!r} is not UTF-8")


@contextmanager
def as_load_error(source: Source) -> Iterator[None]:
    """Converts an exception in the `with` block to a ModelLoadError if the model has invalid text or is not valid ONNX.

    Raises:
        ModelLoadError: the model has text that is not UTF-8, or ONNX's checker refuses it.
    """
    try:
        yield
    except GraphoptError:
        raise
    except Exception as error:
        checked = source.path if source.path is not None else source.original
        if isinstance(_root(error), UnicodeError):
            raise ModelLoadError(f"{source.path or 'the model'}: holds text that is not UTF-8") from None
        if not isinstance(checked, Path | onnx.ModelProto):
            raise
        try:
            onnx.checker.check_model(checked)
        except Exception as invalid:
            raise ModelLoadError(f"{source.path or 'the model'}: not a valid ONNX model: {cause(invalid)}") from None
        raise


def _read_captures(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Sets types of captured values from their declarations in bodies of operators outside ONNX's domain."""
    for body, proto in foreign_bodies(graph, message):
        declared = {info.name: info.type for info in proto.value_info}
        for value in captures(body):
            if value.type is None and value.name in declared:
                value.type = ir.serde.deserialize_type_proto_for_type(declared[value.name])
                value.shape = ir.serde.deserialize_type_proto_for_shape(declared[value.name])
