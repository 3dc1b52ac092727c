"""Every compiler lays out kernel arguments in memory as the launch plans write them."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.hip import activations
from tests.hip.code_objects import tool
from tests.hip.harness import ROOT

NATIVE = ROOT / "native"
# Except device/args.h, which defines their member types.
HEADERS = sorted(path for path in NATIVE.rglob("*args.h") if path.parent != NATIVE / "device")

pytestmark = pytest.mark.once


def members() -> list[tuple[str, str]]:
    """Returns pairs of a struct of the headers and one of its members."""
    found = []
    for header in HEADERS:
        text = re.sub(r"//.*", "", header.read_text())
        for name, body in re.findall(
            r"^struct (\w+)(?: : Arguments<.*?>)? \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL
        ):
            for line in re.findall(r"^  (?!static)[\w:]+ ([^;()]+);", body, re.MULTILINE):
                found += [(name, member) for member in re.findall(r"(?:^|,)\s*(\w+)", re.sub(r" = [^,]+", "", line))]
    return found


def source() -> str:
    """Returns source code for a table of sizes and offsets in an object file."""
    structs = sorted({name for name, _ in members()})
    numbers = [f"sizeof({name})" for name in structs] + [f"__builtin_offsetof({n}, {m})" for n, m in members()]
    return "\n".join(
        [
            *(f'#include "{header.relative_to(NATIVE)}"' for header in HEADERS),
            "#if defined(__AMDGCN__)",
            "#define HELD __attribute__((device, used))",
            "#elif defined(__CUDACC__)",
            "#define HELD __device__",
            "#else",
            "#define HELD",
            "#endif",
            "using namespace graphopt::hip;",
            f'extern "C" {{ HELD uint32_t layout[{len(numbers)}] = {{{", ".join(numbers)}}}; }}',
        ]
    )


def read_symbol(elf: bytes, wanted: bytes) -> bytes:
    """Returns the bytes of a variable of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    # type, address, offset, size, link of each section
    sections = [
        (struct.unpack_from("<I", elf, at + 4)[0], *struct.unpack_from("<QQQI", elf, at + 16))
        for at in range(table, table + size * count, size)
    ]
    for kind, _, offset, length, link in sections:
        if kind != 2:  # not a symbol table
            continue
        names = sections[link][2]
        for at in range(offset, offset + length, 24):
            name, _, _, where, value, bytes_ = struct.unpack_from("<IBBHQQ", elf, at)
            if elf[names + name : elf.index(b"\0", names + name)] == wanted:
                _, address, start, _, _ = sections[where]
                return elf[start + value - address : start + value - address + bytes_]
    raise KeyError(wanted)


def layout(command: list[str], folder: Path) -> tuple[int, ...]:
    text, result = folder / "layout.cpp", folder / "layout.o"
    text.write_text(source())
    subprocess.run([*command, "-std=c++17", f"-I{NATIVE}", str(text), "-o", str(result)], check=True)
    held = read_symbol(result.read_bytes(), b"layout")
    return struct.unpack(f"<{len(held) // 4}I", held)


def device_compilers() -> dict[str, list[str]]:
    """Returns the GPU compilers of this machine, with their commands."""
    found = {}
    try:
        flags = "-x hip --cuda-device-only -fuse-cuid=none --no-gpu-bundle-output -nogpuinc -nogpulib"
        found["amd"] = [tool("clang++"), *flags.split(), "--offload-arch=gfx1100"]
    except RuntimeError:
        pass
    if shutil.which("nvcc"):
        found["nvidia"] = ["nvcc", "-x", "cu", "-arch=sm_90", "-cubin"]
    return found


def test_every_argument_struct_is_read() -> None:
    declared = re.findall(r"struct (\w+) : Arguments<", "".join(header.read_text() for header in HEADERS))
    assert len(declared) > 25
    assert set(declared) <= {name for name, _ in members()}
    used = re.findall(r"\b(\w+Args), ", "".join(path.read_text() for path in NATIVE.rglob("*.hip")))
    assert set(used) - {"Args"} <= set(declared)


def test_activations_are_numbered_alike() -> None:
    native = re.findall(r"^  KIND\((\w+),", (NATIVE / "operators" / "activation.h").read_text(), re.MULTILINE)
    assert [name.removeprefix("None") for name in native] == list(activations.NAMES)


@pytest.mark.parametrize("compiler", device_compilers())
def test_host_and_device_agree_on_every_offset(compiler: str, tmp_path: Path) -> None:
    host = layout(["g++", "-c"], tmp_path)
    device = layout(device_compilers()[compiler], tmp_path)
    names = [f"sizeof({name})" for name in sorted({name for name, _ in members()})] + [".".join(m) for m in members()]
    assert dict(zip(names, device, strict=True)) == dict(zip(names, host, strict=True))
