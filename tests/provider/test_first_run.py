"""The guide shows the real output of README's commands for AMD GPUs, and a fallback to the CPU gives its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.first_run import Machine, commands, stand_in_machine
from tests.hip.harness import ROOT

IN_A_SESSION = "python -c \"import graphopt; print(graphopt.session('in.onnx').get_providers())\""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return stand_in_machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def old_runtime(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return stand_in_machine(tmp_path_factory.mktemp("machine"))


def shape_of(text: str) -> str:
    """Removes run-dependent parts: numbers, versions, table widths and line breaks in cells."""
    text = re.sub(r"[\u2500-\u257f]", " ", text)
    return " ".join(re.sub(r"\d+(\.\w+)*([-+]\d+)?", "0", text).split())


def shown(command: str) -> str:
    """Returns the output that the guide shows for a command, without the self-test's table."""
    guide = (ROOT / "docs" / "guide.md").read_text()
    section = re.search(r"^## The first run\n.*?^```\n(.*?)^```", guide, re.M | re.S)
    assert section is not None
    parts = re.split(r"^\$ (.*)\n", section[1], flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))[command].partition("self-test:")[0]


def test_the_guide_shows_the_output_of_the_readmes_commands(gpu: Machine) -> None:
    """The self-test takes half a minute here, so only tests/provider/test_selftest_on_device.py runs it."""
    assert [command.split()[0] for command in commands()] == ["graphopt", "graphopt", "python"]
    for command in commands():
        printed = shape_of(gpu.run(command.replace(" --selftest", "")))
        # The guide leaves out lines at "...".
        assert re.fullmatch(re.escape(shape_of(shown(command))).replace(r"\.\.\.", ".*"), printed), printed


def test_the_doctor_finds_every_cpu_kernel(gpu: Machine) -> None:
    assert re.search(r"^CPU kernels +every operator$", gpu.run("graphopt doctor"), re.M)


def test_the_doctor_as_data(gpu: Machine) -> None:
    told = json.loads(gpu.run("graphopt doctor --json"))
    assert (told["format"], told["problems"], told["auto"]["target"]) == (2, [], "rocm:gfx1100")
    route = next(r for r in told["routes"] if r["name"] == "graphopt")
    assert route["ready"] and route["reason"] is None and route["provider"] == "GraphoptExecutionProvider"
    facts = [(d["arch"], d["code"], d["integrated"]) for d in route["devices"]]
    assert facts == [("gfx1100", "gfx1100", False), ("gfx1036", "gfx10-3-generic", True)]
    page = (ROOT / "docs" / "provider_reference.md").read_text()
    documented = re.findall(r"`(\w+)`", page.partition("## Why no GPU")[2])
    for keys in (told, route, route["devices"][0], route["devices"][0]["libraries"][0]):
        assert set(keys) <= {*documented}


def test_the_doctor_numbers_devices_as_the_provider_does(gpu: Machine) -> None:
    printed = gpu.run("graphopt doctor --json", STAND_IN_DEVICES="gfx906,gfx1036,gfx1100")
    told, _ = json.JSONDecoder().raw_decode(printed[printed.index("{") :])  # a warning about gfx906 follows
    numbers = {d["arch"]: d["number"] for route in told["routes"] if route["name"] != "rocm" for d in route["devices"]}
    assert numbers == {"gfx906": None, "gfx1036": 1, "gfx1100": 0}


def test_a_fallback_to_the_cpu_gives_its_reason_in_one_line(gpu: Machine) -> None:
    said = gpu.run(IN_A_SESSION, STAND_IN_DEVICES="gfx906", PYTHONWARNINGS="always")
    assert said.count("this session runs on the CPU: this library has device code for ") == 1
    assert "GRAPHOPT_HIP_ARCHS=gfx906" in said and "['CPUExecutionProvider']" in said
    optimized = gpu.run("graphopt optimize in.onnx cpu.onnx", STAND_IN_DEVICES="gfx906")
    assert "optimized for cpu (this library has device code for " in optimized


def test_no_warning_without_a_gpu(gpu: Machine) -> None:
    if Path("/dev/kfd").exists():
        pytest.skip("there is a GPU")
    assert gpu.run(IN_A_SESSION, STAND_IN_DEVICES="") == "['CPUExecutionProvider']\n"


def test_the_rocm_provider_without_its_libraries(old_runtime: Machine) -> None:
    """The GPU exists, but libraries that ONNX Runtime's ROCm provider needs are missing."""
    said = old_runtime.run(IN_A_SESSION)
    assert "this session runs on the CPU: the ROCm provider cannot be loaded" in said
    assert "libhipfft.so.0" in said and "['CPUExecutionProvider']" in said
    told = json.loads(old_runtime.run("graphopt doctor --json"))
    reasons = {r["name"]: r["reason"]["code"] for r in told["routes"] if r["reason"]}
    assert reasons["graphopt"] == "old_onnxruntime"
    assert reasons["rocm"] in ("missing_libraries", "not_found")
    assert told["auto"]["target"] == "cpu"
