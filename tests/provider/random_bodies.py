"""Random graphs with If, Loop and Scan: nested, with captured values, zero iterations, and growing sizes.

Every value is a float matrix with any number of rows and WIDTH columns. Binary operators combine a value with the mean
of another value's rows, so all sizes fit. `python -m tests.provider.random_bodies COUNT FIRST KERNELS` runs COUNT
graphs on the provider, with KERNELS compiled for the CPU, and prints the number of its nodes; scripts/sweep runs it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.provider.worker import PROVIDER, Array, new_session

WIDTH, OPSET, DEEPEST = 3, 17, 2
UNARY = ("Tanh", "Relu", "Neg", "Sigmoid", "Sin", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max")


class Scope:
    """The nodes of one graph, and the values visible in it: local and outer ones."""

    def __init__(self, rng: np.random.Generator, outer: Scope | None, counter: list[int]) -> None:
        self.rng = rng
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.values: list[str] = [] if outer is None else list(outer.values)
        self.nodes: list[Any] = []
        self.counter = counter

    def name(self) -> str:
        self.counter[0] += 1
        return f"v{self.counter[0]}"

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.node(op, *inputs, **attributes)[0]

    def constant(self, array: Array) -> str:
        return self.one("Constant", value=numpy_helper.from_array(array))

    def any(self) -> str:
        return str(self.rng.choice(self.values))

    def mean(self, x: str) -> str:
        return self.one("ReduceMean", x, axes=[0], keepdims=1)

    def condition(self) -> str:
        """Returns a condition: the graph's input, or computed from a value."""
        if self.rng.random() < 0.3:
            return "flag"
        total = self.one("ReduceSum", self.any(), keepdims=0)
        return self.one("Greater", total, self.constant(np.float32(self.rng.normal())))

    def grow(self) -> None:
        """Adds a node or a control flow operator, and its outputs to the values."""
        kinds: list[Callable[[], list[str]]] = [self.unary, self.binary, self.product, self.rows]
        if self.depth < DEEPEST:
            kinds += [self.branch, self.loop, self.scan]
        self.values += kinds[self.rng.integers(len(kinds))]()

    def unary(self) -> list[str]:
        return self.node(str(self.rng.choice(UNARY)), self.any())

    def binary(self) -> list[str]:
        return self.node(str(self.rng.choice(BINARY)), self.any(), self.mean(self.any()))

    def product(self) -> list[str]:
        weights = self.rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)
        return [self.one("Tanh", self.one("MatMul", self.any(), self.constant(weights)))]

    def rows(self) -> list[str]:
        """Adds a node that changes the number of rows."""
        if self.rng.random() < 0.5:
            return [self.one("Concat", self.any(), self.mean(self.any()), axis=0)]
        ends = [self.constant(np.array([n], np.int64)) for n in (0, int(self.rng.integers(1, 4)), 0)]
        return [self.one("Slice", self.any(), *ends)]

    def body(self, inputs: list[Any], own: list[str], finish: Callable[[Scope], list[tuple[str, int]]]) -> Any:
        """Returns a subgraph; `own` are the inputs that count as values."""
        inner = Scope(self.rng, self, self.counter)
        inner.values += own
        for _ in range(self.rng.integers(1, 4)):
            inner.grow()
        dims: dict[int, list[int | None]] = {TensorProto.FLOAT: [None, WIDTH], TensorProto.BOOL: []}
        outputs = [helper.make_tensor_value_info(n, t, dims[t]) for n, t in finish(inner)]
        return helper.make_graph(inner.nodes, self.name(), inputs, outputs)

    def fresh(self) -> str:
        """Returns a value that this graph computes, since a body may not return values of the outer graph."""
        return self.one("Identity", self.any())

    def branch(self) -> list[str]:
        count = int(self.rng.integers(1, 3))

        def finish(inner: Scope) -> list[tuple[str, int]]:
            return [(inner.fresh(), TensorProto.FLOAT) for _ in range(count)]

        condition = self.condition()
        bodies = {kind: self.body([], [], finish) for kind in ("then_branch", "else_branch")}
        return self.node("If", condition, outputs=count, **bodies)

    def loop(self) -> list[str]:
        states, scans = int(self.rng.integers(1, 3)), int(self.rng.integers(0, 2))
        trip, going, *carried = (self.name() for _ in range(2 + states))
        inputs = [helper.make_tensor_value_info(trip, TensorProto.INT64, [])]
        inputs += [helper.make_tensor_value_info(going, TensorProto.BOOL, [])]
        inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, WIDTH]) for n in carried]
        by = int(self.rng.integers(3))

        def finish(inner: Scope) -> list[tuple[str, int]]:
            on = inner.one("Identity", going) if by == 0 else inner.condition()
            if by == 2:
                on = inner.one("Less", trip, inner.constant(np.int64(self.rng.integers(4))))
            results: list[tuple[str, int]] = [(inner.one("Identity", on), TensorProto.BOOL)]
            results += [(inner.fresh(), TensorProto.FLOAT) for _ in range(states)]
            return results + [(inner.mean(inner.any()), TensorProto.FLOAT) for _ in range(scans)]

        trips = "count" if self.rng.random() < 0.5 else self.constant(np.int64(self.rng.integers(0, 4)))
        first = "" if self.rng.random() < 0.5 else self.condition()
        given = [self.any() for _ in range(states)]
        outputs = self.node(
            "Loop", trips, first, *given, outputs=states + scans, body=self.body(inputs, carried, finish)
        )
        # One more row, since an empty matrix has no mean.
        flat = [self.one("Reshape", y, self.constant(np.array([-1, WIDTH]))) for y in outputs[states:]]
        return outputs[:states] + [self.one("Concat", y, self.mean(self.any()), axis=0) for y in flat]

    def scan(self) -> list[str]:
        state, element = self.name(), self.name()
        inputs = [helper.make_tensor_value_info(state, TensorProto.FLOAT, [1, WIDTH])]
        inputs += [helper.make_tensor_value_info(element, TensorProto.FLOAT, [WIDTH])]

        def finish(inner: Scope) -> list[tuple[str, int]]:
            step = inner.one("Tanh", inner.one("Add", state, element))
            out = inner.one("Add", inner.mean(inner.any()), element)
            return [(inner.one("Mul", step, inner.mean(inner.any())), TensorProto.FLOAT), (out, TensorProto.FLOAT)]

        start, over = self.mean(self.any()), self.any()
        turned = [int(self.rng.integers(2))]
        body = self.body(inputs, [state], finish)
        last, all_steps = self.node(
            "Scan", start, over, outputs=2, body=body, num_scan_inputs=1, scan_input_directions=turned
        )
        return [last, self.one("Reshape", all_steps, self.constant(np.array([-1, WIDTH])))]


def random_model(seed: int) -> tuple[bytes, dict[str, Array]]:
    """Returns a random model with at least one If, Loop or Scan, and its inputs."""
    rng = np.random.default_rng(seed)
    scope = Scope(rng, None, [0])
    scope.values = ["x", "z"]
    for _ in range(rng.integers(2, 6)):
        scope.grow()
    while not any(n.op_type in ("If", "Loop", "Scan") for n in scope.nodes):
        scope.values += (scope.branch, scope.loop, scope.scan)[rng.integers(3)]()
    results = scope.values[2:]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n}_rows", WIDTH]) for n in ("x", "z")]
    inputs += [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    inputs += [helper.make_tensor_value_info("count", TensorProto.INT64, [])]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results]
    graph = helper.make_graph(scope.nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    feeds: dict[str, Array] = {n: rng.normal(size=(rng.integers(1, 6), WIDTH)).astype(np.float32) for n in ("x", "z")}
    feeds |= {"flag": np.asarray(rng.random() < 0.5), "count": np.asarray(rng.integers(0, 4), np.int64)}
    return model.SerializeToString(), feeds


def compare(seed: int) -> Counter[str]:
    """Compares two runs with the CPU's results; returns the operators on the provider.

    Raises:
        AssertionError: the results differ, or the provider fails where the CPU does not.
    """
    model, feeds = random_model(seed)
    try:
        wanted = new_session(model, devices=0).run(None, feeds)
    except Exception:  # ONNX Runtime refuses the model, for example a Loop with a condition of an unexpected type
        return Counter()
    session = new_session(model, {"min_nodes": "1"}, assignment=True)
    for _ in range(2):
        for got, expected in zip(session.run(None, feeds), wanted, strict=True):
            assert got.shape == expected.shape, f"seed {seed}"
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4, err_msg=f"seed {seed}")
    parts = session.get_provider_graph_assignment_info()
    return Counter(n.op_type for part in parts if part.ep_name == PROVIDER for n in part.get_nodes())


def main() -> None:
    count, first = map(int, sys.argv[1:3])
    os.environ["GRAPHOPT_HOST_KERNELS"] = sys.argv[3]
    import onnxruntime as ort

    from graphopt.runtime.discovery import library_path

    ort.register_execution_provider_library("graphopt", str(library_path()))
    given: Counter[str] = Counter()
    taken = 0
    for seed in range(first, first + count):
        print(f"seed {seed}", flush=True)
        found = compare(seed)
        given += found
        taken += bool(found)
    print(f"{count} models, {taken} with nodes on the provider:", dict(given.most_common()))


if __name__ == "__main__":
    main()
