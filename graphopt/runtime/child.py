"""Environment of Python child processes, which import the same graphopt."""

from __future__ import annotations

import os
from pathlib import Path

import graphopt


def environment() -> dict[str, str]:
    """Returns this process's environment with graphopt's parent folder first in PYTHONPATH."""
    root = str(Path(graphopt.__file__).resolve().parent.parent)
    paths = os.pathsep.join(path for path in (root, os.environ.get("PYTHONPATH")) if path)
    return {**os.environ, "PYTHONPATH": paths}
