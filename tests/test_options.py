"""Options as an object and as keywords are equivalent."""

from __future__ import annotations

import builtins
import dataclasses
import pydoc
import re
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.options import OptionNames, Options
from graphopt.targets.target import TargetName, parse_target
from models import ZOO

pytestmark = pytest.mark.once


def test_help_lists_each_option_with_its_type_and_default() -> None:
    text = pydoc.plain(pydoc.render_doc(graphopt.optimize)).splitlines()[2]
    for option in dataclasses.fields(Options):
        default = option.default
        assert f"{option.name}: {option.type!r} = {default!r}" in text, option.name


@pytest.mark.parametrize("make", [Options, lambda **named: graphopt.optimize("nowhere.onnx", **named)])
@pytest.mark.parametrize(
    ("named", "suggested"),
    [({"targt": "cpu"}, "'target'"), ({"precison": "fp16"}, "'precision'"), ({"shapes": {}}, "'input_shapes'")],
)
def test_a_misspelt_option_gets_a_suggestion(make: Callable[..., Any], named: dict[str, Any], suggested: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean {suggested}") as raised:
        make(**named)
    assert isinstance(raised.value, TypeError)  # Python raises it for an unknown keyword


def test_a_misspelt_name_gets_a_suggestion() -> None:
    model = ZOO["resnet18"](small=True)
    for named, suggested in (
        ({"only": ["winograd"]}, "'winograd_conv'"),
        ({"skip": ["fold_batchnorm"]}, "'fold_batch_norm'"),
        ({"target": "cudaa"}, "'cuda'"),
        ({"target": "gfx942"}, "'rocm:gfx942'"),
        ({"precision": "fp61"}, "fp16"),
    ):
        with pytest.raises(OptionError, match=suggested):
            graphopt.optimize(model, **named)


def test_targets_of_type_checkers_are_read() -> None:
    for name in set(get_args(TargetName)) - {"auto"}:
        assert str(parse_target(name)) == name


def test_errors_named_in_docstrings_are_public() -> None:
    public = [getattr(graphopt, name) for name in graphopt.__all__ if name != "__version__"]
    named = {name for item in public for name in re.findall(r"^ +(\w+Error): ", item.__doc__ or "", re.MULTILINE)}
    assert {"ModelLoadError", "OptionError", "VerifyError"} <= named
    assert {name for name in named if not hasattr(builtins, name)} <= {*graphopt.__all__}
    assert all(issubclass(getattr(graphopt, name), graphopt.GraphoptError) for name in named - {*dir(builtins)})


def test_reports_print_a_summary() -> None:
    model = ZOO["resnet18"](small=True)
    optimized, report = graphopt.optimize(model, target="cpu")
    first, *rest = str(report).splitlines()
    assert first == "30 -> 21 nodes" and rest[-1] == "optimized for cpu" and len(rest) <= 5
    assert str(graphopt.verify(model, optimized, effort="quick")).startswith("equal: ")
    timed = graphopt.bench(model, optimized, seconds=0.0, memory=False, profile=False)
    assert re.match(r"\d+\.\d+ -> \d+\.\d+ ms on CPUExecutionProvider", str(timed))


def test_each_option_is_a_keyword_of_the_same_type() -> None:
    assert get_type_hints(OptionNames) == get_type_hints(Options)


def test_keywords_override_an_options_object() -> None:
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
