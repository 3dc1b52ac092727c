"""What long work says while it goes on: which step it is at, and about how long the rest takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

Progress = Callable[[str], None]

# Before so many seconds nobody wants to know what is left, and it could not be said well.
SILENT_SECONDS = 1.0


class Steps:
    """Steps in a known order, each with a rough weight: what the first ones took says what the others will take.

    Args:
        say: called with a line when a step starts; None is nobody.
        steps: (name, weight) each.
    """

    def __init__(self, say: Progress | None, steps: Sequence[tuple[str, float]]) -> None:
        self._say = say or (lambda _: None)
        self._steps = list(steps)
        self._next = 0
        self._start = perf_counter()

    def begin(self, detail: str = "") -> None:
        """The next step starts."""
        name, _ = self._steps[self._next]
        done = sum(weight for _, weight in self._steps[: self._next])
        rest = sum(weight for _, weight in self._steps[self._next :])
        self._next += 1
        took = perf_counter() - self._start
        left = f", {time_left(took * rest / done)}" if done and took >= SILENT_SECONDS else ""
        self._say(f"{name}{f' {detail}' if detail else ''} ({self._next} of {len(self._steps)}{left})")


def time_left(seconds: float) -> str:
    """In the words of all commands: about 7 s left, about 3 min left."""
    return f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"
