"""Predicts the nodes that ONNX Runtime's CPU provider runs, from its registry of kernels and our table of operators."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import onnx
import onnx.inliner
import onnx_ir as ir

from graphopt.errors import one_line
from graphopt.graph.operators.traits import RECURRENT
from graphopt.ops import DOMAIN, OPS
from graphopt.runtime.discovery import CPU, import_onnxruntime

_NO_LAST_VERSION = 2**31 - 1


class CpuKernels:
    """The CPU kernels of the installed runtime.

    Attributes:
        unknown: why the registry is not available; "" if it is. onnxruntime-rocm has no registry without ROCm.

    Raises:
        RuntimeMissingError: no ONNX Runtime is installed.
    """

    def __init__(self) -> None:
        import_onnxruntime()
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._kernels: dict[tuple[str, str], list[Any]] = defaultdict(list)
        self.unknown = ""
        try:
            kernels = state.get_all_opkernel_def()
        except RuntimeError as error:
            kernels, self.unknown = [], one_line(error)
        for kernel in kernels:
            if kernel.provider == CPU:
                self._kernels[kernel.domain, kernel.op_name].append(kernel)
        self._schemas: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for schema in state.get_all_operator_schema():
            self._schemas[schema.domain, schema.name].append(schema)

    def version(self, node: ir.Node, opset: int) -> int:
        """Returns the version of the node's operator in an opset; 0 if the runtime does not know the operator."""
        schema = self._schema(node, opset)
        return 0 if schema is None else int(schema.since_version)

    def _schema(self, node: ir.Node, opset: int) -> Any:
        domain = "" if node.domain == "ai.onnx" else node.domain
        known = [s for s in self._schemas[domain, node.op_type] if s.since_version <= opset]
        return max(known, key=lambda s: s.since_version, default=None)

    def refuse(self, node: ir.Node, opset: int) -> tuple[str, str]:
        """Returns why the CPU provider cannot run a node, and how it runs a node without a kernel of its own.

        The first text is "" if it can run the node. The second is "" if a kernel runs the node directly; otherwise the
        runtime runs the node's definition, or a float32 kernel between Casts.
        """
        if self.unknown:
            return "", ""
        if node.domain == DOMAIN:
            return ("", "" if node.op_type in OPS else "by its definition")
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = self._schema(node, opset)
        if schema is None:
            return "this runtime does not know the operator", ""
        known = [k for k in self._kernels[domain, node.op_type] if _fits(k.version_range, schema.since_version)]
        if node.op_type in RECURRENT and node.attributes.get_int("layout") == 1:
            return "no kernel for layout 1", ""
        if any(self._accepts(k, schema, node, {}) for k in known):
            return "", ""
        inside = [n for n in self.definition(node, opset) if n.op_type != "Constant"]
        if inside and all(not self.refuse(n, opset)[0] for n in inside):
            return "", "by its definition"
        # If there is a kernel for float32 only, the runtime inserts Casts around the node.
        if any(self._accepts(k, schema, node, {"tensor(float16)": "tensor(float)"}) for k in known):
            return "", "in float32, between Casts that the runtime adds"
        if not known:
            return f"no kernel for version {schema.since_version} of the operator", ""
        types = ", ".join(dict.fromkeys(v.dtype.name.lower() for v in node.inputs if v is not None and v.dtype))
        return f"no kernel for {types or 'its types'}", ""

    def definition(self, node: ir.Node, opset: int) -> list[ir.Node]:
        """Returns the nodes of the operator's definition, with the node's names for its inputs and outputs.

        The list is empty if ONNX has no definition for the operator or for this node.
        """
        if node.domain not in ("", "ai.onnx"):
            return []
        inputs, outputs = (
            [onnx.ValueInfoProto() if v is None else ir.serde.serialize_value(v) for v in values]
            for values in (node.inputs, node.outputs)
        )
        proto = ir.serde.serialize_node(node)
        graph = onnx.helper.make_graph([proto], "node", [v for v in inputs if v.name], [v for v in outputs if v.name])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        try:
            schema: Any = onnx.defs.get_schema(node.op_type, opset)
            if schema.has_context_dependent_function and "" in proto.input:
                # The inliner fails here, because it requires the type of an omitted input.
                types = [v.type.SerializeToString() for v in inputs]
                body = schema.get_context_dependent_function_with_opset_version(opset, proto.SerializeToString(), types)
                model.functions.append(onnx.FunctionProto.FromString(body))
                model = onnx.inliner.inline_local_functions(model)
            else:
                model = onnx.inliner.inline_selected_functions(
                    model, [("", node.op_type)], inline_schema_functions=True
                )
            model = onnx.shape_inference.infer_shapes(model)
        except Exception:  # onnx has no common exception class for failures of inference and inlining
            return []
        nodes = list(ir.serde.deserialize_model(model).graph)
        if any(n.op_type == node.op_type for n in nodes):
            return []
        # The runtime uses a definition only if none of its operators has a newer version in the model's opset than in
        # the definition's opset. A definition that depends on the node is written for every opset.
        written = max((v for v in schema.function_opset_versions if v <= opset), default=opset)
        since = [[onnx.defs.get_schema(n.op_type, v).since_version for v in (written, opset)] for n in nodes]
        return [] if any(a != b for a, b in since) else nodes

    def _accepts(self, kernel: Any, schema: Any, node: ir.Node, instead: dict[str, str]) -> bool:
        """Returns whether a kernel supports the types of a node's values, after the substitutions of `instead`."""
        for values, formal in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
            for i, value in enumerate(values):
                if value is None or value.type is None or not formal:
                    continue
                parameter = formal[min(i, len(formal) - 1)]
                for name in (parameter.typeStr, parameter.name):
                    allowed = kernel.type_constraints.get(name)
                    given = _type_name(value)
                    if allowed and given and instead.get(given, given) not in allowed:
                        return False
        return True


@functools.cache
def cpu_kernels() -> CpuKernels:
    """Returns the kernels of the installed runtime, read once in a process."""
    return CpuKernels()


def _fits(kernel: tuple[int, int], since: int) -> bool:
    """Returns whether a kernel's range of versions contains a version; an open range contains only its first."""
    first, last = kernel
    return first == since or (first < since <= last and last != _NO_LAST_VERSION)


def _type_name(value: ir.Value) -> str:
    if not isinstance(value.type, ir.TensorType):
        return ""
    return f"tensor({value.type.dtype.name.lower()})"
