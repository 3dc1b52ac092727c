"""Rows of scripts/gpu_session.py and their failures, without PyTorch and a GPU."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts import pages

pytestmark = pytest.mark.once

OF_PYTORCH = ("models.pytorch.decoder", "models.pytorch.twins", "scripts.gpu_session")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with a PyTorch stand-in that only has the base classes of its models."""
    names = ("torch", "torch.nn", "torch.nn.functional")
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    vars(modules["torch.nn"])["Module"] = object
    for name in OF_PYTORCH:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("scripts.gpu_session")
    for name in OF_PYTORCH:
        sys.modules.pop(name, None)


def row(script: Any, **changes: Any) -> Any:
    given = {"model": "vit", "batch": 1, "dtype": "float32", "libraries": True, "device": "a device"}
    return script.Row(**given | {"copies": 0, "ours": 1.0, "peers": dict.fromkeys(script.SIDES, 2.0)} | changes)


def test_the_best_of_two_is_no_best_of_three(script: Any) -> None:
    assert row(script).failures(script.SIDES) == []
    two = {"eager": 2.0, "graph": 2.0}
    failed = row(script, peers=two, failed={"compile": "no compiler"})
    assert failed.failures(script.SIDES) == ["compile failed"] and "0.50 of 2 | compile failed |" in failed.markdown(
        script.SIDES
    )
    left_out = row(script, peers=two)
    assert left_out.failures(script.SIDES) == ["compile left out"]
    # As with --no-compile.
    assert left_out.failures(("eager", "graph")) == [] and "| 0.50 of 2 |  |" in left_out.markdown(("eager", "graph"))
    assert row(script, peers={"eager": 2.0}).failures(("eager", "graph")) == ["graph left out"]


def test_copies_are_a_miss(script: Any) -> None:
    assert row(script, copies=2).failures(script.SIDES) == ["2 copies"]


def test_decoders_are_compared_with_the_captured_graph(script: Any) -> None:
    given = {"model": "decoder_token", "dtype": "float16", "peers": {"eager": 9.0, "graph": 2.0, "compile": 1.0}}
    assert row(script, **given, ours=1.39).failures(script.SIDES) == []
    assert row(script, **given, ours=1.41).failures(script.SIDES) == ["above 0.7"]


def test_results_become_a_column_of_the_readme(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of PyTorch takes twice as long; other batches and runs without libraries are not in the table."""
    rows = [row(script), row(script, batch=8, ours=9.0), row(script, model="gpt2", dtype="float16", ours=0.5)]
    rows += [row(script, libraries=False, ours=8.0), row(script, model="chess", peers={})]
    place = tmp_path / "gpu.json"
    place.write_text(json.dumps({"note": "busy", "columns": {"float16": "fp16", "float32": "fp32"}}))
    monkeypatch.setattr(sys, "argv", ["scripts/gpu_session.py", "--write", "gpu.json"])
    script.write_results(place, script.results(rows), {}, machine="a device", runtime="onnxruntime 1")
    written = json.loads(place.read_text())
    assert (written["machine"], written["note"]) == ("a device", "busy")
    assert written["command"] == "scripts/gpu_session.py --write gpu.json"
    lines, columns = pages.result_table({**pages.results(), "H200": written})
    assert columns[-2:] == ["H200, fp16", "H200, fp32"] and len(columns) > 4
    assert {line.split(" | ")[0]: line.split(" | ")[-2:] for line in lines}["| ViT-B/16"] == ["", "2.00 |"]
    assert lines[-1] == f"| GPT-2 {'|  ' * (len(columns) - 2)}| 4.00 |  |"
    table = pages.with_rows("| model | old |\n|---|--:|\n| x | 1 |\n", "model", lines, columns)
    assert table.splitlines()[0].endswith("| H200, fp16 | H200, fp32 |") and "| x |" not in table


def test_every_model_of_the_zoo_has_rows(script: Any) -> None:
    rows = script.rows_of([])
    assert {name for name, _, _ in rows} == {*script.ZOO} and len(rows) == len(script.ZOO) * 6
    assert {"vgg16_bn", "gpt2"} <= {*script.MODELS}


def test_sizes_differ(script: Any) -> None:
    sizes = script.sizes_of_images(1000)
    assert len({*sizes}) == 1000
    assert all(h % 32 == w % 32 == 0 and h * w <= 3 << 19 for h, w in sizes)
    with pytest.raises(ValueError, match="larger sample"):
        script.sizes_of_images(100_000)


def sizes_run(script: Any, **changes: Any) -> Any:
    given = {"first": [1.2, 1.3], "second": [1.0, 1.0], "held": 100 << 20, "fewest": 20, **changes}
    return script.SizesRun(256 << 20, **given)


def test_misses_of_a_run_over_many_sizes(script: Any) -> None:
    assert sizes_run(script).misses(evicts=False) == sizes_run(script).misses(evicts=True) == []
    slow = sizes_run(script, first=[1.2, 1.5])
    assert slow.misses(evicts=False) == ["ratio 1.35, above 1.3"] and not slow.misses(evicts=True)
    assert "the session held 257 MiB, above" in sizes_run(script, held=257 << 20).misses(evicts=True)[0]
    # Device memory in use before the run is not counted.
    assert not sizes_run(script, others_after_first=800 << 20, others_most=900 << 20).misses(evicts=False)
    grown = sizes_run(script, others_after_first=1 << 20, others_most=130 << 20)
    assert "grew by 129 MiB" in grown.misses(evicts=False)[0]
    assert sizes_run(script, fewest=script.PLANS).misses(evicts=True) == ["the limit evicted no plan"]
