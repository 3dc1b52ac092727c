"""Measures the rounding errors of the original model (BEFORE): compares its outputs with runs with random rounding.

One run of one case with random rounding is a draw.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphopt.errors import VerifyError
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.verification import noise
from graphopt.verification.compare import Deviation, Shares, deviation, deviations, shares_of
from graphopt.verification.noise import NoisyModel, Precision
from graphopt.verification.pair import ComparedModel, Rewritten
from graphopt.verification.run import BODIES, Mode, Outputs, open_session, run_case
from graphopt.verification.variants import has_sums, with_outputs

# The number of random roundings of the weights, each in its own session. Every run rounds the activations anew.
SESSIONS = 4
# Maximum bytes of weights in all open sessions; one session is always kept.
KEPT_BYTES = 400_000_000

Key = tuple[Numerics, str]  # the class of outputs, and the name of a case


@dataclass
class Budget:
    """CPU seconds: a limit, and the time spent."""

    seconds: float
    spent: float = 0.0

    @property
    def is_spent(self) -> bool:
        return self.spent >= self.seconds


@dataclass
class RoundingErrors:
    """The measured rounding errors of BEFORE.

    Attributes:
        before: the model.
        expected: its outputs without random rounding, by case.
        rewritten: the rewrites of AFTER, which determine the precision of the rounding.
        half_io: whether AFTER takes float16 inputs; the inputs of BEFORE are then rounded to half precision.
        optimized: whether BEFORE runs only with the runtime's own optimizations.
        elsewhere: whether a provider other than the CPU computed `expected`.
        kept: names of the outputs that are kept for each draw (`values_of`).
        compared: inputs that both models only move and compare, so no rewrite rounds them.
    """

    before: ComparedModel
    expected: dict[str, Outputs]
    rewritten: Rewritten
    half_io: bool
    optimized: bool = False
    elsewhere: bool = False
    kept: frozenset[str] = frozenset()
    compared: frozenset[str] = frozenset()
    _values: dict[Key, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    _found: dict[Key, list[list[Deviation]]] = field(default_factory=lambda: defaultdict(list))
    _fixed: dict[Key, list[list[Deviation]]] = field(default_factory=dict)
    _drawn: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    _sessions: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _shares: dict[tuple[Numerics, int], tuple[int, Shares]] = field(default_factory=dict)
    _refused: dict[Key, str] = field(default_factory=dict)
    _noisy: Mapping[tuple[Any, ...], NoisyModel] = field(default_factory=dict)  # the most recent one

    @property
    def has_steps(self) -> bool:
        """Whether a node of BEFORE rounds to a grid, chooses among values or compares them."""
        return noise.has_steps(self.before.whole.graph)

    @property
    def has_choices(self) -> bool:
        """Whether a small change of a value may change results very much, by a step or a softmax."""
        return self.has_steps or noise.has_softmax(self.before.whole.graph)

    # -- results -------------------------------------------------------------------------------------------------------

    def of(self, numerics: Numerics, case: str, output: int) -> list[Deviation]:
        """Returns the deviations of an output in all draws; an empty list if there are none."""
        return [draw[output] for draw in self._found[numerics, case]]

    def values_of(self, numerics: Numerics, case: str) -> list[dict[str, Any]]:
        """Returns the outputs named in `kept`, for each draw."""
        return self._values[numerics, case]

    def why_not(self, numerics: Numerics, case: str) -> str:
        """Returns the reason why no draw of a case is usable."""
        refused = self._refused.get((numerics, case)) or self._refused.get((numerics, ""))
        return refused or "rounding alone changes its shape, or where it has NaN or infinities"

    def fixed_of(self, numerics: Numerics, case: str, output: int) -> list[Deviation]:
        """Returns the results of `measure_fixed`."""
        return [found[output] for found in self._fixed.get((numerics, case), [])]

    def drawn(self, numerics: Numerics, case: Case) -> int:
        """Returns the number of draws of a case."""
        return self._drawn[numerics, case.name]

    def shares(self, numerics: Numerics, output: int) -> Shares:
        """Returns how much rounding changes small slices in all draws of all cases."""
        count = sum(map(len, self._found.values()))
        if self._shares.get((numerics, output), (-1, {}))[0] != count:
            draws = (draw[output] for (n, _), many in self._found.items() if n == numerics for draw in many)
            self._shares[numerics, output] = count, shares_of(draws)
        return self._shares[numerics, output][1]

    # -- measurements --------------------------------------------------------------------------------------------------

    def measure(self, numerics: Numerics, cases: Iterable[Case], draws: int, steps: float = 1.0) -> float:
        """Makes more draws of each case, and returns the CPU seconds that they took.

        Args:
            numerics: the class of the judged outputs.
            cases: the input sets.
            draws: number of draws of each case.
            steps: as for `NoisyModel`.
        """
        began = time.process_time()
        cases = list(cases)
        for _ in range(draws):
            for case in cases:
                self._draw(numerics, case, steps)
        return time.process_time() - began

    def _draw(self, numerics: Numerics, case: Case, steps: float) -> None:
        key, rounding = (numerics, case.name), self._precision(numerics).inputs
        drawn = self._drawn[key]
        self._drawn[key] += 1
        if not case.fits:
            self._refused[key] = "a copy that rounds at random needs more memory than it may take"
            return
        session = self._session(numerics, drawn % SESSIONS if steps == 1 else 0, steps=steps)
        if session is None:
            return
        compared = frozenset[str]() if rounding.coarse else self.compared
        moved = {n: a for n, a in case.feeds.items() if n not in compared}
        outputs = run_case(session, replace(case, feeds={**case.feeds, **noise.rounded_feeds(moved, rounding, drawn)}))
        if isinstance(outputs, str):
            self._refused[key] = f"the copy that rounds at random does not run: {outputs}"
            return
        self._found[key].append([deviation(w, o) for w, o in zip(self.expected[case.name], outputs)])
        if self.kept:
            names = (str(output.name) for output in self.before.model.graph.outputs)
            self._values[key].append({name: o for name, o in zip(names, outputs) if name in self.kept})

    def measure_fixed(self, numerics: Numerics, case: Case) -> None:
        """Measures the part of BEFORE's error that is the same in every run.

        A copy of BEFORE writes norms as elementary operators and computes sums exactly (`variants.py`). In two cases it
        also rounds the weights that AFTER stores in half precision: if AFTER computes nothing in that precision, and if
        BEFORE has steps (few random draws of the weights would change the result of a step). Unlike noise, the measured
        error is not multiplied by FACTOR.
        """
        key, graph = (numerics, case.name), self.before.whole.graph
        drawn = self.rewritten.coarse and not noise.has_steps(graph)
        stored = frozenset[str]() if drawn else self.rewritten.stored
        if key in self._fixed or not case.fits or not (noise.has_norms(graph) or has_sums(graph) or stored):
            return
        self._fixed[key] = []
        noiseless = self._session(numerics, 0, noiseless=True, stored=stored)
        outputs = "none" if noiseless is None else run_case(noiseless, case)
        if isinstance(outputs, str):
            return
        references = [self.expected[case.name]]
        if self.elsewhere:  # the rounding errors of AFTER's sums may be as large as the CPU's
            plain = run_case(open_session(self.before.source, self._mode), case)
            references += [plain] if not isinstance(plain, str) else []
        for reference in references:
            self._fixed[key].append([deviation(w, o) for w, o in zip(reference, outputs)])

    def values(self, numerics: Numerics, names: Sequence[str], case: Case) -> dict[str, Any]:
        """Returns values of BEFORE's main graph by name, rounded at random; an empty dict if the copy does not run."""
        outputs = self._run_once(numerics, case, names)
        return {} if isinstance(outputs, str) else dict(zip(names, outputs))

    def overflows(self, numerics: Numerics, case: Case) -> list[Deviation]:
        """Measures BEFORE with infinities beyond float16's range; returns an empty list if the copy does not run."""
        found = deviations(self.expected[case.name], self._run_once(numerics, case, overflows=True))
        return [] if isinstance(found, str) else found

    def _run_once(self, numerics: Numerics, case: Case, names: Sequence[str] = (), **how: Any) -> Outputs | str:
        try:
            session = self._opened(numerics, 0, names, **how)
        except VerifyError as error:
            return str(error)
        return "none" if session is None else run_case(session, case)

    # -- sessions ------------------------------------------------------------------------------------------------------

    @property
    def _mode(self) -> Mode:
        return replace(BODIES, optimized=self.optimized)

    def _precision(self, numerics: Numerics) -> Precision:
        return self.rewritten.precision(numerics, inputs_in_half=self.half_io)

    def _session(self, numerics: Numerics, seed: int, **how: Any) -> Any:
        """Returns a session of BEFORE with noise; None if it cannot be created."""
        key = numerics, seed, *sorted(how.items())
        if key in self._sessions:
            return self._sessions[key]
        tensors = (value.const_value for value in self.before.whole.graph.initializers.values())
        weights = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        while len(self._sessions) >= max(1, KEPT_BYTES // max(1, weights)):
            del self._sessions[next(iter(self._sessions))]
        session = None
        for guess in (True, False) if noise.guessed(self.before.whole.graph) else (False,):
            try:
                session = self._opened(numerics, seed, guess=guess, **how)
                break
            except VerifyError as error:  # a type that a kernel of the noise does not support
                self._refused[numerics, ""] = f"the copy that rounds at random: {error}"
        self._sessions[key] = session
        return session

    def _opened(self, numerics: Numerics, seed: int, names: Sequence[str] = (), **how: Any) -> Any:
        """Opens a session of BEFORE with the noise of a seed.

        Args:
            numerics: the class of the judged outputs.
            seed: the seed of the noise.
            names: values of the main graph that replace the outputs; empty to keep the outputs.
            how: options of `NoisyModel`.

        Returns:
            The session; None if the opset is too old.

        Raises:
            VerifyError: the runtime refuses the copy.
        """
        if self.before.whole.opset_imports.get("", 0) < noise.OLDEST_OPSET:
            self._refused[numerics, ""] = f"rounding needs opset {noise.OLDEST_OPSET}, and BEFORE is older"
            return None
        key = numerics, *sorted(how.items())
        if key not in self._noisy:
            self._noisy = {key: NoisyModel(self.before.whole, self._precision(numerics), **how)}
        with self._noisy[key].drawn(seed) as copy:
            return open_session(with_outputs(copy, names) if names else copy, self._mode)
