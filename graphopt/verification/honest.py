"""Measures honest errors: runs BEFORE rounding at random, and compares it with itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphopt.errors import VerifyError
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.verification.compare import Deviation, deviation
from graphopt.verification.exact import has_sums
from graphopt.verification.judge import Shares, shares_of
from graphopt.verification.noise import (
    OLDEST_OPSET,
    Noisy,
    guessed,
    has_norms,
    has_softmax,
    has_steps,
    rounded_feeds,
)
from graphopt.verification.pair import Side
from graphopt.verification.rewritten import Rewritten
from graphopt.verification.run import Outputs, open_session, run_case, with_outputs

# Draws of the weights' rounding. Each is a session; what runs in one again rounds its activations anew.
SESSIONS = 4
# In the place of a draw's number: nothing is drawn.
STILL = -1
# How many bytes of weights open sessions may hold together; one session is always kept.
KEPT_BYTES = 400_000_000


@dataclass
class Budget:
    """Seconds of all processors that may be spent, and that were."""

    seconds: float
    spent: float = 0.0

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.seconds


@dataclass
class HonestErrors:
    """Honest errors of one pair of models, measured when asked for.

    Attributes:
        side: BEFORE.
        wanted: its outputs by case.
        rewritten: what decides how coarse the noise is.
        half_io: inputs are rounded to float16.
        optimized: BEFORE runs with the runtime's own optimizations alone.
        elsewhere: `wanted` is of another provider than the CPU's.
        kept: names of outputs; their values in each draw are kept (`values_of`).
        compared: inputs that both models only move and compare, so that no honest rewrite rounds them.
    """

    side: Side
    wanted: dict[str, Outputs]
    rewritten: Rewritten
    half_io: bool
    optimized: bool = False
    elsewhere: bool = False
    kept: frozenset[str] = frozenset()
    _values: dict[tuple[Numerics, str], list[dict[str, Any]]] = field(default_factory=dict)
    compared: frozenset[str] = frozenset()
    _found: dict[tuple[Numerics, str], list[list[Deviation]]] = field(default_factory=dict)
    _fixed: dict[tuple[Numerics, str], list[list[Deviation]]] = field(default_factory=dict)
    _drawn: dict[tuple[Numerics, str], int] = field(default_factory=dict)
    _sessions: dict[tuple[Numerics, int, float], Any] = field(default_factory=dict)
    _shares: dict[tuple[Numerics, int], tuple[tuple[int, int], Shares]] = field(default_factory=dict)
    _refused: dict[tuple[Numerics, str], str] = field(default_factory=dict)
    _noisy: dict[tuple[Any, ...], Noisy] = field(default_factory=dict)  # the last one

    def of(self, numerics: Numerics, case: str, output: int) -> list[Deviation]:
        """What was measured; empty where nothing was, or could be."""
        return [draw[output] for draw in self._found.get((numerics, case), [])]

    def values_of(self, numerics: Numerics, case: str) -> list[dict[str, Any]]:
        """Returns the outputs named in `kept`, for each draw."""
        return self._values.get((numerics, case), [])

    def why_not(self, numerics: Numerics, case: str) -> str:
        """Why no draw of a case says anything, where none does."""
        if said := self._refused.get((numerics, case)) or self._refused.get((numerics, "")):
            return said
        return "rounding alone changes its shape, or where it has NaN or infinities"

    def fixed_of(self, numerics: Numerics, case: str, output: int) -> list[Deviation]:
        """What `measure_fixed` found."""
        return [found[output] for found in self._fixed.get((numerics, case), [])]

    def measure_fixed(self, numerics: Numerics, case: Case) -> None:
        """How far BEFORE is from itself where nothing rounds at random.

        Its norms are computed another way and its sums exactly (`exact_sums`), and weights are rounded that lie in half
        precision where nothing is computed in it, or where steps follow: few draws of other weights say what these do
        then. That is the same in every draw, so FACTOR is not in it, as it is in the noise.
        """
        graph = self.side.whole.graph
        drawn = self.rewritten.coarse and not has_steps(graph)
        stored = frozenset[str]() if drawn else self.rewritten.stored
        if (numerics, case.name) in self._fixed or not case.fits or not (has_norms(graph) or has_sums(graph) or stored):
            return
        self._fixed[numerics, case.name] = []
        still = self._still(numerics, stored)
        outputs = "none" if still is None else run_case(still, case)
        if isinstance(outputs, str):
            return
        references = [self.wanted[case.name]]
        if self.elsewhere:  # AFTER's sums may be as far off as the CPU's are
            plain = run_case(open_session(self.side.source, library=False, optimized=self.optimized), case)
            references += [plain] if not isinstance(plain, str) else []
        for reference in references:
            moved = [deviation(w, o) for w, o in zip(reference, outputs)]
            self._fixed[numerics, case.name].append(moved)

    def _still(self, numerics: Numerics, stored: frozenset[str]) -> Any:
        """A session of BEFORE for `measure_fixed`; None where there is none."""
        if (numerics, STILL, 1.0) not in self._sessions:
            self._make_room()
            session = None
            with contextlib.suppress(VerifyError):
                session = self._opened(numerics, 0, guess=True, still=True, stored=stored)
            self._sessions[numerics, STILL, 1.0] = session
        return self._sessions[numerics, STILL, 1.0]

    def drawn(self, numerics: Numerics, case: Case) -> int:
        """How often the case was drawn."""
        return self._drawn.get((numerics, case.name), 0)

    def shares(self, numerics: Numerics, output: int) -> Shares:
        """What all draws of all cases say about small slices."""
        count = len(self._found), sum(map(len, self._found.values()))
        if self._shares.get((numerics, output), (None, {}))[0] != count:
            draws = (draw[output] for (n, _), many in self._found.items() if n == numerics for draw in many)
            self._shares[numerics, output] = (count, shares_of(draws))
        return self._shares[numerics, output][1]

    @property
    def has_steps(self) -> bool:
        """Whether BEFORE rounds to a grid, chooses or compares somewhere."""
        return has_steps(self.side.whole.graph)

    @property
    def has_choices(self) -> bool:
        """Whether a little more or less of a number may decide which of two very different ones comes out."""
        return self.has_steps or has_softmax(self.side.whole.graph)

    def measure(self, numerics: Numerics, cases: Iterable[Case], draws: int, steps: float = 1.0) -> float:
        """Draws each case so many more times; the seconds of all processors that it took.

        Args:
            numerics: the class of the outputs that are asked about.
            cases: the inputs.
            draws: of each.
            steps: as for `noisy`.
        """
        began = time.process_time()
        precision = self.rewritten.precision(numerics, inputs_in_half=self.half_io)
        names = [output.name for output in self.side.model.graph.outputs]
        cases = list(cases)
        for _ in range(draws):
            for case in cases:
                drawn = self.drawn(numerics, case)
                self._drawn[numerics, case.name] = drawn + 1
                if not case.fits:
                    self._refused[numerics, case.name] = (
                        "a copy that rounds at random needs more memory than it may take"
                    )
                    continue
                session = self._session(numerics, drawn % SESSIONS if steps == 1 else 0, steps)
                if session is None:
                    continue
                compared = frozenset[str]() if precision.inputs.coarse else self.compared
                moved = {n: a for n, a in case.feeds.items() if n not in compared}
                feeds = {**case.feeds, **rounded_feeds(moved, precision.inputs, drawn)}
                outputs = run_case(session, replace(case, feeds=feeds))
                if isinstance(outputs, str):
                    self._refused[numerics, case.name] = f"the copy that rounds at random does not run: {outputs}"
                    continue
                found = [deviation(w, o) for w, o in zip(self.wanted[case.name], outputs)]
                self._found.setdefault((numerics, case.name), []).append(found)
                if self.kept:
                    values = {name: output for name, output in zip(names, outputs) if name in self.kept}
                    self._values.setdefault((numerics, case.name), []).append(values)
        return time.process_time() - began

    def values(self, numerics: Numerics, names: Sequence[str], case: Case) -> dict[str, Any] | None:
        """Values of BEFORE's main graph by name, rounded at random; None where that does not run."""
        outputs = self._run_once(numerics, case, names)
        return None if isinstance(outputs, str) else dict(zip(names, outputs))

    def overflows(self, numerics: Numerics, case: Case) -> list[Deviation]:
        """How far BEFORE is from itself where it leaves the range of half precision; empty where that is not known."""
        outputs = self._run_once(numerics, case, overflows=True)
        return [] if isinstance(outputs, str) else [deviation(w, o) for w, o in zip(self.wanted[case.name], outputs)]

    def _run_once(self, numerics: Numerics, case: Case, names: Sequence[str] = (), **how: Any) -> Outputs | str:
        try:
            session = self._opened(numerics, 0, names, **how)
        except VerifyError as error:
            return str(error)
        return "" if session is None else run_case(session, case)

    def _session(self, numerics: Numerics, seed: int, steps: float) -> Any:
        """BEFORE rounding at random; None where it cannot be made."""
        if (numerics, seed, steps) in self._sessions:
            return self._sessions[numerics, seed, steps]
        self._make_room()
        session = None
        for guess in (True, False) if guessed(self.side.whole.graph) else (False,):
            try:
                session = self._opened(numerics, seed, guess=guess, steps=steps)
                break
            except VerifyError as error:  # a type that a kernel of the noise does not take
                self._refused[numerics, ""] = f"the copy that rounds at random: {error}"
        self._sessions[numerics, seed, steps] = session
        return session

    def _make_room(self) -> None:
        tensors = (value.const_value for value in self.side.whole.graph.initializers.values())
        weights = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        kept = max(1, KEPT_BYTES // max(1, weights))
        while len(self._sessions) >= kept:
            del self._sessions[next(iter(self._sessions))]

    def _opened(self, numerics: Numerics, seed: int, names: Sequence[str] = (), **how: Any) -> Any:
        """A session of BEFORE with the noise of a seed, with these values as outputs, if any.

        Args:
            numerics: the class of the outputs that are asked about.
            seed: of the noise.
            names: values of the main graph.
            how: of `Noisy`.

        Returns:
            The session; None where the opset is too old.

        Raises:
            VerifyError: the runtime refuses the copy.
        """
        if self.side.whole.opset_imports.get("", 0) < OLDEST_OPSET:
            self._refused[numerics, ""] = f"rounding needs opset {OLDEST_OPSET}, and BEFORE is older"
            return None
        key = numerics, *sorted(how.items())
        if key not in self._noisy:
            precision = self.rewritten.precision(numerics, inputs_in_half=self.half_io)
            self._noisy = {key: Noisy(self.side.whole, precision, **how)}
        with self._noisy[key].drawn(seed) as copy:
            shown = with_outputs(copy, names) if names else copy
            return open_session(shown, library=False, optimized=self.optimized)
