"""The self-test on our provider: every operator has a kernel on the device, and none falls to the CPU."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

from graphopt.selftest import SelfTest, selftest


def _selftest() -> SelfTest:
    return selftest()


def test_every_kernel_passes_on_the_device(worker: ProcessPoolExecutor) -> None:
    tested = worker.submit(_selftest).result()
    assert tested.provider == "GraphoptExecutionProvider"
    assert [(r.op, r.dtype, r.detail) for r in tested.failed] == []
