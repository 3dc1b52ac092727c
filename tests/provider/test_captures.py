"""Rules of ROCm and CUDA for captured streams, graphs and the handles of libraries.

The stand-ins in tests/native/stand_ins name the source of each rule; docs/amd_behaviour.md maps rules to tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.provider.stand_in import EPILOGUES, Outcome, StandIn
from tests.provider.test_amd import products as rocblas
from tests.provider.test_amd import with_kernels

DRIVERS = [("hip", "gfx1100"), ("cuda", "sm_90")]


@pytest.fixture(scope="module")
def captures(gpu: StandIn) -> StandIn:
    return replace(gpu, module="tests.provider.capture_cases")


def assert_undisturbed(found: dict[str, dict[str, Any]]) -> None:
    """Asserts that both threads got correct results, and that the capture was not lost."""
    wrong = [
        f"{name}: {one}"
        for name, one in found.items()
        if one["messages"] or not one["error"] < 1e-6 or not one["captured"] or one["refused"]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("driver", "arch"), DRIVERS)
def test_no_call_waits_for_the_device_during_a_capture(driver: str, arch: str, captures: StandIn) -> None:
    """A wait for the device fails during a capture, and ends every capture of the process."""
    assert_undisturbed(captures.run("waits_for_the_device", arch, driver).value)


@pytest.mark.parametrize(("driver", "arch"), DRIVERS)
def test_the_null_stream_and_captured_events_are_not_used(driver: str, arch: str, captures: StandIn) -> None:
    """In HIP, work on the null stream ends every capture; a query of an event ends the capture of its own stream."""
    assert_undisturbed(captures.run("uses_the_null_stream_and_events", arch, driver).value)


@pytest.mark.parametrize(("driver", "arch"), DRIVERS)
def test_memory_is_in_use_until_a_stream_is_captured(driver: str, arch: str, captures: StandIn) -> None:
    """The host waits for a stream before capturing it, so the stream's events count as done and are not queried."""
    errors = captures.run("uploads_before_a_capture", arch, driver, STAND_IN_LATE="1").value
    assert len(errors) == 4 and max(errors) < 1e-6, errors


@pytest.mark.parametrize(("driver", "arch"), DRIVERS)
def test_a_stream_is_usable_after_a_failed_capture(driver: str, arch: str, captures: StandIn) -> None:
    """HIP refuses work on the stream until a capture of it succeeds. The run continues, and a later run captures."""
    found = captures.run("fails_in_a_capture", arch, driver).value
    assert not found["messages"] and found["error"] < 1e-6, found
    assert found["refused"] == 1 and found["captured"] > 0, found


@pytest.mark.parametrize(("driver", "arch"), DRIVERS)
def test_captures_of_other_libraries_continue(driver: str, arch: str, captures: StandIn) -> None:
    """PyTorch captures in the mode `global`, in which other threads may allocate or wait only in relaxed mode."""
    found = captures.run("beside_another_library", arch, driver).value
    wrong = [f"{name}: {one}" for name, one in found.items() if one["message"] or one["status"] or one["error"] > 1e-6]
    assert not wrong, "\n".join(wrong)


def test_a_graph_holds_no_memory_that_rocblas_frees(captures: StandIn, tmp_path: Path) -> None:
    """A larger GEMM can make rocBLAS free its workspace, which a captured graph must not use."""
    kernels = with_kernels(tmp_path, "gfx1201")
    outcome = captures.run("grows_a_workspace", "gfx1201", ROCBLAS_TENSILE_LIBPATH=kernels, **rocblas(captures))
    assert not outcome.value["message"] and outcome.value["error"] < 1e-4, outcome
    assert outcome.value["captured"] >= 2 and outcome.value["refused"] == 0, outcome


def test_no_handle_is_destroyed_during_a_capture(captures: StandIn, tmp_path: Path) -> None:
    """Destroying a rocBLAS handle waits for the device, which ends captures."""
    kernels = with_kernels(tmp_path, "gfx1201")
    found = captures.run("destroys_handles", "gfx1201", ROCBLAS_TENSILE_LIBPATH=kernels, **rocblas(captures)).value
    assert_undisturbed({"run": found["run"]})
    before, after = found["handles"]
    assert after < before and "out of device memory" in found["said"][0], found


@pytest.fixture
def blas_lt(captures: StandIn, tmp_path: Path) -> Callable[..., Outcome]:
    """Returns a function that runs a case with cuBLASLt or hipBLASLt."""

    def run(name: str, driver: str, arch: str) -> Outcome:
        library = str(captures.folder(driver) / EPILOGUES[driver])
        more = {"STAND_IN_BLAS_LT_LIBRARY": library, "HIPBLASLT_TENSILE_LIBPATH": with_kernels(tmp_path, arch)}
        return captures.run(name, arch, driver, **more)

    return run


WITH_BLAS_LT = pytest.mark.parametrize(("driver", "arch"), [("hip", "gfx90a"), ("cuda", "sm_90")])


@WITH_BLAS_LT
def test_no_handle_is_created_during_a_capture(driver: str, arch: str, blas_lt: Callable[..., Outcome]) -> None:
    """An error while hipBLASLt allocates and sets the memory of a new handle aborts the process."""
    assert_undisturbed(blas_lt("makes_a_handle", driver, arch).value)


@WITH_BLAS_LT
def test_a_handle_serves_one_stream(driver: str, arch: str, blas_lt: Callable[..., Outcome]) -> None:
    """Two streams that share a hipBLASLt handle may deadlock."""
    found = blas_lt("two_streams", driver, arch).value
    assert found["error"] < 1e-4 and found["products"] == [8, 8] and found["shared"] == 0, found
    assert found["handles"][0] == found["handles"][1], found


@WITH_BLAS_LT
def test_a_refused_gemm_affects_one_session(driver: str, arch: str, blas_lt: Callable[..., Outcome]) -> None:
    """Another session tries the same GEMM again, and the refusal is logged once."""
    outcome = blas_lt("refuses_once", driver, arch)
    assert outcome.value["error"] < 1e-4 and outcome.value["products"] == [0, 1], outcome
    assert outcome.said.count("BLASLt") == 1, outcome.said


@pytest.mark.parametrize("more", [{"STAND_IN_HIP_VERSION": "70051831"}, {"GRAPHOPT_LIBRARIES": "miopen=find"}])
def test_miopen_is_not_captured_before_7_1_or_with_find(
    more: dict[str, str], captures: StandIn, tmp_path: Path
) -> None:
    """Up to ROCm 7.0.1 a graph has only part of MIOpen's kernels. After a measurement MIOpen's calls end captures."""
    kernels = with_kernels(tmp_path, "gfx942")
    drivers = replace(captures, module="tests.provider.driver_cases")
    environment = {**rocblas(captures), "ROCBLAS_TENSILE_LIBPATH": kernels, "MIOPEN_SYSTEM_DB_PATH": kernels, **more}
    found = drivers.run("records", "gfx942", **environment).value
    assert found["error"] < 1e-4 and found["regions"]["refused"] == 0, found


@WITH_BLAS_LT
def test_layers_with_distant_weights_are_correct(driver: str, arch: str, blas_lt: Callable[..., Outcome]) -> None:
    """The distances between the layers of one GEMM are 32-bit in cuBLASLt, but the weights may be farther apart."""
    outcome = blas_lt("layers_of_one_input", driver, arch)
    assert not outcome.value["messages"] and outcome.value["error"] < 1e-3, outcome
