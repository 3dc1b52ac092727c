"""The Open Inference Protocol over HTTP, for engines that serve any ASGI application (Ray Serve, BentoML)."""

from __future__ import annotations

import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from graphopt.serving import protocol
from graphopt.serving.batching import Batcher
from graphopt.serving.deployment import RequestError, versions
from graphopt.serving.served import Served


def application(folder: str | os.PathLike[str]) -> Any:
    """Creates a Starlette application for all models and versions below a folder.

    The newest version of a model answers requests that name no version.

    Raises:
        GraphoptError: a model cannot be used.
    """
    served = {name: {v: Served(folder) for v, folder in found.items()} for name, found in versions(folder).items()}
    batchers: dict[tuple[str, int], Batcher] = {}

    def find(request: Request) -> Served | None:
        numbers = served.get(request.path_params["name"], {})
        version = request.path_params.get("version", str(max(numbers, default=0)))
        return numbers.get(int(version)) if version.isdecimal() else None

    async def infer(request: Request) -> Response:
        found = find(request)
        if found is None:
            return _error(404, f"no model is at {request.url.path}")
        deployment = found.deployment
        batcher = batchers.setdefault((deployment.name, deployment.version), Batcher(found))
        try:
            body, binary = protocol.split(await request.body(), request.headers.get(protocol.JSON_LENGTH))
            answer, tail = protocol.encode(deployment, await batcher.run(protocol.decode(body, binary)), body)
            response = JSONResponse(answer)
        except (RequestError, ValueError) as error:
            return _error(400, str(error))
        except MemoryError as error:
            return _error(500, str(error))
        if not tail:
            return response
        headers = {protocol.JSON_LENGTH: str(len(response.body))}
        return Response(bytes(response.body) + tail, media_type="application/octet-stream", headers=headers)

    async def metadata(request: Request) -> Response:
        found = find(request)
        if found is None:
            return _error(404, f"no model is at {request.url.path}")
        return JSONResponse(protocol.metadata(found.deployment, [*served[found.deployment.name]]))

    async def ready(request: Request) -> Response:
        missing = "name" in request.path_params and find(request) is None
        return Response(status_code=404 if missing else 200)

    async def server(request: Request) -> Response:
        return JSONResponse({"name": "graphopt", "version": "", "extensions": protocol.EXTENSIONS})

    model = "/v2/models/{name}"
    both = (model, f"{model}/versions/{{version}}")
    return Starlette(
        routes=[
            *(Route(f"{path}/infer", infer, methods=["POST"]) for path in both),
            *(Route(f"{path}/ready", ready) for path in (*both, "/v2/health")),
            *(Route(path, metadata) for path in both),
            Route("/v2/health/live", ready),
            Route("/v2", server),
        ]
    )


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)
