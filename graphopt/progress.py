"""Progress of long operations: the current step and the estimated remaining time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

Progress = Callable[[str], None]

# In the first second an estimate of the remaining time is neither useful nor accurate.
SILENT_SECONDS = 1.0


class Steps:
    """Steps with approximate weights, to extrapolate the time of the remaining steps.

    Args:
        say: called with a line when a step starts; None for no output.
        steps: (name, weight) of each step, in order.
    """

    def __init__(self, say: Progress | None, steps: Sequence[tuple[str, float]]) -> None:
        self._say = say or (lambda _: None)
        self._steps = list(steps)
        self._next = 0
        self._start = perf_counter()

    def begin(self, detail: str = "") -> None:
        """Starts the next step; `detail` is appended to its name."""
        name, _ = self._steps[self._next]
        done = sum(weight for _, weight in self._steps[: self._next])
        rest = sum(weight for _, weight in self._steps[self._next :])
        self._next += 1
        took = perf_counter() - self._start
        left = f", {time_left(took * rest / done)}" if done and took >= SILENT_SECONDS else ""
        self._say(f"{name}{f' {detail}' if detail else ''} ({self._next} of {len(self._steps)}{left})")


def time_left(seconds: float) -> str:
    """Formats a remaining time: "about 7 s left", "about 3 min left"."""
    return f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"
