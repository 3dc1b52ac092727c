"""`graphopt verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.cli import screen, streams
from graphopt.cli.options import (
    CustomOpsOption,
    Numbers,
    ProvidersOption,
    Range,
    Sizes,
    Tolerance,
    numbers_of,
    several_sizes,
    tolerance_of,
    value_range,
)
from graphopt.cli.root import Command, app
from graphopt.errors import EXIT_NOT_COVERED, EXIT_RANDOM, OptionError

if TYPE_CHECKING:
    from graphopt.verification.verify import Verdict

RtolOption = Annotated[
    list[Tolerance] | None,
    typer.Option(
        parser=tolerance_of("--rtol"),
        metavar="[OUTPUT:]1e-3",
        help="Allowed error relative to RMS, of one output or all (repeatable).",
    ),
]
AtolOption = Annotated[
    list[Tolerance] | None,
    typer.Option(parser=tolerance_of("--atol"), metavar="[OUTPUT:]1e-6", help="Allowed absolute error (repeatable)."),
]
DimOption = Annotated[
    list[Sizes] | None,
    typer.Option(
        parser=several_sizes, metavar="NAME=1,7,64", help="Sizes of a symbolic dimension to try (repeatable)."
    ),
]
BatchOption = Annotated[
    Numbers | None,
    typer.Option(parser=numbers_of("--batch"), metavar="1,3,8", help="Sizes of symbolic first axes to try."),
]
RangeOption = Annotated[
    list[Range] | None,
    typer.Option(
        "--range", parser=value_range, metavar="NAME:LO:HI", help="The range of an input's values (repeatable)."
    ),
]


@app.command(cls=Command, name="verify")
def verify_command(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The original; - is stdin.")],
    after: Annotated[
        Path | None, typer.Argument(metavar="AFTER", help="The rewritten model; optional with --providers.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="A .npz file or a folder with your own inputs.")] = None,
    rtol: RtolOption = None,
    atol: AtolOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    probe_nan: Annotated[bool, typer.Option("--probe-nan", help="Also try NaN and infinite inputs.")] = False,
    provider: Annotated[
        str | None, typer.Option(help="rocm, graphopt, ...: also run AFTER there; BEFORE runs on the CPU.")
    ] = None,
    effort: Annotated[str, typer.Option(help="quick, normal or thorough: number of inputs to try.")] = "normal",
    dim: DimOption = None,
    batch: BatchOption = None,
    range_: RangeOption = None,
    providers: ProvidersOption = None,
    custom_ops: CustomOpsOption = None,
    save_inputs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Save the inputs that differ most, as ONNX test data.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 9 if the inputs do not test every part.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Compare the outputs of two models.

    Exit code 0: equal, 1: different, 2: not runnable, 8: outputs are random, 10: internal error.
    """
    if after is None and providers is None:
        raise OptionError("AFTER is missing; give it, or --providers A,B to compare one model on two providers")
    before, after = streams.read(before), None if after is None else streams.read(after)
    import graphopt

    with screen.working("verifying") as say:
        report = graphopt.verify(
            before,
            before if after is None else after,
            inputs=inputs,
            rtol=dict(rtol or ()) or None,
            atol=dict(atol or ()) or None,
            seed=seed,
            probe_nan=probe_nan,
            provider=provider,
            effort=effort,
            sizes=dict(dim or ()),
            batch=batch or (),
            ranges=dict(range_ or ()),
            providers=providers,
            custom_ops=custom_ops or (),
            save_inputs=save_inputs,
            progress=say,
        )
    if as_json:
        screen.print_json("verify", report.to_dict())
    elif not quiet:
        from graphopt.report.tables import print_verdict, print_verify

        print_verdict(report, screen.out())
        print_verify(report, screen.out())
    exit_with_verdict(report.verdict, uncovered=strict and bool(report.not_covered))


def exit_with_verdict(verdict: Verdict, *, uncovered: bool = False) -> None:
    """Ends the command with the exit code of a verdict; returns if it is 0.

    Args:
        verdict: the verdict of `verify`.
        uncovered: whether an equal verdict gives EXIT_NOT_COVERED, because the inputs do not test every part.
    """
    from graphopt.verification.verify import Verdict

    code = {Verdict.EQUAL: 0, Verdict.DIFFERENT: 1, Verdict.RANDOM: EXIT_RANDOM}[verdict]
    if code == 0 and uncovered:
        code = EXIT_NOT_COVERED
    if code:
        raise typer.Exit(code)
