"""`with_exact_sums` must give a model that computes the same: a wrong one would loosen the limits for AFTER."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.writing import to_message
from graphopt.targets.target import Target
from graphopt.verification.variants import FLOAT64_KERNELS, PLANE_MEANS, ROW_NORMS, has_sums, with_exact_sums
from tests.rewriting import Array, inferred, model_from_text

AXES = "axes = Constant <value = int64[2] {1, 3}> ()"
ROWS = "s = Constant <value = float[5] {1, 2, 3, 4, 5}> ()"
CHANNELS = "s = Constant <value = float[6] {1, 2, 3, 4, 5, 6}> () b = Constant <value = float[6] {0, 1, 2, 3, 4, 5}> ()"
GROUPS = "s = Constant <value = float[3] {1, 2, 3}> () b = Constant <value = float[3] {0, 1, 2}> ()"
SIGNAL = "d = Constant <value = int64[3] {15, 16, 1}> () t = Reshape (x, d)"
# Operator -> (opset, body that computes y from x [2, 6, 4, 5]).
BODIES = [
    *((11, f"y = {op} <axes = [1, 3]> (x)") for op in FLOAT64_KERNELS if op.startswith("Reduce")),
    *((18, f"{AXES} y = {op} (x, axes)") for op in FLOAT64_KERNELS if op.startswith("Reduce")),
    *((opset, f"y = {op} (x)") for op in ("Softmax", "LogSoftmax") for opset in (11, 13)),
    (11, "y = LpNormalization <axis = 1, p = 1> (x)"),
    (14, "axis = Constant <value = int64 {2}> () y = CumSum <reverse = 1> (x, axis)"),
    (14, 't = Transpose <perm = [0, 1, 3, 2]> (x) y = Einsum <equation = "abij,abjk->abik"> (x, t)'),
    (14, "t = Transpose <perm = [0, 1, 3, 2]> (x) y = MatMul (x, t)"),
    (14, f"{ROWS} f = Flatten <axis = 3> (x) y = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (f, f)"),
    (17, f"{SIGNAL} y = DFT <axis = 1> (t)"),
    (17, f"{SIGNAL} {ROWS} k = Constant <value = int64 {{3}}> () y = STFT (t, k, s)"),
    (11, "y = GlobalAveragePool (x)"),
    (18, "y = GlobalAveragePool (x)"),
    (14, f"{CHANNELS} y = InstanceNormalization <epsilon = 0.1> (x, s, b)"),
    (18, f"{GROUPS} y = GroupNormalization <num_groups = 3, epsilon = 0.1> (x, s, b)"),
    (21, f"{CHANNELS} y = GroupNormalization <num_groups = 3, epsilon = 0.1> (x, s, b)"),
    (23, f"{ROWS} y = RMSNormalization <epsilon = 0.1> (x, s)"),
    (17, f"{ROWS} y = SimplifiedLayerNormalization <epsilon = 0.1> (x, s)"),
    *((opset, "y = Conv <strides = [2, 1], pads = [1, 0, 0, 1], dilations = [1, 2]> (x, w, v)") for opset in (11, 18)),
]
X = np.random.default_rng(0).standard_normal((2, 6, 4, 5)).astype(np.float32)


def _outputs(model: onnx.ModelProto) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {"x": X})[0]
    return result


@pytest.mark.parametrize(("opset", "body"), BODIES)
def test_exact_sums_give_the_same_results(opset: int, body: str) -> None:
    if opset >= 23 and onnxruntime.__version__ < "1.23":
        pytest.skip("the runtime refuses the opset")
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((4, 6, 2, 2)), "v": rng.standard_normal(4)} if "Conv" in body else {}
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    text = f"g (float[2, 6, 4, 5] x) => (float y) {{ {body} }}"
    model = model_from_text(text, constants, opset, check=False)
    wanted = _outputs(model)
    copy = inferred(model)
    assert has_sums(copy.graph)
    with_exact_sums(Editor(copy, Target("cpu")))
    assert any(node.attributes["to"].value == ir.DataType.DOUBLE for node in copy.graph if node.op_type == "Cast")
    inference.forget(copy)
    np.testing.assert_allclose(_outputs(to_message(copy)), wanted, rtol=1e-5, atol=1e-5)


def test_every_operator_has_a_case() -> None:
    tested = {word for _, body in BODIES for word in body.split()}
    assert tested >= FLOAT64_KERNELS.keys() | PLANE_MEANS | ROW_NORMS | {"Conv"}
