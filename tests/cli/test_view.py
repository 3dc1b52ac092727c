"""`graphopt view` in a browser, on a model of 5,000 nodes."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import onnx
import pytest
from onnx import TensorProto, helper

from graphopt.cli import view
from tests.browser import dom, visit

pytestmark = pytest.mark.once

LAYERS, NODES = 100, 50


def model() -> onnx.ModelProto:
    """Returns a chain of layers, each with one possible rewrite: the Identity at its end."""
    names = [f"v{i}" for i in range(LAYERS * NODES)]
    nodes = []
    for i, (a, b) in enumerate(pairwise(["x", *names])):
        op = "Identity" if i % NODES == NODES - 1 else ("Neg", "Sin", "Tanh")[i % 3]
        nodes.append(helper.make_node(op, [a], [b], name=f"/encoder/layer.{i // NODES}/{op}_{i % NODES}<b>"))
    nodes[-1].op_type = "Neg"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in ("x", names[-1]))
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    path = tmp_path_factory.mktemp("view") / "deep.onnx"
    onnx.save(model(), path)
    data = view._data(path, None, "cpu", False, None, None, False)
    with view.serve(data) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield view.HOST, server.server_address[1]
        server.shutdown()


def seen(address: tuple[str, int], search: str, folder: Path) -> str:
    """Returns the page after it has received its data."""
    page = dom(f"http://{address[0]}:{address[1]}/#{quote(search)}", folder, milliseconds=20000)
    assert "data-ready=" in page
    return page


def llama(layers: int) -> onnx.ModelProto:
    """Returns layers with exporter-style names, and constants with names outside of the layers."""
    nodes, value = [], "x"
    for i in range(layers):
        for j, op in enumerate(("Mul", "Neg", "Add", "Tanh")):
            inputs = [value]
            if op in ("Mul", "Add"):
                inputs.append(f"c{i}_{j}")
                constant = helper.make_tensor("", TensorProto.FLOAT, [3], [1.5 + i, 2.0, 3.0])
                nodes.append(
                    helper.make_node("Constant", [], [f"k{i}_{j}"], name=f"/Constant_{i}{j}/a", value=constant)
                )
                nodes.append(helper.make_node("Neg", [f"k{i}_{j}"], [f"c{i}_{j}"], name=f"/Constant_{i}{j}/b"))
            value = f"v{i}_{j}"
            nodes.append(helper.make_node(op, inputs, [value], name=f"/model/layers.{i}/{op}"))
    nodes.append(helper.make_node("Identity", [value], ["y"], name="/lm_head/Identity"))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("layers", "drawn"),
    [(12, ["model/layers.{0-11} (12 times)", "lm_head"]), (2, ["Mul", "Add"])],
    ids=["layers", "nodes"],
)
def test_the_drawn_graph_has_layers_and_no_constants(layers: int, drawn: list[str], tmp_path: Path) -> None:
    onnx.save(llama(layers), tmp_path / "llama.onnx")
    data = json.loads(view._data(tmp_path / "llama.onnx", None, "cpu", False, None, None, False))
    assert data["layers"] == [*(f"model/layers.{i}" for i in range(layers)), "lm_head"]
    labels = [box["label"] for box in data["map"]["boxes"]]
    assert {*drawn} <= {*labels} and "Constant" not in labels and len(labels) < 40
    assert data["map"]["edges"] and data["map"]["left_out"] == 0
    assert "changed" in {box["state"] for box in data["map"]["boxes"]}


def test_the_modules_that_an_exporter_notes_are_layers(tmp_path: Path) -> None:
    """PyTorch's exporter numbers the names of nodes and notes the modules in their metadata."""
    scopes = [
        "['', 'embed', '_hook', 'embedding']",
        *(f"['', 'enc', 'enc.layers.{i}', 'enc.layers.{i}.a', 'mm']" for i in (0, 1)),
    ]
    scopes += ["['', '_hook', 'head']", "no list", "5"]
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"node_{i}") for i in range(len(scopes))]
    for node, scope in zip(nodes, scopes, strict=True):
        helper.set_model_props(node, {"pkg.torch.onnx.name_scopes": scope})
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in ("v0", f"v{len(nodes)}"))
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets), tmp_path / "m.onnx")
    data = json.loads(view._data(tmp_path / "m.onnx", None, "cpu", False, None, None, False))
    assert data["layers"] == ["embed", "enc.layers.0", "enc.layers.1", "nodes 1 to 50"]


def test_opens_with_the_drawn_graph_and_a_legend(address: tuple[str, int], tmp_path: Path) -> None:
    page = seen(address, "", tmp_path)
    assert page.index('<section id="map"') < page.index("<svg") < page.index('<div id="layers">')
    assert "encoder/layer.{0-99} (100 times)" in page and "refused, with a reason" in page


def test_folded_by_layer(address: tuple[str, int], tmp_path: Path) -> None:
    page = seen(address, "", tmp_path)
    assert "5000 → 4901 nodes in 100 layers" in page
    assert page.count("<details") == LAYERS and 'data-layer="encoder/layer.99"' in page
    assert 'class="node' not in page  # folded


def test_search_finds(address: tuple[str, int], tmp_path: Path) -> None:
    page = seen(address, "layer.42/ tanh", tmp_path)
    nodes = re.findall(r'<button class="node[^>]*>(\w+)<small>([^<]*)</small>', page)
    assert nodes and all(op == "Tanh" and name.startswith("/encoder/layer.42/") for op, name in nodes)
    wanted = sum(i % 3 == 2 for i in range(42 * NODES, 43 * NODES - 1))
    assert f"{wanted} before and {wanted} after match" in page and len(nodes) == 2 * wanted
    assert page.count("<details") == 1
    assert "float [1, 3]" in page and "&lt;b&gt;" in page


def test_rewritten_nodes_are_marked(address: tuple[str, int], tmp_path: Path) -> None:
    page = seen(address, "identity layer.7/", tmp_path)
    assert re.search(r'<button class="node changed" data-node="before \d+">Identity', page)


def test_the_browser_first_gets_only_the_layers(address: tuple[str, int], tmp_path: Path) -> None:
    """The browser gets only the layers of the 5,000 nodes, and sends no request to other hosts."""
    page = visit(f"http://{address[0]}:{address[1]}/", tmp_path)
    assert {url.rpartition("/")[0] for url in page.requests if not url.startswith("data:")} == {
        f"http://{address[0]}:{address[1]}"
    }
    assert LAYERS < page.elements < 1000


def test_the_page_is_served_on_the_loopback_interface_only(address: tuple[str, int]) -> None:
    assert view.HOST == "127.0.0.1"

    def answer(path: str, host: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(*address)
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse()

    page = answer("/", f"localhost:{address[1]}")
    text = page.read().decode()
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; img-src data:")
    assert not re.search(r"https?://|src\s*=|@import|url\(", text)
    assert answer("/", "evil.example").status == 403
    assert answer("/etc/passwd", f"localhost:{address[1]}").status == 404
    assert answer("/data.json", f"127.0.0.1:{address[1]}").status == 200
