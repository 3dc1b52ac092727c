"""`optimize`: loads, rewrites, converts and writes a model in one call."""

from __future__ import annotations

import gc
import inspect
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import onnx
import onnx_ir as ir

import graphopt
from graphopt import files, pipeline, transposed_matmul
from graphopt.errors import ModelSaveError, OptionError, did_you_mean
from graphopt.graph import inference, reading, traversal, writing
from graphopt.graph.editor import Editor
from graphopt.graph.invariants import Interface, check_against, check_result
from graphopt.metadata import METADATA_FROZEN, METADATA_NUMERICS, METADATA_TARGET, METADATA_VERSION, Numerics
from graphopt.options import OptionNames, Options
from graphopt.passes.base import Pass
from graphopt.passes.plugins import installed
from graphopt.progress import Steps
from graphopt.remarks import Code
from graphopt.report.data import PassSummary, Report, model_stats
from graphopt.runtime.auto import resolve_target
from graphopt.runtime.custom_ops import registered_custom_ops
from graphopt.runtime.machine import cpu_name, has_fma
from graphopt.targets.profit import Estimates, EveryLegalCandidate
from graphopt.targets.target import Target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from graphopt.precision.float16 import ActivationRanges

StrPath: TypeAlias = str | os.PathLike[str]
ModelT = TypeVar("ModelT")
OutT = TypeVar("OutT", bound=StrPath)

# The newest opset that the passes support; models with a newer one are not rewritten.
NEWEST_KNOWN_OPSET = 26


@contextmanager
def _garbage_collector_paused() -> Iterator[None]:
    """Pauses garbage collection, which would take most of the time: a graph has many objects that live to the end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@overload
def optimize(
    model: onnx.ModelProto, out: None = None, options: Options | None = None, **named: Unpack[OptionNames]
) -> tuple[onnx.ModelProto, Report]: ...


@overload
def optimize(
    model: StrPath, out: None = None, options: Options | None = None, **named: Unpack[OptionNames]
) -> tuple[ir.Model, Report]: ...


@overload
def optimize(
    model: ModelT, out: None = None, options: Options | None = None, **named: Unpack[OptionNames]
) -> tuple[ModelT, Report]: ...


@overload
def optimize(
    model: Any, out: OutT, options: Options | None = None, **named: Unpack[OptionNames]
) -> tuple[OutT, Report]: ...


@_garbage_collector_paused()
def optimize(
    model: Any, out: StrPath | None = None, options: Options | None = None, **named: Unpack[OptionNames]
) -> tuple[Any, Report]:
    """Rewrites a model so that it runs faster and computes the same.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model`, program of `torch.onnx.export`, or `onnx_graphsurgeon.Graph`.
            It is not changed. Files that an `onnx.ModelProto` refers to are read from the working directory.
        out: the file to write; weights that it does not contain are written to OUT.data. Without `out`, the model is
            returned in memory.
        options: all options as one value.
        named: single options by name, `optimize(model, target="cpu")`, which override `options`. The attributes of
            `Options` explain each.

    Returns:
        The optimized model in the form of `model`, and the report. With `out`, the first value is `out`, and the files
        of the input are not needed afterwards (except with `share_weights`). Without `out`, a path gives an
        `onnx_ir.Model`, which reads weights from the input's files at first use; an `onnx.ModelProto` contains
        its weights.

    Raises:
        ModelLoadError: the model cannot be read.
        ModelSaveError: the result cannot be written.
        UnknownOptionError: a keyword is not an option.
        OptionError: an unknown pass, target, precision, node or input, or a shape that does not fit.
        InvariantError: a pass broke the model; nothing was written.
    """
    start = time.perf_counter()
    options = replace(options or Options(), **named)
    target, why_target = resolve_target(options.target)
    passes = _select(options.only, options.skip)
    if options.precision == "bf16" and target.device != "cpu":
        raise OptionError(f"bf16 is for CPUs, but the target is {target}: give --target cpu or --precision fp16")
    if isinstance(options.inputs, str | os.PathLike) and not Path(options.inputs).exists():
        raise OptionError(f"inputs: {options.inputs}: no such file or folder")
    path = Path(model) if isinstance(model, str | os.PathLike) else None
    _check_out(path, out, options)
    steps = Steps(options.progress, _steps(options, out))

    steps.begin()
    source = reading.load(model, options.progress)
    if out is not None:
        in_place = path is not None and files.same(path, Path(out))
        writing.check_output_path("OUT", Path(out), () if in_place else source.data_files)
    report = Report(target=str(target), target_reason=why_target)
    report.obstacle = _unknown_operators(source.model)
    if report.obstacle:
        report.notes.append(f"{report.obstacle}: the model is not rewritten")
        passes, options = [], replace(options, precision=None, keep_io=True, keep_float=(), inputs=None)
    _change_inputs(source.model, options, report)
    with registered_custom_ops(options.custom_ops):
        interface, result = _rewrite(source, target, passes, options, report, steps)
    _sum_up(result, report)
    if report.changed:
        _write_metadata(source.model, str(target), result.numerics)
        check_against(interface, source.model, "the last pass")
    returned = _write_or_return(
        source, model, out, options, report, steps, changed=report.changed or report.inputs_changed
    )
    report.seconds = time.perf_counter() - start
    return returned, report


def _listing_options(function: Any) -> inspect.Signature:
    """Returns the signature of `optimize` with each option, its type and its default instead of `**named`."""
    own = inspect.signature(function)
    options = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Options.__init__).parameters.values()]
    first = [p for p in own.parameters.values() if p.kind != p.VAR_KEYWORD]
    return own.replace(parameters=[*first, *options[1:]])


setattr(optimize, "__signature__", _listing_options(optimize))  # noqa: B010 - the type of functions declares no such attribute


def _check_out(path: Path | None, out: StrPath | None, options: Options) -> None:
    """Checks in advance whether `out` may be written.

    Raises:
        OptionError: `share_weights` would use files that `out` replaces.
        ModelSaveError: `out` cannot be written, or is the input without `in_place`.
    """
    if out is None:
        return
    if path is not None and files.same(path, Path(out)):
        if options.share_weights:
            raise OptionError("--share-weights uses the files of IN, which --in-place replaces: give one of the two")
        if not options.in_place:
            raise ModelSaveError(f"{out}: would overwrite the input; give another path, or --in-place")
    files.check_output_paths({"OUT": Path(out)})


def _steps(options: Options, out: StrPath | None) -> list[tuple[str, float]]:
    """Returns the steps of an optimization with their relative durations."""
    steps = [("loading", 2.0), ("inferring shapes", 3.0), ("rewriting", 6.0)]
    if options.precision is not None:
        steps.append((f"converting to {options.precision}", 6.0))
    if out is not None:
        steps.append(("writing", 1.0))
    return steps


def _change_inputs(model: ir.Model, options: Options, report: Report) -> None:
    """Freezes initializers and fixes dimensions as required by the options."""
    frozen = reading.freeze_initializers(model) if options.freeze_initializers else []
    if frozen:
        model.metadata_props[METADATA_FROZEN] = "true"
        report.notes.append(f"{len(frozen)} initializers are no longer inputs, so callers cannot override them")
    inference.set_input_shapes(model, options.input_shapes or {})
    report.inputs_changed = bool(frozen or options.input_shapes)


def _rewrite(
    source: reading.Source, target: Target, passes: list[Any], options: Options, report: Report, steps: Steps
) -> tuple[Interface, pipeline.PipelineResult]:
    """Infers shapes, runs the passes and converts the precision.

    Returns:
        The inputs and outputs that the result must have, and the result of the passes.
    """
    work, half = source.model, options.precision == "fp16"
    interface = Interface.of(work)

    def after_pass(name: str) -> None:
        if options.check:
            check_against(interface, work, name)

    with reading.as_load_error(source):
        steps.begin()
        inference.infer(work, source.proto, source.graphs)
        every = EveryLegalCandidate()
        editor = Editor(work, target, every if options.ignore_cost_model else options.profit, half=half)
        report.before = model_stats(editor.graphs())
        steps.begin()
        hides = options.precision == "bf16"
        first = [p for p in passes if not (hides and isinstance(p, Pass) and p.hides_from_bfloat16)]
        result = pipeline.run(editor, first, after_pass=after_pass)
        if options.precision is not None:
            steps.begin()
            result.extend(
                _to_half_precision(source, editor, options, report) if half else _to_bfloat16(editor, options)
            )
            if not options.keep_io:
                interface = _converted(interface, Interface.of(work))
            # Constants that differed in float32 may be equal now.
            result.extend(pipeline.run(editor, passes, after_pass=after_pass))
        if any(r.applied for r in result.remarks):
            transposed_matmul.prevent_transpose_fusion(editor)
        if target.device == "cpu" and isinstance(editor.profit, Estimates) and not has_fma():
            report.notes.append(
                f"the cost model was measured on x86 processors with AVX2 or AVX-512, not on {cpu_name()}: --tune "
                "measures on this machine"
            )
        if every.has_declined:
            report.warning = "maybe slower (--ignore-cost-model also applies slower rewrites)"
        report.after = model_stats(editor.graphs())
        inference.forget(work)
    return interface, result


def _sum_up(result: pipeline.PipelineResult, report: Report) -> None:
    """Adds the results of the passes to the report."""
    report.remarks = result.remarks + result.superseded
    report.passes = [PassSummary(p.name, p.seconds, p.applied, p.refused) for p in result.passes.values()]
    report.numerics = result.numerics.name.lower()
    if not result.converged:
        report.notes.append(f"the passes still found work after {pipeline.MAX_ROUNDS} rounds")
    if held := sorted({r.nodes[:1] for r in report.remarks if r.code == Code.OVERRIDABLE.name}):
        many, them = (
            (f"{len(held)} candidates were refused", "them") if len(held) > 1 else ("1 candidate was refused", "it")
        )
        report.notes.append(f"{many} because callers may override an initializer: --freeze-initializers allows {them}")
    if result.numerics == Numerics.BF16:
        report.warning = _slower_in_bfloat16()


def _write_or_return(
    source: reading.Source,
    model: Any,
    out: StrPath | None,
    options: Options,
    report: Report,
    steps: Steps,
    *,
    changed: bool,
) -> Any:
    """Checks the result, and writes it or returns it in the form of the input."""
    work = source.model

    def check_message(proto: onnx.ModelProto | None = None, data: bytes | None = None) -> None:
        if report.changed:
            check_result(lambda: reading.load(model).model, work, proto, data)

    if options.dry_run:
        check_message()
        return model
    if out is None and not isinstance(model, str | os.PathLike):
        return writing.in_original_form(source, work if changed else None, check_message)
    if out is None:
        check_message()
        return work
    steps.begin()
    if source.path is None or changed or options.external_data is not None:
        written = writing.save(
            work,
            Path(out),
            external_data=options.external_data,
            share_weights=options.share_weights,
            check=check_message,
        )
    else:
        written = writing.copy_unchanged(source, Path(out), share_weights=options.share_weights)
    report.files = {str(path): size for path, size in written.files.items()}
    report.shared_files = {str(path): size for path, size in written.shared.items()}
    return out


def _to_bfloat16(editor: Editor, options: Options) -> pipeline.PipelineResult:
    from graphopt.passes.registry import bfloat16_passes
    from graphopt.precision.float16 import require_known

    require_known(editor, options.keep_float)
    return pipeline.run(editor, bfloat16_passes(options.keep_float))


def _to_half_precision(
    source: reading.Source, editor: Editor, options: Options, report: Report
) -> pipeline.PipelineResult:
    from graphopt.precision import float16

    start = time.perf_counter()
    float16.require_known(editor, options.keep_float)
    ranges = _activation_ranges(source, editor, options, report)
    done = float16.convert(editor, keep_io=options.keep_io, keep=options.keep_float, ranges=ranges)
    editor.changed()
    report.initializer_ranges = done.ranges
    report.notes += done.notes
    summary = pipeline.PassResult(float16.NAME, time.perf_counter() - start)
    numerics = Numerics.FP16 if any(r.applied for r in done.remarks) else Numerics.EXACT
    return pipeline.PipelineResult(done.remarks, passes={summary.name: summary}, numerics=numerics)


def _activation_ranges(
    source: reading.Source, editor: Editor, options: Options, report: Report
) -> ActivationRanges | None:
    """Measures the ranges of activations; returns None for a CPU target, and adds a note if a measurement fails."""
    if editor.target.device == "cpu":  # the converted model computes nothing in float16
        return None
    from graphopt.verification.probes import ranges_of

    found = ranges_of(editor.model, options.inputs)
    if isinstance(found, str):
        report.notes.append(
            f"ranges of activations were not checked, and values beyond 65504 become infinite in float16: {found}"
        )
        return None
    return found


def _slower_in_bfloat16() -> str:
    from graphopt.precision.bfloat16_gain import bfloat16_warning
    from graphopt.runtime.discovery import bfloat16_gain

    return bfloat16_warning(bfloat16_gain())


def _converted(before: Interface, now: Interface) -> Interface:
    """Returns the interface with the new element types; outputs without a type remain without one."""
    outputs = tuple((name, old and new) for (name, new), (_, old) in zip(now.outputs, before.outputs, strict=True))
    return replace(before, inputs=now.inputs, outputs=outputs)


def _select(only: Sequence[str], skip: Sequence[str]) -> list[Any]:
    known = [p.name for p in installed()]
    for name in (*only, *skip):
        if name not in known:
            suggested = did_you_mean(name, known)
            raise OptionError(f"unknown pass '{name}'{suggested}; the passes are {', '.join(known)}")
    return [p for p in installed() if (not only or p.name in only) and p.name not in skip]


def _unknown_operators(model: ir.Model) -> str:
    """Returns why the model is not rewritten; "" if its operators are known and it has outputs."""
    opset = model.opset_imports.get("", 0)
    if opset > NEWEST_KNOWN_OPSET:
        return f"opset {opset} is newer than any that graphopt knows ({NEWEST_KNOWN_OPSET})"
    if opset < 1 and any(node.domain == "" for node in traversal.nodes(model)):
        return "the model uses ONNX's operators and imports no version of them"
    if any(function.domain == "" for function in model.functions.values()):
        return "the model defines operators of ONNX's own domain itself"
    if not model.graph.outputs:
        return "the model has no outputs"  # all nodes would be removed, and runtimes reject a model without nodes
    return ""


def _write_metadata(model: ir.Model, target: str, numerics: Numerics) -> None:
    """Writes target, version and numerics class, which is at least the class of an earlier optimization."""
    before = model.metadata_props.get(METADATA_NUMERICS, "exact").upper()
    earlier = Numerics[before] if before in Numerics.__members__ else Numerics.EXACT
    model.metadata_props[METADATA_NUMERICS] = max(earlier, numerics).name.lower()
    model.metadata_props[METADATA_TARGET] = target
    model.metadata_props[METADATA_VERSION] = graphopt.__version__
