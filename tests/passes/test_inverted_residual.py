"""Three convolutions of an inverted residual block become one node: every form, unknown sizes, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import optimize
from graphopt.passes.inverted_residual import InvertedResidual
from tests.rewriting import Array, assert_same_outputs, model_from_text, rewrite

RNG = np.random.default_rng(21)
ACTS = {
    "Relu": "{y} = Relu({x})",
    "Clip": "{y} = Clip({x}, low, high)",
    "Silu": "{y}_s = Sigmoid({x}) {y} = Mul({x}, {y}_s)",
    "HardSwish": "{y}_s = HardSigmoid <alpha = 0.1666666716337204, beta = 0.5> ({x}) {y} = Mul({x}, {y}_s)",
}


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def weights(C: int = 16, M: int = 64, O: int = 16, kernel: int = 3) -> dict[str, Array]:  # noqa: E741
    return {
        "W1": draw(M, C, 1, 1) / np.float32(np.sqrt(C)),
        "B1": draw(M),
        "W2": draw(M, 1, kernel, kernel) / np.float32(kernel),
        "B2": draw(M),
        "W3": draw(O, M, 1, 1) / np.float32(np.sqrt(M)),
        "B3": draw(O),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
    }


def block(
    x: str = "1, 16, 40, 30",
    act: str = "Clip",
    second: str = "",
    window: str = "group = 64, pads = [1, 1, 1, 1]",
    tail: str = "y = Conv(d, W3, B3)",
    T: str = "float",
) -> str:
    first, behind = ACTS[act].format(x="a", y="b"), ACTS[second or act].format(x="c", y="d")
    return (
        f"g ({T}[{x}] x) => ({T} y) {{ a = Conv(x, W1, B1) {first} c = Conv <{window}> (b, W2, B2) {behind} {tail} }}"
    )


RESIDUAL = "e = Conv(d, W3, B3) y = Add(e, x)"


@pytest.mark.parametrize(
    ("text", "shape", "name"),
    [
        (block(), (1, 16, 40, 30), "InvertedResidualClip"),
        (block(tail=RESIDUAL), (1, 16, 40, 30), "InvertedResidualAddClip"),
        (block(tail="e = Conv(d, W3, B3) y = Add(x, e)"), (1, 16, 40, 30), "InvertedResidualAddClip"),
        (block("N, 16, 33, 47", "Silu"), (2, 16, 33, 47), "InvertedResidualSilu"),
        (block("N, 16, H, V", "HardSwish"), (1, 16, 29, 31), "InvertedResidualHardSwish"),
        (block("N, 16, H, V", tail=RESIDUAL), (2, 16, 9, 5), "InvertedResidualAddClip"),
        (block("N, 16, H, V", tail=RESIDUAL), (0, 16, 9, 5), "InvertedResidualAddClip"),
        (block(window="group = 64, pads = [0, 0, 1, 1], strides = [2, 2]"), (1, 16, 40, 30), "InvertedResidualClip"),
        (
            block(window='group = 64, auto_pad = "SAME_UPPER", strides = [2, 2]'),
            (1, 16, 40, 30),
            "InvertedResidualClip",
        ),
    ],
)
def test_becomes_ours(text: str, shape: tuple[int, ...], name: str) -> None:
    model = model_from_text(text, weights())
    result = rewrite(model, [InvertedResidual()])
    assert result.op_types == [name] and result.codes() == ["APPLIED"]
    assert rewrite(result.proto, [InvertedResidual()]).proto == result.proto
    assert_same_outputs(model, result.proto, {"x": draw(*shape)})


def test_convolutions_without_biases() -> None:
    text = block(tail="y = Conv(d, W3)").replace(", B1)", ")").replace(", B2)", ")")
    model = model_from_text(text, weights())
    result = rewrite(model, [InvertedResidual()])
    assert result.op_types == ["InvertedResidualClip"]
    assert_same_outputs(model, result.proto, {"x": draw(1, 16, 40, 30)})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (block("1, 16, 20, 20"), "NO_GAIN"),
        (block(act="Relu"), "NO_GAIN"),
        (block(window="group = 64, pads = [2, 2, 2, 2], dilations = [2, 2]"), "ATTRIBUTE"),
        (block(tail="z = Conv(d, W3, B3) y = Conv(a, W3, B3)"), "OTHER_USES"),
        (
            block(tail="e = Conv(d, W3, B3) y = Add(e, r)").replace(" x) =>", " x, uint8[1, 16, 40, 30] r) =>"),
            "MIXED_DTYPE",
        ),
    ],
)
def test_refusals(text: str, code: str) -> None:
    text = text.replace("float y)", "float y, float z)") if "z =" in text else text
    assert rewrite(model_from_text(text, weights(), check=False), [InvertedResidual()]).codes() == [code]


def test_windows_of_other_sizes() -> None:
    """The rule for 5x5 differs from that for 3x3; 7x7, and 3x3 with Relu, need `--ignore-cost-model`."""
    for kernel, act, name in ((5, "Relu", "InvertedResidualRelu"), (7, "Clip", "Conv"), (3, "Relu", "Conv")):
        pad = kernel // 2
        text = block(act=act, window=f"group = 64, pads = [{pad}, {pad}, {pad}, {pad}]")
        model = model_from_text(text, weights(kernel=kernel))
        assert rewrite(model, [InvertedResidual()]).op_types[-1] == name
        after, _ = optimize(model, target="cpu", ignore_cost_model=True)
        assert [node.op_type for node in after.graph.node] == [f"InvertedResidual{act}"]
        assert_same_outputs(model, after, {"x": draw(1, 16, 40, 30)})


def test_channels_must_grow() -> None:
    model = model_from_text(block(window="group = 63, pads = [1, 1, 1, 1]"), weights(M=63))
    assert rewrite(model, [InvertedResidual()]).codes() == ["NO_GAIN"]


@pytest.mark.parametrize(
    "text",
    [
        block(second="Relu"),
        block(tail="e = Conv(d, W3, B3) f = Conv(b, W3, B3) y = Add(e, f)"),
        block(window="group = 32, pads = [1, 1, 1, 1]"),
        block(tail="y = Conv <pads = [1, 1, 1, 1]> (d, W3, B3)"),
        block(tail="y = Conv <strides = [2, 2]> (d, W3, B3)"),
        block().replace("Conv(x, W1", "Conv <strides = [2, 2]> (x, W1"),
        block().replace(", low, high) c", ", low, six) c"),
    ],
)
def test_is_no_candidate(text: str) -> None:
    numbers = weights() | {"six": np.array(5.5, np.float32)}
    if "group = 32" in text:
        numbers["W2"] = draw(64, 2, 3, 3)
    result = rewrite(model_from_text(text, numbers), [InvertedResidual()])
    assert result.codes() == [] and not any("Inverted" in op for op in result.op_types)


def test_a_sum_that_broadcasts_is_kept() -> None:
    text = block(tail="e = Conv(d, W3, B3) y = Add(e, B3)")
    result = rewrite(model_from_text(text, weights(O=30) | {"B3": draw(30)}), [InvertedResidual()])
    assert result.op_types == ["InvertedResidualClip", "Add"]


def test_other_targets_have_no_kernel_for_it() -> None:
    for device in ("portable", "rocm"):
        result = rewrite(model_from_text(block(), weights()), [InvertedResidual()], device=device)
        assert result.codes() == [] and len(result.op_types) == 5


def test_in_bfloat16_the_convolutions_stay_single() -> None:
    """In bfloat16 the convolutions are kept, since tensors between them use the NCHW2c layout."""
    after, _ = optimize(model_from_text(block(), weights()), target="cpu", precision="bf16")
    assert not any("Inverted" in node.op_type for node in after.graph.node)
