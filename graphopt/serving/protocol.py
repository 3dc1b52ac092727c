"""The Open Inference Protocol, version 2, as JSON (https://github.com/kserve/open-inference-protocol)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.serving.deployment import DATATYPES, Array, Deployment, RequestError


def decode(body: Any) -> dict[str, Array]:
    """The inputs of a request.

    Raises:
        RequestError: not of the protocol's form.
    """
    inputs = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(inputs, list) or not inputs:
        raise RequestError("a request has a list 'inputs'")
    feeds: dict[str, Array] = {}
    for given in inputs:
        if not isinstance(given, dict) or not {"name", "shape", "datatype", "data"} <= given.keys():
            raise RequestError("an input has 'name', 'shape', 'datatype' and 'data'")
        name, shape, datatype = given["name"], given["shape"], given["datatype"]
        if name in feeds:
            raise RequestError(f"input '{name}' is there twice")
        if datatype not in DATATYPES:
            raise RequestError(f"input '{name}': datatype {datatype} is none of {', '.join(DATATYPES)}")
        if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
            raise RequestError(f"input '{name}': its shape is no list of sizes")
        feeds[name] = _array(name, given["data"], DATATYPES[datatype], tuple(shape))
    return feeds


def _array(name: str, data: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    # numpy would make floats of integers beyond 63 bits.
    each = {"BYTES": str, "UINT64": int}.get("BYTES" if dtype.kind == "O" else dtype.name.upper())
    try:
        given = np.asarray(data, None if each is None else object).reshape(-1)
    except ValueError:
        raise RequestError(f"input '{name}': its data have no shape") from None
    if given.size != math.prod(shape):
        raise RequestError(f"input '{name}': its data, {given.size} numbers, do not fill the shape {[*shape]}")
    if each is not None:
        fits = all(type(value) is each for value in given)
    else:
        fits = not given.size or given.dtype.kind in {"b": "b", "f": "fiu"}.get(dtype.kind, "iu")
    if not fits:
        raise RequestError(f"input '{name}': its data are no {dtype} values")
    if given.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if given.min() < limits.min or given.max() > limits.max:
            raise RequestError(f"input '{name}': a number is out of the range of {dtype}")
    return given.astype(dtype).reshape(shape)


def encode(deployment: Deployment, outputs: Mapping[str, Array], body: Any) -> dict[str, Any]:
    """The answer to a request.

    Raises:
        RequestError: the request asks for an output that there is not.
    """
    wanted = [o["name"] for o in body.get("outputs") or []] or [*outputs]
    for name in wanted:
        if name not in outputs:
            raise RequestError(f"{deployment.name} has no output '{name}', but {', '.join(outputs)}")
    datatypes = {tensor.name: tensor.datatype for tensor in deployment.outputs}
    answer = {
        "model_name": deployment.name,
        "model_version": str(deployment.version),
        "outputs": [
            {
                "name": name,
                "shape": [*outputs[name].shape],
                "datatype": datatypes[name],
                "data": outputs[name].reshape(-1).tolist(),
            }
            for name in wanted
        ],
    }
    return answer | ({"id": body["id"]} if "id" in body else {})


def metadata(deployment: Deployment, versions: list[int]) -> dict[str, Any]:
    """The answer to the question for a model's inputs and outputs."""
    tensors = {
        kind: [{"name": t.name, "datatype": t.datatype, "shape": [*t.shape]} for t in given]
        for kind, given in (("inputs", deployment.inputs), ("outputs", deployment.outputs))
    }
    return {"name": deployment.name, "versions": [*map(str, versions)], "platform": "onnx_graphopt", **tensors}
