"""Checks every GPU kernel on an NVIDIA GPU against float64: the cases of tests/hip and larger shapes.

Builds the kernels with nvcc first. Names on the command line select cases. With --sanitize it runs itself under
compute-sanitizer (memcheck, racecheck), in as many processes as there are cores. Without names this implies --few,
which skips the larger shapes. Each process runs a part of the cases (--part I/N: every Nth one from the Ith on).
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from tests.hip.case import Case
from tests.hip.for_gpus import large_cases
from tests.hip.harness import Device, Harness, build_for_cuda
from tests.hip.registry import all_cases


def open_device() -> tuple[Harness, Device]:
    torch.cuda.init()
    torch.zeros(1, device="cuda")  # creates the context that the loader then uses
    harness = Harness(build_for_cuda("gpu_harness"))
    return harness, harness.open("cuda")


def run(case: Case, harness: Harness, device: Device) -> list[np.ndarray]:
    plan = case.plan(harness, device.facts)
    inputs = [torch.from_numpy(x).cuda() for x in case.inputs]

    def poison(nbytes: int) -> torch.Tensor:
        return torch.full((max(nbytes, 16),), 255, dtype=torch.uint8, device="cuda")

    expected = case.outputs()
    outputs, workspace = [poison(e.nbytes) for e in expected], [poison(n) for n in plan.workspace]
    read, written, scratch = ([t.data_ptr() for t in tensors] for tensors in (inputs, outputs, workspace))
    stream = torch.cuda.current_stream().cuda_stream
    weights = 0
    if case.prepare is not None:
        prepare = case.prepare(harness, device.facts)
        prepared = poison(prepare.weights)
        weights = prepared.data_ptr()
        device.run(prepare, read, [], [], weights, stream)
    device.run(plan, read, written, scratch, weights, stream)
    torch.cuda.synchronize()
    return case.view([t.cpu().numpy() for t in outputs])


def sanitize(tool: str, arguments: Sequence[str]) -> bool:
    """Returns whether a tool of compute-sanitizer finds no errors in any part of the cases."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # By default memcheck also reports API calls that return an error status, which callers may handle.
    options = ["--report-api-errors", "no"] if tool == "memcheck" else []
    command = [sanitizer, "--tool", tool, *options, "--error-exitcode", "9", sys.executable, __file__, *arguments]
    parts = os.cpu_count() or 1
    started = [
        subprocess.Popen(
            [*command, "--part", f"{i}/{parts}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for i in range(parts)
    ]
    clean = True
    for process in started:
        lines = process.communicate()[0].splitlines()
        print(
            f"compute-sanitizer {tool}: {process.returncode}",
            *lines[-2 if process.returncode == 0 else -40 :],
            sep="\n  ",
        )
        clean &= process.returncode == 0
    return clean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--few", action="store_true", help="skip the larger shapes")
    parser.add_argument("--part", default="0/1", metavar="I/N")
    options = parser.parse_args()
    if options.sanitize:
        build_for_cuda("gpu_harness")  # once, not in each process
        arguments = [*options.names, *(["--few"] if options.few or not options.names else [])]
        clean = [sanitize(tool, arguments) for tool in ("memcheck", "racecheck")]
        return int(not all(clean))
    harness, device = open_device()
    first, parts = map(int, options.part.split("/"))
    named = (
        case
        for case in itertools.chain(all_cases(), () if options.few else large_cases())
        if not options.names or any(name in case.name for name in options.names)
    )
    failures = count = 0
    for case in itertools.islice(named, first, None, parts):
        count += 1
        try:
            message = case.check(run(case, harness, device))
        except RuntimeError as error:  # no plan, or a device error, which also fails all later cases
            message = str(error)
        if message:
            failures += 1
            print(f"FAILED {case.op} {case.name}: {message}")
    print(f"{count} cases, {failures} failures")
    return int(failures > 0 or (not count and parts == 1))  # names that select no case check nothing


if __name__ == "__main__":
    sys.exit(main())
