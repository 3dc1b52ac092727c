"""Minimal models of the forms that passes fuse: scripts/export.py --forms writes them to tests/passes/exported.

`FORMS[name]()` returns a `Case`: code of transformers, timm and diffusers where available, with few random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from models.pytorch.case import Call, Case

FORMS: dict[str, Callable[[], Case]] = {}


def form(build: Callable[[], Case]) -> Callable[[], Case]:
    FORMS[build.__name__] = build
    return build


IMAGES = {0: "batch", 2: "height", 3: "width"}
ROWS = {0: "batch", 1: "length"}


# -- LayerNorm over axis 1


@form
def layer_norm_2d_sam() -> Case:
    """Decomposed over axis 1, as in Segment Anything's code (modeling/common.py)."""

    class LayerNorm2d(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int, eps: float = 1e-6) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(channels))
            self.bias = nn.Parameter(torch.randn(channels))
            self.eps = eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            u = x.mean(1, keepdim=True)
            s = (x - u).pow(2).mean(1, keepdim=True)
            x = (x - u) / torch.sqrt(s + self.eps)
            return self.weight[:, None, None] * x + self.bias[:, None, None]

    neck = nn.Sequential(nn.Conv2d(3, 6, 1, bias=False), LayerNorm2d(6), nn.Conv2d(6, 5, 3, padding=1, bias=False))
    return Case(neck, {"x": torch.randn(2, 3, 5, 7)}, {"x": IMAGES})


@form
def layer_norm_2d_timm() -> Case:
    """LayerNorm between two Transposes, as in timm's ConvNeXt before its strided convolutions."""
    from timm.layers import LayerNorm2d

    norm = LayerNorm2d(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return Case(nn.Sequential(norm, nn.Conv2d(6, 4, 2, 2)), {"x": torch.randn(2, 6, 6, 8)}, {"x": IMAGES})


@form
def layer_norm_2d_sam_hf() -> Case:
    """Transformers' SamLayerNorm with channels first."""
    from transformers.models.sam.modeling_sam import SamLayerNorm

    norm = SamLayerNorm(6, eps=1e-6, data_format="channels_first")
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return Case(nn.Sequential(nn.Conv2d(3, 6, 1), norm), {"x": torch.randn(2, 3, 5, 7)}, {"x": IMAGES})


# -- AdaLN


@form
def ada_ln_dit() -> Case:
    """AdaLayerNormZero of diffusers, as in DiT: x (1 + scale) + shift after a LayerNorm without parameters."""
    from diffusers.models.normalization import AdaLayerNormZero

    def call(self: Any, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        y, gate, shift, scale, _ = self.norm(x, emb=emb)
        return y + gate[:, None] * (shift[:, None] + scale[:, None])

    module = Call(call, norm=AdaLayerNormZero(8, None))
    return Case(module, {"x": torch.randn(2, 5, 8), "emb": torch.randn(2, 8)}, {"x": ROWS, "emb": {0: "batch"}})


@form
def ada_ln_residual() -> Case:
    """DiT's code: modulate(norm(x), shift, scale) twice around a residual sum."""

    def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)

    def call(self: Any, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(c).chunk(6, dim=1)
        x = x + gate1.unsqueeze(1) * self.first(modulate(self.norm(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.second(modulate(self.affine(x), shift2, scale2))

    affine = nn.LayerNorm(8)
    nn.init.normal_(affine.weight)
    nn.init.normal_(affine.bias)
    module = Call(
        call, norm=nn.LayerNorm(8, elementwise_affine=False, eps=1e-6), affine=affine, first=nn.Linear(8, 8),
        second=nn.Linear(8, 8), ada=nn.Sequential(nn.SiLU(), nn.Linear(8, 48)),
    )  # fmt: skip
    return Case(module, {"x": torch.randn(2, 5, 8), "c": torch.randn(2, 8)}, {"x": ROWS, "c": {0: "batch"}})


# -- rotary positions


class Heads(nn.Module):  # type: ignore[misc]
    """Queries and keys of two heads, rotated by `turn` and multiplied."""

    def __init__(self, turn: Callable[..., Any], heads_first: bool = True, dim: int = 8) -> None:
        super().__init__()
        self.turn, self.heads_first, self.dim = turn, heads_first, dim
        self.q, self.k = nn.Linear(16, 2 * dim), nn.Linear(16, 2 * dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], 2, self.dim)
        q, k = self.q(x).view(shape), self.k(x).view(shape)
        if self.heads_first:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        q, k = self.turn(self, q, k, x)
        if not self.heads_first:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        return q @ k.transpose(-1, -2)


def tokens() -> tuple[dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    return {"x": torch.randn(2, 5, 16)}, {"x": ROWS}


@form
def rope_llama() -> Case:
    """Transformers' Llama: pairs across the halves of a head; cos and sin are computed for each position."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=16, num_attention_heads=2, head_dim=8))

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        cos, sin = self.rotary(x, torch.arange(x.shape[1])[None])
        return apply_rotary_pos_emb(q, k, cos, sin)

    heads = Heads(turn)
    heads.rotary = rotary
    return Case(heads, *tokens())


@form
def rope_phi() -> Case:
    """Transformers' Phi: half of a head is rotated, the rest is unchanged."""
    from transformers.models.phi.modeling_phi import apply_rotary_pos_emb

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.1])
        angles = torch.cat((angles, angles), dim=-1)[None]
        q_turned, k_turned = apply_rotary_pos_emb(q[..., :4], k[..., :4], angles.cos(), angles.sin())
        return torch.cat((q_turned, q[..., 4:]), dim=-1), torch.cat((k_turned, k[..., 4:]), dim=-1)

    return Case(Heads(turn), *tokens())


@form
def rope_gptj() -> Case:
    """Transformers' GPT-J: interleaved pairs, with heads after tokens."""
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
        sin, cos = angles.sin()[None], angles.cos()[None]
        return apply_rotary_pos_emb(q, sin, cos), apply_rotary_pos_emb(k, sin, cos)

    return Case(Heads(turn, heads_first=False), *tokens())


@form
def rope_flux() -> Case:
    """Diffusers' Flux: interleaved pairs by reshape and unbind."""
    from diffusers.models.embeddings import apply_rotary_emb

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
        angles = angles.repeat_interleave(2, dim=-1)
        tables = (angles.cos(), angles.sin())
        return apply_rotary_emb(q, tables), apply_rotary_emb(k, tables)

    return Case(Heads(turn), *tokens())


@form
def rope_timm() -> Case:
    """Timm's vision transformers (EVA): interleaved pairs by strided slices, a table of constants."""
    from timm.layers import apply_rot_embed_cat

    table = torch.randn(5, 16)

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        return apply_rot_embed_cat(q, self.table), apply_rot_embed_cat(k, self.table)

    heads = Heads(turn)
    heads.register_buffer("table", table)
    return Case(heads, {"x": torch.randn(2, 5, 16)}, {"x": {0: "batch"}})


@form
def rope_pairs() -> Case:
    """Halves rotated separately and joined: [a cos - b sin, b cos + a sin], as in GPT-OSS and in ONNX's definition."""
    from transformers.models.gpt_oss.modeling_gpt_oss import apply_rotary_pos_emb

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
        return apply_rotary_pos_emb(q, k, angles.cos()[None], angles.sin()[None])

    return Case(Heads(turn), *tokens())


# -- gates


@form
def swiglu() -> Case:
    """Transformers' Llama: down(silu(gate(x)) * up(x))."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    return Case(LlamaMLP(LlamaConfig(hidden_size=16, num_attention_heads=2, intermediate_size=24)), *tokens())


@form
def swiglu_phi3() -> Case:
    """Transformers' Phi-3: gate and up are the halves of one GEMM."""
    from transformers import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3MLP

    return Case(Phi3MLP(Phi3Config(hidden_size=16, intermediate_size=24, pad_token_id=0)), *tokens())


@form
def geglu() -> Case:
    """Diffusers' GEGLU: hidden, gate = proj(x).chunk(2); hidden * gelu(gate)."""
    from diffusers.models.activations import GEGLU

    return Case(nn.Sequential(GEGLU(16, 24), nn.Linear(24, 16)), *tokens())


@form
def geglu_gemma() -> Case:
    """Transformers' Gemma: down(gelu_tanh(gate(x)) * up(x))."""
    from transformers import GemmaConfig
    from transformers.models.gemma.modeling_gemma import GemmaMLP

    config = GemmaConfig(hidden_size=16, intermediate_size=24, hidden_activation="gelu_pytorch_tanh")
    return Case(GemmaMLP(config), *tokens())


@form
def glu() -> Case:
    """torch.nn.GLU: the first half times the sigmoid of the second, as in Conformer and Wav2Vec2."""
    return Case(nn.Sequential(nn.Linear(16, 48), nn.GLU(dim=-1), nn.Linear(24, 16)), *tokens())


# -- PRelu after a convolution


@form
def prelu() -> Case:
    """A block of ArcFace's IResNet: 3x3, BatchNorm, PReLU."""
    norm = nn.BatchNorm2d(32)
    nn.init.normal_(norm.weight, 1.0, 0.2)
    nn.init.normal_(norm.bias)
    slope = nn.PReLU(32)
    nn.init.normal_(slope.weight)
    block = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), norm, slope, nn.Conv2d(32, 8, 1))
    return Case(block, {"x": torch.randn(2, 32, 28, 28)}, {"x": {0: "batch"}})


# -- windows


@form
def swin() -> Case:
    """Transformers' Swin, one layer with shifted windows."""
    from transformers import SwinConfig
    from transformers.models.swin.modeling_swin import SwinLayer

    config = SwinConfig(window_size=4, attn_implementation="eager")
    layer = SwinLayer(config, 16, (8, 8), 2, shift_size=2)

    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, (8, 8))[0]

    return Case(Call(call, layer=layer), {"x": torch.randn(2, 64, 16)}, {"x": {0: "batch"}})


@form
def sam() -> Case:
    """Transformers' SAM, one layer with windows that do not divide the image."""
    from transformers import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionLayer

    config = SamVisionConfig(
        hidden_size=32, num_attention_heads=2, mlp_dim=32, image_size=96, attn_implementation="eager"
    )  # fmt: skip
    layer = SamVisionLayer(config, window_size=4)
    nn.init.normal_(layer.attn.rel_pos_h, std=0.2)
    nn.init.normal_(layer.attn.rel_pos_w, std=0.2)
    return Case(Call(lambda self, x: self.layer(x), layer=layer), {"x": torch.randn(2, 6, 6, 32)}, {"x": {0: "batch"}})


@form
def swinv2() -> Case:
    """Transformers' Swin v2, one layer: a learned scale for each head, clamped before its exp."""
    from transformers import Swinv2Config
    from transformers.models.swinv2.modeling_swinv2 import Swinv2Layer

    config = Swinv2Config(window_size=4, attn_implementation="eager")
    layer = Swinv2Layer(config, 16, (8, 8), 2, shift_size=0)
    scale = layer.attention.self.logit_scale
    with torch.no_grad():
        scale.copy_(torch.tensor([1.0, 9.0]).reshape(scale.shape))  # one of them is clamped

    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, (8, 8))[0]

    return Case(Call(call, layer=layer), {"x": torch.randn(2, 64, 16)}, {"x": {0: "batch"}})


# -- LSTM


@form
def lstm_cells() -> Case:
    """A loop over LSTMCell in each direction."""

    class Both(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.forwards, self.backwards = nn.LSTMCell(6, 5), nn.LSTMCell(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sides = []
            for cell, steps in ((self.forwards, range(4)), (self.backwards, range(3, -1, -1))):
                h = c = x.new_zeros(x.shape[0], 5)
                states = {}
                for t in steps:
                    h, c = cell(x[:, t], (h, c))
                    states[t] = h
                sides.append(torch.stack([states[t] for t in range(4)], 1))
            return torch.cat(sides, -1)

    return Case(Both(), {"x": torch.randn(2, 4, 6)}, {"x": {0: "batch"}})
