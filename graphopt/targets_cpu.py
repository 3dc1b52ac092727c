"""What a CPU gains from our kernels: formulas fitted to measurements on one core of a Zen 5 server."""

from __future__ import annotations

_RATE = (
    235e3  # operations a microsecond of a matrix product at full speed; ONNX Runtime's direct convolution has it too
)
_WEIGHT_RATE = 50e3  # bytes a microsecond of weights from memory or a shared last-level cache
_TENSOR_RATE = 20e3  # bytes a microsecond of activations, in and out
_LANES = 16  # channels are padded to whole vectors


def winograd_gain(C: int, M: int, OH: int | None, OW: int | None) -> float:
    """Estimated time of ONNX Runtime's NCHWc direct convolution over that of WinogradConv; above 1 WinogradConv pays.

    For float32, batch 1 and one thread, from C to M channels with an OH x OW result in a chain of convolutions, where
    ONNX Runtime keeps its blocked layout and pays for no reorder. Sizes that are not known count as 56. Within 35 % of
    the measurements in docs/measurements/winograd_cpu.md, and below them for fewer than 16 channels, where little is
    to be gained; `scripts/bench_winograd.py` repeats them. The kernel itself chooses between F(4x4) and F(2x2) in the
    same way (`winograd_choose` in native/cpu/winograd_conv_dispatch.cpp).
    """
    OH, OW = OH or 56, OW or 56
    padded_C, padded_M = (-(-n // _LANES) * _LANES for n in (C, M))
    direct = (
        18 * C * padded_M * OH * OW / _RATE
        + 36 * C * M / _WEIGHT_RATE
        + 4 * (C + M) * OH * OW / _TENSOR_RATE  # read and written once
    )
    return direct / min(_winograd_time(padded_C, padded_M, OH, OW, tile) for tile in (2, 4))


def _winograd_time(C: int, M: int, OH: int, OW: int, tile: int) -> float:
    """Microseconds of F(tile x tile, 3x3): products, weights, and the transforms of the tiles of C + M channels."""
    points = (tile + 2) ** 2
    tiles = -(-OH // tile) * -(-OW // tile)
    transform = 9e-3 if tile == 4 else 4e-3  # microseconds a tile and channel, with the memory traffic
    # What is not overlapped and the caches that others use cost an eighth.
    return 1.125 * (
        2 * points * tiles * C * M / _RATE + 4 * points * C * M / _WEIGHT_RATE + transform * tiles * (C + M)
    )
