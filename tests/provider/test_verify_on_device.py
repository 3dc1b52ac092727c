"""`verify` runs AFTER on our provider as well."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphopt
from graphopt.checking.verify import VerifyReport
from graphopt.errors import OptionError
from models import ZOO
from tests.provider.worker import PROVIDER


def _verify(before: bytes, after: bytes) -> VerifyReport:
    return graphopt.verify(*(onnx.load_from_string(m) for m in (before, after)), provider="graphopt")


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_the_device_is_one_more_way_to_run(worker: ProcessPoolExecutor, name: str) -> None:
    before = ZOO[name](small=True)
    after, _ = graphopt.optimize(before, target="cuda", all_sites=True)
    report = worker.submit(_verify, before.SerializeToString(), after.SerializeToString()).result()
    assert report.equal, report.summary
    ways = {(row.library, row.provider) for row in report.rows}
    assert ways == {(False, "CPUExecutionProvider"), (True, "CPUExecutionProvider"), (True, PROVIDER)}
    assert PROVIDER in report.summary


def test_what_the_device_computes_is_compared(worker: ProcessPoolExecutor) -> None:
    """A model without any node of ours runs there too, and a fault shows there too."""
    before = ZOO["resnet18"](small=True)
    after = onnx.ModelProto()
    after.CopyFrom(before)
    weight = max(after.graph.initializer, key=lambda t: np.prod(t.dims))
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
    report = worker.submit(_verify, before.SerializeToString(), after.SerializeToString()).result()
    assert not report.equal
    assert {row.provider for row in report.rows if not row.equal} == {"CPUExecutionProvider", PROVIDER}


def test_a_provider_that_is_not_there() -> None:
    model = ZOO["resnet18"](small=True)
    with pytest.raises(OptionError, match="no provider 'nnapi'"):
        graphopt.verify(model, model, provider="nnapi")
