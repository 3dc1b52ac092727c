"""`graphopt explain`."""

from __future__ import annotations

from graphopt.cli import screen, streams
from graphopt.cli.options import AllSitesOption, InPath, ShapeOption, TargetOption, parse_input_shapes
from graphopt.cli.root import app


@app.command(name="explain")
def explain_command(
    model: InPath,
    target: TargetOption = "auto",
    input_shape: ShapeOption = None,
    all_sites: AllSitesOption = False,
) -> None:
    """Print every candidate site of IN: applied, or refused and why."""
    import graphopt
    from graphopt.report.tables import print_remarks

    with screen.working() as say:
        _, report = graphopt.optimize(
            streams.read(model),
            target=target,
            input_shapes=parse_input_shapes(input_shape),
            all_sites=all_sites,
            dry_run=True,
            progress=say,
        )
    print_remarks(report.remarks, screen.out())
