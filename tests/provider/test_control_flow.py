"""If, Loop and Scan: their bodies run on the provider, and only the condition is copied to the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import onnx
import onnx.parser
import pytest

from graphopt.placement import forecast
from tests.provider import random_bodies
from tests.provider.test_forecast import differences, placed
from tests.provider.worker import PROVIDER, Array, new_session, run

HEAD = '<ir_version: 9, opset_import: ["": 21]>\n'
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
YES, NO = np.array(True), np.array(False)

IF = """g (float[a, b] x, bool c) => (float[s, t] y) {
    r = Relu (x)
    z = If (c) <
        then_branch = t () => (float[s, t] p) {q = Add (r, r) p = Tanh (q)},
        else_branch = e () => (float[s, t] n) {n = Neg (r)}>
    y = Abs (z)
}"""
# A Loop with a scan output besides the loop-carried state.
LOOP = """g (float[3, 4] x, int64 n) => (float[3, 4] y, float[k, 3, 4] all) {
    yes = Constant <value = bool {1}> ()
    r = Relu (x)
    y, all = Loop (n, yes, r) <body = b (int64 i, bool go, float[3, 4] s) => (bool on, float[3, 4] u, float[3, 4] v) {
        q = Add (s, x) u = Tanh (q) v = Neg (q) on = Identity (go)
    }>
}"""
# The condition is computed on the device.
WHILE = """g (float[3, 4] x) => (float[3, 4] y) {
    most = Constant <value = int64 {50}> ()
    yes = Constant <value = bool {1}> ()
    limit = Constant <value = float {40.0}> ()
    y = Loop (most, yes, x) <body = b (int64 i, bool go, float[3, 4] s) => (bool on, float[3, 4] u) {
        q = Abs (s) u = Add (q, q) sum = ReduceSum <keepdims = 0> (u) on = Less (sum, limit)
    }>
}"""
# The iteration number is an index: Slice reads it on the host, Gather reads a copy on the device.
POSITIONS = """g (float[3, 4] x) => (float[k, w, 4] y, float[k, 4] z) {
    three = Constant <value = int64 {3}> ()
    yes = Constant <value = bool {1}> ()
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    r = Relu (x)
    y, z = Loop (three, yes) <body = b (int64 i, bool go) => (bool on, float[w, 4] u, float[4] v) {
        from = Unsqueeze (i, zero) to = Add (from, one) s = Slice (r, from, to, zero) u = Tanh (s)
        g = Gather <axis = 0> (r, i) v = Neg (g) on = Identity (go)
    }>
}"""
SCAN = """g (float[3, 4] x, float[{n}] s0) => (float[{n}] y, float[3, 4] all) {{
    r = Relu (x)
    y, all = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}], scan_output_axes = [{axis}],
                   scan_input_directions = [{back}],
                   body = b (float[{n}] s, float[{n}] e) => (float[{n}] u, float[{n}] v) {{
        q = Add (s, e) u = Tanh (q) v = Neg (q)
    }}> (s0, r)
}}"""
# Both bodies read a shape of the outer graph on the host.
SHAPE = """g (float[a, b] x, bool c) => (float[s, t] y) {
    one = Constant <value = int64[1] {1}> ()
    rest = Constant <value = int64[1] {-1}> ()
    r = Relu (x)
    dims = Shape (r)
    d = Gather <axis = 0> (dims, one)
    shape = Concat <axis = 0> (d, rest)
    z = If (c) <
        then_branch = t () => (float[s, t] p) {q = Reshape (r, shape) p = Tanh (q)},
        else_branch = e () => (float[s, t] n) {n = Reshape (r, shape)}>
    y = Abs (z)
}"""
NESTED = """g (float[3, 4] x, int64 n, bool c) => (float[3, 4] y) {
    yes = Constant <value = bool {1}> ()
    r = Relu (x)
    y = Loop (n, yes, r) <body = b (int64 i, bool go, float[3, 4] s) => (bool on, float[3, 4] u) {
        q = Add (s, x) on = Identity (go)
        u = If (c) <
            then_branch = t () => (float[3, 4] p) {p1 = Add (q, r) p = Tanh (p1)},
            else_branch = e () => (float[3, 4] w) {
                w = Loop (n, go, q) <body = b2 (int64 j, bool go2, float[3, 4] s2) => (bool on2, float[3, 4] u2) {
                    u2 = Sub (s2, r) on2 = Identity (go2)
                }>
            }>
    }>
}"""
# The rank of the If's result is unknown before the run; only the weights of the convolution after it imply the rank.
RANK = """g (float[a, b, c] x, bool c0) => (float[s, t, u] y) {
    w = Constant <value = float[2, 3, 1] {1, 2, 3, 4, 5, 6}> ()
    z0 = If (c0) <
        then_branch = t () => (float[s, t, u] p) {p = Relu (x)},
        else_branch = e () => (float[s] n) {m = Constant <value = int64[1] {-1}> () n = Reshape (x, m)}>
    y = Conv (z0, w)
}"""

CASES: dict[str, tuple[str, Mapping[str, Array], Counter[str]]] = {
    "if": (IF, {"x": X, "c": YES}, Counter()),
    "if_not": (IF, {"x": X, "c": NO}, Counter()),
    "loop": (LOOP, {"x": X, "n": np.array(5)}, Counter(Identity=5)),
    "no_iterations": (LOOP, {"x": X, "n": np.array(0)}, Counter()),
    "while": (WHILE, {"x": X}, Counter()),
    "positions": (POSITIONS, {"x": X}, Counter(Identity=3, Unsqueeze=3, Add=3, MemcpyFromHost=3)),
    "scan": (SCAN.format(n=4, axis=0, back=0), {"x": X, "s0": X[0]}, Counter()),
    "scan_columns_backwards": (SCAN.format(n=3, axis=1, back=1), {"x": X, "s0": X[:, 0]}, Counter()),
    "shape": (SHAPE, {"x": X, "c": YES}, Counter(Gather=1, Concat=1)),
    "nested": (NESTED, {"x": X, "n": np.array(3), "c": NO}, Counter(Identity=3 + 9)),
    "rank": (RANK, {"x": np.ones((1, 3, 5), np.float32), "c0": YES}, Counter()),
}


def parsed(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(HEAD + text)
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("name", CASES)
def test_bodies_run_on_the_device(name: str, worker: ProcessPoolExecutor) -> None:
    """With and without regions values equal the CPU's, and only the expected nodes and copies are elsewhere."""
    text, feeds, left = CASES[name]
    model = parsed(text)
    on_cpu = worker.submit(run_on_cpu, model.SerializeToString(), feeds).result()
    for options in ({}, {"regions": "0"}):
        found = worker.submit(run, model.SerializeToString(), feeds, options).result()
        for got, wanted in zip(found.outputs, on_cpu, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
        assert found.elsewhere == left
        assert sum(found.on_device(op) for op in ("If", "Loop", "Scan")) > 0
    assert differences(model, worker.submit(placed, model.SerializeToString()).result()) == []


def run_on_cpu(model: bytes, feeds: Mapping[str, Array]) -> list[Array]:
    found: list[Array] = new_session(model, devices=0).run(None, dict(feeds))
    return found


def test_control_flow_of_sizes_alone_runs_on_the_cpu() -> None:
    """An If whose bodies only compute sizes is kept on the CPU."""
    sizes = """g (float[a, b] x, bool c) => (float[s] y) {
        r = Relu (x)
        dims = Shape (r)
        shape = If (c) <then_branch = t () => (int64[k] p) {z = Constant <value = int64[1] {-1}> () p = Identity (z)},
                        else_branch = e () => (int64[k] n) {n = ReduceProd <keepdims = 1> (dims)}>
        y = Reshape (r, shape)
    }"""
    said = {n.op: n for n in forecast(parsed(sizes), "graphopt", min_nodes=2).nodes}
    assert said["If"].provider == "cpu" and said["If"].reason == "no node of its subgraphs runs on the device"
    assert said["Relu"].provider == said["Reshape"].provider == "graphopt"


def test_runs_with_other_iterations_and_branches(worker: ProcessPoolExecutor) -> None:
    """The conditions change from run to run in one session."""
    feeds = [{"x": X * k, "n": np.array(n), "c": np.array(n % 2 == 0)} for k, n in enumerate((2, 0, 3, 1, 2), 1)]
    model = parsed(NESTED).SerializeToString()
    for got, wanted in zip(
        worker.submit(runs_of, model, feeds, 1).result(), worker.submit(runs_of, model, feeds, 0).result(), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def runs_of(model: bytes, feeds: list[dict[str, Array]], devices: int) -> list[Array]:
    session = new_session(model, devices=devices)
    assert bool(devices) == (PROVIDER in session.get_providers())
    return [session.run(None, one)[0] for one in feeds for _ in range(3)]


SEEDS = range(12)  # scripts/sweep runs 2,000


def compare_all(seeds: range) -> list[Counter[str]]:
    return [random_bodies.compare(seed) for seed in seeds]


def test_random_bodies_give_the_results_of_the_cpu(worker: ProcessPoolExecutor) -> None:
    given = worker.submit(compare_all, SEEDS).result()
    assert sum(map(bool, given)) >= len(SEEDS) // 2
    assert sum(given, Counter()).keys() >= {"If", "Loop", "Scan"}
