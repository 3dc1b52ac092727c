"""Generates tokens with a decoder, with its cache in the memory of the GPU.

python generate.py model.onnx 1 15043 29871

`model.onnx` has the inputs and outputs that onnxruntime-genai's builder writes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime as ort

import graphopt
from graphopt.runtime.discovery import DEVICE_PROVIDER, memory_of


def generate(session: Any, prompt: list[list[int]], count: int, length: int = 2048) -> list[list[int]]:
    """Returns `count` new tokens for each row of the prompt, always the most probable one.

    The cache has room for `length` tokens. It is bound as past and as present, so a run writes only its new tokens. All
    inputs have fixed shapes, also the attention mask. Therefore every token after the second replays a captured graph.

    Args:
        session: a decoder with GroupQueryAttention.
        prompt: rows of equal length.
        count: number of tokens.
        length: capacity of the cache; at least the length of the prompt plus `count`.
    """
    memory, binding = memory_of(session), session.io_binding()
    ids, mask = np.array(prompt), np.zeros((len(prompt), length), np.int64)
    for value in session.get_inputs():
        if value.name.startswith("past_key_values"):
            _, heads, _, size = value.shape
            dtype = np.float16 if value.type == "tensor(float16)" else np.float32
            cache = ort.OrtValue.ortvalue_from_numpy(np.zeros((len(prompt), heads, length, size), dtype), *memory)
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
    decoder = graphopt.session(sys.argv[1], [DEVICE_PROVIDER], require_device=True)
    print(*generate(decoder, [[int(token) for token in sys.argv[2:]]], 32)[0])
