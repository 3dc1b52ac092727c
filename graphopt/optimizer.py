"""`optimize`: the main job as one call."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import onnx
import onnx_ir as ir

import graphopt
from graphopt import files, pipeline
from graphopt.errors import ModelSaveError, OptionError, require_list
from graphopt.graph import inference, reading, traversal, writing
from graphopt.graph.editor import Editor
from graphopt.graph.invariants import Interface, check_against, checked
from graphopt.metadata import METADATA_FROZEN, METADATA_NUMERICS, METADATA_TARGET, METADATA_VERSION, Numerics
from graphopt.passes.plugins import installed
from graphopt.progress import Steps
from graphopt.remarks import Code
from graphopt.report.data import PassSummary, Report, model_stats
from graphopt.runtime.auto import resolve_target
from graphopt.targets.profit import EveryLegalSite, Profit

ModelT = TypeVar("ModelT")
StrPath: TypeAlias = str | os.PathLike[str]

PRECISIONS = ("fp16", "bf16")

# The newest ONNX release whose operators the passes know; a model that imports a later one passes through.
NEWEST_KNOWN_OPSET = 26


@contextmanager
def _garbage_collector_paused() -> Iterator[None]:
    """A graph is many objects that live to the end: collecting in between costs more than everything else."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@overload
def optimize(
    model: onnx.ModelProto,
    out: None = None,
    *,
    target: str = ...,
    only: Sequence[str] = ...,
    skip: Sequence[str] = ...,
    precision: str | None = ...,
    keep_io: bool = ...,
    keep_float: Sequence[str] = ...,
    input_shapes: Mapping[str, Sequence[int]] | None = ...,
    freeze_initializers: bool = ...,
    all_sites: bool = ...,
    profit: Profit | None = ...,
    check: bool = ...,
    external_data: bool | None = ...,
    in_place: bool = ...,
    dry_run: bool = ...,
    progress: Callable[[str], None] | None = ...,
) -> tuple[onnx.ModelProto, Report]: ...


@overload
def optimize(
    model: StrPath,
    out: None = None,
    *,
    target: str = ...,
    only: Sequence[str] = ...,
    skip: Sequence[str] = ...,
    precision: str | None = ...,
    keep_io: bool = ...,
    keep_float: Sequence[str] = ...,
    input_shapes: Mapping[str, Sequence[int]] | None = ...,
    freeze_initializers: bool = ...,
    all_sites: bool = ...,
    profit: Profit | None = ...,
    check: bool = ...,
    external_data: bool | None = ...,
    in_place: bool = ...,
    dry_run: bool = ...,
    progress: Callable[[str], None] | None = ...,
) -> tuple[ir.Model, Report]: ...


@overload
def optimize(
    model: ModelT,
    out: StrPath | None = None,
    *,
    target: str = ...,
    only: Sequence[str] = ...,
    skip: Sequence[str] = ...,
    precision: str | None = ...,
    keep_io: bool = ...,
    keep_float: Sequence[str] = ...,
    input_shapes: Mapping[str, Sequence[int]] | None = ...,
    freeze_initializers: bool = ...,
    all_sites: bool = ...,
    profit: Profit | None = ...,
    check: bool = ...,
    external_data: bool | None = ...,
    in_place: bool = ...,
    dry_run: bool = ...,
    progress: Callable[[str], None] | None = ...,
) -> tuple[ModelT, Report]: ...


@_garbage_collector_paused()
def optimize(
    model: Any,
    out: StrPath | None = None,
    *,
    target: str = "auto",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    precision: str | None = None,
    keep_io: bool = True,
    keep_float: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    freeze_initializers: bool = False,
    all_sites: bool = False,
    profit: Profit | None = None,
    check: bool = False,
    external_data: bool | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    progress: Callable[[str], None] | None = None,
) -> tuple[Any, Report]:
    """Rewrites a model so that it runs faster and computes the same.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model`, program of `torch.onnx.export`, or `onnx_graphsurgeon.Graph`.
            It is not changed.
        out: where to write, for a model that is given as a path; without it the model comes back in memory.
        target: "cpu", "rocm", "rocm:gfx942", "cuda", "migraphx" or "portable"; "auto" is what a session would run on
            here, with the GPU's architecture. The report says which and why.
        only: names of the passes to run; empty for all.
        skip: names of passes not to run.
        precision: "fp16" converts to half precision after all other rewrites (half_precision.py); "bf16", for CPUs,
            rounds the factors of products to bfloat16 (bfloat16.py).
        keep_io: with "fp16", graph inputs and outputs keep their element types; with "bf16" they always do.
        keep_float: with a precision, nodes that stay float32, by name (as the report has it) or by operator.
        input_shapes: fixes dimensions of graph inputs, in the written model too.
        freeze_initializers: takes initializers off the graph inputs, so that callers cannot override them and passes
            may count on them (old exporters list every weight there).
        all_sites: applies rewrites that are legal but do not pay on the target.
        profit: decides instead of the target's estimates which rewrites pay (`graphopt.tune` measures one).
        check: checks the model's invariants after each pass instead of once at the end.
        external_data: True puts large weights beside the file, False inside, None where they are.
        in_place: allows `out` to be `model`.
        dry_run: reports what would be done; writes nothing and returns the model as it came.
        progress: called with a line when a step starts.

    Returns:
        The optimized model in the form in which it came, and the report. For a path that is `out` as given, or without
        `out` an `onnx_ir.Model`, whose weights stay where they are until somebody asks for them.

    Raises:
        ModelLoadError: the model cannot be read.
        ModelSaveError: the result cannot be written.
        OptionError: an unknown pass, target, precision, node or input, or a shape that does not fit.
        InvariantError: a pass broke the model; nothing was written.
    """
    start = time.perf_counter()
    parts = [("loading", 2.0), ("inferring shapes", 3.0), ("rewriting", 6.0)]
    parts += [(f"converting to {precision}", 6.0)] * (precision is not None) + [("writing", 1.0)] * (out is not None)
    steps = Steps(progress, parts)
    for name, names in (("only", only), ("skip", skip), ("keep_float", keep_float)):
        require_list(name, names)
    given: object = model
    path = Path(given) if isinstance(given, str | os.PathLike) else None
    parsed_target, why_target = resolve_target(target)
    passes = _select(only, skip)
    if precision not in (None, *PRECISIONS):
        raise OptionError(f"unknown precision '{precision}'; choose {' or '.join(PRECISIONS)}")
    if precision == "bf16" and parsed_target.device != "cpu":
        raise OptionError(f"bf16 is for CPUs, and the target is {parsed_target}: --target cpu, or --precision fp16")
    if precision != "fp16" and not keep_io:
        raise OptionError("element types of inputs and outputs change only with precision fp16")
    if precision is None and keep_float:
        raise OptionError("nodes are kept in float32 only with a precision")
    if path is None and out is not None:
        raise OptionError("an output path is for models that are given as a path; the result is returned")
    if path is not None and out is not None:
        if not in_place and files.same(path, Path(out)):
            raise ModelSaveError(f"{out}: would overwrite the input; give another path, or --in-place")
        files.check_places({"OUT": Path(out)})

    steps.begin()
    source = reading.load(model, progress)
    report = Report(target=str(parsed_target), target_reason=why_target)
    work = source.model
    if out is not None:
        files.check_places({"OUT": Path(out)}, source.data_files)
    if unknown := _unknown_operators(work):
        report.notes.append(f"{unknown}: the model is left as it is")
        passes, precision = [], None
    frozen = reading.freeze_initializers(work) if freeze_initializers else []
    if frozen:
        work.metadata_props[METADATA_FROZEN] = "true"
        report.notes.append(f"{len(frozen)} initializers are no inputs any more, so callers cannot override them")
    inference.set_input_shapes(work, input_shapes or {})
    interface = Interface.of(work)

    with reading.blamed_on_the_model(source):
        steps.begin()
        inference.infer(work, source.proto)
        report.before = model_stats(work)
        editor = Editor(work, parsed_target, EveryLegalSite() if all_sites else profit, half=precision == "fp16")

        def after_pass(name: str) -> None:
            if check:
                check_against(interface, work, name)

        steps.begin()
        result = pipeline.run(editor, passes, after_pass=after_pass)
        if precision is not None:
            steps.begin()
            if precision == "fp16":
                result.extend(_to_half_precision(editor, keep_io, keep_float, report))
            else:
                from graphopt import bfloat16

                result.extend(bfloat16.convert(editor, keep_float))
            if not keep_io:
                interface = _converted(interface, Interface.of(work))
            # Constants that differed in float32 may be equal now.
            result.extend(pipeline.run(editor, passes, after_pass=after_pass))
        report.after = model_stats(work)
        inference.forget(work)
    report.remarks = result.remarks + result.overtaken
    report.passes = [PassSummary(p.name, p.seconds, p.applied, p.refused) for p in result.passes.values()]
    report.numerics = result.numerics.name.lower()
    if not result.converged:
        report.notes.append(f"the passes still found work after {pipeline.MAX_ROUNDS} rounds")
    changed = report.changed or bool(input_shapes) or bool(frozen)
    if held := {r.nodes[:1] for r in report.remarks if r.code == Code.OVERRIDABLE.name}:
        why = "stay as they are for an initializer that callers may override"
        report.notes.append(
            f"{len(held)} {'sites' if len(held) > 1 else 'site'} {why}: --freeze-initializers frees them"
        )
    if report.changed:
        _stamp(work, str(parsed_target), result.numerics)
        check_against(interface, work, "the last pass")
    elif not report.notes:
        report.notes.append("nothing to do: the model comes out as it went in")
    if result.numerics == Numerics.BF16 and (warning := _slower_in_bfloat16()):
        report.notes.append(warning)
    why = f" ({why_target})" if why_target else ""
    report.notes.append(
        f"optimized for {parsed_target}{why}; the file runs on every provider, with the library and without it"
    )

    def check_message(proto: onnx.ModelProto | None) -> None:
        if report.changed:
            checked(lambda: reading.load(model).model, work, proto)

    if dry_run:
        check_message(None)
        returned: Any = model
    elif path is not None and out is None:
        check_message(None)
        returned = work
    elif path is not None:
        assert out is not None
        steps.begin()
        if changed or external_data is not None:
            writing.save(work, Path(out), external_data=external_data, check=check_message)
        else:
            writing.copy_unchanged(source, Path(out))
        returned = out
    else:
        returned = writing.give_back(source, work if changed else None, check_message)
    report.seconds = time.perf_counter() - start
    return returned, report


def _to_half_precision(editor: Editor, keep_io: bool, keep: Sequence[str], report: Report) -> pipeline.PipelineResult:
    from graphopt import half_precision

    start = time.perf_counter()
    done = half_precision.convert(editor, keep_io=keep_io, keep=keep)
    editor.changed()
    report.initializer_ranges = done.ranges
    summary = pipeline.PassResult(half_precision.NAME, time.perf_counter() - start)
    numerics = Numerics.FP16 if any(r.applied for r in done.remarks) else Numerics.EXACT
    return pipeline.PipelineResult(done.remarks, passes={summary.name: summary}, numerics=numerics)


def _slower_in_bfloat16() -> str:
    from graphopt.runtime.bfloat16_gain import bfloat16_gain, bfloat16_warning

    return bfloat16_warning(bfloat16_gain())


def _converted(before: Interface, now: Interface) -> Interface:
    """The interface in the new element types; what had none gets none."""
    outputs = tuple((name, old and new) for (name, new), (_, old) in zip(now.outputs, before.outputs, strict=True))
    return replace(before, inputs=now.inputs, outputs=outputs)


def _select(only: Sequence[str], skip: Sequence[str]) -> list[Any]:
    known = [p.name for p in installed()]
    for name in (*only, *skip):
        if name not in known:
            raise OptionError(f"unknown pass '{name}'; the passes are {', '.join(known)}")
    return [p for p in installed() if (not only or p.name in only) and p.name not in skip]


def _unknown_operators(model: ir.Model) -> str:
    """Why nothing is known of what the model is for, or of what its operators mean; or ""."""
    opset = model.opset_imports.get("", 0)
    if opset > NEWEST_KNOWN_OPSET:
        return f"opset {opset} is newer than any that graphopt knows ({NEWEST_KNOWN_OPSET})"
    if opset < 1 and any(node.domain == "" for graph in traversal.graphs(model) for node in graph):
        return "the model uses ONNX's operators and imports no version of them"
    if any(function.domain == "" for function in model.functions.values()):
        return "the model defines operators of ONNX's own domain itself"
    if not model.graph.outputs:
        return "the model has no outputs"  # without nodes, which nobody reads, runtimes would not load it
    return ""


def _stamp(model: ir.Model, target: str, numerics: Numerics) -> None:
    """Records what was done. A model that was optimized before keeps the larger class."""
    before = model.metadata_props.get(METADATA_NUMERICS, "exact").upper()
    earlier = Numerics[before] if before in Numerics.__members__ else Numerics.EXACT
    model.metadata_props[METADATA_NUMERICS] = max(earlier, numerics).name.lower()
    model.metadata_props[METADATA_TARGET] = target
    model.metadata_props[METADATA_VERSION] = graphopt.__version__
