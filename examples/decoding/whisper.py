"""Exports a small Whisper decoder with random weights, and generates tokens with it on the CPU and on the GPU.

python whisper.py

Needs PyTorch, torchvision, timm and transformers. An exported cache grows with each token. It is passed on in the
memory of the GPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # models/

import graphopt
from graphopt.runtime.discovery import CPU, DEVICE_PROVIDER, memory_of
from models.pytorch.export import export
from models.pytorch.published import MODELS


def generate(session: Any, feeds: dict[str, Any], count: int) -> list[list[int]]:
    """Returns `count` new tokens for each row by greedy search.

    Args:
        session: a decoder. Output 0 is the logits. The other outputs are the cache with the new token, in the order
            of the inputs `past_*`.
        feeds: the inputs of the first run: a token for each row, the cache of earlier tokens, and the encoder's cache.
        count: number of tokens.
    """
    memory = ("cpu", 0) if session.get_providers() == [CPU] else memory_of(session)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array, *memory) for name, array in feeds.items()}
    tokens = []
    for _ in range(count):
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        logits, *cache = (output.name for output in session.get_outputs())
        binding.bind_output(logits)
        for past, present in zip((name for name in feeds if name.startswith("past_")), cache):
            batch, heads, length, size = values[past].shape()
            values[past] = ort.OrtValue.ortvalue_from_shape_and_type(
                (batch, heads, length + 1, size), np.float32, *memory
            )
            binding.bind_ortvalue_output(present, values[past])
        session.run_with_iobinding(binding)
        ids = binding.get_outputs()[0].numpy()[:, -1:].argmax(-1)
        values["decoder_input_ids"] = ort.OrtValue.ortvalue_from_numpy(ids, *memory)
        tokens.append(ids[:, 0].tolist())
    return [list(row) for row in zip(*tokens)]


def exported(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Exports the decoder; returns the file and inputs for it."""
    file = folder / "whisper.onnx"
    export(MODELS["whisper_decoder_with_past"], "dynamo20", file)
    arrays = np.load(file.with_suffix(".npz"))
    return file, {name[2:]: arrays[name] for name in arrays if name.startswith("0:")}


if __name__ == "__main__":
    file, feeds = exported(Path(tempfile.mkdtemp()))
    expected = generate(graphopt.session(file, [CPU]), feeds, 24)
    assert generate(graphopt.session(file, [DEVICE_PROVIDER], require_device=True), feeds, 24) == expected
    print(expected)
