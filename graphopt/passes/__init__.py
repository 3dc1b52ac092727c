"""The rewrites. registry.py lists them in execution order."""

from __future__ import annotations

from graphopt.graph.editor import Editor
from graphopt.passes.base import ModelPass, Pass

__all__ = ["Editor", "ModelPass", "Pass"]
