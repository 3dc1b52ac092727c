"""The numpy references are usable in onnx's ReferenceEvaluator."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import graphopt
from graphopt.ops import DOMAIN
from graphopt.ops.evaluator import reference_ops
from models import ZOO
from tests.rewriting import run
from tests.verification.test_verify import feeds_of


@pytest.mark.parametrize("name", ["resnet18", "vit", "chess"])
def test_optimized_zoo_model(name: str) -> None:
    after, _ = graphopt.optimize(ZOO[name](small=True), target="cpu", ignore_cost_model=True)
    assert any(n.domain == DOMAIN for n in after.graph.node)
    feeds = feeds_of(after, 3)
    evaluator = ReferenceEvaluator(after, new_ops=reference_ops())
    for want, got in zip(run(after, feeds), evaluator.run(None, feeds), strict=True):
        rms = np.sqrt(np.mean(want.astype(np.float64) ** 2))
        assert np.abs(got - want).max() <= 1e-4 * rms
