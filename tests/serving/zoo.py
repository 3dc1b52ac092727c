"""The models that the engines serve in tests, and requests to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

import graphopt
from graphopt.serving.configs import ENGINES
from graphopt.serving.write import write
from models import ZOO
from tests.hip.case import signed
from tests.serving.engine import Feeds, Question


def save(name: str, path: Path, *, scale: float = 1.0) -> Path:
    """Saves a small optimized model with a dynamic batch axis; another `scale` gives different weights."""
    model = ZOO[name](small=True, dynamic=True)
    for tensor in model.graph.initializer:
        if scale != 1.0 and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(scale) * array, tensor.name))
    optimized, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    assert any(node.domain == "com.graphopt" for node in optimized.graph.node)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(optimized, path)
    return path


def serve(models: dict[tuple[str, int], Path], engine: str, out: Path, *, instances: int = 2) -> Path:
    """Writes a serving folder with several models."""
    assert engine in ENGINES
    for (name, version), path in models.items():
        write(path, out, engine, name=name, version=version, instances=instances, threads=1)
    return out


def feeds_of(name: str, rows: int, seed: int) -> Feeds:
    rng = np.random.default_rng(seed)
    if name == "resnet18":
        return {"input": signed(rng, rows, 3, 32, 32)}
    length = (5, 8, 13)[seed % 3]
    ids = rng.integers(0, 50, (rows, length))
    mask = (np.arange(length) < rng.integers(1, length + 1, (rows, 1))).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def run(path: Path, feeds: Feeds) -> Feeds:
    """Returns the outputs of `session.run`."""
    session: Any = graphopt.session(path, ["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def questions(
    kind: str, name: str, paths: list[Path], count: int = 6, version: str = "", wide: int = 3
) -> list[Question]:
    """Returns requests of 1 to `wide` rows to a zoo model served as `name`; any of `paths` may give the answer."""
    sessions = [graphopt.session(path, ["CPUExecutionProvider"]) for path in paths]
    found = []
    for seed in range(count):
        feeds = feeds_of(kind, 1 + seed % wide, seed)
        answers = [dict(zip([o.name for o in s.get_outputs()], s.run(None, feeds), strict=True)) for s in sessions]
        found.append(Question(name, feeds, answers, version))
    return found
