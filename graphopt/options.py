"""How `optimize` is to go about a model: its options as one value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from graphopt.errors import OptionError, UnknownOptionError, did_you_mean, require_list
from graphopt.targets.profit import Profit
from graphopt.targets.target import TargetName

Precision: TypeAlias = Literal["fp16", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `optimize` may be told.

    Attributes:
        target: "cpu", "rocm", "rocm:gfx942", "cuda", "migraphx" or "portable"; "auto" is what a session would run on
            here, with the GPU's architecture. The report says which and why.
        only: names of the passes to run; empty for all.
        skip: names of passes not to run.
        precision: "fp16" converts to half precision after all other rewrites (precision/float16/); "bf16", for CPUs,
            rounds the factors of products to bfloat16 (precision/bfloat16.py).
        keep_io: with "fp16", graph inputs and outputs keep their element types; with "bf16" they always do.
        keep_float: with a precision, nodes that stay in float32, by their names (as in the report) or by operator.
        inputs: with "fp16", inputs as for `verify`, on which the ranges of activations are measured as well.
        input_shapes: fixes dimensions of graph inputs, in the written model too.
        freeze_initializers: takes initializers off the graph inputs, so that callers cannot override them and passes
            may count on them (old exporters list every weight there).
        ignore_cost_model: applies rewrites that are legal but do not pay on the target.
        profit: decides instead of the target's estimates which rewrites pay (`graphopt.tune` measures one).
        check: checks the model's invariants after each pass, and not only at the end.
        external_data: True puts large weights beside the model, in OUT.data, False inside it; None those that the input
            has in files, or that a message does not hold.
        share_weights: OUT refers to the input's files of weights instead of having a copy of its own, and records their
            sizes and hashes; it must be in their folder.
        in_place: allows `out` to be `model`.
        dry_run: reports what would be done, writes nothing, and returns the model unchanged.
        custom_ops: libraries with operators of the model's own, where the model has to run.
        progress: called with a line when a step starts.

    Raises:
        UnknownOptionError: a keyword that is not an option.
        OptionError: options that contradict each other, an unknown precision, or a text where a list is meant.
    """

    target: TargetName | str = "auto"
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    precision: Precision | None = None
    keep_io: bool = True
    keep_float: Sequence[str] = ()
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None
    input_shapes: Mapping[str, Sequence[int]] | None = None
    freeze_initializers: bool = False
    ignore_cost_model: bool = False
    profit: Profit | None = None
    check: bool = False
    external_data: bool | None = None
    share_weights: bool = False
    in_place: bool = False
    dry_run: bool = False
    custom_ops: Sequence[str | os.PathLike[str]] = ()
    progress: Callable[[str], None] | None = None

    def __new__(cls, **named: Any) -> Options:
        """Raises:
        UnknownOptionError: a keyword is not an option.
        """
        for name in named:
            if name not in cls.__dataclass_fields__:
                suggested = did_you_mean(name, cls.__dataclass_fields__) or ": help(graphopt.optimize) lists all"
                raise UnknownOptionError(f"unknown option '{name}'{suggested}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("only", "skip", "keep_float", "custom_ops"):
            require_list(name, getattr(self, name))
        if self.precision not in (None, *PRECISIONS):
            suggested = did_you_mean(str(self.precision), PRECISIONS)
            raise OptionError(f"unknown precision '{self.precision}'{suggested}; choose {' or '.join(PRECISIONS)}")
        if self.precision != "fp16" and not self.keep_io:
            raise OptionError("element types of inputs and outputs change only with precision fp16")
        if self.share_weights and self.external_data is False:
            raise OptionError("weights inside the model are not shared: give one of the two")
        if self.precision != "fp16" and self.inputs is not None:
            raise OptionError(
                "inputs are for the ranges of activations, with precision fp16; verify --inputs compares outputs on "
                "them"
            )
        if self.precision is None and self.keep_float:
            raise OptionError("nodes are kept in float32 only with a precision")


class OptionNames(TypedDict, total=False):
    """The same as keywords of a call, which type checkers know by this alone; see `Options`."""

    target: TargetName | str
    only: Sequence[str]
    skip: Sequence[str]
    precision: Precision | None
    keep_io: bool
    keep_float: Sequence[str]
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None
    input_shapes: Mapping[str, Sequence[int]] | None
    freeze_initializers: bool
    ignore_cost_model: bool
    profit: Profit | None
    check: bool
    external_data: bool | None
    share_weights: bool
    in_place: bool
    dry_run: bool
    custom_ops: Sequence[str | os.PathLike[str]]
    progress: Callable[[str], None] | None
