"""All passes, in the order in which they run."""

from __future__ import annotations

from typing import Any

from graphopt.passes.base import Editor, ModelPass, Numerics, Pass

PASSES: tuple[Pass[Any] | ModelPass, ...] = ()

__all__ = ["PASSES", "Editor", "ModelPass", "Numerics", "Pass"]
