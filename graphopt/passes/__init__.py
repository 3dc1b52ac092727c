"""Passes, one rewrite a file; registry.py names all of them in their order."""

from __future__ import annotations

from graphopt.graph.editor import Editor
from graphopt.passes.base import ModelPass, Pass

__all__ = ["Editor", "ModelPass", "Pass"]
