"""The smallest models with a form that fuses, as both torch exporters write them: tests/passes/exported/*.onnx.

What is exported is the code of transformers, timm and diffusers where they have it, with random weights of few numbers;
nothing is downloaded. Environment: that of scripts/export_models.py. Usage:

    venv-torch/bin/python scripts/export_forms.py tests/passes/exported [--only rope_llama,swiglu]
    venv-torch/bin/python scripts/export_forms.py --blocks FOLDER        # for scripts/bench_forms.py
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

Made = tuple[nn.Module, dict[str, torch.Tensor], dict[str, dict[int, str]]]
FORMS: dict[str, Callable[[], Made]] = {}
BLOCKS: dict[str, Callable[[], Made]] = {}


def form(build: Callable[[], Made]) -> Callable[[], Made]:
    FORMS[build.__name__] = build
    return build


def block(build: Callable[[], Made]) -> Callable[[], Made]:
    BLOCKS[build.__name__] = build
    return build


class Call(nn.Module):  # type: ignore[misc]
    """A function, with the modules that it uses."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


# What an exporter writes that no runtime can run: it takes the -1 of Flux's reshape for a 1.
BROKEN = {("rope_flux", "torchscript")}
IMAGES = {0: "batch", 2: "height", 3: "width"}
ROWS = {0: "batch", 1: "length"}


# -- LayerNorm over axis 1


@form
def layer_norm_2d_sam() -> Made:
    """Written out over axis 1, as Segment Anything's own code has it (modeling/common.py)."""

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
    return neck, {"x": torch.randn(2, 3, 5, 7)}, {"x": IMAGES}


@form
def layer_norm_2d_timm() -> Made:
    """LayerNorm between two Transposes, as timm's ConvNeXt has it in front of its strided convolutions."""
    from timm.layers import LayerNorm2d

    norm = LayerNorm2d(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return nn.Sequential(norm, nn.Conv2d(6, 4, 2, 2)), {"x": torch.randn(2, 6, 6, 8)}, {"x": IMAGES}


@form
def layer_norm_2d_sam_hf() -> Made:
    """Transformers' SamLayerNorm with channels first."""
    from transformers.models.sam.modeling_sam import SamLayerNorm

    norm = SamLayerNorm(6, eps=1e-6, data_format="channels_first")
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return nn.Sequential(nn.Conv2d(3, 6, 1), norm), {"x": torch.randn(2, 3, 5, 7)}, {"x": IMAGES}


# -- AdaLN


@form
def ada_ln_dit() -> Made:
    """AdaLayerNormZero of diffusers, as in DiT: x (1 + scale) + shift behind a LayerNorm without parameters."""
    from diffusers.models.normalization import AdaLayerNormZero

    def call(self: Any, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        y, gate, shift, scale, _ = self.norm(x, emb=emb)
        return y + gate[:, None] * (shift[:, None] + scale[:, None])

    module = Call(call, norm=AdaLayerNormZero(8, None))
    return module, {"x": torch.randn(2, 5, 8), "emb": torch.randn(2, 8)}, {"x": ROWS, "emb": {0: "batch"}}


@form
def ada_ln_residual() -> Made:
    """DiT's own code: modulate(norm(x), shift, scale) twice around a residual sum."""

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
    return module, {"x": torch.randn(2, 5, 8), "c": torch.randn(2, 8)}, {"x": ROWS, "c": {0: "batch"}}


# -- rotary positions


class Heads(nn.Module):  # type: ignore[misc]
    """Queries and keys of `heads` heads, turned and multiplied."""

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
def rope_llama() -> Made:
    """Transformers' Llama: halves, cos and sin of each position."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=16, num_attention_heads=2, head_dim=8))

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        cos, sin = self.rotary(x, torch.arange(x.shape[1])[None])
        return apply_rotary_pos_emb(q, k, cos, sin)

    heads = Heads(turn)
    heads.rotary = rotary
    return heads, *tokens()


@form
def rope_phi() -> Made:
    """Transformers' Phi: half of a head is turned, the rest passes."""
    from transformers.models.phi.modeling_phi import apply_rotary_pos_emb

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.1])
        angles = torch.cat((angles, angles), dim=-1)[None]
        q_turned, k_turned = apply_rotary_pos_emb(q[..., :4], k[..., :4], angles.cos(), angles.sin())
        return torch.cat((q_turned, q[..., 4:]), dim=-1), torch.cat((k_turned, k[..., 4:]), dim=-1)

    return Heads(turn), *tokens()


@form
def rope_gptj() -> Made:
    """Transformers' GPT-J: pairs of neighbours, heads behind tokens."""
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
        sin, cos = angles.sin()[None], angles.cos()[None]
        return apply_rotary_pos_emb(q, sin, cos), apply_rotary_pos_emb(k, sin, cos)

    return Heads(turn, heads_first=False), *tokens()


@form
def rope_flux() -> Made:
    """Diffusers' Flux: pairs of neighbours by reshape and unbind."""
    from diffusers.models.embeddings import apply_rotary_emb

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
        angles = angles.repeat_interleave(2, dim=-1)
        tables = (angles.cos(), angles.sin())
        return apply_rotary_emb(q, tables), apply_rotary_emb(k, tables)

    return Heads(turn), *tokens()


@form
def rope_timm() -> Made:
    """Timm's vision transformers (EVA): pairs of neighbours by strided slices, a table of constants."""
    from timm.layers import apply_rot_embed_cat

    table = torch.randn(5, 16)

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        return apply_rot_embed_cat(q, self.table), apply_rot_embed_cat(k, self.table)

    heads = Heads(turn)
    heads.register_buffer("table", table)
    return heads, {"x": torch.randn(2, 5, 16)}, {"x": {0: "batch"}}


@form
def rope_pairs() -> Made:
    """Halves turned apart and joined: [a cos - b sin, b cos + a sin], as GPT-OSS and the definition of ONNX have it."""
    from transformers.models.gpt_oss.modeling_gpt_oss import apply_rotary_pos_emb

    def turn(self: Any, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])
        return apply_rotary_pos_emb(q, k, angles.cos()[None], angles.sin()[None])

    return Heads(turn), *tokens()


# -- gates


@form
def swiglu() -> Made:
    """Transformers' Llama: down(silu(gate(x)) * up(x))."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    return LlamaMLP(LlamaConfig(hidden_size=16, num_attention_heads=2, intermediate_size=24)), *tokens()


@form
def swiglu_phi3() -> Made:
    """Transformers' Phi-3: gate and up are halves of one product."""
    from transformers import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3MLP

    return Phi3MLP(Phi3Config(hidden_size=16, intermediate_size=24, pad_token_id=0)), *tokens()


@form
def geglu() -> Made:
    """Diffusers' GEGLU: hidden, gate = proj(x).chunk(2); hidden * gelu(gate)."""
    from diffusers.models.activations import GEGLU

    return nn.Sequential(GEGLU(16, 24), nn.Linear(24, 16)), *tokens()


@form
def geglu_gemma() -> Made:
    """Transformers' Gemma: down(gelu_tanh(gate(x)) * up(x))."""
    from transformers import GemmaConfig
    from transformers.models.gemma.modeling_gemma import GemmaMLP

    config = GemmaConfig(hidden_size=16, intermediate_size=24, hidden_activation="gelu_pytorch_tanh")
    return GemmaMLP(config), *tokens()


@form
def glu() -> Made:
    """torch.nn.GLU: the first half times the sigmoid of the second, as in Conformer and Wav2Vec2."""
    return nn.Sequential(nn.Linear(16, 48), nn.GLU(dim=-1), nn.Linear(24, 16)), *tokens()


# -- PRelu behind a convolution


@form
def prelu() -> Made:
    """A block of ArcFace's IResNet: 3x3, BatchNorm, PReLU."""
    norm = nn.BatchNorm2d(32)
    nn.init.normal_(norm.weight, 1.0, 0.2)
    nn.init.normal_(norm.bias)
    slope = nn.PReLU(32)
    nn.init.normal_(slope.weight)
    block = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), norm, slope, nn.Conv2d(32, 8, 1))
    return block, {"x": torch.randn(2, 32, 28, 28)}, {"x": {0: "batch"}}


# -- windows


@form
def swin() -> Made:
    """Transformers' Swin, one layer with shifted windows."""
    from transformers import SwinConfig
    from transformers.models.swin.modeling_swin import SwinLayer

    config = SwinConfig(window_size=4, attn_implementation="eager")
    layer = SwinLayer(config, 16, (8, 8), 2, shift_size=2)

    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, (8, 8))[0]

    return Call(call, layer=layer), {"x": torch.randn(2, 64, 16)}, {"x": {0: "batch"}}


@form
def sam() -> Made:
    """Transformers' SAM, one layer of windows, which do not divide the image."""
    from transformers import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionLayer

    config = SamVisionConfig(
        hidden_size=32, num_attention_heads=2, mlp_dim=32, image_size=96, attn_implementation="eager"
    )  # fmt: skip
    layer = SamVisionLayer(config, window_size=4)
    nn.init.normal_(layer.attn.rel_pos_h, std=0.2)
    nn.init.normal_(layer.attn.rel_pos_w, std=0.2)
    return Call(lambda self, x: self.layer(x), layer=layer), {"x": torch.randn(2, 6, 6, 32)}, {"x": {0: "batch"}}


@form
def swinv2() -> Made:
    """Transformers' Swin v2, one layer: a learned scale for each head, clamped in front of its exp."""
    from transformers import Swinv2Config
    from transformers.models.swinv2.modeling_swinv2 import Swinv2Layer

    config = Swinv2Config(window_size=4, attn_implementation="eager")
    layer = Swinv2Layer(config, 16, (8, 8), 2, shift_size=0)
    scale = layer.attention.self.logit_scale
    with torch.no_grad():
        scale.copy_(torch.tensor([1.0, 9.0]).reshape(scale.shape))  # of which one is clamped

    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, (8, 8))[0]

    return Call(call, layer=layer), {"x": torch.randn(2, 64, 16)}, {"x": {0: "batch"}}


# -- blocks of real models, which scripts/bench_forms.py times


@block
def sam_neck() -> Made:
    """Of SAM's image encoder: 1x1, LayerNorm2d, 3x3, LayerNorm2d on 64 x 64."""
    from timm.layers import LayerNorm2d

    neck = nn.Sequential(
        nn.Conv2d(768, 256, 1, bias=False), LayerNorm2d(256), nn.Conv2d(256, 256, 3, padding=1, bias=False),
        LayerNorm2d(256),
    )  # fmt: skip
    return neck, {"x": torch.randn(1, 768, 64, 64)}, {}


@block
def convnext_downsampling() -> Made:
    """Between two stages of ConvNeXt-T."""
    from timm.layers import LayerNorm2d

    return nn.Sequential(LayerNorm2d(96), nn.Conv2d(96, 192, 2, 2)), {"x": torch.randn(1, 96, 56, 56)}, {}


@block
def dit() -> Made:
    """A layer of DiT-S/2: 256 tokens of 384."""
    from diffusers.models.attention import BasicTransformerBlock

    layer = BasicTransformerBlock(
        384, 6, 64, activation_fn="gelu-approximate", num_embeds_ada_norm=1000, attention_bias=True,
        norm_elementwise_affine=False, norm_type="ada_norm_zero",
    )  # fmt: skip

    def call(self: Any, x: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return self.layer(x, timestep=time, class_labels=label)

    inputs = {"x": torch.randn(2, 256, 384), "time": torch.tensor([7, 8]), "label": torch.tensor([1, 2])}
    return Call(call, layer=layer), inputs, {}


def _llama(length: int) -> Made:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_attention_heads=8, num_hidden_layers=2, vocab_size=128,
        attn_implementation="eager",
    )  # fmt: skip

    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.network(inputs_embeds=x, use_cache=False).last_hidden_state

    return Call(call, network=LlamaModel(config)), {"x": torch.randn(1, length, 512)}, {}


@block
def llama_128() -> Made:
    """Two layers of a Llama of 512, 128 tokens."""
    return _llama(128)


@block
def llama_2() -> Made:
    """The same, two tokens."""
    return _llama(2)


@block
def unet_transformer() -> Made:
    """A transformer block of Stable Diffusion's UNet at 32 x 32: self-attention and GEGLU."""
    from diffusers.models.attention import BasicTransformerBlock

    layer = BasicTransformerBlock(320, 8, 40, activation_fn="geglu")
    return Call(lambda self, x: self.layer(x), layer=layer), {"x": torch.randn(1, 1024, 320)}, {}


@block
def iresnet() -> Made:
    """A block of ArcFace's IResNet at 56 x 56."""
    slope = nn.PReLU(64)
    nn.init.normal_(slope.weight)
    layers = [nn.BatchNorm2d(64), nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), slope]
    layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)]
    block = nn.Sequential(*layers)
    return Call(lambda self, x: self.block(x) + x, block=block), {"x": torch.randn(1, 64, 56, 56)}, {}


def _swin(version: str) -> Made:
    import transformers

    module = __import__(f"transformers.models.{version.lower()}.modeling_{version.lower()}", fromlist=["layers"])
    config = getattr(transformers, f"{version}Config")(window_size=8, attn_implementation="eager")
    layer = getattr(module, f"{version}Layer")(config, 96, (56, 56), 3, shift_size=4)
    return Call(lambda self, x: self.layer(x, (56, 56))[0], layer=layer), {"x": torch.randn(1, 56 * 56, 96)}, {}


@block
def swin_t() -> Made:
    """The first layer of Swin-T with shifted windows."""
    return _swin("Swin")


@block
def sam_window() -> Made:
    """A layer of SAM's ViT-B: 64 x 64 tokens, padded to 70 x 70, in windows of 14."""
    from transformers import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionLayer

    layer = SamVisionLayer(SamVisionConfig(attn_implementation="eager"), window_size=14)
    nn.init.normal_(layer.attn.rel_pos_h, std=0.02)
    nn.init.normal_(layer.attn.rel_pos_w, std=0.02)
    return Call(lambda self, x: self.layer(x), layer=layer), {"x": torch.randn(1, 64, 64, 768)}, {}


@block
def swinv2_t() -> Made:
    """The first layer of Swin v2-T."""
    return _swin("Swinv2")


def export(name: str, exporter: str, folder: Path) -> None:
    torch.manual_seed(0)
    module, inputs, axes = (FORMS | BLOCKS)[name]()
    path = folder / f"{name}-{exporter}.onnx"
    options: dict[str, Any] = {"input_names": list(inputs), "output_names": ["y"]}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module.eval()
        if exporter == "torchscript":
            torch.onnx.export(
                module, tuple(inputs.values()), str(path), opset_version=17, dynamic_axes=axes, dynamo=False, **options
            )
        else:
            shapes = tuple(dict.fromkeys(axes.get(key, {}), torch.export.Dim.DYNAMIC) for key in inputs)
            program = torch.export.export(
                module,
                tuple(inputs.values()),
                dynamic_shapes=(shapes,) if isinstance(module, Call) else shapes,
                strict=False,
            )
            torch.onnx.export(
                program, (), str(path), opset_version=20, dynamo=True, external_data=False, verbose=False, **options
            )
    model = onnx.load(path)
    for node in model.graph.node:  # where the exporter ran
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for part in (model, model.graph):
        part.ClearField("metadata_props")
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        value.ClearField("metadata_props")
    onnx.save(model, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--blocks", action="store_true", help="blocks of real models, for scripts/bench_forms.py")
    arguments = parser.parse_args()
    everything = BLOCKS if arguments.blocks else FORMS
    for name in arguments.only.split(",") if arguments.only else everything:
        for exporter in ("dynamo",) if arguments.blocks else ("torchscript", "dynamo"):
            if (name, exporter) in BROKEN:
                continue
            try:
                export(name, exporter, arguments.folder)
                print(f"{name}-{exporter}", flush=True)
            except Exception as error:  # whatever an exporter raises
                print(f"{name}-{exporter}: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
