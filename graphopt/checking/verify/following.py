"""Compares runs that differ with a copy of BEFORE that takes AFTER's choices (`graphopt/checking/choices.py`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from graphopt.checking.choices import (
    CHOOSE,
    Choice,
    choices_of,
    mistake,
    outputs_behind,
    with_given_choices,
    with_shown_choices,
    with_unused_choices,
)
from graphopt.checking.default_level import run_optimized
from graphopt.checking.float16_values import kept_in_half
from graphopt.checking.honest import HonestErrors, self_contained, types_of
from graphopt.checking.inputs import Case
from graphopt.checking.judge import is_beyond_doubt
from graphopt.checking.run import Outputs, open_session, run_case
from graphopt.checking.tolerances import LIMITS
from graphopt.checking.verify.planning import Pair, Way
from graphopt.checking.verify.running import Run, deviations
from graphopt.errors import VerifyError
from graphopt.metadata import Numerics
from graphopt.runtime.discovery import CPU


@dataclass
class Group:
    """Runs that are compared with one BEFORE.

    Attributes:
        pair, honest: the models, and the rounding errors of this BEFORE.
        runs: of AFTER.
        choices: those that BEFORE takes from AFTER; empty where it makes its own.
    """

    pair: Pair
    honest: HonestErrors
    runs: list[Run] = field(default_factory=list)
    choices: Sequence[Choice] = ()

    def mistake(self, run: Run, numerics: Numerics) -> tuple[str, set[str]]:
        """Says which choice of AFTER BEFORE could not have made, "" if none, and which outputs depend on it."""
        names, approximated = self.pair.names, self.pair.rewritten.approximated
        read = {n: np.asarray(o) for n, o in zip(names, self.honest.wanted[run.case.name]) if n in self.honest.kept}
        draws = self.honest.values_of(numerics, run.case.name)
        # Draws do not contain the error of approximating kernels.
        slack = LIMITS[Numerics.APPROXIMATE] if approximated else 0.0
        slack = slack if draws else max(slack, LIMITS[numerics])
        for choice in self.choices:
            why = mistake(choice, np.asarray(run.case.feeds[choice.given]), read, draws, slack)
            if why:
                return why, outputs_behind(self.pair.before_proto, choice)
        return "", set()


def grouped(pair: Pair, honest: HonestErrors, runs: Sequence[Run], compared: Collection[str]) -> list[Group]:
    """Groups runs by the BEFORE that they are compared with: its own choices, or the first, second, ... of a case."""
    plain = Group(pair, honest)
    following = None
    if _makes_choices(pair) and any(pair.rewritten.classes[name] != Numerics.EXACT for name in compared):
        places = [pair.names.index(name) for name in compared]
        doubtful = {
            run
            for run in runs
            if not isinstance(run.found, str) and any(not is_beyond_doubt(run.found[i]) for i in places)
        }
        following = _Following.of(pair, honest) if doubtful else None
    if following is None:
        plain.runs = list(runs)
        return [plain]
    groups: list[Group] = []
    made: dict[str, list[bytes]] = {}
    for run in runs:
        followed = following.run(run) if run in doubtful else None
        if followed is None:
            plain.runs.append(run)
            continue
        new, wanted = followed
        chosen = b"".join(np.asarray(new.case.feeds[c.given]).tobytes() for c in following.choices)
        others = made.setdefault(run.case.name, [])
        if chosen not in others:
            others.append(chosen)
        turn = others.index(chosen)
        if turn == len(groups):
            groups.append(following.group(honest))
        groups[turn].honest.wanted[run.case.name] = wanted
        groups[turn].runs.append(new)
    return [plain, *groups] if plain.runs else groups


def _makes_choices(pair: Pair) -> bool:
    """Whether BEFORE runs on the CPU and has nodes that choose."""
    nodes = [*pair.before_proto.graph.node, *(n for f in pair.before_proto.functions for n in f.node)]
    return pair.reference == Way(False) and any(n.op_type in CHOOSE for n in nodes)


class _Following:
    """The models that follow AFTER's choices, and their sessions."""

    def __init__(self, pair: Pair, before: onnx.ModelProto, after: onnx.ModelProto, choices: Sequence[Choice]) -> None:
        self.choices = choices
        self.shown = with_shown_choices(after, choices)
        self.before = with_given_choices(before, choices)
        after = with_unused_choices(after, choices)
        sides = {"before": self.before, "before_proto": self.before, "after": after, "after_proto": after}
        self.outputs = len(pair.names)
        self.pair = replace(pair, **sides)
        self.session = open_session(self.before, library=False)
        self.sessions: dict[Way, Any] = {}

    @staticmethod
    def of(pair: Pair, honest: HonestErrors) -> _Following | None:
        """Returns None if BEFORE chooses by no scores, or the models do not correspond or are too large."""
        before, after = honest.whole, self_contained(pair.after, pair.after_proto)
        tensors = (*before.graph.initializer, *after.graph.initializer)
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in tensors):
            return None
        try:
            choices = choices_of(before, after, types_of(before))
            return _Following(pair, before, after, choices) if choices else None
        except VerifyError:
            return None

    def group(self, honest: HonestErrors) -> Group:
        kept = frozenset(name for choice in self.choices for name in choice.reads if name)
        own = HonestErrors(self.before, self.before, {}, honest.rewritten, honest.half_io, kept=kept)
        return Group(self.pair, own, choices=self.choices)

    def run(self, run: Run) -> tuple[Run, Outputs] | None:
        """Compares the run with BEFORE by the run's choices; also returns BEFORE's outputs. None if either fails."""
        got = self._after(run)
        if isinstance(got, str):
            return None
        shown = got[self.outputs :]
        given = {choice.given: np.asarray(indices, np.int64) for choice, indices in zip(self.choices, shown)}
        case = Case(run.case.name, {**run.case.feeds, **given})
        wanted = run_case(self.session, case)
        if isinstance(wanted, str):
            return None
        return Run(run.way, case, deviations(wanted[: self.outputs], got[: self.outputs])), wanted

    def _after(self, run: Run) -> Outputs | str:
        """Returns AFTER's outputs and, behind them, its choices."""
        way, half_io = run.way, self.pair.half_io
        if way.optimized and way.provider == CPU:
            return run_optimized(self.shown, [run.case], library=way.library, half_io=half_io)[run.case.name]
        if way not in self.sessions:
            model = kept_in_half(self.shown, self.pair.halves) if way.in_half else self.shown
            self.sessions[way] = open_session(
                model, library=way.library, provider=way.provider, optimized=way.optimized
            )
        return run_case(self.sessions[way], run.case, half_io=half_io)
