"""LitServe: `server(folder).run()` serves every model of a folder under the Open Inference Protocol's paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import litserve
from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, model_validator

from graphopt.errors import GraphoptError
from graphopt.serving import protocol
from graphopt.serving.deployment import Deployment, RequestError, read_deployment, versions
from graphopt.serving.served import Answer, Served


def server(folder: str | os.PathLike[str], **options: Any) -> Any:
    """Creates a LitServer for all models and versions of a folder; by default the server restarts workers that end.

    Args:
        folder: the folder of NAME/VERSION folders.
        options: options of `litserve.LitServer`.

    Raises:
        GraphoptError: a folder cannot be used.
    """
    found = versions(folder)
    if not found:
        raise GraphoptError(f"{folder}: contains no model; `graphopt serve-config` writes NAME/VERSION folders")
    apis = [_Api(path) for folders in found.values() for path in folders.values()]
    defaults: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "restart_workers": True, "timeout": 60}
    defaults["workers_per_device"] = max(api.deployment.instances for api in apis)
    paths = (_Paths, {"models": {name: [*folders] for name, folders in found.items()}})
    return litserve.LitServer(apis, middlewares=[paths], **defaults | options)


class _Api(litserve.LitAPI):  # type: ignore[misc]  # the engine has no types
    def __init__(self, folder: Path) -> None:
        self.folder, self.deployment = folder, read_deployment(folder)
        name, version = self.deployment.name, self.deployment.version
        super().__init__(
            max_batch_size=self.deployment.max_batch,
            batch_timeout=self.deployment.delay_ms / 1000,
            api_path=f"/v2/models/{name}/versions/{version}/infer",
        )
        # The engine validates bodies by the annotated type, so invalid requests never reach a worker.
        self.decode_request = _with_type(_request_type(self.deployment))  # type: ignore[method-assign]  # of this API only

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for a worker, without `decode_request`: the worker receives validated bodies."""
        return {key: value for key, value in vars(self).items() if key != "decode_request"}

    def decode_request(self, request: Any) -> Any:
        return request if isinstance(request, dict) else request.model_dump()

    def setup(self, device: str) -> None:
        self.served = Served(self.folder)

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, x: Any) -> Any:
        bodies = x if isinstance(x, list) else [x]
        answers = self.served.run_many([protocol.decode(body) for body in bodies])
        pairs: list[tuple[Any, Answer]] = [*zip(bodies, answers, strict=True)]
        return pairs if isinstance(x, list) else pairs[0]

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> Any:
        body, outputs = output
        if isinstance(outputs, Exception):
            raise HTTPException(400 if isinstance(outputs, RequestError) else 500, str(outputs))
        try:
            return protocol.encode(self.deployment, outputs, body, binary=False)[0]
        except RequestError as error:
            raise HTTPException(400, str(error)) from None


def _with_type(request_type: type[BaseModel]) -> Any:
    def decode_request(request: Any) -> Any:
        return request.model_dump()

    decode_request.__annotations__["request"] = request_type
    return decode_request


def _request_type(deployment: Deployment) -> type[BaseModel]:
    class InferenceRequest(BaseModel):
        model_config = ConfigDict(extra="allow")

        @model_validator(mode="before")
        @classmethod
        def fits(cls, body: Any) -> Any:
            deployment.check(protocol.decode(body))
            return body

        def __reduce__(self) -> Any:
            return dict, (self.model_dump(),)  # a worker cannot import this local class

    return InferenceRequest


class _Paths:
    """Middleware for the protocol's other paths: requests without a version, and health checks.

    Args:
        app: the wrapped ASGI application.
        models: name -> versions in ascending order.
    """

    def __init__(self, app: Any, models: dict[str, list[int]]) -> None:
        self.app, self.models = app, models

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = scope | {"path": self._path(scope["path"])}
        await self.app(scope, receive, send)

    def _path(self, path: str) -> str:
        """Maps a path of the protocol to a path of the engine; paths of unknown models are unchanged."""
        match path.strip("/").split("/"):
            case ["v2", "health", *_]:
                return "/health"
            case ["v2", "models", name, "infer"] if name in self.models:
                return f"/v2/models/{name}/versions/{self.models[name][-1]}/infer"
            case ["v2", "models", name, "ready"] if name in self.models:
                return "/health"
            case ["v2", "models", name, "versions", version, "ready"] if version in map(str, self.models.get(name, ())):
                return "/health"
        return path
