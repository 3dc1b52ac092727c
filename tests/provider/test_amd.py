"""Tests that the library follows the rules of ROCm, which the stand-ins reproduce from AMD's sources.

The stand-ins in tests/native/stand_ins name the place of each rule in AMD's sources; docs/amd_behaviour.md maps rules
to tests. None of these tests has run on an AMD GPU.
"""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from graphopt.runtime.discovery import DEVICE_PROVIDER, loads_providers
from tests.contrib.nodes import RUNTIME
from tests.hip.architectures import UNSUPPORTED
from tests.provider.stand_in import CONVOLUTIONS, EPILOGUES, NAMES, PRODUCTS, StandIn


@pytest.fixture(scope="module")
def amd(stand_in: StandIn) -> StandIn:
    """The stand-in, for every runtime."""
    return replace(stand_in, module="tests.provider.amd_cases")


@pytest.fixture(scope="module")
def on_device(gpu: StandIn) -> StandIn:
    return replace(gpu, module="tests.provider.amd_cases")


def with_kernels(folder: Path, *archs: str) -> str:
    """Returns a kernel folder of rocBLAS or MIOpen with files for these architectures."""
    for arch in archs:
        (folder / f"TensileLibrary_lazy_{arch}.dat").touch()
        (folder / f"{arch}.kdb").touch()
    return str(folder)


@pytest.mark.parametrize("devices", ["gfx1100", "gfx1201,gfx90a", "gfx1152/gfx11-generic"])
def test_no_error_state_is_left_behind(devices: str, amd: StandIn) -> None:
    """From ROCm 7 on a thread keeps its last error, which makes the next node of ONNX Runtime's ROCm provider fail."""
    outcome = amd.run("leaves_no_error", devices)
    assert outcome.value["error"] < 1e-6
    assert outcome.value["failures"] == 0 and outcome.value["last"] == 0


def test_the_current_device_is_restored(on_device: StandIn) -> None:
    assert on_device.run("leaves_the_current_device", "gfx1100,gfx1201").value == [1, 1, 1, 1]


def test_devices_are_opened_on_first_use(on_device: StandIn) -> None:
    assert on_device.run("opens_devices_when_used", "gfx1100,gfx1201").value == [0, 1]


X_BYTES = 64 * 64 * 4  # size of the cases' input

# Compute units, TB/s, XCDs and whether integrated, from AMD's product pages; 1 XCD if a product may have fewer than
# the architecture's maximum.
PRODUCT_FACTS = {
    "gfx90a": (104, 1.638, 1, False),
    "gfx942": (304, 5.3, 8, False),
    "gfx1030": (80, 0.512, 1, False),
    "gfx1100": (96, 0.96, 1, False),
    "gfx1151": (40, 0.256, 1, True),
    "gfx1201": (64, 0.644, 1, False),
}


@pytest.mark.parametrize("arch", PRODUCT_FACTS)
def test_device_properties_match_the_product(arch: str, amd: StandIn) -> None:
    """HIP reports work-group processors on RDNA, and a memory clock that must be multiplied by 2 to 16."""
    (device,) = amd.run("facts", arch).value
    units, terabytes, xcds, integrated = PRODUCT_FACTS[arch]
    assert device["arch"] == arch
    assert device["compute_units"] == units and device["xcds"] == xcds
    assert device["bytes_per_second"] == pytest.approx(terabytes * 1e12, rel=0.02)
    assert device["integrated"] == integrated and device["bus_id"] == "0000:03:00.0"


@pytest.mark.parametrize(("flag", "arch"), [("0", "gfx1100"), ("true", "gfx1100"), ("0", "gfx90a")])
def test_hip_counts_single_compute_units(flag: str, arch: str, amd: StandIn) -> None:
    """GPU_ENABLE_WGP_MODE=0 makes HIP count compute units on RDNA as well."""
    (device,) = amd.run("facts", arch, GPU_ENABLE_WGP_MODE=flag).value
    assert device["compute_units"] == PRODUCT_FACTS[arch][0]


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
def test_the_properties_of_hip_5(arch: str, amd: StandIn) -> None:
    """HIP 5's struct of device properties has another size and layout, and there is no newer query function."""
    outcome = amd.run("properties_of_hip_5", arch, "hip5").value
    (device,) = outcome["devices"]
    assert (device["arch"], device["compute_units"]) == (arch, PRODUCT_FACTS[arch][0])
    assert device["driver"] == "HIP 5.7.31921" and outcome["error"] < 1e-6


def test_missing_properties_get_typical_values(amd: StandIn) -> None:
    (device,) = amd.run("facts", "gfx1036/gfx10-3-generic").value
    assert (device["arch"], device["code"], device["compute_units"]) == ("gfx1036", "gfx10-3-generic", 2)
    assert device["bytes_per_second"] == pytest.approx(5.7e10)


def test_unsupported_gpus_are_named(amd: StandIn) -> None:
    """No build supports these GPUs: other GPUs of their generations have matrix instructions of other layouts."""
    devices = {device["arch"]: device for device in amd.run("facts", ",".join(UNSUPPORTED)).value}
    assert [*devices] == UNSUPPORTED
    for arch, device in devices.items():
        assert device["code"] == ""
        assert device["problem"] == {"code": "unsupported", "text": f"graphopt has no kernels for {arch}", "remedy": ""}


def test_integrated_gpus_are_left_out(on_device: StandIn) -> None:
    """Integrated graphics are listed last, and DataParallel uses them only if they are named."""
    devices = "gfx1036/gfx10-3-generic,gfx1100"
    assert on_device.run("splits_over", devices).value == ["gfx1100"]
    assert on_device.run("splits_over", "gfx1036/gfx10-3-generic").value == ["gfx1036"]


def products(stand_in: StandIn) -> dict[str, str]:
    folder = stand_in.folder("blas")
    path = f"{stand_in.folder('hip')}:{folder}"
    return {"LD_LIBRARY_PATH": path, "STAND_IN_BLAS_LIBRARY": str(folder / PRODUCTS)}


def test_rocblas_without_kernels_is_not_called(on_device: StandIn, tmp_path: Path) -> None:
    folder = with_kernels(tmp_path, "gfx1100")
    outcome = on_device.run("product", "gfx1201", ROCBLAS_TENSILE_LIBPATH=folder, **products(on_device))
    assert outcome.value["error"] < 1e-4 and outcome.value["by_library"] == 0
    assert "rocBLAS has no kernels for gfx1201" in outcome.said


def test_a_session_names_the_package_of_a_missing_library(on_device: StandIn, tmp_path: Path) -> None:
    """Like `doctor`, the session names the package that belongs to the installed ROCm, here its wheels."""
    folder = tmp_path / "site-packages" / "_rocm_sdk_core" / "lib"
    folder.mkdir(parents=True)
    shutil.copy(on_device.folder("hip") / NAMES["hip"], folder)
    outcome = on_device.run("product", "gfx1201", folder=folder)
    assert outcome.value["error"] < 1e-4
    (line,) = [line for line in outcome.said.splitlines() if "rocBLAS" in line]
    assert line.startswith("graphopt: falling back to built-in kernels: rocBLAS (librocblas) was not found: ")
    assert line.endswith(
        "; to fix it: pip install --extra-index-url https://stable.repo.amd.com/rocm/whl-next/ "
        "'rocm[libraries,device-gfx1201]'"
    )


def test_libraries_in_another_wheel_than_the_runtime(on_device: StandIn, tmp_path: Path) -> None:
    """The wheel rocm-sdk-libraries has no folder in common with rocm-sdk-core, which has the HIP runtime."""
    folder, beside = (tmp_path / name / "lib" for name in ("_rocm_sdk_core", "_rocm_sdk_libraries"))
    for part, library in (
        (folder, on_device.folder("hip") / NAMES["hip"]),
        (beside, on_device.folder("blas") / PRODUCTS),
    ):
        part.mkdir(parents=True)
        shutil.copy(library, part)
    more = {
        "ROCBLAS_TENSILE_LIBPATH": with_kernels(tmp_path, "gfx1201"),
        "STAND_IN_BLAS_LIBRARY": str(beside / PRODUCTS),
    }
    assert on_device.run("product", "gfx1201", folder=folder, **more).value["by_library"] >= 3


@pytest.mark.parametrize("nested", [False, True])
def test_rocblas_with_kernels(nested: bool, on_device: StandIn, tmp_path: Path) -> None:
    folder = tmp_path / "gfx1201" if nested else tmp_path
    folder.mkdir(exist_ok=True)
    with_kernels(folder, "gfx1201")
    outcome = on_device.run("product", "gfx1201", ROCBLAS_TENSILE_LIBPATH=str(tmp_path), **products(on_device))
    assert outcome.value["error"] < 1e-4 and outcome.value["by_library"] >= 3
    assert outcome.value["same"], "atomic additions come in another order each time"
    assert outcome.value["waits_in_run"] == 0, "the library's kernels are loaded when the session is created"


@pytest.mark.parametrize("folder", ["rocblas/library", "rocblas/5.1.0/library"])
def test_rocblas_with_kernels_in_its_folder(folder: str, on_device: StandIn, tmp_path: Path) -> None:
    """AMD's and Fedora's packages have one folder, Debian's and Ubuntu's one for each version."""
    shutil.copy(on_device.folder("blas") / PRODUCTS, tmp_path)
    kernels = tmp_path / folder
    kernels.mkdir(parents=True)
    with_kernels(kernels, "gfx90a")
    path = f"{on_device.folder('hip')}:{tmp_path}"
    more = {"LD_LIBRARY_PATH": path, "STAND_IN_BLAS_LIBRARY": str(tmp_path / PRODUCTS)}
    assert on_device.run("product", "gfx90a", **more).value["by_library"] >= 3
    assert on_device.run("product", "gfx942", **more).value["by_library"] == 0


def test_a_gemm_that_rocblas_refuses(on_device: StandIn, tmp_path: Path) -> None:
    folder = with_kernels(tmp_path, "gfx1201")
    more = {"ROCBLAS_TENSILE_LIBPATH": folder, "STAND_IN_BLAS": "fails", **products(on_device)}
    outcome = on_device.run("product", "gfx1201", **more)
    assert outcome.value["error"] < 1e-4
    assert outcome.said.count("rocBLAS failed, status 2") == 1


def test_a_refused_gemm_is_planned_again(on_device: StandIn, tmp_path: Path) -> None:
    """After a refusal in the first run, the second run makes a new plan, which calls rocBLAS."""
    conv = convolutions(on_device, tmp_path, "gfx1201")
    more = {"ROCBLAS_TENSILE_LIBPATH": with_kernels(tmp_path, "gfx1201"), **products(on_device), **conv}
    outcome = on_device.run("counts_calls_after_a_failure", "gfx1201", **more)
    assert outcome.said.count("rocBLAS failed, status 2") == 1
    assert outcome.value["runs"] == [[0, 1], [1, 1], [1, 1]] and outcome.value["error"] < 1e-3


def test_disabled_libraries(on_device: StandIn, tmp_path: Path) -> None:
    more = {"ROCBLAS_TENSILE_LIBPATH": with_kernels(tmp_path, "gfx1201"), **products(on_device)}
    outcome = on_device.run("product", "gfx1201", GRAPHOPT_LIBRARIES="rocblas=off", **more)
    assert outcome.value["error"] < 1e-4 and outcome.value["by_library"] == 0
    assert "graphopt:" not in outcome.said
    # Until 1.32, ONNX Runtime continues without a provider that cannot be created.
    done = on_device.process("product", "gfx1201", GRAPHOPT_LIBRARIES="rocblas=of", **more)
    assert "GRAPHOPT_LIBRARIES: 'rocblas=of' is none of" in done.stdout + done.stderr
    assert done.returncode == 1 and ("runs on CPUExecution" in done.stderr) == (RUNTIME < (1, 32))
    # A session's option overrides the environment variable.
    both = {"GRAPHOPT_LIBRARIES": "rocblas=off", "OPTION_LIBRARIES": "rocblas=on"}
    assert on_device.run("product", "gfx1201", **both, **more).value["by_library"] >= 3


def test_each_session_chooses_its_libraries(on_device: StandIn, tmp_path: Path) -> None:
    more = {"ROCBLAS_TENSILE_LIBPATH": with_kernels(tmp_path, "gfx1201"), **products(on_device)}
    found = on_device.run("each_session_chooses", "gfx1201", GRAPHOPT_LOG="1", **more)
    choice, name, build = found.value.pop("wrong")
    assert choice == "libraries: rocblas may be off, on, not 'of'"
    assert name.startswith("libraries: unknown library 'rocm'; choose from rocblas, ")
    assert build == "libraries: cudnn may be off, on, not 'build'"
    assert found.value == {"": 1, "rocblas=off": 0, "miopen=off": 1, "rocblas=on": 1, "again": 1, "by keyword": 0}
    assert "not cuBLAS or rocBLAS: rocBLAS is switched off" in found.said


def test_a_refusal_names_its_cause(on_device: StandIn, tmp_path: Path) -> None:
    """The log names the reason for each implementation that was not chosen."""
    more = {"GRAPHOPT_LOG": "1", "ROCBLAS_TENSILE_LIBPATH": with_kernels(tmp_path, "gfx1100"), **products(on_device)}
    said = on_device.run("product", "gfx1201", **more).said
    assert "not cuBLAS or rocBLAS: rocBLAS has no kernels for gfx1201 (no TensileLibrary_lazy_gfx1201.dat in " in said
    said = on_device.run("product", GRAPHOPT_LOG="1").said
    assert "not cuBLAS or rocBLAS: rocBLAS (librocblas) was not found: " in said
    conv = convolutions(on_device, tmp_path, "gfx1100")
    said = on_device.run("convolution", STAND_IN_DNN="fails", GRAPHOPT_LOG="1", **conv).said
    assert "not cuDNN or MIOpen: its kernels are still loading" in said
    assert "for a convolution of X [1,4,1,8,8]: MIOpen CompileSolution failed, status 7" in said


WRONG = ["wrong", "large", "vectors", "odd"]  # wrong at all sizes, for 256^3, with one row or column, with an odd K


@pytest.mark.parametrize("wrong", WRONG)
def test_a_rocblas_that_is_wrong_is_not_used(wrong: str, on_device: StandIn, tmp_path: Path) -> None:
    """A self-check finds wrong results at all sizes, or at sizes that some versions computed wrongly."""
    more = {"ROCBLAS_TENSILE_LIBPATH": with_kernels(tmp_path, "gfx1201"), "STAND_IN_BLAS": wrong}
    outcome = on_device.run("product", "gfx1201", **more, **products(on_device))
    assert outcome.value["error"] < 1e-4 and outcome.value["by_library"] == 0
    assert "rocBLAS: a GEMM gave wrong results" in outcome.said
    assert outcome.value["handles"] == 0


@pytest.mark.parametrize("wrong", WRONG)
def test_a_hipblaslt_that_is_wrong_is_not_used(wrong: str, on_device: StandIn, tmp_path: Path) -> None:
    drivers = replace(on_device, module="tests.provider.driver_cases")
    more = {"STAND_IN_BLAS_LT": wrong, "STAND_IN_BLAS_LT_LIBRARY": str(on_device.folder("hip") / EPILOGUES["hip"])}
    outcome = drivers.run("one_linear", "gfx90a", HIPBLASLT_TENSILE_LIBPATH=with_kernels(tmp_path, "gfx90a"), **more)
    assert outcome.value == {"error": pytest.approx(0, abs=1e-4), "products": 0}
    assert "hipBLASLt: a GEMM with an epilogue gave wrong results" in outcome.said


@pytest.mark.parametrize("refused", ["no stream", "no mode"])
def test_a_rocblas_that_is_refused_keeps_no_handle(refused: str, on_device: StandIn, tmp_path: Path) -> None:
    more = {"ROCBLAS_TENSILE_LIBPATH": with_kernels(tmp_path, "gfx1201"), "STAND_IN_BLAS": refused}
    outcome = on_device.run("product", "gfx1201", **more, **products(on_device))
    assert outcome.value["error"] < 1e-4 and outcome.value["by_library"] == 0
    assert "rocBLAS can't be used" in outcome.said
    assert outcome.value["handles"] == 0


def test_hipblaslt_is_not_called_on_rdna(on_device: StandIn, tmp_path: Path) -> None:
    drivers = replace(on_device, module="tests.provider.driver_cases")
    more = {"STAND_IN_BLAS_LT_LIBRARY": str(on_device.folder("hip") / EPILOGUES["hip"])}
    outcome = drivers.run("linear", "gfx1100", **more)
    assert max(outcome.value["errors"].values()) <= 1 and outcome.value["products"] == 0
    more["HIPBLASLT_TENSILE_LIBPATH"] = with_kernels(tmp_path, "gfx1100")
    forced = drivers.process("linear", "gfx1100", GRAPHOPT_LIBRARIES="hipblaslt=on", **more)
    assert forced.returncode == -signal.SIGABRT


def test_the_second_algorithm_of_hipblaslt(on_device: StandIn, tmp_path: Path) -> None:
    drivers = replace(on_device, module="tests.provider.driver_cases")
    more = {"STAND_IN_BLAS_LT": "first", "STAND_IN_BLAS_LT_LIBRARY": str(on_device.folder("hip") / EPILOGUES["hip"])}
    outcome = drivers.run("linear", "gfx90a", HIPBLASLT_TENSILE_LIBPATH=with_kernels(tmp_path, "gfx90a"), **more)
    assert max(outcome.value["errors"].values()) <= 1 and outcome.value["products"] > 30
    assert outcome.value["waits_in_run"] == 0, "the library's kernels are loaded when the session is created"
    # Without kernels hipBLASLt fails or crashes, and logs each GEMM: it is not called.
    outcome = drivers.run("linear", "gfx942", HIPBLASLT_TENSILE_LIBPATH=str(tmp_path), **more)
    assert max(outcome.value["errors"].values()) <= 1 and outcome.value["products"] == 0
    assert "rocblaslt error" not in outcome.said


def convolutions(stand_in: StandIn, folder: Path, *archs: str) -> dict[str, str]:
    library = str(stand_in.folder("hip") / CONVOLUTIONS["hip"])
    return {"STAND_IN_DNN_LIBRARY": library, "MIOPEN_SYSTEM_DB_PATH": with_kernels(folder, *archs)}


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
def test_results_of_miopen(arch: str, on_device: StandIn, tmp_path: Path) -> None:
    """float16 is not computed in bfloat16 on gfx90a either, and all runs give the same values."""
    outcome = on_device.run("convolution", arch, **convolutions(on_device, tmp_path, arch)).value
    assert outcome["error"] < 1e-4 and outcome["error_transposed"] < 2e-3
    assert outcome["same"] and outcome["by_library"][-1] >= 4 and outcome["waits_in_run"] == 0


@pytest.mark.parametrize("mode", ["fails", "refuses"])
def test_our_kernels_run_if_miopen_fails(mode: str, on_device: StandIn, tmp_path: Path) -> None:
    more = convolutions(on_device, tmp_path, "gfx1100")
    outcome = on_device.run("convolution", STAND_IN_DNN=mode, **more)
    assert outcome.value["error"] < 1e-4 and outcome.value["error_transposed"] < 2e-3
    assert outcome.value["by_library"][-1] == 0
    assert outcome.said.count("falling back to built-in kernels for a convolution") == 2


@pytest.mark.parametrize(
    ("package", "arch", "taken"),
    [
        ("gfx942130.kdb", "gfx942", True),  # 304 compute units
        ("gfx942e4.kdb", "gfx942", False),  # an MI300A with 228
        ("gfx1201_32.kdb", "gfx1201", True),  # HIP counts 32 work-group processors
        ("gfx1201_64.kdb", "gfx1201", False),
    ],
)
def test_miopen_s_package_is_for_a_count_of_processors(
    package: str, arch: str, taken: bool, on_device: StandIn, tmp_path: Path
) -> None:
    more = convolutions(on_device, tmp_path)
    (tmp_path / package).touch()
    outcome = on_device.run("convolution", arch, STAND_IN_DNN="builds", **more)
    assert (f"MIOpen would have to compile its kernels for {arch}" in outcome.said) == (not taken)


def test_no_run_waits_for_miopen_to_build(on_device: StandIn, tmp_path: Path) -> None:
    """AMD's packages have no MIOpen kernels for most RDNA GPUs; these use MIOpen only if the option requests it."""
    more = convolutions(on_device, tmp_path, "gfx942")
    outcome = on_device.run("convolution", STAND_IN_DNN="builds", **more)
    assert outcome.value["by_library"] == [0, 0, 0, 0] and outcome.value["error"] < 1e-4
    assert "MIOpen would have to compile its kernels for gfx1100" in outcome.said
    wanted = on_device.run("convolution", STAND_IN_DNN="builds", GRAPHOPT_LIBRARIES="miopen=build", **more).value
    assert wanted["by_library"][0] == 0 and wanted["by_library"][-1] >= 2, "built in the background, then used"
    assert wanted["waits_in_run"] == 0 and wanted["error"] < 1e-4 and wanted["error_transposed"] < 2e-3
    assert wanted["slow"] >= 2, "in MIOpen's fixed order, without a measurement"


def test_miopen_find_runs_once_for_each_problem(on_device: StandIn, tmp_path: Path) -> None:
    """MIOpen's find call runs once for each problem, in the background."""
    more = convolutions(on_device, tmp_path)
    found = on_device.run("convolution", GRAPHOPT_LIBRARIES="miopen=find", **more).value
    assert found["by_library"][-1] >= 2 and found["slow"] == 0 and found["waits_in_run"] == 0
    assert found["error"] < 1e-4 and found["error_transposed"] < 2e-3


def test_after_a_warm_up_miopen_runs_at_once(on_device: StandIn, tmp_path: Path) -> None:
    outcome = on_device.run("warms_up_convolutions", **convolutions(on_device, tmp_path, "gfx1100"))
    assert outcome.value == {"by_library": 1, "waits": 0}
    assert "the GPU's libraries loaded 1 kernels" in outcome.said


def test_no_run_waits_for_its_inputs(on_device: StandIn) -> None:
    outcome = on_device.run("waits_for_inputs").value
    assert outcome["waits"] == 0 and outcome["error"] < 1e-6


def test_tensors_of_callers_in_pinned_memory(on_device: StandIn) -> None:
    """Runs do not wait for inputs in memory of the type HOST_ACCESSIBLE, and freed memory is reused."""
    found = on_device.run("binds_pinned_memory").value
    assert found["name"] == "GraphoptPinned" and found["error"] < 1e-6
    assert (found["waits"], found["places"], found["pinned"]) == (0, 1, X_BYTES)


@pytest.mark.parametrize("device", ["gfx1100", "gfx1036/gfx10-3-generic"], ids=["discrete", "integrated"])
def test_copies_of_inputs_and_outputs(on_device: StandIn, device: str) -> None:
    """With `host_memory` an integrated device reads and writes tensors in memory of the type HOST_ACCESSIBLE.

    It cannot access ordinary host memory, which ONNX Runtime 1.32 would give to its kernels. A discrete device copies
    inputs before the kernels of a region read them.
    """
    found = on_device.run("copies_of_runs", device).value
    limited = "{'host_memory': 1, 'memory_limit': 1048576}"
    nodes = "{'host_memory': 1, 'regions': 0}"
    copied, one, integrated = found["copied"], X_BYTES, "/" in device
    assert found["error"] < 1e-6
    for option in ("{'host_memory': 1}", nodes):
        ordinary = copied.pop(f"ordinary {option}")
        assert "output 0 is bound in ordinary host memory" in ordinary if integrated else ordinary == 2 * one
    assert copied == {
        "ordinary {}": 2 * one,
        "pinned {}": one if integrated else 2 * one,
        "pinned {'host_memory': 1}": 0 if integrated else 2 * one,
        f"ordinary {limited}": 2 * one,
        f"pinned {limited}": one if integrated else 2 * one,
        f"pinned {nodes}": 0 if integrated else one,
    }


def test_a_profile_has_the_times_of_kernels(on_device: StandIn) -> None:
    """The stand-in's clock advances by one millisecond with each launch."""
    for name, found in on_device.run("profiles").value.items():
        parents = found["nodes"] * 2 if name == "region" else found["nodes"]
        relu, tanh = ["the_relu", "Relu", parents[0], 1000], ["the_tanh", "Tanh", parents[1], 1000]
        assert found["kernels"] == [relu] * 3 + [tanh] * 3
        assert found["within"] and found["error"] < 1e-6
        captured, captured_later = found["graphs"]
        assert captured == 0 and (captured_later > 0) == (name == "region")


def test_a_warm_up_prints_its_time(on_device: StandIn) -> None:
    outcome = on_device.run("warms_up")
    assert "graphopt: warm-up with 1 set of shapes took" in outcome.said
    assert "warm_up has no shape for input 'x'" in outcome.value["missing"]


def test_the_runtime_that_onnxruntime_needs(old_runtime: StandIn) -> None:
    """The ROCm provider names the HIP version to load: two HIP runtimes would not know each other's streams."""
    route = replace(old_runtime, module="tests.provider.amd_cases").run("runtime_library").value["route"]
    assert route["runtime"]["needed"] == "libamdhip64.so.7"


def test_a_forked_process_is_refused(on_device: StandIn) -> None:
    outcome = on_device.run("forks").value
    assert "forked after its parent had used the GPU" in outcome["in_run"]
    assert "forked after its parent had used the GPU" in outcome["at_start"]
    assert float(outcome["parent"]) < 1e-6


@pytest.mark.parametrize("name", ["rocm", "rocm-[7]*"])
def test_the_runtime_in_rocm_path(name: str, amd: StandIn, tmp_path: Path) -> None:
    library = tmp_path / name / "lib" / NAMES["hip"]
    library.parent.mkdir(parents=True)
    shutil.copy(amd.folder("hip") / NAMES["hip"], library)
    (tmp_path / "none").mkdir()
    outcome = amd.run("runtime_library", folder=tmp_path / "none", ROCM_PATH=str(tmp_path / name)).value
    assert outcome["loaded"] == [str(library)] and outcome["route"]["devices"]


@pytest.mark.parametrize("folder", ["_rocm_sdk_core/lib", "torch/lib"])
def test_the_runtime_from_pypi(folder: str, amd: StandIn, tmp_path: Path) -> None:
    """Installed in the same site-packages: ROCm's wheels and PyTorch's (without a version in the file name)."""
    packages = tmp_path / "site-packages"
    ours = packages / "graphopt" / "lib" / "libgraphopt.so"
    ours.parent.mkdir(parents=True)
    shutil.copy(amd.libraries / "libgraphopt_on_stand_in.so", ours)
    library = packages / folder / (NAMES["hip"] if "sdk" in folder else "libamdhip64.so")
    library.parent.mkdir(parents=True)
    shutil.copy(amd.folder("hip") / NAMES["hip"], library)
    (tmp_path / "none").mkdir()
    more = {"STAND_IN_LIBRARY": str(ours), "STAND_IN_DRIVER": str(library)}
    outcome = amd.run("runtime_library", folder=tmp_path / "none", **more).value
    assert outcome["loaded"] == [str(library)] and outcome["route"]["devices"]


def test_libraries_are_found_by_runpath(amd: StandIn) -> None:
    """AMD's installer does not add /opt/rocm/lib to the loader's configuration."""
    library = (amd.libraries / "libgraphopt_on_stand_in.so").read_bytes()
    assert b"/opt/rocm/lib" in library


def test_a_runtime_that_fails_to_load_has_a_reason(amd: StandIn, tmp_path: Path) -> None:
    for version in (".7", ".6", ".5", ""):
        (tmp_path / f"libamdhip64.so{version}").write_text("no library")
    route = amd.run("runtime_of_a_gpu", folder=tmp_path).value
    assert route["problem"]["code"] == "no_runtime" and not route["devices"]
    assert "libamdhip64.so.7: file too short" in route["problem"]["text"]


NO_GPU = {
    "no driver": ("no_driver", "the kernel has no compute driver", "sudo modprobe amdgpu"),
    "container": ("not_in_container", "this container was not given /dev/kfd", "docker run --device /dev/kfd"),
    "kfd": ("node_fails", "dev/kfd can't be opened", "dmesg"),
    "render node": ("node_fails", "dev/dri/renderD128 can't be opened", "dmesg"),
    "old driver": ("old_driver", "amdgpu is not bound to 0000:03:00.0: no driver", "amdgpu-dkms"),
    "wsl": ("no_device_in_wsl", "on WSL, ROCm finds GPUs through librocdxg only", "librocdxg"),
}


def test_a_missing_device_has_a_reason(amd: StandIn) -> None:
    """Each session that falls back to the CPU warns once; `auto` and the doctor give the same reason."""
    found = amd.run("why_no_gpu", devices="").value
    route = "graphopt" if loads_providers() else "rocm"
    for name, (code, text, remedy) in NO_GPU.items():
        told = found[name]
        assert told["providers"] == ["CPUExecutionProvider"] and told["target"] == "cpu"
        assert told["codes"][route] == code, name
        (line,) = told["said"]
        assert line.startswith("this session runs on the CPU: ") and text in line and remedy in line, name
        assert text in told["why"]
    assert found["no GPU"]["codes"][route] == "no_gpu"
    # Users of onnxruntime-rocm expect a GPU, so they are warned; other users are not.
    assert len(found["no GPU"]["said"]) == (0 if loads_providers() else 1)


def test_auto_on_wsl(on_device: StandIn) -> None:
    target, why, *providers = on_device.run("auto_on_wsl").value
    assert target == "rocm:gfx1100" and "Stand-in gfx1100" in why
    assert providers[0] == DEVICE_PROVIDER


def test_a_library_for_another_runtime_is_skipped(on_device: StandIn, tmp_path: Path) -> None:
    """Two HIP runtimes in one process would not know each other's streams."""
    content = (on_device.folder("blas") / PRODUCTS).read_bytes()
    (tmp_path / PRODUCTS).write_bytes(content.replace(b"libamdhip64.so.7", b"libamdhip64.so.6"))
    shutil.copy(on_device.folder("hip") / NAMES["hip"], tmp_path)
    with_kernels(tmp_path, "gfx1201")
    outcome = on_device.run("product", "gfx1201", folder=tmp_path, ROCBLAS_TENSILE_LIBPATH=str(tmp_path))
    assert outcome.value["error"] < 1e-4
    assert "needs another HIP runtime than libamdhip64.so.7" in outcome.said
