"""Whether trained models keep their answers in bfloat16: top-1, text and detections, on 64 inputs each.

    .venv-ort/bin/python -m pip install pillow
    .venv-ort/bin/python scripts/bfloat16_answers.py [--only NAME] [--count 64] [--max-error E]

The original, ours by --precision bf16 and, where the package openvino is there, OpenVINO by its default (bfloat16 where
the machine has it) answer the same inputs. An answer that differs is printed with the margin that the original had: of
the probabilities of its first and second choice, or of a detection to its threshold. Detectors see parts of
photographs and of printed pages (scikit-image's, which pillow reads). Exits with 1 when ours keeps fewer answers than
OpenVINO.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import version_converter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt
from graphopt.ops.schema import CAST_BFLOAT16_OPSET
from models import pypi
from scripts.bench_cpu import Side, _openvino, _runtime

Array = npt.NDArray[Any]
ROOT = Path(__file__).resolve().parent.parent
PIECE, PADDING = 1024, 256  # magika reads so many bytes of a file's beginning and end; what stands for no byte


Feeds = Callable[[int], Iterator[dict[str, Array]]]  # so many


@dataclass(frozen=True)
class Answers:
    """What the outputs say: choices, compared one by one, and how sure each is."""

    choices: Array
    margins: Array


def _best(scores: Array) -> Answers:
    """Along the last axis."""
    two = np.sort(scores, axis=-1)[..., -2:]
    return Answers(scores.argmax(-1).reshape(-1), (two[..., 1] - two[..., 0]).reshape(-1))


def _text(scores: Array) -> Answers:
    """For each line the characters that connectionist temporal classification reads, and its least margin."""
    lines = []
    for line in scores.argmax(-1):
        kept = line[np.flatnonzero(np.diff(line, prepend=-1))]
        lines.append(",".join(map(str, kept[kept != 0])))
    two = np.sort(scores, axis=-1)[..., -2:]
    return Answers(np.array(lines), (two[..., 1] - two[..., 0]).min(-1))


def _above(scores: Array, threshold: float) -> Answers:
    """Whether each is found."""
    return Answers((scores > threshold).reshape(-1), np.abs(scores - threshold).reshape(-1))


def _pixels(scores: Array) -> Answers:
    """Which are text, by PP-OCR's threshold."""
    return _above(scores, 0.3)


def _boxes(output: Array) -> Answers:
    """Which of the model's boxes are of which class, by NudeNet's threshold: four places of a box, then scores."""
    return _above(output[:, 4:], 0.2)


def _regions(*levels: Array) -> Answers:
    """Which places are of which kind, by rapid-layout's threshold: scores at four scales, then boxes."""
    return _above(np.concatenate([level.reshape(-1) for level in levels[:4]]), 0.5)


def _files(count: int) -> Iterator[dict[str, Array]]:
    """The sources of this project as magika sees them."""
    paths = sorted(p for p in ROOT.rglob("*") if p.is_file() and ".git" not in p.parts and ".venv" not in str(p))
    rng = np.random.default_rng(0)
    by_kind: dict[str, list[Path]] = {}
    for path in paths:
        if path.stat().st_size > PIECE:
            by_kind.setdefault(path.suffix, []).append(path)
    # A file of each kind in turn: most would be Python otherwise.
    turns = [list(rng.permutation(np.array(kind, object))) for kind in by_kind.values()]
    chosen = [kind[i] for i in range(count) for kind in turns if i < len(kind)][:count]
    for path in chosen:
        data = np.full(2 * PIECE, PADDING, np.int32)
        content = path.read_bytes()
        begin, end = content[:PIECE].lstrip(), content[-PIECE:].rstrip()
        data[: len(begin)] = np.frombuffer(begin, np.uint8)
        data[2 * PIECE - len(end) :] = np.frombuffer(end, np.uint8)
        yield {"bytes": data[None]}


def _drawn(name: str) -> Feeds:
    def feeds(count: int) -> Iterator[dict[str, Array]]:
        for seed in range(count):
            yield pypi.TRAINED[name].feeds[0](np.random.default_rng(seed))

    return feeds


def _parts(name: str, pictures: Sequence[str], height: int, width: int, mean: Any, deviation: Any) -> Feeds:
    """Parts of pictures, of any size and place, as [1, 3, height, width] of numbers less mean over deviation."""

    def feeds(count: int) -> Iterator[dict[str, Array]]:
        from PIL import Image

        opened = [Image.open(path).convert("RGB") for path in pypi.pictures(pictures)]
        rng = np.random.default_rng(0)
        for i in range(count):
            picture = opened[i % len(opened)]
            part = rng.uniform(0.4, 1) * min(picture.width / width, picture.height / height)
            size = np.array([width, height]) * part
            left, top = rng.uniform(0, np.array(picture.size) - size)
            box = (left, top, left + size[0], top + size[1])
            numbers = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR, box), np.float32) / 255
            yield {name: ((numbers - np.float32(mean)) / np.float32(deviation)).transpose(2, 0, 1)[None]}

    return feeds


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CASES: dict[str, tuple[Callable[..., Answers], Feeds]] = {
    "magika": (_best, _files),
    "ppocr_cls": (_best, _drawn("ppocr_cls")),
    "ppocr_rec": (_text, _drawn("ppocr_rec")),
    "ppocr_det": (_pixels, _parts("x", pypi.PAGES, 192, 320, *IMAGENET)),
    "nudenet": (_boxes, _parts("images", pypi.PHOTOGRAPHS, 320, 320, 0, 1)),
    "layout": (_regions, _parts("image", pypi.PAGES, 800, 608, *IMAGENET)),
    "tumor_vgg16": (_best, _drawn("tumor_vgg16")),
}


def _compare(name: str, count: int, max_error: float | None, folder: Path) -> bool:
    """Prints a line for each side; whether ours keeps as many answers as OpenVINO."""
    answers, feeds = CASES[name]
    original, ours = folder / "original.onnx", folder / "bf16.onnx"
    model = onnx.load(pypi.fetch(name))
    if next(o.version for o in model.opset_import if not o.domain) < CAST_BFLOAT16_OPSET:
        model = version_converter.convert_version(model, CAST_BFLOAT16_OPSET)
    onnx.save(model, original)
    keep = graphopt.limit_error(model, max_error).keep if max_error else ()
    onnx.save(graphopt.optimize(model, target="cpu", precision="bf16", keep_float=keep)[0], ours)
    rounded = sum(node.op_type.endswith("Bf16") for node in onnx.load(ours).graph.node)
    sides: dict[str, Side] = {"original": _runtime(original, 1), "ours bf16": _runtime(ours, 1)}
    if importlib.util.find_spec("openvino") is not None:
        sides["OpenVINO"] = _openvino(original, 1)
    found: dict[str, list[Answers]] = {side: [] for side in sides}
    for given in feeds(count):
        for side, run in sides.items():
            found[side].append(answers(*map(np.array, run(given))))
    kept = {}
    for side in [s for s in sides if s != "original"]:
        same, margins = _agreement(found["original"], found[side])
        kept[side] = same.mean()
        lost = f"; those that differ had margins up to {margins[~same].max():.1e}" if not same.all() else ""
        nodes = f"{rounded} nodes in bfloat16, " if side == "ours bf16" else ""
        print(f"{name}: {side}: {nodes}{same.sum():,} of {same.size:,} answers kept{lost}", flush=True)
    smallest = min(float(a.margins.min()) for a in found["original"])
    print(f"{name}: smallest margin of the original {smallest:.1e}", flush=True)
    return bool(kept["ours bf16"] >= kept.get("OpenVINO", 0.0))


def _agreement(want: Sequence[Answers], got: Sequence[Answers]) -> tuple[npt.NDArray[np.bool_], Array]:
    """Which choices are the same, and their margins; of what may be found, what one of both has found."""
    same, margins = [], []
    for w, g in zip(want, got, strict=True):
        asked = w.choices | g.choices if w.choices.dtype == bool else np.ones(w.choices.shape, bool)
        same.append((w.choices == g.choices)[asked])
        margins.append(w.margins[asked])
    return np.concatenate(same), np.concatenate(margins)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--max-error", type=float, help="as of optimize: what stays in float32")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = [arguments.only] if arguments.only else list(CASES)
        kept = [_compare(name, arguments.count, arguments.max_error, Path(folder)) for name in names]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
