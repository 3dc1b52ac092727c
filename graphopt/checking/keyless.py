"""Says where differences lie that are a matter of choice: in queries of which a mask hides every key.

A softmax over nothing has no meaning of its own. Where an exporter adds a lowest number to hide keys, such a query gets
their mean; where it adds minus infinity, NaN, or 0 behind a guard. Two exports of one module may differ there, and only
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.checking.uses import HIDES

Flags = npt.NDArray[np.bool_]


def differing(want: Any, got: Any, limit: float) -> Flags | None:
    """Which numbers of an output differ by more than `limit` of its RMS; None where the two are no arrays of one shape.

    A sequence is a list.
    """
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray):
        return None
    if want.shape != got.shape or want.ndim == 0 or want.dtype.kind not in "fV":
        return None
    a, b = want.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(a)
        rms = float(np.sqrt(np.mean(a[finite] ** 2))) if finite.any() else 0.0
        return np.asarray((np.abs(a - b) > limit * rms) | (np.isnan(a) != np.isnan(b)))


def hides_all(mask: npt.NDArray[Any]) -> Flags:
    """[B] or [B, S]: sequences, or queries of them, for which a mask [B, T] or [B, ..., S, T] hides every key.

    A mask is 0 where it hides, or a low number where it is added to scores, of floats.
    """
    shown = mask > -HIDES if mask.dtype.kind in "fV" and (mask < 0).any() else mask != 0
    seen = shown.any(axis=-1)
    queries = seen if seen.ndim == 1 else np.any(seen, axis=tuple(range(1, seen.ndim - 1)))
    return np.logical_not(queries)


def hides_all_before(mask: npt.NDArray[Any]) -> Flags:
    """[B, T]: queries of a causal model that see no key up to their own, by a mask [B, T]."""
    return ~np.logical_or.accumulate(mask != 0, axis=-1)


def only_where_hidden(found: Iterable[tuple[Flags, Mapping[str, npt.NDArray[Any]]]]) -> str:
    """A sentence where all differences are such; "" where one is not.

    Args:
        found: of each case which numbers of an output differ, and the masks among its inputs.
    """
    said: list[str] | None = None
    for flags, masks in found:
        here = [why for name, mask in masks.items() for why in _reasons(flags, name, mask)]
        said = here if said is None else [why for why in said if why in here]
        if not said:
            return ""
    return f"the outputs differ only {said[0]}: a softmax over no key has no meaning" if said else ""


def _reasons(flags: Flags, name: str, mask: npt.NDArray[Any]) -> list[str]:
    hidden = {f"where '{name}' hides every key": hides_all(mask)} if mask.ndim > 1 else {}
    if mask.ndim == 2:
        hidden[f"where '{name}' hides every key up to the query"] = hides_all_before(mask)
    return [why for why, queries in hidden.items() if queries.any() and _lie_in(flags, queries)]


def _lie_in(flags: Flags, queries: Flags) -> bool:
    """Whether what differs belongs to these sequences or queries: axis 0 is the batch, another one the position."""
    queries = queries[: len(flags)]  # a mask may have rows that nothing reads
    if len(queries) < len(flags):
        return False
    if queries.ndim == 1 or queries.shape[1] == 1:
        return not flags[~queries.reshape(-1)].any()
    axis = next((i for i in (1, 2) if i < flags.ndim and flags.shape[i] == queries.shape[1]), None)
    return axis is not None and not np.moveaxis(flags, axis, 1)[~queries].any()
