"""Cases for a GPU only: shapes that take minutes on the CPU, and tiles that the CPU does not support."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.hip import (
    channels_last_cases,
    fused_attention_cases,
    group_norm_cases,
    integer_gemm_cases,
    matmul_nbits_cases,
    product_cases,
    row_norm_cases,
    scale_shift_cases,
    tiles,
    winograd_conv_cases,
)
from tests.hip.case import Case

# N, C, groups, spatial shape. The last three: groups of one channel, one group, odd channels.
LAST_NORMS = (
    (4, 256, 32, (56, 56)),
    (1, 320, 32, (64, 64)),
    (8, 320, 32, (64, 64)),
    (2, 640, 32, (32, 32)),
    (8, 1280, 32, (16, 16)),
    (1, 128, 32, (250, 250)),
    (1, 64, 64, (200, 200)),
    (2, 320, 1, (64, 64)),
    (3, 255, 5, (61, 67)),
)


def large_cases() -> Iterator[Case]:
    """Yields shapes with many work-groups and the plan's default choice."""
    for dtype in (np.float32, np.float16):
        suffix = "f32" if dtype == np.float32 else "f16"
        for act in ("", "Relu", "Gelu"):
            yield scale_shift_cases.case(f"large_scale_shift_{act}_{suffix}", dtype, 8, 67, (113, 111), act, act != "")
        for spatial in ((56, 56), (64, 64), (31, 33), (128, 128)):
            yield group_norm_cases.case(f"large_group_norm_{suffix}-{spatial}", dtype, 4, 256, 32, spatial, "Silu")
            yield group_norm_cases.case(f"one_group_norm_{suffix}-{spatial}", dtype, 1, 320, 32, spatial, "Silu")
        for norm in LAST_NORMS if dtype == np.float16 else ():
            yield group_norm_cases.case(f"large_group_norm_channels_last-{norm}", dtype, *norm, "Silu", last=True)
        for D in (768, 4096, 5000, 32768):
            yield row_norm_cases.case(f"large_row_norm_{suffix}-{D}", dtype, 999, D, D == 4096, D != 768, D == 5000)
    Problem = fused_attention_cases.Problem
    for dtype in (np.float32, np.float16):
        for i, p in enumerate((
            Problem(384, 384, 64, B=4, heads=12),
            Problem(1000, 1000, 40, heads=8, rows_first=True),
            Problem(515, 1031, 128, heads=8, kv_heads=2, causal=True),
            Problem(300, 777, 80, B=2, heads=3, bias="HST", mask="BT", softcap=30.0),
            Problem(1, 4100, 128, B=2, heads=8, kv_heads=2),
            Problem(700, 700, 256, heads=2, causal=True, guard=True, bad=5),
            Problem(200, 3000, 160, heads=2, mask="ST", guard=True, hidden_rows=7),
        )):  # fmt: skip
            # Rows that attend to few keys have many times the overall RMS, and rounding errors in proportion.
            yield replace(fused_attention_cases.case(f"large_attention_{np.dtype(dtype)}-{i}", dtype, p), by_row=True)
    # Kernels that the CPU does not support: keys shared by waves (split-K within a work-group), pairs of work-groups.
    ping_pong = 2
    for i, p in enumerate((*fused_attention_cases.BY_HEAD[64], *fused_attention_cases.BY_HEAD[128],
                           *fused_attention_cases.SPLIT)):  # fmt: skip
        yield fused_attention_cases.case(f"attention_ping_pong_f16-{i}", np.float16, p, rows=ping_pong)
    for i, p in enumerate((Problem(515, 1030, 128, heads=2, causal=True), Problem(1000, 900, 96, heads=2, causal=True),
                           Problem(300, 1000, 64, heads=2, rows_first=True))):  # fmt: skip
        large = fused_attention_cases.case(f"attention_large_ping_pong_f16-{i}", np.float16, p, rows=ping_pong)
        yield replace(large, by_row=True)
    pairs = 3
    for i, p in enumerate((*fused_attention_cases.BY_HEAD[128], *fused_attention_cases.SPLIT)):
        yield fused_attention_cases.case(f"attention_pairs_f16-{i}", np.float16, p, rows=pairs)
    for i, p in enumerate((Problem(512, 512, 128, heads=32, kv_heads=8, causal=True),
                           Problem(450, 700, 96, heads=20, causal=True),
                           Problem(300, 300, 80, B=2, heads=14, causal=True))):  # fmt: skip
        large = fused_attention_cases.case(f"attention_large_pairs_f16-{i}", np.float16, p)
        yield replace(large, by_row=True)
    for algorithm in (-1, 0, 1, 2):
        for sizes in ((2, 64, 56, 56, 64), (1, 512, 7, 7, 512), (3, 128, 29, 31, 200), (1, 3, 224, 224, 64)):
            name = f"large_conv_{algorithm}-{sizes}"
            yield winograd_conv_cases.case(name, np.float32, sizes, (1, 1, 1, 1), "Relu", True, algorithm)

    # The tiles that the CPU does not support.
    for tile in tiles.DENSE_COPYING:
        for i, product in enumerate((*product_cases.PANELS, *product_cases.TRANSPOSED)):
            yield product_cases.gemm(f"{tile.size}_gemm_panels-{i}", np.float16, product, tile.number)
        for kind, table in (
            ("channels_last_conv", channels_last_cases.PRODUCTS),
            ("conv_disjoint", channels_last_cases.DISJOINT),
        ):
            for i, sizes in enumerate(table):
                yield channels_last_cases.product(
                    f"{tile.size}_{kind}-{i}", sizes, kind == "conv_disjoint", tile.number
                )
    for tile in tiles.INT8_COPYING:
        yield from integer_gemm_cases.tiled(tile)
    for tile in tiles.PACKED_COPYING:
        yield from matmul_nbits_cases.tiled(tile)
    for tile in tiles.WARPGROUP[:-1]:
        yield from matmul_nbits_cases.warpgroups(tile)
    for tile in tiles.INTEGER_WARPGROUP[:-1]:
        yield from integer_gemm_cases.warpgroups(tile)
    for tile in tiles.HALO_COPYING:
        for i, sizes in enumerate(channels_last_cases.SHARED):
            yield channels_last_cases.product(f"{tile.size}_conv_halo-{i}", sizes, False, tile.number, halo=True)
    # Whole rounds of compute units, and smaller tiles for the rest.
    many = (22, 8, 160, (40, 40), (40, 40), (3, 3), (1, 1), (1, 1), (1, 1), "Relu", True, True)
    yield channels_last_cases.product("rounds_conv_halo", many, False, -1, halo=True)

    Product = product_cases.Product
    for dtype in (np.float32, np.float16):
        for i, product in enumerate((
            Product(1024, 3072, 768, bias=True, act="Gelu"),
            Product(2000, 768, 1600, transpose_b=True, bias=True, residual=True),
            Product(384, 384, 64, transpose_b=True, a_batch=(4, 12), b_batch=(4, 12)),
            Product(999, 777, 555, transpose_a=True, residual=True),
            Product(1, 4096, 4096, bias=True, act="Silu"),
        )):  # fmt: skip
            yield product_cases.gemm(f"large_gemm_{np.dtype(dtype)}-{i}", dtype, product)
        for conv in (
            (4, 1, 64, 128, 56, 56, (3, 3), (2, 2), (1, 1), (1, 1)),
            (2, 1, 3, 64, 224, 224, (7, 7), (2, 2), (1, 1), (3, 3)),
            (4, 1, 256, 512, 28, 28, (1, 1), (1, 1), (1, 1), (0, 0)),
            (2, 32, 4, 8, 30, 31, (3, 3), (1, 1), (2, 2), (2, 2)),
        ):
            yield product_cases.conv(f"large_plain_conv_{np.dtype(dtype)}-{conv}", dtype, conv, True)
