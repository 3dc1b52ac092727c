"""The program behind scripts/demo: optimizes, verifies and times two models, and prints the results."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt
from models import ZOO, pypi
from scripts.timing import interleaved

REPEATS = 15


def graphopt_command(*arguments: object) -> None:
    command = [sys.executable, "-m", "graphopt", *map(str, arguments)]
    print("$ graphopt", *command[3:], flush=True)
    subprocess.run(command, check=True)


def milliseconds(before: Path, after: Path, feeds: dict[str, np.ndarray]) -> tuple[float, float]:
    """Returns medians of interleaved runs with ONNX Runtime's full optimization, one thread each."""
    plain = ort.SessionOptions()
    plain.intra_op_num_threads = 1
    original = ort.InferenceSession(str(before), plain, providers=["CPUExecutionProvider"])
    optimized = graphopt.session(after, ["CPUExecutionProvider"], intra_op_num_threads=1)
    works = {"original": partial(original.run, None, feeds), "optimized": partial(optimized.run, None, feeds)}
    times = interleaved(works, rounds=REPEATS)
    return 1e3 * times["original"].median, 1e3 * times["optimized"].median


def show(path: Path, feeds: dict[str, np.ndarray]) -> str:
    out = path.with_suffix(".opt.onnx")
    graphopt_command("optimize", path, out)
    graphopt_command("verify", path, out)
    print(f"== timing {path.stem}: {REPEATS} runs of each file", flush=True)
    before, after = milliseconds(path, out, feeds)
    return f"{path.stem}: {before:.1f} ms -> {after:.1f} ms, {before / after:.2f}x (one thread, median of {REPEATS})"


def main() -> None:
    rng = np.random.default_rng(0)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        print("== ResNet-18 from the zoo", flush=True)
        resnet = Path(folder) / "resnet18.onnx"
        onnx.save(ZOO["resnet18"](), resnet)
        image = rng.standard_normal((1, 3, 224, 224)).astype(np.float32)
        lines.append(show(resnet, {"input": image}))
        print("== trained YOLOv8: fetching the PyPI package nudenet", flush=True)
        try:
            trained = pypi.fetch("nudenet")
        except OSError as error:
            print(f"SKIPPED the trained model: {error}", flush=True)
        else:
            copy = Path(folder) / "nudenet_320n.onnx"
            copy.write_bytes(trained.read_bytes())
            lines.append(show(copy, {"images": rng.random((1, 3, 320, 320)).astype(np.float32)}))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
