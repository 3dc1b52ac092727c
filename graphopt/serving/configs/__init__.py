"""One file an engine: what its folder holds beside the models. Each function gives relative paths and texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from graphopt.serving.configs import bentoml, kserve, litserve, mlserver, ray, triton
from graphopt.serving.deployment import Deployment

# The deployment, where the engine sees the folder, and the path of our library -> the files.
Files = Callable[[Deployment, Path], Mapping[str, str]]

ENGINES: Mapping[str, Files] = {
    "triton": triton.files,
    "kserve": kserve.files,
    "mlserver": mlserver.files,
    "litserve": litserve.files,
    "bentoml": bentoml.files,
    "ray": ray.files,
}
# What starts the engine, and where from.
COMMANDS: Mapping[str, str] = {
    "triton": triton.COMMAND,
    "kserve": kserve.COMMAND,
    "mlserver": mlserver.COMMAND,
    "litserve": litserve.COMMAND,
    "bentoml": bentoml.COMMAND,
    "ray": ray.COMMAND,
}
