"""Loads passes of other packages: subclasses of `Pass` or `ModelPass` in entry points of the group `graphopt.passes`.

They run after our passes, sorted by name, under the same rules: remarks, invariants, repetition until nothing changes.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

from graphopt.errors import OptionError
from graphopt.passes.base import ModelPass, Pass
from graphopt.passes.registry import PASSES

GROUP = "graphopt.passes"


@functools.cache
def installed() -> tuple[Pass[Any, Any] | ModelPass, ...]:
    """Returns our passes and those of other packages.

    Raises:
        OptionError: an entry point cannot be loaded, is not a pass, or has the name of another pass.
    """
    found = list(PASSES)
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda p: p.name):
        where = f"the pass '{point.name}' of {point.dist.name if point.dist else 'a package'} ({point.value})"
        try:
            made = point.load()()
        except Exception as error:  # other packages may raise anything
            raise OptionError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(made, Pass | ModelPass):
            raise OptionError(f"{where} is not a subclass of graphopt.passes.Pass or ModelPass")
        if made.name in {p.name for p in found}:
            raise OptionError(f"{where} has the name '{made.name}' of another pass")
        found.append(made)
    return tuple(found)
