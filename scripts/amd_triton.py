"""Compiles GEMM and attention kernels of Triton for AMD, and bounds their inner loops as scripts/amd_build.py does.

    python scripts/amd_triton.py [ARCH ...]

Needs `pip install triton` and LLVM's tools, but no GPU. Without ARCH: gfx90a, gfx942, gfx1100, gfx1151 and gfx1201. The
kernels follow Triton's tutorials (matrix multiplication, fused attention), in float16 with float32 sums and B stored
as [N, K]. For each tile it prints the bounds of the inner loop with as many work-groups on a compute unit as fit.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.amd_build import describe, is_cdna, loop_of, occupancy, read_kernels, simulate

# For CDNA (True) and RDNA (False). GEMM: M, N and K of a tile, waves. Attention: head size, rows, keys, waves.
GEMM_TILES = {
    True: [(128, 128, 32, 4), (128, 128, 64, 4), (256, 128, 64, 8), (256, 256, 32, 8), (256, 256, 64, 8)],
    False: [(128, 128, 32, 4), (128, 128, 32, 8), (128, 256, 32, 8), (128, 128, 64, 8)],
}
ATTENTION_TILES = {
    True: [(64, 128, 64, 4), (128, 128, 64, 4)],
    False: [(64, 64, 64, 4), (64, 128, 64, 8), (128, 64, 32, 4), (128, 128, 64, 8)],
}


@triton.jit  # type: ignore[untyped-decorator]
def gemm(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, b_row, c_row, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    columns = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    depth = tl.arange(0, BK)
    a_at = a_ptr + rows[:, None] * a_row + depth[None, :]
    b_at = b_ptr + columns[None, :] * b_row + depth[:, None]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_at, mask=depth[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_at, mask=depth[:, None] < K - k * BK, other=0.0)
        total = tl.dot(a, b, total)
        a_at += BK
        b_at += BK
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c_ptr + m[:, None] * c_row + n[None, :], total.to(tl.float16), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def attention(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, o_ptr, S, T, exponent, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    head = tl.program_id(1)
    keys = tl.arange(0, BN)
    d = tl.arange(0, D)
    at = head * S * D + rows[:, None] * D + d[None, :]
    q = tl.load(q_ptr + at, mask=rows[:, None] < S, other=0.0)
    q = (q * exponent).to(tl.float16)
    highest = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    output = tl.zeros((BM, D), tl.float32)
    k_at = k_ptr + head * T * D + keys[None, :] * D + d[:, None]
    v_at = v_ptr + head * T * D + keys[:, None] * D + d[None, :]
    for _ in range(0, T, BN):
        k = tl.load(k_at)
        v = tl.load(v_at)
        scores = tl.dot(q, k)
        higher = tl.maximum(highest, tl.max(scores, 1))
        p = tl.math.exp2(scores - higher[:, None])
        factor = tl.math.exp2(highest - higher)
        total = total * factor + tl.sum(p, 1)
        output = tl.dot(p.to(tl.float16), v, output * factor[:, None])
        highest = higher
        k_at += BN * D
        v_at += BN * D
    tl.store(o_ptr + at, (output / total[:, None]).to(tl.float16), mask=rows[:, None] < S)


def report(arch: str, function: Any, name: str, constants: dict[str, int], waves: int, folder: Path) -> None:
    """Compiles one kernel and prints its inner loop. Pointers and strides are multiples of 16."""
    names = function.arg_names
    signature = {
        arg: "constexpr" if arg in constants else "*fp16" if arg.endswith("_ptr") else "i32" for arg in names
    } | ({"exponent": "fp32"} if "exponent" in names else {})
    aligned = [i for i, arg in enumerate(names) if arg not in (*constants, "M", "N", "exponent")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("hip", arch, 64 if is_cdna(arch) else 32)
    compiled = triton.compile(source, target=target, options={"num_warps": waves, "num_stages": 2})
    path = folder / "kernel.co"
    path.write_bytes(compiled.asm["hsaco"])
    (kernel,) = read_kernels([path])
    kernel.facts["group_segment_fixed_size"] = compiled.metadata.shared  # requested by the launch
    loop = loop_of(arch, kernel)
    print(f"{name:34} {kernel.facts['vgpr_count']:4} VGPR {compiled.metadata.shared:6} LDS ", end="")
    print(f"{occupancy(arch, kernel):3} waves on a SIMD")
    print(
        describe(loop, simulate(arch, kernel, loop), loop.alone(waves))
        if loop
        else "    no loop with matrix instructions"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for arch in sys.argv[1:] or ["gfx90a", "gfx942", "gfx1100", "gfx1151", "gfx1201"]:
            print(f"\n{arch}, Triton {triton.__version__}")
            for bm, bn, bk, waves in GEMM_TILES[is_cdna(arch)]:
                constants = {"BM": bm, "BN": bn, "BK": bk}
                report(arch, gemm, f"gemm {bm}x{bn}x{bk}, {waves} waves", constants, waves, Path(folder))
            for d, bm, bn, waves in ATTENTION_TILES[is_cdna(arch)]:
                constants = {"D": d, "BM": bm, "BN": bn}
                name = f"attention {d}, {bm} rows, {waves} waves"
                report(arch, attention, name, constants, waves, Path(folder))


if __name__ == "__main__":
    main()
