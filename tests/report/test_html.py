"""The HTML report: its contents, that no name becomes markup, and its behaviour in Chromium."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.debug.diff import DiffNode, diff
from graphopt.measure.bench import BenchReport, BenchRow, Setting, Timing, bench
from graphopt.measure.profiling import TimedSubgraph
from graphopt.report.drawing import draw
from graphopt.report.html import Provenance, cards, render, stages
from models import ZOO
from tests.browser import dom

HOSTILE = "<script>document.title='owned'</script>&\"'\x1b[31m\u202e\n{{ 7 * 7 }}"


def renamed(model: onnx.ModelProto, prefix: str) -> onnx.ModelProto:
    """Prefixes all names with `prefix`."""
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
    """A report with every possible part, for a model with hostile names."""
    before = renamed(ZOO["resnet18"](small=True, dynamic=True), HOSTILE)
    after, report = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    times = bench(before, after, providers=["cpu"], threads=(1,), seconds=0.05, memory=False)
    accuracy = graphopt.verify(before, after, effort="quick")
    return render(
        report,
        title=HOSTILE,
        difference=diff(before, after),
        accuracy=accuracy,
        times=times,
        order=[n.name for n in before.graph.node],
        provenance=Provenance("today", f"graphopt {HOSTILE}", {HOSTILE: "1"}, HOSTILE, [(HOSTILE, 12345, "ab" * 32)]),
    )


def in_chromium(document: str, folder: Path) -> str:
    """Returns the document after its scripts have run."""
    path = folder / "page.html"
    path.write_text(document, encoding="utf-8")
    return dom(path.as_uri(), folder, milliseconds=5000)


def driven(page: str, script: str, folder: Path, *, width: int = 1000) -> Any:
    """Runs `script` in the page, in a frame `width` pixels wide; it reads `doc` and sets `found`, which is returned."""
    wrapper = f"""<body><iframe width={width} height=800 style="border:0" srcdoc="{html.escape(page)}"></iframe>
        <script>onload = () => {{ const doc = document.querySelector("iframe").contentDocument; let found;
        {script}
        document.body.dataset.found = JSON.stringify(found); }}</script></body>"""
    match = re.search(r'data-found="([^"]*)"', in_chromium(wrapper, folder))
    assert match is not None, "the script did not run"
    return json.loads(html.unescape(match[1]))


def test_page_loads_nothing(page: str) -> None:
    assert not re.search(r"""src\s*=|href\s*=\s*"(?!#)|@import|url\((?!#)|fetch\(|XMLHttp""", page)
    assert "default-src 'none'" in page


def test_hostile_names_stay_text(page: str) -> None:
    assert page.count("<script>") == 1
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert r"\x1b[31m\u202e\n{{ 7 * 7 }}" in page


@pytest.mark.once
def test_hostile_names_in_a_browser(page: str, tmp_path: Path) -> None:
    found = driven(page, "found = [doc.title, doc.querySelector('h1').textContent, doc.scripts.length];", tmp_path)
    shown = HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e").replace("\n", r"\n")
    assert found == [f"graphopt: {shown}", shown, 1]


@pytest.mark.once
def test_tables_and_drawings(page: str, tmp_path: Path) -> None:
    script = """
        const rows = id => [...doc.querySelectorAll(`#${id} tr`)].slice(1).map(
            row => [...row.cells].map(cell => cell.textContent));
        found = {operators: rows("operators"), accuracy: rows("accuracy"), times: rows("times"),
            bars: [...doc.querySelectorAll(".bar")].map(bar => bar.getBoundingClientRect().width),
            drawn: [...doc.querySelectorAll(".new svg.graph text")].map(text => text.textContent)};"""
    found = driven(page, script, tmp_path)
    before = ZOO["resnet18"](small=True)
    assert ["BatchNormalization", str(sum(n.op_type == "BatchNormalization" for n in before.graph.node)), "-"] in found[
        "operators"
    ]
    assert found["accuracy"][0][-1] == "equal"
    assert len(found["times"]) == 1
    # Both sides of each kind of subgraph; the number of kinds depends on the processor's instructions.
    assert len(found["bars"]) >= 6 and len(found["bars"]) % 2 == 0
    assert max(found["bars"]) > 500
    assert "WinogradConvAddRelu" in found["drawn"]


def test_ranges_of_half_precision(tmp_path: Path) -> None:
    weights = {  # the large ones last: activations after them exceed float16 as well
        "small": np.array([[1e-6, 1e-9], [3, 4]], np.float32),
        "plain": np.eye(2, dtype=np.float32),
        HOSTILE + "large": np.array([[1e5, -2e5], [1, 2]], np.float32),
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


@pytest.mark.once
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


@pytest.mark.once
def test_the_layout_of_the_page_at_each_width(page: str, tmp_path: Path) -> None:
    """On phones, tablets and screens: nothing overflows, the answer is at the top, columns are readable."""
    script = """
        const look = width => new Promise(done => {
            const frame = document.createElement("iframe"); frame.width = width; frame.height = 900;
            frame.style.border = 0; frame.onload = () => {
                const d = frame.contentDocument, e = d.documentElement, columns = [...d.querySelectorAll(".lane")];
                const headline = d.querySelector(".headline").getBoundingClientRect();
                done([e.scrollWidth, e.clientWidth, d.querySelector("td").offsetHeight, headline.bottom,
                    d.querySelector(".headline").innerText, columns.map(l => l.getBoundingClientRect().width),
                    [...d.querySelectorAll(".tile .text")].map(t => t.innerText),
                    [...d.querySelectorAll("svg.graph")].every(g => g.getBoundingClientRect().width <= width),
                    [...d.querySelectorAll("#stages .scroll, .card, .tile")].filter(
                        b => b.scrollWidth > b.clientWidth).map(b => [b.className, b.scrollWidth, b.clientWidth])]);
            };
            frame.srcdoc = PAGE; document.body.append(frame); });
        const PAGE = document.querySelector("iframe").srcdoc;
        Promise.all([320, 390, 800, 1600].map(look)).then(seen => {
            document.body.dataset.seen = JSON.stringify(seen); });"""
    wrapper = (
        f"""<body><iframe srcdoc="{html.escape(page)}"></iframe><script>onload = () => {{ {script} }}</script></body>"""
    )
    match = re.search(r'data-seen="([^"]*)"', in_chromium(wrapper, tmp_path))
    assert match is not None, "the script did not run"
    for width, seen in zip((320, 390, 800, 1600), json.loads(html.unescape(match[1])), strict=True):
        scroll_width, client_width, cell_height, bottom, headline, lanes, tiles, drawings_fit, cut = seen
        assert scroll_width <= client_width <= width
        assert cell_height < 100  # a column of single letters is not readable
        assert bottom < 300 and "30 → 12 nodes" in headline and "qual (worst" in headline
        assert len(lanes) == 2 and max(lanes) > 0.8 * min(width, 1000) and min(lanes) > 0
        assert len(tiles) == 3 and tiles[1].startswith("equal") and tiles[2] == "30 → 12 nodes"
        assert drawings_fit and not cut, (width, cut)


@pytest.mark.once
def test_in_the_dark_and_on_paper(page: str, tmp_path: Path) -> None:
    """Renders a page with swapped media queries, which makes a light screen use the rules for dark mode and print."""
    dark = page.replace("(prefers-color-scheme: dark)", "(prefers-color-scheme: light)")
    paper = page.replace("@media print", "@media screen")
    assert page not in (dark, paper)
    script = """
        const light = color => { const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(
            c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const look = page => new Promise(done => {
            const frame = document.createElement("iframe"); frame.width = 700; frame.onload = () => {
                const d = frame.contentDocument, style = e => d.defaultView.getComputedStyle(e);
                const under = e => style(e).backgroundColor.endsWith(", 0)") && e.parentElement ?
                    under(e.parentElement) : style(e).backgroundColor;
                const texts = [...d.querySelectorAll("p, td, th, h1, h2, h3, summary, .tile, .soft, .code, b span")];
                const shown = texts.filter(e => e.innerText.trim() && e.getBoundingClientRect().height);
                done([light(style(d.body).backgroundColor), Math.min(...shown.map(e => {
                    const [a, b] = [light(style(e).color), light(under(e))];
                    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); })), shown.length,
                    [...d.querySelectorAll(".filter, .scripted")].map(e => e.getBoundingClientRect().height),
                    d.documentElement.scrollWidth <= d.documentElement.clientWidth]);
            };
            frame.srcdoc = page; document.body.append(frame); });
        Promise.all(PAGES.map(look)).then(seen => { document.body.dataset.seen = JSON.stringify(seen); });"""
    pages = json.dumps([page, dark, paper]).replace("</", "<\\/")
    match = re.search(
        r'data-seen="([^"]*)"', in_chromium(f"<body><script>const PAGES = {pages};{script}</script></body>", tmp_path)
    )
    assert match is not None, "the script did not run"
    seen = json.loads(html.unescape(match[1]))
    for (ground, contrast, texts, controls, fits), (least, most) in zip(
        seen, ((0.8, 1), (0, 0.1), (0.8, 1)), strict=True
    ):
        assert least <= ground <= most and fits and texts > 50
        assert contrast >= 4.5  # WCAG 2.1, 1.4.3
        assert controls
    assert any(seen[0][3]) and not any(seen[2][3])  # no controls on paper


def test_noise_looks_like_noise() -> None:
    _, report = graphopt.optimize(ZOO["resnet18"](small=True), target="cpu")
    setting, timing = Setting("CPUExecutionProvider", 1, {}, "host"), Timing(9, 10.0, 11.0, 0.01, 100.0)
    for verdict, state in (("within noise", "noise"), ("faster", "good"), ("slower", "bad")):
        times = BenchReport(rows=[BenchRow(setting, timing, timing, 1.01, 0.99, 1.03, verdict)])
        assert f'<div class="tile {state}"><div class="name">Speed' in render(report, title="m", times=times)


def test_stages_are_the_model_in_order() -> None:
    names = [f"/layer.{i}/{op}" for i in range(3) for op in ("Conv", "Relu")]
    subgraphs = [
        TimedSubgraph(n, "Conv", "Conv" if "Relu" in n else "WinogradConv", 10.0, 5.0) for n in reversed(names)
    ]
    found = stages([TimedSubgraph("(runtime)", "", "", 1.0, 1.0), *subgraphs], names)
    assert [s.name for s in found] == ["layer.0", "layer.1", "layer.2", "(runtime)"]
    assert [(s.before, s.after, s.before_rewritten, s.after_rewritten) for s in found[:3]] == [
        (0.02, 0.01, 0.01, 0.005)
    ] * 3
    flat = [TimedSubgraph(f"Conv_{i}", "Conv", "Conv", 1.0, 1.0) for i in range(200)]
    joined = stages(flat, [s.name for s in flat])
    assert len(joined) == 16 and sum(s.before for s in joined) == pytest.approx(0.2)


def crossings(svg: str) -> int:
    """Returns the number of crossing pairs of lines in a drawing."""
    lines = [
        [tuple(map(float, point.split(","))) for point in points.split()]
        for points in re.findall(r'<polyline [^>]*points="([^"]*)"', svg)
    ]
    parts = [(a, b, i) for i, line in enumerate(lines) for a, b in pairwise(line)]

    def side(p: Any, q: Any, r: Any) -> float:
        return float((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))

    return sum(
        side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
        for k, (a, b, i) in enumerate(parts)
        for c, d, j in parts[k + 1 :]
        if i != j
    )


@pytest.mark.once
@pytest.mark.parametrize("name", ["resnet18", "bert", "unet", "gpt2"])
def test_no_edges_of_drawings_cross(name: str) -> None:
    before = ZOO[name](small=True, dynamic=True)
    after, report = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    page = render(report, title=name, difference=diff(before, after))
    drawings = re.findall(r'<svg class="graph".*?</svg>', page, re.S)
    assert drawings and all('marker-end="url(#arrow)"' in d for d in drawings if "<polyline" in d)
    assert [crossings(d) for d in drawings] == [0] * len(drawings)


def test_crossings_of_edges_are_counted() -> None:
    line = '<polyline class="edge" points="{}"/>'
    assert crossings(line.format("0,0 10,10 ") + line.format("10,0 0,10 ")) == 1
    assert crossings(line.format("0,0 10,10 ") + line.format("0,0 10,20 ")) == 0


def test_drawing_has_no_overlap_and_flows_down() -> None:
    names = [
        ("Conv", ("x", "w"), ("a",)),
        ("Relu", ("a",), ("b",)),
        ("Sigmoid", ("a",), ("c",)),
        ("Mul", ("b", "c"), ("y",)),
    ]
    drawing = draw([DiffNode(op, op, i, o) for op, i, o in names], {"x"})
    assert [b.label for b in drawing.boxes] == ["Conv", "Relu", "Sigmoid", "Mul", ""]
    assert len(drawing.edges) == 5
    assert all(below[1] > above[1] for edge in drawing.edges for above, below in pairwise(edge))
    for i, a in enumerate(drawing.boxes):
        assert a.x >= 0
        assert a.x + a.width <= drawing.width
        for b in drawing.boxes[i + 1 :]:
            assert a.y != b.y or a.x + a.width <= b.x or b.x + b.width <= a.x


def test_equal_rewrites_are_drawn_once() -> None:
    before = ZOO["resnet18"](small=True)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    difference = diff(before, after)
    kinds = cards(difference, [], None)
    assert sum(len(k.subgraphs) for k in kinds) == len(difference.neighbourhoods)
    assert len(kinds) < len(difference.neighbourhoods)


def test_command(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    path, out, page = (tmp_path / n for n in ("in.onnx", "out.onnx", "report.html"))
    onnx.save(ZOO["resnet18"](small=True, dynamic=True), path)
    options = ["--target", "cpu", "--report", page, "--threads", "1"]
    options += ["--tune", "--tune-seconds", "1"]
    assert graphopt_command("optimize", path, out, *options).exit_code == 0
    text = page.read_text()
    parts = ("operators", "times", "tuning", "accuracy", "remarks", "stages", "changes", "refused", "provenance")
    assert all(f'id="{part}"' in text for part in parts)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in text
    assert graphopt_command("optimize", path, "--dry-run", "--report", page).exit_code == 0
    assert 'id="times"' not in page.read_text()
    nowhere = graphopt_command("optimize", path, out, "--report", tmp_path / "no" / "r.html")
    assert nowhere.exit_code == 4
