"""LSTM, GRU and RNN on the provider, against ONNX Runtime's CPU kernels."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.hip.case import compare, signed
from tests.provider.test_ops import ALONE
from tests.provider.worker import Array, model_of, run

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# B, S, I, H, direction, attributes, and the present optional inputs: B(ias), l(engths), h, c, P(eepholes)
FORMS: tuple[tuple[str, tuple[int, int, int, int], str, dict[str, Any], str], ...] = (
    ("LSTM", (2, 5, 7, 9), "forward", {}, "B"),
    ("LSTM", (3, 4, 6, 150), "bidirectional", {"clip": 0.7}, "BlhcP"),
    ("LSTM", (1, 3, 1, 4), "reverse", {"activations": ["Sigmoid", "Tanh", "Tanh"]}, "Bh"),
    ("GRU", (2, 5, 7, 9), "forward", {"linear_before_reset": 1}, "B"),
    ("GRU", (3, 4, 6, 20), "bidirectional", {}, "Blh"),
    ("GRU", (9, 2, 4, 210), "forward", {}, ""),
    ("RNN", (2, 5, 7, 9), "bidirectional", {}, "Bl"),
    ("RNN", (1, 3, 2, 300), "reverse", {"activations": ["Tanh"]}, "h"),
)


def values(op: str, sizes: tuple[int, int, int, int], D: int, optional: str, dtype: Any) -> dict[str, Array]:
    B, S, inputs, H = sizes
    rng, G = np.random.default_rng(sizes), GATES[op]
    given = {
        "x": signed(rng, S, B, inputs, dtype=dtype),
        "w": (signed(rng, D, G * H, inputs) / np.sqrt(inputs)).astype(dtype),
        "r": (signed(rng, D, G * H, H) / np.sqrt(H)).astype(dtype),
        "B": signed(rng, D, 2 * G * H, dtype=dtype),
        "l": rng.integers(1, S + 1, B).astype(np.int32),
        "h": signed(rng, D, B, H, dtype=dtype),
        "c": signed(rng, D, B, H, dtype=dtype),
        "P": signed(rng, D, 3 * H, dtype=dtype),
    }
    return {name: x for name, x in given.items() if name in "xwr" or name in optional}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("form", FORMS)
def test_recurrent(form: Any, dtype: Any, worker: ProcessPoolExecutor) -> None:
    op, sizes, direction, attributes, optional = form
    given = values(op, sizes, 2 if direction == "bidirectional" else 1, optional, dtype)
    names = [name if name in given else "" for name in "xwrBlhcP"[: 8 if op == "LSTM" else 6]]
    # Models often omit Y.
    outputs = ["", "last_h", "last_c"][: 3 if op == "LSTM" else 2] if optional == "B" else ["y", "last_h"]
    node = helper.make_node(op, names, outputs, hidden_size=sizes[3], direction=direction, **attributes)
    wanted = [name for name in outputs if name]
    wide = {name: x if x.dtype == np.int32 else x.astype(np.float32) for name, x in given.items()}
    on_cpu = ort.InferenceSession(model_of([node], wide, wanted, opset=14), providers=["CPUExecutionProvider"])
    expected = on_cpu.run(None, wide)
    outcome = worker.submit(run, model_of([node], given, wanted, opset=14), given, ALONE).result()
    assert outcome.on_device(op) == 1, outcome.placement
    for got, y in zip(outcome.outputs, expected, strict=True):
        message = compare(got, y.astype(got.dtype), 1e-5 if dtype == np.float32 else 5e-3)
        assert not message, message


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LSTM", {"input_forget": 1}),
        ("GRU", {"activations": ["HardSigmoid", "Tanh"]}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)
def test_unsupported_layers_run_on_the_cpu(op: str, attributes: dict[str, Any], worker: ProcessPoolExecutor) -> None:
    given = values(op, (2, 3, 4, 5), 1, "B", np.float32)
    node = helper.make_node(op, [*given], ["y"], hidden_size=5, **attributes)
    model = model_of([node], given, ["y"], opset=14, out_types={"y": TensorProto.FLOAT})
    assert worker.submit(run, model, given, ALONE).result().on_device(op) == 0
