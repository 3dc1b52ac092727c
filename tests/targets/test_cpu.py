"""The formula that chooses WinogradConv, against the measurements that it was fitted to; what refusals say."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from graphopt import optimize, optimizer
from graphopt.runtime import auto
from graphopt.runtime.machine import has_fma, lacks_vnni
from graphopt.targets import cpu as targets_cpu
from graphopt.targets.cpu import (
    bfloat16_attention_no_gain,
    bfloat16_depthwise_no_gain,
    bfloat16_linear_no_gain,
    bfloat16_matmul_no_gain,
    bfloat16_no_gain,
    dynamic_quantized_conv_no_gain,
    fused_conv_no_gain,
    fused_conv_transpose_no_gain,
    inverted_residual_no_gain,
    quantized_conv_no_gain,
    quantized_linear_no_gain,
    winograd_gain,
)
from graphopt.targets.profit import winograd_is_faster, winograd_no_gain
from graphopt.targets.target import Target
from scripts import fit_cost_model
from tests.rewriting import model_from_text

MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements" / "winograd_cpu.md"


ZEN_5, ZEN_4, ZEN_3 = "## One thread, batch 1", "## Small planes, on Zen 4", "## On Zen 3, AVX2 alone"


def measured(heading: str = ZEN_5) -> list[tuple[int, int, int, float]]:
    """Returns C, H, M and the ratio of medians of each row at one thread and batch 1."""
    section = MEASUREMENTS.read_text().split(heading)[1].split("##")[0]
    rows = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 5 and cells[1][:1].isdigit():
            C, H, M = (int(n) for n in cells[1].split("x"))
            rows.append((C, H, M, float(cells[4])))
    return rows


@pytest.mark.parametrize(("C", "H", "M", "ratio"), measured())
def test_gain_agrees_with_the_measurements(C: int, H: int, M: int, ratio: float) -> None:
    gain = winograd_gain(C, M, H, H)
    assert gain < 1.25 * ratio, "promises more than was measured"
    if C >= 16:
        assert gain > 0.6 * ratio, "leaves a gain unused"


def test_every_shape_was_measured() -> None:
    assert all(len(measured(heading)) >= 20 for heading in (ZEN_5, ZEN_4, ZEN_3))


@pytest.mark.parametrize("heading", [ZEN_5, ZEN_4])
def test_accepted_shapes_were_faster_on_both_machines(heading: str) -> None:
    """All measured shapes that the formula accepts were faster, including the 7x7 planes at the end of ResNets."""
    taken = {(C, H, M): ratio for C, H, M, ratio in measured(heading) if winograd_is_faster(Target("cpu"), C, M, H, H)}
    assert {(512, 7, 512), (256, 7, 256)} <= taken.keys() and min(taken.values()) >= 1.1
    assert not winograd_is_faster(Target("cpu"), 16, 16, 80, 80)


def test_accepted_shapes_are_not_slower_with_avx2() -> None:
    taken = {(C, H, M): ratio for C, H, M, ratio in measured(ZEN_3) if winograd_is_faster(Target("cpu"), C, M, H, H)}
    assert len(taken) >= 15 and min(taken.values()) >= 1.0


def test_channels_that_the_runtime_does_not_pad() -> None:
    """For 24 and 8 channels ONNX Runtime needs three and one vectors with AVX2, but two and one with AVX-512.

    The vectors of AVX-512 are twice as long.
    """
    assert not winograd_is_faster(Target("cpu"), 16, 24, 80, 80)
    assert not winograd_is_faster(Target("cpu"), 32, 8, 80, 80)
    assert winograd_is_faster(Target("cpu"), 64, 24, 56, 56)


def test_unknown_sizes_count_as_large_enough() -> None:
    assert winograd_gain(64, 64, None, None) == winograd_gain(64, 64, 56, 56)


def test_fit_recovers_the_constants_of_modelled_times() -> None:
    shapes = [(64, 56, 64), (128, 28, 128), (256, 28, 512), (16, 112, 32), (512, 28, 512), (96, 112, 48), (32, 224, 32)]
    rows = [
        fit_cost_model.Row(C, H, M, targets_cpu.direct_time(C, M, H, H), targets_cpu.winograd_time(C, M, H, H))
        for C, H, M in shapes
    ]
    assert fit_cost_model.fit(rows) == pytest.approx(
        {
            "RATE": targets_cpu.RATE,
            "WEIGHT_RATE": targets_cpu.WEIGHT_RATE,
            "TENSOR_RATE": targets_cpu.TENSOR_RATE,
            "OVERHEAD": targets_cpu.OVERHEAD,
            "TRANSFORM[4]": targets_cpu.TRANSFORM[4],
        },
        rel=1e-6,
    )


def test_fit_reads_every_measured_row() -> None:
    rows = fit_cost_model.read(MEASUREMENTS)
    assert [(r.C, r.H, r.M) for r in rows] == [row[:3] for row in measured()]


def test_refusal_gives_both_times() -> None:
    assert winograd_no_gain(Target("cpu"), 64, 64, 56, 56) == ""
    refusal = winograd_no_gain(Target("cpu"), 16, 24, 80, 80)
    ours, theirs = (float(t) for t in re.findall(r"([\d.]+) us", refusal))
    assert ours / theirs == pytest.approx(1 / winograd_gain(16, 24, 80, 80), rel=0.01)
    assert ("1.1 times" in refusal) == (ours < theirs)


@pytest.mark.parametrize(
    ("C", "M", "group", "kernel", "size", "measured"),
    [
        (64, 64, 1, 1, 56, (0.64, 0.85)),
        (256, 256, 1, 1, 28, (0.84, 0.90)),
        (512, 512, 1, 1, 14, (0.89, 0.90)),
        (32, 32, 1, 3, 112, (0.82, 0.86)),
        (128, 128, 1, 3, 28, (0.88, 0.89)),
        (1, 1, 144, 3, 56, (0.45, 0.75)),
        (1, 1, 576, 3, 14, (0.45, 0.67)),
    ],
)
def test_refused_convolution_gives_both_times(
    C: int, M: int, group: int, kernel: int, size: int, measured: tuple[float, float]
) -> None:
    """The ratio of the times is near the measured range of docs/measurements/fused_conv_cpu.md."""
    refusal = fused_conv_no_gain(C, M, group, (kernel, kernel), (1, 1), (size, size))
    ours, theirs = (float(t) for t in re.findall(r"([\d.]+) us", refusal))
    least, most = measured
    assert least - 0.03 <= theirs / ours <= most + 0.03


def test_refused_convolution_of_unknown_sizes() -> None:
    refusal = fused_conv_no_gain(64, 64, 1, (3, 3), (1, 1), (None, 28))
    assert "64 to 64 channels of ?x28" in refusal


def times_of(refusal: str) -> tuple[float, float]:
    """Returns the estimated microseconds of our kernel and of ONNX Runtime's that a refusal gives."""
    found = [float(t) for t in re.findall(r"estimated ([\d.]+) us", refusal)]
    found += [float(t) for t in re.findall(r"(?:ONNX Runtime's|and) ([\d.]+) us", refusal)]
    return found[0], found[-1]


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride", "activation", "measured"),
    [
        ((24, 72, 24), 80, 3, 1, "Clip", (0.94, 1.09)),
        ((16, 16, 16), 56, 3, 1, "Clip", (0.85, 1.0)),
        ((16, 64, 16), 20, 3, 1, "Clip", (0.95, 1.15)),
        ((40, 120, 40), 28, 5, 1, "Clip", (1.0, 1.15)),
        ((24, 144, 24), 56, 7, 1, "Clip", (0.83, 0.96)),
        ((24, 144, 24), 56, 3, 1, "Relu", (0.97, 1.13)),
    ],
)
def test_refused_blocks_give_both_times(
    channels: tuple[int, int, int], size: int, kernel: int, stride: int, activation: str, measured: tuple[float, float]
) -> None:
    """The ratio is in the range of docs/measurements/inverted_residual_cpu.md, and no lower than the multiply-adds."""
    refusal = inverted_residual_no_gain(channels, (kernel, kernel), (stride, stride), (size, size), activation)
    ours, theirs = times_of(refusal)
    least, most = measured
    assert least - 0.03 <= theirs / ours <= most + 0.03
    C, hidden, M = channels
    at_peak = 2 * hidden * (C + kernel**2 + M) * size**2 / targets_cpu.RATE
    assert at_peak < theirs < 4 * at_peak


@pytest.mark.parametrize(
    ("C", "M", "group", "size", "kernel", "stride"),
    [
        (1024, 512, 1, (16, 16), 2, 2),
        (256, 64, 1, (64, 64), 2, 2),
        (1024, 512, 1, (4, 4), 4, 2),
        (64, 64, 1, (14, 14), 3, 2),
        (32, 32, 2, (14, 14), 4, 2),
        (256, 128, 1, (800,), 16, 8),
        (64, 32, 1, (12, 12, 12), 2, 2),
    ],
)
def test_refused_transposed_convolutions_give_both_times(
    C: int, M: int, group: int, size: tuple[int, ...], kernel: int, stride: int
) -> None:
    refusal = fused_conv_transpose_no_gain(C, M, group, [(kernel, stride, 1)] * len(size), size, activated=False)
    ours, theirs = times_of(refusal)
    assert "both take" in refusal and ours == theirs
    at_peak = 2 * group * C * M * kernel ** len(size) * math.prod(size) / targets_cpu.RATE
    assert at_peak < theirs < 5 * at_peak


@pytest.mark.parametrize(
    ("refusal", "measured"),
    [
        (bfloat16_no_gain(32, 32, 1, (7, 7), winograd=False), (0.7, 0.8)),
        (bfloat16_no_gain(16, 16, 1, (20, 20), winograd=False), (0.8, 0.9)),
        (bfloat16_linear_no_gain(16, 64 * 64), (0.9, 0.97)),
        (bfloat16_linear_no_gain(None, 64 * 64), (0.5, 1.0)),
        (bfloat16_no_gain(512, 512, 9, (28, 28), winograd=True), (0.5, 1.0)),
        (bfloat16_matmul_no_gain((64, 8), (8, 64)), (0.3, 1.0)),
        (bfloat16_matmul_no_gain((12, 128, 32), (12, 32, 128)), (0.6, 1.0)),
        (bfloat16_matmul_no_gain((12, 8, 512), (12, 512, 512)), (0.3, 1.0)),
        (bfloat16_attention_no_gain(1, 12 * 128 * 64), (0.1, 1.0)),
        (bfloat16_depthwise_no_gain((3, 3), (1, 1), (1, 1), (96, 10, 10)), (0.5, 1.0)),
        (bfloat16_depthwise_no_gain((7, 7), (1, 1), (1, 1), (144, 56, 56)), (0.36, 0.77)),
        (bfloat16_depthwise_no_gain((3, 3), (1, 1), (2, 2), (144, 56, 56)), (0.36, 0.77)),
    ],
)
def test_refused_bfloat16_gives_both_times(refusal: str, measured: tuple[float, float]) -> None:
    """The ratios of the first three and the last two are measured (docs/measurements/bfloat16_cpu.md)."""
    ours, theirs = times_of(refusal)
    assert measured[0] <= theirs / ours <= measured[1]


def test_refused_quantized_layers_give_both_times() -> None:
    """A multiply-add in 8 bits takes at least a quarter of its time in float32."""
    for refusal, multiply_adds in (
        (quantized_linear_no_gain(128, 768, 3072), 128 * 768 * 3072),
        (quantized_conv_no_gain(64, 64, 1, 9, (56, 56)), 64 * 64 * 9 * 56 * 56),
        (quantized_conv_no_gain(1, 144, 144, 9, (None, 56)), 144 * 9 * 56 * 56),
        (dynamic_quantized_conv_no_gain(64, 32, 1, (3, 3), (2, 2), (28, None)), 64 * 32 * 9 * 28 * 56),
    ):
        ours, theirs = times_of(refusal)
        assert "both take" in refusal and ours == theirs
        assert theirs > multiply_adds / (2 * targets_cpu.RATE)


def test_a_note_reports_processors_without_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = model_from_text("g (float[N] x) => (float[N] y) { y = Relu (x) }", {})
    for flags, told in (("sse2 avx2 fma", False), ("sse2 avx", True), ("", True)):
        info = tmp_path / "cpuinfo"
        info.write_text(f"model name: some\nflags : {flags}\n")
        monkeypatch.setattr(optimizer, "has_fma", lambda info=info: has_fma(info))
        notes = optimize(model, target="cpu")[1].notes
        assert any("--tune measures on this machine" in note for note in notes) == told
        assert not any("--tune" in note for note in optimize(model, target="rocm")[1].notes)


@pytest.mark.parametrize(
    ("flags", "lacks"),
    [
        ("fma avx2", True),
        ("avx2 avx_vnni", False),
        ("avx2 avx512f avx512_vnni", False),
        ("avx2 avx512f", True),
        ("sse2", False),
        ("", False),
    ],
)
def test_processors_without_vnni(flags: str, lacks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"model name: some\nflags : {flags}\n")
    assert lacks_vnni(info) == lacks
    assert not lacks_vnni(tmp_path / "missing")
    monkeypatch.setattr(auto, "lacks_vnni", lambda: lacks_vnni(info))
    assert auto.resolve_target("cpu")[0].vnni == (not lacks)
