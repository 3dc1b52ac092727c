"""Shape arithmetic: regions compute it with their plans, without CPU nodes and copies.

Each operator, and then random chains of operators, are compared with ONNX Runtime's CPU kernels at several sizes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.hip.case import signed
from tests.provider.test_regions import runs
from tests.provider.worker import PROVIDER, Array, new_session
from tests.rewriting import model_from_text

SIZES = ((2, 5), (7, 1), (2, 5), (4, 3))

# Nodes that compute v from s, the shape [N, M, 3] of x, and from n, one element of s; the device reads v.
OPERATORS = {
    "Gather": "v = Gather (s, first)",
    "Gather from behind": "v = Gather <axis = 0> (s, behind)",
    "Gather rows": "q = Reshape (s, column)  v = Gather <axis = 0> (q, behind)",
    "Gather columns": "q = Unsqueeze (s, axis)  v = Gather <axis = 1> (q, behind)",
    "Concat": "v = Concat <axis = 0> (s, first, s)",
    "Concat columns": "q = Reshape (s, column)  v = Concat <axis = -1> (q, q)",
    "Unsqueeze": "v = Unsqueeze (s, axes)",
    "Squeeze": "q = Unsqueeze (s, axes)  v = Squeeze (q, axis)",
    "Squeeze all": "q = Unsqueeze (s, axes)  v = Squeeze (q)",
    "Slice": "v = Slice (s, first, behind2)",
    "Slice backwards": "v = Slice (s, last, least, axis, minus)",
    "Slice by twos": "q = Concat <axis = 0> (s, s)  v = Slice (q, one, most, axis, two)",
    "Reshape": "v = Reshape (s, row)",
    "Flatten": "v = Flatten <axis = 0> (s)",
    "Identity": "v = Identity (s)",
    "Transpose": "q = Reshape (s, column)  v = Transpose (q)",
    "Transpose by a permutation": "q = Unsqueeze (s, axes)  v = Transpose <perm = [1, 2, 0]> (q)",
    "Tile": "q = Reshape (s, row)  v = Tile (q, twice)",
    "Expand": "v = Expand (n, twice)",
    "Add": "v = Add (s, n)",
    "Sub": "v = Sub (n, s)",
    "Mul": "q = Reshape (s, column)  v = Mul (s, q)",
    "Div": "d = Sub (s, four)  e = Add (d, half)  v = Div (seven, e)",
    "Div towards 0": "d = Sub (s, four)  v = Div (d, two)",
    "Mod": "d = Sub (s, four)  v = Mod (d, two3)",
    "Mod of a negative one": "d = Sub (s, four)  v = Mod (d, minus3)",
    "Min": "v = Min (s, n, four)",
    "Max": "v = Max (s, n, four)",
    "Neg": "v = Neg (s)",
    "Abs": "d = Sub (s, four)  v = Abs (d)",
    "Equal": "v = Equal (s, n)",
    "Less": "v = Less (s, four)",
    "LessOrEqual": "v = LessOrEqual (s, four)",
    "Greater": "v = Greater (s, four)",
    "GreaterOrEqual": "v = GreaterOrEqual (s, four)",
    "And, Or": "a = Less (s, four)  b = Equal (s, n)  c = And (a, b)  d = Or (a, b)  v = Or (c, d)",
    "Xor, Not": "a = Less (s, four)  b = Equal (s, n)  c = Xor (a, b)  v = Not (c)",
    "Equal of bools": "a = Less (s, four)  b = Equal (s, n)  v = Equal (a, b)",
    "Where": "c = Equal (s, n)  v = Where (c, minus, s)",
    "Cast to int32": "v = Cast <to = 6> (s)",
    "Cast to bool": "d = Sub (s, n)  v = Cast <to = 9> (d)",
    "Cast of floats": "f = Cast <to = 1> (n)  h = Mul (f, half_f)  k = Neg (h)  v = Cast <to = 7> (k)",
    "Cast of bools": "b = Equal (s, n)  v = Cast <to = 6> (b)",
    "Cast beyond int64": "f = Cast <to = 1> (n)  h = Mul (f, huge_f)  v = Cast <to = 7> (h)",
    "Cast of no number": "f = Cast <to = 1> (n)  h = Sub (f, f)  k = Div (h, h)  v = Cast <to = 6> (k)",
    "one float": "f = Cast <to = 1> (n)  g = Sqrt (f)  h = Mul (g, half_f)  k = Floor (h)  v = Sub (h, k)",
    "Ceil": "f = Cast <to = 1> (n)  h = Mul (f, half_f)  v = Ceil (h)",
    "Round": "f = Cast <to = 1> (n)  h = Mul (f, half_f)  v = Round (h)",
    "Mod of floats": "f = Cast <to = 1> (n)  h = Neg (f)  v = Mod <fmod = 1> (h, half_f)",
    "Div of floats": "f = Cast <to = 1> (n)  v = Div (half_f, f)",
    "ReduceProd": "v = ReduceProd <keepdims = 0> (s)",
    "ReduceProd over an axis": "q = Reshape (s, column)  p = Concat <axis = 1> (q, q)  v = ReduceProd <axes = [1]> (p)",
    "ReduceSum": "q = Reshape (s, column)  p = Concat <axis = 1> (q, q)  v = ReduceSum <keepdims = 0> (p, axis)",
    "ReduceMin": "v = ReduceMin <axes = [0]> (s)",
    "ReduceMax": "v = ReduceMax <keepdims = 0> (s)",
    "of nothing": "q = Slice (s, last, first)  v = ReduceProd (q)",
    "Size": "n2 = Size (x)  v = Div (n2, n)",
    "a part of a shape": "p = Shape <start = 1> (x)  v = Mul (p, two)",
    "int32": "i = Cast <to = 6> (s)  j = Mul (i, i)  v = Sub (j, i)",
}

CONSTANTS: Mapping[str, Array] = {
    "first": np.array([0]),
    "behind": np.array([-1, 0]),
    "behind2": np.array([-1]),
    "column": np.array([-1, 1]),
    "row": np.array([1, -1]),
    "axis": np.array([0]),
    "axes": np.array([0, 2]),
    "last": np.array([-1]),
    "least": np.array([-(2**63)]),
    "most": np.array([2**63 - 1]),
    "minus": np.array([-1]),
    "one": np.array([1]),
    "two": np.array([2]),
    "twice": np.array([2, 3]),
    "four": np.array(4),
    "half": np.array([-9, 100, 9]),
    "seven": np.array([-7, 7, 100]),
    "two3": np.array([2, 3, 5]),
    "minus3": np.array([-2, -3, -5]),
    "half_f": np.array(0.5, np.float32),
    "huge_f": np.array(1e19, np.float32),
    "zero_f": np.array(0, np.float32),
}


def model_with(nodes: str) -> bytes:
    """Returns a model that reads v on the device, by adding a zero that is computed there."""
    text = f"""g (float[N, M, 3] x) => (float[] y) {{
        s = Shape (x)  n = Gather (s, one0)  {nodes}
        r = Relu (x)  m = ReduceMax <keepdims = 0> (r)  zero = Mul (m, zero_f)
        w = Cast <to = 1> (v)  y = Add (w, zero) }}"""
    constants = {**CONSTANTS, "one0": np.array(1)}
    constants = {name: value for name, value in constants.items() if name in text.replace("(", " ").replace(")", " ")}
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    serialized: bytes = model.SerializeToString()
    return serialized


def on_the_cpu(model: bytes, feeds: list[Mapping[str, Array]]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [session.run(None, dict(given))[0] for given in feeds]


def left_on_the_cpu(model: bytes) -> Counter[str]:
    session = new_session(model, assignment=True)
    parts = session.get_provider_graph_assignment_info()
    return Counter(n.op_type for part in parts if part.ep_name != PROVIDER for n in part.get_nodes())


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, worker: ProcessPoolExecutor) -> None:
    model = model_with(OPERATORS[name])
    rng = np.random.default_rng(0)
    feeds: list[Mapping[str, Array]] = [{"x": signed(rng, *size, 3)} for size in SIZES]
    assert not worker.submit(left_on_the_cpu, model).result()
    outputs, events = worker.submit(runs, model, feeds, {}).result()
    for (got,), wanted in zip(outputs, on_the_cpu(model, feeds), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert events["compiled"] == 1 and events["planned"] == len({*SIZES})


def test_an_index_that_is_out_of_range_is_an_error_of_its_node(worker: ProcessPoolExecutor) -> None:
    model = model_with("v = Gather (s, four)")
    with pytest.raises(Exception, match=r"Gather.*the index 4 is out of range of 3"):
        worker.submit(runs, model, [{"x": np.zeros((2, 2, 3), np.float32)}], {}).result()


DRAWN = ("Add", "Sub", "Mul", "Min", "Max", "Mod", "Concat", "Slice", "Gather", "Where", "ReduceProd")


def chain(rng: np.random.Generator) -> bytes:
    """Draws a chain of operators on vectors of at least one element."""
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    names = ["v0"]
    for i in range(1, int(rng.integers(4, 14))):
        a, b = (names[int(rng.integers(len(names)))] for _ in range(2))
        one = helper.make_node("ReduceMax", [b], [f"r{i}"], keepdims=1)
        op = str(
            rng.choice(["Add", "Sub", "Mul", "Min", "Max", "Mod", "Concat", "Slice", "Gather", "Where", "ReduceProd"])
        )
        y = f"v{i}"
        if op == "Concat":
            nodes.append(helper.make_node(op, [a, b], [y], axis=0))
        elif op == "Slice":
            nodes.append(helper.make_node(op, [a, "c0", "c1"], [y]))
        elif op == "Gather":
            nodes.append(helper.make_node(op, [a, "cm"], [y]))
        elif op == "ReduceProd":
            nodes.append(helper.make_node(op, [a], [y], keepdims=1))
        elif op == "Where":
            nodes += [one, helper.make_node("Less", [a, f"r{i}"], [f"l{i}"])]
            nodes.append(helper.make_node(op, [f"l{i}", a, f"r{i}"], [y]))
        elif op == "Mod":
            nodes += [
                one,
                helper.make_node("Abs", [f"r{i}"], [f"b{i}"]),
                helper.make_node("Add", [f"b{i}", "c1"], [f"p{i}"]),
            ]
            nodes.append(helper.make_node(op, [a, f"p{i}"], [y]))
        else:
            nodes += [one, helper.make_node(op, [a, f"r{i}"], [y])]
        names.append(y)
    # One result is read as data, and another one as the shape of an output.
    nodes += [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ReduceMax", ["r"], ["m"], keepdims=0),
        helper.make_node("Cast", [names[-1]], ["w"], to=TensorProto.INT32),
        helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["m", "z"], ["zero"]),
        helper.make_node("Add", ["f", "zero"], ["g"]),
        helper.make_node("Abs", [names[int(rng.integers(len(names)))]], ["d"]),
        helper.make_node("Mod", ["d", "c3"], ["e"]),
        helper.make_node("ReduceMax", ["e"], ["u"], keepdims=1),
        helper.make_node("Max", ["u", "c1"], ["t"]),
        helper.make_node("Concat", ["t", "c1", "cm1"], ["shape"], axis=0),
        helper.make_node("Unsqueeze", ["g", "c0"], ["h"]),
        helper.make_node("Unsqueeze", ["h", "c0"], ["k"]),
        helper.make_node("Concat", ["t", "c1", "c1"], ["wide"], axis=0),
        helper.make_node("Expand", ["k", "wide"], ["j"]),
        helper.make_node("Reshape", ["j", "shape"], ["y"]),
    ]
    constants = {"c0": [0], "c1": [1], "c3": [3], "cm": [-1], "cm1": [-1]}
    initializers = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    initializers.append(numpy_helper.from_array(np.array(0, np.float32), "z"))
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "M", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [i for i in initializers if i.name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = model.SerializeToString()
    return serialized


@pytest.mark.parametrize("seed", range(int(os.environ.get("GRAPHOPT_TEST_SEEDS", "20"))))
def test_chains(seed: int, worker: ProcessPoolExecutor) -> None:
    rng = np.random.default_rng(seed)
    model = chain(rng)
    feeds: list[Mapping[str, Array]] = [{"x": signed(rng, *size, 3)} for size in SIZES]
    outputs, events = worker.submit(runs, model, feeds, {}).result()
    for (got,), wanted in zip(outputs, on_the_cpu(model, feeds), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert events["compiled"] == 1
    assert not worker.submit(left_on_the_cpu, model).result()


def test_sizes_with_other_readers_need_no_copy(worker: ProcessPoolExecutor) -> None:
    """A size that is a graph output, and one that a CPU node reads: ONNX Runtime gets them without a copy."""
    text = """g (float[N, M] x) => (int64[1] n, float[a, b] y) {
        r = Relu (x)  s = Shape (r)  n = Gather (s, first)  rest = Gather (s, second)
        to = Concat <axis = 0> (rest, n)  q = Reshape (r, to)  y = Neg (q) }"""
    model = model_from_text(text, {"first": np.array([0]), "second": np.array([1])}).SerializeToString()
    x = signed(np.random.default_rng(1), 3, 4)
    outputs, _ = worker.submit(runs, model, [{"x": x}] * 2, {}).result()
    for n, y in outputs:
        assert n.tolist() == [3]
        np.testing.assert_array_equal(y, -np.maximum(x, 0).reshape(4, 3))
