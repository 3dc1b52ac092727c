"""`verify` on a sample of the planted faults of scripts/planted_faults.py."""

from __future__ import annotations

import math
from functools import cache

import onnx
import pytest

import graphopt
from tests.verification.planted import KINDS, Facts, plant, reach
from tests.verification.planted.effect import Pair, perturbed
from tests.verification.planted.subjects import Subject, inputs, subjects

# (kind, model, file that gets the fault).
FAULTS = (
    ("one tap of a convolution kernel lost", "unet", "optimized"),
    ("an attention head is zero", "vit", "optimized"),
    ("mask: taken as a length", "encoder_bool", "optimized"),
    ("only the kernel: scale", "gpt2", "optimized"),
    ("only the body: activation missing", "resnet18", "optimized"),
    ("detector: two classes exchanged", "detector_rows", "half"),
    ("only the kernel: pads", "resnet18", "optimized"),
    ("a value through half precision", "length_switch", "optimized"),
    ("a value through bfloat16", "rms", "plain"),
    ("ids: the last is read as the one before", "decisions_floor", "plain"),
    ("ids: negative ones are zero", "relative", "plain"),
    ("ids: the last is read as the one before", "tabular_small", "plain"),
    ("tokens beyond the 16th are zero", "signed", "optimized"),
    ("values below 0.01 flushed to zero", "tabular_small", "optimized"),
    ("ids: modulo a power of two below the table", "until_2.5", "optimized"),
)


@cache
def _subjects() -> dict[str, Subject]:
    return {s.name: s for s in subjects(trained=False)}


@pytest.mark.once
@pytest.mark.parametrize(("kind", "name", "file"), FAULTS, ids=lambda v: str(v).replace(" ", "_"))
def test_catches(kind: str, name: str, file: str) -> None:
    subject = _subjects()[name]
    before = subject.build()
    half = file == "half"
    base = before
    if file != "plain":
        base, _ = graphopt.optimize(
            before, target="cpu", ignore_cost_model=not half, precision="fp16" if half else None
        )
    pair = Pair(before, base, inputs(subject, before))
    assert pair.effect(base) == 0
    sites = list(KINDS[kind](Facts(base, subject.hints)))
    _, edit = sites[-1]
    faulty = plant(base, edit)
    assert pair.effect(faulty) > 10
    assert not graphopt.verify(before, faulty).equal


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("size: 5 % off on some sizes", "relative"),
        ("size: 5 % off on a decoder's step", "past"),
        ("turns: 5 % off in late ones", "turns_0.5"),
        ("scale of an attention lost", "speech"),
        ("rows: 5 % off where all values are equal", "relative"),
        ("integers: through int32", "weekdays"),
        ("tree: a comparison without equality", "trees_5"),
    ],
)
def test_catches_faults_that_few_inputs_reach(kind: str, name: str) -> None:
    subject = next(s for s in [*_subjects().values(), *reach.subjects()] if s.name == name)
    model = subject.build()
    for where, edit in KINDS[kind](Facts(model, subject.hints)):
        faulty = plant(model, edit)
        made = reach.sets(subject, model, kind, where) or inputs(subject, model)
        if Pair(model, model, made, exact=subject.exact).effect(faulty) > 10:
            assert not graphopt.verify(model, faulty)
            return
    pytest.fail("no site shows")


@pytest.mark.once
def test_catches_faults_as_small_as_rounding() -> None:
    """The fault changes the outputs only as much as one step of a quantized value does, but is reported."""
    subject = _subjects()["vit_int8"]
    before = subject.build()
    sites = dict(KINDS["a quantized value saturates at 127"](Facts(before, subject.hints)))
    faulty = plant(before, sites["MatMul_1.out_QuantizeLinear_Output"])
    report = graphopt.verify(before, faulty, batch=(1, 2))  # with larger batches the outputs alone would show the fault
    assert "'MatMul_1.out_QuantizeLinear_Output' is up to" in report.summary


@pytest.mark.once
def test_the_effect_distinguishes_rounding_from_faults() -> None:
    """A fault must exceed ten noise floors: rounding to half precision does, float32 rounding does not."""
    subject = _subjects()["encoder_causal"]
    model = subject.build()
    pair = Pair(model, model, inputs(subject, model))
    assert pair.effect(perturbed(model, 0.0, 42)) < 10
    facts = Facts(model, subject.hints)
    assert pair.effect(plant(model, next(KINDS["weights rounded to half precision"](facts))[1])) > 10


@pytest.mark.once
def test_the_effect_of_another_interface_is_infinite() -> None:
    subject = _subjects()["switch"]
    model = subject.build()
    pair = Pair(model, model, inputs(subject, model))
    edit = next(KINDS["output: one more axis"](Facts(model, subject.hints)))[1]
    assert math.isinf(pair.effect(plant(model, edit)))
    onnx.checker.check_model(model)
