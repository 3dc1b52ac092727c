"""Einsum on the provider, against numpy in float64."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.hip.case import compare, tolerance_of
from tests.provider.test_more_ops import both, random
from tests.provider.test_ops import ALONE
from tests.provider.worker import model_of, run

Shape = tuple[int, ...]
FORMS: tuple[tuple[str, tuple[Shape, ...]], ...] = (
    ("bhid,bhjd->bhij", ((2, 3, 5, 4), (2, 3, 7, 4))), ("bhij,bhjd->bhid", ((2, 3, 5, 4), (2, 3, 4, 6))),
    ("bthc,bshc->bhts", ((2, 5, 3, 4), (2, 6, 3, 4))), ("ij,jk", ((3, 4), (4, 5))), ("ij,jk->ki", ((3, 4), (4, 5))),
    ("i,j->ij", ((3,), (4,))), ("ij,ij->", ((3, 4), (3, 4))), ("ij->ji", ((3, 4),)), ("ijk->j", ((3, 4, 5),)),
    ("iij->ij", ((3, 3, 4),)), ("ii->", ((5, 5),)), ("...ij,...jk->...ik", ((2, 1, 3, 4), (1, 5, 4, 6))),
    ("ij,kl->i", ((3, 4), (5, 6))), ("bij,bk->bkj", ((2, 3, 4), (2, 5))), ("nchw,cd->ndhw", ((2, 3, 4, 5), (3, 7))),
    ("ij,ij->ij", ((3, 4), (3, 4))), ("ab,b->a", ((3, 4), (4,))), (" i j , j -> i", ((3, 4), (4,))),
    ("Ab,bA->bA", ((3, 4), (4, 3))), ("...->...", ((2, 3),)), ("abcdef->fedcba", ((1, 2, 3, 2, 1, 2),)),
)  # fmt: skip


@both
@pytest.mark.parametrize(("equation", "shapes"), FORMS)
def test_einsum(equation: str, shapes: tuple[Shape, ...], dtype: Any, worker: ProcessPoolExecutor) -> None:
    given = {name: random(*shape, dtype=dtype) for name, shape in zip("ab", shapes)}
    node = helper.make_node("Einsum", [*given], ["y"], equation=equation)
    outcome = worker.submit(run, model_of([node], given, ["y"], opset=13), given, ALONE).result()
    assert outcome.on_device("Einsum") == 1, outcome.placement
    expected = np.einsum(equation.replace(" ", ""), *(x.astype(np.float64) for x in given.values()))
    message = compare(outcome.outputs[0], np.asarray(expected).astype(dtype), tolerance_of(dtype))
    assert not message and outcome.outputs[0].shape == expected.shape, message


WHOLE_FORMS = (
    *FORMS,
    # Only batch axes, some of them summed, and an empty sum.
    ("bij,bij->b", ((3, 4, 5), (3, 4, 5))), ("ij,ij->", ((7, 300), (7, 300))), ("ij,jk->ik", ((3, 0), (0, 4))),
)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_einsum_of_integers(dtype: Any, worker: ProcessPoolExecutor) -> None:
    """Integer sums wrap around, as numpy's do."""
    rng = np.random.default_rng(0)
    ends = np.iinfo(dtype)
    for equation, shapes in WHOLE_FORMS:
        given = {name: rng.integers(ends.min, ends.max, s, dtype, endpoint=True) for name, s in zip("ab", shapes)}
        node = helper.make_node("Einsum", [*given], ["y"], equation=equation)
        outcome = worker.submit(run, model_of([node], given, ["y"], opset=13), given, ALONE).result()
        assert outcome.on_device("Einsum") == 1, (equation, outcome.placement)
        expected = np.einsum(equation.replace(" ", ""), *given.values())
        np.testing.assert_array_equal(outcome.outputs[0], expected, equation)


@pytest.mark.parametrize(("equation", "shapes"), [("ij,jk,kl->il", ((3, 4), (4, 5), (5, 6)))])
def test_unsupported_equations_run_on_the_cpu(
    equation: str, shapes: tuple[Shape, ...], worker: ProcessPoolExecutor
) -> None:
    given = {name: random(*shape) for name, shape in zip("abc", shapes)}
    node = helper.make_node("Einsum", [*given], ["y"], equation=equation)
    outcome = worker.submit(run, model_of([node], given, ["y"], opset=13), given, ALONE).result()
    assert outcome.on_device("Einsum") == 0
