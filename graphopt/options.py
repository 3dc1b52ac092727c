"""The options of `optimize` as one value."""

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
    """Options of `optimize`.

    Attributes:
        target: "cpu", "rocm", "rocm:gfx942", "cuda", "migraphx" or "portable". "auto" selects the target of this
            machine's default provider, with the GPU's architecture; the report gives the reason.
        only: names of the passes to run; empty for all.
        skip: names of passes that do not run.
        precision: "fp16" converts to half precision after all other rewrites (precision/float16/); "bf16", for CPUs,
            rounds the operands of matrix multiplications and convolutions to bfloat16 (precision/bfloat16.py).
        keep_io: with "fp16", graph inputs and outputs keep their element types; with "bf16" they always do.
        keep_float: with `precision`, nodes that are kept in float32, by name (as in the report) or by operator.
        inputs: with "fp16", additional inputs for the ranges of activations, as for `verify`.
        input_shapes: input name -> shape; the written model has these fixed dimensions.
        freeze_initializers: removes initializers from the graph inputs. Callers can then not override them, and passes
            may treat them as constant (old exporters list every weight as an input).
        ignore_cost_model: applies legal rewrites even if they are slower on the target.
        profit: cost model that replaces the target's estimates (`graphopt.tune` returns a measured one).
        check: checks the model's invariants after each pass, and not only at the end.
        external_data: True stores large weights in OUT.data, False in the model; None stores them in OUT.data if
            the input has weights in files, or if they exceed protobuf's limit of 2 GiB.
        share_weights: OUT refers to the input's weight files instead of a copy, and records their sizes and hashes. OUT
            must be in the folder of these files.
        in_place: allows `out` to be `model`.
        dry_run: reports rewrites, writes nothing, and returns the model unchanged.
        custom_ops: libraries with the model's custom operators, for steps that run the model.
        progress: called with a line when a step starts.

    Raises:
        UnknownOptionError: a keyword is not an option.
        OptionError: options contradict each other, the precision is unknown, or a string is given instead of a list.
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
        """Rejects unknown keywords with a suggestion.

        Raises:
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
            raise OptionError("weights inside the model cannot be shared: give either share_weights or external_data")
        if self.precision != "fp16" and self.inputs is not None:
            raise OptionError(
                "inputs are for the ranges of activations, with precision fp16; verify --inputs compares outputs on "
                "them"
            )
        if self.precision is None and self.keep_float:
            raise OptionError("nodes are kept in float32 only with a precision")


class OptionNames(TypedDict, total=False):
    """Keywords of `optimize` for type checkers; see `Options`."""

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
