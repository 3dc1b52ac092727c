"""Inputs that are likely to show a wrong rewrite, made from the model's own input types and shapes.

Signed, zero, large and tiny values; masks padded right, left and not at all; token ids inside the range of the table
that they index; several sizes for symbolic dimensions; other values for overridable initializers.
"""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google.protobuf.message
import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from graphopt.errors import VerifyError

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

# Sizes for symbolic dimensions, tried in turn: the first axis is a batch, images are multiples of 32, the rest lengths.
BATCH_SIZES = (1, 2)
IMAGE_SIZES = (64, 96)
LENGTHS = (7, 16)
OTHER_LENGTHS = (33, 576)  # past a tile of any kernel; as long as a frame of sound
LARGE, TINY = 100.0, 1e-4


@dataclass(frozen=True)
class Case:
    """One set of inputs and what is special about it."""

    name: str
    feeds: Feeds


def load_inputs(source: Path, model: onnx.ModelProto) -> list[Case]:
    """A .npz file, a folder of .npz or .npy files, or an ONNX test-data folder (input_0.pb, ...).

    Raises:
        VerifyError: nothing usable is there.
    """
    names = [v.name for v in model.graph.input]
    try:
        if source.is_file():
            return [Case(source.name, dict(np.load(source)))]
        folders = sorted(p for p in source.glob("test_data_set_*") if p.is_dir()) or [source]
        cases = []
        for folder in folders:
            protos = sorted(folder.glob("input_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
            if protos:
                tensors = [onnx.TensorProto.FromString(p.read_bytes()) for p in protos]
                feeds = {t.name or names[i]: numpy_helper.to_array(t) for i, t in enumerate(tensors)}
                cases.append(Case(folder.name, feeds))
        arrays = {p.stem: np.load(p) for p in sorted(source.glob("*.npy"))}
        if arrays:
            cases.append(Case(source.name, arrays))
        cases += [Case(p.name, dict(np.load(p))) for p in sorted(source.glob("*.npz"))]
    except (OSError, ValueError, IndexError, zipfile.BadZipFile, google.protobuf.message.DecodeError) as error:
        raise VerifyError(f"{source}: cannot be read as inputs: {error}") from None
    if not cases:
        raise VerifyError(f"{source}: holds no inputs (.npz, .npy or input_0.pb files)")
    return cases


def make_cases(model: onnx.ModelProto, seed: int) -> Iterator[Case]:
    """Cases for a model's graph inputs; equal seeds give equal cases."""
    initializers = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in initializers or model.ir_version < 4]
    inputs = [v for v in inputs if v.name not in initializers]
    facts = _Facts(model)
    for i, (batch, image, length) in enumerate(zip(BATCH_SIZES, IMAGE_SIZES, LENGTHS)):
        sizes = (batch, image, length)
        rng = np.random.default_rng([seed, i])
        yield Case(f"normal, batch {batch}", {v.name: _array(v, sizes, "normal", rng, facts) for v in inputs})
    sizes = (BATCH_SIZES[-1], IMAGE_SIZES[0], LENGTHS[-1])
    dynamic = any(d.dim_value <= 0 for v in inputs for d in v.type.tensor_type.shape.dim)
    for j, kind in enumerate(("zeros", "unit", "large", "tiny", "padded left", "padded right", "padded away")):
        relevant = kind.startswith("padded") or any(_is_float(v) for v in inputs)
        if kind.startswith("padded") and not any(facts.is_mask(v) for v in inputs):
            relevant = False
        if relevant:
            rng = np.random.default_rng([seed, 10 + j])
            yield Case(kind, {v.name: _array(v, sizes, kind, rng, facts) for v in inputs})
    overridable = [t for t in model.graph.initializer if model.ir_version >= 4 and t.name in _input_names(model)]
    if overridable:
        rng = np.random.default_rng([seed, 30])
        feeds = {v.name: _array(v, sizes, "normal", rng, facts) for v in inputs}
        for tensor in overridable:
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f":
                feeds[tensor.name] = np.asarray(array * 1.1 + rng.normal(0, 0.1, array.shape)).astype(array.dtype)
        yield Case("overridden initializers", feeds)
    for length in OTHER_LENGTHS if dynamic else ():
        rng = np.random.default_rng([seed, length])
        sizes = (1, 2 * IMAGE_SIZES[0], length)
        yield Case(f"length {length}", {v.name: _array(v, sizes, "normal", rng, facts) for v in inputs})


def _input_names(model: onnx.ModelProto) -> set[str]:
    return {v.name for v in model.graph.input}


def _is_float(value: onnx.ValueInfoProto) -> bool:
    return _dtype(value).kind == "f"


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    if value.type.WhichOneof("value") != "tensor_type":
        raise VerifyError(f"input '{value.name}' is not a tensor; give inputs with --inputs")
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


class _Facts:
    """What the graph says about the meaning of integer inputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._rows: dict[str, int] = {}
        self._choices: dict[str, list[Array]] = {}
        shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
        constants = {t.name: t for t in model.graph.initializer if np.prod(t.dims) <= 1}
        nodes = [n for n in model.graph.node if n.op_type == "Constant"]
        constants |= {n.output[0]: a.t for n in nodes for a in n.attribute if a.name == "value"}
        shapes |= {name: tuple(t.dims) for name, t in constants.items()}
        same: dict[str, str] = {}
        for node in model.graph.node:
            if node.op_type in ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape") and node.input:
                same[node.output[0]] = same.get(node.input[0], node.input[0])
            for a, b in itertools.permutations(node.input[:2]) if len(node.input) >= 2 else ():
                source = same.get(b, b)
                if node.op_type == "Gather" and a == node.input[0] and a in shapes and len(shapes[a]) >= 1:
                    self._rows[source] = min(self._rows.get(source, shapes[a][0]), shapes[a][0])
                if node.op_type == "Equal" and a in constants:
                    self._choices.setdefault(source, []).append(numpy_helper.to_array(constants[a]))

    def is_tokens(self, value: onnx.ValueInfoProto) -> bool:
        return value.name in self._rows

    def is_mask(self, value: onnx.ValueInfoProto) -> bool:
        rank = len(value.type.tensor_type.shape.dim)
        return _dtype(value).kind in "iub" and not self.is_tokens(value) and rank >= 2

    def integers(
        self, value: onnx.ValueInfoProto, shape: tuple[int, ...], kind: str, rng: np.random.Generator
    ) -> Array:
        if self.is_tokens(value):
            return rng.integers(0, max(self._rows[value.name], 1), shape)
        choices = [c for c in self._choices.get(value.name, ()) if c.size == 1]
        if choices and not shape:
            return np.asarray(choices[int(rng.integers(len(choices)))]).reshape(shape)
        if not self.is_mask(value):
            return rng.integers(0, 2, shape)
        mask = np.ones(shape, np.int64)
        if kind.startswith("padded") and shape[-1] > 1:
            flat = mask.reshape(-1, shape[-1])
            for row in flat[1:] if len(flat) > 1 else flat:
                n = int(rng.integers(1, shape[-1]))
                row[:n] = 0 if kind == "padded left" else row[:n]
                row[n:] = 0 if kind == "padded right" else row[n:]
                # A row of nothing but padding is where NaN guards and kinds of masks differ.
                row[:] = 0 if kind == "padded away" else row
        return mask


def _array(
    value: onnx.ValueInfoProto, sizes: tuple[int, int, int], kind: str, rng: np.random.Generator, facts: _Facts
) -> Array:
    dtype = _dtype(value)
    dims = value.type.tensor_type.shape.dim
    shape = tuple(d.dim_value if d.dim_value > 0 else _size(i, len(dims), sizes) for i, d in enumerate(dims))
    if dtype.kind in "iub":
        return facts.integers(value, shape, kind, rng).astype(dtype)
    if dtype.kind not in "fV":
        raise VerifyError(f"input '{value.name}' holds {dtype}; give inputs with --inputs")
    values = rng.standard_normal(shape)
    if kind == "unit":
        values = rng.random(shape)
    factor = {"zeros": 0.0, "large": LARGE, "tiny": TINY}.get(kind, 1.0)
    return np.asarray(values * factor).astype(dtype)


def _size(axis: int, rank: int, sizes: tuple[int, int, int]) -> int:
    batch, image, length = sizes
    if axis == 0:
        return batch
    return image if rank == 4 and axis >= 2 else length
