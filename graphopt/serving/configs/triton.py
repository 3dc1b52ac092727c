"""Triton: `config.pbtxt`, the text form of `inference.ModelConfig` in triton-inference-server/common.

There are two model repositories, and a server uses one of them. In `onnxruntime/` Triton's ONNX Runtime backend runs
the model on the CPU with our library. In `python/` the Python backend runs it in `graphopt.session`, on our provider if
there is a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from graphopt.serving.deployment import Deployment, Tensor

COMMAND = "tritonserver --model-repository {folder}/onnxruntime"
_MODEL = "from graphopt.serving.engines.triton import TritonPythonModel as TritonPythonModel\n"


def files(deployment: Deployment, seen_at: Path) -> Mapping[str, str]:
    """Returns the files of both repositories."""
    name = deployment.name
    library = seen_at / "libgraphopt.so"
    onnxruntime = [
        'backend: "onnxruntime"',
        f"model_operations {{ op_library_filename: [ {json.dumps(str(library))} ] }}",
    ]
    if deployment.threads:
        onnxruntime.append(_parameter("intra_op_thread_count", str(deployment.threads)))
    return {
        f"onnxruntime/{name}/config.pbtxt": _config(deployment, onnxruntime),
        f"python/{name}/config.pbtxt": _config(deployment, ['backend: "python"']),
        f"python/{name}/{deployment.version}/model.py": _MODEL,
    }


def _config(deployment: Deployment, backend: Iterable[str]) -> str:
    merged = deployment.max_batch > 1
    lines = [
        f"name: {json.dumps(deployment.name)}",
        *backend,
        f"max_batch_size: {deployment.max_batch if merged else 0}",
        *(f"input {_tensor(tensor, merged)}" for tensor in deployment.inputs),
        *(f"output {_tensor(tensor, merged)}" for tensor in deployment.outputs),
        # `Served`, not the engine, selects the GPU of an instance.
        f"instance_group {{ count: {deployment.instances} kind: KIND_CPU }}",
        "version_policy { all { } }",
    ]
    if merged:
        delay = f"max_queue_delay_microseconds: {round(1000 * deployment.delay_ms)}"
        lines.append(f"dynamic_batching {{ {delay} }}")
    types = {tensor.name: tensor for tensor in deployment.inputs}
    for number, shapes in enumerate(deployment.warm_up):
        rows = next(iter(shapes.values()))[0] if merged else 0
        inputs = [
            f"inputs {{ key: {json.dumps(name)} value {{ data_type: {_type(types[name])} "
            f"{_dims(shape[1:] if merged else shape)} zero_data: true }} }}"
            for name, shape in shapes.items()
        ]
        name = json.dumps(f"shapes {number}")
        batch = f"batch_size: {rows} " if merged else ""
        lines.append(f"model_warmup {{ name: {name} {batch}{' '.join(inputs)} }}")
    return "\n".join(lines) + "\n"


def _tensor(tensor: Tensor, merged: bool) -> str:
    dims = tensor.shape[1:] if merged else tensor.shape
    # Triton needs a dimension besides the batch: a scalar, or a tensor of shape (batch,), is declared with one element
    # and reshaped.
    reshape = "" if dims else " reshape { shape: [ ] }"
    text = f"name: {json.dumps(tensor.name)} data_type: {_type(tensor)} {_dims(dims or (1,))}"
    return f"{{ {text}{reshape} }}"


def _type(tensor: Tensor) -> str:
    return f"TYPE_{'STRING' if tensor.datatype == 'BYTES' else tensor.datatype}"


def _dims(dims: Iterable[int]) -> str:
    return f"dims: [ {', '.join(map(str, dims))} ]"


def _parameter(key: str, value: str) -> str:
    return f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}"
