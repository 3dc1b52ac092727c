"""Compiles every GPU kernel for AMD and prints the resources and the instructions of each.

    python scripts/amd_build.py [ARCH ...]

For each architecture and kernel: VGPRs, AGPRs, SGPRs, LDS and scratch bytes, spills, occupancy, and the numbers of
128-bit loads and stores, matrix instructions, packed or dual fp32 instructions, LDS and scratch instructions. For each
innermost loop of a GEMM or attention kernel also the issue cycles of its instructions, by unit. (The other kernels have
no loops: their backward branches lead to blocks that the compiler moved to the end.)

Without ARCH, uses those that the table of architectures (native/device/architectures.h) marks as checked. Occupancy is
in waves on a SIMD, from the table's facts, for work-groups of the kernel's maximum size.

Fails if a kernel has spills or scratch, if a GEMM or attention kernel has no 128-bit loads, or if it has no matrix
instruction although the architecture has them for its type.
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
    listing: str  # one line for each instruction, as printed by llvm-objdump

    def count(self, pattern: str) -> int:
        """Returns the number of instructions that begin with the pattern."""
        return len(re.findall(rf"\n\t(?:{pattern})", self.listing))

    @cached_property
    def code(self) -> list[tuple[int, str]]:
        """Returns address and text of each instruction; a branch's text ends in @ and the target's offset."""
        found = []
        for text, address, target in INSTRUCTION.findall(self.listing):
            if target and text.startswith(("s_cbranch", "s_branch")):
                text = f"{text.split()[0]} @{int(target.partition('+')[2] or '0', 16)}"
            found.append((int(address, 16), text))
        return found


# GEMM and attention kernels, which must use 128-bit loads and matrix instructions.
PRODUCTS = r"(winograd|implicit|matrix)_product|fused_attention_(plain|many|\d)|gemm_(?!sum)|conv_"
INSTRUCTION = re.compile(r"^\t(\S.*?)\s*// ([0-9A-F]+):[^<\n]*(?:<(.*)>)?$", re.MULTILINE)


def is_cdna(arch: str) -> bool:
    return architectures()[arch]["wave"] == "64"


def read_kernels(paths: Sequence[Path], listed: str = "") -> list[Kernel]:
    """Returns the resources of each kernel, and the instructions of kernels with names that begin with `listed`."""
    found = metadata(paths)
    names = [name for name in found if re.match(listed, name)]
    command = [tool("llvm-objdump"), f"--disassemble-symbols={','.join(names)}", *map(str, paths)]
    # The tool warns about names that are not in every file.
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    # A kernel's lines follow its name; `pieces` has the text before the first name, then alternately names and lines.
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
    """Returns the waves on a SIMD; a CU's LDS is shared by four SIMDs on CDNA, by two on RDNA."""
    f, row = kernel.facts, architectures()[arch]
    registers, lds = f["vgpr_count"], f["group_segment_fixed_size"]
    waves_of_group = -(-f["max_flat_workgroup_size"] // f["wavefront_size"])
    file, waves = int(row["simd_registers"]), int(row["waves_per_simd"])
    if is_cdna(arch):
        step, simds = 8, 4
        if arch == "gfx908":  # separate register files for VGPRs and AGPRs
            agpr = f.get("agpr_count", 0)
            file, step, registers = file // 2, 4, max(registers - agpr, agpr)
    else:
        step, simds = file // 64, 2
    most = min(waves, file // max(step, -(-registers // step) * step))
    if lds:
        most = min(most, max(1, (int(row["lds_bytes"]) // lds) * waves_of_group // simds))
    return most


def matrix_cycles(arch: str) -> int:
    """Returns the cycles of a 16 x 16 x 16 float16 product.

    CDNA 4 is only faster at longer products, which no kernel uses.
    """
    simds = 4 if is_cdna(arch) else 2
    return max(16, 2 * 16**3 * simds // int(architectures()[arch]["matrix_flops"]))


def cycles(arch: str, text: str) -> tuple[str, int]:
    """Returns the unit of an instruction and its issue cycles for one wave, by the vendor's guides."""
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
    """Returns the instructions of each innermost loop: from a backward branch's target to the branch."""
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
        # implicit_product converts float16 to float32.
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
