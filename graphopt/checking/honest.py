"""Measures honest errors: runs BEFORE rounding at random, and compares it with itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx.inliner
import onnx_ir as ir

from graphopt.checking.compare import Deviation, deviation
from graphopt.checking.inputs import Case
from graphopt.checking.rewritten import Rewritten
from graphopt.checking.rounding import noisy, rounded_feeds
from graphopt.checking.run import Model, Outputs, open_session, run_case
from graphopt.errors import VerifyError
from graphopt.graph import inference, traversal
from graphopt.metadata import Numerics

# Larger models are not read as a whole: there results are rounded and weights are not.
MAX_WEIGHTS_READ = 1_500_000_000


@dataclass
class HonestErrors:
    """Of one pair of models; measured when asked for.

    Attributes:
        model, proto: BEFORE and its message.
        wanted: its outputs by case.
        rewritten: what decides how coarse the noise is.
        half_io: inputs are rounded to float16.
    """

    model: Model
    proto: onnx.ModelProto
    wanted: dict[str, Outputs]
    rewritten: Rewritten
    half_io: bool
    _found: dict[tuple[Numerics, str], list[list[Deviation]]] = field(default_factory=dict)
    _source: tuple[onnx.ModelProto, dict[str, int]] | None = None

    def of(self, numerics: Numerics, case: str, output: int) -> list[Deviation]:
        """What was measured; empty where nothing was, or could be."""
        return [draw[output] for draw in self._found.get((numerics, case), [])]

    def measure(self, numerics: Numerics, cases: Iterable[Case], seeds: Iterable[int]) -> None:
        """One draw for each seed."""
        cases = list(cases)
        if not cases:
            return
        if self._source is None:
            self._source = self._read()
        proto, types = self._source
        precision = self.rewritten.precision(numerics, inputs_in_half=self.half_io)
        folder = self.model.parent if isinstance(self.model, Path) else None
        for seed in seeds:
            copy = noisy(proto, types, precision, seed)
            if copy is None:
                return
            try:
                session = open_session(copy, library=False, folder=folder)
            except VerifyError:  # a type that a kernel of the noise does not take
                return
            del copy
            for case in cases:
                outputs = run_case(session, Case(case.name, rounded_feeds(case.feeds, precision.inputs, seed)))
                if not isinstance(outputs, str):
                    moved = [deviation(w, o) for w, o in zip(self.wanted[case.name], outputs)]
                    self._found.setdefault((numerics, case.name), []).append(moved)

    def overflows(self, numerics: Numerics, case: Case) -> list[bool]:
        """Of each output, whether BEFORE itself leaves the range of half precision on the way to it."""
        if self._source is None:
            self._source = self._read()
        proto, types = self._source
        precision = self.rewritten.precision(numerics, inputs_in_half=self.half_io)
        copy = noisy(proto, types, precision, 0, overflows=True)
        if copy is None:
            return []
        try:
            folder = self.model.parent if isinstance(self.model, Path) else None
            outputs = run_case(open_session(copy, library=False, folder=folder), case)
        except VerifyError:
            return []
        if isinstance(outputs, str):
            return []
        return [bool(deviation(w, o).structure) for w, o in zip(self.wanted[case.name], outputs)]

    def _read(self) -> tuple[onnx.ModelProto, dict[str, int]]:
        proto = self.proto
        if isinstance(self.model, Path) and any(
            t.data_location == onnx.TensorProto.EXTERNAL for t in proto.graph.initializer
        ):
            sizes = (int(e.value) for t in proto.graph.initializer for e in t.external_data if e.key == "length")
            if sum(sizes) <= MAX_WEIGHTS_READ:
                proto = onnx.load(self.model)
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        return proto, types_of(proto)


def types_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Element types of all values by name."""
    model = ir.serde.deserialize_model(proto)
    inference.infer(model, proto)
    values = [v for graph in traversal.graphs(model) for v in graph.inputs]
    values += [v for graph in traversal.graphs(model) for node in graph for v in node.outputs]
    return {str(v.name): int(v.dtype) for v in values if v.dtype is not None}
