"""`graphopt doctor`: the parts of this installation and whether they work."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

import graphopt
from graphopt.errors import GraphoptError, one_line
from graphopt.ops import DOMAIN, OPS
from graphopt.runtime.auto import resolve_target
from graphopt.runtime.discovery import (
    CPU,
    bfloat16_gain,
    gpu_routes,
    import_onnxruntime,
    installed_runtimes,
    library_path,
)
from graphopt.runtime.routes import Route


@dataclass
class Findings:
    """The results of the examination.

    Attributes:
        rows: names and values of the parts found.
        problems: messages about missing or broken parts.
        routes: routes to GPUs, with the reasons why some cannot be used.
        target: the target that `--target auto` selects here.
        target_reason: why.

    """

    rows: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    target: str = "cpu"
    target_reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the findings for JSON, in the format of docs/provider_reference.md."""
        return {
            "format": 2,
            "findings": dict(self.rows),
            "problems": self.problems,
            "auto": {"target": self.target, "reason": self.target_reason},
            "routes": [route.to_dict() for route in self.routes],
        }


def examine() -> Findings:
    """Examines versions, the runtime, its providers, the native library and GPUs. Raises no errors."""
    found = Findings()
    found.rows.append(("graphopt", graphopt.__version__))
    found.rows.append(("python", platform.python_version()))
    for name in ("onnx", "onnx-ir", "onnx-graphsurgeon", "numpy"):
        found.rows.append((name, importlib.metadata.version(name)))
    runtimes = installed_runtimes()
    if len(runtimes) > 1:
        names = ", ".join(f"{n} {v}" for n, v in runtimes.items())
        found.problems.append(
            f"{names} install the same Python module and overwrite each other; uninstall all of them, then install one"
        )
    try:
        ort = import_onnxruntime()
    except GraphoptError as error:
        found.problems.append(str(error))
        return found
    owner = ", ".join(f"{n} {v}" for n, v in runtimes.items()) or "not from a known distribution"
    found.rows.append(("onnxruntime", f"{ort.__version__} ({owner})"))
    found.rows.append(("providers", ", ".join(ort.get_available_providers())))
    try:
        path = library_path()
    except GraphoptError as error:
        found.problems.append(str(error))
        return found
    found.rows.append(("native library", str(path)))
    kernels, failure = _count_kernels(ort, path)
    if failure:
        found.problems.append(f"the native library cannot be used: {failure}")
    else:
        count = "every operator" if kernels == len(OPS) else f"{kernels} of {len(OPS)} operators"
        found.rows.append(("CPU kernels", count))
        if (gain := bfloat16_gain()) is not None:
            found.rows.append(("--precision bf16", f"a layer on the CPU is {gain:.2f} times as fast as in float32"))
        _look_for_gpus(found)
    return found


def _look_for_gpus(found: Findings) -> None:
    try:
        found.routes = list(gpu_routes())
        target, found.target_reason = resolve_target("auto")
    except Exception as error:  # of a driver or the runtime: reported like other problems
        found.problems.append(f"GPUs cannot be detected: {one_line(error)}")
        return
    if not found.routes:
        found.rows.append(("GPUs", "unknown: the native library is older than this package"))
    else:
        amd = dict.fromkeys(arch for route in found.routes for arch in route.code if arch.startswith("gfx"))
        none = "none: there was no clang with lld that compiles for AMD GPUs when the library was built"
        found.rows.append(("AMD GPU kernels", ", ".join(amd) or none))
    found.target = str(target)
    found.rows.append(("--target auto", f"{found.target}: {found.target_reason}"))


def _count_kernels(ort: Any, path: Path) -> tuple[int, str]:
    """Counts operators with a CPU kernel by creating a session whose model has no function bodies."""
    try:
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(path))
        options.log_severity_level = 4
    except Exception as error:  # the runtime's exception classes share no public base
        return 0, str(error).strip()
    return _with_kernel(ort, options, list(OPS)), ""


def _with_kernel(ort: Any, options: Any, names: Sequence[str]) -> int:
    """Counts operators with a kernel: tries a session with all of them, and with each half if it fails."""
    from onnx import helper

    nodes: list[onnx.NodeProto] = []
    values: list[onnx.ValueInfoProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    for name in names:
        _add_node(name, nodes, values, outputs)
    graph = helper.make_graph(nodes, "kernels", values, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
    except Exception:  # no kernel of some name
        half = len(names) // 2
        return sum(_with_kernel(ort, options, part) for part in (names[:half], names[half:])) if half else 0
    return len(names)


def _add_node(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> None:
    from onnx import TensorProto, helper

    spec = OPS[name]
    given, made = [f"{name}.{i}" for i in spec.inputs], [f"{name}.{o}" for o in spec.outputs]
    for value, i in zip(given, spec.inputs, strict=True):
        brain = i == "X" and spec.X_types == ("bfloat16",)
        element = TensorProto.BOOL if i == "mask" else TensorProto.BFLOAT16 if brain else TensorProto.FLOAT
        inputs.append(helper.make_tensor_value_info(value, element, None))
    for value, o in zip(made, spec.outputs, strict=True):
        element = TensorProto.BFLOAT16 if o in spec.bfloat16 else TensorProto.FLOAT
        outputs.append(helper.make_tensor_value_info(value, element, None))
    node = helper.make_node(name, given, made, domain=DOMAIN)
    node.attribute.extend(_example_attribute(key, int(kind)) for key, kind in spec.attributes.items())
    nodes.append(node)


def _example_attribute(key: str, kind: int) -> onnx.AttributeProto:
    from onnx import AttributeProto, helper

    if kind == AttributeProto.INTS:
        of_two_axes = {"pads": [0, 1, 1, 0], "output_padding": [0, 0], "strides": [1, 1], "dilations": [1, 1]}
        of_two_axes.update(kernel_shape=[2, 2], image=[2, 2], window=[2, 2], shift=[1, 1])
        return helper.make_attribute(key, of_two_axes.get(key, [0, 1, 2, 3]))
    if kind == AttributeProto.INT:
        return helper.make_attribute(key, 1)
    return helper.make_attribute(key, 1.0)
