"""Compile every GPU kernel for AMD and print what the compiler made of it.

    python scripts/amd_build.py [ARCH ...]

For each architecture and kernel: VGPRs, AGPRs, SGPRs, LDS and scratch bytes, spills, occupancy, and how many 128-bit
loads and stores, matrix instructions, packed or dual fp32 instructions, LDS and scratch instructions there are; then,
for each innermost loop of a product or attention kernel, the cycles that its instructions take to issue, by unit. (The
other kernels have no loops: their backward branches lead to blocks that the compiler moved to the end.)

Without ARCH, those that the table of architectures (native/device/architectures.h) marks as checked. Occupancy is in
waves on a SIMD, from the table's facts. Registers are given out in steps of 8 on CDNA, VGPRs and AGPRs together
(gfx908: half of each, in steps of 4), and on RDNA in steps of a 64th of all. The table's LDS is shared by the
work-groups of a CU with four SIMDs (two on RDNA); work-groups are as large as the kernel allows.

Issue cycles of one wave: VALU 4 on CDNA (wave64 on 16 lanes), 1 on RDNA; LDS and memory 4 on CDNA, 1 on RDNA; matrix
instructions by the guides: fp32 16x16x4 32, fp16 16x16x16 16 (32 on gfx908 and gfx90a), WMMA 32 on RDNA 3 and 16 on
RDNA 4.

Fails when a kernel has spills or scratch, when a product or attention kernel loads nothing 128 bits at a time, or has
no matrix instruction although the architecture has them for its type.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.hip.architectures import architectures, checked, has_matrix
from tests.hip.code_objects import build_code_objects, metadata, tool


@dataclass
class Kernel:
    """One kernel of a code object."""

    name: str
    facts: dict[str, int]
    listing: str  # a line for each instruction, as llvm-objdump prints it

    def count(self, pattern: str) -> int:
        """How many instructions begin with the pattern."""
        return len(re.findall(rf"\n\t(?:{pattern})", self.listing))

    @cached_property
    def code(self) -> list[tuple[int, str]]:
        """The address and the text of each instruction; a branch's text ends in @ and its distance from the start."""
        found = []
        for text, address, target in INSTRUCTION.findall(self.listing):
            if target and text.startswith(("s_cbranch", "s_branch")):
                text = f"{text.split()[0]} @{int(target.partition('+')[2] or '0', 16)}"
            found.append((int(address, 16), text))
        return found


# Kernels that multiply: they have to load 128 bits at a time, and to use matrix instructions.
PRODUCTS = r"(winograd|implicit|matrix)_product|fused_attention_(plain|many|\d)|gemm_(?!sum)|conv_"
INSTRUCTION = re.compile(r"^\t(\S.*?)\s*// ([0-9A-F]+):[^<\n]*(?:<(.*)>)?$", re.MULTILINE)


def is_cdna(arch: str) -> bool:
    return architectures()[arch]["wave"] == "64"


def read_kernels(paths: Sequence[Path], listed: str = "") -> list[Kernel]:
    """Resources of each kernel from the metadata; instructions of those whose names begin with `listed`."""
    found = metadata(paths)
    names = [name for name in found if re.match(listed, name)]
    command = [tool("llvm-objdump"), f"--disassemble-symbols={','.join(names)}", *map(str, paths)]
    # Not every name is in every file, which the tool has warnings for.
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    # A kernel's lines follow its name; `pieces` has what lies before the first, then names and lines in turn.
    pieces = re.split(r"\n[0-9a-f]+ <(\w+)>:(?=\n)", output)
    listings = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return [
        Kernel(
            name,
            {key: int(value) for key, value in re.findall(r"^\s*\.(\w+):\s+(\d+)$", block, re.MULTILINE)},
            listings.get(name, ""),
        )
        for name, block in found.items()
    ]


def occupancy(arch: str, kernel: Kernel) -> int:
    f, row = kernel.facts, architectures()[arch]
    registers, lds = f["vgpr_count"], f["group_segment_fixed_size"]
    waves_of_group = -(-f["max_flat_workgroup_size"] // f["wavefront_size"])
    file, waves = int(row["simd_registers"]), int(row["waves_per_simd"])
    if is_cdna(arch):
        step, simds = 8, 4
        if arch == "gfx908":  # two files instead of one
            agpr = f.get("agpr_count", 0)
            file, step, registers = file // 2, 4, max(registers - agpr, agpr)
    else:
        step, simds = file // 64, 2
    most = min(waves, file // max(step, -(-registers // step) * step))
    if lds:
        most = min(most, max(1, (int(row["lds_bytes"]) // lds) * waves_of_group // simds))
    return most


def matrix_cycles(arch: str) -> int:
    """Clocks of a float16 product of 16 x 16 x 16. CDNA 4 is faster at longer ones alone, which kernels do not use."""
    simds = 4 if is_cdna(arch) else 2
    return max(16, 2 * 16**3 * simds // int(architectures()[arch]["matrix_flops"]))


def cycles(arch: str, text: str) -> tuple[str, int]:
    """The unit that an instruction goes to and its issue cycles."""
    cdna = is_cdna(arch)
    if text.startswith("v_mfma"):
        if "f32_16x16x4" in text:
            return "matrix", 32
        return "matrix", matrix_cycles(arch)
    if text.startswith("v_wmma"):
        return "matrix", matrix_cycles(arch)
    if text.startswith("v_"):
        return "VALU", 4 if cdna else 1
    if text.startswith("ds_"):
        return "LDS", 4 if cdna else 1
    if text.startswith(("global_", "flat_", "buffer_", "scratch_")):
        return "memory", 4 if cdna else 1
    return "scalar", 1


def loops(kernel: Kernel) -> list[list[str]]:
    """Instructions of each innermost loop: from a backward branch's target to the branch."""
    if not kernel.code or not re.search("product|attention|^gemm_|^conv_", kernel.name):
        return []
    start = kernel.code[0][0]
    spans = []
    for address, text in kernel.code:
        branch = re.match(r"s_c?branch\S* @(\d+)", text)
        if branch and start + int(branch[1]) <= address:
            spans.append((start + int(branch[1]), address))
    inner = [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    bodies = [[text for address, text in kernel.code if begin <= address <= end] for begin, end in inner]
    return [body for body in bodies if any(re.match(r"s_barrier|v_mfma|v_wmma", text) for text in body)]


def problems(arch: str, kernel: Kernel) -> list[str]:
    f = kernel.facts
    found = []
    if f["private_segment_fixed_size"] or f["vgpr_spill_count"] or f["sgpr_spill_count"]:
        found.append("spills or scratch")
    if re.match(PRODUCTS, kernel.name):
        # implicit_product keeps float16 in float32.
        half = kernel.name.endswith("_f16") and not kernel.name.startswith("implicit")
        if has_matrix(arch, half) and not kernel.count(r"v_mfma|v_wmma"):
            found.append("no matrix instruction")
        if not kernel.count(r"(global|flat|buffer)_load_(dwordx4|b128)"):
            found.append("no 128-bit load")
    return found


def main() -> int:
    archs = sys.argv[1:] or checked()
    failures = []
    header = "VGPR AGPR SGPR   LDS scratch spill occ | 128-bit matrix pk/dual  LDS scratch"
    for arch, paths in build_code_objects(archs).items():
        print(f"\n{arch:42} {header}")
        for kernel in read_kernels(paths):
            f = kernel.facts
            found = problems(arch, kernel)
            failures += [f"{arch} {kernel.name}: {p}" for p in found]
            print(
                f"{kernel.name:42} {f['vgpr_count']:4} {f.get('agpr_count', 0):4} {f['sgpr_count']:4} "
                f"{f['group_segment_fixed_size']:5} {f['private_segment_fixed_size']:7} "
                f"{f['vgpr_spill_count'] + f['sgpr_spill_count']:5} {occupancy(arch, kernel):3} | "
                f"{kernel.count(r'(global|flat|buffer)_(load|store)_(dwordx4|b128)'):7} "
                f"{kernel.count(r'v_mfma|v_wmma'):6} {kernel.count(r'v_pk_(fma|mul|add)_f32|v_dual_'):7} "
                f"{kernel.count(r'ds_'):4} {kernel.count(r'scratch_'):7}  {', '.join(found)}"
            )
            for number, loop in enumerate(loops(kernel)):
                units: dict[str, int] = {}
                for text in loop:
                    unit, issue = cycles(arch, text)
                    units[unit] = units.get(unit, 0) + issue
                cells = "  ".join(f"{unit} {units[unit]}" for unit in sorted(units))
                print(f"    loop {number}, {len(loop)} instructions, issue cycles: {cells}")
    print(
        *(["", *failures] if failures else ["", "no spills, no scratch, matrix instructions where they belong"]),
        sep="\n",
    )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
