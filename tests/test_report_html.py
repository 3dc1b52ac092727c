"""The HTML report: what stands in it, that no name becomes markup, and how it behaves in Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.checking.diff import DiffNode, diff
from graphopt.measure.bench import bench
from graphopt.report.html import draw, render, rewrite_kinds
from models import ZOO

CHROMIUM = shutil.which("chromium")
HOSTILE = "<script>document.title='owned'</script>&\"'\x1b[31m\u202e\n{{ 7 * 7 }}"


def renamed(model: onnx.ModelProto, prefix: str) -> onnx.ModelProto:
    """All names start with `prefix`."""
    names = {v.name for v in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
    names |= {o for n in model.graph.node for o in n.output}
    for node in model.graph.node:
        node.name = prefix + node.name
        node.input[:] = [prefix + v if v in names else v for v in node.input]
        node.output[:] = [prefix + v for v in node.output]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = prefix + value.name
    return model


@pytest.fixture(scope="module")
def page() -> str:
    """Everything that a report can hold, over a model with hostile names."""
    before = renamed(ZOO["resnet18"](small=True, dynamic=True), HOSTILE)
    after, report = graphopt.optimize(before, target="cpu", all_sites=True)
    times = bench(before, after, providers=["cpu"], threads=(1,), seconds=0.05, memory=False)
    accuracy = graphopt.verify(before, after)
    return render(report, title=HOSTILE, difference=diff(before, after), accuracy=accuracy, times=times)


def in_chromium(document: str, folder: Path) -> str:
    """The document after its scripts have run."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    path = folder / "page.html"
    path.write_text(document, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--virtual-time-budget=5000", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def driven(page: str, script: str, folder: Path, *, width: int = 1000) -> Any:
    """What `script` finds in the page, shown in a frame `width` pixels wide; it has `doc` and sets `found`."""
    wrapper = f"""<body><iframe width={width} height=800 style="border:0" srcdoc="{html.escape(page)}"></iframe>
        <script>onload = () => {{ const doc = document.querySelector("iframe").contentDocument; let found;
        {script}
        document.body.dataset.found = JSON.stringify(found); }}</script></body>"""
    match = re.search(r'data-found="([^"]*)"', in_chromium(wrapper, folder))
    assert match is not None, "the script did not run"
    return json.loads(html.unescape(match[1]))


def test_page_loads_nothing(page: str) -> None:
    assert not re.search(r"""(src|href)\s*=|@import|url\(|fetch\(|XMLHttp""", page)
    assert "default-src 'none'" in page


def test_hostile_names_stay_text(page: str) -> None:
    assert page.count("<script>") == 1
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert r"\x1b[31m\u202e\n{{ 7 * 7 }}" in page


def test_hostile_names_in_a_browser(page: str, tmp_path: Path) -> None:
    found = driven(page, "found = [doc.title, doc.querySelector('h1').textContent, doc.scripts.length];", tmp_path)
    shown = HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e").replace("\n", r"\n")
    assert found == [f"graphopt: {shown}", shown, 1]


def test_tables_and_drawings(page: str, tmp_path: Path) -> None:
    script = """
        const rows = id => [...doc.querySelectorAll(`#${id} tr`)].slice(1).map(
            row => [...row.cells].map(cell => cell.textContent));
        found = {operators: rows("operators"), accuracy: rows("accuracy"), times: rows("times"),
            bars: [...doc.querySelectorAll(".bar")].map(bar => bar.getBoundingClientRect().width),
            drawn: [...doc.querySelectorAll(".new svg text")].map(text => text.textContent)};"""
    found = driven(page, script, tmp_path)
    before = ZOO["resnet18"](small=True)
    assert ["BatchNormalization", str(sum(n.op_type == "BatchNormalization" for n in before.graph.node)), "-"] in found[
        "operators"
    ]
    assert found["accuracy"][0][-1] == "equal"
    assert len(found["times"]) == 1
    assert len(found["bars"]) >= 8
    assert max(found["bars"]) > 500
    assert "WinogradConvAddRelu" in found["drawn"]


def test_ranges_of_half_precision(tmp_path: Path) -> None:
    weights = {
        HOSTILE + "large": np.array([[1e5, -2e5], [1, 2]], np.float32),
        "small": np.array([[1e-6, 1e-9], [3, 4]], np.float32),
        "plain": np.eye(2, dtype=np.float32),
    }
    inputs, output = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 2]) for n in "xy")
    names = ["x", "a", "b", "y"]
    nodes = [onnx.helper.make_node("MatMul", [names[i], w], [names[i + 1]]) for i, w in enumerate(weights)]
    graph = onnx.helper.make_graph(nodes, "g", [inputs], [output])
    graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in weights.items())
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    _, report = graphopt.optimize(model, target="rocm", precision="fp16")
    page = render(report, title="ranges")
    assert page.count("<script>") == 1
    script = """found = [...doc.querySelectorAll("#ranges tr")].slice(1).map(
        row => [...row.cells].map(cell => cell.textContent));"""
    large, small = driven(page, script, tmp_path)
    assert large[0].endswith("large")
    assert large[1:] == ["4", "2", "0", "0", "inf", "float32"]
    assert small[:5] == ["small", "4", "0", "1", "1"]
    assert small[6] == "float16"
    _, plain = graphopt.optimize(model, target="rocm")
    assert 'id="ranges"' not in render(plain, title="ranges")


def test_filter(page: str, tmp_path: Path) -> None:
    script = """
        const words = doc.getElementById("words"), code = doc.getElementById("code");
        const view = doc.defaultView, found_ = [];
        const look = () => found_.push([Number(doc.getElementById("shown").textContent),
            [...doc.querySelectorAll(".remark")].filter(r => r.getBoundingClientRect().height > 0)
                .map(r => r.textContent)]);
        const type = text => { words.value = text; words.dispatchEvent(new view.Event("input")); look(); };
        look(); type("winograd_conv"); type("winograd_conv STRIDES"); type("no such thing"); type("");
        code.value = "ATTRIBUTE"; code.dispatchEvent(new view.Event("change")); look();
        found = found_;"""
    everything, winograd, strides, nothing, again, attribute = driven(page, script, tmp_path)
    assert everything[0] == len(everything[1]) > winograd[0] == len(winograd[1]) > strides[0] == len(strides[1]) > 0
    assert all("winograd_conv" in text for text in winograd[1])
    assert all("strides" in text for text in strides[1])
    assert nothing == [0, []]
    assert again == everything
    assert 0 < attribute[0] == len(attribute[1]) < everything[0]
    assert all("ATTRIBUTE" in text for text in attribute[1])


@pytest.mark.parametrize("width", [320, 360, 1000])
def test_nothing_runs_off_the_screen(page: str, width: int, tmp_path: Path) -> None:
    script = (
        "const e = doc.documentElement; found = [e.scrollWidth, e.clientWidth, doc.querySelector('td').offsetHeight];"
    )
    scroll_width, client_width, cell_height = driven(page, script, tmp_path, width=width)
    assert scroll_width <= client_width <= width
    assert cell_height < 100  # a column of single letters is not readable


def test_drawing_has_no_overlap_and_flows_down() -> None:
    names = [
        ("Conv", ("x", "w"), ("a",)),
        ("Relu", ("a",), ("b",)),
        ("Sigmoid", ("a",), ("c",)),
        ("Mul", ("b", "c"), ("y",)),
    ]
    drawing = draw([DiffNode(op, op, i, o) for op, i, o in names], {"x"})
    assert [b.label for b in drawing.boxes] == ["", "Conv", "Relu", "Sigmoid", "Mul"]
    assert len(drawing.edges) == 5
    assert all(y2 > y1 for _, y1, _, y2 in drawing.edges)
    for i, a in enumerate(drawing.boxes):
        assert a.x >= 0
        assert a.x + a.width <= drawing.width
        for b in drawing.boxes[i + 1 :]:
            assert a.y != b.y or a.x + a.width <= b.x or b.x + b.width <= a.x


def test_sites_that_look_alike_are_drawn_once() -> None:
    before = ZOO["resnet18"](small=True)
    after, _ = graphopt.optimize(before, target="cpu", all_sites=True)
    difference = diff(before, after)
    kinds = rewrite_kinds(difference)
    assert sum(len(k.sites) for k in kinds) == len(difference.neighbourhoods)
    assert len(kinds) < len(difference.neighbourhoods)


def test_command(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    path, out, page = (tmp_path / n for n in ("in.onnx", "out.onnx", "report.html"))
    onnx.save(ZOO["resnet18"](small=True, dynamic=True), path)
    options = ["--target", "cpu", "--report", page, "--verify", "--bench", "--threads", "1"]
    options += ["--tune", "--tune-seconds", "1"]
    assert graphopt_command("optimize", path, out, *options).exit_code == 0
    text = page.read_text()
    assert all(f'id="{part}"' in text for part in ("operators", "times", "tuning", "accuracy", "remarks"))
    assert graphopt_command("optimize", path, "--dry-run", "--report", page).exit_code == 0
    assert 'id="times"' not in page.read_text()
    nowhere = graphopt_command("optimize", path, out, "--report", tmp_path / "no" / "r.html")
    assert nowhere.exit_code == 4
