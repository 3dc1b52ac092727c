"""`graphopt serve-config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import screen
from graphopt.cli.options import Numbers, Size, numbers_of, one_size
from graphopt.cli.root import Command, app


def engine_names() -> list[str]:
    """Returns the completions of --for."""
    from graphopt.serving.configs import ENGINES

    return [*ENGINES]


@app.command(cls=Command, name="serve-config")
def serve_config(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The optimized model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; other models in it are kept.")],
    engine: Annotated[
        str,
        typer.Option("--for", help="triton, kserve, mlserver, litserve, bentoml or ray.", autocompletion=engine_names),
    ],
    name: Annotated[str, typer.Option(help="The model's name in URLs; default: the name of the file.")] = "",
    version: Annotated[int, typer.Option(help="The model's version.")] = 1,
    max_batch: Annotated[
        int | None,
        typer.Option(help="Maximum rows of a batch; 1 merges no requests; default: 8 if rows are independent."),
    ] = None,
    delay_ms: Annotated[float, typer.Option(min=0, help="Milliseconds that a request waits for others.")] = 2.0,
    instances: Annotated[int, typer.Option(help="Number of processes, replicas or instances.")] = 1,
    threads: Annotated[int, typer.Option(min=0, help="Threads of each instance; 0: the runtime decides.")] = 0,
    devices: Annotated[
        Numbers | None,
        typer.Option(parser=numbers_of("--devices"), metavar="0,1", help="The GPUs that the instances share."),
    ] = None,
    dim: Annotated[
        list[Size] | None,
        typer.Option(parser=one_size, metavar="NAME=128", help="A size for the warm-up (repeatable)."),
    ] = None,
    seen_at: Annotated[Path | None, typer.Option(help="Path of OUT in the engine's container.")] = None,
) -> None:
    """Write a folder with MODEL and the files of a model server."""
    from graphopt.report.layout import say
    from graphopt.report.text import plain
    from graphopt.serving.configs import COMMANDS
    from graphopt.serving.write import write

    deployment, notes = write(
        model,
        out,
        engine,
        name=name,
        version=version,
        max_batch=max_batch,
        delay_ms=delay_ms,
        instances=instances,
        threads=threads,
        devices=devices or (),
        sizes=dict(dim or ()),
        seen_at=seen_at,
    )
    console = screen.out()
    merged = (
        f"requests are merged into batches of at most {deployment.max_batch} rows"
        if deployment.max_batch > 1
        else "requests are not merged"
    )
    serves = f"serves {plain(deployment.name)} version {deployment.version}; {merged}"
    say(f"[bold]{plain(str(out))}[/] {serves}", console)
    for note in notes:
        say(f"[yellow]note:[/] {plain(note)}", console)
    console.print("start it with:")
    console.print(f"  {plain(COMMANDS[engine].format(folder=out))}", soft_wrap=True)  # to be copied
