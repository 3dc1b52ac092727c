"""Image operators on the provider, alone in a graph: all modes of Resize, against ONNX's reference in float64."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.hip.grid_sample_cases import sampled
from tests.provider.test_more_ops import both, check, random
from tests.provider.test_ops import ALONE
from tests.provider.worker import model_of, run

# mode, coordinates, scales or sizes, and other attributes.
RESIZES: tuple[tuple[str, str, Any, dict[str, Any]], ...] = (
    ("cubic", "half_pixel", (1.0, 1.0, 1.5, 2.0), {}),
    ("cubic", "align_corners", (2, 3, 4, 11), {"cubic_coeff_a": -0.5}),
    ("cubic", "asymmetric", (1.0, 1.0, 0.6, 1.7), {"exclude_outside": 1}),
    ("cubic", "half_pixel", (2, 3, 3, 2), {"antialias": 1}),
    ("linear", "half_pixel", (2, 3, 2, 9), {"antialias": 1}),
    ("linear", "half_pixel_symmetric", (1.0, 1.0, 1.3, 1.7), {}),
    ("linear", "half_pixel", (4, 6, 6, 5), {}),
    ("nearest", "half_pixel", (4, 3, 9, 5), {"nearest_mode": "ceil"}),
    ("nearest", "half_pixel_symmetric", (1.0, 1.0, 0.7, 1.9), {}),
    ("linear", "pytorch_half_pixel", (12, 9), {"axes": [3, 2]}),
    ("cubic", "half_pixel", (2, 9), {"axes": [1, 3]}),
    ("linear", "half_pixel", (13, 20), {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
    ("nearest", "half_pixel", (13, 20), {"axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"}),
)


@both
@pytest.mark.parametrize(("mode", "coordinates", "target", "attributes"), RESIZES)
def test_resize(
    mode: str, coordinates: str, target: Any, attributes: dict[str, Any], dtype: Any, worker: ProcessPoolExecutor
) -> None:
    by_size = isinstance(target[0], int)
    node = helper.make_node(
        "Resize",
        ["x", "", "", "sizes"] if by_size else ["x", "", "scales"],
        ["y"],
        mode=mode,
        coordinate_transformation_mode=coordinates,
        **attributes,
    )
    constants = {"sizes": np.array(target)} if by_size else {"scales": np.array(target, np.float32)}
    check(worker, node, {"x": random(2, 3, 6, 5, dtype=dtype)}, constants, opset=19)


@both
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_of_a_crop(mode: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 10.0,
    }
    node = helper.make_node("Resize", ["x", "roi", "", "sizes"], ["y"], axes=[2, 3], **attributes)
    roi = np.array([0.4, 0.6, 1.15, 0.9], np.float32)
    check(worker, node, {"x": random(1, 2, 6, 7, dtype=dtype)}, {"roi": roi, "sizes": np.array([5, 3])}, opset=19)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.int64])
def test_nearest_resize_of_integers(dtype: Any, worker: ProcessPoolExecutor) -> None:
    x = (20 * random(2, 3, 4)).astype(np.int64).astype(dtype)
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest")
    out_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    check(worker, node, {"x": x}, {"sizes": np.array([3, 5, 2])}, 0, opset=19, out_type=out_type)


@both
def test_resize_of_volumes(dtype: Any, worker: ProcessPoolExecutor) -> None:
    x = random(1, 2, 3, 4, 5, dtype=dtype)
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")
    check(worker, node, {"x": x}, {"sizes": np.array([1, 2, 5, 6, 3])}, opset=19)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("mode", ["constant", "wrap"])
def test_pad_of_named_axes(mode: str, dtype: Any, worker: ProcessPoolExecutor) -> None:
    x = (20 * random(3, 4, 5)).astype(np.int64).astype(dtype)
    constants = {"pads": np.array([1, 2, 4, 7]), "value": np.array(3, dtype), "axes": np.array([-1, 0])}
    node = helper.make_node("Pad", ["x", *constants], ["y"], mode=mode)
    widths = ((2, 7), (0, 0), (1, 4))
    y = np.pad(x, widths, mode="wrap") if mode == "wrap" else np.pad(x, widths, constant_values=3)
    check(worker, node, {"x": x}, constants, 0, opset=19, expected=[y])


@both
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("beyond", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("mode", "opset"), [("nearest", 16), ("linear", 20), ("cubic", 20), ("linear", 22)])
def test_grid_sample(mode: str, opset: int, beyond: str, corners: int, dtype: Any, worker: ProcessPoolExecutor) -> None:
    sizes, out = ((5, 4), (3, 6)) if opset < 22 else ((3, 4, 5), (2, 3, 2))
    x = random(2, 3, *sizes, dtype=dtype)
    grid = np.clip(random(2, *out, len(sizes), dtype=dtype), -1.8, 1.8).astype(dtype)
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode=mode, padding_mode=beyond, align_corners=corners)
    check(worker, node, {"x": x, "g": grid}, tolerance=1e-4 if dtype == np.float32 else None, opset=opset)


@both
def test_grid_sample_of_opset_16(dtype: Any, worker: ProcessPoolExecutor) -> None:
    x, grid = random(2, 3, 5, 4, dtype=dtype), random(2, 3, 6, 2, dtype=dtype)
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode="bilinear", padding_mode="border")
    y = sampled(x.astype(np.float64), grid.astype(np.float64), "linear", "border", False)
    check(worker, node, {"x": x, "g": grid}, tolerance=1e-4 if dtype == np.float32 else None, opset=16, expected=[y])


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("least", [None, 0.3, 9.0])
@pytest.mark.parametrize("most", [0, 3, 2**62])
def test_non_max_suppression(most: int, least: float | None, centred: int, worker: ProcessPoolExecutor) -> None:
    boxes, scores = random(2, 30, 4), np.round(random(2, 3, 30), 1)
    boxes[..., 2:] = np.abs(boxes[..., 2:]) + 0.1 if centred else boxes[..., :2] + boxes[..., 2:]
    constants = {"most": np.array([most]), "overlap": np.array([0.4], np.float32)}
    if least is not None:
        constants["least"] = np.array([least], np.float32)
    node = helper.make_node("NonMaxSuppression", ["b", "s", *constants], ["y"], center_point_box=centred)
    given = {"b": boxes, "s": scores}
    model = model_of([node], given, ["y"], constants, 11, {"y": TensorProto.INT64})
    expected = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, given)[0]
    outcome = worker.submit(run, model, given, ALONE).result()
    assert outcome.on_device("NonMaxSuppression") == 1, outcome.placement
    np.testing.assert_array_equal(outcome.outputs[0], expected)
