"""Returns or writes a model in its original form (reading.py). A file is written completely or not at all."""

from __future__ import annotations

import copy
import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir

from graphopt import files, shared_weights
from graphopt.errors import ModelLoadError, ModelSaveError
from graphopt.graph.reading import Source, cause, data_files, is_graphsurgeon
from graphopt.graph.traversal import (
    captures,
    external_tensors,
    foreign_bodies,
    graphs,
    is_external,
    tensor_bytes,
    tensor_dims,
)

# A protobuf message is limited to 2 GiB; this leaves space for the graph.
MAX_EMBEDDED_BYTES = 1_800_000_000

# Tensors with fewer bytes are kept in the .onnx file when large ones are written to a data file.
MIN_EXTERNAL_BYTES = 1024

# Alignment of a data file's tensors in bytes: kernels read memory-mapped weights with aligned vector loads.
ALIGNMENT = 64

# Bytes of a file-system block, and the least bytes of a range that is aligned to blocks (see `_copy_ranges`).
BLOCK = 4096
LONG = 1 << 20


# Checks a model's message and its bytes, if there are any, before the model is returned or written.
Check = Callable[[onnx.ModelProto | None, bytes | None], None]


def in_original_form(source: Source, model: ir.Model | None, check: Check) -> Any:
    """Returns the optimized model in the form of `source`; `save` writes models that were read from paths.

    Args:
        source: the loaded model.
        model: the optimized model; None if there were no rewrites, which returns a copy of the original.
        check: called before the model is returned; may raise.

    Raises:
        ModelSaveError: the weights do not fit into a message. It must contain them all, because it does not record the
            folder of data files.
    """
    original = source.original
    as_message = isinstance(original, onnx.ModelProto) or is_graphsurgeon(original)
    message = None
    if as_message and (model is not None or source.data_files):
        model = model or source.model
        every = list(graphs(model))
        _embed(_slots(every), "the weights do not fit into a message; give `out`, a file to write")
        model.metadata_props.pop(shared_weights.METADATA, None)
        message = to_message(model, every)
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


@dataclass(frozen=True)
class Written:
    """The files of a written model.

    Attributes:
        files: path -> bytes of each new file, the model first.
        shared: path -> bytes of each file of the input that the model refers to.
    """

    files: dict[Path, int]
    shared: dict[Path, int]


def data_file(out: Path) -> Path:
    """Returns the data file of a model, OUT.data in the folder of OUT.

    Raises:
        ModelSaveError: `out` exists and is not a regular file.
    """
    return files.target_of(out).parent / f"{out.name}.data"


def check_output_path(what: str, out: Path, inputs: Iterable[Path]) -> None:
    """Checks before any work whether a model can be written.

    Args:
        what: the user's name for the file, such as "OUT".
        out: the file.
        inputs: the input model's files, which the model and its data file must not replace.

    Raises:
        ModelSaveError: see `files.check_output_paths`.
    """
    files.check_output_paths({what: out, f"the data file of {what}": data_file(out)}, inputs)


def save(
    model: ir.Model,
    out: Path,
    *,
    external_data: bool | None = None,
    share_weights: bool = False,
    check: Check = lambda *_: None,
) -> Written:
    """Writes `model` to `out` and large weights to OUT.data in the same folder: both files or none.

    Unless `share_weights` is set, the result refers to no other file: the input's data files are copied, inside the
    operating system's kernel if the file system supports it. If the new model has no OUT.data, the OUT.data of an
    earlier OUT is removed.

    Args:
        model: the optimized model; its tensors refer to the new files afterwards.
        out: the file to write; its folder must exist.
        external_data: True moves all large weights into OUT.data, and False moves no weights. With None, the large
            weights are moved if some are external already, or if they do not fit into a message.
        share_weights: refers to the input's files instead of copying them, and records their sizes and hashes.
        check: called with the message and its bytes before they are written; may raise.

    Raises:
        ModelSaveError: the folder is missing or not writable, the disk is full, the weights do not fit, or weights to
            share are in another folder.
    """
    every = list(graphs(model))
    model.metadata_props.pop(shared_weights.METADATA, None)
    folder, data = files.target_of(out).parent, data_file(out)
    shared = _record_shared(model, every, folder) if share_weights else {}
    outside = [slot for slot in _slots(every) if not (share_weights and is_external(slot.tensor))]
    if external_data is False:
        _embed(outside, f"{out}: the weights do not fit into one file; leave out --no-external-data")
        moved = []
    else:
        moved = _to_move(outside, external_data, force=bool(shared))
    if (moved or shared) and out.is_symlink() and out.parent.resolve() != folder:
        raise ModelSaveError(f"{out}: is a link to another folder, where runtimes would not find the weights' files")
    obsolete = not moved and data not in shared and _refers_to(out, data)
    offsets: list[int] = []

    def fill(file: BinaryIO) -> None:
        offsets.extend(_fill(file, moved))

    def content(name: str) -> bytes:
        for slot, offset in zip(moved, offsets, strict=True):
            slot.put(_external(slot.tensor, name, offset, folder))
        message = to_message(model, every)
        written: bytes = message.SerializeToString(deterministic=True)
        if name in ("", data.name):
            check(message, written)
        return written

    try:
        if moved:
            files.write_with_data(out, data, fill, content)
        else:
            files.write(out, content(""))
            if obsolete:
                data.unlink(missing_ok=True)
    except OSError as error:
        raise ModelSaveError(f"{out}: cannot be written: {error.strerror or error}") from None
    placed = [out, out.with_name(data.name)] if moved else [out]
    return Written({path: path.stat().st_size for path in placed}, shared)


def copy_unchanged(source: Source, out: Path, *, share_weights: bool = False) -> Written:
    """Writes a model without rewrites, byte for byte if it has no data file other than OUT.data.

    Raises:
        ModelSaveError: see `save`.
    """
    assert source.path is not None
    if any(not files.same(path, data_file(out)) for path in source.data_files):
        return save(source.model, out, share_weights=share_weights)
    if not files.same(out, source.path):
        copy_file(source.path, out)
    return Written({out: out.stat().st_size}, {})


def copy_file(model: Path, out: Path) -> None:
    """Copies a model without external data; OUT.data of an earlier OUT is removed.

    Raises:
        ModelSaveError: see `files.write`.
    """
    data = data_file(out)
    obsolete = _refers_to(out, data)
    files.write(out, lambda file: _copy_ranges(file, model, [(0, model.stat().st_size)]))
    if obsolete:
        data.unlink(missing_ok=True)


def to_message(model: ir.Model, every: Sequence[ir.Graph] | None = None) -> onnx.ModelProto:
    """Serializes the model; removes the types and shapes of initializers, which their tensors repeat.

    Args:
        model: the model.
        every: all of its graphs, if they are known.

    Raises:
        ModelLoadError: the model has text or integers that a message cannot represent.
    """
    every = list(graphs(model)) if every is None else every
    for graph in every:
        for value in graph.initializers.data.values():
            if value.is_graph_input() or value.is_graph_output():
                continue
            if value.doc_string or value.metadata_props:  # onnx_ir writes these to a value_info, which needs a type
                value.type, value.shape = _declared(value)
            else:  # without a type onnx_ir writes no value_info; exporters write none either
                value.type = value.shape = None
    try:
        message = ir.serde.serialize_model(model)
    except Exception as error:  # text that is not UTF-8, or an integer beyond its field's range
        raise ModelLoadError(f"the model cannot be written as ONNX: {cause(error)}") from None
    if len(every) > 1 + len(model.functions):
        _describe_captures(model.graph, message.graph)
    return message


def _describe_captures(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Declares captured values, which onnx_ir omits, in the bodies of operators outside ONNX's domain.

    ONNX Runtime needs these types for operators that run a body as a separate session, such as BeamSearch.
    """
    for body, proto in foreign_bodies(graph, message):
        for value in captures(body):
            type_, shape = _declared(value)
            if type_ is not None:
                described = ir.Value(name=value.name, type=type_, shape=shape)
                ir.serde.serialize_value_into(proto.value_info.add(), described)


def _declared(value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Returns the type and shape of a value's tensor, or of the value if it has none."""
    tensor = value.const_value
    if tensor is None:
        return value.type, value.shape
    return ir.TensorType(tensor.dtype), ir.Shape(tensor_dims(tensor))


@dataclass
class _Slot:
    """A tensor of a model, and the setter that replaces it."""

    tensor: ir.TensorProtocol
    put: Callable[[ir.TensorProtocol], None]


def _slots(every: Sequence[ir.Graph]) -> list[_Slot]:
    """Returns all initializers, and the external tensors of attributes."""
    found = []
    for graph in every:
        for value in graph.initializers.data.values():
            if value.const_value is not None:
                found.append(_Slot(value.const_value, partial(setattr, value, "const_value")))
        for node in graph:
            for name, attribute in node.attributes.data.items():
                if attribute.type is ir.AttributeType.TENSOR and is_external(attribute.value):
                    found.append(_Slot(attribute.value, partial(_set_attribute, node, name)))
    return found


def _set_attribute(node: ir.Node, name: str, tensor: ir.TensorProtocol) -> None:
    node.attributes[name] = ir.AttrTensor(name, tensor)


def _external(old: ir.TensorProtocol, name: str, offset: int, folder: Path) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        name,
        offset,
        tensor_bytes(old),
        old.dtype,
        shape=ir.Shape(old.shape.numpy()),
        name=str(old.name),
        doc_string=old.doc_string,
        metadata_props=dict(old.metadata_props),
        base_dir=folder,
    )


def _embed(slots: Sequence[_Slot], too_large: str) -> None:
    """Reads external tensors into memory.

    Raises:
        ModelSaveError: the tensors do not fit into a message; the text of the error is `too_large`.
    """
    if sum(tensor_bytes(slot.tensor) for slot in slots) > MAX_EMBEDDED_BYTES:
        raise ModelSaveError(too_large)
    for slot in slots:
        if is_external(slot.tensor):
            slot.put(ir.Tensor(slot.tensor.numpy(), name=slot.tensor.name))


def _to_move(slots: Sequence[_Slot], external_data: bool | None, *, force: bool) -> list[_Slot]:
    """Returns the tensors for the data file: all external and large ones, or none.

    None are moved if no tensor is external, all fit into a message, and neither `external_data` nor `force` is set.
    String tensors are never moved, because ONNX has no external form for them.
    """
    outside = any(is_external(slot.tensor) for slot in slots)
    large = [
        slot
        for slot in slots
        if is_external(slot.tensor)
        or (slot.tensor.dtype != ir.DataType.STRING and tensor_bytes(slot.tensor) >= MIN_EXTERNAL_BYTES)
    ]
    if external_data or outside or force or sum(tensor_bytes(slot.tensor) for slot in large) > MAX_EMBEDDED_BYTES:
        return large
    return []


def _refers_to(model: Path, data: Path) -> bool:
    """Returns whether `model` exists and has weights in `data`."""
    if not (model.is_file() and data.is_file()):
        return False
    with suppress(ModelLoadError):
        return any(files.same(path, data) for path in data_files(model))
    return False


def _record_shared(model: ir.Model, every: Sequence[ir.Graph], folder: Path) -> dict[Path, int]:
    """Records in the model's metadata the size and hash of each file that it refers to; returns path -> bytes.

    Raises:
        ModelSaveError: a file is not below the folder of the model.
    """
    paths = sorted({Path(tensor.base_dir).resolve() / tensor.location for tensor in external_tensors(every)})
    for path in paths:
        if not path.is_relative_to(folder):
            raise ModelSaveError(f"{path}: --share-weights needs OUT in the folder of the model that it shares with")
    for tensor in external_tensors(every):
        tensor._location = (Path(tensor.base_dir).resolve() / tensor.location).relative_to(folder).as_posix()
        tensor.base_dir = folder
    if paths:
        model.metadata_props[shared_weights.METADATA] = shared_weights.record(folder, paths)
    return {path: path.stat().st_size for path in paths}


def _fill(file: BinaryIO, slots: Sequence[_Slot]) -> list[int]:
    """Writes tensors to a data file, external ones first, and returns the offset of each.

    Tensors that share bytes of an input file share them in the new file.
    """
    ranges = _ranges([slot.tensor for slot in slots if is_external(slot.tensor)])
    starts = {path: [start for start, _ in found] for path, found in ranges.items()}
    copies = {path: _copy_ranges(file, Path(path), found) for path, found in ranges.items()}
    offsets = []
    for slot in slots:
        tensor = slot.tensor
        if is_external(tensor):
            offset = tensor.offset or 0
            i = bisect_right(starts[tensor.path], offset) - 1
            offsets.append(copies[tensor.path][i] + offset - starts[tensor.path][i])
            continue
        file.write(b"\0" * (-file.tell() % ALIGNMENT))
        offsets.append(file.tell())
        if isinstance(tensor, ir.LazyTensor):
            tensor.tofile(file)
        else:
            file.write(tensor.tobytes())
    return offsets


def _ranges(tensors: Sequence[ir.ExternalTensor]) -> dict[str, list[tuple[int, int]]]:
    """Returns path -> the sorted, disjoint byte ranges of the tensors in that file."""
    parts: dict[str, set[tuple[int, int]]] = {}
    for tensor in tensors:
        start = tensor.offset or 0
        parts.setdefault(tensor.path, set()).add((start, start + tensor.nbytes))
    joined = {}
    for path, found in parts.items():
        ranges = joined[path] = list[tuple[int, int]]()
        for start, end in sorted(found):
            if ranges and start <= ranges[-1][1] + ALIGNMENT:
                ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
            else:
                ranges.append((start, end))
    return joined


def _copy_ranges(file: BinaryIO, source: Path, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Appends byte ranges of another file, and returns the offset of each.

    Some file systems share whole blocks between files (btrfs, XFS). Therefore a long range starts at the same offset
    within a block as in the source file.
    """
    offsets = []
    with source.open("rb") as read:
        for start, end in ranges:
            unit, rest = (BLOCK, start % BLOCK) if end - start >= LONG else (ALIGNMENT, 0)
            offset = file.tell() + (rest - file.tell()) % unit
            file.flush()
            _copy_in_kernel(read.fileno(), file.fileno(), start, end, offset, source)
            file.seek(offset + end - start)
            offsets.append(offset)
    return offsets


# Errors of copy_file_range between file systems, or on file systems that do not support it.
_UNSUPPORTED = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def _copy_in_kernel(a: int, b: int, start: int, end: int, offset: int, source: Path) -> None:
    """Copies bytes [start, end) of file `a` to `offset`, the end of file `b`, inside the kernel; keeps holes."""
    os.truncate(b, offset + end - start)
    shift = offset - start
    while start < end:
        try:
            start = os.lseek(a, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # the rest of the file is a hole
        stop = min(os.lseek(a, start, os.SEEK_HOLE), end)
        while start < stop:
            # Only whole blocks are shared: the bytes before the first whole block need a separate call.
            count = min(-start % BLOCK or stop - start, stop - start)
            copied = _copy_range(a, b, start, start + shift, count)
            if not copied:
                raise OSError(errno.EIO, f"{source} became shorter while it was copied")
            start += copied


def _copy_range(a: int, b: int, start: int, offset: int, count: int) -> int:
    try:
        return os.copy_file_range(a, b, count, start, offset)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    os.lseek(b, offset, os.SEEK_SET)
    return os.sendfile(b, a, start, count)
