"""Checks the compiled kernels of the wheel against the limits of scripts/amd_build.py, for every AMD architecture.

Without a compiler for AMD GPUs the wheel has no device code, and without LLVM's tools it cannot be inspected.
"""

from __future__ import annotations

import pytest

from scripts.amd_build import GEMMS, problems, read_kernels
from tests.hip.architectures import has_matrix, only_matrix
from tests.hip.code_objects import disagreement, parameters, tool
from tests.hip.harness import ROOT, Harness, build_for_tests
from tests.hip.test_kernels_on_cpu import CASES


def has_tools() -> bool:
    try:
        return bool(tool("llvm-readelf") and tool("llvm-objdump"))
    except RuntimeError:
        return False


ARCHITECTURES = {folder.name: folder for folder in sorted((ROOT / "build" / "native").glob("device/gfx*"))}

if ARCHITECTURES and has_tools():

    @pytest.mark.once
    @pytest.mark.parametrize("arch", ARCHITECTURES)
    def test_no_spills_and_matrix_instructions_where_they_belong(arch: str) -> None:
        kernels = read_kernels(sorted(ARCHITECTURES[arch].glob("*.co")), GEMMS)
        assert len(kernels) > 90
        found = [f"{k.name}: {p}" for k in kernels for p in problems(arch, k)]
        assert not found, "\n".join(found)

    @pytest.mark.once
    @pytest.mark.parametrize("arch", ARCHITECTURES)
    def test_plans_match_the_parameters_of_kernels(arch: str) -> None:
        folder = build_for_tests("gpu_harness")
        harness = Harness(folder / "libgpu_harness.so")
        facts = harness.typical_facts(arch)
        taken = parameters(sorted(ARCHITECTURES[arch].glob("*.co")))
        launched = set()
        for case in CASES:
            if only_matrix(case.name) and not has_matrix(arch, half=True):
                with pytest.raises(RuntimeError, match="no matrix units"):
                    case.plan(harness, facts)
                continue
            plans = [case.plan(harness, facts)] + ([case.prepare(harness, facts)] if case.prepare else [])
            for launch in (launch for plan in plans for launch in plan.launches):
                assert not disagreement(launch, taken[launch["kernel"]])
                launched.add(launch["kernel"])
        assert launched == {k for k in taken if has_matrix(arch, half=True) or not only_matrix(k)}
