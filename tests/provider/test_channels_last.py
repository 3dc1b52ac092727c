"""Float16 convolutions with tensors in channels-last layout, and the nodes between them.

Outputs are compared with the CPU in float32, and with a session in channels-first layout, which uses other kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphopt
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.schema import Dialect
from models import ZOO
from tests.hip.case import signed
from tests.hip.harness import ROOT, build_for_tests
from tests.provider.test_regions import ON_GPU, counts, runs, since
from tests.provider.worker import Array, new_session, run
from tests.provider.worker import model_of as one_node

# Nodes over x [2, 5, 9, 11] and e [2, 8, 12, 16]; a name of two or more letters is a weight with the given shape.
GRAPHS: Mapping[str, tuple[str, Mapping[str, tuple[int, ...]], int]] = {
    # name: nodes, weights, number of copies between the layouts
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
    "depthwise_of_odd_channels": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  d = Conv<group=30, pads=[1,1,1,1]>(a, w2, b2)  r = Relu(d)
           s = Add(r, a)  k = Conv<group=30, pads=[0,2,0,2]>(s, w3, b3)  c = Conv<pads=[1,1,1,1]>(k, w4)
           y = Conv<group=7, strides=[2,2]>(c, w5)""",
        {"w1": (30, 8, 3, 3), "b1": (30,), "w2": (30, 1, 3, 3), "b2": (30,), "w3": (30, 1, 1, 5), "b3": (30,),
         "w4": (7, 30, 3, 3), "w5": (7, 1, 3, 3)},
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
    "reduced": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  p = ReduceMean<axes=[2,3]>(a)  g = HardSigmoid(p)  m = Mul(a, g)
           axes = Constant<value = int64[1] {1}>()  s = ReduceSum(m, axes)  k = Mul(m, s)
           q = ReduceMax<axes=[-1]>(k)  r = Sub(k, q)  y = Conv(r, w3)""",
        {"w1": (16, 8, 3, 3), "w3": (4, 16, 2, 2)},
        2,
    ),
    "split": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  sizes = Constant<value = int64[2] {5, 11}>()
           b, c = Split<axis=1>(a, sizes)  d = Conv(b, w2)  f = Concat<axis=-3>(d, c)
           h, i = Split<axis=-1>(f)  j = Add(h, i)  y = Conv(j, w3)""",
        {"w1": (16, 8, 3, 3), "w2": (3, 5, 1, 1), "w3": (4, 14, 3, 3)},
        2,
    ),
    "layer_norms": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  n = com.graphopt.FusedLayerNorm2d<epsilon=0.001>(a, g1, h1)
           s = Add(n, a)  c = Conv(s, w2)  m = com.graphopt.FusedLayerNorm2d<epsilon=0.001>(c, g2, h2)
           y = Conv(m, w3)""",
        {"w1": (16, 8, 3, 3), "b1": (16,), "g1": (16,), "h1": (16,), "w2": (7, 16, 3, 3), "g2": (7,), "h2": (7,),
         "w3": (4, 7, 2, 2)},
        2,
    ),
    "scales": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  n = com.graphopt.ScaleShiftAddRelu(a, k1, h1, a)
           c = Conv<pads=[1,1,1,1]>(n, w2)  j = Concat<axis=1>(n, c)  m = com.graphopt.ScaleShiftSilu(j, k2, h2)
           d = Conv(m, w3)  v2 = Abs(v3)  b = BatchNormalization(d, g, f, v1, v2)  y = Relu(b)""",
        {"w1": (16, 8, 3, 3), "k1": (16, 1, 1), "h1": (16, 1, 1), "w2": (5, 16, 3, 3), "k2": (21, 1, 1),
         "h2": (21, 1, 1), "w3": (8, 21, 1, 1), "g": (8,), "f": (8,), "v1": (8,), "v3": (8,)},
        2,
    ),
    "transposed": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  t = ConvTranspose<strides=[2,2], output_padding=[1,0]>(a, w2, b2)
           s = Concat<axis=1>(t, t)  y = Relu(s)""",
        {"w1": (16, 8, 3, 3), "w2": (16, 6, 3, 2), "b2": (6,)},
        2,
    ),
    "ours": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)
           t = com.graphopt.FusedConvTransposeRelu
               <pads=[0,0,0,0], strides=[2,2], dilations=[1,1], group=1, output_padding=[0,0]>(a, w2, b2)
           r = com.graphopt.FusedConvSilu
               <pads=[0,0,0,0], strides=[1,1], dilations=[1,1], group=1>(t, w3, b3)
           u = com.graphopt.FusedConvTransposeAddPRelu
               <pads=[1,1,1,1], strides=[1,1], dilations=[1,1], group=1, output_padding=[0,0]>(r, w4, b4, r, s4)
           y = Relu(u)""",
        {"w1": (16, 8, 3, 3), "w2": (16, 6, 2, 2), "b2": (6,), "w3": (8, 6, 1, 1), "b3": (8,), "w4": (8, 8, 3, 3),
         "b4": (8,), "s4": (8, 1, 1)},
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
    "norms": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  n = InstanceNormalization(a, g1, h1)  r = Relu(n)
           c = Conv<pads=[1,1,1,1]>(r, w2)  m = InstanceNormalization<epsilon=0.01>(c, g2, h2)  s = Add(m, e)
           d = Conv(s, w3, b3)  f = InstanceNormalization(d, g3, h3)  y = Tanh(f)""",
        {"w1": (16, 8, 3, 3), "b1": (16,), "g1": (16,), "h1": (16,), "w2": (8, 16, 3, 3), "g2": (8,), "h2": (8,),
         "w3": (5, 8, 2, 2), "b3": (5,), "g3": (5,), "h3": (5,)},
        2,
    ),
    "group_norms": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  n = GroupNormalization<num_groups=4, epsilon=0.001>(a, g1, h1)
           i = Sigmoid(n)  r = Mul(n, i)  c = Conv<pads=[1,1,1,1]>(r, w2)
           m = GroupNormalization<num_groups=3>(c, g2, h2)  y = Conv(m, w3, b3)""",
        {"w1": (16, 8, 3, 3), "b1": (16,), "g1": (16,), "h1": (16,), "w2": (9, 16, 3, 3), "g2": (9,), "h2": (9,),
         "w3": (4, 9, 2, 2), "b3": (4,)},
        2,
    ),
    "norms_by_group": (
        """a = Conv<pads=[1,1,1,1]>(e, w1, b1)  n = GroupNormalization<num_groups=2>(a, g1, h1)
           y = Conv<pads=[1,1,1,1]>(n, w2)""",
        {"w1": (16, 8, 3, 3), "b1": (16,), "g1": (2,), "h1": (2,), "w2": (8, 16, 3, 3)},
        2,
    ),
    "fused_group_norms": (
        """p = com.graphopt.FusedGroupNorm<num_groups=2, epsilon=0.001>(e, g1, h1)
           a = Conv<pads=[1,1,1,1]>(p, w1, b1)
           n = com.graphopt.FusedGroupNormSilu<num_groups=8, epsilon=0.001>(a, g2, h2)
           c = Conv<pads=[1,1,1,1]>(n, w2)  s = Add(c, e)
           m = com.graphopt.FusedGroupNormGelu<num_groups=1, epsilon=0.001>(s, g3, h3)  y = Conv(m, w3)""",
        {"g1": (8,), "h1": (8,), "w1": (16, 8, 3, 3), "b1": (16,), "g2": (16,), "h2": (16,), "w2": (8, 16, 3, 3),
         "g3": (8,), "h3": (8,), "w3": (6, 8, 2, 2)},
        3,
    ),
    "left": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  t = Transpose<perm=[0,2,3,1]>(a)  s = Softmax<axis=-1>(t)
           b = Relu(a)  y = Conv(b, w2)""",
        {"w1": (16, 8, 3, 3), "w2": (4, 16, 2, 2)},
        2,
    ),
    # Transposes between pixels and rows are views of a tensor in channels last.
    "rows": (
        """a = Conv<pads=[1,1,1,1]>(e, w1)  d = Conv<group=16, pads=[3,3,3,3]>(a, w2)  t = Transpose<perm=[0,2,3,1]>(d)
           n = LayerNormalization(t, g1, h1)  m = MatMul(n, w3)  u = Transpose<perm=[0,3,1,2]>(m)  k = Mul(kk, u)
           s = Add(a, k)  y = Conv(s, w4)""",
        {"w1": (16, 8, 3, 3), "w2": (16, 1, 7, 7), "g1": (16,), "h1": (16,), "w3": (16, 16), "kk": (16, 1, 1),
         "w4": (4, 16, 2, 2)},
        2,
    ),
    "rows_at_borders": (
        """c = Transpose<perm=[0,3,1,2]>(e)  a = Conv(c, w1)  y = Transpose<perm=[0,2,3,1]>(a)
           u = Transpose<perm=[0,2,3,1]>(x)  z = Transpose<perm=[0,3,1,2]>(u)  v = Transpose<perm=[0,3,1,2]>(y)""",
        {"w1": (8, 16, 3, 3)},
        2,
    ),
}  # fmt: skip
OUTPUTS = {"groups": ["y", "z"], "left": ["y", "s"], "rows_at_borders": ["y", "z", "v"]}
OPSETS = {"group_norms": 21, "norms_by_group": 18}  # all others use 17


def model_of(name: str, dtype: Any) -> bytes:
    """Returns a graph with its weights as constants."""
    nodes, weights, _ = GRAPHS[name]
    kind = "float16" if dtype == np.float16 else "float"
    outputs = ", ".join(f"{kind}[] {y}" for y in OUTPUTS.get(name, ["y"]))
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {OPSETS.get(name, 17)}, "{DOMAIN}" : 1]> '
        f"g ({kind}[2, 5, 9, 11] x, {kind}[2, 8, 12, 16] e) => ({outputs}) {{ {nodes} }}"
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    dialect = Dialect(17)  # for the CPU session, which does not use our library
    ours = sorted({n.op_type for n in model.graph.node if n.domain == DOMAIN})
    model.functions.extend(OPS[op].function_proto(dialect) for op in ours)
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
    cpu = new_session(model_of(name, np.float32), devices=0)
    wanted = cpu.run(None, {key: value.astype(np.float32) for key, value in given.items()})
    results = {}
    for last in ("0", "1"):
        options = {"channels_last": last, "min_nodes": "1"}
        results[last], events = worker.submit(runs, model, [given] * 3, options).result()
        assert events.get("converted", 0) == (GRAPHS[name][2] if last == "1" else 0)
        assert events["compiled"] == 1 and events["captured"] >= 1
    for first, last in zip(*results.values(), strict=True):
        for a, b, y in zip(first, last, wanted, strict=True):
            assert a.shape == b.shape == y.shape
            scale = np.sqrt(np.mean(y.astype(np.float64) ** 2))
            assert np.abs(a - y.astype(np.float64)).max() <= 1e-2 * scale
            assert np.abs(b - y.astype(np.float64)).max() <= 1e-2 * scale


def opened(model: bytes, options: Mapping[str, str]) -> dict[str, int]:
    """Creates a session and returns the region events of its creation."""
    before = counts()
    new_session(model, options)
    return since(before)


# Number of layout changes of float16 images: at inputs and outputs, and beside the float32 sums of sd_block, which are
# in channels-first layout. Transposes from pixels to tokens are views, without a layout change.
CONVERTED = {"resnet18": 1, "resnet50": 1, "mobilenet_v2": 1, "unet": 2, "yolo": 3, "sd_block": 3, "vit": 1}


def in_float16(name: str) -> onnx.ModelProto:
    model: onnx.ModelProto = graphopt.optimize(ZOO[name](small=True), target="cuda", precision="fp16")[0]
    return model


@pytest.mark.parametrize("name", CONVERTED)
def test_whole_models_convert_layouts_only_at_their_ends(name: str, worker: ProcessPoolExecutor) -> None:
    events = worker.submit(opened, in_float16(name).SerializeToString(), {"channels_last": "1"}).result()
    assert events["compiled"] == 1 and events["converted"] == CONVERTED[name]


STEPS = """
import sys
import onnx
import onnxruntime as ort
from graphopt.runtime.discovery import library_path
from tests.provider.test_sessions import feeds_of
from tests.provider.worker import new_session
ort.register_execution_provider_library("graphopt", str(library_path()))
for path in sys.argv[1:]:
    print("model", path, file=sys.stderr)
    new_session(path, {"channels_last": "1"}).run(None, feeds_of(onnx.load(path)))
"""


def steps_of(paths: list[Path], kernels: str) -> dict[str, list[str]]:
    """Returns the executed steps in order: names of nodes, and of tensors that change their layout."""
    stand_ins = build_for_tests("hip_on_cpu_32", "stand_in_roctx")
    variables = {"GRAPHOPT_HOST_KERNELS": kernels, "LD_LIBRARY_PATH": str(stand_ins)}
    command = [sys.executable, "-c", STEPS, *map(str, paths)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stderr.splitlines():
        if line.startswith("model "):
            names = found.setdefault(Path(line.removeprefix("model ")).stem, [])
        elif line.startswith("range ") and line != "range ends":
            names.append(line.removeprefix("range "))
    return found


# Operators that end a chain of float16 images.
ENDS = {"Cast", "Reshape", "Transpose", "Flatten"}


def is_between_convolutions(model: onnx.ModelProto, value: str) -> bool:
    """Whether the value, as a float16 image, depends on one convolution and is an ancestor of another."""
    made_of, becomes, above, below = {value}, {value}, False, False
    for node in reversed(model.graph.node):
        if made_of.intersection(node.output) and node.op_type not in ENDS:
            above = above or node.op_type == "Conv"
            made_of.update(node.input if node.op_type != "Conv" else ())
    for node in model.graph.node:
        if becomes.intersection(node.input) and node.op_type not in ENDS:
            below = below or node.op_type == "Conv"
            becomes.update(node.output if node.op_type != "Conv" else ())
    return above and below


@pytest.mark.skipif(ON_GPU, reason="the ranges are those of the kernels on the CPU")
def test_no_layout_changes_between_convolutions(tmp_path: Path, kernels: str) -> None:
    models = {name: in_float16(name) for name in ("resnet18", "unet", "sd_block")}
    for name, model in models.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    for name, steps in steps_of([tmp_path / f"{name}.onnx" for name in models], kernels).items():
        nodes = models[name].graph.node
        values = {value for node in nodes for value in node.output} - {node.name for node in nodes}
        converted = [step for step in steps if step in values]
        assert len(converted) >= CONVERTED[name]  # an image of one pixel has the same bytes in both layouts
        assert not [value for value in converted if is_between_convolutions(models[name], value)]
        # There are values between convolutions, so the assertion above checks something.
        assert (
            sum(is_between_convolutions(models[name], node.output[0]) for node in nodes if node.op_type == "Conv") > 0
        )


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((2, 9, 70), (0, 2, 1)),  # matrices
        ((65, 3), (1, 0)),
        ((2, 3, 5, 7), (0, 2, 3, 1)),  # the last two axes are merged
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
