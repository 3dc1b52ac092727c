"""The zoo is valid, runs, computes non-trivial results, and is deterministic."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from models import ZOO
from tests.rewriting import run
from tests.verification.test_verify import feeds_of


@pytest.mark.parametrize("name", ZOO)
def test_small_variant(name: str) -> None:
    model = ZOO[name](small=True, batch=2)
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString() == ZOO[name](small=True, batch=2).SerializeToString()
    assert model.ir_version == 8
    for output in run(model, feeds_of(model, 0)):
        assert np.isfinite(output).all()
        assert output.std() > 1e-3


@pytest.mark.once
@pytest.mark.parametrize("name", ZOO)
def test_optimizing_twice_changes_nothing_more(name: str) -> None:
    model = ZOO[name](small=True, dynamic=True)
    before = model.SerializeToString()
    once, report = graphopt.optimize(model, target="cpu", ignore_cost_model=True, check=True)
    assert model.SerializeToString() == before
    assert report.changed
    twice, _ = graphopt.optimize(once, target="cpu", ignore_cost_model=True)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


@pytest.mark.once
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16_bn", "mobilenet_v2", "unet", "yolo"])
def test_no_batch_norm_is_left(name: str) -> None:
    after, report = graphopt.optimize(ZOO[name](small=True), target="cpu", ignore_cost_model=True)
    assert "BatchNormalization" not in {n.op_type for n in after.graph.node}
    swaps = [r for r in report.remarks if r.pass_name == "winograd_conv"]
    assert all(r.applied or r.code in ("ATTRIBUTE", "WRONG_SHAPE") for r in swaps), swaps
