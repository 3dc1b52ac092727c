"""Configuration files of engines, one module each. Each `files` function returns relative path -> text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from graphopt.serving.configs import bentoml, kserve, litserve, mlserver, ray, triton
from graphopt.serving.deployment import Deployment

# (deployment, path of the folder as the engine sees it) -> relative path -> text.
Files = Callable[[Deployment, Path], Mapping[str, str]]
_MODULES = {module.__name__.rpartition(".")[2]: module for module in (triton, kserve, mlserver, litserve, bentoml, ray)}
ENGINES: Mapping[str, Files] = {name: module.files for name, module in _MODULES.items()}
# Engine -> the command that starts it; `{folder}` is the written folder.
COMMANDS: Mapping[str, str] = {name: module.COMMAND for name, module in _MODULES.items()}
