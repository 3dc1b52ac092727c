"""Float64 references of crop_and_resize.py and its random nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphopt.contrib.schema import Call
from graphopt.ops.schema import Array
from tests.contrib.case import Case, Reference, either, normal


def _reference(call: Call[Array]) -> Mapping[str, Array]:
    """Computes each pixel separately."""
    X, rois = call["X"], call["rois"]
    crop = [int(n) for n in call["crop_size"]]
    y = np.full((len(rois), X.shape[1], *crop), float(call.attribute("extrapolation_value")))
    for r, i, j in np.ndindex(len(rois), *crop):
        at = []
        for k, n, extent, begin, end in (
            (i, crop[0], X.shape[2], *rois[r, ::2]),
            (j, crop[1], X.shape[3], *rois[r, 1::2]),
        ):
            part = 0.5 if n == 1 else k / (n - 1)
            at.append((begin + part * (end - begin)) * (extent - 1))
        if not all(0 <= a <= extent - 1 for a, extent in zip(at, X.shape[2:])):
            continue
        image = X[call["batch_indices"][r]]
        if call.attribute("mode") == "nearest":
            y[r, :, i, j] = image[:, int(at[0] + 0.5), int(at[1] + 0.5)]
            continue
        y[r, :, i, j] = 0.0
        for row, above in ((int(np.floor(at[0])), 1 - at[0] % 1), (int(np.ceil(at[0])), at[0] % 1)):
            for column, left in ((int(np.floor(at[1])), 1 - at[1] % 1), (int(np.ceil(at[1])), at[1] % 1)):
                y[r, :, i, j] += above * left * image[:, row, column]
    return {"Y": y}


def _draw(rng: np.random.Generator) -> Case:
    N, R = int(either(rng, 1, 2)), int(either(rng, 1, 3))
    corners = rng.uniform(-0.1, 1.1, (R, 4)).astype(np.float32)
    inputs = {
        "X": normal(rng, N, 3, 7, 6),
        "rois": corners,
        "batch_indices": rng.integers(0, N, R, np.int32),
        "crop_size": np.array([either(rng, 1, 4), either(rng, 1, 5)], np.int32),
    }
    attributes: dict[str, str | float] = {"mode": str(either(rng, "bilinear", "nearest"))}
    if rng.random() < 0.5:
        attributes["extrapolation_value"] = 2.5
    return Case(inputs, attributes, ("Y",), frozenset({"crop_size"}), tolerance=1e-4)


REFERENCES = {
    ("com.microsoft", "CropAndResize"): Reference(_reference, _draw),
}
