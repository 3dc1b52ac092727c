"""A batch split over several sessions gives the same results as one session."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import graphopt
from graphopt import DataParallel
from graphopt.errors import GraphoptError
from models import ZOO
from tests.provider.worker import Array
from tests.rewriting import model_from_text

CPU = ["CPUExecutionProvider"]
PAIR = """g (float[N, 3] a, float[N, 3] b, float[3, 2] w) => (float[N, 2] y, float[N, 3] z) {
  z = Sub(a, b)  y = MatMul(z, w) }"""


@pytest.mark.parametrize("N", [1, 2, 3, 7])
@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_split_and_joined(N: int, sessions: int) -> None:
    rng = np.random.default_rng(N)
    a, b = (rng.standard_normal((N, 3)).astype(np.float32) for _ in range(2))
    w = rng.standard_normal((3, 2)).astype(np.float32)
    both = DataParallel(model_from_text(PAIR).SerializeToString(), [CPU] * sessions)
    y, z = both.run(None, {"a": a, "b": b, "w": w})
    np.testing.assert_array_equal(z, a - b)
    np.testing.assert_allclose(y, (a - b).astype(np.float64) @ w, rtol=1e-5, atol=1e-6)
    (only,) = both.run(["z"], {"a": a, "b": b, "w": w})
    np.testing.assert_array_equal(only, a - b)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }", "no input has a symbolic first axis"),
        ("g (float[N, 3] x) => (float[3, N] y) { y = Transpose(x) }", "the first axis of output y is not N"),
    ],
)
def test_models_without_a_batch(text: str, said: str) -> None:
    with pytest.raises(GraphoptError, match=said):
        DataParallel(model_from_text(text).SerializeToString(), [CPU])


def test_batches_that_differ() -> None:
    x = np.zeros((2, 3), np.float32)
    both = DataParallel(model_from_text(PAIR).SerializeToString(), [CPU] * 2)
    with pytest.raises(GraphoptError, match="different batch sizes"):
        both.run(None, {"a": x, "b": x[:1], "w": np.zeros((3, 2), np.float32)})
    with pytest.raises(GraphoptError, match="no input with the batch axis"):
        both.run(None, {"w": np.zeros((3, 2), np.float32)})


def _on_the_device(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    return DataParallel(model, [[("GraphoptExecutionProvider", {"device": 0})]] * 2).run(None, feeds)


def test_on_our_provider(worker: ProcessPoolExecutor) -> None:
    original = ZOO["resnet18"](small=True, dynamic=True)
    optimized, _ = graphopt.optimize(original, target="cuda")
    x = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    feeds = {original.graph.input[0].name: x}
    (got,) = worker.submit(_on_the_device, optimized.SerializeToString(), feeds).result()
    (wanted,) = graphopt.session(original.SerializeToString(), CPU).run(None, feeds)
    assert np.abs(got - wanted).max() <= 5e-5 * np.sqrt(np.mean(wanted.astype(np.float64) ** 2))
