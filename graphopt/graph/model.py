"""Any form of a model in, one `onnx_ir.Model` inside, the same form out.

Forms: a path, an `onnx.ModelProto`, an `onnx_ir.Model`, the program object of `torch.onnx.export` (anything whose
`.model` is an `onnx_ir.Model`) and an `onnx_graphsurgeon.Graph`. Weights stay on disk (memory-mapped) until a rewrite
asks for them. A file appears whole or not at all.
"""

from __future__ import annotations

import copy
import errno
import functools
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google.protobuf.message
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from graphopt import files
from graphopt.errors import GraphoptError, ModelLoadError, ModelSaveError

# A protobuf message holds less than 2 GiB; leave room for the graph around the weights.
MAX_EMBEDDED_BYTES = 1_800_000_000
# Tensors below this stay inside the .onnx file even when the others go outside.
MIN_EXTERNAL_BYTES = 1024
_GRAPH, _GRAPHS, _TENSOR = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR
# From this IR version on an initializer that is also a graph input can be overridden by callers.
FIRST_OVERRIDABLE_IR_VERSION = 4
# The other name of the default domain.
ONNX_DOMAIN = "ai.onnx"


@dataclass
class Source:
    """A loaded model and what is needed to give it back in the form in which it came.

    Attributes:
        model: ours to change; never the caller's object.
        original: what the caller gave.
        path: where it came from, when it came from a file.
        proto: the message that `model` was made from, when there is one and its nodes stand in the same order.
    """

    model: ir.Model
    original: Any
    path: Path | None = None
    proto: onnx.ModelProto | None = None


def load(original: Any) -> Source:
    """Takes any form of a model without changing it.

    Raises:
        ModelLoadError: missing or unreadable file, not ONNX, truncated, names that lead nowhere, a cyclic graph, or
            external data that is missing, out of range or outside the model's folder.
    """
    path: Path | None = None
    proto: onnx.ModelProto | None = None
    if isinstance(original, str | os.PathLike):
        path = Path(original)
        proto = read_proto(path)
        model = _deserialize(proto, str(path))
    elif isinstance(original, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(original)
        model = _deserialize(proto, "the model")
    elif isinstance(original, ir.Model):
        model = original.clone()
    elif isinstance(getattr(original, "model", None), ir.Model):
        model = original.model.clone()
    elif _is_graphsurgeon(original):
        import onnx_graphsurgeon as gs

        model = _deserialize(gs.export_onnx(original), "the graph")
    else:
        raise ModelLoadError(
            f"cannot take a {type(original).__name__} as a model; "
            "give a path, onnx.ModelProto, onnx_ir.Model, torch.onnx program or onnx_graphsurgeon.Graph"
        )
    what = str(path) if path else "the model"
    found = list(graphs(model))
    in_order = _check_structure(found, what)
    data_files = _DataFiles(path) if path is not None else None
    for tensor in _tensors(found):
        if isinstance(tensor, ir.serde.TensorProtoTensor):
            _check_embedded_data(tensor, what)
        elif isinstance(tensor, ir.ExternalTensor) and data_files is not None:
            data_files.check(tensor)
    if model.ir_version < FIRST_OVERRIDABLE_IR_VERSION:
        # There every initializer is also a graph input, and runtimes treat it as a constant (docs/architecture.md).
        freeze_initializers(model)
        model.ir_version = FIRST_OVERRIDABLE_IR_VERSION
    if proto is not None and in_order:
        _read_captures(model.graph, proto.graph)
    as_it_came = _normalize_domains(model, proto) and in_order
    return Source(model, original, path, proto if as_it_came else None)


def freeze_initializers(model: ir.Model) -> list[str]:
    """Takes initializers off the graph inputs, which makes them constants that callers cannot override; their names."""
    graph = model.graph
    frozen = [v for v in graph.inputs if v.is_initializer()]
    if frozen:
        kept = [v for v in graph.inputs if not v.is_initializer()]
        graph.inputs.clear()
        graph.inputs.extend(kept)
    return [str(v.name) for v in frozen]


def _normalize_domains(model: ir.Model, proto: onnx.ModelProto | None) -> bool:
    """Spells the default domain "", whose other name is "ai.onnx" (ONNX IR specification); True when it was so.

    Where a domain is imported twice the last version counts, as for the runtimes.
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


def read_proto(path: Path) -> onnx.ModelProto:
    """The protobuf message of a file, external data not loaded.

    Raises:
        ModelLoadError: missing, unreadable, empty, not a protobuf message, or no ONNX model.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except google.protobuf.message.DecodeError:
        raise ModelLoadError(f"{path}: not an ONNX model (truncated, or another format)") from None
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelLoadError(f"{path}: not an ONNX model (it has no graph)")
    return proto


def give_back(source: Source, model: ir.Model | None) -> Any:
    """The optimized model in the form of `source` (not for paths: those are written with `save`).

    None stands for a model with nothing to do, which is a copy of what came.
    """
    original = source.original
    if isinstance(original, onnx.ModelProto):
        if model is not None:
            return _serialize(model)
        proto = onnx.ModelProto()
        proto.CopyFrom(original)
        return proto
    if isinstance(original, ir.Model):
        return model or original.clone()
    if isinstance(getattr(original, "model", None), ir.Model):
        program = copy.copy(original)
        program.model = model or original.model.clone()
        return program
    import onnx_graphsurgeon as gs

    return original.copy() if model is None else gs.import_onnx(_serialize(model))


def save(model: ir.Model, out: Path, *, external_data: bool | None = None) -> None:
    """Writes `model` to `out`, whole or not at all.

    Weights that the input keeps in data files stay there when `out` lies in the same folder; in another folder the
    data files are copied. New weights of a model that does not fit into one protobuf message go into one new data file
    with a fresh name. The .onnx file is renamed into place last, so an older model never sees new bytes.

    Args:
        model: the optimized model.
        out: the file to write; its folder must exist.
        external_data: True moves all large weights out of the .onnx file, False none, None where needed.

    Raises:
        ModelSaveError: the folder is missing or not writable, the disk is full, or the weights do not fit.
    """
    created: list[Path] = []
    try:
        _place_external_data(model, out, external_data, created)
        if out.is_symlink() and out.parent.resolve() != files.target_of(out).parent and _has_external_data(model):
            raise ModelSaveError(f"{out}: leads to another folder, where runtimes would not find the weights' files")
        files.write(out, lambda file: file.write(_serialize(model).SerializeToString(deterministic=True)))
    except OSError as error:
        for path in created:
            path.unlink(missing_ok=True)
        raise ModelSaveError(f"{out}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        for path in created:
            path.unlink(missing_ok=True)
        raise


def copy_unchanged(source: Source, out: Path) -> None:
    """Writes the input file's own bytes to `out`: a model with nothing to do comes out equal.

    Raises:
        ModelSaveError: as `save`.
    """
    assert source.path is not None
    if files.same(out, source.path):
        return
    if not _lie_in(files.target_of(out).parent, source.model):
        save(source.model, out)
        return
    files.write(out, source.path.read_bytes())


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Every graph of the model: main, subgraphs, functions and theirs."""
    yield from with_subgraphs(model.graph)
    for function in model.functions.values():
        yield from with_subgraphs(function.graph)


def with_subgraphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and the bodies in it, at any depth."""
    yield graph
    for node in graph:
        if node.attributes.data:
            for body in bodies(node):
                yield from with_subgraphs(body)


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs that are attributes of a node."""
    found: list[ir.Graph] = []
    # `.data`, since the views of onnx_ir's containers make several calls for each item, which counts over whole graphs.
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is _GRAPH and not attribute.is_ref():
            found.append(attribute.value)
        elif kind is _GRAPHS and not attribute.is_ref():
            found += attribute.value
    return found


def _has_external_data(model: ir.Model) -> bool:
    return any(True for _ in external_tensors(model))


def data_files(path: Path) -> list[Path]:
    """The files beside a model in which it keeps weights.

    Raises:
        ModelLoadError: as `read_proto`.
    """
    graph = read_proto(path).graph
    external = [t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    locations = dict.fromkeys(e.value for t in external for e in t.external_data if e.key == "location")
    return [path.parent / location for location in locations]


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for tensor in _tensors(graphs(model)):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor


def _tensors(graphs: Iterable[ir.Graph]) -> Iterator[ir.TensorProtocol]:
    for graph in graphs:
        for value in graph.initializers.data.values():
            if value.const_value is not None:
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.data.values():
                if attribute.type is _TENSOR and not attribute.is_ref():
                    yield attribute.value


def _deserialize(proto: onnx.ModelProto, what: str) -> ir.Model:
    # onnx_ir would leave them out without a word.
    for field, name in (
        (proto.graph.sparse_initializer, "sparse initializers"),
        (proto.training_info, "training_info"),
    ):
        if field:
            raise ModelLoadError(f"{what}: has {name}, which graphopt does not support")
    try:
        return ir.serde.deserialize_model(proto)
    except Exception as error:  # onnx_ir reports malformed models with many exception types
        if kind := _unsupported_type(proto.graph):
            raise ModelLoadError(f"{what}: has values of {kind} type, which graphopt does not support") from None
        raise ModelLoadError(f"{what}: not a valid ONNX model: {_cause(error)}") from None


def _unsupported_type(graph: onnx.GraphProto) -> str:
    """The kind of type, among those of a graph's values, that onnx_ir has no words for; "" when there is none."""
    work = [info.type for info in (*graph.input, *graph.output, *graph.value_info)]
    while work:
        held = work.pop()
        for kind in ("map", "opaque"):
            if held.HasField(f"{kind}_type"):
                return kind
        work += [t.elem_type for t in (held.sequence_type, held.optional_type) if t.HasField("elem_type")]
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if found := _unsupported_type(body):
                    return found
    return ""


def _root(error: BaseException) -> BaseException:
    """The innermost exception."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _cause(error: BaseException) -> str:
    """What the innermost exception says, on one line."""
    return " ".join(str(_root(error)).split())[:300]


def _is_graphsurgeon(original: Any) -> bool:
    return type(original).__module__.startswith("onnx_graphsurgeon.")


# Elements for each entry of a typed field of TensorProto, where that is not one.
_ELEMENTS_PER_ENTRY: dict[int, float] = {
    onnx.TensorProto.COMPLEX64: 0.5,
    onnx.TensorProto.COMPLEX128: 0.5,
    onnx.TensorProto.INT4: 2,
    onnx.TensorProto.UINT4: 2,
}


def _check_embedded_data(tensor: ir.serde.TensorProtoTensor, what: str) -> None:
    """The bytes of an initializer must match its shape and type."""
    proto = tensor.raw
    if proto.data_type == onnx.TensorProto.STRING:
        return
    if proto.data_type == onnx.TensorProto.UNDEFINED:
        raise ModelLoadError(f"{what}: initializer '{proto.name}' has no element type")
    dims = tuple(proto.dims)
    size = math.prod(dims)
    if dims and min(dims) < 0:
        raise ModelLoadError(f"{what}: initializer '{proto.name}' has a negative dimension")
    if proto.HasField("raw_data"):
        have, need, unit = len(proto.raw_data), (size * _bits(proto.data_type) + 7) // 8, "bytes"
    else:
        entries = max(len(getattr(proto, f)) for f in _TYPED_FIELDS)
        per_entry = _ELEMENTS_PER_ENTRY.get(proto.data_type, 1)
        have, need, unit = entries, math.ceil(size / per_entry), "elements"
    if have != need:
        label = f"{what}: initializer '{proto.name}'"
        raise ModelLoadError(f"{label} has {have} {unit}, its shape and type need {need}")


@functools.cache
def _bits(data_type: int) -> int:
    """Of one element; onnx_ir makes an enum member each time."""
    return ir.DataType(data_type).bitwidth


# onnx_ir asks an enum for every property of a tensor and makes a Shape each time, which counts where a graph has
# 100,000 constants. The three functions below ask the message itself.
_ARRAYS: dict[int, np.dtype[Any]] = {
    int(ir.DataType.FLOAT): np.dtype("<f4"),
    int(ir.DataType.FLOAT16): np.dtype("<f2"),
    int(ir.DataType.DOUBLE): np.dtype("<f8"),
    int(ir.DataType.INT64): np.dtype("<i8"),
    int(ir.DataType.INT32): np.dtype("<i4"),
}


def tensor_dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The dimensions of a tensor."""
    return tuple(tensor.raw.dims if isinstance(tensor, ir.serde.TensorProtoTensor) else tensor.shape.numpy())


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Bytes of a tensor's elements."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        elements: int = math.prod(tensor.raw.dims)
        return (elements * _bits(tensor.raw.data_type) + 7) // 8
    return tensor.nbytes


def tensor_array(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """A tensor's elements; not to be written to."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        message = tensor.raw
        if (dtype := _ARRAYS.get(message.data_type)) is not None and message.HasField("raw_data"):
            array: npt.NDArray[Any] = np.frombuffer(message.raw_data, dtype)
            return array.reshape(tuple(message.dims))
    return np.asarray(tensor.numpy())


_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


class _DataFiles:
    """The files beside a model that hold its external data."""

    def __init__(self, model: Path) -> None:
        self._model = model
        # Runtimes look where the path says; a link's target may have its own folder (Hugging Face's cache is so).
        self._folders = list(dict.fromkeys((model.parent.resolve(), model.resolve().parent)))
        self._found: dict[str, tuple[Path, int]] = {}

    def check(self, tensor: ir.ExternalTensor) -> None:
        """Tells a tensor where its file is.

        Raises:
            ModelLoadError: a file that is missing or outside the model's folder, or bytes that are not there.
        """
        label = f"{self._model}: external data of '{tensor.name}'"
        location = os.fspath(tensor.location)
        if location not in self._found:
            self._found[location] = self._find(Path(location), label)
        folder, size = self._found[location]
        real = (folder / location).resolve()
        if not real.is_relative_to(folder):
            # onnx_ir reads no link out of its folder; we have seen that this one leads to the model's own.
            folder, tensor._location = real.parent, real.name
        tensor.base_dir = folder
        need = tensor.nbytes
        offset = tensor.offset or 0
        length = need if tensor.length is None else tensor.length
        if offset < 0 or length < 0 or offset + length > size:
            raise ModelLoadError(f"{label} ends beyond the file {location!r} ({size} bytes)")
        if length != need:
            raise ModelLoadError(f"{label} has {length} bytes, its shape and type need {need}")

    def _find(self, location: Path, label: str) -> tuple[Path, int]:
        """The folder in which the file is, and its size."""
        try:
            folder = next((f for f in self._folders if (f / location).exists()), self._folders[0])
            outside = not any((folder / location).resolve().is_relative_to(f) for f in self._folders)
            if location.is_absolute() or ".." in location.parts or outside:
                raise ModelLoadError(f"{label} lies outside the model's folder: {str(location)!r}")
            if not (folder / location).is_file():
                raise ModelLoadError(f"{label} is missing: no file {str(location)!r} beside the model")
            return folder, (folder / location).stat().st_size
        except (OSError, ValueError) as error:  # not a name that a file can have
            raise ModelLoadError(f"{label} is missing: {str(location)[:80]!r}: {error.args[-1]}") from None


def _check_structure(graphs: Iterable[ir.Graph], what: str) -> bool:
    """Every input of a node must come from somewhere. Sorts graphs that are out of order; True when none was."""
    in_order = True
    for graph in graphs:
        seen: set[ir.Node] = set()
        ordered = True
        _require_text(what, graph.name, *[v.name for v in graph.inputs], *graph.initializers.data)
        for node in graph:
            _require_text(
                what, node.op_type, node.domain, node.name, *[v.name for v in node.outputs], *node.attributes.data
            )
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


def _require_text(what: str, *texts: str | None) -> None:
    for text in texts:
        # Protobuf gives text that is no UTF-8 as bytes.
        if isinstance(text, bytes):
            raise ModelLoadError(f"{what}: {text!r} is not UTF-8")


@contextmanager
def blamed_on_the_model(source: Source) -> Iterator[None]:
    """A failure inside is the model's where ONNX's checker refuses the model, and ours where it does not.

    Raises:
        ModelLoadError: the model is not valid; the checker says why.
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
            raise ModelLoadError(f"{source.path or 'the model'}: not a valid ONNX model: {_cause(invalid)}") from None
        raise


def _serialize(model: ir.Model) -> onnx.ModelProto:
    """The model as a message; its initializers lose the type and shape that their tensors have, too."""
    for graph in graphs(model):
        for value in graph.initializers.data.values():
            if not (value.is_graph_input() or value.is_graph_output()):
                # onnx_ir would write them into value_info, where exporters have none of them.
                value.type = value.shape = None
    try:
        message = ir.serde.serialize_model(model)
    except Exception as error:  # a text that is no UTF-8, a number that its field cannot hold
        raise ModelLoadError(f"the model cannot be written as ONNX: {_cause(error)}") from None
    _describe_captures(model.graph, message.graph)
    return message


def _describe_captures(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Declares in the bodies of foreign operators what they read outside, which onnx_ir leaves out.

    ONNX Runtime takes the types from there where a body is a session of its own (BeamSearch and its like).
    """
    for body, proto in _foreign_bodies(graph, message):
        for value in _captures(body):
            tensor = value.const_value
            type_ = value.type if tensor is None else ir.TensorType(tensor.dtype)
            shape = value.shape if tensor is None else ir.Shape(tensor_dims(tensor))
            if type_ is not None:
                described = ir.Value(name=value.name, type=type_, shape=shape)
                ir.serde.serialize_value_into(proto.value_info.add(), described)


def _read_captures(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Gives values the types that bodies of foreign operators declare for them."""
    for body, proto in _foreign_bodies(graph, message):
        declared = {info.name: info.type for info in proto.value_info}
        for value in _captures(body):
            if value.type is None and value.name in declared:
                value.type = ir.serde.deserialize_type_proto_for_type(declared[value.name])
                value.shape = ir.serde.deserialize_type_proto_for_shape(declared[value.name])


def _foreign_bodies(graph: ir.Graph, message: onnx.GraphProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """The bodies of nodes of foreign domains, with their messages; `message` holds the nodes of `graph` in order."""
    for i, node in enumerate(graph):
        if inner := bodies(node):
            protos = (g for a in message.node[i].attribute for g in ((a.g,) if a.type == a.GRAPH else a.graphs))
            for body, proto in zip(inner, protos):
                if node.domain != "":
                    yield body, proto
                yield from _foreign_bodies(body, proto)


def _captures(body: ir.Graph) -> list[ir.Value]:
    """The values that a body reads from the graphs around it."""
    inside = set(with_subgraphs(body))
    read = dict.fromkeys(v for graph in inside for node in graph for v in node.inputs if v is not None)
    return sorted((v for v in read if v.graph not in inside), key=lambda v: str(v.name))


def _place_external_data(model: ir.Model, out: Path, external_data: bool | None, created: list[Path]) -> None:
    """Decides where each large weight lives, copying or writing data files; appends new files to `created`."""
    folder = files.target_of(out).parent
    values = [v for g in graphs(model) for v in g.initializers.data.values() if v.const_value is not None]
    embedded = [v for v in values if not isinstance(v.const_value, ir.ExternalTensor)]
    if external_data is False:
        if sum(tensor_bytes(v.const_value) for v in values if v.const_value is not None) > MAX_EMBEDDED_BYTES:
            raise ModelSaveError(f"{out}: the weights do not fit into one file; leave out --no-external-data")
        for value in values:
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
        return
    if not _lie_in(folder, model):
        _copy_data_files(model, folder, out.name, created)
    outside = len(embedded) < len(values)
    large, total = [], 0
    for value in embedded:
        assert value.const_value is not None
        if (size := tensor_bytes(value.const_value)) >= MIN_EXTERNAL_BYTES:
            large.append(value)
            total += size
    if not large or not (external_data or outside or total > MAX_EMBEDDED_BYTES):
        return
    data = _fresh_name(folder, f"{out.name}.data")
    created.append(data)
    with data.open("xb") as file:
        for value in large:
            tensor = value.const_value
            assert tensor is not None
            # 64-byte alignment lets kernels read the mapped weights with aligned vector loads.
            file.write(b"\0" * (-file.tell() % 64))
            offset = file.tell()
            if isinstance(tensor, ir.LazyTensor):
                tensor.tofile(file)
            else:
                file.write(tensor.tobytes())
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = ir.ExternalTensor(
                data.name, offset, tensor.nbytes, tensor.dtype, shape=shape, name=str(value.name), base_dir=folder
            )
        file.flush()
        os.fsync(file.fileno())


def _lie_in(folder: Path, model: ir.Model) -> bool:
    """Whether all external data of a model is in a folder."""
    return all(Path(tensor.base_dir).resolve() == folder for tensor in external_tensors(model))


def _copy_data_files(model: ir.Model, folder: Path, name: str, created: list[Path]) -> None:
    copies: dict[str, Path] = {}
    for tensor in external_tensors(model):
        if tensor.path not in copies:
            target = _fresh_name(folder, f"{name}.{Path(tensor.location).name}")
            created.append(target)
            _copy_in_kernel(Path(tensor.path), target)
            copies[tensor.path] = target
    for graph in graphs(model):
        for value in graph.initializers.values():
            old = value.const_value
            if isinstance(old, ir.ExternalTensor):
                value.const_value = ir.ExternalTensor(
                    copies[old.path].name,
                    old.offset,
                    old.length,
                    old.dtype,
                    shape=ir.Shape(old.shape.numpy()),
                    name=str(value.name),
                    base_dir=folder,
                )


# What copy_file_range says between file systems, or on one, that it does not serve.
_NOT_SERVED = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def _copy_in_kernel(source: Path, target: Path) -> None:
    """Copies a file without its bytes passing through this process; holes stay holes."""
    with source.open("rb") as read, target.open("xb") as write:
        a, b = read.fileno(), write.fileno()
        size = os.fstat(a).st_size
        os.truncate(b, size)
        end = 0
        while end < size:
            try:
                start = os.lseek(a, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # a hole up to the end
            end = os.lseek(a, start, os.SEEK_HOLE)
            while start < end:
                copied = _copy_range(a, b, start, end - start)
                if not copied:
                    raise OSError(errno.EIO, f"{source} became shorter while it was copied")
                start += copied
        os.fsync(b)


def _copy_range(a: int, b: int, offset: int, count: int) -> int:
    try:
        return os.copy_file_range(a, b, count, offset, offset)
    except OSError as error:
        if error.errno not in _NOT_SERVED:
            raise
    os.lseek(b, offset, os.SEEK_SET)
    return os.sendfile(b, a, offset, count)


def _fresh_name(folder: Path, name: str) -> Path:
    path, n = folder / name, 0
    while path.exists():
        n += 1
        path = folder / f"{name}.{n}"
    return path
