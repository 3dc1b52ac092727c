"""`limit_error`: which layers stay in float32, so that the error of a model in bfloat16 keeps within a caller's limit.

Each layer is rounded alone, and its error at the outputs is its sensitivity. Errors of layers are independent, so their
squares add up: the most sensitive layers stay in float32 until the sum of the others should hold the limit. Then the
model as written is measured, with fewer or more of them in the same order, until it holds and with one less would not.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import GraphoptError, OptionError, about
from graphopt.graph import reading, writing
from graphopt.inputs.plan import Case, normal_feeds
from graphopt.measure.bench import size_grid
from graphopt.optimizer import optimize
from graphopt.options import Options, Precision
from graphopt.progress import Progress
from graphopt.verification.run import Outputs, open_session, run_case

PRECISION: Precision = "bf16"
# The passes that round; each site of theirs is a layer.
_PASSES = ("bfloat16", "bfloat16_conv", "bfloat16_attention", "bfloat16_matmul")
_CASES = 4  # drawn inputs, whose errors are taken together


@dataclass(frozen=True)
class ErrorLimit:
    """What `limit_error` found. Errors are RMS over the RMS of the output, over all inputs that were tried.

    Attributes:
        keep: the layers that stay in float32, the most sensitive one first; `keep_float` of `optimize`.
        sensitivities: for each layer the error of the worst output when that layer alone is rounded; empty where the
            limit holds with all layers rounded.
        rounded: for each output, the error with all layers in bfloat16.
        errors: for each output, the error with `keep` in float32.
    """

    keep: tuple[str, ...]
    sensitivities: dict[str, float]
    rounded: dict[str, float]
    errors: dict[str, float]

    def lines(self) -> list[str]:
        """For people: what stays, and the error of each output."""
        names = ", ".join(self.keep)
        stays = f"{len(self.keep)} of {len(self.sensitivities)} layers stay in float32: {names}" if self.keep else ""
        errors = [
            f"error of {name}: {error:.1e}" + (f" ({self.rounded[name]:.1e} with all layers)" if self.keep else "")
            for name, error in self.errors.items()
        ]
        return [stays, *errors] if stays else errors


def limit_error(
    model: Any,
    max_error: float,
    options: Options | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> ErrorLimit:
    """Chooses the layers that `optimize(model, precision="bf16")` has to leave in float32.

    Args:
        model: in any form that `optimize` takes.
        max_error: the largest error of an output: the error's RMS over the output's RMS.
        options: as for `optimize`; its precision must be "bf16". What its `keep_float` names stays in float32 as well.
        sizes: symbolic dimension -> size of the inputs that are drawn; others have the sizes that `bench` gives them.
        progress: called with a line for each step.

    Raises:
        ModelLoadError: the model cannot be read.
        OptionError: another precision, a limit that is no positive number, or an unknown dimension.
        GraphoptError: the model does not run, or its error is larger than that with no layer rounded.
        RuntimeMissingError: no ONNX Runtime, or no native library.
    """
    options = options or Options(target="cpu", precision=PRECISION)
    if options.precision != PRECISION:
        raise OptionError(f"a largest error can be given with precision {PRECISION} only")
    if not 0 < max_error < math.inf:
        raise OptionError(f"the largest error must be a positive number, not {max_error}")
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
    """The first layers of `order` that must stay for the limit to hold, and the errors then.

    Raises:
        GraphoptError: it does not hold with all of them.
    """
    count = 1
    while count < len(order) and math.hypot(*(sensitivities[layer] for layer in order[count:])) > max_error:
        count += 1
    low, high = 1, len(order)  # the answer is between, both included
    found: dict[str, float] | None = None
    while True:
        say(f"{count} of {len(order)} layers in float32")
        _, errors = work.errors(order[:count])
        if _worst(errors) <= max_error:
            high, found = count, errors
        elif count >= len(order):  # it may be that no layer is rounded at all
            raise GraphoptError(
                f"with all layers in float32 the error is {_worst(errors):.1e}, more than {max_error:.1e}: other "
                "rewrites move numbers as far (--explain lists them, --skip leaves a pass out)"
            )
        else:
            low = count + 1
        if low >= high and found is not None:
            return tuple(order[:high]), found
        count = (low + high) // 2


class _ErrorMeasurement:
    """The original's outputs, and how far the model is from them with some layers in float32."""

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
        with about(self._called):
            self._cases = [Case(f"draw {seed}", normal_feeds(proto, drawn, seed)) for seed in range(_CASES)]
        self._names = [o.name for o in proto.graph.output]
        self._wanted = self._outputs(original, library=False)

    def errors(self, keep: Collection[str]) -> tuple[list[str], dict[str, float]]:
        """The layers that are rounded where `keep` is not, and the error of each output."""
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
        """Raises:
        GraphoptError: the model does not run.
        """
        session = open_session(path, library=library)
        outputs = [run_case(session, case) for case in self._cases]
        for one in outputs:
            if isinstance(one, str):
                raise GraphoptError(f"{self._called}: it does not run: {one}; give sizes that it takes (--dim)")
        return [one for one in outputs if not isinstance(one, str)]


def _error(wanted: list[Any], got: list[Any]) -> float | None:
    """RMS of the error over the RMS of what is wanted, over all inputs; None of what are no floats."""
    squares = size = 0.0
    for want, have in zip(wanted, got):
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
