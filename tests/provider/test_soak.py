"""The soak test (scripts/gpu_soak.py) detects planted errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.prepared import Model
from scripts.gpu_soak import MOST_GROWTH, OTHER_IMPLEMENTATION, Live, Soak, SoakError, Stderr, judge

Y = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)
OTHER = np.nextafter(Y, np.float32(2.0))


class Silent(Stderr):
    """Counts the lines that a test adds instead of those of stderr."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def soak(tmp_path: Path) -> Soak:
    return Soak([], [0], 0, None, Silent(), tmp_path / "operations.txt")


def live(limit: int = 0) -> Live:
    return Live(None, Model("m", {}, [{}], [[Y]], [0.0]), "float32", 0, limit)


def test_other_bits_are_a_failure(soak: Soak) -> None:
    soak.compare(live(), 0, [Y])
    soak.compare(live(), 0, [Y.copy()])
    with pytest.raises(SoakError, match="has other bits than in operation 0"):
        soak.compare(live(), 0, [OTHER])


def test_a_limit_may_change_the_bits(soak: Soak) -> None:
    soak.compare(live(), 0, [Y])
    soak.compare(live(limit=1), 0, [OTHER])
    with pytest.raises(SoakError, match="other bits"):
        soak.compare(live(limit=1), 0, [Y])


def test_another_implementation_may_change_the_bits_once(soak: Soak) -> None:
    soak.compare(live(), 0, [Y])
    soak.stderr.count += 1
    soak.compare(live(), 0, [OTHER])
    soak.compare(live(), 0, [Y])  # a session whose plan exists already
    with pytest.raises(SoakError, match="other bits"):
        soak.compare(live(), 0, [np.nextafter(OTHER, np.float32(2.0))])


@pytest.mark.parametrize("wrong", [Y + np.float32(0.01), np.full_like(Y, np.nan), Y[:2]])
def test_the_first_output_is_compared_with_the_cpu(wrong: np.ndarray, soak: Soak) -> None:
    with pytest.raises(SoakError, match="differs from the CPU"):
        soak.compare(live(), 0, [wrong])


def test_growth_between_rounds_is_a_failure() -> None:
    assert judge([[0, 0], [1 << 30, 0], [(1 << 30) + MOST_GROWTH, 0]]).startswith("memory after the second round")
    with pytest.raises(SoakError, match="after the third"):
        judge([[0, 0], [1 << 30, 0], [1 << 30, MOST_GROWTH + 1]])
    assert judge([[0], [0]]) == "memory not compared: 2 of 3 rounds"


@pytest.mark.parametrize("file", ["blas.cpp", "dnn.h", "libraries.cpp"])
def test_messages_about_another_implementation_are_recognized(file: str) -> None:
    source = Path(__file__).resolve().parents[2] / "native" / "device" / "libraries" / file
    assert OTHER_IMPLEMENTATION.search(source.read_bytes().replace(b"\n", b""))
