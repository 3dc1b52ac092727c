"""Compiles every GPU kernel for AMD and prints the resources and the instructions of each.

    python scripts/amd_build.py [ARCH ...]

Resources: VGPRs, AGPRs, SGPRs, LDS and scratch bytes, spills, occupancy. Counted instructions: 128-bit loads and
stores, matrix instructions, packed or dual fp32 instructions, LDS, scratch and flat instructions.

For each kernel with matrix instructions in a loop, it also describes the inner loop: the clocks of a wave on each unit,
LDS accesses by width, waits and barriers. Two bounds of the loop's speed are in percent of the matrix units' peak: the
busiest unit, and a simulation of the waves of a compute unit (tests/hip/inner_loops.py). scripts/amd_triton.py examines
Triton's kernels in the same way.

Without ARCH, uses the architectures that the table (native/device/architectures.h) marks as checked. Occupancy is
in waves on a SIMD, from the table's facts, for work-groups of the kernel's maximum size.

Fails if a kernel has spills, scratch or flat instructions, or if a simulated bound is below its floor. A GEMM or
attention kernel must also have 128-bit loads, and matrix instructions if the architecture has them for its type.
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
from tests.hip.inner_loops import Loop, inner_loop, rates


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
        """Returns address and text of each instruction; a branch's text ends in @ and its target's address."""
        found = []
        lines = INSTRUCTION.findall(self.listing)
        start = int(lines[0][1], 16) if lines else 0
        for text, address, target in lines:
            if target and text.startswith(("s_cbranch", "s_branch")):
                text = f"{text.split()[0]} @{start + int(target.partition('+')[2] or '0', 16)}"
            found.append((int(address, 16), text))
        return found


# GEMM and attention kernels, which must use 128-bit loads and matrix instructions.
GEMMS = (
    r"(winograd|implicit|matrix)_gemm|fused_attention_(plain|many|\d)|(integer_)?gemm_(?!sum)|(channels_last_)?conv_|"
    r"matmul_nbits_(rows|\d)"
)
# The minimum simulated bound of the largest tiles, in percent of the matrix units' peak.
FLOORS = {
    r"gemm_(transposed_)?panels_128x128_f16|(channels_last_conv|conv_disjoint)_128x128_f16": 65,
    r"fused_attention_plain_(64|128)_f16": 50,
}
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
        most = min(most, max(1, (int(row["lds_bytes"]) // lds) * waves_of_group(kernel) // simds))
    return most


def loop_of(arch: str, kernel: Kernel) -> Loop | None:
    return inner_loop(arch, kernel.code) if kernel.count("v_mfma|v_wmma") else None


def waves_of_group(kernel: Kernel) -> int:
    return -(-kernel.facts["max_flat_workgroup_size"] // kernel.facts["wavefront_size"])


def simulate(arch: str, kernel: Kernel, loop: Loop) -> float:
    """Returns the simulated bound, with as many work-groups on a compute unit as fit."""
    waves = waves_of_group(kernel)
    return loop.simulated(max(1, occupancy(arch, kernel) * rates(arch).simds // waves), waves)


def describe(loop: Loop, simulated: float, alone: int) -> str:
    clocks = "  ".join(f"{unit} {clocks}" for unit, clocks in sorted(loop.clocks.items()) if unit != "barrier")
    widths = " ".join(f"{count}x{bits}" for bits, count in sorted(loop.lds_bits.items()))
    return (
        f"    loop of {len(loop.code)} instructions, clocks: {clocks}; LDS accesses by bits: {widths}; "
        f"waits {loop.count('s_wait')}, barriers {loop.count('s_barrier$|s_barrier_wait')}; "
        f"peak {100 * loop.busiest():.0f} % (busiest unit), {100 * simulated:.0f} % (simulated); "
        f"{alone} clocks per iteration with one work-group on a compute unit"
    )


def problems(arch: str, kernel: Kernel) -> list[str]:
    f = kernel.facts
    found = []
    if f["private_segment_fixed_size"] or f["vgpr_spill_count"] or f["sgpr_spill_count"]:
        found.append("spills or scratch")
    if kernel.count("flat_"):
        found.append("flat instead of global or LDS instructions")
    if re.match(GEMMS, kernel.name):
        # implicit_gemm converts float16 to float32.
        half = kernel.name.endswith(("_f16", "_i8")) and not kernel.name.startswith("implicit")
        if has_matrix(arch, half) and not kernel.count(r"v_mfma|v_wmma"):
            found.append("no matrix instruction")
        if not kernel.count(r"(global|flat|buffer)_load_(dwordx4|b128)"):
            found.append("no 128-bit load")
    return found


def floor_of(name: str) -> int:
    return next((floor for pattern, floor in FLOORS.items() if re.fullmatch(pattern, name)), 0)


def print_kernel(arch: str, kernel: Kernel) -> list[str]:
    """Prints a kernel's resources and its inner loop; returns its problems."""
    f = kernel.facts
    found = problems(arch, kernel)
    print(
        f"{kernel.name:42} {f['vgpr_count']:4} {f.get('agpr_count', 0):4} {f['sgpr_count']:4} "
        f"{f['group_segment_fixed_size']:5} {f['private_segment_fixed_size']:7} "
        f"{f['vgpr_spill_count'] + f['sgpr_spill_count']:5} {occupancy(arch, kernel):3} | "
        f"{kernel.count(r'(global|flat|buffer)_(load|store)_(dwordx4|b128)'):7} "
        f"{kernel.count(r'v_mfma|v_wmma'):6} {kernel.count(r'v_pk_(fma|mul|add)_f32|v_dual_'):7} "
        f"{kernel.count(r'ds_'):4} {kernel.count(r'scratch_'):7} {kernel.count(r'flat_'):4}  {', '.join(found)}"
    )
    loop = loop_of(arch, kernel)
    if loop:
        simulated = simulate(arch, kernel, loop)
        print(describe(loop, simulated, loop.alone(waves_of_group(kernel))))
        if arch in checked() and 100 * simulated < floor_of(kernel.name):
            found.append(f"{100 * simulated:.0f} % of the peak, floor {floor_of(kernel.name)} %")
    return found


def main() -> int:
    archs = sys.argv[1:] or checked()
    failures = []
    header = "VGPR AGPR SGPR   LDS scratch spill occ | 128-bit matrix pk/dual  LDS scratch flat"
    for arch, paths in build_code_objects(archs).items():
        print(f"\n{arch:42} {header}")
        for kernel in read_kernels(paths):
            failures += [f"{arch} {kernel.name}: {problem}" for problem in print_kernel(arch, kernel)]
    print(
        *(["", *failures] if failures else ["", "no spills, no scratch, no missing matrix instructions"]),
        sep="\n",
    )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
