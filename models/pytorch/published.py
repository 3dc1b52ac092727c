"""Widely deployed architectures, small and with random weights, built from the configurations of their libraries.

`MODELS[name](batch, length)` returns a `Case`: a module of transformers, timm or torchvision, or one that is defined
here because these libraries lack it. Nothing is downloaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional

from models.pytorch.case import Call, Case, wrap

Builder = Callable[[int, int], Case]
MODELS: dict[str, Builder] = {}


def model(build: Builder) -> Builder:
    """Registers build(batch, length) -> Case under the function's name."""
    MODELS[build.__name__] = build
    return build


def enliven(module: nn.Module) -> None:
    """Draws weights that preserve the variance of activations, and normalization statistics other than 0 and 1."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        last = name.rsplit(".", 1)[-1]
        with torch.no_grad():
            if last == "running_var":
                tensor.uniform_(0.5, 2.0)
            elif last == "running_mean":
                tensor.normal_(0.0, 0.2)
            elif last == "weight" and tensor.dim() > 1:
                tensor.normal_(0.0, 1.2 / math.sqrt(tensor[0].numel()))
            elif last == "weight" and tensor.dim() == 1:
                tensor.uniform_(0.7, 1.3)
            elif last == "bias":
                tensor.normal_(0.0, 0.1)


def network(architecture: str, config: Mapping[str, Any], part: str = "") -> nn.Module:
    """Returns a model of transformers by its class and the arguments of its configuration, or its module `part`."""
    published = getattr(transformers, architecture)
    made = published(published.config_class(**config))
    return getattr(made, part) if part else made


def tokens(batch: int, length: int, vocabulary: int = 50) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def padding(batch: int, length: int) -> torch.Tensor:
    """Returns a mask with right padding of 0, 1, ... positions."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    for i in range(batch):
        mask[i, length - i :] = 0
    return mask


def sizes(length: int, step: int = 32) -> tuple[int, int]:
    """Returns the height and width of an image: different multiples of `step`."""
    return step * (length // 3), step * (length // 3 + 1)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {"vocab_size": 50, "max_position_embeddings": 64, **SMALL}
IMAGE = {"image_size": 32, "patch_size": 8, **SMALL}
GPT2 = {
    "vocab_size": 50, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA = {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0}
# The sizes of models with an encoder and a decoder.
TWO = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
T5 = {
    "vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
WHISPER = {
    "vocab_size": 50, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32, **TWO,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
WHISPER_BASE = {
    "d_model": 512, "encoder_layers": 6, "decoder_layers": 1, "encoder_ffn_dim": 2048, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
}  # fmt: skip
WAV = {
    **SMALL, "vocab_size": 20, "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 5, 4),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip

# -- text --------------------------------------------------------------------------------------------------------------

# name -> class, configuration, outputs, fixed arguments
TEXTS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "bert": ("BertModel", TEXT, "last_hidden_state", {}),
    "bert_tagger": ("BertForTokenClassification", {**TEXT, "num_labels": 5}, "logits", {}),
    "deberta_classifier": (
        "DebertaV2ForSequenceClassification",
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "num_labels": 3},
        "logits",
        {},
    ),
    "modernbert": (
        "ModernBertModel",
        {**TEXT, "local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0},
        "last_hidden_state",
        {},
    ),
    "gemma2": (
        "Gemma2Model",
        {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4, "attn_implementation": "eager", **LLAMA},
        "last_hidden_state",
        {"use_cache": False},
    ),
    "mistral": ("MistralModel", {"sliding_window": 4, **LLAMA}, "last_hidden_state", {"use_cache": False}),
    "qwen3_moe": (
        "Qwen3MoeModel",
        {**LLAMA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        "last_hidden_state",
        {"use_cache": False},
    ),
    "t5_encoder": ("T5EncoderModel", T5, "last_hidden_state", {}),
}


def text_case(module: nn.Module, batch: int, length: int, wanted: str, **fixed: Any) -> Case:
    """Returns a case with padded tokens."""
    names, axes = ("input_ids", "attention_mask"), {0: "batch", 1: "length"}
    inputs = dict(zip(names, (tokens(batch, length), padding(batch, length))))
    return Case(wrap(module, names, wanted.split(), **fixed), inputs, dict.fromkeys(names, axes))


def of_text(
    architecture: str, config: Mapping[str, Any], wanted: str, fixed: Mapping[str, Any], batch: int, length: int
) -> Case:
    return text_case(network(architecture, config), batch, length, wanted, **fixed)


MODELS |= {name: partial(of_text, *row) for name, row in TEXTS.items()}


@model
def distilbert_base(batch: int, length: int) -> Case:
    """Full size."""
    return text_case(network("DistilBertModel", {}), batch, 16 * length, "last_hidden_state")


def decoder_with_past(module: nn.Module, heads: int, batch: int, length: int) -> Case:
    """One generation step of two layers: one new token and `length` cached ones; caches [B, heads, length, 8]."""

    def call(self: Any, input_ids: Any, attention_mask: Any, *past: Any) -> Any:
        cache = transformers.DynamicCache(ddp_cache_data=[past[:2], past[2:]])
        result = self.network(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return (result.last_hidden_state, *(t for x in result.past_key_values.layers for t in (x.keys, x.values)))

    inputs = {"input_ids": tokens(batch, 1), "attention_mask": torch.ones(batch, length + 1, dtype=torch.int64)}
    axes: dict[str, Mapping[int, str]] = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "total"}}
    for name in (f"past_{i}_{kind}" for i in range(2) for kind in ("key", "value")):
        inputs[name], axes[name] = torch.randn(batch, heads, length, 8), {0: "batch", 2: "past"}
    return Case(Call(call, network=module), inputs, axes)


@model
def gpt2_with_past(batch: int, length: int) -> Case:
    return decoder_with_past(network("GPT2Model", GPT2), 4, batch, length)


@model
def llama_with_past(batch: int, length: int) -> Case:
    return decoder_with_past(network("LlamaModel", LLAMA), 2, batch, length)


@model
def qwen3_with_past(batch: int, length: int) -> Case:
    return decoder_with_past(network("Qwen3Model", {"head_dim": 8, **LLAMA}), 2, batch, length)


def cached_decoder(module: nn.Module, layers: int, encoded: torch.Tensor, batch: int, length: int) -> Case:
    """One step of an encoder-decoder model with self-attention and cross-attention caches: 4 heads of 8 elements."""

    def call(self: Any, decoder_input_ids: Any, encoder_hidden: Any, *past: Any) -> Any:
        own, cross = (
            transformers.DynamicCache(ddp_cache_data=[past[4 * i + k : 4 * i + k + 2] for i in range(layers)])
            for k in (0, 2)
        )
        result = self.network(
            encoder_outputs=(encoder_hidden,), decoder_input_ids=decoder_input_ids, use_cache=True,
            past_key_values=transformers.EncoderDecoderCache(own, cross),
        )  # fmt: skip
        kept = result.past_key_values.self_attention_cache.layers
        return (result.logits, *(t for layer in kept for t in (layer.keys, layer.values)))

    inputs = {"decoder_input_ids": tokens(batch, 1), "encoder_hidden": encoded}
    axes: dict[str, Mapping[int, str]] = {
        "decoder_input_ids": {0: "batch"},
        "encoder_hidden": {0: "batch", 1: "rows"},
    }
    kinds = [(i, kind, cache) for i in range(layers) for cache in ("past", "cross") for kind in ("key", "value")]
    for i, kind, cache in kinds:
        rows, symbol = (length, "past") if cache == "past" else (encoded.shape[1], "rows")
        inputs[f"{cache}_{i}_{kind}"] = torch.randn(batch, 4, rows, 8)
        axes[f"{cache}_{i}_{kind}"] = {0: "batch", 2: symbol}
    return Case(Call(call, network=module), inputs, axes)


@model
def t5_decoder_with_past(batch: int, length: int) -> Case:
    module = network("T5ForConditionalGeneration", T5)
    return cached_decoder(module, 2, torch.randn(batch, length, 32), batch, length - 2)


@model
def whisper_decoder_with_past(batch: int, length: int) -> Case:
    module = network("WhisperForConditionalGeneration", WHISPER)
    return cached_decoder(module, 1, torch.randn(batch, 20, 32), batch, length)


@model
def lstm_tagger(batch: int, length: int) -> Case:
    """Tokens -> two layers of LSTM in both directions -> tags, with the best tag of each token."""

    def call(self: Any, input_ids: torch.Tensor) -> Any:
        logits = self.out(self.lstm(self.embed(input_ids))[0])
        return torch.log_softmax(logits, -1), logits.argmax(-1)

    lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
    module = Call(call, embed=nn.Embedding(50, 16), lstm=lstm, out=nn.Linear(24, 7))
    return Case(module, {"input_ids": tokens(batch, length)}, {"input_ids": {0: "batch", 1: "length"}})


# -- sound -------------------------------------------------------------------------------------------------------------


@model
def whisper_encoder(batch: int, length: int) -> Case:
    module = wrap(network("WhisperModel", WHISPER, "encoder"), ("input_features",), ("last_hidden_state",))
    return Case(module, {"input_features": torch.randn(batch, 8, 40)}, {"input_features": {0: "batch"}})


@model
def whisper_base_encoder(batch: int, length: int) -> Case:
    """Full size."""
    module = wrap(network("WhisperModel", WHISPER_BASE, "encoder"), ("input_features",), ("last_hidden_state",))
    return Case(module, {"input_features": torch.randn(batch, 80, 3000)}, {"input_features": {0: "batch"}})


@model
def wav2vec2(batch: int, length: int) -> Case:
    module = wrap(network("Wav2Vec2ForCTC", WAV), ("input_values",), ("logits",))
    inputs = {"input_values": torch.randn(batch, 400 * length)}
    return Case(module, inputs, {"input_values": {0: "batch", 1: "samples"}})


@model
def hifigan(batch: int, length: int) -> Case:
    config = {
        "model_in_dim": 8, "upsample_initial_channel": 16, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8],
        "resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3], [1, 3]],
    }  # fmt: skip
    inputs = {"spectrogram": torch.randn(batch, length, 8)}
    return Case(network("SpeechT5HifiGan", config), inputs, {"spectrogram": {0: "batch", 1: "frames"}})


@model
def encodec_decoder(batch: int, length: int) -> Case:
    """Codes -> embeddings, summed -> LSTM -> transposed convolutions with reflected borders."""
    config = {
        "num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 32, "codebook_dim": 16, "hidden_size": 16,
        "num_lstm_layers": 1, "sampling_rate": 800,
    }  # fmt: skip

    def call(self: Any, codes: torch.Tensor) -> Any:
        return self.network.decoder(self.network.quantizer.decode(codes))

    module = Call(call, network=network("EncodecModel", config))
    return Case(module, {"codes": torch.randint(0, 32, (2, batch, 3 * length))}, {"codes": {1: "batch", 2: "frames"}})


@model
def istft_vocoder(batch: int, length: int) -> Case:
    """A small Vocos: a ConvNeXt block computes magnitude and phase; a transposed convolution overlaps the frames."""
    size = 16
    k, n = torch.arange(size // 2 + 1)[:, None], torch.arange(size)[None]
    angle, window = 2 * math.pi * k * n / size, torch.hann_window(size)

    def call(self: Any, mel: torch.Tensor) -> Any:
        x = self.inlet(mel)
        y = self.norm(self.depthwise(x).transpose(1, 2))
        x = x + self.narrow(functional.gelu(self.wide(y))).transpose(1, 2)
        magnitude, phase = self.head(x.transpose(1, 2)).transpose(1, 2).chunk(2, 1)
        magnitude = torch.exp(magnitude).clamp(max=100.0)
        real, imaginary = magnitude * torch.cos(phase), magnitude * torch.sin(phase)
        transposed = functional.conv_transpose1d
        return transposed(real, self.real, stride=4) + transposed(imaginary, self.imaginary, stride=4)

    module = Call(
        call, inlet=nn.Conv1d(8, 24, 7, padding=3), depthwise=nn.Conv1d(24, 24, 7, padding=3, groups=24),
        norm=nn.LayerNorm(24), wide=nn.Linear(24, 48), narrow=nn.Linear(48, 24), head=nn.Linear(24, size + 2),
    )  # fmt: skip
    module.register_buffer("real", (torch.cos(angle) * window)[:, None] / size)
    module.register_buffer("imaginary", (-torch.sin(angle) * window)[:, None] / size)
    return Case(module, {"mel": torch.randn(batch, 8, length)}, {"mel": {0: "batch", 2: "frames"}})


# -- images ------------------------------------------------------------------------------------------------------------


def image_case(module: nn.Module, batch: int, height: int, width: int, wanted: str = "", dynamic: bool = False) -> Case:
    """pixel_values [B, 3, H, W]; `dynamic` makes H and W symbols."""
    axes = {0: "batch", 2: "height", 3: "width"} if dynamic else {0: "batch"}
    module = wrap(module, ("pixel_values",), wanted.split()) if wanted else module
    return Case(module, {"pixel_values": torch.randn(batch, 3, height, width)}, {"pixel_values": axes})


def resnet_backbone() -> Any:
    return transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])


DETR = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False, "num_queries": 5}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "window_size": 4, "depths": [2, 2], "num_heads": [2, 4]}
SEGFORMER = {
    "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4],
    "decoder_hidden_size": 24, "num_labels": 5,
}  # fmt: skip
MOBILEVIT = {
    "image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
    "num_attention_heads": 4,
}  # fmt: skip
SWIN2SR = {
    "image_size": 16, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4, "mlp_ratio": 2.0,
    "upscale": 2, "upsampler": "pixelshuffle",
}  # fmt: skip
SAM = {
    "vision_config": {
        "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64,
        "patch_size": 8, "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 48, "num_pos_feats": 8,
    },
    "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {
        "hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "iou_head_hidden_dim": 16,
    },
}  # fmt: skip
# name -> class, configuration, outputs, height and width; None: they depend on `length` and are symbolic
IMAGES: dict[str, tuple[str, Mapping[str, Any], str, tuple[int, int] | None]] = {
    "vit_classifier": ("ViTForImageClassification", IMAGE, "logits", (32, 32)),
    "dinov2": ("Dinov2Model", {**IMAGE, "mlp_ratio": 2}, "last_hidden_state", (32, 32)),
    "swin_classifier": ("SwinForImageClassification", SWIN, "logits", (64, 64)),
    "swinv2": (
        "Swinv2Model",
        {**SWIN, "image_size": 32, "depths": [2], "num_heads": [2], "attn_implementation": "eager"},
        "last_hidden_state",
        (32, 32),
    ),
    "convnext": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [16, 24], "depths": [2, 1], "num_stages": 2},
        "logits",
        None,
    ),
    "segformer": ("SegformerForSemanticSegmentation", SEGFORMER, "logits", None),
    "mobilevit": ("MobileViTForImageClassification", MOBILEVIT, "logits", (64, 64)),
    "swin2sr": ("Swin2SRForImageSuperResolution", SWIN2SR, "reconstruction", None),
    "yolos": (
        "YolosForObjectDetection",
        {**SMALL, "image_size": [64, 96], "patch_size": 16, "num_detection_tokens": 5},
        "logits pred_boxes",
        (64, 96),
    ),
}
STEPS = {"convnext": 32, "segformer": 64, "swin2sr": 16}  # heights and widths are multiples of these numbers
# name -> function, height, width, its arguments
TORCHVISION: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "efficientnet": ("efficientnet_b0", 64, 96, {"num_classes": 10}),
    "mobilenet_v3": ("mobilenet_v3_small", 64, 96, {"num_classes": 10}),
    "shufflenet": ("shufflenet_v2_x0_5", 64, 96, {"num_classes": 10}),
    "regnet": ("regnet_y_400mf", 64, 64, {"num_classes": 10}),
    **{name: (name, 224, 224, {}) for name in ("resnext50_32x4d", "swin_t", "convnext_tiny", "efficientnet_b0")},
}
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny_vit": (
        "tiny_vit_5m_224",
        {"embed_dims": (16, 24, 32, 40), "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2)},
    ),
    "edgenext": ("edgenext_xx_small", {}),
    "repvit": ("repvit_m0_9", {"embed_dim": (8, 16, 24, 32), "depth": (1, 1, 1, 1)}),
}


def of_images(name: str, batch: int, length: int) -> Case:
    architecture, config, wanted, size = IMAGES[name]
    height, width = size or sizes(length, STEPS[name])
    return image_case(network(architecture, config), batch, height, width, wanted, dynamic=size is None)


def of_torchvision(
    published: str, height: int, width: int, arguments: Mapping[str, Any], batch: int, length: int
) -> Case:
    """Returns a torchvision model. With `arguments`, height and width are symbols, and larger for lengths from 9 on."""
    grown = 32 if arguments and length >= 9 else 0
    module = getattr(torchvision.models, published)(weights=None, **arguments)
    return image_case(module, batch, height + grown, width + grown, dynamic=bool(arguments))


def of_timm(published: str, arguments: Mapping[str, Any], batch: int, length: int) -> Case:
    return image_case(timm.create_model(published, num_classes=10, **arguments), batch, 64, 64)


MODELS |= {name: partial(of_images, name) for name in IMAGES}
MODELS |= {name: partial(of_torchvision, *row) for name, row in TORCHVISION.items()}
MODELS |= {name: partial(of_timm, *row) for name, row in TIMM.items()}


@model
def sam_encoder(batch: int, length: int) -> Case:
    return image_case(network("SamModel", SAM, "vision_encoder"), batch, 64, 64, "last_hidden_state")


@model
def sam_decoder(batch: int, length: int) -> Case:
    """Points and the image's embedding -> masks and their quality scores."""
    inputs = {
        "image_embeddings": torch.randn(1, 16, 8, 8),
        "input_points": torch.rand(1, 1, length, 2) * 64,
        "input_labels": torch.randint(0, 2, (1, 1, length)),
    }
    module = wrap(network("SamModel", SAM), tuple(inputs), ("pred_masks", "iou_scores"))
    return Case(module, inputs, {"input_points": {2: "points"}, "input_labels": {2: "points"}})


@model
def clip(batch: int, length: int) -> Case:
    config = {
        "text_config": {**TEXT, "eos_token_id": 49, "projection_dim": 16},
        "vision_config": {**IMAGE, "projection_dim": 16}, "projection_dim": 16,
    }  # fmt: skip
    inputs = {
        "input_ids": tokens(batch, length),
        "attention_mask": padding(batch, length),
        "pixel_values": torch.randn(batch + 1, 3, 32, 32),
    }
    texts = {0: "texts", 1: "length"}
    module = wrap(network("CLIPModel", config), tuple(inputs), ("logits_per_image", "text_embeds", "image_embeds"))
    return Case(module, inputs, {"input_ids": texts, "attention_mask": texts, "pixel_values": {0: "images"}})


@model
def detr_detector(batch: int, length: int) -> Case:
    config = {**DETR, **TWO, "backbone_config": resnet_backbone()}
    return image_case(network("DetrForObjectDetection", config), batch, 64, 96, "logits pred_boxes")


@model
def rt_detr(batch: int, length: int) -> Case:
    """Deformable attention (GridSample), the best anchors (TopK), a feature pyramid."""
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = {
        "backbone_config": backbone, "encoder_hidden_dim": 32, "encoder_in_channels": [16, 24, 32], "d_model": 32,
        "num_queries": 7, "decoder_in_channels": [32, 32, 32], "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "num_feature_levels": 3, "decoder_layers": 2, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
        "decoder_n_points": 2, "feat_strides": [8, 16, 32], "anchor_image_size": None, "num_denoising": 0,
    }  # fmt: skip
    return image_case(network("RTDetrForObjectDetection", config), batch, 96, 64, "logits pred_boxes")


@model
def depth_anything(batch: int, length: int) -> Case:
    backbone = transformers.Dinov2Config(
        **{**IMAGE, "image_size": 56, "patch_size": 14}, mlp_ratio=2, out_indices=[1, 2], reshape_hidden_states=False,
        apply_layernorm=True,
    )  # fmt: skip
    config = {
        "backbone_config": backbone, "reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 16],
        "reassemble_factors": [2, 1], "fusion_hidden_size": 8, "head_hidden_size": 8,
    }  # fmt: skip
    return image_case(network("DepthAnythingForDepthEstimation", config), batch, 56, 56, "predicted_depth")


def conv(inner: int, outer: int, stride: int = 1, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    """3x3, BatchNorm, activation."""
    return nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), act())


@model
def crnn(batch: int, length: int) -> Case:
    """Text line recognition for any width: convolutions, two LSTMs, CTC's best path."""

    def call(self: Any, image: torch.Tensor) -> Any:
        x = self.features(image)
        b, c, h, w = x.shape
        x = self.lstm(x.reshape(b, c * h, w).permute(2, 0, 1))[0]
        p = self.out(x).permute(1, 0, 2).softmax(-1)
        return p, p.argmax(-1)

    features = nn.Sequential(
        *(conv(3, 8), nn.MaxPool2d(2), conv(8, 16), nn.MaxPool2d((2, 1), (2, 1))),
        *(conv(16, 16), nn.MaxPool2d((2, 1), (2, 1)), conv(16, 24)),
    )
    lstm = nn.LSTM(24 * 4, 16, num_layers=2, bidirectional=True)
    module = Call(call, features=features, lstm=lstm, out=nn.Linear(32, 20))
    return Case(module, {"image": torch.randn(batch, 3, 32, 12 * length)}, {"image": {0: "batch", 3: "width"}})


@model
def ocr_detector(batch: int, length: int) -> Case:
    """Differentiable Binarization: a feature pyramid scaled to one size, a transposed convolution, probabilities."""

    def call(self: Any, image: torch.Tensor) -> Any:
        maps, x = [], image
        for stage in self.stages:
            maps.append(x := stage(x))
        sides = [side(m) for side, m in zip(self.side, maps)]
        levels = [sides[-1]]
        for side in sides[-2::-1]:
            levels.append(side + functional.interpolate(levels[-1], size=side.shape[2:], mode="nearest"))
        size = levels[-1].shape[2:]
        same = [functional.interpolate(m, size=size, mode="bilinear", align_corners=False) for m in levels]
        return torch.sigmoid(self.last(self.head(torch.cat(same, 1))))

    widths = (8, 16, 24, 32)
    stages = nn.ModuleList(conv(a, b, 2, nn.Hardswish) for a, b in zip((3, *widths), widths))
    head = nn.Sequential(conv(64, 16), nn.ConvTranspose2d(16, 8, 2, 2), nn.BatchNorm2d(8), nn.ReLU())
    side = nn.ModuleList(nn.Conv2d(c, 16, 1) for c in widths)
    module = Call(call, stages=stages, side=side, head=head, last=nn.Conv2d(8, 1, 3, padding=1))
    return image_case(module, batch, *sizes(length), dynamic=True)
