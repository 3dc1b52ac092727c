"""Convolutions in float16 whose tensors lie in channels last, and what stands between them.

Against the CPU in float32, and against the same session in channels first, which other kernels compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import graphopt
from models import ZOO
from tests.hip.case import signed
from tests.provider.test_regions import counts, runs, since
from tests.provider.worker import Array, new_session, run
from tests.provider.worker import model_of as one_node

# Nodes over x [2, 5, 9, 11] and e [2, 8, 12, 16]; a name of two letters or more and its shape: a weight.
GRAPHS: Mapping[str, tuple[str, Mapping[str, tuple[int, ...]], int]] = {
    # name: nodes, weights, copies between the layouts
    "relu": ("a = Conv<pads=[1,1,1,1]>(e, w1, b1)  y = Relu(a)", {"w1": (16, 8, 3, 3), "b1": (16,)}, 2),
    "no_bias": ("a = Conv(x, w1)  y = Neg(a)", {"w1": (3, 5, 2, 3)}, 2),
    "uneven_pads": (
        "a = Conv<pads=[2,0,1,1], strides=[2,1], dilations=[1,2]>(x, w1, b1)  y = Softplus(a)",
        {"w1": (7, 5, 3, 2), "b1": (7,)},
        2,
    ),
    "pixels": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  p = Conv(a, w2, b2)  h = HardSwish(p)  q = Conv(h, w3)
           y = Conv<strides=[2,3]>(q, w4, b4)""",
        {"w1": (8, 8, 3, 3), "b1": (8,), "w2": (24, 8, 1, 1), "b2": (24,), "w3": (9, 24, 1, 1), "w4": (5, 9, 1, 1),
         "b4": (5,)},
        2,
    ),
    "residual": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  r = Relu(a)  c = Conv(r, w2, b2)  s = Add(e, c)  t = Relu(s)
           d = Conv<pads=[1,1,1,1]>(t, w3)  y = Add(d, t)""",
        {"w1": (16, 8, 3, 3), "b1": (16,), "w2": (8, 16, 1, 1), "b2": (8,), "w3": (8, 8, 3, 3)},
        2,
    ),
    "depthwise": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)
           d = Conv<group=16, pads=[1,1,1,1], strides=[2,2]>(a, w2, b2)  g = Sigmoid(d)  h = Mul(d, g)
           k = Conv<group=16, pads=[2,4,2,4], dilations=[1,2]>(h, w3)  y = Add(k, h)""",
        {"w1": (16, 8, 3, 3), "b1": (16,), "w2": (16, 1, 3, 3), "b2": (16,), "w3": (16, 1, 5, 5)},
        2,
    ),
    "groups": (
        "a = Conv<group=2, pads=[1,1,1,1]>(e, w1, b1)  y = Conv<group=5>(x, w2)  z = Identity(a)",
        {"w1": (6, 4, 3, 3), "b1": (6,), "w2": (10, 1, 3, 3)},
        4,
    ),
    "pools": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  m = MaxPool<kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,1]>(a)
           v = AveragePool<kernel_shape=[2,3], pads=[1,1,0,1], ceil_mode=1>(m)
           g = GlobalAveragePool(v)  y = Flatten(g)""",
        {"w1": (24, 8, 3, 3), "b1": (24,)},
        1,
    ),
    "pool_of_odd_channels": (
        "a = Conv(x, w1)  m = MaxPool<kernel_shape=[2,2], dilations=[2,1]>(a)  y = GlobalMaxPool(m)",
        {"w1": (3, 5, 2, 2)},
        1,
    ),
    "upsampled": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  scales = Constant<value = float[4] {1.0, 1.0, 2.0, 1.5}>()
           u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(a, , scales)
           l = Resize<mode="linear", coordinate_transformation_mode="half_pixel">(u, , scales)
           c = Conv(l, w2)  y = Relu(c)""",
        {"w1": (16, 8, 3, 3), "w2": (3, 16, 3, 3)},
        2,
    ),
    "joined": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  b = Conv(a, w2)  c = Concat<axis=1>(a, e, b)
           d = Conv(c, w3)  y = LeakyRelu(d)""",
        {"w1": (16, 8, 3, 3), "w2": (3, 16, 1, 1), "w3": (4, 27, 3, 3)},
        2,
    ),
    "gate": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  p = GlobalAveragePool(a)  q = Conv(p, w2)  g = HardSigmoid(q)
           m = Mul(a, g)  k = Mul(m, kk)  y = Conv(k, w3)""",
        {"w1": (16, 8, 3, 3), "w2": (16, 16, 1, 1), "kk": (1, 16, 1, 1), "w3": (4, 16, 2, 2)},
        2,
    ),
    "transposed": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  t = ConvTranspose<strides=[2,2], output_padding=[1,0]>(a, w2, b2)
           s = Concat<axis=1>(t, t)  y = Relu(s)""",
        {"w1": (16, 8, 3, 3), "w2": (16, 6, 3, 2), "b2": (6,)},
        2,
    ),
    "slopes": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  p = PRelu(a, s1)  c = Conv(p, w2, b2)  r = Add(c, e)  q = PRelu(r, s2)
           d = Conv<group=8, pads=[1,1,1,1]>(q, w3)  f = PRelu(d, s3)  t = ConvTranspose<strides=[2,2]>(f, w4, b4)
           y = PRelu(t, s4)""",
        {"w1": (16, 8, 3, 3), "b1": (16,), "s1": (16, 1, 1), "w2": (8, 16, 1, 1), "b2": (8,), "s2": (1, 8, 1, 1),
         "w3": (8, 1, 3, 3), "s3": (8, 1, 1), "w4": (8, 5, 2, 2), "b4": (5,), "s4": (5, 1, 1)},
        2,
    ),
    "left": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  t = Transpose<perm=[0,2,3,1]>(a)  s = Softmax<axis=-1>(t)
           b = Relu(a)  y = Conv(b, w2)""",
        {"w1": (16, 8, 3, 3), "w2": (4, 16, 2, 2)},
        3,
    ),
}  # fmt: skip
OUTPUTS = {"groups": ["y", "z"], "left": ["y", "s"]}


def model_of(name: str, dtype: Any) -> bytes:
    """A graph, its weights constants."""
    nodes, weights, _ = GRAPHS[name]
    kind = "float16" if dtype == np.float16 else "float"
    outputs = OUTPUTS.get(name, ["y"])
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> g ({kind}[2, 5, 9, 11] x, {kind}[2, 8, 12, 16] e) '
        f"=> ({', '.join(f'{kind}[] {y}' for y in outputs)}) {{ {nodes} }}"
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    for seed, (key, shape) in enumerate(weights.items()):
        array = signed(np.random.default_rng(seed), *shape, dtype=np.float16) / np.float16(np.sqrt(np.prod(shape[1:])))
        model.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), key))
    content: bytes = model.SerializeToString()
    return content


def feeds() -> dict[str, Array]:
    rng = np.random.default_rng(7)
    return {"x": signed(rng, 2, 5, 9, 11, dtype=np.float16), "e": signed(rng, 2, 8, 12, 16, dtype=np.float16)}


@pytest.mark.parametrize("name", GRAPHS)
def test_against_channels_first(name: str, worker: ProcessPoolExecutor) -> None:
    model, given = model_of(name, np.float16), feeds()
    cpu = ort.InferenceSession(model_of(name, np.float32), providers=["CPUExecutionProvider"])
    wanted = cpu.run(None, {key: value.astype(np.float32) for key, value in given.items()})
    results = {}
    for last in ("0", "1"):
        options = {"channels_last": last, "min_nodes": "1"}
        results[last], events = worker.submit(runs, model, [given] * 3, options).result()
        assert events.get("relaid", 0) == (GRAPHS[name][2] if last == "1" else 0)
        assert events["compiled"] == 1 and events["captured"] >= 1
    for first, last in zip(*results.values(), strict=True):
        for a, b, y in zip(first, last, wanted, strict=True):
            assert a.shape == b.shape == y.shape
            scale = np.sqrt(np.mean(y.astype(np.float64) ** 2))
            assert np.abs(a - y.astype(np.float64)).max() <= 1e-2 * scale
            assert np.abs(b - y.astype(np.float64)).max() <= 1e-2 * scale


def opened(model: bytes, options: Mapping[str, str]) -> dict[str, int]:
    """What regions did until the session stood."""
    before = counts()
    new_session(model, options)
    return since(before)


# How often pixels become tokens, or tokens pixels.
TOKENS = {"resnet18": 0, "resnet50": 0, "mobilenet_v2": 0, "unet": 0, "yolo": 0, "sd_block": 2, "vit": 1}


@pytest.mark.parametrize("name", TOKENS)
def test_whole_models_change_the_layout_at_their_borders_alone(name: str, worker: ProcessPoolExecutor) -> None:
    model = graphopt.optimize(ZOO[name](small=True), target="cuda", precision="fp16")[0]
    images = sum(len(v.type.tensor_type.shape.dim) == 4 for v in (*model.graph.input, *model.graph.output))
    events = worker.submit(opened, model.SerializeToString(), {"channels_last": "1"}).result()
    assert events["compiled"] == 1 and events["relaid"] == images + TOKENS[name]


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((2, 9, 70), (0, 2, 1)),  # matrices
        ((65, 3), (1, 0)),
        ((2, 3, 5, 7), (0, 2, 3, 1)),  # the last two axes are one
        ((2, 1, 40, 3, 7), (0, 3, 4, 2, 1)),
        ((4, 6, 5), (2, 0, 1)),
        ((3, 4, 5), (1, 0, 2)),  # rows
        ((3, 4, 5), (2, 1, 0)),  # no matrices
        ((2, 3, 4, 5), (0, 3, 2, 1)),
    ],
)
def test_transposed_in_float16(shape: tuple[int, ...], perm: tuple[int, ...], worker: ProcessPoolExecutor) -> None:
    x = signed(np.random.default_rng(3), *shape, dtype=np.float16)
    node = onnx.helper.make_node("Transpose", ["x"], ["y"], perm=perm)
    outcome = worker.submit(run, one_node([node], {"x": x}, ["y"]), {"x": x}, {"min_nodes": "1"}).result()
    assert outcome.on_device("Transpose") == 1
    np.testing.assert_array_equal(outcome.outputs[0], x.transpose(perm))
