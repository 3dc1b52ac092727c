"""Passes keep no state in their matches: matches and plans are frozen recursively, down to the graph's objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from graphopt.passes.base import Pass
from graphopt.passes.plugins import installed
from graphopt.passes.registry import bfloat16_passes

ALL = {p.name: p for p in (*installed(), *bfloat16_passes(()))}
LOCAL = [p for p in ALL.values() if isinstance(p, Pass)]
# The packages whose dataclasses describe a candidate. Dataclasses of other packages (operators, targets, shapes) are
# tables, or known to be frozen.
OWN = ("graphopt.passes", "graphopt.forms", "graphopt.precision")
MUTABLE = (list, set, dict, bytearray)


def classes(hint: Any) -> Iterator[type]:
    """Yields the dataclasses of a type hint and of their fields, and every mutable container."""
    for part in get_args(hint):
        yield from classes(part)
    kind = getattr(hint, "__origin__", hint)
    if kind in MUTABLE:
        yield kind
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind.__module__.startswith(OWN):
        yield kind
        for field in get_type_hints(kind).values():
            yield from classes(field)


@pytest.mark.once
@pytest.mark.parametrize("p", LOCAL, ids=lambda p: str(p.name))
def test_matches_and_plans_are_frozen(p: Pass[Any, Any]) -> None:
    seen = set(classes(get_type_hints(p.match)["return"])) | set(classes(get_type_hints(p.legal)["return"]))
    assert seen, "matches and plans of a pass are dataclasses"
    for kind in seen:
        assert kind not in MUTABLE, f"{p.name} hands on a {kind.__name__}"
        assert kind.__dataclass_params__.frozen, f"{kind.__name__} of {p.name} can be changed"  # type: ignore[attr-defined]
