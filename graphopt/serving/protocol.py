"""The Open Inference Protocol, version 2: https://github.com/kserve/open-inference-protocol.

Tensors are JSON, or, by its extension for binary data, bytes behind the JSON in the order in which it names them
(https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.serving.deployment import DATATYPES, Array, Deployment, RequestError

# The header that says how long the JSON is; without it all of a body is.
JSON_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data"]


def split(body: bytes, json_length: str | None) -> tuple[Any, bytes]:
    """A request's JSON, and the bytes behind it.

    Args:
        body: of the request.
        json_length: its header `JSON_LENGTH`; None where there is none.

    Raises:
        RequestError: no JSON, or the header does not fit.
    """
    if json_length is not None and not (json_length.isdecimal() and int(json_length) <= len(body)):
        raise RequestError(f"{JSON_LENGTH} is '{json_length}', and the body has {len(body)} bytes")
    end = len(body) if json_length is None else int(json_length)
    try:
        return json.loads(body[:end]), body[end:]
    except ValueError as error:  # no JSON, or no text
        raise RequestError(f"the request is no JSON: {error}") from None


def decode(body: Any, binary: bytes = b"") -> dict[str, Array]:
    """The inputs of a request.

    Args:
        body: its JSON.
        binary: what stands behind it.

    Raises:
        RequestError: not of the protocol's form.
    """
    inputs = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(inputs, list) or not inputs:
        raise RequestError("the request has no list 'inputs'")
    feeds: dict[str, Array] = {}
    for given in inputs:
        size = _binary_size(given)
        if (
            not isinstance(given, dict)
            or not {"name", "shape", "datatype"} <= given.keys()
            or ((size is None) != ("data" in given))
        ):
            raise RequestError("an input needs 'name', 'shape', 'datatype', and 'data' or 'binary_data_size'")
        name, shape, datatype = given["name"], given["shape"], given["datatype"]
        if not isinstance(name, str):
            raise RequestError(f"the name of an input is {name!r}, no text")
        if name in feeds:
            raise RequestError(f"input '{name}' is given twice")
        if not isinstance(datatype, str) or datatype not in DATATYPES:
            raise RequestError(f"input '{name}': datatype {datatype} is none of {', '.join(DATATYPES)}")
        if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
            raise RequestError(f"input '{name}': its shape is no list of sizes")
        if size is None:
            feeds[name] = _array(name, given["data"], DATATYPES[datatype], tuple(shape))
        else:
            feeds[name] = _of_bytes(name, binary[:size], DATATYPES[datatype], tuple(shape))
            binary = binary[size:]
    if binary:
        raise RequestError(f"{len(binary)} bytes are left behind the last input")
    return feeds


def _binary_size(given: Any) -> int | None:
    parameters = given.get("parameters") if isinstance(given, dict) else None
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None and (type(size) is not int or size < 0):
        raise RequestError(f"binary_data_size is {size!r}, no number of bytes")
    return size


def _of_bytes(name: str, data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype.kind == "O":
        return _array(name, _texts(name, data), dtype, shape)
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise RequestError(f"input '{name}': its {len(data)} bytes do not fill the shape {[*shape]} of {dtype}")
    if dtype.kind == "b":  # any byte but 0 and 1 would be neither
        return np.frombuffer(data, np.uint8).astype(dtype).reshape(shape)
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def _texts(name: str, data: bytes) -> list[str]:
    """Each is its length in four bytes, and UTF-8."""
    found, begin = [], 0
    while begin < len(data):
        end = begin + 4 + int.from_bytes(data[begin : begin + 4], "little")
        try:
            if begin + 4 > len(data) or end > len(data):
                raise ValueError("it ends within a text")
            found.append(data[begin + 4 : end].decode())
        except ValueError as error:
            raise RequestError(f"input '{name}': its bytes are no texts: {error}") from None
        begin = end
    return found


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
        raise RequestError(f"input '{name}': its data are not {dtype} values")
    if given.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if given.min() < limits.min or given.max() > limits.max:
            raise RequestError(f"input '{name}': a number is out of the range of {dtype}")
    return given.astype(dtype).reshape(shape)


def encode(
    deployment: Deployment, outputs: Mapping[str, Array], body: Any, *, binary: bool = True
) -> tuple[dict[str, Any], bytes]:
    """The answer to a request: its JSON, and the bytes behind it, none where the request asks for none.

    Args:
        deployment: of the model.
        outputs: of the model, by name.
        body: the request's JSON.
        binary: whether the engine can send bytes; where it can't, numbers are what a client gets that asks for bytes.

    Raises:
        RequestError: the request asks for an output that there is not, or not in the protocol's form.
    """
    asked = body.get("outputs") or [{"name": name} for name in outputs]
    if not isinstance(asked, list) or not all(isinstance(o, dict) and isinstance(o.get("name"), str) for o in asked):
        raise RequestError("'outputs' is no list of outputs, each with its 'name'")
    all_binary = _parameter(body, "binary_data_output")
    datatypes = {tensor.name: tensor.datatype for tensor in deployment.outputs}
    found, behind = [], []
    for output in asked:
        name = output["name"]
        if name not in outputs:
            raise RequestError(f"{deployment.name} has no output '{name}', but {', '.join(outputs)}")
        answer = {"name": name, "shape": [*outputs[name].shape], "datatype": datatypes[name]}
        as_asked = _parameter(output, "binary_data")
        if binary and (all_binary if as_asked is None else as_asked):
            behind.append(_bytes(outputs[name]))
            found.append(answer | {"parameters": {"binary_data_size": len(behind[-1])}})
        else:
            found.append(answer | {"data": outputs[name].reshape(-1).tolist()})
    names = {"model_name": deployment.name, "model_version": str(deployment.version)}
    return {**names, "outputs": found} | ({"id": body["id"]} if "id" in body else {}), b"".join(behind)


def _parameter(given: Mapping[str, Any], name: str) -> Any:
    parameters = given.get("parameters")
    return parameters.get(name) if isinstance(parameters, dict) else None


def _bytes(array: Array) -> bytes:
    if array.dtype.kind != "O":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    texts = [str(text).encode() for text in array.reshape(-1)]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def metadata(deployment: Deployment, versions: list[int]) -> dict[str, Any]:
    """The answer to the question for a model's inputs and outputs."""
    tensors = {
        kind: [{"name": t.name, "datatype": t.datatype, "shape": [*t.shape]} for t in given]
        for kind, given in (("inputs", deployment.inputs), ("outputs", deployment.outputs))
    }
    return {"name": deployment.name, "versions": [*map(str, versions)], "platform": "onnx_graphopt", **tensors}
