"""STFT with constant windows becomes Conv, compared with numpy's Fourier transform; and refusals."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from graphopt import verify
from graphopt.passes.stft_conv import StftConv
from tests.rewriting import Array, model_from_text, rewrite, run

RNG = np.random.default_rng(51)


def stft(
    length: int = 100,
    step: int = 40,
    *,
    signal: str = "float[N, 700, 1] x",
    inputs: str = "step, window, length",
    attributes: str = "",
    head: str = "",
    **constants: Array,
) -> onnx.ModelProto:
    """Returns a model with one STFT; `inputs` names its inputs after the signal; `head` computes some of them."""
    named = {"step": np.array(step), "window": np.hanning(length).astype(np.float32), "length": np.array(length)}
    read = re.findall(r"\w+", f"{inputs} {head}")
    used = {name: value for name, value in (named | constants).items() if name in read}
    body = f"{head} y = STFT{attributes} (x, {inputs})"
    return model_from_text(f"g ({signal}) => ({signal.split('[')[0]} y) {{ {body} }}", used)


def spectrum(x: Array, window: Array, step: int) -> Array:
    """Returns the STFT of x [batch, samples] in float64: [batch, frames, frequencies]."""
    frames = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), len(window), axis=1)[:, ::step]
    return np.fft.fft(frames * window, axis=-1)


@pytest.mark.parametrize("length", [400, 100, 64, 25, 2])
@pytest.mark.parametrize("signal", ["float[N, 700, 1] x", "float[N, 700] x", "float[N, S, 1] x"])
@pytest.mark.parametrize("attributes", ["", "<onesided = 0>"])
def test_equals_the_fourier_transform(length: int, signal: str, attributes: str) -> None:
    model = stft(length, signal=signal, attributes=attributes)
    result = rewrite(model, [StftConv()])
    assert result.op_types[-3:] == ["Conv", "Transpose", "Reshape"]
    x = RNG.standard_normal((2, 700)).astype(np.float32)
    (y,) = run(result.proto, {"x": x if "1]" not in signal else x[..., None]})
    wanted = spectrum(x, np.hanning(length).astype(np.float32), 40)[..., : length if attributes else length // 2 + 1]
    error = np.abs(y[..., 0] + 1j * y[..., 1] - wanted).max()
    assert y.dtype == np.float32
    assert y.shape == (*wanted.shape, 2)
    assert error <= 1e-6 * np.sqrt(np.mean(np.abs(wanted) ** 2)) * np.sqrt(length)


@pytest.mark.parametrize("inputs", ["step, window", "step, , length"])
def test_a_window_or_a_length_suffices(inputs: str) -> None:
    model = stft(64, inputs=inputs, signal="float[1, 700, 1] x")
    x = RNG.standard_normal((1, 700, 1)).astype(np.float32)
    (y,) = run(rewrite(model, [StftConv()]).proto, {"x": x})
    window = np.hanning(64).astype(np.float32) if "window" in inputs else np.ones(64)
    wanted = spectrum(x[..., 0], window, 40)[..., :33]
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], wanted, atol=1e-4)


def test_verify_allows_the_error_of_the_runtime() -> None:
    """ONNX Runtime's STFT of 400 samples has an error of 1e-4, a hundred times that of the Conv."""
    model = stft(400, signal="float[1, 4000, 1] x")
    assert verify(model, rewrite(model, [StftConv()]).proto).equal


REFUSED = {
    "NO_GAIN": [
        stft(1024, signal="float[1, 9000, 1] x"),
        stft(1201, signal="float[1, 9000, 1] x"),
        stft(64, signal="float[1, 200, 1] x"),
    ],
    "NOT_CONSTANT": [
        stft(signal="float[N, 700, 1] x, float[100] w", inputs="step, w, length"),
        stft(signal="float[N, 700, 1] x, int64 s", inputs="s, window, length"),
    ],
    "OVERRIDABLE": [stft(signal="float[N, 700, 1] x, float[100] window")],
    "QUANTIZED": [
        stft(
            inputs="step, w",
            head="w = DequantizeLinear(q, scale)",
            q=np.round(100 * np.hanning(100)).astype(np.int8),
            scale=np.array(0.01, np.float32),
        )
    ],
    "WRONG_DTYPE": [stft(signal="double[N, 700, 1] x", window=np.hanning(100))],
    "WRONG_SHAPE": [stft(signal="float[N, 700, 2] x"), stft(step=0), stft(length=64, window=np.ones(32, np.float32))],
    "UNKNOWN_RANK": [stft(signal="float[N, 700, 1] e, int64[K] s", head="x = Reshape(e, s)")],
    "UNKNOWN_SHAPE": [stft(signal="float[N, 700, P] x")],
    "WRONG_RANK": [stft(signal="float[700] x"), stft(signal="float[1, 1, 700, 1] x")],
    "UNSUPPORTED_OP": [stft(inputs="step")],
}


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_refusals(code: str) -> None:
    for model in REFUSED[code]:
        result = rewrite(model, [StftConv()])
        assert result.op_types == [node.op_type for node in model.graph.node]
        assert result.codes() == [code]


def test_the_provider_has_a_kernel() -> None:
    assert rewrite(stft(), [StftConv()], device="rocm").codes() == ["NO_GAIN"]
    assert "Conv" in rewrite(stft(), [StftConv()], device="migraphx").op_types


def test_the_pass_runs_after_the_bfloat16_passes() -> None:
    """A Conv in bfloat16 would lose quiet frequencies, so the pass runs after the conversion."""
    from graphopt import optimize

    after, _ = optimize(stft(400, signal="float[1, 16000, 1] x"), target="cpu", precision="bf16")
    assert [n.op_type for n in after.graph.node if n.domain == ""].count("Conv") == 1
