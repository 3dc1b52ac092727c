"""Compares the table of architectures with an installed clang, since LLVM's AMDGPU target has the same data.

Facts unknown to a compiler (compute units, caches, memory, dies) have their source in docs/gpu_reference.md.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.hip.architectures import UNSUPPORTED, Row, architectures
from tests.hip.code_objects import tool
from tests.hip.harness import ROOT

FLAGS = "-x hip --cuda-device-only -fuse-cuid=none --no-gpu-bundle-output -nogpuinc -nogpulib -O1 -std=c++17 -S -o - -"
AMD = {name: row for name, row in architectures().items() if name.startswith("gfx")}
# A kernel with few registers, one with 256, and one with the LDS of the table; {more} adds to that. Work-groups have
# one wave for each SIMD: with the default of 1,024 work-items, ten waves on a SIMD hold two work-groups but not three.
PROBE = """
#include "device/traits.h"
static_assert(graphopt::hip::kWave == {wave});
static_assert(graphopt::hip::kMatrixF16 == {half} && graphopt::hip::kMatrixF32 == {full});
static_assert(__has_builtin(__builtin_amdgcn_mfma_f32_16x16x16f16) == {mfma});
static_assert((GRAPHOPT_MFMA) == {mfma});
static_assert(__has_builtin(__builtin_amdgcn_mfma_f32_16x16x4f32) == {full});
static_assert((__has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32) ||
               __has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)) == {wmma});
#define KERNEL extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 256))) void
KERNEL few(int* x) {{ *x = 1; }}
KERNEL many(int* x) {{ asm volatile("v_mov_b32 v255, 0" ::: "v255"); *x = 1; }}
__attribute__((shared)) int lds[({lds} + {more}) / 4];
KERNEL all_of_lds(int* x, int i) {{ lds[i] = *x; *x = lds[*x + 1]; }}
"""


def clang() -> str:
    try:
        return tool("clang")
    except RuntimeError:
        return ""


def compile_hip(arch: str, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    version = "6" if "generic" in arch else "5"
    command = [clang(), f"-I{ROOT / 'native'}", f"-mcode-object-version={version}", f"--offload-arch={arch}", *options]
    return subprocess.run([*command, *FLAGS.split()], input=source, capture_output=True, text=True)


def compile_probe(arch: str, row: Row, more: int) -> subprocess.CompletedProcess[str]:
    has = {True: "true", False: "false"}
    source = PROBE.format(
        wave=row["wave"],
        half=has[row["matrix"] != "hip::Matrix::kNone"],
        full=row["matrix_f32"],
        mfma=has[row["matrix"] == "hip::Matrix::kMfma"],
        wmma=has[row["matrix"] == "hip::Matrix::kWmma"],
        lds=row["lds_bytes"],
        more=more,
    )
    return compile_hip(arch, source)


def known() -> set[str]:
    """Returns the architectures that the installed clang knows."""
    if not clang():
        return set()
    command = [clang(), "--target=amdgcn-amd-amdhsa", "-nogpulib", "--print-supported-cpus"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {*(done.stdout + done.stderr).split()}


@pytest.mark.once
@pytest.mark.parametrize("arch", UNSUPPORTED)
def test_an_architecture_without_a_row_is_not_built(arch: str, tmp_path: Path) -> None:
    """Its generation has kernels, but its matrix instructions have other layouts."""
    command = ["cmake", "-S", str(ROOT / "native"), "-B", str(tmp_path), f"-DGRAPHOPT_HIP_ARCHS=gfx1100;{arch}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and f"graphopt has no kernels for {arch}; GRAPHOPT_HIP_ARCHS may have" in done.stderr


if clang():

    @pytest.mark.once
    @pytest.mark.parametrize("arch", sorted(known() & {*AMD}))
    def test_the_table_agrees_with_llvm(arch: str) -> None:
        """Compares waves, matrix units, LDS, and, through the number of concurrent waves, the registers of a SIMD."""
        row = AMD[arch]
        done = compile_probe(arch, row, more=0)
        assert done.returncode == 0, done.stderr
        text = done.stdout
        assert {*re.findall(r"\.wavefront_size: +(\d+)", text)} == {row["wave"]}
        few, many = (int(n) for n in re.findall(r"; Occupancy: (\d+)", text)[:2])
        assert few == int(row["waves_per_simd"])
        # RDNA allocates registers in 64ths of the file; gfx908 has a separate file for accumulation registers.
        file = int(row["simd_registers"]) // (2 if arch == "gfx908" else 1)
        step = 4 if row["wave"] == "64" and row["registers"] == "256" else 8 if row["wave"] == "64" else file // 64
        assert many == file // (-(-256 // step) * step)
        # A wave has 256 registers, and the same number of accumulation registers if the architecture has them.
        assert (".agpr_count:" in text) == (row["registers"] == "512")
        too_much = compile_probe(arch, row, more=4)
        assert too_much.returncode != 0 and "local memory" in too_much.stderr

    @pytest.mark.once
    @pytest.mark.parametrize("arch", ["gfx1201", *sorted(known() & {*UNSUPPORTED})])
    def test_the_generation_does_not_select_the_layouts_of_rdna_4(arch: str) -> None:
        """A target that only defines __GFX12__, or only has RDNA 4's instruction, is refused."""
        done = compile_hip(arch, '#include "gemm/pipelines/instruction.h"', "-U__gfx1201__")
        assert done.returncode != 0 and "its matrix instructions do not have the layouts of RDNA 4" in done.stderr
