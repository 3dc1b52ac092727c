"""`verify` runs AFTER on our provider as well, and compares two providers; `bisect` finds where they diverge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphopt
from graphopt.debug.first_difference import FirstDifference, first_difference
from graphopt.errors import OptionError
from graphopt.runtime.discovery import provider_name
from graphopt.verification.verify import VerifyReport
from models import ZOO
from tests.provider.worker import PROVIDER
from tests.rewriting import model_from_text
from tests.verification.planted import KINDS, Facts, Hints, plant

TWO = ("CPUExecutionProvider", PROVIDER)


def _verify(before: bytes, after: bytes) -> VerifyReport:
    return graphopt.verify(*(onnx.load_from_string(m) for m in (before, after)), provider="graphopt")


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_the_device_is_an_additional_mode(worker: ProcessPoolExecutor, name: str) -> None:
    before = ZOO[name](small=True)
    after, _ = graphopt.optimize(before, target="cuda", ignore_cost_model=True)
    report = worker.submit(_verify, before.SerializeToString(), after.SerializeToString()).result()
    assert report.equal, report.summary
    ways = {(row.library, row.provider) for row in report.rows}
    assert ways == {(False, "CPUExecutionProvider"), (True, "CPUExecutionProvider"), (True, PROVIDER)}
    assert PROVIDER in report.summary


def test_results_of_the_device_are_compared(worker: ProcessPoolExecutor) -> None:
    """A model without our nodes runs on our provider as well, and a fault is found there."""
    before = ZOO["resnet18"](small=True)
    after = onnx.ModelProto()
    after.CopyFrom(before)
    weight = max(after.graph.initializer, key=lambda t: np.prod(t.dims))
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
    report = worker.submit(_verify, before.SerializeToString(), after.SerializeToString()).result()
    assert not report.equal
    assert {row.provider for row in report.rows if not row.equal} == {"CPUExecutionProvider", PROVIDER}


def _verify_one_colour(model: bytes, providers: tuple[str, str]) -> VerifyReport:
    loaded = onnx.load_from_string(model)
    x = np.full((1, 2, 256, 256), 0.7, np.float32)
    return graphopt.verify(loaded, loaded, inputs={"x": x}, providers=providers)


@pytest.mark.parametrize("providers", [TWO, TWO[::-1]])
def test_an_image_of_one_colour(worker: ProcessPoolExecutor, providers: tuple[str, str]) -> None:
    """The CPU's kernel adds equal pixels one by one, so rounding errors add up: neither provider is at fault."""
    image = "(float[1, 2, 256, 256] x) => (float[1, 2, 1, 1] y)"
    model = model_from_text(f"g {image} {{ a = GlobalAveragePool (x) b = Abs (a) y = Abs (b) }}")
    report = worker.submit(_verify_one_colour, model.SerializeToString(), providers).result()
    assert report.equal, report.summary


def test_a_provider_that_is_not_there() -> None:
    model = ZOO["resnet18"](small=True)
    with pytest.raises(OptionError, match="no provider 'nnapi'"):
        graphopt.verify(model, model, provider="nnapi")


def _ask_for_another() -> str:
    try:
        return provider_name("cuda")
    except OptionError as error:
        return str(error)


def test_each_provider_is_listed_once(worker: ProcessPoolExecutor) -> None:
    """After its registration ONNX Runtime lists our provider among its own; the message names it once."""
    said = worker.submit(_ask_for_another).result()
    listed = said.rpartition("it has ")[2].split(", ")
    assert listed[0] == "graphopt" and len(listed) == len({*listed})


def _compare(model: bytes) -> VerifyReport:
    proto = onnx.load_from_string(model)
    return graphopt.verify(proto, proto, providers=TWO)


def _part(model: bytes) -> tuple[FirstDifference, list[str]]:
    found = first_difference(onnx.load_from_string(model), TWO)
    return dataclasses.replace(found, minimal=None), [n.op_type for n in found.minimal.graph] if found.minimal else []


def _with_a_wrong_kernel() -> onnx.ModelProto:
    """Returns BERT with an attention that has the right scale in its function body only."""
    after, _ = graphopt.optimize(ZOO["bert"](small=True), target="cuda", ignore_cost_model=True)
    return plant(after, next(KINDS["only the kernel: scale"](Facts(after, Hints())))[1])


def test_one_file_on_two_providers(worker: ProcessPoolExecutor) -> None:
    model, _ = graphopt.optimize(ZOO["bert"](small=True), target="cuda", ignore_cost_model=True)
    report = worker.submit(_compare, model.SerializeToString()).result()
    assert report.equal, report.summary
    assert {row.provider for row in report.rows} == {PROVIDER}


def test_the_first_value_that_differs_between_two_providers(worker: ProcessPoolExecutor) -> None:
    model = _with_a_wrong_kernel()
    report = worker.submit(_compare, model.SerializeToString()).result()
    assert not report.equal
    assert set(report.feeds) == {i.name for i in model.graph.input}
    first = next(n for n in model.graph.node if n.op_type.startswith("FusedAttention"))
    found, minimal = worker.submit(_part, model.SerializeToString()).result()
    assert (found.value, found.alone) == (first.output[0], False)
    assert found.node == f"{first.op_type} '{first.name}'"
    assert minimal == [first.op_type]


def test_two_providers_are_two() -> None:
    model = ZOO["resnet18"](small=True)
    with pytest.raises(OptionError, match="two providers are compared, not 1"):
        graphopt.verify(model, model, providers=["cpu"])
    with pytest.raises(OptionError, match="give only one of these options"):
        graphopt.verify(model, model, providers=["cpu", "cpu"], provider="cpu")


def test_a_provider_agrees_with_itself(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ZOO["vit"](small=True), path)
    for command in ("verify", "bisect"):
        result = graphopt_command(command, path, "--providers", "cpu,cpu")
        assert result.exit_code == 0, result.stderr
        assert "equal" in result.stdout
    result = graphopt_command("verify", path)
    assert result.exit_code == 5
    assert "AFTER is missing" in result.stderr
