"""Fresh exports with external data, optimized in their folder and moved alone to another one: are they equal?

Two steps, since torch and graphopt need not be in one environment; nothing is downloaded, weights are random:

    venv-torch/bin/python scripts/moved_exports.py export FOLDER     # torch, torchvision, onnxscript
    .venv/bin/python scripts/moved_exports.py check FOLDER           # graphopt with a runtime
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

VISION = (
    *("resnet18", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "efficientnet_b0"),
    *("mnasnet0_5", "regnet_y_400mf", "densenet121", "convnext_tiny"),
)


def modules() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Name -> a module with its inputs."""
    import torch
    import torchvision
    from torch import nn

    def vision(name: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
        return lambda: (getattr(torchvision.models, name)(weights=None), (torch.randn(1, 3, 64, 64),))

    image, rows = torch.randn(1, 8, 16, 16), torch.randn(2, 12, 64)
    tokens = torch.randint(0, 100, (2, 12))
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    norm_first = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True, activation="gelu")
    return {name: vision(name) for name in VISION} | {
        "perceptron": lambda: (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), (rows,)),
        "encoder": lambda: (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (rows,)),
        "encoder_norm_first": lambda: (nn.TransformerEncoder(norm_first, 2, enable_nested_tensor=False), (rows,)),
        "embedding": lambda: (nn.Sequential(nn.Embedding(100, 64), nn.LayerNorm(64), nn.Linear(64, 100)), (tokens,)),
        "gated": lambda: (nn.Sequential(nn.Linear(64, 256), nn.GLU(), nn.Linear(128, 64)), (rows,)),
        "group_norm": lambda: (
            nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(), nn.Conv2d(32, 8, 3)),
            (image,),
        ),
        "decoder": lambda: (
            nn.Sequential(nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 3, 1)),
            (image,),
        ),
        "prelu": lambda: (nn.Sequential(nn.Conv2d(8, 32, 3), nn.PReLU(32), nn.Conv2d(32, 8, 1)), (image,)),
        "separable": lambda: (
            nn.Sequential(nn.Conv2d(8, 8, 5, groups=8), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 32, 1)),
            (image,),
        ),
        "one_dimension": lambda: (
            nn.Sequential(nn.Conv1d(12, 32, 3), nn.BatchNorm1d(32), nn.LeakyReLU(0.1), nn.AvgPool1d(2)),
            (rows,),
        ),
    }


def export(folder: Path) -> None:
    import torch

    for name, make in modules().items():
        torch.manual_seed(0)
        module, inputs = make()
        place = folder / name / "x.onnx"
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.onnx.export(module.eval(), inputs, place, dynamo=True, external_data=True, verbose=False)
        print(f"{name}: {place.with_name('x.onnx.data').stat().st_size:,} bytes of weights", flush=True)


def check(folder: Path) -> int:
    """How many are not equal."""
    import graphopt

    bad = 0
    for place in sorted(folder.glob("*/x.onnx")):
        with tempfile.TemporaryDirectory() as temporary:
            fresh, alone = Path(temporary) / "fresh", Path(temporary) / "alone"
            shutil.copytree(place.parent, fresh)
            alone.mkdir()
            _, report = graphopt.optimize(fresh / "x.onnx", fresh / "fast.onnx", target="cpu")
            written = sorted(path.name for path in fresh.iterdir())
            for path in fresh.glob("fast.onnx*"):
                path.rename(alone / path.name)
            shutil.rmtree(fresh)
            found = graphopt.verify(place, alone / "fast.onnx", effort="quick")
            good = found.equal and written in (
                ["fast.onnx", "fast.onnx.data", "x.onnx", "x.onnx.data"],
                ["fast.onnx", "x.onnx"],
            )
            bad += not good
            rewrites = sum(remark.applied for remark in report.remarks)
            print(f"{place.parent.name}: {found.verdict.value}, {rewrites} rewrites, {', '.join(written)}", flush=True)
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("export", "check"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.step == "export":
        export(arguments.folder)
    elif bad := check(arguments.folder):
        raise SystemExit(f"{bad} are not equal, or left other files than OUT and OUT.data")


if __name__ == "__main__":
    main()
