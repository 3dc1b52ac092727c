"""Chains of convolution, batch norm, activation and sum through all passes: remaining operators, float64 results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.ops import DOMAIN
from tests.rewriting import Array, model_from_text, run

C = 6
RNG = np.random.default_rng(8)


def constants() -> dict[str, Array]:
    made: dict[str, Array] = {}
    for i in range(3):
        made |= {f"s{i}": RNG.standard_normal(C), f"b{i}": RNG.standard_normal(C), f"m{i}": RNG.standard_normal(C)}
        made[f"v{i}"] = RNG.random(C) + 0.5
        made[f"w{i}"] = RNG.standard_normal((C, C, 1, 1))
        made[f"k{i}"] = RNG.standard_normal((C, C, 3, 3)) / 3
    made["s12"], made["b12"] = RNG.standard_normal(2 * C), RNG.standard_normal(2 * C)
    made["m12"], made["v12"] = RNG.standard_normal(2 * C), RNG.random(2 * C) + 0.5
    made["w12"] = RNG.standard_normal((C, 2 * C, 1, 1))
    return {name: array.astype(np.float32) for name, array in made.items()}


def bn(y: str, x: str, i: int) -> str:
    return f"{y} = BatchNormalization({x}, s{i}, b{i}, m{i}, v{i})\n"


K3 = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
# name -> (graph, remaining operators).
CHAINS: dict[str, tuple[str, dict[str, int]]] = {
    "ResNet-v2 block": (
        bn("n0", "x", 0)
        + f"r0 = Relu(n0)\nc0 = Conv<{K3}>(r0, k0)\n"
        + bn("n1", "c0", 1)
        + f"r1 = Relu(n1)\nc1 = Conv<{K3}>(r1, k1)\ny = Add(x, c1)",
        {"ScaleShiftRelu": 1, "Conv": 2, "Relu": 1, "Add": 1},
    ),
    "two DenseNet layers": (
        bn("n0", "x", 0)
        + "r0 = Relu(n0)\nc0 = Conv(r0, w0)\nd0 = Concat<axis = 1>(x, c0)\n"
        + "n1 = BatchNormalization(d0, s12, b12, m12, v12)\nr1 = Relu(n1)\ny = Conv(r1, w12)",
        {"ScaleShiftRelu": 2, "Conv": 2, "Concat": 1},
    ),
    "convolution, batch norm, activation, sum": (
        "c0 = Conv(x, w0)\n" + bn("n0", "c0", 0) + "r0 = Relu(n0)\ny = Add(r0, x)",
        {"Conv": 1, "Relu": 1, "Add": 1},
    ),
    "the same where the convolution is read twice": (
        "c0 = Conv(x, w0)\n" + bn("n0", "c0", 0) + "r0 = Relu(n0)\ny = Add(r0, c0)",
        {"Conv": 1, "ScaleShiftRelu": 1, "Add": 1},
    ),
    "sum before the activation": (
        "c0 = Conv(x, w0)\na0 = Add(c0, x)\n" + bn("n0", "a0", 0) + "t0 = Add(n0, c0)\ny = Relu(t0)",
        {"Conv": 1, "Add": 1, "ScaleShiftAddRelu": 1},
    ),
    "three batch norms in a row": (
        bn("n0", "x", 0) + bn("n1", "n0", 1) + bn("n2", "n1", 2) + "y = LeakyRelu<alpha = 0.2>(n2)",
        {"ScaleShiftLeakyRelu": 1},
    ),
    "batch norms around an activation": (
        bn("n0", "x", 0) + "r0 = Relu(n0)\n" + bn("n1", "r0", 1) + bn("n2", "n1", 2) + "y = Relu(n2)",
        {"ScaleShiftRelu": 2},
    ),
    "ResNet-v2 bottleneck with a projection": (
        bn("n0", "x", 0)
        + "r0 = Relu(n0)\np0 = Conv(r0, w0)\nc0 = Conv(r0, w1)\n"
        + bn("n1", "c0", 1)
        + f"r1 = Relu(n1)\nc1 = Conv<{K3}>(r1, k1)\n"
        + bn("n2", "c1", 2)
        + "r2 = Relu(n2)\nc2 = Conv(r2, w2)\ny = Add(p0, c2)",
        {"ScaleShiftRelu": 1, "Conv": 4, "Relu": 2, "Add": 1},
    ),
    "two ResNet-v2 blocks": (
        bn("n0", "x", 0)
        + f"r0 = Relu(n0)\nc0 = Conv<{K3}>(r0, k0)\na0 = Add(x, c0)\n"
        + bn("n1", "a0", 1)
        + f"r1 = Relu(n1)\nc1 = Conv<{K3}>(r1, k1)\na1 = Add(a0, c1)\n"
        + bn("n2", "a1", 2)
        + "y = Relu(n2)",
        {"ScaleShiftRelu": 3, "Conv": 2, "Add": 2},
    ),
    "batch norm read by a batch norm and a sum": (
        bn("n0", "x", 0) + bn("n1", "n0", 1) + "r0 = Relu(n1)\ny = Add(r0, n0)",
        {"ScaleShift": 1, "ScaleShiftRelu": 1, "Add": 1},
    ),
    "two batch norms and a sum": (
        bn("n0", "x", 0) + bn("n1", "x", 1) + "a0 = Add(n0, n1)\ny = Relu(a0)",
        {"ScaleShift": 1, "ScaleShiftAddRelu": 1},
    ),
    "batch norm ahead of a padded convolution": (
        "r0 = Relu(x)\n" + bn("n0", "r0", 0) + f"y = Conv<{K3}>(n0, k0)",
        {"Relu": 1, "ScaleShift": 1, "Conv": 1},
    ),
    "batch norm ahead of an unpadded convolution": (
        bn("n0", "x", 0) + "c0 = Conv(n0, w0)\n" + bn("n1", "c0", 1) + "y = Relu(c0)",
        {"Conv": 1, "Relu": 1},
    ),
}


def float64(model: onnx.ModelProto, x: Array) -> Array:
    """Computes the chain node by node in double precision."""
    values = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    values["x"] = x.astype(np.float64)

    def channels(a: Array) -> Array:
        return a.reshape(1, -1, 1, 1)

    for n in model.graph.node:
        v = [values[i] for i in n.input]
        if n.op_type == "BatchNormalization":
            y = (v[0] - channels(v[3])) / np.sqrt(channels(v[4]) + 1e-5) * channels(v[1]) + channels(v[2])
        elif n.op_type == "Conv":
            p = v[1].shape[2] // 2
            padded = np.pad(v[0], ((0, 0), (0, 0), (p, p), (p, p)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, v[1].shape[2:], axis=(2, 3))
            y = np.einsum("nchwij,mcij->nmhw", windows, v[1])
        elif n.op_type == "Concat":
            y = np.concatenate(v, axis=1)
        else:
            y = {
                "Relu": lambda v: np.maximum(v[0], 0),
                "LeakyRelu": lambda v: np.where(v[0] < 0, np.float64(np.float32(0.2)) * v[0], v[0]),
                "Add": lambda v: v[0] + v[1],
            }[n.op_type](v)
        values[n.output[0]] = y
    return values["y"]


@pytest.mark.parametrize("name", CHAINS)
def test_chain(name: str) -> None:
    body, left = CHAINS[name]
    used = {k: a for k, a in constants().items() if f"{k}," in body or f"{k})" in body}
    model = model_from_text(f"g (float[N, {C}, 9, 7] x) => (float[N, {C}, 9, 7] y) {{ {body} }}", used)
    after, _ = graphopt.optimize(model, target="cpu", check=True)
    assert Counter(n.op_type for n in after.graph.node) == left
    x = (3 * RNG.standard_normal((2, C, 9, 7))).astype(np.float32)
    want = float64(model, x)
    rms = float(np.sqrt((want**2).mean()))
    for library in (False, True) if any(n.domain == DOMAIN for n in after.graph.node) else (False,):
        assert np.abs(run(after, {"x": x}, library=library)[0] - want).max() <= 1e-5 * rms
    plain, refused = graphopt.optimize(model, target="migraphx")
    assert all(n.domain == "" for n in plain.graph.node)
    # A remark gives the reason for each BatchNormalization that is kept.
    norms = sum(n.op_type == "BatchNormalization" for n in plain.graph.node)
    assert norms == sum(n.op_type.startswith("ScaleShift") for n in after.graph.node)
    assert norms == sum(r.code == "TARGET" and r.pass_name == "scale_shift" for r in refused.remarks)
    assert np.abs(run(plain, {"x": x})[0] - want).max() <= 1e-5 * rms
