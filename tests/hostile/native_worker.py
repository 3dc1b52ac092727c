"""Nodes of our operators that are nearly right, in real sessions: an ONNX Runtime error or a result, never a crash.

Run as `python -m tests.hostile.native_worker EXAMPLES SEED`; the exit status tells whether a session took the process
along, and the last line printed is the example that was under way.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime as ort
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphopt.ops import DOMAIN, OPS
from graphopt.ops.cases import Case, cases_of
from graphopt.ops.schema import Array
from graphopt.runtime import library_path

OPSET = 17
Example = tuple[str, list[tuple[int, ...]], list[int], dict[str, Any], bool, set[int]]
TYPES: dict[int, type[np.generic]] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.DOUBLE: np.float64,
    TensorProto.INT64: np.int64,
    TensorProto.BOOL: np.bool_,
    TensorProto.STRING: np.str_,
}
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
ALL_CASES = {name: cases_of(spec) for name, spec in OPS.items()}
LARGEST = 1 << 22


@st.composite
def nodes(draw: st.DrawFn) -> Example:
    """An operator, shapes and types of its inputs, attributes, whether shapes are declared, and constant inputs."""
    name = draw(st.sampled_from(sorted(ALL_CASES)))
    case: Case = draw(st.sampled_from(ALL_CASES[name]))
    shapes = [list(x.shape) for x in case.inputs]
    types: list[int] = [TensorProto.BOOL if x.dtype == np.bool_ else TensorProto.FLOAT for x in case.inputs]
    attributes = dict(case.attributes)
    for _ in range(draw(st.integers(0, 3))):
        i = draw(st.integers(0, len(shapes) - 1)) if shapes else 0
        kind = draw(st.sampled_from("dim rank drop add type attribute remove".split()))
        if kind == "dim" and shapes and shapes[i]:
            shapes[i][draw(st.integers(0, len(shapes[i]) - 1))] = draw(DIMS)
        elif kind == "rank" and shapes:
            shapes[i] = draw(st.lists(DIMS, max_size=10))
        elif kind == "drop" and shapes:
            del shapes[i], types[i]
        elif kind == "add":
            shapes.append(draw(st.lists(DIMS, max_size=4)))
            types.append(TensorProto.FLOAT)
        elif kind == "type" and shapes:
            types[i] = draw(st.sampled_from(sorted(TYPES)))
        elif kind == "attribute" and attributes:
            attributes[draw(st.sampled_from(sorted(attributes)))] = draw(VALUES)
        elif kind == "remove" and attributes:
            del attributes[draw(st.sampled_from(sorted(attributes)))]
    constants = draw(st.sets(st.integers(0, max(0, len(shapes) - 1)), max_size=2))
    return name, [tuple(s) for s in shapes], types, attributes, draw(st.booleans()), constants


def run(example: Example) -> bool:
    """Builds the session and runs it; False where the runtime refuses either."""
    name, shapes, types, attributes, declared, constants = example
    if any(np.prod(s, dtype=np.float64) > LARGEST for s in shapes):
        return False
    rng = np.random.default_rng(0)
    arrays: list[Array] = [np.asarray(rng.normal(size=s)).astype(TYPES[t]) for s, t in zip(shapes, types)]
    inputs = [f"x{i}" for i in range(len(shapes))]
    outputs = [f"y{i}" for i in range(len(OPS[name].outputs))]
    infos = [
        helper.make_tensor_value_info(n, t, s if declared else [f"{n}_{d}" for d in range(len(s))])
        for i, (n, t, s) in enumerate(zip(inputs, types, shapes))
        if i not in constants
    ]
    weights = [
        helper.make_tensor(n, t, a.shape, a.astype(bytes).ravel() if t == TensorProto.STRING else a.ravel())
        for i, (n, t, a) in enumerate(zip(inputs, types, arrays))
        if i in constants
    ]
    results = [helper.make_tensor_value_info(n, types[0] if types else TensorProto.FLOAT, None) for n in outputs]
    try:
        node = helper.make_node(name, inputs, outputs, "the_node", domain=DOMAIN, **attributes)
    except (ValueError, TypeError):  # an empty list has no type
        return False
    graph = helper.make_graph([node], "g", infos, results, weights)
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(str(library_path()))
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, {f"x{i}": a for i, a in enumerate(arrays) if i not in constants})
    except ERRORS:
        return False
    return True


def main() -> None:
    examples, first = map(int, sys.argv[1:])
    ran = [0, 0]

    @seed(first)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(nodes())
    def check(example: Example) -> None:
        print(example, flush=True)
        ran[run(example)] += 1

    check()
    print("done", *ran)


if __name__ == "__main__":
    main()
