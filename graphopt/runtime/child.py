"""What a Python process that graphopt starts needs to import this graphopt."""

from __future__ import annotations

import os
from pathlib import Path

import graphopt


def environment() -> dict[str, str]:
    """The environment of this process, with the folder that graphopt was imported from before others."""
    root = str(Path(graphopt.__file__).resolve().parent.parent)
    paths = os.pathsep.join(path for path in (root, os.environ.get("PYTHONPATH")) if path)
    return {**os.environ, "PYTHONPATH": paths}
