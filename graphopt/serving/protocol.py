"""The Open Inference Protocol, version 2: https://github.com/kserve/open-inference-protocol.

Tensors are JSON. With the extension for binary data they are bytes after the JSON, in the order of the JSON's tensors
(https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.serving.deployment import DATATYPES, Array, Deployment, RequestError

# The header with the length of the JSON in bytes. Without it, the whole body is JSON.
JSON_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data"]


def split(body: bytes, json_length: str | None) -> tuple[Any, bytes]:
    """Splits the body of a request into its JSON and the binary data after it.

    Args:
        body: the body of the request.
        json_length: its header `JSON_LENGTH`; None without the header.

    Returns:
        The parsed JSON, and the binary data.

    Raises:
        RequestError: the JSON is invalid, or the header does not fit the body.
    """
    if json_length is not None and not (json_length.isdecimal() and int(json_length) <= len(body)):
        raise RequestError(f"{JSON_LENGTH} is '{json_length}', but the body has {len(body)} bytes")
    end = len(body) if json_length is None else int(json_length)
    try:
        return json.loads(body[:end]), body[end:]
    except ValueError as error:  # invalid JSON or invalid UTF-8
        raise RequestError(f"the request is not valid JSON: {error}") from None


def decode(body: Any, binary: bytes = b"") -> dict[str, Array]:
    """Returns the inputs of a request, name -> array.

    Args:
        body: the JSON of the request.
        binary: the binary data after it.

    Raises:
        RequestError: the request does not follow the protocol.
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
            raise RequestError(f"the name of an input is {name!r} instead of a string")
        if name in feeds:
            raise RequestError(f"input '{name}' is given twice")
        if not isinstance(datatype, str) or datatype not in DATATYPES:
            raise RequestError(f"input '{name}': unknown datatype {datatype}; use one of {', '.join(DATATYPES)}")
        if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
            raise RequestError(f"input '{name}': its shape is not a list of sizes")
        if size is None:
            feeds[name] = _array(name, given["data"], DATATYPES[datatype], tuple(shape))
        else:
            feeds[name] = _of_bytes(name, binary[:size], DATATYPES[datatype], tuple(shape))
            binary = binary[size:]
    if binary:
        raise RequestError(f"{len(binary)} bytes follow the data of the last input")
    return feeds


def _binary_size(given: Any) -> int | None:
    parameters = given.get("parameters") if isinstance(given, dict) else None
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None and (type(size) is not int or size < 0):
        raise RequestError(f"binary_data_size is {size!r} instead of a number of bytes")
    return size


def _of_bytes(name: str, data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype.kind == "O":
        return _array(name, _texts(name, data), dtype, shape)
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise RequestError(f"input '{name}': its {len(data)} bytes do not fill the shape {[*shape]} of {dtype}")
    if dtype.kind == "b":  # a view would keep bytes other than 0 and 1
        return np.frombuffer(data, np.uint8).astype(dtype).reshape(shape)
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def _texts(name: str, data: bytes) -> list[str]:
    """Decodes strings, each stored as its length in four bytes, little endian, and UTF-8."""
    found, begin = [], 0
    while begin < len(data):
        end = begin + 4 + int.from_bytes(data[begin : begin + 4], "little")
        try:
            if begin + 4 > len(data) or end > len(data):
                raise ValueError("the data end within a string")
            found.append(data[begin + 4 : end].decode())
        except ValueError as error:
            raise RequestError(f"input '{name}': its bytes are not valid strings: {error}") from None
        begin = end
    return found


def _array(name: str, data: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    # numpy would convert integers beyond 63 bits to floats.
    each = {"BYTES": str, "UINT64": int}.get("BYTES" if dtype.kind == "O" else dtype.name.upper())
    try:
        given = np.asarray(data, None if each is None else object).reshape(-1)
    except ValueError:
        raise RequestError(f"input '{name}': its data are not a regular array") from None
    if given.size != math.prod(shape):
        raise RequestError(f"input '{name}': its data, {given.size} values, do not fill the shape {[*shape]}")
    if each is not None:
        fits = all(type(value) is each for value in given)
    else:
        fits = not given.size or given.dtype.kind in {"b": "b", "f": "fiu"}.get(dtype.kind, "iu")
    if not fits:
        raise RequestError(f"input '{name}': its data are not {dtype} values")
    if given.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if given.min() < limits.min or given.max() > limits.max:
            raise RequestError(f"input '{name}': a value is outside the range of {dtype}")
    return given.astype(dtype).reshape(shape)


def encode(
    deployment: Deployment, outputs: Mapping[str, Array], body: Any, *, binary: bool = True
) -> tuple[dict[str, Any], bytes]:
    """Encodes the response to a request.

    Args:
        deployment: the model's deployment.
        outputs: output name -> array.
        body: the JSON of the request.
        binary: whether the engine can send binary data; otherwise requested binary outputs are sent as JSON.

    Returns:
        The JSON of the response, and the binary data after it, which may be empty.

    Raises:
        RequestError: the request names an unknown output, its list of outputs does not follow the protocol, or JSON
            cannot represent an element of an output.
    """
    requested = body.get("outputs") or [{"name": name} for name in outputs]
    is_list = isinstance(requested, list)
    if not is_list or not all(isinstance(o, dict) and isinstance(o.get("name"), str) for o in requested):
        raise RequestError("'outputs' must be a list of objects with a 'name'")
    all_binary = _parameter(body, "binary_data_output")
    datatypes = {tensor.name: tensor.datatype for tensor in deployment.outputs}
    found, tail = [], []
    for output in requested:
        name = output["name"]
        if name not in outputs:
            raise RequestError(f"{deployment.name} has no output '{name}'; its outputs are {', '.join(outputs)}")
        answer = {"name": name, "shape": [*outputs[name].shape], "datatype": datatypes[name]}
        wants_binary = _parameter(output, "binary_data")
        if binary and (all_binary if wants_binary is None else wants_binary):
            tail.append(_bytes(outputs[name]))
            found.append(answer | {"parameters": {"binary_data_size": len(tail[-1])}})
        else:
            if outputs[name].dtype.kind == "f" and not np.isfinite(outputs[name]).all():
                remedy = "; request binary data" if binary else ""
                raise RequestError(f"output '{name}' has NaN or infinite elements, which JSON cannot represent{remedy}")
            found.append(answer | {"data": outputs[name].reshape(-1).tolist()})
    names = {"model_name": deployment.name, "model_version": str(deployment.version)}
    return {**names, "outputs": found} | ({"id": body["id"]} if "id" in body else {}), b"".join(tail)


def _parameter(given: Mapping[str, Any], name: str) -> Any:
    parameters = given.get("parameters")
    return parameters.get(name) if isinstance(parameters, dict) else None


def _bytes(array: Array) -> bytes:
    if array.dtype.kind != "O":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    texts = [str(text).encode() for text in array.reshape(-1)]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def metadata(deployment: Deployment, versions: list[int]) -> dict[str, Any]:
    """Returns the protocol's metadata of a model: its versions, inputs and outputs."""
    tensors = {
        kind: [{"name": t.name, "datatype": t.datatype, "shape": [*t.shape]} for t in given]
        for kind, given in (("inputs", deployment.inputs), ("outputs", deployment.outputs))
    }
    return {"name": deployment.name, "versions": [*map(str, versions)], "platform": "onnx_graphopt", **tensors}
