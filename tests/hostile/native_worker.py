"""Runs damaged nodes in real sessions, which must give an ONNX Runtime error or a result, never a crash.

The nodes are of our operators on the CPU. With a library of GPU kernels compiled for the CPU, our operators and the
standard operators that the provider supports run on the provider. Run as `python -m tests.hostile.native_worker
EXAMPLES SEED [KERNELS]`; KERNELS is that library, or `gpu` for the GPU of this machine. The exit status shows whether a
session ended the process; the last printed line is then the example that was running.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.numpy_helper import to_array

from graphopt.ops import DOMAIN, OPS
from graphopt.ops.cases import cases_of
from graphopt.ops.schema import Array
from tests.conformance.node_cases import node_cases
from tests.hostile.limits import bound_memory
from tests.hostile.session import open_session, register_provider

OPSET = 21
TYPES: dict[int, type[np.generic]] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.DOUBLE: np.float64,
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
    TensorProto.INT16: np.int16,
    TensorProto.INT8: np.int8,
    TensorProto.UINT32: np.uint32,
    TensorProto.UINT16: np.uint16,
    TensorProto.UINT8: np.uint8,
    TensorProto.BOOL: np.bool_,
    TensorProto.STRING: np.str_,
}
# A node with a huge output, for example an Expand to 2^40, must get an error before it uses up the machine's memory.
MEMORY = 8 << 30
DIMS = st.sampled_from((0, 1, 2, 3, 4, 5, 8, 17))
NUMBERS = st.sampled_from((-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 64, 2**31 - 1, 2**40, 2**63 - 1))
VALUES = st.one_of(
    NUMBERS,
    st.lists(NUMBERS, max_size=5),
    st.permutations(range(4)).map(list),
    st.sampled_from((float("nan"), float("inf"), -1.0, 0.0, 1e30)),
    st.text(max_size=3),
)
ERRORS = tuple(
    getattr(ort.capi.onnxruntime_pybind11_state, name)
    for name in ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException")
)
LARGEST = 1 << 22


@dataclass(frozen=True)
class Input:
    """A tensor: the given `values`, as for axes and shapes, or random ones if `values` is None."""

    type: int
    shape: tuple[int, ...]
    values: tuple[int, ...] | None = None
    constant: bool = False

    @property
    def array(self) -> Array:
        if self.values is not None:
            return np.array(self.values, np.int64).astype(TYPES[self.type]).reshape(self.shape)
        if TYPES[self.type] in (np.int8, np.uint8):  # quantized values; wider integers are indices
            return np.random.default_rng(0).integers(0, 256, self.shape).astype(TYPES[self.type])
        return np.asarray(np.random.default_rng(0).normal(size=self.shape)).astype(TYPES[self.type])


@dataclass(frozen=True)
class Example:
    """A model of one node."""

    op_type: str
    domain: str
    inputs: tuple[Input | None, ...]
    outputs: int
    attributes: dict[str, Any] = field(default_factory=dict)
    declared: bool = True
    left_out: frozenset[int] = frozenset()  # indices of omitted outputs


HEALTHY = Example("Relu", "", (Input(TensorProto.FLOAT, (2, 3)),), 1, declared=False)


def input_of(array: Array) -> Input:
    values = tuple(map(int, array.ravel())) if array.dtype.kind in "iu" and array.size <= 64 else None
    return Input(int(helper.np_dtype_to_tensor_dtype(array.dtype)), array.shape, values)


def crashes_the_runtime(example: Example) -> bool:
    """Whether ONNX Runtime crashes on the node without us.

    Versions 1.31.1 and 1.32.0 do, and 1.22.2 except for Split, DFT and a non-ASCII Einsum.
    """
    if example.op_type in ("Einsum", "Max", "Mean", "Min", "Sum"):
        return None in example.inputs
    if example.op_type == "DFT":
        if example.attributes.get("inverse") and example.attributes.get("onesided"):
            return None in example.inputs
        return example.inputs[2:] == (None,)  # ONNX Runtime's shape inference reads the omitted axis
    equation = example.attributes.get("equation")
    if isinstance(equation, str) and not equation.isascii():  # ONNX Runtime's Einsum does not terminate
        return True
    if example.op_type == "OneHot":  # ONNX Runtime reads the first element of an empty depth
        depth = example.inputs[1] if len(example.inputs) > 1 else None
        return depth is not None and 0 in depth.shape
    if example.op_type == "GatherND":  # ONNX Runtime's shape inference reads the axis before the first one
        axes = example.attributes.get("batch_dims", 0)
        return isinstance(axes, int) and axes < 0
    return example.op_type == "Split" and example.attributes.get("num_outputs", example.outputs) != example.outputs


def our_examples() -> list[list[Example]]:
    """Returns valid nodes of our domain, one list for each operator."""
    found = []
    for name, spec in OPS.items():
        cases = [case.cast("float32") for case in cases_of(spec)]
        found.append(
            [
                Example(name, DOMAIN, tuple(map(input_of, c.inputs)), len(spec.outputs), dict(c.attributes))
                for c in cases
            ]
        )
    return found


def standard_examples(operators: frozenset[str]) -> list[list[Example]]:
    """Returns ONNX's node tests of these operators, one list for each operator."""
    found: dict[str, list[Example]] = {}
    for case in node_cases().values():
        assert case.model is not None and case.data_sets is not None
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in operators or nodes[0].domain:
            continue
        data: list[Any] = [to_array(d) if isinstance(d, TensorProto) else d for d in case.data_sets[0][0]]
        data = [np.asarray(d) if isinstance(d, np.generic) else d for d in data]
        arrays = dict(zip([i.name for i in case.model.graph.input], data, strict=True))
        if not all(isinstance(a, np.ndarray) and a.dtype.type in TYPES.values() for a in arrays.values()):
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in nodes[0].attribute}
        if any(isinstance(v, onnx.GraphProto) for v in attributes.values()):
            continue
        inputs = tuple(input_of(arrays[name]) if name else None for name in nodes[0].input)
        example = Example(nodes[0].op_type, "", inputs, len(nodes[0].output), attributes)
        found.setdefault(example.op_type, []).append(example)
    return list(found.values())


@st.composite
def damaged(draw: st.DrawFn, domains: list[list[list[Example]]]) -> Example:
    """Draws a valid node of one of the domains and changes up to three things of it."""
    valid = draw(st.sampled_from(draw(st.sampled_from(draw(st.sampled_from(domains))))))
    inputs = list(valid.inputs)
    attributes = dict(valid.attributes)
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from("dim rank drop absent add type values attribute remove".split()))
        i = draw(st.integers(0, len(inputs) - 1)) if inputs else 0
        given_input = inputs[i] if inputs else None
        if kind == "add":
            inputs.append(Input(TensorProto.FLOAT, tuple(draw(st.lists(DIMS, max_size=4)))))
        elif kind == "attribute" and attributes:
            attributes[draw(st.sampled_from(sorted(attributes)))] = draw(VALUES)
        elif kind == "remove" and attributes:
            del attributes[draw(st.sampled_from(sorted(attributes)))]
        elif given_input is None:
            continue
        elif kind == "drop":
            del inputs[i]
        elif kind == "absent":
            inputs[i] = None
        elif kind == "dim" and given_input.shape:
            shape = list(given_input.shape)
            shape[draw(st.integers(0, len(shape) - 1))] = draw(DIMS)
            inputs[i] = replace(given_input, shape=tuple(shape), values=None)
        elif kind == "rank":
            inputs[i] = replace(given_input, shape=tuple(draw(st.lists(DIMS, max_size=10))), values=None)
        elif kind == "type":
            inputs[i] = replace(given_input, type=draw(st.sampled_from(sorted(TYPES))), values=None)
        elif kind == "values" and given_input.values:
            values = list(given_input.values)
            values[draw(st.integers(0, len(values) - 1))] = draw(st.one_of(st.integers(-5, 5), NUMBERS))
            inputs[i] = replace(given_input, type=TensorProto.INT64, values=tuple(values))
    constants = draw(st.sets(st.integers(0, max(0, len(inputs) - 1)), max_size=2))
    placed = [None if x is None else replace(x, constant=i in constants) for i, x in enumerate(inputs)]
    return replace(valid, inputs=tuple(placed), attributes=attributes, declared=draw(st.booleans()))


def model_of(example: Example) -> tuple[onnx.ModelProto, dict[str, Array]] | None:
    """Returns a model of this single node and its inputs; None if onnx cannot build it or it is too large."""
    inputs = {f"x{i}": x for i, x in enumerate(example.inputs) if x is not None}
    if any(np.prod(x.shape, dtype=np.float64) > LARGEST for x in inputs.values()):
        return None
    arrays = {name: x.array for name, x in inputs.items()}
    infos, weights = [], []
    for name, x in inputs.items():
        if x.constant:
            numbers = arrays[name].astype(bytes) if x.type == TensorProto.STRING else arrays[name]
            weights.append(helper.make_tensor(name, x.type, x.shape, numbers.ravel()))
        else:
            dims = x.shape if example.declared else [f"{name}_{d}" for d in range(len(x.shape))]
            infos.append(helper.make_tensor_value_info(name, x.type, dims))
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(example.inputs)]
    outputs = ["" if i in example.left_out else f"y{i}" for i in range(example.outputs)]
    kinds = [x.type for x in inputs.values()] or [TensorProto.FLOAT]
    if example.domain == DOMAIN:
        results = [helper.make_tensor_value_info(n, kinds[0], None) for n in outputs]
    else:
        results = [onnx.ValueInfoProto(name=n) for n in outputs if n]  # no declared type: the operator decides it
    try:
        node = helper.make_node(
            example.op_type, names, outputs, "the_node", domain=example.domain, **example.attributes
        )
    except (ValueError, TypeError):  # onnx cannot infer the type of an empty list
        return None
    graph = helper.make_graph([node], "g", infos, results, weights)
    imports = [helper.make_opsetid("", OPSET)] + [helper.make_opsetid(example.domain, 1)] * bool(example.domain)
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model, {name: arrays[name] for name, x in inputs.items() if not x.constant}


def run(example: Example, *, provider: bool) -> bool:
    """Builds and runs a session; returns False if ONNX Runtime refuses either."""
    made = None if crashes_the_runtime(example) else model_of(example)
    if made is None:
        return False
    model, feeds = made
    # The provider does not use the session's threads.
    threads = 1 if provider else 2
    ours = bool(example.domain)
    try:
        session = open_session(model, library=ours, provider=provider, threads=threads, optimized=not provider)
        session.run(None, feeds)
    except (*ERRORS, RuntimeError):  # RuntimeError is raised for outputs that have no numpy type
        return False
    return True


def taken_by_the_provider() -> frozenset[str]:
    """Returns the standard operators that docs/provider_reference.md lists."""
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "provider_reference.md")
    with open(page, encoding="utf-8") as file:
        section = file.read().split("## Supported operators", 1)[1].split("\n## ", 1)[0]
    words = re.findall(r"\w+", section)
    return frozenset(word for word in words if onnx.defs.has(word))


def main() -> None:
    examples, first = map(int, sys.argv[1:3])
    kernels = sys.argv[3] if len(sys.argv) > 3 else ""
    domains = [our_examples()]
    if kernels:
        if kernels != "gpu":
            os.environ["GRAPHOPT_HOST_KERNELS"] = kernels
        register_provider()
        domains.append(standard_examples(taken_by_the_provider()))
        print(f"{len(domains[1])} standard operators", flush=True)
    if kernels != "gpu":  # a GPU driver reserves more address space than that
        bound_memory(MEMORY)
    ran = [0, 0]

    @seed(first)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(domains))
    def check(example: Example) -> None:
        print(" ".join(str(example).split()), flush=True)  # repr of a tensor attribute has several lines
        ran[run(example, provider=bool(kernels))] += 1
        # An out-of-bounds read on a GPU does not crash; it makes every later run fail. A valid node detects that.
        if kernels == "gpu" and sum(ran) % 50 == 0:
            assert run(HEALTHY, provider=True), "the device no longer runs a valid node"

    check()
    print("done", *ran)


if __name__ == "__main__":
    main()
