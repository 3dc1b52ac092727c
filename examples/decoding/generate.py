"""Generates tokens with a model of onnxruntime-genai's builder, with its cache in the memory of the GPU.

python generate.py FOLDER 1 15043 29871

The folder contains model.onnx and genai_config.json. The numbers are the tokens of the prompt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import graphopt
from graphopt.runtime.discovery import DEVICE_PROVIDER, memory_of


def generate(session: Any, prompt: list[list[int]], count: int, head_size: int, length: int = 2048) -> list[list[int]]:
    """Returns `count` new tokens for each row of the prompt by greedy search.

    The cache has room for `length` tokens. It is bound as past and as present, so a run writes only its new tokens. All
    inputs have fixed shapes, also the attention mask. Therefore every token after the second replays a captured graph.

    Args:
        session: a decoder with GroupQueryAttention.
        prompt: rows of equal length.
        count: number of tokens.
        head_size: elements of a head; a model may accept caches of several types, and then has no fixed size.
        length: capacity of the cache; at least the length of the prompt plus `count`.
    """
    memory, binding = memory_of(session), session.io_binding()
    ids, mask = np.array(prompt), np.zeros((len(prompt), length), np.int64)
    for value in session.get_inputs():
        if value.name.startswith("past_key_values"):
            dtype = np.float16 if value.type == "tensor(float16)" else np.float32
            zeros = np.zeros((len(prompt), value.shape[1], length, head_size), dtype)
            cache = ort.OrtValue.ortvalue_from_numpy(zeros, *memory)
            binding.bind_ortvalue_input(value.name, cache)
            binding.bind_ortvalue_output(value.name.replace("past_key_values", "present"), cache)
    tokens, mask_on_device = [], ort.OrtValue.ortvalue_from_numpy(mask, *memory)
    for step in range(count):
        mask[:, : len(prompt[0]) + step] = 1
        mask_on_device.update_inplace(mask)
        if step < 2:  # the prompt, and then buffers for one token
            ids_on_device = ort.OrtValue.ortvalue_from_numpy(ids, *memory)
            binding.bind_ortvalue_input("input_ids", ids_on_device)
            binding.bind_ortvalue_input("attention_mask", mask_on_device)
            binding.bind_output("logits")
        ids_on_device.update_inplace(ids)
        session.run_with_iobinding(binding)
        logits = binding.get_outputs()[-1].numpy()
        ids = logits[:, -1:].argmax(-1)
        tokens.append(ids[:, 0].tolist())
    return [list(row) for row in zip(*tokens)]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    head_size = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
    decoder = graphopt.session(folder / "model.onnx", [DEVICE_PROVIDER], require_device=True)
    print(*generate(decoder, [[int(token) for token in sys.argv[2:]]], 32, head_size)[0])
