"""`python -m models NAME OUT.onnx --batch N`: writes one model of the zoo; `--list` names them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import onnx
import typer

from models import ZOO


def _print_names(wanted: bool) -> None:
    if wanted:
        for name, build in ZOO.items():
            typer.echo(f"{name:14} {(build.__doc__ or '').strip().splitlines()[0]}")
        raise typer.Exit


def main(
    name: Annotated[str, typer.Argument(help="a model of the zoo, see --list")],
    out: Annotated[Path, typer.Argument(help="the .onnx file to write")],
    batch: Annotated[int, typer.Option(min=1, help="static batch size")] = 1,
    small: Annotated[bool, typer.Option("--small", help="few channels and layers, for tests")] = False,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="symbolic batch and sequence length")] = False,
    seed: Annotated[int, typer.Option(min=0, help="seed of the weights")] = 0,
    _names: Annotated[
        bool, typer.Option("--list", help="print the models", callback=_print_names, is_eager=True)
    ] = False,
) -> None:
    """Writes a model of the zoo to OUT."""
    if name not in ZOO:
        raise typer.BadParameter(f"no model {name!r}; the zoo has {', '.join(ZOO)}")
    onnx.save(ZOO[name](batch=batch, small=small, dynamic=dynamic, seed=seed), out)


if __name__ == "__main__":
    typer.run(main)
