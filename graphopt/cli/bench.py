"""`graphopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import screen, streams
from graphopt.cli.options import CustomOpsOption, Numbers, Sizes, numbers_of, several_sizes
from graphopt.cli.root import Command, app


@app.command(cls=Command, name="bench")
def bench_command(
    before: Annotated[Path, typer.Argument(metavar="A", help="A model; - is stdin.")],
    after: Annotated[Path | None, typer.Argument(metavar="B", help="A model to compare with A.")] = None,
    provider: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="cpu, rocm, migraphx, cuda, ... (repeatable).")
    ] = None,
    threads: Annotated[
        Numbers | None,
        typer.Option(parser=numbers_of("--threads"), metavar="1,2", help="0, the default: the runtime decides."),
    ] = None,
    batch: Annotated[
        Numbers | None,
        typer.Option(parser=numbers_of("--batch"), metavar="1,8,64", help="Sizes of the symbolic first axis."),
    ] = None,
    dim: Annotated[
        list[Sizes] | None,
        typer.Option(parser=several_sizes, metavar="NAME=64,128", help="Sizes of a symbolic dimension (repeatable)."),
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="A .npz file or a folder, as for verify.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds to time each setting.")] = 2.0,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory.")] = True,
    profile: Annotated[bool, typer.Option("--profile/--no-profile", help="Time each node.")] = True,
    require_device: Annotated[
        bool, typer.Option("--require-device", help="Fail if a node of a GPU session runs on the CPU.")
    ] = False,
    placement: Annotated[
        bool, typer.Option("--placement", help="Only print which provider runs which nodes, one line for each session.")
    ] = False,
    custom_ops: CustomOpsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Time A, or compare A with B.

    Also prints throughput, memory, times of nodes and their providers.
    """
    import graphopt

    with screen.working() as say:
        report = graphopt.bench(
            streams.read(before),
            None if after is None else streams.read(after),
            providers=provider or (),
            threads=threads or (0,),
            sizes=dict(dim or ()),
            batch=batch or (),
            inputs=inputs,
            seconds=0.0 if placement else seconds,
            memory=memory and not placement,
            profile=profile or placement,
            require_device=require_device,
            custom_ops=custom_ops or (),
            progress=say,
        )
    if as_json:
        screen.print_json("bench", report.to_dict())
        return
    if placement:
        from graphopt.report.tables import print_placements

        print_placements(report, screen.out())
        return
    from graphopt.report.tables import print_bench, print_speed

    print_speed(report, screen.out())
    print_bench(report, screen.out())
