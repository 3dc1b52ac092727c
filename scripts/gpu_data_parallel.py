"""Splits a batch over the GPUs of one machine: compares the outputs, and times it against one GPU.

    python scripts/gpu_data_parallel.py

Builds the library with nvcc into graphopt/lib first. For ResNet-50 and BERT-base in float32: the outputs of
`graphopt.DataParallel` over all devices against a session on one, and the medians of interleaved runs of both from host
memory. Fails when the outputs differ by more than rounding, or when there are fewer than two devices.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

import graphopt
from graphopt import DataParallel
from graphopt.runtime.sessions import DEVICE_PROVIDER, device_count
from models import ZOO
from tests.hip.harness import ROOT, build_for_cuda

ROUNDS = 15
LIMIT = 1e-5
BATCHES = {"resnet50": 128, "bert": 64}


def feeds_of(session: Any, batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for value in session.get_inputs():
        shape = [batch if i == 0 else d if isinstance(d, int) else 128 for i, d in enumerate(value.shape)]
        if value.type == "tensor(float)":
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            feeds[value.name] = np.ones(shape, np.int64) if "mask" in value.name else rng.integers(0, 2, shape)
    return feeds


def main() -> int:
    # The vendor libraries that PyTorch has loaded serve us, too.
    torch.zeros(1, device="cuda") @ torch.zeros(1, device="cuda")
    torch.nn.functional.conv2d(torch.zeros(1, 1, 3, 3, device="cuda"), torch.zeros(1, 1, 3, 3, device="cuda"))
    library = build_for_cuda("graphopt")
    (ROOT / "graphopt" / "lib").mkdir(exist_ok=True)
    shutil.copy(library, ROOT / "graphopt" / "lib")
    print(f"{device_count()} devices: {torch.cuda.get_device_name()}")
    failed = device_count() < 2
    print("| model | batch | one device, ms | all, ms | speedup | difference, of RMS |")
    for name, batch in BATCHES.items():
        optimized, _ = graphopt.optimize(ZOO[name](dynamic=True), target="cuda")
        model = optimized.SerializeToString()
        one = graphopt.session(model, [(DEVICE_PROVIDER, {"device": 0}), "CPUExecutionProvider"], log_severity_level=3)
        every = DataParallel(model, log_severity_level=3)
        feeds = feeds_of(one, batch)
        wanted, got = one.run(None, feeds), every.run(None, feeds)
        error = max(
            float(np.abs(g - w).max() / np.sqrt(np.mean(w.astype(np.float64) ** 2))) for g, w in zip(got, wanted)
        )
        times: dict[str, list[float]] = {"one": [], "all": []}
        for _ in range(ROUNDS):
            for side, runner in (("one", one), ("all", every)):
                start = time.perf_counter()
                runner.run(None, feeds)
                times[side].append(1e3 * (time.perf_counter() - start))
        a, b = (statistics.median(times[side]) for side in ("one", "all"))
        print(f"| {name} | {batch} | {a:.1f} | {b:.1f} | {a / b:.2f} | {error:.1e} |", flush=True)
        failed |= error > LIMIT
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
