"""GPU drivers that are missing, broken or failing, simulated by a stand-in in separate processes.

The stand-in (tests/native/stand_ins) implements the entry points of libamdhip64 or libcuda on host memory. The tested
library contains device code for the stand-in; everything else in it equals the released library.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import pytest

from graphopt.runtime.discovery import DEVICE_PROVIDER, loads_providers
from tests.provider.stand_in import CONVOLUTIONS, EPILOGUES, NAMES, Outcome, StandIn
from tests.provider.test_channels_last import GRAPHS

NO_KERNELS = "graphopt: no GPU kernels"


def assert_on_cpu(outcome: Outcome) -> None:
    assert outcome.value["providers"] == ["CPUExecutionProvider"]
    assert max(outcome.value["errors"]) < 1e-6
    refusal = "has 0 devices here" if loads_providers() else "needs ONNX Runtime 1.24 or newer, but this is version 1.2"
    assert f"{DEVICE_PROVIDER} {refusal}" in outcome.value["required"]


DRIVERS = (
    ("hip", "gfx1100", {"arch": "gfx1100", "driver": "HIP 7.1.123", "wave": "32"}),
    ("cuda", "sm_90", {"arch": "sm_90", "driver": "CUDA 13.1", "wave": "32"}),
)


@pytest.mark.parametrize(("driver", "arch", "facts"), DRIVERS)
def test_runs_and_names_the_device(driver: str, arch: str, facts: dict[str, str], gpu: StandIn) -> None:
    outcome = gpu.run("runs", arch, driver)
    assert outcome.value["error"] < 1e-6
    (device,) = outcome.value["devices"]
    expected = {"device": "0", "name": f"Stand-in {arch}", **facts}
    assert {k: device[f"graphopt.{k}"] for k in expected} == expected


def test_devices_may_work_only_when_the_host_waits(gpu: StandIn) -> None:
    """A real device may lag behind the host by any time; here it executes work only when a call waits."""
    errors = gpu.run("late", STAND_IN_LATE="1").value
    assert len(errors) > 10 and max(errors.values()) < 1e-5, errors


def test_a_copy_without_a_stream_waits_for_its_source(gpu: StandIn) -> None:
    """Up to 1.30, ONNX Runtime copies the state of a Loop without iterations in this way."""
    assert max(gpu.run("copies_without_a_stream", STAND_IN_LATE="1").value) < 1e-6


@pytest.mark.parametrize(("driver", "arch"), [("hip", "gfx90a"), ("cuda", "sm_90")])
@pytest.mark.parametrize("mode", ["", "fails", "wrong"])
def test_a_product_with_an_epilogue(
    mode: str, driver: str, arch: str, gpu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor's library computes the GEMM; if it has no such GEMM or computes it wrongly, two launches do."""
    monkeypatch.setenv("STAND_IN_BLAS_LT", mode)
    monkeypatch.setenv("STAND_IN_BLAS_LT_LIBRARY", str(gpu.folder(driver) / EPILOGUES[driver]))
    (tmp_path / f"TensileLibrary_lazy_{arch}.dat").touch()
    monkeypatch.setenv("HIPBLASLT_TENSILE_LIBPATH", str(tmp_path))
    outcome = gpu.run("linear", arch, driver)
    assert all(outcome.value["ran"].values())
    assert max(outcome.value["errors"].values()) <= 1
    assert ("a GEMM with an epilogue gave wrong results" in outcome.said) == (mode == "wrong")
    if mode == "":
        assert outcome.value["products"] > 30
    else:
        assert outcome.value["products"] == (0 if mode == "fails" else 1)


@pytest.mark.parametrize("algorithms", ["all", "none"])
@pytest.mark.parametrize(("driver", "arch"), [("hip", "gfx1100"), ("cuda", "sm_90")])
def test_convolutions_by_the_vendor_s_library(
    driver: str, arch: str, algorithms: str, gpu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our kernels compute convolutions that the library refuses, 1x1 ones run as GEMMs, and no object leaks."""
    (tmp_path / "gfx1100.kdb").touch()
    monkeypatch.setenv("MIOPEN_SYSTEM_DB_PATH", str(tmp_path))
    monkeypatch.setenv("STAND_IN_DNN", algorithms)
    monkeypatch.setenv("STAND_IN_DNN_LIBRARY", str(gpu.folder(driver) / CONVOLUTIONS[driver]))
    outcome = gpu.run("convolutions", arch, driver)
    assert outcome.value["products"] > 0
    count = len(outcome.value["errors"]) - outcome.value["products"]
    assert max(outcome.value["errors"]) <= 1
    assert outcome.value["by_library"] == (count if algorithms == "all" else 0)
    rejected = 0 if algorithms == "all" else count // 2
    assert outcome.said.count("has no algorithm") == (0 if algorithms == "all" else count - rejected)
    assert outcome.said.count("SetConvolutionGroupCount failed") == rejected
    assert outcome.value["alive"] == 1  # the handle, kept for the next session


@pytest.mark.parametrize(
    ("driver", "arch", "options", "algorithms"),
    [
        ("cuda", "sm_90", "{}", "all"),
        ("hip", "gfx942", '{"channels_last": 1}', "all"),
        ("hip", "gfx942", '{"channels_last": 1}', "none"),  # our kernels, in the form that is compiled for AMD
        ("hip", "gfx942", "{}", "all"),
    ],
)
def test_channels_last_by_the_vendor_s_libraries(
    driver: str,
    arch: str,
    options: str,
    algorithms: str,
    gpu: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On NVIDIA channels-last is the default."""
    for name in (f"{arch}.kdb", f"TensileLibrary_lazy_{arch}.dat"):
        (tmp_path / name).touch()
    monkeypatch.setenv("MIOPEN_SYSTEM_DB_PATH", str(tmp_path))
    monkeypatch.setenv("HIPBLASLT_TENSILE_LIBPATH", str(tmp_path))
    monkeypatch.setenv("STAND_IN_OPTIONS", options)
    monkeypatch.setenv("STAND_IN_DNN", algorithms)
    monkeypatch.setenv("STAND_IN_DNN_LIBRARY", str(gpu.folder(driver) / CONVOLUTIONS[driver]))
    monkeypatch.setenv("STAND_IN_BLAS_LT_LIBRARY", str(gpu.folder(driver) / EPILOGUES[driver]))
    outcome = gpu.run("channels_last", arch, driver).value
    asked = driver == "cuda" or options != "{}"
    for name, found in outcome["found"].items():
        assert found["error"] <= 1e-2, name
        assert found["converted"] == (GRAPHS[name][2] if asked else 0), name
    convolutions, products = outcome["by_libraries"]
    assert (convolutions > len(GRAPHS)) == (algorithms == "all")
    assert (products > 8) == asked  # opening a library runs a few GEMMs
    assert outcome["alive"] == 1  # the handle, kept for the next session


@pytest.mark.parametrize(("device", "code"), [("gfx1152", "gfx11-generic"), ("gfx1100", "gfx1100")])
def test_a_device_runs_the_code_of_its_family(device: str, code: str, gpu: StandIn) -> None:
    outcome = gpu.run("runs", f"{device}/gfx11-generic")
    assert outcome.value["error"] < 1e-6
    assert [(d["graphopt.arch"], d["graphopt.code"]) for d in outcome.value["devices"]] == [(device, code)]
    assert "graphopt:" not in outcome.said


def test_code_of_a_family_on_an_older_runtime(stand_in: StandIn) -> None:
    outcome = stand_in.run("falls_back", "gfx1152", STAND_IN_HIP_VERSION="60300000")
    assert_on_cpu(outcome)
    assert "gfx1152 needs the device code for gfx11-generic, which only ROCm 6.4 and newer load" in outcome.said


def test_no_driver(stand_in: StandIn, tmp_path: Path) -> None:
    outcome = stand_in.run("falls_back", folder=tmp_path)
    assert_on_cpu(outcome)
    assert "graphopt:" not in outcome.said


@pytest.mark.parametrize("driver", ["hip", "cuda"])
def test_a_driver_without_a_device(driver: str, stand_in: StandIn) -> None:
    outcome = stand_in.run("falls_back", "", driver)
    assert_on_cpu(outcome)
    assert "graphopt:" not in outcome.said


def test_another_library_with_the_name_of_the_driver(stand_in: StandIn, tmp_path: Path) -> None:
    shutil.copy(stand_in.folder("cuda") / NAMES["cuda"], tmp_path / NAMES["hip"])
    outcome = stand_in.run("falls_back", folder=tmp_path)
    assert_on_cpu(outcome)
    assert outcome.said.count(NO_KERNELS) == 1
    assert "the GPU runtime lacks hipModuleLoadData" in outcome.said


HAS_CODE = "gfx10-3-generic gfx11-generic gfx90a gfx942 gfx1100 gfx1201"  # the library of the stand-ins


@pytest.mark.parametrize(
    ("driver", "arch", "why"),
    [
        (
            "hip",
            "gfx1010",
            "this library has device code for gfx10-3-generic gfx11-generic gfx90a gfx942 gfx1100 gfx1201",
        ),
        ("hip", "gfx1250", "graphopt has no kernels for gfx1250"),
        ("cuda", "sm_70", "graphopt has no kernels for sm_70"),
    ],
)
def test_an_architecture_without_device_code(driver: str, arch: str, why: str, stand_in: StandIn) -> None:
    outcome = stand_in.run("falls_back", arch, driver)
    assert_on_cpu(outcome)
    said = f"{NO_KERNELS} for GPU 0, operators run on the CPU or as function bodies: {why}"
    # A runtime that loads no providers cannot use an NVIDIA GPU, so it does not look for one.
    assert outcome.said.count(said) == (1 if driver == "hip" or loads_providers() else 0)
    assert outcome.said.count(NO_KERNELS) == outcome.said.count(said)


@pytest.mark.parametrize(("driver", "arch"), [("hip", "gfx1100"), ("cuda", "sm_90")])
def test_a_session_on_the_cpu_opens_no_driver(driver: str, arch: str, stand_in: StandIn) -> None:
    """On ONNX Runtime 1.22 the registration nevertheless opens AMD's driver, to find the ROCm provider's kernels."""
    outcome = stand_in.run("on_the_cpu", arch, driver)
    assert outcome.value["error"] < 1e-6
    assert outcome.value["driver"] == (driver == "hip" and not loads_providers())


def test_an_integrated_gpu_without_code_is_skipped(gpu: StandIn) -> None:
    """The integrated GPU of a Ryzen processor has a device number, often the first, but no code in the library."""
    outcome = gpu.run("runs", "gfx1013,gfx1201")
    assert outcome.value["error"] < 1e-6
    assert [d["graphopt.device"] for d in outcome.value["devices"]] == ["1"]
    assert outcome.said.count(NO_KERNELS) == 1


def test_two_devices(gpu: StandIn) -> None:
    """The stand-in refuses work on a stream of another device than the current one."""
    assert [e < 1e-6 for e in gpu.run("runs_on_each", "gfx1100,gfx1201").value] == [True, True]
    assert gpu.run("splits_a_batch", "gfx1100,gfx1201").value < 1e-6


def test_threads_find_the_devices_at_once(gpu: StandIn) -> None:
    assert gpu.run("finds_devices_on_threads").value == [1] * 8


def test_gpus_of_two_vendors(gpu: StandIn) -> None:
    """AMD's devices are listed first. Each stand-in refuses objects of the other."""
    both = ("gfx1100,sm_90,gfx1201", "hip cuda")
    assert [e < 1e-6 for e in gpu.run("runs_on_each", *both).value] == [True] * 3
    assert gpu.run("splits_a_batch", *both).value < 1e-6
    devices = gpu.run("runs", *both).value["devices"]
    assert [d["graphopt.arch"] for d in devices] == ["gfx1100", "gfx1201", "sm_90"]
    assert [d["graphopt.device"] for d in devices] == ["0", "1", "2"]


def test_inputs_and_outputs_on_the_session_s_device(gpu: StandIn) -> None:
    found = gpu.run("binds_on_each", "gfx1100,gfx1201,sm_90", "hip cuda").value
    assert [f["memory"] for f in found] == [["gpu", 0, 0x1002], ["gpu", 1, 0x1002], ["gpu", 2, 0x10DE]]
    assert max(f["error"] for f in found) < 1e-6


@pytest.mark.parametrize(
    ("devices", "drivers"), [("gfx1100,gfx1201", "hip"), ("sm_90,sm_90", "cuda"), ("gfx1100,sm_90", "hip cuda")]
)
def test_a_tensor_on_the_wrong_device(devices: str, drivers: str, gpu: StandIn) -> None:
    """The error names both devices, and the session stays usable; pinned memory belongs to no device."""
    found = gpu.run("binds_on_the_wrong_device", devices, drivers).value
    for said, first, second in zip(found["said"], (0, 1), (1, 0), strict=True):
        pattern = rf"memory of device {first} \(.+\), but is needed in the memory of device {second} \(.+\)"
        assert re.search(pattern, said), said
    assert max(found["errors"]) < 1e-6


@pytest.mark.parametrize(("driver", "devices"), [("hip", "gfx1100,gfx1100"), ("cuda", "sm_90,sm_90")])
def test_events_end_on_their_own_device(driver: str, devices: str, gpu: StandIn) -> None:
    """Tests the events between streams, and those of staging blocks, which are reused for small inputs."""
    found = gpu.run("waits_between_streams", devices, driver).value
    assert found["error"] < 1e-5 and found["failures"] == 0, found
    assert found["events"][0] == found["events"][-1], found


def test_a_disabled_operator_runs_by_its_body(gpu: StandIn) -> None:
    outcome = gpu.run("disables").value
    assert outcome["close"]
    assert "FusedRmsNorm" not in outcome["ran"] and {"Mul", "Div"} & {*outcome["ran"]}, outcome["ran"]


def test_out_of_memory(gpu: StandIn) -> None:
    outcome = gpu.run("out_of_memory").value
    assert "the_relu" in outcome["in_run"] and "out of device memory: 16384 bytes" in outcome["in_run"]
    assert "; held by tensors " in outcome["in_run"] and "shared weights " in outcome["in_run"]
    assert "the_norm" in outcome["in_our_node"] and "out of device memory: 262144 bytes" in outcome["in_our_node"]
    assert outcome["survived"] < 1e-6
    assert "out of device memory: 1048576 bytes" in outcome["at_start"]


def test_an_exhausted_device_frees_idle_memory_of_all_sessions(gpu: StandIn) -> None:
    assert gpu.run("takes_idle_arenas").value < 1e-6


@pytest.mark.parametrize(("driver", "arch"), [("hip", "gfx1100"), ("cuda", "sm_90")])
def test_device_faults(driver: str, arch: str, gpu: StandIn) -> None:
    """CUDA, and HIP from 7 on, keep the error for the process: all sessions report it, and stderr shows it once."""
    outcome = gpu.run("vanishes", arch, driver)
    error = f"{driver.upper()} error 719, the stand-in was told to fail"
    (line,) = (line for line in outcome.said.splitlines() if "restart the process" in line)
    sentence = line.removeprefix("graphopt: ")
    assert error in sentence and f"Stand-in {arch}" in sentence
    for moment in ("in_run", "again", "at_start", "later"):
        assert sentence in outcome.value[moment], moment


def test_the_driver_fails_at_any_moment(gpu: StandIn) -> None:
    outcome = gpu.run("vanishes_at_every_call").value
    assert len(outcome["messages"]) > 20
    unnamed = [m for m in outcome["messages"] if "HIP error 304" not in m]
    assert not unnamed
    assert outcome["later"] < 1e-6


def test_staging_memory_of_a_failed_copy_is_not_reused(gpu: StandIn) -> None:
    """If the event after a copy cannot be recorded, the device may still read the pinned memory."""
    outcome = gpu.run("keeps_blocks_of_failed_copies").value
    pinned = outcome["pinned"]
    assert 2 < len(pinned) < 100 and pinned[-1] > pinned[0] and outcome["later"] < 1e-6, outcome


@pytest.mark.parametrize(("driver", "arch"), [("hip", "gfx942"), ("cuda", "sm_90")])
@pytest.mark.parametrize("capture", ["", "refuses"])
def test_libraries_in_a_captured_graph(
    capture: str, driver: str, arch: str, gpu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GEMMs and convolutions are captured; a library that cannot be captured runs launch by launch."""
    (tmp_path / f"{arch}.kdb").touch()
    (tmp_path / f"TensileLibrary_lazy_{arch}.dat").touch()
    monkeypatch.setenv("MIOPEN_SYSTEM_DB_PATH", str(tmp_path))
    monkeypatch.setenv("ROCBLAS_TENSILE_LIBPATH", str(tmp_path))
    monkeypatch.setenv("STAND_IN_CAPTURE", capture)
    monkeypatch.setenv("GRAPHOPT_LOG", "1")
    path = f"{gpu.folder(driver)}:{gpu.folder('blas')}"
    outcome = gpu.run("records", arch, driver, LD_LIBRARY_PATH=path)
    found = outcome.value
    assert found["error"] < 1e-4
    assert (found["graphs"], found["streams"]) == (0, 1)  # the stream is kept for the next session
    regions = found["regions"]
    assert regions["compiled"] == 1
    # A failed capture does not disable the library.
    assert not [name for name in ("MIOpen", "cuDNN", "rocBLAS") if f"graphopt: {name}" in outcome.said]
    if capture == "":
        assert regions["refused"] == 0 and regions["captured"] >= 1
        assert regions["replayed"] + regions["copied"] >= 5
        assert "is captured" in outcome.said
    else:
        assert regions["refused"] == 3 and regions["captured"] == 0 and regions["launched"] == 8
        assert outcome.said.count("runs launch by launch: ") == 1


@pytest.mark.parametrize(("driver", "arch"), [("hip", "gfx1100"), ("cuda", "sm_90")])
def test_a_memory_limit_bounds_the_memory_from_the_driver(driver: str, arch: str, gpu: StandIn) -> None:
    found = gpu.run("keeps_a_limit", arch, driver).value
    assert found["limit"] // 2 < found["most"] <= found["limit"]
    assert found["counted"] and found["left"] == 0


def test_a_session_with_a_limit_frees_memory_that_others_keep(gpu: StandIn) -> None:
    assert gpu.run("runs_on_memory_of_the_pool").value < 1e-6


@pytest.mark.parametrize("capture", ["", "refuses"])
def test_libraries_are_measured_in_a_captured_graph(
    capture: str, gpu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that cannot be captured is measured launch by launch, and is not disabled."""
    monkeypatch.setenv("STAND_IN_CAPTURE", capture)
    monkeypatch.setenv("STAND_IN_OPTIONS", json.dumps({"measured": str(tmp_path / "measured")}))
    monkeypatch.setenv("GRAPHOPT_LOG", "1")
    outcome = gpu.run("records", "sm_90", "cuda", LD_LIBRARY_PATH=f"{gpu.folder('cuda')}:{gpu.folder('blas')}")
    assert outcome.value["error"] < 1e-4
    assert (outcome.value["graphs"], outcome.value["streams"]) == (0, 1)  # the stream is kept for the next session
    timed = [line for line in outcome.said.splitlines() if line.startswith("graphopt: cuDNN or MIOpen: ")]
    assert [line.rpartition(" us")[2] for line in timed] == [", captured" if capture == "" else ""]
    assert "; cuDNN or MIOpen" in (tmp_path / "measured").read_text()


def test_a_kernel_that_ends_the_process_has_failed(
    gpu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert gpu.process("dies_in_the_selftest").returncode == -signal.SIGABRT
    assert gpu.run("after_the_selftest").value == {"FusedLayerNorm": "the process ended while its kernel ran"}


def test_a_thousand_sessions_leak_no_memory(gpu: StandIn) -> None:
    outcome = gpu.run("many_sessions").value
    early, late = outcome["alive"]
    assert early == late
    # ONNX Runtime's sessions on the CPU provider leak 30 to 60 bytes each.
    assert outcome["grown"] < 256


def test_an_old_runtime_is_refused(old_runtime: StandIn) -> None:
    outcome = old_runtime.run("refuses_old_runtimes")
    assert outcome.value == f"{DEVICE_PROVIDER} needs ONNX Runtime 1.24 or newer, but this is version 1.22.2"
