"""Computes a short-time Fourier transform with a constant window as a convolution.

    STFT(x, step, w, N)[frame, k] = sum_n x[step frame + n] w[n] exp(-2 pi i k n / N) = Conv(x; w cos, -w sin)

The real and the imaginary part of each frequency are two output channels of a Conv with stride `step`.

Why it is legal: both sides are the same sums; the Conv multiplies by the constants exp(-2 pi i k n / N) w[n].

Conditions: the step, the window and the frame's length are constants; the signal is real and float32.

Where it is faster: for lengths of at most 1200 that are not powers of two, which ONNX Runtime computes by Bluestein's
algorithm, with three transforms of at least twice the length; for powers of two up to 512, unless there are fewer than
eight frames (docs/measurements/forms_cpu.md). On GPUs with our kernels, the provider runs STFT itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.view import attribute_int, require_input
from graphopt.metadata import Numerics
from graphopt.ops.schema import Array
from graphopt.passes.base import Pass
from graphopt.remarks import Code, Refusal, became
from graphopt.targets.cpu import stft_no_gain
from graphopt.targets.profit import Candidate


@dataclass(frozen=True)
class Transform:
    """An STFT.

    Attributes:
        node: the STFT.
        signal: [batch, samples], or [batch, samples, 1].
        rank: the rank of the signal.
        step: the number of samples from one frame to the next.
        window: the factor of each sample of a frame; None if all factors are 1.
        length: the number of samples of a frame.
        frequencies: the number of frequencies in the result.
        frames: the number of frames; None if it is not known.
    """

    node: ir.Node
    signal: ir.Value
    rank: int
    step: int
    window: Array | None
    length: int
    frequencies: int
    frames: int | None


class StftConv(Pass[Transform, Transform]):
    name = "stft_conv"
    equation = "STFT(x, step, w, N) = Conv(x; w cos, -w sin)"
    numerics = Numerics.REASSOCIATED
    anchors = frozenset({("", "STFT")})
    # Spectra have a large range, so their quiet frequencies need more bits than bfloat16 has.
    hides_from_bfloat16 = True
    emits_unknown_types = True

    def match(self, node: ir.Node, editor: Editor) -> Transform:
        signal = require_input(node, 0)
        dims = editor.require_dims(signal, node, least=2)
        if len(dims) > 3:
            raise Refusal(Code.WRONG_RANK, f"{signal.name} has rank {len(dims)}", node)
        if len(dims) == 3 and dims[2].value != 1:
            known = dims[2].value is not None
            text = f"the last dimension of {signal.name} is {dims[2]}, and that of a real signal is 1"
            raise Refusal(Code.WRONG_SHAPE if known else Code.UNKNOWN_SHAPE, text, node)
        step = self._size(require_input(node, 1), "the step", editor, node)
        given = node.inputs[2] if len(node.inputs) > 2 else None
        window = None if given is None else editor.require_constant(given, "the window", node)
        length = node.inputs[3] if len(node.inputs) > 3 else None
        if length is None and window is None:
            raise Refusal(Code.UNSUPPORTED_OP, "the STFT has neither a window nor a length", node)
        N = len(window) if length is None and window is not None else self._size(length, "the length", editor, node)
        if step < 1 or N < 1 or (window is not None and window.shape != (N,)):
            raise Refusal(
                Code.WRONG_SHAPE, f"the step is {step}, the length is {N}, and the window must have that length", node
            )
        frequencies = N // 2 + 1 if attribute_int(node, "onesided", 1) else N
        samples = dims[1].value
        frames = None if samples is None else (samples - N) // step + 1
        return Transform(node, signal, len(dims), step, window, N, frequencies, frames)

    @staticmethod
    def _size(value: ir.Value | None, what: str, editor: Editor, node: ir.Node) -> int:
        number = editor.shapes.number(value)
        return int(editor.require_constant(value, what, node).item()) if number is None else int(number)

    def legal(self, match: Transform, editor: Editor) -> Transform:
        editor.require_dtype(match.signal, match.node, ir.DataType.FLOAT)
        return match

    def candidate(self, plan: Transform, editor: Editor) -> Candidate:
        no_gain = stft_no_gain(plan.length, plan.frames)
        if editor.target.gpu_kernels:
            no_gain = "our provider has a kernel for STFT"
        return editor.candidate("Conv", (plan.signal,), plan.node.outputs[0], plan.node, no_gain)

    def rewrite(self, plan: Transform, editor: Editor) -> str:
        b, (N, F) = Builder(editor, plan.node), (plan.length, plan.frequencies)
        angles = np.outer(np.arange(F), np.arange(N)) % N * (2 * np.pi / N)
        # [frequency, real or imaginary, sample]
        factors = np.stack([np.cos(angles), -np.sin(angles)], 1) * (1.0 if plan.window is None else plan.window)
        weight = b.initializer(factors.reshape(2 * F, 1, N).astype(np.float32), "/frequencies")
        x = b.unsqueeze(plan.signal, 1) if plan.rank == 2 else b.transpose(plan.signal, 0, 2, 1)
        y = b.op("Conv", x, weight, kernel_shape=[N], strides=[plan.step])
        result = b.reshape(b.transpose(y, 0, 2, 1), 0, 0, F, 2)
        editor.replace([plan.node], b.nodes, {plan.node.outputs[0]: result}, anchor=plan.node)
        return became(1, "Conv")
