"""Linear on the provider, and on the CPU if it is disabled."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from graphopt.ops import OPS
from graphopt.ops.case import model_of
from graphopt.ops.cases import cases_of
from tests.provider.worker import run

NAMES = [name for name, spec in OPS.items() if name.startswith("Linear") and spec.gpu_kernel]
ALONE = {"min_nodes": "1"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_against_float64(name: str, dtype: str, worker: ProcessPoolExecutor) -> None:
    cases = [case.cast(dtype) for case in cases_of(OPS[name])]
    model, feeds = model_of(cases, 17, bodies=True)
    outcome = worker.submit(run, model.SerializeToString(), dict(feeds), ALONE).result()
    assert outcome.on_device(name) == len(cases)
    assert not Counter(outcome.elsewhere)
    for case, got in zip(cases, outcome.outputs, strict=True):
        assert case.error([got]) <= case.tolerance(dtype), [x.shape for x in case.inputs]


def test_switched_off_it_runs_on_the_cpu(worker: ProcessPoolExecutor) -> None:
    cases = [case.cast("float32") for case in cases_of(OPS["LinearGelu"])[1:2]]
    model, feeds = model_of(cases, 17, bodies=True)
    outcome = worker.submit(run, model.SerializeToString(), dict(feeds), {"disable": "Linear*"}).result()
    assert outcome.on_device("LinearGelu") == 0
    assert outcome.placement["CPUExecutionProvider"]["LinearGelu"] == 1
    assert cases[0].error(outcome.outputs) <= cases[0].tolerance("float32")
