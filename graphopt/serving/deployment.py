"""What a server is told of one version of a model: `serving.json` beside the file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.errors import GraphoptError

Array = npt.NDArray[Any]
MODEL, SETTINGS = "model.onnx", "serving.json"

# The Open Inference Protocol's name of a type -> numpy's.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{8 << n}": np.dtype(f"uint{8 << n}") for n in range(4)},
    **{f"INT{8 << n}": np.dtype(f"int{8 << n}") for n in range(4)},
    **{f"FP{16 << n}": np.dtype(f"float{16 << n}") for n in range(3)},
    "BYTES": np.dtype(np.object_),
}


class RequestError(ValueError):
    """A request does not fit the model: the message is for the one who sent it."""


@dataclass(frozen=True)
class Tensor:
    """One input or output.

    Attributes:
        name: in the model.
        datatype: as the Open Inference Protocol calls it.
        shape: its dimensions; -1 is any.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Deployment:
    """One version of a model, and how it is to be run.

    Attributes:
        name: of the model, in URLs.
        version: a number.
        inputs: what a request brings; values that the model has itself are no inputs.
        outputs: what it gets.
        max_batch: rows that requests may be merged to; 1 where their rows are not independent.
        delay_ms: how long the first of a batch waits for more.
        instances: processes (or replicas) that run it.
        threads: of each of them; 0 is the runtime's choice.
        devices: GPUs that the instances share; empty is what `graphopt.session` chooses.
        warm_up: shapes to run once before the first request.
    """

    name: str
    version: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch: int = 1
    delay_ms: float = 0.0
    instances: int = 1
    threads: int = 0
    devices: tuple[int, ...] = ()
    warm_up: tuple[Mapping[str, Sequence[int]], ...] = field(default=())

    def to_json(self) -> str:
        """The content of `serving.json`."""
        return json.dumps({"format": 1, **asdict(self)}, indent=2) + "\n"

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Compares what a request brings with what the model takes.

        Raises:
            RequestError: an input is missing, unknown, or of another type or shape.
        """
        takes = {tensor.name: tensor for tensor in self.inputs}
        for name in feeds:
            if name not in takes:
                raise RequestError(f"{self.name} has no input '{name}', but {', '.join(takes)}")
        rows = None
        for name, tensor in takes.items():
            if name not in feeds:
                raise RequestError(f"input '{name}' of {self.name} is missing")
            array = feeds[name]
            if array.dtype != DATATYPES[tensor.datatype]:
                raise RequestError(f"input '{name}' is of type {array.dtype}, but {tensor.datatype} is wanted")
            fits = array.ndim == len(tensor.shape) and all(
                d in (-1, n) for d, n in zip(tensor.shape, array.shape, strict=True)
            )
            if not fits:
                raise RequestError(f"input '{name}' has shape {[*array.shape]}, but {[*tensor.shape]} is wanted")
            if self.max_batch > 1:
                if rows not in (None, len(array)):
                    raise RequestError(f"input '{name}' has {len(array)} rows, and one before it {rows}")
                rows = len(array)


def read_deployment(folder: str | os.PathLike[str]) -> Deployment:
    """What `serving.json` in the folder of a version says.

    Raises:
        GraphoptError: it is not there or not of that form.
    """
    path = Path(folder) / SETTINGS
    try:
        data = json.loads(path.read_text())
        if data.pop("format") != 1:
            raise ValueError("written by another version of graphopt")
        for key in ("inputs", "outputs"):
            data[key] = tuple(Tensor(t["name"], t["datatype"], tuple(t["shape"])) for t in data[key])
        return Deployment(**data | {"devices": tuple(data["devices"]), "warm_up": tuple(data["warm_up"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GraphoptError(f"{path}: cannot be used: {error}; `graphopt serve-config` writes it") from None


def versions(folder: str | os.PathLike[str]) -> dict[str, dict[int, Path]]:
    """Name -> version -> folder of all models below `folder`, versions in ascending order."""
    found: dict[str, dict[int, Path]] = {}
    for settings in Path(folder).glob(f"*/*/{SETTINGS}"):
        if settings.parent.name.isdecimal():
            found.setdefault(settings.parent.parent.name, {})[int(settings.parent.name)] = settings.parent
    return {name: dict(sorted(numbers.items())) for name, numbers in sorted(found.items())}
