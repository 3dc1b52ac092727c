"""The reasons why a GPU is not used are distinguished, each with its fix."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from graphopt.runtime import auto
from graphopt.runtime.routes import Reason, Route, missing_libraries, no_code_at_all, routes

pytestmark = pytest.mark.once

NATIVE = Path(__file__).resolve().parents[2] / "native"
OURS = "GraphoptExecutionProvider"
CODE = ["gfx1100", "gfx11-generic"]


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
        "float32_flops": 5.6e13,
        "float16_flops": 1.1e14,
        "driver": "HIP 7.1.123",
        "problem": None,
        "libraries": [{"name": "rocBLAS", "path": "/opt/rocm/lib/librocblas.so.5", "version": "5.1", "problem": None}],
        **facts,
    }


def shown(
    *devices: Mapping[str, Any],
    problem: tuple[str, str, str] | None = None,
    needed: str = "",
    path: str = "/opt/rocm/lib/libamdhip64.so.7.1.0",
    code: list[str] = CODE,
    **linux: Any,
) -> dict[str, Any]:
    said = None if problem is None else dict(zip(("code", "text", "remedy"), problem, strict=True))
    runtime = {"path": path, "version": "HIP 7.1.123", "needed": needed}
    return {
        "format": 1,
        "code": code,
        "amd": {"seen": True, "dxg": False, "unreadable": [], "rocm": [], **linux},
        "routes": [{"route": "hip", "runtime": runtime, "problem": said, "devices": list(devices)}],
    }


def found(described: dict[str, Any], missing: Reason | None = None, rocm: Path | None = None) -> dict[str, Route]:
    every = routes(described, provider=OURS, provider_missing=missing, rocm_provider=rocm)
    return {route.name: route for route in every}


def reason(described: dict[str, Any]) -> Reason:
    why = found(described)["graphopt"].why_not()
    assert why is not None
    return why


def test_a_device_is_ready() -> None:
    route = found(shown(device()))["graphopt"]
    assert route.ready and route.why_not() is None
    assert route.usable[0].libraries[0].version == "5.1"
    told = json.loads(json.dumps(route.to_dict()))
    assert told["ready"] and told["devices"][0]["bus_id"] == "0000:03:00.0" and told["reason"] is None


def test_why_a_route_has_no_devices() -> None:
    """The text comes from the native library (tests/native/test_amd_system.cpp tests each reason)."""
    why = reason(shown(problem=("not_in_kfd", "left out", "sudo dmesg")))
    assert why == Reason("not_in_kfd", "left out", "sudo dmesg")


@pytest.mark.parametrize(
    ("linux", "path", "seen"),
    [
        ({"seen": True}, "", True),
        ({"seen": False}, "/opt/rocm/lib/libamdhip64.so.7", False),
        ({"seen": False, "dxg": True}, "", False),  # on WSL a GPU of any vendor
        ({"seen": False, "dxg": True}, "/opt/rocm/lib/libamdhip64.so.7", True),
    ],
)
def test_whether_the_machine_has_an_amd_gpu(linux: dict[str, Any], path: str, seen: bool) -> None:
    problem = ("no_device", "shows none", "")
    assert found(shown(problem=problem, path=path, **linux))["graphopt"].seen == seen


@pytest.mark.parametrize(
    ("problem", "library_code", "code", "remedy"),
    [
        ("no_code", CODE, "no_code", "GRAPHOPT_HIP_ARCHS=gfx1036"),
        ("no_code", [], "no_code_at_all", "sudo apt install clang lld; pip install"),
        ("unsupported", CODE, "unsupported", "a newer version of graphopt"),
        ("old_runtime", CODE, "old_runtime", "ROCm 6.4"),
        ("failed", CODE, "failed", ""),
    ],
)
def test_why_a_device_is_not_used(problem: str, library_code: list[str], code: str, remedy: str) -> None:
    bad = device(arch="gfx1036", code="", problem={"code": problem, "text": "why"}, libraries=[])
    why = reason(shown(bad, code=library_code))
    assert (why.code, remedy in why.remedy, bool(why.remedy)) == (code, True, bool(remedy))


def test_the_build_for_an_nvidia_gpu_is_named_as_the_build_reads_it() -> None:
    why = no_code_at_all("sm_90", amd=False)
    given = re.search(r"GRAPHOPT_CUDA_ARCHS=(\S+)", why.remedy)
    assert given is not None
    # native/device/CMakeLists.txt compiles for NVIDIA if the name begins like this.
    listed = re.findall(r'\{"(sm_\w+)"', (NATIVE / "device" / "architectures.h").read_text())
    assert given[1] in listed


def test_one_device_is_enough_and_the_others_keep_their_reasons() -> None:
    bad = device(number=1, arch="gfx1036", code="", integrated=True, problem={"code": "no_code", "text": "why"})
    route = found(shown(device(), bad))["graphopt"]
    assert [d.number for d in route.usable] == [0]
    assert route.devices[1].reason is not None
    assert route.notes == ()


def test_integrated_gpus_and_nodes_of_others_are_notes() -> None:
    apu = device(arch="gfx1151", integrated=True)
    unreadable = "/sys/class/kfd/kfd/topology/nodes/2/properties"
    route = found(shown(apu, unreadable=[unreadable]))["graphopt"]
    assert route.ready
    assert [note.code for note in route.notes] == ["kfd_unreadable", "only_integrated"]
    assert unreadable in route.notes[0].text


def test_a_library_that_is_missing_names_its_package() -> None:
    problem = {"code": "missing", "text": "not found", "remedy": "sudo apt install miopen-hip"}
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


def test_a_missing_gpu_is_reported_before_an_old_runtime() -> None:
    old = Reason("old_onnxruntime", "too old", "pip install onnxruntime")
    assert found(shown(device()), missing=old)["graphopt"].why_not() == old
    none = found(shown(problem=("no_gpu", "there is none", ""), seen=False), missing=old)["graphopt"].why_not()
    assert none is not None and none.code == "no_gpu"


def test_reasons_of_the_rocm_provider(tmp_path: Path) -> None:
    assert found(shown(device()))["rocm"].why_not() == Reason(
        "no_provider", "this ONNX Runtime has no ROCm provider: version 1.22 was the last to have it"
    )
    other = found(shown(device(), needed="libamdhip64.so.6"), rocm=tmp_path)["rocm"].why_not()
    assert other is not None and other.code == "other_runtime"
    assert "libamdhip64.so.6" in other.text and "libamdhip64.so.7.1.0" in other.text


def test_libraries_that_the_loader_does_not_find(tmp_path: Path) -> None:
    """A library that depends on a missing one."""
    source, other, needing = (tmp_path / name for name in ("x.c", "libnowhere_at_all.so", "libneeding.so"))
    source.write_text("int f(void) { return 1; }")
    assert os.system(f"gcc -shared -o {other} {source}") == 0
    assert os.system(f"gcc -shared -Wl,--no-as-needed -o {needing} {source} -L{tmp_path} -lnowhere_at_all") == 0
    other.unlink()
    assert missing_libraries(needing) == ["libnowhere_at_all.so"]
    why = found(shown(device()), rocm=needing)["rocm"].why_not()
    assert why is not None and why.code == "missing_libraries" and "libnowhere_at_all.so" in why.text
    told = found(shown(device(), rocm=["/opt/rocm/lib"]), rocm=needing)["rocm"].why_not()
    assert told is not None and told.code == "not_found" and "ldconfig" in told.remedy


@pytest.mark.parametrize(
    ("arch", "has_code"), [("gfx900", True), ("gfx90c", True), ("gfx90a", False), ("gfx942", False)]
)
def test_code_for_gfx9_generic_does_not_run_on_cdna(arch: str, has_code: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "gpu_routes", lambda: (Route("rocm", "", "", code=("gfx9-generic",)),))
    _, why = auto.resolve_target(f"rocm:{arch}")
    assert (why == "") == has_code
