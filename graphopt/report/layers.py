"""Groups repeated layers: items with names that differ only in numbers are shown once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Group(Generic[T, K]):
    """Items of one kind with names that differ only in numbers.

    Attributes:
        kind: the common key.
        members: the items, in the order of the model.
        where: a text for their names, such as "/encoder/layer.{0-11}/attention/MatMul".
        places: the number of layers or places, " in 12 layers"; "" for a single item.
    """

    kind: K
    members: tuple[T, ...]
    where: str
    places: str


def grouped(items: Iterable[T], kind: Callable[[T], K], name: Callable[[T], str]) -> list[Group[T, K]]:
    """Groups items of the same kind with names that differ only in numbers, the largest group first.

    Args:
        items: the items, in the order of the model.
        kind: returns the key of an item.
        name: returns its name.
    """
    found: dict[tuple[K, str], list[T]] = defaultdict(list)
    for item in items:
        found[kind(item), pattern(name(item))].append(item)
    groups = []
    for (k, _), members in found.items():
        names = [name(m) for m in members]
        groups.append(Group(k, tuple(members), where(names), _places(names)))
    return sorted(groups, key=lambda g: -len(g.members))


def pattern(name: str) -> str:
    """Replaces the numbers in a name by "#"."""
    return _NUMBER.sub("#", name)


def where(names: Sequence[str]) -> str:
    """Returns a text for names that differ only in numbers.

    It is a pattern, in which varying numbers become {0-11}, {2,5,9} or {2,5,9,12,...}. For numbers that vary together
    it is "FIRST ... LAST", and for names with different counts of numbers "FIRST, ...".
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    numbers = [_NUMBER.findall(n) for n in distinct]
    if len({len(n) for n in numbers}) != 1:
        return f"{distinct[0]}, ..."
    columns = [list(dict.fromkeys(column)) for column in zip(*numbers)]
    # For numbers that vary together, such as counters of nodes, a pattern would suggest combinations that do not exist.
    if len([c for c in columns if len(c) > 1]) > 1 and _product(columns) != len(distinct):
        return f"{distinct[0]} ... {distinct[-1]}"
    parts = iter([_span(column) for column in columns])
    return _NUMBER.sub(lambda _: next(parts), distinct[0])


def layer_path(name: str) -> str:
    """Returns the layer of a node: the path of its name up to the first part with a number.

    Returns the first part if no part of the path has a number, and "" for a name without a path.
    """
    parts = name.strip("/").split("/")
    if len(parts) < 2:
        return ""
    numbered = next((i for i, part in enumerate(parts[:-1]) if _NUMBER.search(part)), 0)
    return "/".join(parts[: numbered + 1])


def _places(names: Sequence[str]) -> str:
    if len(names) == 1:
        return ""
    layers = {layer_path(name) for name in names} - {""}
    if len(layers) == len(names):
        return f" in {len(names)} layers"
    return f" in {len(names)} places" + (f" of {len(layers)} layers" if len(layers) > 1 else "")


def _product(columns: Sequence[Sequence[str]]) -> int:
    total = 1
    for column in columns:
        total *= len(column)
    return total


def _span(column: Sequence[str]) -> str:
    if len(column) == 1:
        return column[0]
    values = sorted(int(n) for n in column)
    if values == list(range(values[0], values[0] + len(values))):
        return f"{{{values[0]}-{values[-1]}}}"
    shown = ",".join(map(str, values[:4]))
    return f"{{{shown}}}" if len(values) <= 4 else f"{{{shown},...}}"
