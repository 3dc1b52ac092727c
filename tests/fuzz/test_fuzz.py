"""A fixed set of random graphs for CI; scripts/fuzz.py runs any number of them."""

from __future__ import annotations

import pytest

from tests.fuzz.check import check

GRAPHS, PER_TEST = 400, 20


@pytest.mark.parametrize("first", range(0, GRAPHS, PER_TEST))
def test_random_graphs(first: int) -> None:
    ran = sum(check(seed) for seed in range(first, first + PER_TEST))
    assert ran >= PER_TEST // 2, "the generator makes graphs that the runtime refuses"
