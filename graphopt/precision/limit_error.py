"""`limit_error`: chooses the layers that keep float32 to bound the error of a model in bfloat16.

Each layer is rounded alone; the error at the outputs is its sensitivity. The errors of layers are assumed independent,
so their squares add up. The most sensitive layers keep float32 until the estimated error of the others is below the
limit. Starting with this number of layers, a binary search measures written models: it finds the fewest layers, the
most sensitive ones first, that must keep float32.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import GraphoptError, OptionError, naming_model
from graphopt.graph import reading, writing
from graphopt.inputs.plan import Case, normal_feeds
from graphopt.measure.bench import size_grid
from graphopt.optimizer import optimize
from graphopt.options import Options, Precision
from graphopt.progress import Progress
from graphopt.verification.pair import may_divide_by_zero
from graphopt.verification.run import Mode, Outputs, run_cases, run_isolated

PRECISION: Precision = "bf16"
# The passes that round; each node that they rewrite is a layer.
_PASSES = ("bfloat16", "bfloat16_conv", "bfloat16_attention", "bfloat16_matmul")
_CASES = 4  # random inputs; the error is the RMS over all of them


@dataclass(frozen=True)
class ErrorLimit:
    """The result of `limit_error`. Errors are relative: RMS of the error over RMS of the output, over all inputs.

    Attributes:
        keep: the layers that keep float32, the most sensitive first; pass it to `optimize` as `keep_float`.
        sensitivities: for each layer the error of the worst output when only that layer is rounded; empty if the
            limit holds with all layers rounded.
        rounded: for each output, the error with all layers in bfloat16.
        errors: for each output, the error with `keep` in float32.
    """

    keep: tuple[str, ...]
    sensitivities: dict[str, float]
    rounded: dict[str, float]
    errors: dict[str, float]

    def lines(self) -> list[str]:
        """Returns the kept layers and the error of each output as lines of text."""
        names = ", ".join(self.keep)
        kept = f"{len(self.keep)} of {len(self.sensitivities)} layers keep float32: {names}" if self.keep else ""
        errors = [
            f"error of {name}: {error:.1e}"
            + (f" ({self.rounded[name]:.1e} with all layers in bfloat16)" if self.keep else "")
            for name, error in self.errors.items()
        ]
        return [kept, *errors] if kept else errors


def limit_error(
    model: Any,
    max_error: float,
    options: Options | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> ErrorLimit:
    """Chooses the layers that `optimize(model, precision="bf16")` must keep in float32.

    Args:
        model: a model in any form that `optimize` accepts.
        max_error: the largest allowed relative error of an output: RMS of the error over RMS of the output.
        options: options of `optimize`; the precision must be "bf16". Nodes in `keep_float` keep float32 as well.
        sizes: symbolic dimension -> size in the random inputs; other dimensions have the sizes of `bench`.
        progress: called with a line for each step.

    Raises:
        ModelLoadError: the model cannot be read.
        OptionError: another precision, a limit that is not a positive number, or an unknown dimension.
        GraphoptError: the model does not run, or its error exceeds the limit with all layers in float32.
        RuntimeMissingError: ONNX Runtime or the native library is missing.
    """
    options = options or Options(target="cpu", precision=PRECISION)
    if options.precision != PRECISION:
        raise OptionError(f"an error limit needs precision {PRECISION}")
    if not 0 < max_error < math.inf:
        raise OptionError(f"the error limit must be a positive number, not {max_error}")
    say = progress or (lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        work = _ErrorMeasurement(Path(folder), model, options, dict(sizes or {}))
        layers, rounded = work.errors(())
        errors, sensitivities = rounded, dict[str, float]()
        keep: tuple[str, ...] = ()
        if _worst(rounded) > max_error:
            for i, layer in enumerate(layers):
                say(f"layer {i + 1} of {len(layers)}: {layer}")
                sensitivities[layer] = _worst(work.errors(set(layers) - {layer})[1])
            order = sorted(layers, key=lambda layer: -sensitivities[layer])
            keep, errors = _fewest(work, order, sensitivities, max_error, say)
    return ErrorLimit(keep, sensitivities, rounded, errors)


def _fewest(
    work: _ErrorMeasurement, order: list[str], sensitivities: Mapping[str, float], max_error: float, say: Progress
) -> tuple[tuple[str, ...], dict[str, float]]:
    """Returns the shortest prefix of `order` for which the limit holds if its layers keep float32, and the errors.

    Raises:
        GraphoptError: the limit does not hold with all layers in float32.
    """
    count = 1
    while count < len(order) and math.hypot(*(sensitivities[layer] for layer in order[count:])) > max_error:
        count += 1
    low, high = 1, len(order)  # inclusive bounds of the answer
    found: dict[str, float] | None = None
    while True:
        say(f"{count} of {len(order)} layers in float32")
        _, errors = work.errors(order[:count])
        if _worst(errors) <= max_error:
            high, found = count, errors
        elif count >= len(order):  # also if there are no layers
            raise GraphoptError(
                f"with all layers in float32 the error is {_worst(errors):.1e}, more than {max_error:.1e}: other "
                "rewrites cause it (--explain lists them, --skip leaves a pass out)"
            )
        else:
            low = count + 1
        if low >= high and found is not None:
            return tuple(order[:high]), found
        count = (low + high) // 2


class _ErrorMeasurement:
    """Measures the error of the optimized model against the original model's outputs."""

    def __init__(self, folder: Path, model: Any, options: Options, sizes: dict[str, int]) -> None:
        self._folder, self._model = folder, model
        self._options = replace(options, progress=None, dry_run=False, external_data=None, in_place=False)
        if isinstance(model, str | Path):
            original = Path(model)
        else:
            original = folder / "model.onnx"
            writing.save(reading.load(model).model, original)
        proto = reading.read_proto(original)
        (drawn,) = size_grid(proto, {s: (n,) for s, n in sizes.items()}, ())
        for name, shape in (options.input_shapes or {}).items():
            for value in proto.graph.input:
                if value.name == name:
                    for dim, size in zip(value.type.tensor_type.shape.dim, shape):
                        dim.dim_value = size
        self._called = str(original)
        with naming_model(self._called):
            self._cases = [Case(f"draw {seed}", normal_feeds(proto, drawn, seed)) for seed in range(_CASES)]
        self._names = [o.name for o in proto.graph.output]
        self._wanted = self._outputs(original, library=False)

    def errors(self, keep: Collection[str]) -> tuple[list[str], dict[str, float]]:
        """Optimizes with the layers `keep` in float32; returns the rounded layers and the error of each output."""
        path = self._folder / "candidate.onnx"
        kept = (*self._options.keep_float, *sorted(keep))
        _, report = optimize(self._source(), path, replace(self._options, keep_float=kept, external_data=True))
        layers = [r.nodes[0] for r in report.remarks if r.applied and r.pass_name in _PASSES and r.nodes]
        got = self._outputs(path, library=True)
        return list(dict.fromkeys(layers)), {
            name: error
            for i, name in enumerate(self._names)
            if (error := _error([w[i] for w in self._wanted], [g[i] for g in got])) is not None
        }

    def _source(self) -> Path:
        return Path(self._model) if isinstance(self._model, str | Path) else self._folder / "model.onnx"

    def _outputs(self, path: Path, *, library: bool) -> list[Outputs]:
        """Runs a model on the random inputs and returns the outputs.

        Raises:
            GraphoptError: the model does not run.
        """
        run = run_isolated if may_divide_by_zero(path) else run_cases
        outputs = list(run(path, self._cases, Mode(library)).values())
        for one in outputs:
            if isinstance(one, str):
                raise GraphoptError(f"{self._called} does not run: {one}; give sizes that it accepts (--dim)")
        return [one for one in outputs if not isinstance(one, str)]


def _error(expected: list[Any], got: list[Any]) -> float | None:
    """Returns the RMS of the error over the RMS of the expected values, over all inputs; None for non-float outputs."""
    squares = size = 0.0
    for want, have in zip(expected, got):
        if not isinstance(want, np.ndarray) or want.dtype.kind != "f":
            return None
        want, have = want.astype(np.float64), have.astype(np.float64)
        same = (want == have) | (np.isnan(want) & np.isnan(have))
        difference = np.where(same, 0.0, have - want)
        squares += float(np.sum(np.square(np.where(np.isnan(difference), np.inf, difference))))
        size += float(np.sum(np.square(want[np.isfinite(want)])))
    if squares == 0:
        return 0.0
    return math.sqrt(squares / size) if size else math.inf


def _worst(errors: Mapping[str, float]) -> float:
    return max(errors.values(), default=0.0)


__all__ = ["ErrorLimit", "limit_error"]
