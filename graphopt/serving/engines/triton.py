"""Triton's Python backend: `model.py` in a version's folder imports `TritonPythonModel` from here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from graphopt.serving.deployment import RequestError
from graphopt.serving.served import Served


class TritonPythonModel:
    """One instance of a model. The engine collects requests over time, and `execute` merges them into one run."""

    def initialize(self, args: dict[str, str]) -> None:
        """Creates the session. The engine puts the index of an instance at the end of the instance's name."""
        instance = args["model_instance_name"].rpartition("_")[2]
        folder = Path(args["model_repository"]) / args["model_version"]
        self._served = Served(folder, int(instance) if instance.isdecimal() else 0)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Returns one response for each request, in order; an invalid request gets an error response."""
        deployment = self._served.deployment
        results = self._served.run_many([self._feeds(request) for request in requests])
        responses = []
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Exception):
                is_invalid = isinstance(result, RequestError)
                code = triton.TritonError.INVALID_ARG if is_invalid else triton.TritonError.UNAVAILABLE
                responses.append(triton.InferenceResponse(error=triton.TritonError(str(result), code)))
                continue
            wanted = [t.name for t in deployment.outputs if t.name in request.requested_output_names()]
            responses.append(triton.InferenceResponse([triton.Tensor(name, result[name]) for name in wanted]))
        return responses

    def _feeds(self, request: Any) -> dict[str, Any]:
        feeds = {}
        for tensor in self._served.deployment.inputs:
            given = triton.get_input_tensor_by_name(request, tensor.name)
            if given is None:
                continue
            array = given.as_numpy()
            if tensor.datatype == "BYTES":
                array = np.array([text.decode() for text in array.reshape(-1)], object).reshape(array.shape)
            feeds[tensor.name] = array
        return feeds
