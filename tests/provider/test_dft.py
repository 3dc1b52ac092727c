"""DFT and STFT on the provider, against ONNX Runtime's CPU kernels."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from tests.hip.case import compare
from tests.provider.test_more_ops import random
from tests.provider.test_ops import ALONE
from tests.provider.worker import Array, model_of, run


def check(worker: ProcessPoolExecutor, node: Any, x: Array, constants: dict[str, Array], opset: int) -> None:
    model = model_of([node], {"x": x}, ["y"], constants, opset)
    expected = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    outcome = worker.submit(run, model, {"x": x}, ALONE).result()
    assert outcome.on_device(node.op_type) == 1, outcome.placement
    assert outcome.outputs[0].shape == expected.shape
    message = compare(outcome.outputs[0], expected, 1e-5)
    assert not message, message


@pytest.mark.parametrize(
    ("shape", "attributes", "length", "axis"),
    [
        ((2, 8, 3, 2), {}, None, 1),
        ((2, 8, 3, 1), {"onesided": 1}, None, -3),
        ((2, 9, 2), {"inverse": 1}, 12, 1),
        ((5, 4, 1), {}, 3, 0),
    ],
)
@pytest.mark.parametrize("opset", [17, 20])
def test_dft(
    opset: int, shape: tuple[int, ...], attributes: dict[str, Any], length: Any, axis: int, worker: ProcessPoolExecutor
) -> None:
    constants = {} if length is None else {"length": np.array(length)}
    names = ["x", "length" if constants else ""]
    if opset == 20:
        constants["axis"] = np.array(axis)
        names.append("axis")
    else:
        attributes = {**attributes, "axis": axis}
        names = names[: 1 + len(constants)]
    check(worker, helper.make_node("DFT", names, ["y"], **attributes), random(*shape), constants, opset)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("given", ["window", "length", "both"])
def test_stft(given: str, onesided: int, worker: ProcessPoolExecutor) -> None:
    constants = {"step": np.array(5), "window": random(16), "length": np.array(16)}
    if given != "both":
        del constants["length" if given == "window" else "window"]
    names = ["x", *(name if name in constants else "" for name in ("step", "window", "length"))]
    node = helper.make_node("STFT", names[: 3 if given == "window" else 4], ["y"], onesided=onesided)
    check(worker, node, random(2, 100, 1), constants, 17)
