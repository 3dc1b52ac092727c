"""ONNX's normalization operators on the provider, against float64."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.hip.case import signed
from tests.provider.test_more_ops import both, random
from tests.provider.together import Alone, check_together
from tests.provider.worker import Array, model_of, new_session

EPSILON = float(np.float32(1e-3))


def normal(x: Array, axes: tuple[int, ...], *, centred: bool = True) -> Array:
    wide = x.astype(np.float64)
    wide = wide - wide.mean(axes, keepdims=True) if centred else wide
    return np.asarray(wide / np.sqrt((wide**2).mean(axes, keepdims=True) + EPSILON))


def batch_norms(dtype: Any) -> list[Alone]:
    """Returns cases, including float parameters with float16 data, as in models traced under autocast."""
    nodes = []
    for shape, of in (((2, 6, 5, 8), dtype), ((3, 4, 9), np.float32), ((5, 7), dtype), ((4,), dtype)):
        rng = np.random.default_rng(shape)
        C = shape[1] if len(shape) > 1 else 1
        x = signed(rng, *shape, dtype=dtype)
        given = {name: signed(rng, C, dtype=of) for name in "sbm"} | {"v": np.abs(signed(rng, C, dtype=of)) + of(0.1)}
        s, b, m, v = (p.astype(np.float64).reshape(-1, *(1 for _ in shape[2:])) for p in given.values())
        y = ((x.astype(np.float64) - m) * s / np.sqrt(v + EPSILON) + b).reshape(shape)
        nodes.append(Alone("BatchNormalization", {"x": x, **given}, [y], {"epsilon": EPSILON}, "sbmv"))
    return nodes


def group_norm(op: str, dtype: Any, groups: int, attributes: dict[str, Any], *, by_group: bool = False) -> Alone:
    x, parameters = random(2, 6, 5, 4, dtype=dtype), groups if by_group else 6
    scale, bias = random(parameters, dtype=dtype), random(parameters, dtype=dtype, seed=8)
    per_channel = (p.repeat(6 // parameters).reshape(6, 1, 1).astype(np.float64) for p in (scale, bias))
    y = next(per_channel) * normal(x.reshape(2, groups, -1), (2,)).reshape(x.shape) + next(per_channel)
    return Alone(op, {"x": x, "s": scale, "b": bias}, [y], {"epsilon": EPSILON, **attributes})


SCALES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (-1, (8,)), (1, (3, 8)), (1, (8,)), (2, (1, 1, 8)), (0, (1, 1)), (-2, (3, 1)),
)  # fmt: skip


def row_norms(op: str, dtype: Any) -> list[Alone]:
    nodes = []
    for axis, shape in SCALES:
        x, gamma, beta = random(2, 3, 8, dtype=dtype), random(*shape, dtype=dtype), random(8, dtype=dtype, seed=8)
        y = normal(x, tuple(range(axis % 3, 3)), centred=op == "LayerNormalization") * gamma
        attributes = {"axis": axis, "epsilon": EPSILON}
        nodes.append(Alone(op, {"x": x, "s": gamma}, [y], attributes, "s"))
        if op == "LayerNormalization":
            nodes.append(Alone(op, {"x": x, "s": gamma, "b": beta}, [y + beta], attributes))
    return nodes


def statistics(op: str, dtype: Any) -> list[Alone]:
    """The mean of each row, for LayerNormalization, and the inverse standard deviation, in float."""
    nodes = []
    of_mean = op == "LayerNormalization"
    for axis in (-1, 1, 0):
        x, gamma = random(2, 3, 8, dtype=dtype), random(8, dtype=dtype)
        axes = tuple(range(axis % 3, 3))
        wide = x.astype(np.float64)
        mean = wide.mean(axes, keepdims=True)
        inverse = 1 / np.sqrt(((wide - mean * of_mean) ** 2).mean(axes, keepdims=True) + EPSILON)
        y = normal(x, axes, centred=of_mean) * gamma
        kinds = [int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), TensorProto.FLOAT, TensorProto.FLOAT]
        attributes = {"axis": axis, "epsilon": EPSILON}
        for expected in ([y, mean, inverse], [y, None, inverse], [y, mean]) if of_mean else ([y, inverse],):
            types = kinds[: len(expected)]
            nodes.append(Alone(op, {"x": x, "s": gamma}, expected, attributes, "s", types))
    return nodes


def lp_norms(dtype: Any) -> list[Alone]:
    """LpNormalization over each axis; zeros stay zeros, as in ONNX Runtime."""
    x = random(3, 5, 7, dtype=dtype)
    x[1] = x[:, 2] = x[:, :, 3] = 0
    wide = x.astype(np.float64)
    nodes = []
    for axis in (-1, 0, 1):
        for p in (1, 2):
            norm = (np.abs(wide) ** p).sum(axis, keepdims=True) ** (1 / p)
            y = wide / np.where(norm == 0, 1, norm)
            nodes.append(Alone("LpNormalization", {"x": x}, [y], {"p": p, "axis": axis}))
    return nodes


def lrns(dtype: Any) -> list[Alone]:
    """Returns cases computed by the specification's text: onnx's reference (1.23) uses the batch as channels."""
    x = random(2, 7, 3, 5, dtype=dtype)
    wide = x.astype(np.float64)
    nodes = []
    for size in (1, 4, 5):
        squares = np.pad(wide**2, ((0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)))
        y = wide / (1.5 + 0.5 / size * sum(squares[:, i : i + 7] for i in range(size))) ** 0.6
        nodes.append(Alone("LRN", {"x": x}, [y], {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}))
    return nodes


@both
def test_norms(dtype: Any, worker: ProcessPoolExecutor) -> None:
    check_together(
        worker,
        [
            *batch_norms(dtype),
            group_norm("InstanceNormalization", dtype, 6, {}),
            group_norm("GroupNormalization", dtype, 3, {"num_groups": 3}),
            *row_norms("LayerNormalization", dtype),
            *row_norms("RMSNormalization", dtype),
            *statistics("LayerNormalization", dtype),
            *statistics("SimplifiedLayerNormalization", dtype),
            *lp_norms(dtype),
            *lrns(dtype),
        ],
        opset=23,
    )


@both
def test_group_normalization_of_opset_18(dtype: Any, worker: ProcessPoolExecutor) -> None:
    """In opset 18 scale and bias are per group."""
    node = group_norm("GroupNormalization", dtype, 3, {"num_groups": 3}, by_group=True)
    check_together(worker, [node], opset=18)


WRONG: tuple[tuple[str, dict[str, Any], tuple[tuple[int, ...], ...], str], ...] = (
    ("BatchNormalization", {}, ((2, 3, 4), (3,), (3,), (3,), (2,)), "one element for each"),
    ("InstanceNormalization", {}, ((2, 3, 4), (3,), (2,)), "scale and B"),
    ("GroupNormalization", {"num_groups": 4}, ((2, 6, 4), (6,), (6,)), "divide"),
    ("RMSNormalization", {"axis": 1}, ((2, 6, 4), (4, 6)), "broadcast"),
    ("LpNormalization", {"axis": 3}, ((2, 6, 4),), "axis"),
    ("LRN", {"size": 0}, ((2, 6, 4),), "size"),
)


def refusals() -> list[str]:
    """Returns the error of each case, with shapes that ONNX Runtime's inference cannot know and refuse."""
    said = []
    for op, attributes, shapes, _ in WRONG:
        inputs: dict[str, Array] = {f"x{i}": random(*s) for i, s in enumerate(shapes)}
        proto = model_of([helper.make_node(op, list(inputs), ["y"], **attributes)], inputs, ["y"], opset=23)
        try:
            session = new_session(without_dims(proto), {"min_nodes": "1"})
            session.run(None, inputs)
            said.append("nothing")
        except Exception as error:
            said.append(str(error))
    return said


def without_dims(model: bytes) -> bytes:
    proto = onnx.ModelProto.FromString(model)
    for value in proto.graph.input:
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{i}"
    serialized: bytes = proto.SerializeToString()
    return serialized


def test_wrong_shapes_are_refused(worker: ProcessPoolExecutor) -> None:
    for (op, *_, message), said in zip(WRONG, worker.submit(refusals).result(), strict=True):
        assert message in said, f"{op}: {said}"
