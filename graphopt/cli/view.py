"""`graphopt view`: serves a page on the loopback interface."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.cli import screen, streams
from graphopt.cli.options import (
    CostDimOption,
    IgnoreCostModelOption,
    InputShape,
    ShapeOption,
    Size,
    TargetOption,
)
from graphopt.cli.root import Command, app
from graphopt.errors import OptionError

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

HOST = "127.0.0.1"


@app.command(cls=Command, name="view")
def view_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model to look at.")],
    after: Annotated[
        Path | None, typer.Argument(metavar="AFTER", help="Its rewrite; default: the result of optimize.")
    ] = None,
    target: TargetOption = "auto",
    ignore_cost_model: IgnoreCostModelOption = False,
    input_shape: ShapeOption = None,
    dim: CostDimOption = None,
    bench: Annotated[bool, typer.Option("--bench", help="Also time each node.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: any free port.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show MODEL and its rewrite side by side in the browser.

    The page can search nodes and collapse layers. It shows the cost of each node, and the reason for each change or
    refusal.
    """
    from graphopt.report.text import plain

    data = _data(model, after, target, ignore_cost_model, input_shape, dim, bench)
    try:
        server = serve(data, port)
    except OSError as error:
        raise OptionError(f"--port {port} cannot be used: {error.strerror or error}") from None
    address = f"http://{HOST}:{server.server_address[1]}/"
    screen.out().print(plain(f"{address} shows {model.name}; Ctrl-C ends it"), soft_wrap=True)
    if open_browser:
        typer.launch(address)
    with server:
        server.serve_forever()


def _data(
    model: Path,
    after: Path | None,
    target: str,
    ignore_cost_model: bool,
    input_shape: list[InputShape] | None,
    dim: list[Size] | None,
    timed: bool,
) -> bytes:
    import graphopt
    from graphopt.graph import reading
    from graphopt.remarks import Remark
    from graphopt.report.account import side
    from graphopt.report.view import view

    model, shapes, sizes = streams.read(model), dict(input_shape or ()), dict(dim or ())
    with screen.working("reading") as say:
        before = side(model, input_shapes=shapes, sizes=sizes)
        rewritten, remarks = after, list[Remark]()
        if after is None:
            source = reading.load(model).model
            made, report = graphopt.optimize(
                source, target=target, ignore_cost_model=ignore_cost_model, input_shapes=shapes, progress=say
            )
            remarks, other, title = report.remarks, side(made, sizes=sizes), model.name
        else:
            other, title = side(after, input_shapes=shapes, sizes=sizes), f"{model.name} and {after.name}"
        subgraphs = {}
        if timed:
            times = graphopt.bench(
                model, made if rewritten is None else rewritten, memory=False, seconds=0.5, progress=say
            )
            subgraphs = {s.name: s for p in times.profiles[:1] for s in p.subgraphs}
    return json.dumps(view(title, before, other, remarks, subgraphs).to_dict()).encode()


def serve(data: bytes, port: int = 0) -> ThreadingHTTPServer:
    """Creates a server of the page and its data on the loopback interface; the caller runs and closes it.

    Args:
        data: JSON of the view.
        port: port number; 0 for any free port.

    Raises:
        OSError: the port cannot be used.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from graphopt.report.view import page

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Prevents DNS rebinding: another website's name may resolve to this machine.
            if (self.headers.get("Host") or "").rpartition(":")[0] not in (HOST, "localhost"):
                self.send_error(403)
                return
            nonce = secrets.token_urlsafe(16)
            bodies = {"/": (page(nonce).encode(), "text/html"), "/data.json": (data, "application/json")}
            if self.path not in bodies:
                self.send_error(404)
                return
            body, kind = bodies[self.path]
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            policy = "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'"
            self.send_header("Content-Security-Policy", f"{policy}; script-src 'nonce-{nonce}'")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Suppresses the log of requests."""

    return ThreadingHTTPServer((HOST, port), Handler)
