"""Creates, runs and destroys sessions of many models in random order in one process, as on a server.

STAND_IN_LATE delays all work as far as a device can, and with GRAPHOPT_GUARD_MEMORY the allocators cache nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.provider.sequence_cases import MOST_ALIVE
from tests.provider.stand_in import StandIn
from tests.provider.test_amd import products, with_kernels


@pytest.mark.parametrize(("threads", "steps"), [(1, 60), (3, 25)])
def test_sessions_in_any_order(threads: int, steps: int, gpu: StandIn, tmp_path: Path) -> None:
    kernels = with_kernels(tmp_path, "gfx1100")
    outcome = replace(gpu, module="tests.provider.sequence_cases").run(
        "sessions_in_any_order",
        **products(gpu),
        STAND_IN_LATE="1",
        GRAPHOPT_GUARD_MEMORY="1",
        ROCBLAS_TENSILE_LIBPATH=kernels,
        MIOPEN_SYSTEM_DB_PATH=kernels,
        SEQUENCE_SEED="0",
        SEQUENCE_STEPS=str(steps),
        SEQUENCE_THREADS=str(threads),
    )
    done = [sum(one[action] for one in outcome.value["done"]) for action in ("begin", "host", "device", "end")]
    assert min(done) > 4 and sum(done) == threads * steps
    bytes_alive, streams = outcome.value["alive"]
    # Streams with the workspace of their BLAS handle are kept for the next session, as are constants of the process.
    assert streams <= threads * MOST_ALIVE
    assert bytes_alive < (1 << 16) + streams * (32 << 20)
