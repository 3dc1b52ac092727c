"""`serving.json`: the settings of one version of a model, stored beside the model file."""

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

# Type name of the Open Inference Protocol -> numpy type.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{8 << n}": np.dtype(f"uint{8 << n}") for n in range(4)},
    **{f"INT{8 << n}": np.dtype(f"int{8 << n}") for n in range(4)},
    **{f"FP{16 << n}": np.dtype(f"float{16 << n}") for n in range(3)},
    "BYTES": np.dtype(np.object_),
}


class RequestError(ValueError):
    """A request does not fit the model. The message is sent to the client."""


@dataclass(frozen=True)
class Tensor:
    """One input or output.

    Attributes:
        name: its name in the model.
        datatype: type name of the Open Inference Protocol.
        shape: its dimensions; -1 for any size.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Deployment:
    """One version of a model with its settings.

    Attributes:
        name: name of the model in URLs.
        version: version number.
        inputs: required inputs of a request; inputs with initializers are not listed.
        outputs: outputs of the model.
        max_batch: the largest number of rows in a batch; 1 if rows are not independent.
        delay_ms: milliseconds that the first request of a batch waits for other requests.
        instances: number of processes or replicas.
        threads: threads of each instance; 0 leaves the choice to the runtime.
        devices: indices of the GPUs that the instances share; empty leaves the choice to `graphopt.session`.
        warm_up: input name -> shape, for each run before the first request.
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
        """Returns the content of `serving.json`."""
        return json.dumps({"format": 1, **asdict(self)}, indent=2) + "\n"

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Checks the arrays of a request against the inputs of the model.

        Raises:
            RequestError: an input is missing, unknown, or has another type or shape.
        """
        takes = {tensor.name: tensor for tensor in self.inputs}
        for name in feeds:
            if name not in takes:
                raise RequestError(f"{self.name} has no input '{name}'; its inputs are {', '.join(takes)}")
        rows = None
        for name, tensor in takes.items():
            if name not in feeds:
                raise RequestError(f"input '{name}' of {self.name} is missing")
            array = feeds[name]
            if array.dtype != DATATYPES[tensor.datatype]:
                raise RequestError(f"input '{name}' has type {array.dtype} instead of {tensor.datatype}")
            fits = array.ndim == len(tensor.shape) and all(
                d in (-1, n) for d, n in zip(tensor.shape, array.shape, strict=True)
            )
            if not fits:
                raise RequestError(f"input '{name}' has shape {[*array.shape]} instead of {[*tensor.shape]}")
            if self.max_batch > 1:
                if rows not in (None, len(array)):
                    raise RequestError(f"input '{name}' has {len(array)} rows, but an earlier input has {rows}")
                rows = len(array)


def read_deployment(folder: str | os.PathLike[str]) -> Deployment:
    """Reads `serving.json` in the folder of a version.

    Raises:
        GraphoptError: the file is missing, or its content is invalid.
    """
    path = Path(folder) / SETTINGS
    try:
        data = json.loads(path.read_text())
        if not isinstance(data, dict):
            raise ValueError("its content is not a JSON object")
        if data.pop("format") != 1:
            raise ValueError("written by another version of graphopt")
        for key in ("inputs", "outputs"):
            data[key] = tuple(Tensor(t["name"], t["datatype"], tuple(t["shape"])) for t in data[key])
        return Deployment(**data | {"devices": tuple(data["devices"]), "warm_up": tuple(data["warm_up"])})
    except KeyError as error:
        why = f"it has no {error}"
    except TypeError as error:
        why = f"it has another structure ({error})"
    except (OSError, ValueError) as error:
        why = str(error)
    raise GraphoptError(f"{path}: cannot be used: {why}; `graphopt serve-config` writes it")


def versions(folder: str | os.PathLike[str]) -> dict[str, dict[int, Path]]:
    """Returns name -> version -> folder for all models below `folder`, in ascending order of versions."""
    found: dict[str, dict[int, Path]] = {}
    for settings in Path(folder).glob(f"*/*/{SETTINGS}"):
        if settings.parent.name.isdecimal():
            found.setdefault(settings.parent.parent.name, {})[int(settings.parent.name)] = settings.parent
    return {name: dict(sorted(numbers.items())) for name, numbers in sorted(found.items())}
