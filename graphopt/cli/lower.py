"""`graphopt lower`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt.cli import screen, streams
from graphopt.cli.options import InPath, ShareWeightsOption
from graphopt.cli.root import Command, app


@app.command(cls=Command, name="lower")
def lower(
    model: InPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; - is stdout.")],
    to: Annotated[
        str, typer.Option(help="onnxruntime keeps com.microsoft operators; standard replaces them as well.")
    ] = "onnxruntime",
    opset: Annotated[int | None, typer.Option(help="Version of the standard operators in OUT.")] = None,
    share_weights: ShareWeightsOption = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the outputs of both models.")] = False,
) -> None:
    """Write our operators as standard ONNX, for other runtimes.

    With --to standard, also write operators of com.microsoft as standard ONNX.
    """
    from graphopt.lower import lower as lower_model
    from graphopt.report.layout import say
    from graphopt.report.text import count, data_files, plain

    source, written = streams.read(model), streams.write(out)
    done = lower_model(source, written, to=to, opset=opset, share_weights=share_weights)
    report = None
    if verify:
        from graphopt.verification.verify import verify as verify_models

        with screen.working("verifying") as progress:
            report = verify_models(source, written, progress=progress)
    streams.flush(out, written)
    console = screen.out()
    what = [f"{count(done.inlined, 'node')} replaced by function bodies"] if done.inlined or to == "onnxruntime" else []
    if to == "standard":
        kinds = ", ".join(f"{op} {n}" for op, n in sorted(done.defined.items()))
        what.append(f"{count(done.defined.total(), 'node')} replaced by definitions" + (f" ({kinds})" if kinds else ""))
    say(f"{plain(', '.join(what))}, [bold]{plain(str(out))}[/] written, opset {done.opset}", console)
    if out != streams.DASH:
        sizes = ({str(path): n for path, n in files.items()} for files in (done.files, done.shared_files))
        for line in data_files(*sizes):
            say(plain(line), console)
    for remark in done.kept:
        say(plain(f"kept: {remark.nodes[0]}: {remark.detail} ({remark.code})"), console)
    if report is not None:
        from graphopt.cli.verify import exit_with_verdict
        from graphopt.report.tables import print_verdict

        print_verdict(report, console)
        exit_with_verdict(report.verdict)
