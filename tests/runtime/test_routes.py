"""Every reason why a GPU is not used is told apart, with what mends it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphopt.runtime.machine import System, look_around
from graphopt.runtime.routes import Reason, Route, missing_libraries, routes

pytestmark = pytest.mark.once

OURS = "GraphoptExecutionProvider"
CODE = ["gfx1100", "gfx11-generic"]
DESKTOP = System(amd_gpus=1, kfd=True, kfd_group="render", kfd_gpus=1, render_nodes=("/dev/dri/renderD128",))
DENIED = "Permission denied"
UNBOUND = ("0000:03:00.0: no driver",)


def device(**facts: Any) -> dict[str, Any]:
    return {
        "number": 0,
        "name": "AMD Radeon RX 7900 XTX",
        "arch": "gfx1100",
        "code": "gfx1100",
        "bus_id": "0000:03:00.0",
        "memory": 24 << 30,
        "integrated": False,
        "compute_units": 96,
        "xcds": 1,
        "wave": 32,
        "bytes_per_second": 9.6e11,
        "driver": "HIP 7.1.123",
        "problem": None,
        "libraries": [{"name": "rocBLAS", "path": "/opt/rocm/lib/librocblas.so.5", "version": "5.1", "problem": None}],
        **facts,
    }


def shown(
    *devices: Mapping[str, Any],
    problem: tuple[str, str] | None = None,
    needed: str = "",
    path: str = "/opt/rocm/lib/libamdhip64.so.7.1.0",
    code: list[str] = CODE,
) -> dict[str, Any]:
    said = None if problem is None else {"code": problem[0], "text": problem[1]}
    runtime = {"path": path, "version": "HIP 7.1.123", "needed": needed}
    return {
        "format": 1,
        "code": code,
        "routes": [{"route": "hip", "runtime": runtime, "problem": said, "devices": list(devices)}],
    }


def found(
    described: dict[str, Any], system: System = DESKTOP, missing: Reason | None = None, rocm: Path | None = None
) -> dict[str, Route]:
    every = routes(described, system, provider=OURS, provider_missing=missing, rocm_provider=rocm)
    return {route.name: route for route in every}


def reason(described: dict[str, Any], system: System = DESKTOP) -> Reason:
    why = found(described, system)["graphopt"].why_not()
    assert why is not None
    return why


def test_a_device_is_ready() -> None:
    route = found(shown(device()))["graphopt"]
    assert route.ready and route.why_not() is None
    assert route.usable[0].libraries[0].version == "5.1"
    told = json.loads(json.dumps(route.to_dict()))
    assert told["ready"] and told["devices"][0]["bus_id"] == "0000:03:00.0" and told["reason"] is None


@pytest.mark.parametrize(
    ("problem", "system", "code", "mend"),
    [
        ("no_runtime", System(), "no_gpu", ""),
        ("no_driver", System(), "no_gpu", ""),
        ("no_driver", System(amd_gpus=2), "no_driver", "sudo modprobe amdgpu"),
        ("no_driver", System(amd_gpus=2, container=True), "not_in_container", "docker run --device /dev/kfd"),
        ("no_driver", System(wsl=True), "no_dxg", "wsl --update"),
        ("no_device", System(wsl=True, dxg=True), "no_device_in_wsl", "HSA_ENABLE_DXG_DETECTION=1"),
        ("no_runtime", System(wsl=True, dxg=True), "no_runtime", "install ROCm"),
        ("no_device", replace(DESKTOP, kfd_refusal=DENIED), "no_permission", "usermod -a -G render,video $LOGNAME"),
        ("no_permission", replace(DESKTOP, kfd_refusal=DENIED, kfd_group="993"), "no_permission", "-G render,video"),
        (
            "no_permission",
            replace(DESKTOP, kfd_refusal="Operation not permitted", container=True),
            "no_permission",
            "docker run --group-add $(stat -c %g /dev/kfd) ... (here group render)",
        ),
        ("no_device", replace(DESKTOP, kfd_refusal="Cannot allocate memory"), "node_fails", "dmesg"),
        (
            "no_device",
            replace(DESKTOP, render_refusal=DENIED, render_group="video"),
            "no_permission",
            "sudo usermod -a -G video $LOGNAME",
        ),
        (
            "no_device",
            replace(DESKTOP, render_refusal=DENIED, container=True),
            "no_permission",
            "--group-add $(stat -c %g /dev/dri/renderD128)",
        ),
        ("no_device", replace(DESKTOP, unbound=UNBOUND), "old_driver", "amdgpu-dkms"),
        ("no_driver", System(amd_gpus=1, unbound=UNBOUND), "no_driver", "modprobe"),
        ("no_device", replace(DESKTOP, kfd_gpus=0), "not_in_kfd", "dmesg"),
        ("no_device", replace(DESKTOP, kfd_gpus=0, unreadable=("1",)), "not_in_container", "docker run --device"),
        ("no_device", replace(DESKTOP, kfd_gpus=None), "no_device", ""),
        ("old_driver", DESKTOP, "old_driver", "amdgpu-dkms"),
        ("no_runtime", DESKTOP, "no_runtime", "install ROCm"),
        ("no_runtime", replace(DESKTOP, rocm=("/opt/rocm-7.1.0/lib",)), "not_found", "echo /opt/rocm-7.1.0/lib | sudo"),
        ("broken_runtime", DESKTOP, "broken_runtime", ""),
        ("no_device", DESKTOP, "no_device", ""),
        (
            "no_device",
            replace(DESKTOP, container=True, render_nodes=()),
            "not_in_container",
            "docker run --device /dev/kfd --device /dev/dri",
        ),
    ],
)
def test_why_a_route_has_no_devices(problem: str, system: System, code: str, mend: str) -> None:
    why = reason(shown(problem=(problem, "what the runtime said")), system)
    assert (why.code, mend in why.mend, bool(why.mend)) == (code, True, bool(mend))


@pytest.mark.parametrize(
    ("variable", "value", "hides"),
    [
        ("HIP_VISIBLE_DEVICES", "7", True),
        ("HIP_VISIBLE_DEVICES", "", False),
        ("CUDA_VISIBLE_DEVICES", "1", True),  # HIP reads it where its own is not set
        ("ROCR_VISIBLE_DEVICES", "", True),
    ],
)
def test_hidden_devices(variable: str, value: str, hides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    why = reason(shown(problem=("no_device", "the runtime shows none")))
    assert why.code == ("hidden" if hides else "no_device")
    assert (f"{variable}={value}" in why.text) == hides and (why.mend == f"unset {variable}") == hides


@pytest.mark.parametrize(
    ("problem", "library_code", "code", "mend"),
    [
        ("no_code", CODE, "no_code", "GRAPHOPT_HIP_ARCHS=gfx1036"),
        ("no_code", [], "no_code_at_all", "sudo apt install clang lld; pip install"),
        ("old_runtime", CODE, "old_runtime", "ROCm 6.4"),
        ("failed", CODE, "failed", ""),
    ],
)
def test_why_a_device_is_not_used(problem: str, library_code: list[str], code: str, mend: str) -> None:
    bad = device(arch="gfx1036", code="", problem={"code": problem, "text": "why"}, libraries=[])
    why = reason(shown(bad, code=library_code))
    assert (why.code, mend in why.mend, bool(why.mend)) == (code, True, bool(mend))


def test_one_device_is_enough_and_the_others_keep_their_reasons() -> None:
    bad = device(number=1, arch="gfx1036", code="", integrated=True, problem={"code": "no_code", "text": "why"})
    route = found(shown(device(), bad))["graphopt"]
    assert [d.number for d in route.usable] == [0]
    assert route.devices[1].reason is not None
    assert route.notes == ()


def test_integrated_gpus_and_nodes_of_others_are_notes() -> None:
    apu = device(arch="gfx1151", integrated=True)
    unreadable = "/sys/class/kfd/kfd/topology/nodes/2/properties"
    route = found(shown(apu), replace(DESKTOP, unreadable=(unreadable,)))["graphopt"]
    assert route.ready
    assert [note.code for note in route.notes] == ["kfd_unreadable", "only_integrated"]
    assert unreadable in route.notes[0].text


def test_a_library_that_is_missing_names_its_package() -> None:
    problem = {"code": "missing", "text": "not found"}
    libraries = [
        {"name": "MIOpen", "path": "", "version": "", "problem": problem},
        {"name": "hipBLASLt", "path": "/x", "version": "1", "problem": {"code": "off", "text": "off on RDNA"}},
    ]
    route = found(shown(device(libraries=libraries)))["graphopt"]
    reasons = [library.reason for library in route.devices[0].libraries]
    assert reasons == [
        Reason("missing", "not found", "sudo apt install miopen-hip"),
        Reason("off", "off on RDNA"),
    ]
    assert route.ready


def test_a_gpu_that_is_not_there_is_said_before_a_runtime_that_is_too_old() -> None:
    old = Reason("old_onnxruntime", "too old", "pip install onnxruntime")
    assert found(shown(device()), missing=old)["graphopt"].why_not() == old
    none = found(shown(problem=("no_runtime", "nowhere")), System(), missing=old)["graphopt"].why_not()
    assert none is not None and none.code == "no_gpu"


def test_the_rocm_provider_has_reasons_of_its_own(tmp_path: Path) -> None:
    assert found(shown(device()))["rocm"].why_not() == Reason(
        "no_provider", "this ONNX Runtime has no ROCm provider: 1.22 was the last with one"
    )
    other = found(shown(device(), needed="libamdhip64.so.6"), rocm=tmp_path)["rocm"].why_not()
    assert other is not None and other.code == "other_runtime"
    assert "libamdhip64.so.6" in other.text and "libamdhip64.so.7.1.0" in other.text


def test_libraries_that_the_loader_does_not_find(tmp_path: Path) -> None:
    """A library that needs another that is nowhere."""
    source, other, needing = (tmp_path / name for name in ("x.c", "libnowhere_at_all.so", "libneeding.so"))
    source.write_text("int f(void) { return 1; }")
    assert os.system(f"gcc -shared -o {other} {source}") == 0
    assert os.system(f"gcc -shared -Wl,--no-as-needed -o {needing} {source} -L{tmp_path} -lnowhere_at_all") == 0
    other.unlink()
    assert missing_libraries(needing) == ["libnowhere_at_all.so"]
    why = found(shown(device()), rocm=needing)["rocm"].why_not()
    assert why is not None and why.code == "missing_libraries" and "libnowhere_at_all.so" in why.text
    told = found(shown(device()), replace(DESKTOP, rocm=("/opt/rocm/lib",)), rocm=needing)["rocm"].why_not()
    assert told is not None and told.code == "not_found" and "ldconfig" in told.mend


def machine(root: Path, files: Mapping[str, str]) -> System:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return look_around(root)


def test_what_the_system_shows(tmp_path: Path) -> None:
    display, sound = "sys/bus/pci/devices/0000:03:00.0", "sys/bus/pci/devices/0000:03:00.1"
    system = machine(
        tmp_path,
        {
            f"{display}/vendor": "0x1002\n",
            f"{display}/class": "0x030000\n",
            f"{sound}/vendor": "0x1002\n",
            f"{sound}/class": "0x040300\n",
            "sys/bus/pci/devices/0000:41:00.0/vendor": "0x1002\n",
            "sys/bus/pci/devices/0000:41:00.0/class": "0x120000\n",
            "dev/kfd": "",
            "dev/dri/renderD128": "",
            "opt/rocm-7.1.0/lib/libamdhip64.so.7": "",
            "proc/sys/kernel/osrelease": "6.8.0-generic\n",
        },
    )
    assert (system.amd_gpus, system.kfd, system.kfd_refusal, system.render_refusal) == (2, True, "", "")
    assert system.render_nodes == (str(tmp_path / "dev/dri/renderD128"),)
    assert system.unbound == ("0000:03:00.0: no driver", "0000:41:00.0: no driver") and system.kfd_gpus is None
    assert system.rocm == (str(tmp_path / "opt/rocm-7.1.0/lib"),)
    assert not system.wsl and not system.container and not system.dxg
    assert look_around(tmp_path / "nowhere") == System(container="KUBERNETES_SERVICE_HOST" in os.environ)


def test_nodes_that_cannot_be_opened(tmp_path: Path) -> None:
    """A folder can't be opened for writing, whoever asks."""
    for node in ("dev/kfd", "dev/dri/renderD128"):
        (tmp_path / node).mkdir(parents=True)
    system = look_around(tmp_path)
    assert (system.kfd, system.kfd_refusal, system.render_refusal) == (True, "Is a directory", "Is a directory")
    assert machine(tmp_path, {"dev/dri/renderD129": ""}).render_refusal == "", "one of two GPUs is enough"


def test_gpus_of_the_kernel_s_drivers(tmp_path: Path) -> None:
    bus, nodes = "sys/bus/pci/devices", "sys/class/kfd/kfd/topology/nodes"
    drivers = {"0000:03:00.0": "amdgpu", "0000:41:00.0": "vfio-pci", "0000:44:00.0": ""}
    for gpu, driver in drivers.items():
        machine(tmp_path, {f"{bus}/{gpu}/vendor": "0x1002\n", f"{bus}/{gpu}/class": "0x030000\n"})
        if driver:
            (tmp_path / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
            (tmp_path / bus / gpu / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers" / driver)
    told = {f"{nodes}/0/properties": "cpu_cores_count 16\nsimd_count 0\n", f"{nodes}/1/properties": "simd_count 192\n"}
    system = machine(tmp_path, told)
    assert system.unbound == ("0000:41:00.0: vfio-pci", "0000:44:00.0: no driver")
    assert system.kfd_gpus == 1


def test_nodes_of_gpus_that_others_were_given(tmp_path: Path) -> None:
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    (node / "properties").mkdir(parents=True)  # can't be read, whoever asks
    system = machine(tmp_path, {"sys/class/kfd/kfd/topology/nodes/0/properties": "simd_count 304\n"})
    assert system.unreadable == (str(node / "properties"),)


def test_wsl_and_containers(tmp_path: Path) -> None:
    kernel = {"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}
    wsl = machine(tmp_path / "wsl", {"dev/dxg": "", **kernel})
    assert wsl.wsl and wsl.dxg and wsl.may_have_amd_gpu and not wsl.kfd
    assert machine(tmp_path / "docker", {".dockerenv": ""}).container
