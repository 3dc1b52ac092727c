"""Measures honest errors: runs BEFORE rounding at random, and compares it with itself."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from graphopt.errors import VerifyError
from graphopt.graph import inference, traversal
from graphopt.graph.messages import bodies, inlined
from graphopt.inputs.plan import Case
from graphopt.metadata import Numerics
from graphopt.verification.compare import Deviation, deviation
from graphopt.verification.exact import has_sums
from graphopt.verification.judge import Shares, shares_of
from graphopt.verification.noise import (
    FLOATS,
    OLDEST_OPSET,
    Noisy,
    has_norms,
    has_softmax,
    has_steps,
    noisy,
    rounded_feeds,
)
from graphopt.verification.rewritten import Rewritten
from graphopt.verification.run import Model, Outputs, open_session, run_case

# Larger models are not read as a whole: there results are rounded and weights are not.
MAX_WEIGHTS_READ = 1_500_000_000
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
        model, proto: BEFORE and its message.
        wanted: its outputs by case.
        rewritten: what decides how coarse the noise is.
        half_io: inputs are rounded to float16.
        optimized: BEFORE runs with the runtime's own optimizations alone.
        elsewhere: `wanted` is of another provider than the CPU's.
        kept: names of outputs; their values in each draw are kept (`values_of`).
        compared: inputs that both models only move and compare, so that no honest rewrite rounds them.
    """

    model: Model
    proto: onnx.ModelProto
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
    _source: tuple[onnx.ModelProto, dict[str, int]] | None = None
    _weights: int = 0  # bytes

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
        proto, types = self._read_once()
        drawn = self.rewritten.coarse and not has_steps(proto.graph, types)
        stored = frozenset[str]() if drawn else self.rewritten.stored
        if (
            (numerics, case.name) in self._fixed
            or not case.fits
            or not (has_norms(proto.graph) or has_sums(proto.graph) or stored)
        ):
            return
        self._fixed[numerics, case.name] = []
        still = self._still(numerics, stored)
        outputs = "none" if still is None else run_case(still, case)
        if isinstance(outputs, str):
            return
        references = [self.wanted[case.name]]
        if self.elsewhere:  # AFTER's sums may be as far off as the CPU's are
            plain = run_case(open_session(self.model, library=False, optimized=self.optimized), case)
            references += [plain] if not isinstance(plain, str) else []
        for reference in references:
            moved = [deviation(w, o) for w, o in zip(reference, outputs)]
            self._fixed[numerics, case.name].append(moved)

    def _still(self, numerics: Numerics, stored: frozenset[str]) -> Any:
        """A session of BEFORE for `measure_fixed`; None where there is none."""
        if (numerics, STILL, 1.0) not in self._sessions:
            self._make_room()
            proto, types = self._read_once()
            precision = self.rewritten.precision(numerics, inputs_in_half=self.half_io)
            copy = noisy(proto, {**types, **guessed(proto.graph, types)}, precision, 0, still=True, stored=stored)
            session = None
            with contextlib.suppress(VerifyError):
                session = self._opened(copy) if copy is not None else None
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
        proto, types = self._read_once()
        return has_steps(proto.graph, types)

    @property
    def has_choices(self) -> bool:
        """Whether a little more or less of a number may decide which of two very different ones comes out."""
        return self.has_steps or has_softmax(self._read_once()[0].graph)

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
        proto = self._read_once()[0] if self.kept else self.proto
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
                    named = zip((o.name for o in proto.graph.output), outputs)
                    values = {name: output for name, output in named if name in self.kept}
                    self._values.setdefault((numerics, case.name), []).append(values)
        return time.process_time() - began

    def values(self, numerics: Numerics, names: Sequence[str], case: Case) -> dict[str, Any] | None:
        """Values of BEFORE's main graph by name, rounded at random; None where that does not run."""
        proto, types = self._read_once()
        precision = self.rewritten.precision(numerics, inputs_in_half=self.half_io)
        copy = noisy(proto, types, precision, 0)
        if copy is None:
            return None
        del copy.model.graph.output[:]
        copy.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        try:
            outputs = run_case(self._opened(copy), case)
        except VerifyError:
            return None
        return None if isinstance(outputs, str) else dict(zip(names, outputs))

    def _session(self, numerics: Numerics, seed: int, steps: float) -> Any:
        """BEFORE rounding at random; None where it cannot be made."""
        if (numerics, seed, steps) in self._sessions:
            return self._sessions[numerics, seed, steps]
        proto, types = self._read_once()
        guesses = guessed(proto.graph, types)
        self._make_room()
        precision = self.rewritten.precision(numerics, inputs_in_half=self.half_io)
        session = None
        for known in ({**types, **guesses}, types) if guesses else (types,):
            copy = noisy(proto, known, precision, seed, steps=steps)
            if copy is None:
                self._refused[numerics, ""] = f"rounding needs opset {OLDEST_OPSET}, and BEFORE is older"
                break
            try:
                session = self._opened(copy)
                break
            except VerifyError as error:  # a type that a kernel of the noise does not take
                self._refused[numerics, ""] = f"the copy that rounds at random: {error}"
        self._sessions[numerics, seed, steps] = session
        return session

    def _make_room(self) -> None:
        kept = max(1, KEPT_BYTES // max(1, self._weights))
        while len(self._sessions) >= kept:
            del self._sessions[next(iter(self._sessions))]

    def _opened(self, copy: Noisy) -> Any:
        return open_session(
            copy.model, library=False, folder=self._folder, weights=copy.weights, optimized=self.optimized
        )

    @property
    def whole(self) -> onnx.ModelProto:
        """BEFORE with its weights inside, if it is not too large, and its functions inlined."""
        return self._read_once()[0]

    @property
    def _folder(self) -> Path | None:
        return self.model.parent if isinstance(self.model, Path) else None

    def overflows(self, numerics: Numerics, case: Case) -> list[Deviation]:
        """How far BEFORE is from itself where it leaves the range of half precision; empty where that is not known."""
        proto, types = self._read_once()
        precision = self.rewritten.precision(numerics, inputs_in_half=self.half_io)
        copy = noisy(proto, types, precision, 0, overflows=True)
        if copy is None:
            return []
        try:
            outputs = run_case(self._opened(copy), case)
        except VerifyError:
            return []
        if isinstance(outputs, str):
            return []
        return [deviation(w, o) for w, o in zip(self.wanted[case.name], outputs)]

    def _read_once(self) -> tuple[onnx.ModelProto, dict[str, int]]:
        if self._source is None:
            self._source = self._read()
        return self._source

    def _read(self) -> tuple[onnx.ModelProto, dict[str, int]]:
        proto = inlined(self_contained(self.model, self.proto))
        self._weights = sum(math.prod(t.dims) * ir.DataType(t.data_type).bitwidth // 8 for t in proto.graph.initializer)
        return proto, types_of(proto)


def self_contained(model: Model, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the message of a model with its weights inside, unless they are larger than `MAX_WEIGHTS_READ`."""
    if isinstance(model, Path) and any(t.data_location == onnx.TensorProto.EXTERNAL for t in proto.graph.initializer):
        sizes = (int(e.value) for t in proto.graph.initializer for e in t.external_data if e.key == "length")
        if sum(sizes) <= MAX_WEIGHTS_READ:
            return onnx.load(model)
    return proto


def types_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Element types of all values by name."""
    model = ir.serde.deserialize_model(proto)
    inference.infer(model, proto)
    values = [v for graph in traversal.graphs(model) for v in (*graph.inputs, *graph.initializers.values())]
    values += [v for graph in traversal.graphs(model) for node in graph for v in node.outputs]
    return {str(v.name): int(v.dtype) for v in values if v.dtype is not None}


def guessed(graph: onnx.GraphProto, types: Mapping[str, int]) -> dict[str, int]:
    """Types that inference does not know, of results of the runtime's own operators: a result has that of an input."""
    found: dict[str, int] = {}
    for node in graph.node:
        for body in bodies(node):
            found |= guessed(body, {**types, **found})
        given = (types.get(name, found.get(name)) for name in node.input)
        first = next((t for t in given if t in FLOATS), None)
        if first is not None and node.output and node.output[0] not in types:
            found[node.output[0]] = first
    return found
