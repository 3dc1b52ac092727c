"""The export matrix of attention: what both torch exporters write, and what the attention fusion makes of it.

Every cell is a model x attention implementation x exporter x opset x static or dynamic axes. Models have random weights
and a few layers; nothing is downloaded. A cell that the exporter cannot write is printed with its error. Exports are
kept in the cache folder, so that a second run only optimizes and compares.

Environment (the exports need it, a run over a full cache needs only graphopt's own):

    python -m venv venv-torch
    venv-torch/bin/pip install torch==2.13.0
    venv-torch/bin/pip install transformers==5.23.0 onnxscript==0.7.2 onnxruntime==1.31.1 -e .

Usage:

    venv-torch/bin/python scripts/export_attention.py CACHE [--only bert,vit] [--torchscript 14,17] [--dynamo 18,23]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import inspect
import io
import logging
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# Sizes of the example inputs: as exported, and another one for dynamic axes (batch, length).
EXPORTED = (2, 7)
OTHER = (3, 9)


@dataclass
class Case:
    """A module with its inputs.

    Attributes:
        module: takes its inputs by position, in the order of `inputs`.
        inputs: name -> tensor.
        axes: name -> {axis: symbol}; axes of one symbol have one size.

    """

    module: Any
    inputs: dict[str, Any]
    axes: dict[str, dict[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    model: str
    attention: str
    exporter: str
    opset: int
    dynamic: bool

    @property
    def name(self) -> str:
        axes = "dynamic" if self.dynamic else "static"
        return f"{self.model}-{self.attention}-{self.exporter}{self.opset}-{axes}"


Builder = Callable[[str, int, int], Case]
BUILDERS: dict[str, Builder] = {}
# Modules of our own have one implementation of attention each.
ATTENTIONS: dict[str, tuple[str, ...]] = {}


def model(name: str, *attentions: str) -> Callable[[Builder], Builder]:
    """Registers a builder: builder(attention implementation, batch, length) -> Case."""

    def register(builder: Builder) -> Builder:
        BUILDERS[name] = builder
        ATTENTIONS[name] = attentions or ("eager", "sdpa")
        return builder

    return register


def wrap(network: Any, names: Sequence[str], output: str = "last_hidden_state", **fixed: Any) -> Any:
    """A module that takes its inputs by position and returns one output of a transformers model."""
    import torch

    class Wrapper(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *inputs: Any) -> Any:
            return getattr(self.network(**dict(zip(names, inputs)), **fixed), output)

    return Wrapper().eval()


def tokens(batch: int, length: int, vocabulary: int = 50) -> Any:
    import torch

    return torch.randint(3, vocabulary, (batch, length))


def padding(batch: int, length: int) -> Any:
    """Right padding of 0, 1, ... positions."""
    import torch

    mask = torch.ones(batch, length, dtype=torch.int64)
    for i in range(batch):
        mask[i, length - i :] = 0
    return mask


# -- transformers ------------------------------------------------------------------------------------------------------

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {"vocab_size": 50, "max_position_embeddings": 64, **SMALL}
IMAGE = {"image_size": 16, "patch_size": 8, **SMALL}
GPT2 = {
    "vocab_size": 50,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0}
# The sizes of models with an encoder and a decoder.
TWO = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
TEXT_AXES = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}


def published(name: str, attention: Any, config: dict[str, Any], **arguments: Any) -> Any:
    """NAMEModel of transformers with a NAMEConfig."""
    import transformers

    made = getattr(transformers, f"{name}Config")(attn_implementation=attention, **config)
    return getattr(transformers, f"{name}Model")(made, **arguments)


def text_model(
    name: str, published_name: str, config: dict[str, Any], *attentions: str, pooling: bool | None = None,
    half: bool = False, **fixed: Any
) -> None:  # fmt: skip
    """Registers a model of padded tokens; `pooling`: the argument of models that have one."""

    @model(name, *attentions)
    def build(attention: str, batch: int, length: int) -> Case:
        network = published(published_name, attention, config, **_pooling(pooling))
        return text_case(network.half() if half else network, batch, length, **fixed)


def image_model(
    name: str, published_name: str, config: dict[str, Any], *attentions: str, pooling: bool | None = None
) -> None:
    """Registers a model of square images of the size in the configuration."""

    @model(name, *attentions)
    def build(attention: str, batch: int, length: int) -> Case:
        network = published(published_name, attention, config, **_pooling(pooling))
        return image_case(network, batch, config["image_size"])


def _pooling(pooling: bool | None) -> dict[str, bool]:
    return {} if pooling is None else {"add_pooling_layer": pooling}


def text_case(network: Any, batch: int, length: int, **fixed: Any) -> Case:
    names = ("input_ids", "attention_mask")
    return Case(
        wrap(network, names, **fixed),
        {"input_ids": tokens(batch, length), "attention_mask": padding(batch, length)},
        TEXT_AXES,
    )


def image_case(network: Any, batch: int, size: int) -> Case:
    import torch

    return Case(
        wrap(network, ("pixel_values",)),
        {"pixel_values": torch.randn(batch, 3, size, size)},
        {"pixel_values": {0: "batch"}},
    )


text_model("bert", "Bert", TEXT, pooling=False)
# Of weights so small as the configuration draws them scores are about 0, and attention is a mean whatever its scale.
text_model("bert_wide", "Bert", {**TEXT, "num_hidden_layers": 4, "initializer_range": 0.25}, pooling=False)
text_model("roberta", "Roberta", TEXT, pooling=False)
text_model("distilbert", "DistilBert", {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48})
text_model(
    "modernbert",
    "ModernBert",
    {**TEXT, "local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0, "reference_compile": False},
)
text_model("albert", "Albert", {"vocab_size": 50, "embedding_size": 16, **SMALL}, pooling=False)
text_model("deberta", "DebertaV2", {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "eager")
image_model("vit", "ViT", IMAGE, pooling=False)
image_model("deit", "DeiT", IMAGE, pooling=False)
text_model("clip_text", "CLIPText", TEXT)
image_model("clip_vision", "CLIPVision", IMAGE)
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "window_size": 4}
image_model("swin", "Swin", {**SWIN, "depths": [2, 2], "num_heads": [2, 4]}, pooling=False)
image_model("swinv2", "Swinv2", {**SWIN, "depths": [2], "num_heads": [2]}, "eager", pooling=False)
image_model(
    "sam",
    "SamVision",
    {
        "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
        "patch_size": 4, "window_size": 4, "global_attn_indexes": [1], "mlp_dim": 48,
    },
)  # fmt: skip
text_model("gpt2", "GPT2", GPT2, use_cache=False)
text_model("llama", "Llama", LLAMA, use_cache=False)
text_model("llama_fp16", "Llama", LLAMA, half=True, use_cache=False)
text_model("qwen2", "Qwen2", LLAMA, use_cache=False)
text_model("qwen3", "Qwen3", {"head_dim": 8, **LLAMA}, use_cache=False)
text_model("mistral", "Mistral", {"sliding_window": 4, **LLAMA}, use_cache=False)
# Soft-capped scores (eager).
text_model(
    "gemma2",
    "Gemma2",
    {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4, **LLAMA},
    "eager",
    use_cache=False,
)


@model("gpt2_past")
def gpt2_past(attention: str, batch: int, length: int) -> Case:
    return decoder_with_past(published("GPT2", attention, GPT2), 2, 4, 8, batch, length)


@model("llama_past")
def llama_past(attention: str, batch: int, length: int) -> Case:
    return decoder_with_past(published("Llama", attention, LLAMA), 2, 2, 8, batch, length)


def decoder_with_past(network: Any, layers: int, heads: int, size: int, batch: int, length: int) -> Case:
    """One step of generation: one new token, `length` cached ones, caches in and out."""
    import torch
    from transformers import DynamicCache

    class Wrapper(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, input_ids: Any, attention_mask: Any, *past: Any) -> Any:
            cache = DynamicCache(ddp_cache_data=[(past[2 * i], past[2 * i + 1]) for i in range(layers)])
            result = self.network(
                input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True
            )
            present = [t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)]
            return (result.last_hidden_state, *present)

    inputs = {"input_ids": tokens(batch, 1), "attention_mask": torch.ones(batch, length + 1, dtype=torch.int64)}
    axes = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "total"}}
    for i in range(layers):
        for kind in ("key", "value"):
            inputs[f"past_{i}_{kind}"] = torch.randn(batch, heads, length, size)
            axes[f"past_{i}_{kind}"] = {0: "batch", 2: "past"}
    return Case(Wrapper().eval(), inputs, axes)


@model("t5")
def t5(attention: str, batch: int, length: int) -> Case:
    config = {
        "vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    return translation_case(published("T5", attention, config), batch, length)


@model("bart")
def bart(attention: str, batch: int, length: int) -> Case:
    config = {"vocab_size": 50, "max_position_embeddings": 64, **TWO}
    return translation_case(published("Bart", attention, config), batch, length)


def translation_case(network: Any, batch: int, length: int) -> Case:
    return Case(
        wrap(network, ("input_ids", "attention_mask", "decoder_input_ids"), use_cache=False),
        {
            "input_ids": tokens(batch, length),
            "attention_mask": padding(batch, length),
            "decoder_input_ids": tokens(batch, length - 2),
        },
        {**TEXT_AXES, "decoder_input_ids": {0: "batch", 1: "target"}},
    )


@model("whisper")
def whisper(attention: str, batch: int, length: int) -> Case:
    import torch

    config = {
        "vocab_size": 50, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32, **TWO,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    }  # fmt: skip
    names = ("input_features", "decoder_input_ids", "decoder_attention_mask")
    return Case(
        wrap(published("Whisper", attention, config), names, use_cache=False),
        {
            "input_features": torch.randn(batch, 8, 40),
            "decoder_input_ids": tokens(batch, length),
            "decoder_attention_mask": padding(batch, length),
        },
        {
            "input_features": {0: "batch"},
            "decoder_input_ids": {0: "batch", 1: "length"},
            "decoder_attention_mask": {0: "batch", 1: "length"},
        },
    )


@model("detr")
def detr(attention: str, batch: int, length: int) -> Case:
    from transformers import ResNetConfig

    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    config = {
        "use_timm_backbone": False, "backbone_config": backbone, "backbone": None, "use_pretrained_backbone": False,
        **TWO, "num_queries": 5,
    }  # fmt: skip
    return image_case(published("Detr", {"": attention, "backbone_config": "eager"}, config), batch, 32)


# -- modules of our own ------------------------------------------------------------------------------------------------


def function_case(function: Callable[..., Any], inputs: dict[str, Any], axes: dict[str, dict[int, str]]) -> Case:
    import torch

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *inputs: Any) -> Any:
            return function(*inputs)

    return Case(Module().eval(), inputs, axes)


QKV_AXES = {"q": {0: "batch", 2: "rows"}, "k": {0: "batch", 2: "keys"}, "v": {0: "batch", 2: "keys"}}


def qkv(batch: int, rows: int, keys: int, heads: int = 4, kv_heads: int = 4) -> dict[str, Any]:
    import torch

    return {
        "q": torch.randn(batch, heads, rows, 8),
        "k": torch.randn(batch, kv_heads, keys, 8),
        "v": torch.randn(batch, kv_heads, keys, 6),
    }


@model("sdpa_plain", "sdpa")
def sdpa_plain(attention: str, batch: int, length: int) -> Case:
    import torch

    f = torch.nn.functional.scaled_dot_product_attention
    return function_case(f, qkv(batch, length, length + 2), QKV_AXES)


@model("sdpa_bool", "sdpa")
def sdpa_bool(attention: str, batch: int, length: int) -> Case:
    import torch

    f = torch.nn.functional.scaled_dot_product_attention
    inputs = qkv(batch, length, length + 2)
    inputs["mask"] = torch.rand(batch, 1, length, length + 2) > 0.4
    axes = {**QKV_AXES, "mask": {0: "batch", 2: "rows", 3: "keys"}}
    return function_case(lambda q, k, v, m: f(q, k, v, attn_mask=m), inputs, axes)


@model("sdpa_float", "sdpa")
def sdpa_float(attention: str, batch: int, length: int) -> Case:
    import torch

    f = torch.nn.functional.scaled_dot_product_attention
    inputs = qkv(batch, length, length + 2)
    inputs["mask"] = torch.randn(4, length, length + 2)
    axes = {**QKV_AXES, "mask": {1: "rows", 2: "keys"}}
    return function_case(lambda q, k, v, m: f(q, k, v, attn_mask=m, scale=0.3), inputs, axes)


@model("sdpa_causal", "sdpa")
def sdpa_causal(attention: str, batch: int, length: int) -> Case:
    """Packed Q, K and V, causal."""
    import torch

    def f(x: Any) -> Any:
        b, n, _ = x.shape
        q, k, v = x.view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return o.transpose(1, 2).reshape(b, n, 32)

    return function_case(f, {"x": torch.randn(batch, length, 96)}, {"x": {0: "batch", 1: "length"}})


@model("sdpa_gqa", "sdpa")
def sdpa_gqa(attention: str, batch: int, length: int) -> Case:
    import torch

    f = torch.nn.functional.scaled_dot_product_attention
    return function_case(
        lambda q, k, v: f(q, k, v, enable_gqa=True), qkv(batch, length, length + 2, kv_heads=2), QKV_AXES
    )


@model("sdpa_dropout", "sdpa")
def sdpa_dropout(attention: str, batch: int, length: int) -> Case:
    import torch

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            scores = torch.nn.functional.dropout(
                torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1), 0.1, self.training
            )
            return scores @ v

    return Case(Module().eval(), qkv(batch, length, length), {n: {0: "batch", 2: "length"} for n in "qkv"})


@model("single_head", "eager")
def single_head(attention: str, batch: int, length: int) -> Case:
    import torch

    def f(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 8**0.5, dim=-1) @ v

    inputs = {n: t[:, 0] for n, t in qkv(batch, length, length + 2).items()}
    return function_case(
        f, inputs, {"q": {0: "batch", 1: "rows"}, "k": {0: "batch", 1: "keys"}, "v": {0: "batch", 1: "keys"}}
    )


@model("softcap", "eager")
def softcap(attention: str, batch: int, length: int) -> Case:
    import torch

    def f(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(20.0 * torch.tanh(q @ k.transpose(-1, -2) * 8**-0.5 / 20.0), dim=-1) @ v

    return function_case(f, qkv(batch, length, length + 2), QKV_AXES)


@model("einsum", "eager")
def einsum(attention: str, batch: int, length: int) -> Case:
    import torch

    def f(q: Any, k: Any, v: Any) -> Any:
        p = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) * 8**-0.5, dim=-1)
        return torch.einsum("bhij,bjhd->bihd", p, v)

    inputs = {n: t.transpose(1, 2).contiguous() for n, t in qkv(batch, length, length + 2).items()}
    return function_case(
        f, inputs, {"q": {0: "batch", 1: "rows"}, "k": {0: "batch", 1: "keys"}, "v": {0: "batch", 1: "keys"}}
    )


@model("masked_fill", "eager")
def masked_fill(attention: str, batch: int, length: int) -> Case:
    """Boolean mask of keys written with masked_fill."""
    import torch

    def f(q: Any, k: Any, v: Any, hidden: Any) -> Any:
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(hidden[:, None, None, :], float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    inputs = qkv(batch, length, length + 2)
    hidden = torch.rand(batch, length + 2) > 0.6
    hidden[:, 0] = False
    inputs["hidden"] = hidden
    return function_case(f, inputs, {**QKV_AXES, "hidden": {0: "batch", 1: "keys"}})


@model("sd_cross", "einsum", "bmm", "sdpa")
def sd_cross(attention: str, batch: int, length: int) -> Case:
    """Stable Diffusion's attention as its first code base wrote it: heads folded into the batch."""
    import torch

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.to_q = torch.nn.Linear(16, 24, bias=False)
            self.to_k = torch.nn.Linear(12, 24, bias=False)
            self.to_v = torch.nn.Linear(12, 24, bias=False)
            self.to_out = torch.nn.Linear(24, 16)

        def forward(self, x: Any, context: Any) -> Any:
            heads = 3
            b, n, _ = x.shape
            q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
            if attention == "sdpa":
                q, k, v = (t.view(b, -1, heads, 8).transpose(1, 2) for t in (q, k, v))
                o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
                return self.to_out(o.transpose(1, 2).reshape(b, n, 24))
            q, k, v = (t.reshape(b, -1, heads, 8).permute(0, 2, 1, 3).reshape(b * heads, -1, 8) for t in (q, k, v))
            if attention == "bmm":
                p = torch.bmm(q, k.transpose(1, 2)).mul(8**-0.5).softmax(dim=-1)
                o = torch.bmm(p, v)
            else:
                p = (torch.einsum("bid,bjd->bij", q, k) * 8**-0.5).softmax(dim=-1)
                o = torch.einsum("bij,bjd->bid", p, v)
            o = o.reshape(b, heads, -1, 8).permute(0, 2, 1, 3).reshape(b, n, 24)
            return self.to_out(o)

    inputs = {"x": torch.randn(batch, length, 16), "context": torch.randn(batch, 5, 12)}
    return Case(Module().eval(), inputs, {"x": {0: "batch", 1: "length"}, "context": {0: "batch"}})


@model("sd_vae", "eager")
def sd_vae(attention: str, batch: int, length: int) -> Case:
    """The single-head attention of the first Stable Diffusion autoencoder: V^T P^T of flattened images."""
    import torch

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Conv2d(8, 8, 1) for _ in range(3))

        def forward(self, x: Any) -> Any:
            q, k, v = self.q(x), self.k(x), self.v(x)
            b, c, h, w = q.shape
            q = q.reshape(b, c, h * w).permute(0, 2, 1)
            k = k.reshape(b, c, h * w)
            p = torch.softmax(torch.bmm(q, k) * c**-0.5, dim=2)
            v = v.reshape(b, c, h * w)
            return torch.bmm(v, p.permute(0, 2, 1)).reshape(b, c, h, w)

    axes = {"x": {0: "batch", 2: "height", 3: "width"}}
    return Case(Module().eval(), {"x": torch.randn(batch, 8, length, length - 1)}, axes)


@model("lc0", "eager")
def lc0(attention: str, batch: int, length: int) -> Case:
    """Attention over the 64 squares of a chess board with a bias that a small network generates from the position."""
    import torch

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk, self.wv, self.wo = (torch.nn.Linear(32, 32) for _ in range(4))
            self.compress = torch.nn.Linear(32, 4, bias=False)
            self.dense = torch.nn.Linear(256, 4 * 16)
            self.generate = torch.nn.Linear(16, 64 * 64, bias=False)

        def forward(self, x: Any) -> Any:
            b = x.shape[0]
            q, k, v = (w(x).reshape(-1, 64, 4, 8).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
            scores = q @ k.transpose(-1, -2) / math.sqrt(8)
            latent = torch.nn.functional.silu(self.dense(self.compress(x).reshape(b, 256)))
            bias = self.generate(latent.reshape(b, 4, 16)).reshape(-1, 4, 64, 64)
            o = torch.softmax(scores + bias, dim=-1) @ v
            return self.wo(o.transpose(1, 2).reshape(-1, 64, 32))

    return Case(Module().eval(), {"x": torch.randn(batch, 64, 32)}, {"x": {0: "batch"}})


@model("mha", "plain", "weights", "mask")
def mha(attention: str, batch: int, length: int) -> Case:
    """nn.MultiheadAttention; "weights" averages the probabilities into a second output, so it must be refused."""
    import torch

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=attention != "plain")

        def forward(self, x: Any, y: Any, *mask: Any) -> Any:
            options = {"key_padding_mask": mask[0]} if mask else {}
            result = self.attention(x, y, y, need_weights=attention == "weights", **options)
            return result if attention == "weights" else result[0]

    inputs = {"x": torch.randn(batch, length, 32), "y": torch.randn(batch, length, 32)}
    axes = {"x": {0: "batch", 1: "length"}, "y": {0: "batch", 1: "length"}}
    if attention == "plain":
        inputs = {n: t.transpose(0, 1).contiguous() for n, t in inputs.items()}
        axes = {n: {0: "length", 1: "batch"} for n in inputs}
    if attention == "mask":
        inputs["mask"] = padding(batch, length) == 0
        axes["mask"] = {0: "batch", 1: "length"}
    return Case(Module().eval(), inputs, axes)


# -- exporting ---------------------------------------------------------------------------------------------------------


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for name in options.only or BUILDERS:
        for attention in ATTENTIONS[name]:
            for dynamic in (False, True):
                for exporter, opsets in (("torchscript", options.torchscript), ("dynamo", options.dynamo)):
                    for opset in opsets:
                        yield Cell(name, attention, exporter, opset, dynamic)


def export(cache: Path, cell: Cell, programs: dict[tuple[str, str, bool], Any]) -> None:
    """Writes the cell's model and feeds, or the exporter's error."""
    import torch

    file = cache / f"{cell.name}.onnx"
    error = cache / f"{cell.name}.error"
    try:
        torch.manual_seed(0)
        case = BUILDERS[cell.model](cell.attention, *EXPORTED)
        names = list(case.inputs)
        feeds = {f"0:{n}": t.numpy() for n, t in case.inputs.items()}
        if cell.dynamic:
            other = BUILDERS[cell.model](cell.attention, *OTHER).inputs
            feeds |= {f"1:{n}": t.numpy() for n, t in other.items()}
        np.savez(cache / f"{cell.name}.npz", **feeds)  # before the model, whose file says that the cell is done
        noise = io.StringIO()
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise), torch.no_grad():
            if cell.exporter == "torchscript":
                torch.onnx.export(
                    case.module,
                    tuple(case.inputs.values()),
                    str(file),
                    input_names=names,
                    opset_version=cell.opset,
                    dynamic_axes=case.axes if cell.dynamic else None,
                    dynamo=False,
                )
            else:
                key = (cell.model, cell.attention, cell.dynamic)
                if key not in programs:
                    programs.clear()
                    programs[key] = torch.export.export(
                        case.module, tuple(case.inputs.values()), strict=False, dynamic_shapes=_dynamic(case, cell)
                    )
                torch.onnx.export(
                    programs[key],
                    (),
                    str(file),
                    input_names=names,
                    opset_version=cell.opset,
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
    except Exception as exception:  # whatever an exporter raises is the cell's result
        file.unlink(missing_ok=True)
        lines = [line for line in str(exception).splitlines() if line.strip()] or ["?"]
        error.write_text(f"{type(exception).__name__}: {lines[0][:160]}\n\n{traceback.format_exc()}")


def _dynamic(case: Case, cell: Cell) -> Any:
    """Dynamic axes as torch.export wants them: an entry for each parameter of forward, a tuple for its *inputs."""
    import torch

    if not cell.dynamic:
        return None
    per_input = [dict.fromkeys(case.axes.get(n, {}), torch.export.Dim.DYNAMIC) or None for n in case.inputs]
    result: list[Any] = []
    for parameter in inspect.signature(case.module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            if rest := tuple(per_input[len(result) :]):
                result.append(rest)
        else:
            result.append(per_input[len(result)])
    return tuple(result)


# -- optimizing and comparing ------------------------------------------------------------------------------------------

# Relative to the root mean square: of the model's outputs against the original, of each node against float64.
MODEL_LIMIT = {"float32": 2e-5, "float16": 2e-2}
NODE_LIMIT = {"float32": 1e-5, "float16": 2e-3}


def expected_refusal(cell: Cell) -> tuple[str, ...]:
    """The codes that every core of a cell must be refused with; none where every core must be fused."""
    if (cell.model, cell.attention) == ("mha", "weights"):
        return ("OTHER_USES",)  # the probabilities are an output
    if cell.model == "deberta" and cell.exporter == "torchscript" and cell.dynamic:
        return ("UNKNOWN_SHAPE",)  # the lengths of its relative positions are computed; nothing relates them to S
    return ()


@dataclass
class Outcome:
    cores: int = 0
    fused: int = 0
    refused: list[str] = field(default_factory=list)
    nodes: tuple[int, int] = (0, 0)
    # Against the original, with our library and with the bodies alone; of the attention nodes against float64.
    error: float = 0.0
    node_error: float = 0.0
    # Why the original could not be run with some of the inputs: the exporter's own fault, or the runtime's.
    original: str = ""


def evaluate(file: Path) -> Outcome:
    """Optimizes one export with the whole pipeline and compares it with the original on ONNX Runtime."""
    import onnx

    import graphopt

    original = onnx.load(file)
    optimized, report = graphopt.optimize(original, target="cpu")
    outcome = Outcome()
    outcome.cores = sum(n.op_type in ("Softmax", "Attention") for n in original.graph.node)
    attentions = [n for n in optimized.graph.node if n.op_type.startswith("FusedAttention")]
    outcome.fused = len(attentions)
    outcome.nodes = (len(original.graph.node), len(optimized.graph.node))
    for remark in report.remarks:
        if remark.pass_name == "fuse_attention" and not remark.applied:
            outcome.refused.append(f"{remark.code}: {remark.detail}")
    feeds = np.load(file.with_suffix(".npz"))
    try:
        before = _session(original)
    except Exception as exception:
        outcome.original = f"the original does not load: {_first_line(exception)}"
        return outcome
    bodies = _session(optimized)
    outputs = [o.name for o in optimized.graph.output]
    values = dict.fromkeys(name for n in attentions for name in (*n.input, *n.output))
    known = {i.name for i in optimized.graph.input} | {i.name for i in optimized.graph.initializer}
    inner = [v for v in values if v not in known and v not in outputs]
    observed = onnx.ModelProto()
    observed.CopyFrom(optimized)
    observed.graph.output.extend(onnx.ValueInfoProto(name=v) for v in inner)
    library = _session(observed, library=True)
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in optimized.graph.initializer if i.name in values}
    wanted = {i.name for i in before.get_inputs()}
    for prefix in ("0:", "1:"):
        feed = {k[2:]: feeds[k] for k in feeds if k.startswith(prefix) and k[2:] in wanted}
        if not feed:
            continue
        try:
            expected = before.run(None, feed)
        except Exception as exception:
            size = "the exported size" if prefix == "0:" else "another size"
            outcome.original = f"the original fails at {size}: {_first_line(exception)}"
            continue
        results = library.run(None, feed)
        outcome.error = max(
            outcome.error, difference(expected, bodies.run(None, feed)), difference(expected, results[: len(outputs)])
        )
        seen = {**weights, **feed, **dict(zip([*outputs, *inner], results))}
        outcome.node_error = max([outcome.node_error, *(_against_float64(n, seen) for n in attentions)])
    return outcome


def _against_float64(node: Any, values: dict[str, Any]) -> float:
    """How far the library's output of an attention node is from its definition in float64, of the same inputs."""
    import onnx

    from graphopt.ops import OPS

    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    expected = OPS[node.op_type].reference(*(values[name] for name in node.input), **attributes)
    return difference(expected, [values[name] for name in node.output])


def _first_line(exception: Exception) -> str:
    return f"{type(exception).__name__}: {(str(exception).splitlines() or ['?'])[0][:140]}"


def _session(proto: Any, *, library: bool = False) -> Any:
    import onnxruntime

    import graphopt

    options = onnxruntime.SessionOptions()
    if library:
        options.register_custom_ops_library(str(graphopt.library_path()))
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def difference(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """The largest difference relative to the root mean square of the output; infinite where NaNs differ."""
    worst = 0.0
    for a, b in zip(expected, actual):
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if x.shape != y.shape or (np.isnan(x) != np.isnan(y)).any():
            return math.inf
        finite = np.isfinite(x)
        scale = math.sqrt(float((x[finite] ** 2).mean())) if finite.any() else 1.0
        if finite.any():
            worst = max(worst, float(np.abs(x - y)[finite].max()) / max(scale, 1e-30))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers: Callable[[str], list[int]] = lambda text: [int(n) for n in text.split(",") if n]  # noqa: E731
    parser.add_argument("cache", type=Path, help="folder of the exports")
    parser.add_argument("--only", type=lambda t: t.split(","), help=f"models out of {', '.join(BUILDERS)}")
    parser.add_argument("--torchscript", type=numbers, default=[*range(13, 21)], metavar="OPSETS")
    parser.add_argument("--dynamo", type=numbers, default=[*range(18, 24)], metavar="OPSETS")
    parser.add_argument("--export-only", action="store_true", help="fill the cache and stop")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)

    totals: collections.Counter[str] = collections.Counter()
    worst: collections.defaultdict[str, float] = collections.defaultdict(float)
    programs: dict[tuple[str, str, bool], Any] = {}
    start = time.perf_counter()
    for cell in cells(options):
        file, error = options.cache / f"{cell.name}.onnx", options.cache / f"{cell.name}.error"
        if not file.exists() and not error.exists():
            export(options.cache, cell, programs)
        if options.export_only:
            continue
        if error.exists():
            totals["not exported"] += 1
            print(f"{cell.name:45} cannot be exported: {error.read_text().splitlines()[0]}", flush=True)
            continue
        try:
            outcome = evaluate(file)
        except Exception as exception:
            totals["failed"] += 1
            print(f"{cell.name:45} FAILED {type(exception).__name__}: {str(exception)[:300]}", flush=True)
            continue
        totals["files"] += 1
        totals["original fails"] += bool(outcome.original)
        dtype = "float16" if "fp16" in cell.model else "float32"
        flags = []
        codes = expected_refusal(cell)
        if codes:
            totals["cores to be refused"] += outcome.cores
            stayed = not outcome.fused and all(r.startswith(codes) for r in outcome.refused)
            flags += [] if stayed and len(outcome.refused) == outcome.cores else ["NOT REFUSED AS IT MUST BE"]
        else:
            totals["cores"] += outcome.cores
            totals["fused"] += outcome.fused
            flags += ["NOT FUSED"] if outcome.fused != outcome.cores else []
        flags += ["WRONG"] if not outcome.error <= MODEL_LIMIT[dtype] else []
        flags += ["INEXACT"] if not outcome.node_error <= NODE_LIMIT[dtype] else []
        flags += ["GREW"] if outcome.nodes[1] > outcome.nodes[0] else []
        totals.update(flags)
        worst[dtype] = max(worst[dtype], outcome.error)
        worst[f"node {dtype}"] = max(worst[f"node {dtype}"], outcome.node_error)
        print(
            f"{cell.name:45} cores {outcome.cores} fused {outcome.fused} nodes {outcome.nodes[0]}->{outcome.nodes[1]} "
            f"error {outcome.error:.1e} node {outcome.node_error:.1e} "
            f"{' '.join(flags)} {'; '.join([*outcome.refused, outcome.original])}",
            flush=True,
        )
    worst_text = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    print(f"{dict(totals)}; worst errors: {worst_text}; {time.perf_counter() - start:.0f} s")
    bad = ("failed", "NOT REFUSED AS IT MUST BE", "NOT FUSED", "WRONG", "INEXACT", "GREW")
    return 1 if any(totals[b] for b in bad) else 0


if __name__ == "__main__":
    sys.exit(main())
