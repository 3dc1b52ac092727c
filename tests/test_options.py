"""Options as a value and as keywords are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.options import OptionNames, Options
from models import ZOO

pytestmark = pytest.mark.once


def test_each_option_is_a_keyword_of_the_same_type() -> None:
    assert get_type_hints(OptionNames) == get_type_hints(Options)


def test_a_value_and_keywords_do_the_same_and_keywords_stand_before_it() -> None:
    model = ZOO["resnet18"](small=True)
    cpu = graphopt.Options(target="cpu", skip=["winograd_conv"])
    kept, _ = graphopt.optimize(model, options=cpu)
    named, _ = graphopt.optimize(model, target="cpu", skip=["winograd_conv"])
    assert kept.SerializeToString(deterministic=True) == named.SerializeToString(deterministic=True)
    _, report = graphopt.optimize(model, options=cpu, target="portable", dry_run=True)
    assert report.target == "portable"
    with pytest.raises(dataclasses.FrozenInstanceError):
        cpu.target = "rocm"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"keep_io": False}, "only with precision fp16"),
        ({"keep_io": False, "precision": "bf16"}, "only with precision fp16"),
        ({"keep_float": ["Conv"]}, "only with a precision"),
        ({"skip": "clean_up"}, r"give \['clean_up'\]"),
    ],
)
@pytest.mark.parametrize("make", [Options, lambda **names: graphopt.optimize("nowhere.onnx", **names)])
def test_options_that_contradict_each_other_are_refused(
    make: Callable[..., Any], names: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        make(**names)
