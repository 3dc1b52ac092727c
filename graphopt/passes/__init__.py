"""The rewrites, one file each; registry.py lists them in order."""

from __future__ import annotations

from graphopt.graph.editor import Editor
from graphopt.passes.base import ModelPass, Pass

__all__ = ["Editor", "ModelPass", "Pass"]
