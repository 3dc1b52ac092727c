"""Passes of other packages: entry points of the group `graphopt.passes` name a subclass of `Pass` or `ModelPass`.

They run after ours, in the order of their names, under the same rules: remarks, invariants, the fixpoint.
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
    """Our passes, and those that other packages bring.

    Raises:
        OptionError: an entry point cannot be loaded, is no pass, or takes a name that there is already.
    """
    found = list(PASSES)
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda p: p.name):
        where = f"the pass '{point.name}' of {point.dist.name if point.dist else 'a package'} ({point.value})"
        try:
            made = point.load()()
        except Exception as error:  # whatever the code of others raises
            raise OptionError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(made, Pass | ModelPass):
            raise OptionError(f"{where} is no subclass of graphopt.passes.Pass or ModelPass")
        if made.name in {p.name for p in found}:
            raise OptionError(f"{where} has the name '{made.name}' of another pass")
        found.append(made)
    return tuple(found)
