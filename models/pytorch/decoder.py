"""models/decoder.py in PyTorch, with its weights as floats and a cache of fixed size."""

from __future__ import annotations

import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional

from models.decoder import Sizes


class Decoder(nn.Module):  # type: ignore[misc]
    """Computes the logits [B, S, vocabulary] of tokens [B, S] and writes their keys and values to the cache.

    Args:
        model: `models.decoder.decoder(layers, bits=4, sizes=sizes)`, also in float16.
        layers: see `model`.
        sizes: see `model`.
        cache: [layers, 2, B, key_heads, length, head], the keys and values of each layer, on the module's device.
        start: the number of tokens in the cache. Attention reads only these and the new tokens, so the number of tokens
            that it reads is a constant of a captured graph.
    """

    def __init__(self, model: onnx.ModelProto, layers: int, sizes: Sizes, cache: torch.Tensor, start: int) -> None:
        super().__init__()
        self.layers, self.sizes, self.start = layers, sizes, start
        arrays = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in model.graph.initializer}
        for name in (key for key in arrays if key in ("embed", "norm", "cos", "sin")):
            self.register_buffer(name, arrays[name].float().to(cache.device))
        for name in (key.removesuffix(".weight") for key in arrays if key.endswith(".weight")):
            parts = (arrays[f"{name}.{part}"] for part in ("weight", "scales", "zero_points"))
            weight = dequantized(*(part.to(cache.device) for part in parts))
            self.register_buffer(name.replace(".", "_"), weight)
        self.register_buffer("cache", cache)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, getattr(self, name))

    def attention(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """Returns the attention [B, S, heads * head] of layer `i` before its output projection."""
        S, begin, H = x.shape[1], self.start, self.sizes.head
        q, k, v = (self.linear(f"l{i}_{n}", x).unflatten(-1, (-1, H)).transpose(1, 2) for n in "qkv")
        q, k = self.rotated(q), self.rotated(k)
        keys, values = self.cache[i, :, :, :, : begin + S]
        keys[:, :, begin:] = k
        values[:, :, begin:] = v
        y = functional.scaled_dot_product_attention(q, keys, values, is_causal=S > 1, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = (table[self.start : self.start + x.shape[2]] for table in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        stream = functional.embedding(tokens, self.embed)
        for i in range(self.layers):
            x = self.normalized(stream)
            stream = stream + self.linear(f"l{i}_o", self.attention(i, x))
            x = self.normalized(stream)
            gated = functional.silu(self.linear(f"l{i}_gate", x)) * self.linear(f"l{i}_up", x)
            stream = stream + self.linear(f"l{i}_down", gated)
        return self.linear("logits", self.normalized(stream))

    def normalized(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.sizes.hidden,), self.norm, 1e-5)


def dequantized(packed: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor) -> torch.Tensor:
    """Returns float32 weights [N, K] of 4-bit integers [N, blocks, bytes], as MatMulNBits defines them."""

    def unpacked(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((x & 15, x >> 4), -1).flatten(-2)

    zero = unpacked(zero_points)[:, : scales.shape[1], None].float()
    return ((unpacked(packed).float() - zero) * scales[..., None].float()).flatten(1)
