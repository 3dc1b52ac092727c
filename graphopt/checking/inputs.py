"""Inputs that are likely to show a wrong rewrite, made from the model's own input types and shapes.

Signed, negative, zero, large and tiny values, NaN and infinities where asked; masks padded right, left and not at all;
token ids inside the range of the table that they index; several sizes for symbolic dimensions, which are bound by their
names; other values for overridable initializers.
"""

from __future__ import annotations

import itertools
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
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

# Sizes for symbolic dimensions, tried in turn: a first axis is a batch, images are multiples of 32, the rest lengths.
BATCH_SIZES = (1, 2)
IMAGE_SIZES = (64, 96)
LENGTHS = (7, 16)
OTHER_LENGTHS = (33, 576)  # past a tile of any kernel; as long as a frame of sound
LARGE, TINY = 100.0, 1e-4
PROBES = ("NaN", "infinite")


@dataclass(frozen=True)
class Case:
    """One set of inputs and what is special about it."""

    name: str
    feeds: Feeds


def given_cases(inputs: str | os.PathLike[str] | Mapping[str, Any], model: onnx.ModelProto) -> list[Case]:
    """The caller's own inputs: name -> array, or what `load_inputs` reads.

    Raises:
        VerifyError: nothing usable is there.
    """
    if isinstance(inputs, Mapping):
        return [Case("given", dict(inputs))]
    return load_inputs(Path(inputs), model)


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


def make_cases(
    model: onnx.ModelProto, seed: int, *, fixed: Mapping[str, int] | None = None, probe_nan: bool = False
) -> Iterator[Case]:
    """Cases for a model's graph inputs; equal seeds give equal cases.

    Args:
        model: its inputs are read.
        seed: of all random numbers.
        fixed: sizes of symbolic dimensions that are not to be varied.
        probe_nan: adds cases with a few NaN and infinite elements in each floating point input.
    """
    inputs = required_inputs(model)
    facts = _Facts(model)
    fixed = fixed or {}
    roles = {s: role for s, role in symbols(model).items() if s not in fixed}

    def case(name: str, kind: str, stream: int, sizes: Mapping[str, int]) -> Case:
        rng = np.random.default_rng([seed, stream])
        return Case(name, {v.name: _array(v, {**sizes, **fixed}, kind, rng, facts) for v in inputs})

    for i, (batch, image, length) in enumerate(zip(BATCH_SIZES, IMAGE_SIZES, LENGTHS)):
        yield case(f"normal, batch {batch}", "normal", i, _sizes(roles, batch, image, length))
    sizes = _sizes(roles, BATCH_SIZES[-1], IMAGE_SIZES[0], LENGTHS[-1])
    has_floats, has_masks = any(_is_float(v) for v in inputs), any(facts.is_mask(v) for v in inputs)
    kinds = ("zeros", "unit", "large", "tiny", "padded left", "padded right", "padded away", "negative", *PROBES)
    for j, kind in enumerate(kinds):
        if kind in PROBES and not probe_nan:
            continue
        if has_masks if kind.startswith("padded") else has_floats:
            yield case(kind, kind, 10 + j, sizes)
    overridable = [t for t in model.graph.initializer if model.ir_version >= 4 and t.name in _input_names(model)]
    if overridable:
        rng = np.random.default_rng([seed, 30])
        feeds = {v.name: _array(v, {**sizes, **fixed}, "normal", rng, facts) for v in inputs}
        for tensor in overridable:
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f":
                feeds[tensor.name] = np.asarray(array * 1.1 + rng.normal(0, 0.1, array.shape)).astype(array.dtype)
        yield Case("overridden initializers", feeds)
    if roles:
        for length in OTHER_LENGTHS:
            yield case(f"length {length}", "normal", length, _sizes(roles, 1, 2 * IMAGE_SIZES[0], length))
    counts = Counter(roles.values())
    if max(counts["image"], counts["length"]) > 1:
        # Height and width, or two lengths, that were exchanged show only where they differ.
        yield case("distinct sizes", "normal", 40, _distinct(roles))


def normal_feeds(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Normal values, full masks and valid token ids, with every symbol of `symbols(model)` at its size."""
    facts = _Facts(model)
    rng = np.random.default_rng([seed, 0])
    return {v.name: _array(v, sizes, "normal", rng, facts) for v in required_inputs(model)}


def required_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph inputs that callers must give: not those with an initializer."""
    initializers = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in initializers]


def symbols(model: onnx.ModelProto) -> dict[str, str]:
    """The symbolic dimensions of the inputs and the role of each: "batch", "image" or "length".

    A symbol means one size wherever it stands; its first place decides the role. A dimension without a name is called
    INPUT[AXIS]. A sum of other symbols, as exporters write it ("past + sequence"), is no symbol of its own.
    """
    found: dict[str, str] = {}
    for value in required_inputs(model):
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if dim.dim_value <= 0:
                role = "batch" if axis == 0 else "image" if len(dims) == 4 and axis >= 2 else "length"
                found.setdefault(_symbol(value, axis), role)
    return {s: role for s, role in found.items() if _sum_of(s, {t: 0 for t in found if t != s}) is None}


def _symbol(value: onnx.ValueInfoProto, axis: int) -> str:
    return value.type.tensor_type.shape.dim[axis].dim_param or f"{value.name}[{axis}]"


def _sum_of(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """The size of "a + b + 1" where all terms are known."""
    terms = [t.strip() for t in symbol.split("+")]
    if len(terms) < 2 or not all(t in sizes or t.isdecimal() for t in terms):
        return None
    return sum(sizes[t] if t in sizes else int(t) for t in terms)


def _sizes(roles: Mapping[str, str], batch: int, image: int, length: int) -> dict[str, int]:
    by_role = {"batch": batch, "image": image, "length": length}
    return {symbol: by_role[role] for symbol, role in roles.items()}


def _distinct(roles: Mapping[str, str]) -> dict[str, int]:
    """A size of its own for each image side and each length."""
    step = {"batch": 0, "image": 32, "length": 3}
    next_size = {"batch": BATCH_SIZES[-1], "image": IMAGE_SIZES[0], "length": LENGTHS[0]}
    sizes = {}
    for symbol, role in roles.items():
        sizes[symbol] = next_size[role]
        next_size[role] += step[role]
    return sizes


def _input_names(model: onnx.ModelProto) -> set[str]:
    return {v.name for v in model.graph.input}


def _is_float(value: onnx.ValueInfoProto) -> bool:
    return _dtype(value).kind in "fV"


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
    value: onnx.ValueInfoProto, sizes: Mapping[str, int], kind: str, rng: np.random.Generator, facts: _Facts
) -> Array:
    dtype = _dtype(value)
    dims = value.type.tensor_type.shape.dim
    shape = tuple(d.dim_value if d.dim_value > 0 else _size(_symbol(value, i), sizes) for i, d in enumerate(dims))
    if dtype.kind in "iub":
        return facts.integers(value, shape, kind, rng).astype(dtype)
    if dtype.kind not in "fV":
        raise VerifyError(f"input '{value.name}' holds {dtype}; give inputs with --inputs")
    values = rng.standard_normal(shape)
    if kind == "unit":
        values = rng.random(shape)
    if kind == "negative":
        values = -np.abs(values)
    if kind in PROBES and values.size:
        # Few enough that most outputs stay numbers.
        where = rng.choice(values.size, max(1, values.size // 1000), replace=False)
        values.reshape(-1)[where] = np.nan if kind == "NaN" else np.inf * rng.choice((-1.0, 1.0), where.size)
    factor = {"zeros": 0.0, "large": LARGE, "tiny": TINY}.get(kind, 1.0)
    return np.asarray(values * factor).astype(dtype)


def _size(symbol: str, sizes: Mapping[str, int]) -> int:
    size = sizes[symbol] if symbol in sizes else _sum_of(symbol, sizes)
    assert size is not None, symbol
    return size
