"""The bounds of scripts/amd_build.py, on listings with clocks that are counted by hand."""

from __future__ import annotations

import pytest

from tests.hip.inner_loops import Loop, inner_loop, instruction, waits

MFMA = "v_mfma_f32_16x16x16_f16 a[{0}:{1}], v[0:1], v[2:3], a[{0}:{1}]"


def listing(text: str) -> list[tuple[int, str]]:
    """Returns instructions, four bytes each; `NAME:` is a label, and a branch names one."""
    labels: dict[str, int] = {}
    code: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(":"):
            labels[line[:-1]] = 4 * len(code)
        else:
            code.append(line)
    return [
        (4 * i, f"{line.split()[0]} @{labels[line.split()[1]]}" if "branch" in line else line)
        for i, line in enumerate(code)
    ]


def loop(arch: str, *code: str) -> Loop:
    return Loop(arch, [instruction(arch, text) for text in code])


def test_cdna_4_reaches_its_peak_with_longer_multiplications_only() -> None:
    """AMD's guide of CDNA 4: 16 x 16 x 16 and 16 x 16 x 32 take four passes, 16 clocks."""
    short, long = MFMA.format(0, 3), "v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[8:11], v[0:3]"
    for code, share in ((short, 0.5), (long, 1.0)):
        one = loop("gfx950", code)
        assert one.clocks["matrix"] == 16
        assert one.busiest() == share
    assert loop("gfx942", short).busiest() == 1


def test_the_main_path_has_the_loads_and_no_nested_loop() -> None:
    found = inner_loop(
        "gfx942",
        listing(
            f"""
            s_mov_b32 s0, 0
            head:
            s_cbranch_scc0 slow
            global_load_dwordx4 v[4:7], v[8:9], off
            s_branch join
            slow:
            global_load_ushort v4, v[8:9], off
            ds_write_b16 v0, v4
            s_cbranch_scc1 slow
            join:
            s_cbranch_vccnz moved
            back:
            {MFMA.format(0, 3)}
            s_cbranch_scc1 head
            s_endpgm
            moved:
            v_mov_b32_e32 v4, 0
            s_branch back
            """
        ),
    )
    assert found is not None
    assert [one.text.split()[0] for one in found.code] == [
        "s_cbranch_scc0",
        "global_load_dwordx4",
        "s_branch",
        "s_cbranch_vccnz",
        "v_mfma_f32_16x16x16_f16",
        "s_cbranch_scc1",
    ]


def test_a_block_at_the_end_is_no_loop() -> None:
    code = f"""
        s_cbranch_vccnz moved
        back:
        s_endpgm
        moved:
        {MFMA.format(0, 3)}
        s_branch back
    """
    assert inner_loop("gfx942", listing(code)) is None


@pytest.mark.parametrize(
    ("arch", "text", "unit", "clocks"),
    [
        ("gfx942", MFMA.format(0, 3), "matrix", 16),  # 4 passes of 4 clocks (CDNA 3 guide)
        ("gfx90a", MFMA.format(0, 3), "matrix", 32),  # 8 passes (CDNA 2 guide)
        ("gfx942", "v_mfma_f32_16x16x4_f32 a[0:3], v0, v1, a[0:3]", "matrix", 32),
        ("gfx942", "v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]", "matrix", 32),
        ("gfx1100", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", "matrix", 32),
        ("gfx1201", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[12:15], v[0:7]", "matrix", 16),
        ("gfx942", "v_exp_f32_e32 v0, v1", "vector", 16),
        ("gfx1100", "v_exp_f32_e32 v0, v1", "transcendental", 4),
        ("gfx942", "ds_read2_b64 v[0:3], v4 offset1:4", "LDS", 8),  # 64 lanes, 16 bytes, 128 bytes a clock
        ("gfx942", "ds_write_b32 v0, v1", "LDS", 2),
        ("gfx942", "ds_write_b16 v0, v1", "LDS", 2),
        ("gfx1100", "ds_load_b128 v[0:3], v4", "LDS", 4),
        ("gfx942", "global_load_dwordx4 v[0:3], v[4:5], off", "memory", 16),
        ("gfx1201", "global_load_b128 v[0:3], v[4:5], off", "memory", 8),
        ("gfx942", "s_nop 7", "scalar", 8),
    ],
)
def test_clocks_of_instructions(arch: str, text: str, unit: str, clocks: int) -> None:
    found = instruction(arch, text)
    assert (found.unit, found.clocks) == (unit, clocks)


def test_registers_of_a_dual_instruction() -> None:
    found = instruction("gfx1100", "v_dual_fmac_f32 v3, v1, v2 :: v_dual_mov_b32 v4, v[9:10]")
    assert (found.writes, found.reads) == (("v3", "v4"), ("v1", "v2", "v9", "v10"))


def test_waits() -> None:
    assert waits("s_waitcnt vmcnt(3) lgkmcnt(0)") == {"memory": 3, "LDS": 0}
    assert waits("s_wait_loadcnt_dscnt 0x105") == {"memory": 1, "LDS": 5}
    assert waits("s_wait_dscnt 0x2") == {"LDS": 2}
    assert waits("s_wait_storecnt 0x0") == waits("s_barrier") == {}


def test_matrix_instructions_alone_reach_the_peak() -> None:
    alone = loop("gfx942", *(MFMA.format(i, i + 3) for i in range(0, 16, 4)))
    assert alone.busiest() == 1
    assert alone.simulated(1, 4) == pytest.approx(1)


def test_the_latency_of_lds_is_waited_for() -> None:
    read, wait, multiply = "ds_read_b64 v[0:1], v8", "s_waitcnt lgkmcnt(0)", MFMA.format(0, 3)
    # The read ends after 4 + 128 clocks. The wait, the multiplication and the next read follow, 4 clocks apart: the
    # rounds begin 140 clocks apart, and the unit is busy for 16 of them.
    assert loop("gfx942", read, wait, multiply).simulated(1, 4) == pytest.approx(16 / 140)
    # Without the wait the loop only issues: 8 clocks a round, but the unit needs 16, and 8 more for the same sums.
    assert loop("gfx942", read, multiply).simulated(1, 4) == pytest.approx(16 / 24)
    # A second work-group uses the same time.
    assert loop("gfx942", read, wait, multiply).simulated(2, 4) == pytest.approx(2 * 16 / 140)


def test_lds_is_shared_by_the_simds() -> None:
    reads = ["ds_read_b128 v[0:3], v8"] * 2
    one = loop("gfx942", *reads, MFMA.format(0, 3))
    assert one.busiest() == 16 / (4 * 2 * 8)
    assert one.simulated(1, 4) == pytest.approx(16 / 64, rel=0.1)  # the last wave reads alone


def test_rdna_multiplies_on_the_vector_unit() -> None:
    wmma = "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"
    one = loop("gfx1100", wmma, *("v_add_f32_e32 v30, v31, v32",) * 8)
    assert one.busiest() == 32 / 40


def test_waves_of_a_work_group_wait_for_each_other() -> None:
    multiply = [MFMA.format(i, i + 3) for i in range(0, 16, 4)]
    # Two waves on a SIMD: both multiply for 64 clocks, then the barrier waits for the second one. The next round begins
    # 4 clocks after its last instruction was issued.
    one = loop("gfx942", *multiply, "s_barrier")
    assert one.simulated(1, 8) == pytest.approx(128 / (7 * 16 + 4 + 4), rel=0.1)
