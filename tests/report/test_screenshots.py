"""The pictures in docs: the report and the view on a phone, a tablet and a screen.

With GRAPHOPT_SCREENSHOTS=1 they are rendered again, from a ResNet-18 and its rewrite. Otherwise one is rendered, and
the sizes of the pictures in docs are checked.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import threading
from pathlib import Path

import onnx
import pytest

from graphopt.cli import view
from graphopt.debug.diff import diff
from graphopt.measure.bench import bench
from graphopt.report.html import render
from models import ZOO
from tests.browser import dom, screenshot
from tests.report.test_html import page

assert page  # a fixture: the report of a small model with every possible part

pytestmark = pytest.mark.once

PICTURES = Path(__file__).parents[2] / "docs" / "screenshots"
SIZES = ((390, 1200), (800, 1100), (1600, 1100))
# A picture whose last 64 rows are blank counts as not drawn: 87, less a block that the compression blurs. Gaps in the
# pages are smaller.
BLANK = 64
# Bytes of one picture, small enough for slow connections.
LARGEST = 90_000
AFRESH = os.environ.get("GRAPHOPT_SCREENSHOTS") == "1"


def test_a_picture_of_the_report(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    (width, height), picture = SIZES[0], tmp_path / "report.webp"
    screenshot((tmp_path / "page.html").as_uri(), picture, tmp_path, width=width, height=height)
    assert 5_000 < picture.stat().st_size < LARGEST  # a blank page has 2,000
    assert shapes([picture], tmp_path) == [(width, height, False)]


def test_incomplete_screenshots_are_detected(tmp_path: Path) -> None:
    """A browser once left the last 87 rows of a picture blank."""
    lines = "repeating-linear-gradient(#147 0 3px, #fff 3px 9px) 0 0 / 100% 113px no-repeat"
    (tmp_path / "lines.html").write_text(f"<body style='margin: 0; height: 200px; background: {lines}'>")
    screenshot((tmp_path / "lines.html").as_uri(), tmp_path / "lines.webp", tmp_path, width=300, height=200)
    assert shapes([tmp_path / "lines.webp"], tmp_path) == [(300, 200, True)]


@pytest.mark.skipif(not AFRESH, reason="GRAPHOPT_SCREENSHOTS=1 makes the pictures in docs afresh")
def test_make_the_pictures(tmp_path: Path) -> None:
    import graphopt

    path, out = tmp_path / "resnet18.onnx", tmp_path / "resnet18.opt.onnx"
    before = ZOO["resnet18"](dynamic=True)
    onnx.save(before, path)
    _, report = graphopt.optimize(path, out, target="cpu")
    times = bench(path, out, providers=["cpu"], threads=(1,), seconds=5)
    made = render(
        report,
        title=path.name,
        difference=diff(path, out),
        accuracy=graphopt.verify(path, out, effort="quick"),
        times=times,
        order=[n.name for n in before.graph.node],
    )
    (tmp_path / "report.html").write_text(made, encoding="utf-8")
    data = view._data(path, None, "cpu", False, None, None, True)
    PICTURES.mkdir(exist_ok=True)
    with view.serve(data) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urls = {
            "report": (tmp_path / "report.html").as_uri(),
            "view": f"http://{view.HOST}:{server.server_address[1]}/#conv",
        }
        for name, url in urls.items():
            ready = "document.body.dataset.ready" if name == "view" else "true"
            for width, height in SIZES:
                picture = PICTURES / f"{name}_{width}.webp"
                screenshot(url, picture, tmp_path, width=width, height=height, ready=ready)
        server.shutdown()


def test_pictures_in_docs(tmp_path: Path) -> None:
    names = [f"{name}_{width}" for name in ("report", "view") for width, _ in SIZES]
    assert sorted(names) == sorted(p.stem for p in PICTURES.iterdir())
    assert all((PICTURES / f"{name}.webp").stat().st_size < LARGEST for name in names)
    sizes = [(*size, False) for _ in range(2) for size in SIZES]
    assert shapes([PICTURES / f"{name}.webp" for name in names], tmp_path) == sizes


def shapes(pictures: list[Path], folder: Path) -> list[tuple[int, int, bool]]:
    """Returns width, height, and whether the last BLANK rows have a single colour."""
    # As data: a page may not read the pixels of another file.
    images = "".join(
        f'<img src="data:image/webp;base64,{base64.b64encode(p.read_bytes()).decode()}">' for p in pictures
    )
    script = f"""
        document.body.dataset.shapes = JSON.stringify([...document.images].map(image => {{
          const [w, h] = [image.naturalWidth, image.naturalHeight];
          const brush = new OffscreenCanvas(w, h).getContext("2d");
          brush.drawImage(image, 0, 0);
          const last = new Uint32Array(brush.getImageData(0, h - {BLANK}, w, {BLANK}).data.buffer);
          return [w, h, last.every(pixel => pixel === last[0])];
        }}))"""
    (folder / "all.html").write_text(f"<body>{images}<script>onload = () => {{ {script} }}</script></body>")
    shown = dom((folder / "all.html").as_uri(), folder, milliseconds=3000)
    match = re.search(r'data-shapes="([^"]*)"', shown)
    assert match is not None, "the script did not run"
    return [tuple(shape) for shape in json.loads(html.unescape(match[1]))]
