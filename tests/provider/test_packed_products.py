"""Matrix multiplications by weights that DequantizeLinear dequantizes in blocks run on MatMulNBits' kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.provider.test_ops import ALONE
from tests.provider.test_regions import REASSOCIATED, runs
from tests.provider.worker import Array

# Least and greatest element.
RANGES: dict[int, tuple[int, int]] = {
    TensorProto.UINT4: (0, 15),
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
}
TOLERANCES = {np.float32: REASSOCIATED, np.float16: 3e-3}  # relative to RMS


@dataclass
class Product:
    """Y [.., N] = A [.., K] W, with W quantized in blocks of `size` along K."""

    kind: int = TensorProto.UINT4
    dtype: Any = np.float32
    K: int = 96
    N: int = 40
    size: int = 32
    points: bool = True
    transposed: bool = False  # the weights are stored as [N, K]
    op: str = "MatMul"  # or Gemm, FusedMatMul, or Transpose and MatMul
    bias: bool = False
    rows: tuple[int, ...] = (2, 3)

    def arrays(self) -> dict[str, Array]:
        """Returns A, the bias, and q, s and z of W [K, N] as integers, scales and zero points [blocks, N]."""
        rng = np.random.default_rng([self.K, self.N, self.size])
        low, high = RANGES[self.kind]
        blocks = -(-self.K // self.size)
        return {
            "a": rng.normal(size=(*self.rows, self.K)).astype(self.dtype),
            "q": rng.integers(low, high + 1, (self.K, self.N)),
            "s": (rng.choice((-1, 1), (blocks, self.N)) * (rng.random((blocks, self.N)) + 0.5)).astype(self.dtype),
            "z": rng.integers(low, high + 1, (blocks, self.N)),
            "b": rng.normal(size=self.N).astype(self.dtype),
        }

    def model(self, change: Callable[[onnx.ModelProto], None] = lambda model: None) -> bytes:
        arrays = self.arrays()
        weights = {name: arrays[name].T if self.transposed else arrays[name] for name in "qsz"}
        constants = [numpy_helper.from_array(weights.pop("s"), "s")]
        if not self.points:
            del weights["z"]
        for name, x in weights.items():
            constants.append(helper.make_tensor(name, self.kind, x.shape, x.reshape(-1)))
        constants.append(numpy_helper.from_array(arrays["b"], "b"))
        nodes = [
            helper.make_node(
                "DequantizeLinear",
                ["q", "s", "z"] if self.points else ["q", "s"],
                ["w"],
                axis=int(self.transposed),
                block_size=self.size,
            )
        ]
        inputs, domain = ["a", "w"], ""
        attributes: dict[str, Any] = {}
        if self.op == "Transpose":
            nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
            inputs = ["a", "t"]
        elif self.op != "MatMul":
            attributes = {"transB": int(self.transposed)}
            domain = "com.microsoft" if self.op == "FusedMatMul" else ""
        if self.bias:
            inputs.append("b")
        op = "MatMul" if self.op == "Transpose" else self.op
        nodes.append(helper.make_node(op, inputs, ["y"], domain=domain, **attributes))
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        rows = [f"rows{i}" for i in range(len(self.rows))]
        x, y = (helper.make_tensor_value_info(n, element, [*rows, last]) for n, last in (("a", self.K), ("y", self.N)))
        graph = helper.make_graph(nodes, "g", [x], [y], constants)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        change(model)
        content: bytes = model.SerializeToString()
        return content

    def reference(self) -> Array:
        """Returns Y by the definition of DequantizeLinear, in float64."""
        arrays = {name: x.astype(np.float64) for name, x in self.arrays().items()}
        block = np.arange(self.K) // self.size
        points = arrays["z"][block] if self.points else 0
        weights = (arrays["q"] - points) * arrays["s"][block]
        return np.asarray(arrays["a"] @ weights + (arrays["b"] if self.bias else 0))


def check(case: Product, fused: int, worker: ProcessPoolExecutor, model: bytes | None = None) -> None:
    """Asserts the number of fused matrix multiplications and the result."""
    outputs, events = worker.submit(runs, model or case.model(), [{"a": case.arrays()["a"]}] * 2, ALONE).result()
    assert events["compiled"] == 1
    assert events.get("fused", 0) == fused
    want = case.reference()
    for (y,) in outputs:
        assert y.dtype == case.dtype
        error = np.abs(y.astype(np.float64) - want).max() / np.sqrt(np.mean(np.square(want)))
        assert error <= TOLERANCES[case.dtype]


@pytest.mark.parametrize("kind", RANGES, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("points", [False, True])
def test_quantized_weights_of_each_type(kind: int, transposed: bool, points: bool, worker: ProcessPoolExecutor) -> None:
    op = "Transpose" if transposed else "MatMul"
    for dtype, (K, N, size) in zip((np.float32, np.float16), ((96, 40, 32), (72, 7, 16)), strict=True):
        check(Product(kind, dtype, K, N, size, points, transposed, op), 1, worker)


def test_drawn_weights(worker: ProcessPoolExecutor) -> None:
    """Sizes that are not multiples of a block or of two, all block sizes, and other operators that multiply."""
    rng = np.random.default_rng(4)
    sizes = itertools.cycle((16, 32, 64, 128, 256))
    for op in ("MatMul", "Transpose", "Gemm", "FusedMatMul") * 4:
        case = Product(
            kind=int(rng.choice(list(RANGES))),
            dtype=np.float32 if rng.integers(2) else np.float16,
            K=int(rng.integers(1, 300)),
            N=int(rng.integers(1, 150)),
            size=next(sizes),
            points=bool(rng.integers(2)),
            transposed=op == "Transpose" or (op != "MatMul" and bool(rng.integers(2))),
            op=op,
            bias=op == "Gemm" and bool(rng.integers(2)),
            rows=(int(rng.integers(1, 40)),) if op == "Gemm" else (2, int(rng.integers(1, 20))),
        )
        check(case, 1, worker)


def test_a_vector_times_quantized_weights(worker: ProcessPoolExecutor) -> None:
    check(Product(rows=()), 1, worker)


# ONNX Runtime duplicates a DequantizeLinear for each reader, but not the Transpose after it.
def _also_an_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, None))


def _read_twice(model: onnx.ModelProto) -> None:
    model.graph.node[-1].output[0] = "product"
    model.graph.node.append(helper.make_node("ReduceSum", ["t"], ["sum"], keepdims=0))
    model.graph.node.append(helper.make_node("Mul", ["sum", "zero"], ["nothing"]))
    model.graph.node.append(helper.make_node("Add", ["product", "nothing"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "zero"))


def _computed_scale(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Abs", ["s"], ["positive"]))
    model.graph.node.insert(1, helper.make_node("Sign", ["s"], ["sign"]))
    model.graph.node.insert(2, helper.make_node("Mul", ["positive", "sign"], ["scale"]))
    model.graph.node[3].input[1] = "scale"


REFUSED: dict[str, tuple[Product, Callable[[onnx.ModelProto], None]]] = {
    "the weights are an output": (Product(transposed=True, op="Transpose"), _also_an_output),
    "the weights have another reader": (Product(transposed=True, op="Transpose"), _read_twice),
    "the scale is not constant": (Product(), _computed_scale),
    "blocks of 8": (Product(size=8), lambda model: None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_weights_are_dequantized(name: str, worker: ProcessPoolExecutor) -> None:
    case, change = REFUSED[name]
    outputs, events = worker.submit(runs, case.model(change), [{"a": case.arrays()["a"]}], ALONE).result()
    assert "fused" not in events
    want = case.reference()
    assert np.abs(outputs[0][0] - want).max() <= TOLERANCES[np.float32] * np.sqrt(np.mean(np.square(want)))


def test_blocks_along_columns_are_dequantized(worker: ProcessPoolExecutor) -> None:
    """With square weights, blocks along N have scales of the shape that blocks along K would have."""
    case = replace(Product(), K=64, N=64, transposed=True)
    outputs, events = worker.submit(runs, case.model(), [{"a": case.arrays()["a"]}], ALONE).result()
    assert "fused" not in events
    arrays = {name: x.astype(np.float64) for name, x in case.arrays().items()}
    block = np.arange(64) // 32
    weights = ((arrays["q"] - arrays["z"][block]) * arrays["s"][block]).T
    want = arrays["a"] @ weights
    assert np.abs(outputs[0][0] - want).max() <= TOLERANCES[np.float32] * np.sqrt(np.mean(np.square(want)))
