"""A model out, in the form in which it came (reading.py). A file appears whole or not at all."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from graphopt import files
from graphopt.errors import ModelLoadError, ModelSaveError
from graphopt.graph.reading import Source, cause, is_graphsurgeon
from graphopt.graph.traversal import (
    captures,
    external_tensors,
    foreign_bodies,
    graphs,
    is_external,
    tensor_bytes,
    tensor_dims,
)

# A protobuf message holds less than 2 GiB; leave room for the graph around the weights.
MAX_EMBEDDED_BYTES = 1_800_000_000

# Tensors below this stay inside the .onnx file even when the others go outside.
MIN_EXTERNAL_BYTES = 1024


# Looks at a model's message, where one is made, and at its bytes, where they are, before anybody gets it.
Check = Callable[[onnx.ModelProto | None, bytes | None], None]


def give_back(source: Source, model: ir.Model | None, check: Check) -> Any:
    """The optimized model in the form of `source` (not for paths: those are written with `save`).

    None stands for a model with nothing to do, which is a copy of what came.
    """
    original = source.original
    as_message = isinstance(original, onnx.ModelProto) or is_graphsurgeon(original)
    message = _serialize(model, list(graphs(model))) if model is not None and as_message else None
    check(message, None)
    if isinstance(original, onnx.ModelProto):
        if message is not None:
            return message
        proto = onnx.ModelProto()
        proto.CopyFrom(original)
        return proto
    if isinstance(original, ir.Model):
        return model or original.clone()
    if not is_graphsurgeon(original):
        program = copy.copy(original)
        program.model = model or original.model.clone()
        return program
    import onnx_graphsurgeon as gs
    from onnx_graphsurgeon.logger import G_LOGGER

    with G_LOGGER.suppress():
        graph = original.copy() if message is None else gs.import_onnx(message)
    graph.metadata_props = dict(model.metadata_props if model else vars(original).get("metadata_props", {}))
    return graph


def save(model: ir.Model, out: Path, *, external_data: bool | None = None, check: Check = lambda *_: None) -> None:
    """Writes `model` to `out`, whole or not at all.

    Weights that the input keeps in data files stay there when `out` lies in the same folder; in another folder the
    data files are copied. New weights of a model that does not fit into one protobuf message go into one new data file
    with a fresh name. The .onnx file is renamed into place last, so an older model never sees new bytes.

    Args:
        model: the optimized model.
        out: the file to write; its folder must exist.
        external_data: True moves all large weights out of the .onnx file, False none, None where needed.
        check: is shown what will be written, and may raise.

    Raises:
        ModelSaveError: the folder is missing or not writable, the disk is full, or the weights do not fit.
    """
    created: list[Path] = []
    data = b""
    try:
        every = list(graphs(model))
        _place_external_data(every, out, external_data, created)
        if out.is_symlink() and out.parent.resolve() != files.target_of(out).parent and _has_external_data(every):
            raise ModelSaveError(f"{out}: leads to another folder, where runtimes would not find the weights' files")
        message = _serialize(model, every)
        data = message.SerializeToString(deterministic=True)
        check(message, data)
        files.write(out, data)
    except BaseException as error:
        if not _holds(out, data):  # an interrupt may come when it has just been put into place
            for path in created:
                path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ModelSaveError(f"{out}: cannot be written: {error.strerror or error}") from None
        raise


def _holds(out: Path, data: bytes) -> bool:
    try:
        return bool(data) and out.read_bytes() == data
    except OSError:
        return False


def copy_unchanged(source: Source, out: Path) -> None:
    """Writes the input file's own bytes to `out`: a model with nothing to do comes out equal.

    Raises:
        ModelSaveError: as `save`.
    """
    assert source.path is not None
    if files.same(out, source.path):
        return
    if not _lie_in(files.target_of(out).parent, list(graphs(source.model))):
        save(source.model, out)
        return
    files.write(out, source.path.read_bytes())


def _has_external_data(every: Sequence[ir.Graph]) -> bool:
    return any(True for _ in external_tensors(every))


def _serialize(model: ir.Model, every: Sequence[ir.Graph]) -> onnx.ModelProto:
    """The model as a message; the initializers of its graphs lose the type and shape that their tensors have, too."""
    for graph in every:
        for value in graph.initializers.data.values():
            if value.is_graph_input() or value.is_graph_output():
                continue
            if value.doc_string or value.metadata_props:  # onnx_ir writes those into value_info
                value.type, value.shape = _declared(value)
            else:  # and these, where exporters have none of them
                value.type = value.shape = None
    try:
        message = ir.serde.serialize_model(model)
    except Exception as error:  # a text that is no UTF-8, a number that its field cannot hold
        raise ModelLoadError(f"the model cannot be written as ONNX: {cause(error)}") from None
    if len(every) > 1 + len(model.functions):
        _describe_captures(model.graph, message.graph)
    return message


def _describe_captures(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Declares in the bodies of foreign operators what they read outside, which onnx_ir leaves out.

    ONNX Runtime takes the types from there where a body is a session of its own (BeamSearch and its like).
    """
    for body, proto in foreign_bodies(graph, message):
        for value in captures(body):
            type_, shape = _declared(value)
            if type_ is not None:
                described = ir.Value(name=value.name, type=type_, shape=shape)
                ir.serde.serialize_value_into(proto.value_info.add(), described)


def _declared(value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Type and shape, of its tensor where it has one."""
    tensor = value.const_value
    if tensor is None:
        return value.type, value.shape
    return ir.TensorType(tensor.dtype), ir.Shape(tensor_dims(tensor))


def _place_external_data(every: Sequence[ir.Graph], out: Path, external_data: bool | None, created: list[Path]) -> None:
    """Decides where each large weight lives, copying or writing data files; appends new files to `created`."""
    folder = files.target_of(out).parent
    values = [v for g in every for v in g.initializers.data.values() if v.const_value is not None]
    embedded = [v for v in values if not is_external(v.const_value)]
    if external_data is False:
        if sum(tensor_bytes(v.const_value) for v in values if v.const_value is not None) > MAX_EMBEDDED_BYTES:
            raise ModelSaveError(f"{out}: the weights do not fit into one file; leave out --no-external-data")
        for value in values:
            if is_external(value.const_value):
                value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
        return
    if not _lie_in(folder, every):
        _copy_data_files(every, folder, out.name, created)
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


def _lie_in(folder: Path, every: Sequence[ir.Graph]) -> bool:
    """Whether all external data of these graphs is in a folder."""
    return all(Path(tensor.base_dir).resolve() == folder for tensor in external_tensors(every))


def _copy_data_files(every: Sequence[ir.Graph], folder: Path, name: str, created: list[Path]) -> None:
    copies: dict[str, Path] = {}
    for tensor in external_tensors(every):
        if tensor.path not in copies:
            target = _fresh_name(folder, f"{name}.{Path(tensor.location).name}")
            created.append(target)
            _copy_in_kernel(Path(tensor.path), target)
            copies[tensor.path] = target
    for graph in every:
        for value in graph.initializers.values():
            old = value.const_value
            if is_external(old):
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
