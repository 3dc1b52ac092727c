"""Whole models as PyTorch's exporters write them, with random weights and few layers.

The architectures are those that people deploy, out of transformers, timm,
torchvision and diffusers, which are built from their configurations; where none of these has one, it is written here.
Nothing is downloaded. Each model is exported by both exporters with symbolic sizes; what an exporter cannot write is
kept with its error. Exports and their inputs (as exported, and of another size) lie in the cache folder; a second run
fills only what is missing.

Environment: that of scripts/export_attention.py, with

    venv-torch/bin/pip install torch==2.15.0 torchvision==0.29.2 timm==1.0.31 diffusers transformers==5.23.0

Usage:

    venv-torch/bin/python scripts/export_models.py CACHE [--only vits,rt_detr] [--exporters torchscript17,dynamo20]
"""

from __future__ import annotations

import argparse
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.export_attention import (
    BUILDERS,
    GPT2,
    LLAMA,
    SMALL,
    TEXT,
    TWO,
    Case,
    Cell,
    decoder_with_past,
    export,
    image_case,
    model,
    padding,
    text_case,
    tokens,
    wrap,
)

OTHERS = set(BUILDERS)
Builder = Callable[[int, int], Case]


def whole(name: str) -> Callable[[Builder], Builder]:
    """Registers builder(batch, length) -> Case, whose weights become livelier than those of a new module."""

    def register(builder: Builder) -> Builder:
        @model(name, "eager")
        def build(attention: str, batch: int, length: int) -> Case:
            import torch

            torch.manual_seed(0)
            case = builder(batch, length)
            enliven(case.module)
            torch.manual_seed(batch)
            case.inputs = builder(batch, length).inputs
            return case

        return builder

    return register


def enliven(module: Any) -> None:
    """Weights that keep the variance of what they multiply, and statistics of norms that are not 0 and 1."""
    import torch

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


def made(published: str, config: dict[str, Any], **arguments: Any) -> Any:
    """A model of transformers, of its configuration."""
    import transformers

    stem = re.sub(r"(Model|For\w+|With\w+|LMHead\w*|TextEncoder)$", "", published)
    configured = getattr(transformers, f"{stem}Config")(**config)
    return getattr(transformers, published)(configured, **arguments)


def outputs(network: Any, names: tuple[str, ...], wanted: tuple[str, ...], **fixed: Any) -> Any:
    """A module that takes its inputs by position and returns several outputs of a transformers model."""
    import torch

    class Wrapper(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *inputs: Any) -> Any:
            result = self.network(**dict(zip(names, inputs)), **fixed)
            return tuple(getattr(result, name) for name in wanted)

    return Wrapper().eval()


def images(network: Any, batch: int, height: int, width: int, *wanted: str, dynamic: bool = False) -> Case:
    """pixel_values [B, 3, H, W]; `dynamic`: H and W are symbols."""
    import torch

    axes = {0: "batch", 2: "height", 3: "width"} if dynamic else {0: "batch"}
    module = outputs(network, ("pixel_values",), wanted) if wanted else network.eval()
    return Case(module, {"pixel_values": torch.randn(batch, 3, height, width)}, {"pixel_values": axes})


def sizes(length: int, step: int = 32) -> tuple[int, int]:
    """Height and width of an image: multiples of `step`, not the same."""
    return step * (length // 3), step * (length // 3 + 1)


# -- text --------------------------------------------------------------------------------------------------------------


@whole("bert_tagger")
def bert_tagger(batch: int, length: int) -> Case:
    case = text_case(made("BertForTokenClassification", {**TEXT, "num_labels": 5}), batch, length)
    case.module = outputs(case.module.network, ("input_ids", "attention_mask"), ("logits",))
    return case


@whole("deberta_classifier")
def deberta_classifier(batch: int, length: int) -> Case:
    config = {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "num_labels": 3}
    import transformers

    network = transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**config))
    case = text_case(network, batch, length)
    case.module = outputs(network, ("input_ids", "attention_mask"), ("logits",))
    return case


@whole("gpt2_with_past")
def gpt2_with_past(batch: int, length: int) -> Case:
    return decoder_with_past(made("GPT2Model", GPT2), 2, 4, 8, batch, length)


@whole("llama_with_past")
def llama_with_past(batch: int, length: int) -> Case:
    return decoder_with_past(made("LlamaModel", LLAMA), 2, 2, 8, batch, length)


@whole("qwen3_with_past")
def qwen3_with_past(batch: int, length: int) -> Case:
    return decoder_with_past(made("Qwen3Model", {"head_dim": 8, **LLAMA}), 2, 2, 8, batch, length)


@whole("qwen3_moe")
def qwen3_moe(batch: int, length: int) -> Case:
    config = {**LLAMA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return text_case(made("Qwen3MoeModel", config), batch, length, use_cache=False)


@whole("mamba")
def mamba(batch: int, length: int) -> Case:
    config = {"vocab_size": 50, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}
    case = text_case(made("MambaModel", config), batch, length, use_cache=False)
    case.module = wrap(case.module.network, ("input_ids",), use_cache=False)
    case.inputs.pop("attention_mask")
    return Case(case.module, case.inputs, {"input_ids": {0: "batch"}})


T5 = {
    "vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip


@whole("t5_encoder")
def t5_encoder(batch: int, length: int) -> Case:
    return text_case(made("T5Model", T5).encoder, batch, length)


@whole("t5_decoder_with_past")
def t5_decoder_with_past(batch: int, length: int) -> Case:
    import torch

    network = made("T5ForConditionalGeneration", T5)
    return cached_decoder(network, {"encoder_outputs": torch.randn(batch, length, 32)}, 2, 4, 8, batch, length - 2)


def cached_decoder(
    network: Any, encoded: dict[str, Any], layers: int, heads: int, size: int, batch: int, length: int
) -> Case:
    """One step of an encoder-decoder model: caches of its own keys and of the encoder's come in, its own go out."""
    import torch
    from transformers import DynamicCache, EncoderDecoderCache

    rows = next(iter(encoded.values())).shape[1]

    class Wrapper(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, decoder_input_ids: Any, encoder_hidden: Any, *past: Any) -> Any:
            own = DynamicCache(ddp_cache_data=[(past[4 * i], past[4 * i + 1]) for i in range(layers)])
            cross = DynamicCache(ddp_cache_data=[(past[4 * i + 2], past[4 * i + 3]) for i in range(layers)])
            cache = EncoderDecoderCache(own, cross)
            result = self.network(
                encoder_outputs=(encoder_hidden,), decoder_input_ids=decoder_input_ids, past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
            present = [
                t for layer in result.past_key_values.self_attention_cache.layers for t in (layer.keys, layer.values)
            ]
            return (result.logits, *present)

    inputs = {"decoder_input_ids": tokens(batch, 1), "encoder_hidden": next(iter(encoded.values()))}
    axes: dict[str, dict[int, str]] = {"decoder_input_ids": {0: "batch"}, "encoder_hidden": {0: "batch", 1: "rows"}}
    for i in range(layers):
        for kind in ("key", "value"):
            inputs[f"past_{i}_{kind}"] = torch.randn(batch, heads, length, size)
            axes[f"past_{i}_{kind}"] = {0: "batch", 2: "past"}
        for kind in ("key", "value"):
            inputs[f"cross_{i}_{kind}"] = torch.randn(batch, heads, rows, size)
            axes[f"cross_{i}_{kind}"] = {0: "batch", 2: "rows"}
    return Case(Wrapper().eval(), inputs, axes)


@whole("marian")
def marian(batch: int, length: int) -> Case:
    config = {"vocab_size": 50, "max_position_embeddings": 64, **TWO, "pad_token_id": 0, "decoder_start_token_id": 0}
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    return Case(
        outputs(_marian(config), names, ("logits",), use_cache=False),
        {
            "input_ids": tokens(batch, length),
            "attention_mask": padding(batch, length),
            "decoder_input_ids": tokens(batch, length - 2),
        },
        {
            "input_ids": {0: "batch", 1: "length"},
            "attention_mask": {0: "batch", 1: "length"},
            "decoder_input_ids": {0: "batch", 1: "target"},
        },
    )


def _marian(config: dict[str, Any]) -> Any:
    import transformers

    return transformers.MarianMTModel(transformers.MarianConfig(**config))


@whole("lstm_tagger")
def lstm_tagger(batch: int, length: int) -> Case:
    """Tokens -> two layers of LSTM in both directions -> tags, with the best tag of each token."""
    import torch

    class Tagger(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(50, 16)
            self.lstm = torch.nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
            self.out = torch.nn.Linear(24, 7)

        def forward(self, input_ids: Any) -> Any:
            logits = self.out(self.lstm(self.embed(input_ids))[0])
            return torch.log_softmax(logits, -1), logits.argmax(-1)

    return Case(Tagger().eval(), {"input_ids": tokens(batch, length)}, {"input_ids": {0: "batch", 1: "length"}})


@whole("gru_decoder")
def gru_decoder(batch: int, length: int) -> Case:
    """One step of a recurrent transducer: a GRU cell's state in and out, and attention over what an encoder gave."""
    import torch

    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(50, 16)
            self.cell = torch.nn.GRU(16, 16, batch_first=True)
            self.out = torch.nn.Linear(32, 50)

        def forward(self, token: Any, state: Any, encoded: Any) -> Any:
            y, state = self.cell(self.embed(token), state)
            weights = torch.softmax(torch.einsum("bqd,bkd->bqk", y, encoded), -1)
            context = torch.einsum("bqk,bkd->bqd", weights, encoded)
            return self.out(torch.cat([y, context], -1)), state

    inputs = {"token": tokens(batch, 1), "state": torch.randn(1, batch, 16), "encoded": torch.randn(batch, length, 16)}
    return Case(
        Step().eval(), inputs, {"token": {0: "batch"}, "state": {1: "batch"}, "encoded": {0: "batch", 1: "length"}}
    )


@whole("graph_network")
def graph_network(batch: int, length: int) -> Case:
    """Messages along edges, summed by scatter_add, twice; the maximum over each graph."""
    import torch

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 16)

        def forward(self, nodes: Any, edges: Any) -> Any:
            x = nodes
            for layer in (self.first, self.second):
                x = torch.nn.functional.gelu(layer(x))
                index = edges[1].unsqueeze(-1).expand(-1, x.shape[1])
                x = x + torch.zeros_like(x).scatter_add(0, index, x.index_select(0, edges[0]))
            return x.amax(0, keepdim=True), torch.cumsum(x, 0)

    inputs = {"nodes": torch.randn(length, 8), "edges": torch.randint(0, length, (2, 3 * length))}
    return Case(Net().eval(), inputs, {"nodes": {0: "nodes"}, "edges": {1: "edges"}})


# -- sound -------------------------------------------------------------------------------------------------------------

WHISPER = {
    "vocab_size": 50, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32, **TWO,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip


@whole("whisper_encoder")
def whisper_encoder(batch: int, length: int) -> Case:
    import torch

    network = made("WhisperModel", WHISPER).encoder
    return Case(
        wrap(network, ("input_features",)),
        {"input_features": torch.randn(batch, 8, 40)},
        {"input_features": {0: "batch"}},
    )


@whole("whisper_decoder_with_past")
def whisper_decoder_with_past(batch: int, length: int) -> Case:
    import torch

    network = made("WhisperForConditionalGeneration", WHISPER)
    return cached_decoder(network, {"encoder_outputs": torch.randn(batch, 20, 32)}, 1, 4, 8, batch, length)


def sound(name: str, published: str, config: dict[str, Any], wanted: tuple[str, ...], samples: int = 400) -> None:
    """Registers a model of raw audio, [B, samples]."""

    @whole(name)
    def build(batch: int, length: int) -> Case:
        import torch

        network = made(published, config)
        return Case(
            outputs(network, ("input_values",), wanted),
            {"input_values": torch.randn(batch, samples * length)},
            {"input_values": {0: "batch", 1: "samples"}},
        )


WAV = {
    **SMALL, "vocab_size": 20, "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 5, 4),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
sound("wav2vec2", "Wav2Vec2ForCTC", WAV, ("logits",))
sound("hubert", "HubertForCTC", WAV, ("logits",))
sound("wavlm", "WavLMModel", WAV, ("last_hidden_state",))
sound("wav2vec2_conformer", "Wav2Vec2ConformerForCTC", {**WAV, "position_embeddings_type": "relative"}, ("logits",))


@whole("moonshine_encoder")
def moonshine_encoder(batch: int, length: int) -> Case:
    import torch

    config = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "encoder_num_hidden_layers": 1,
        "decoder_num_hidden_layers": 1, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
    }  # fmt: skip
    network = made("MoonshineModel", config).encoder
    return Case(
        wrap(network, ("input_values",)),
        {"input_values": torch.randn(batch, 800 * length)},
        {"input_values": {0: "batch", 1: "samples"}},
    )


VITS: dict[str, Any] = {
    "vocab_size": 38, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16,
    "flow_size": 16, "spectrogram_bins": 9, "upsample_initial_channel": 16, "upsample_rates": [4, 4],
    "upsample_kernel_sizes": [8, 8], "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]],
    "prior_encoder_num_flows": 2, "prior_encoder_num_wavenet_layers": 2, "duration_predictor_num_flows": 2,
    "duration_predictor_filter_channels": 16, "depth_separable_num_layers": 2, "noise_scale": 0.0,
    "noise_scale_duration": 0.0, "use_stochastic_duration_prediction": True, "wavenet_dilation_rate": 1,
    "speaking_rate": 0.5,
}  # fmt: skip


@whole("vits")
def vits(batch: int, length: int) -> Case:
    """Text to sound: flows, a predictor of durations, a path of durations, transposed convolutions."""
    import transformers

    network = transformers.VitsModel(transformers.VitsConfig(**VITS))
    return Case(
        outputs(network, ("input_ids", "attention_mask"), ("waveform",)),
        {"input_ids": tokens(1, length, 38), "attention_mask": padding(1, length)},
        {"input_ids": {1: "length"}, "attention_mask": {1: "length"}},
    )


@whole("piper")
def piper(batch: int, length: int) -> Case:
    """VITS as Piper exports it: several texts, their lengths, and noise, speed and noise of durations as one input."""
    import torch
    import transformers

    network = transformers.VitsModel(transformers.VitsConfig(**VITS))

    class Piper(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: Any, lengths: Any, scales: Any) -> Any:
            mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
            self.network.noise_scale, self.network.noise_scale_duration = scales[0], scales[2]
            return self.network(ids, mask.long(), speaking_rate=1 / scales[1]).waveform[:, None, None]

    return Case(
        Piper().eval(),
        {
            "input": tokens(2, length, 38),
            "input_lengths": torch.tensor([length, length - 2]),
            "scales": torch.tensor([0.0, 2.0, 0.0]),  # without noise, or two runs would differ
        },
        {"input": {1: "phonemes"}},
    )


def styled() -> Any:
    """Parts of StyleTTS 2: a norm and a block of convolutions whose scale and shift a vector of style gives."""
    import torch

    class StyledNorm(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int, style: int) -> None:
            super().__init__()
            self.norm, self.affine = (
                torch.nn.InstanceNorm1d(channels, affine=True),
                torch.nn.Linear(style, 2 * channels),
            )

        def forward(self, x: Any, style: Any) -> Any:
            scale, shift = self.affine(style)[:, :, None].chunk(2, 1)
            return (1 + scale) * self.norm(x) + shift

    class StyledBlock(torch.nn.Module):  # type: ignore[misc]
        """Two convolutions and a way past them; twice as long where it `grows`."""

        def __init__(self, of: int, to: int, style: int, grows: bool = False) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList([StyledNorm(of, style), StyledNorm(to, style)])
            self.convs = torch.nn.ModuleList(
                [torch.nn.Conv1d(of, to, 3, padding=1), torch.nn.Conv1d(to, to, 3, padding=1)]
            )
            self.past = torch.nn.Conv1d(of, to, 1, bias=False)
            self.grow = torch.nn.ConvTranspose1d(of, of, 3, 2, 1, 1, groups=of) if grows else None

        def forward(self, x: Any, style: Any) -> Any:
            y = torch.nn.functional.leaky_relu(self.norms[0](x, style), 0.2)
            if self.grow is not None:
                y, x = self.grow(y), torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            y = self.convs[1](torch.nn.functional.leaky_relu(self.norms[1](self.convs[0](y), style), 0.2))
            return (y + self.past(x)) * 2**-0.5

    return StyledNorm, StyledBlock


def istft_generator(channels: int, style: int, rates: tuple[int, int], size: int) -> Any:
    """An iSTFTNet with a harmonic source: pitch -> sines -> their spectrum -> convolutions with snakes -> sound."""
    import torch

    norm, _ = styled()
    hop = size // 4
    k, n = torch.arange(size // 2 + 1)[:, None], torch.arange(size)[None]
    angle = 2 * math.pi * k * n / size
    # Frequencies 0 and the highest have no sine: a rounded one would be a phase of pi or of -pi.
    sines = torch.where(k % (size // 2) == 0, 0.0, -torch.sin(angle))
    waves = torch.cat((torch.cos(angle), sines))[:, None] * torch.hann_window(size)

    class Snakes(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, wide: int) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList([norm(wide, style) for _ in range(2)])
            self.convs = torch.nn.ModuleList([torch.nn.Conv1d(wide, wide, 3, padding=d, dilation=d) for d in (1, 3)])
            self.rates = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1, wide, 1)) for _ in range(2)])

        def forward(self, x: Any, s: Any) -> Any:
            for adapt, conv, rate in zip(self.norms, self.convs, self.rates):
                y = adapt(x, s)
                x = x + conv(y + torch.sin(rate * y) ** 2 / rate)
            return x

    class Generator(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            wide = [channels // 2, channels // 4]
            self.register_buffer("waves", waves)
            self.mix = torch.nn.Linear(3, 1)
            self.ups = torch.nn.ModuleList(
                [torch.nn.ConvTranspose1d(2 * w, w, 2 * r, r, r // 2) for w, r in zip(wide, rates)]
            )
            steps = [rates[1], 1]
            self.beside = torch.nn.ModuleList(
                [torch.nn.Conv1d(size + 2, w, 2 * t, t, t // 2) if t > 1 else torch.nn.Conv1d(size + 2, w, 1)
                 for w, t in zip(wide, steps)]
            )  # fmt: skip
            self.blocks = torch.nn.ModuleList([Snakes(w) for w in wide])
            self.last = torch.nn.Conv1d(wide[-1], size + 2, 7, padding=3)

        def forward(self, x: Any, pitch: Any, s: Any) -> Any:
            fine = pitch[:, :, None] * torch.arange(1, 4) / 24000
            phase = torch.cumsum(fine.transpose(1, 2), 2) * math.prod(rates) * hop
            phase = torch.nn.functional.interpolate(phase, scale_factor=float(math.prod(rates) * hop), mode="linear")
            source = torch.tanh(self.mix(torch.sin(2 * math.pi * phase).transpose(1, 2))).transpose(1, 2)
            source = torch.nn.functional.pad(source, (size // 2, size // 2), mode="replicate")
            real, imaginary = torch.nn.functional.conv1d(source, self.waves, stride=hop).chunk(2, 1)
            harmonics = torch.cat((torch.sqrt(real**2 + imaginary**2 + 1e-9), torch.atan2(imaginary, real + 1e-3)), 1)
            for i, (up, beside, block) in enumerate(zip(self.ups, self.beside, self.blocks)):
                x = up(torch.nn.functional.leaky_relu(x, 0.1))
                if i == 1:  # the spectrum has a frame more
                    x = torch.nn.functional.pad(x, (1, 0), mode="reflect")
                x = block(x + beside(harmonics), s)
            x = self.last(torch.nn.functional.leaky_relu(x))
            size_of, turn = torch.exp(x[:, : size // 2 + 1].clamp(max=5)), torch.sin(x[:, size // 2 + 1 :])
            spectrum = torch.cat((size_of * torch.cos(turn), size_of * torch.sin(turn)), 1)
            return torch.nn.functional.conv_transpose1d(spectrum, self.waves / size, stride=hop)

    return Generator()


@whole("kokoro")
def kokoro(batch: int, length: int) -> Case:
    """Text, a voice and a speed to sound, as Kokoro (StyleTTS 2): ALBERT, LSTMs for durations and pitch, iSTFTNet."""
    import torch
    import transformers

    wide, style, most = 16, 8, 6
    _, block = styled()
    config = transformers.AlbertConfig(
        vocab_size=38, embedding_size=wide, hidden_size=wide, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=64,
    )  # fmt: skip

    def recurrent(of: int) -> Any:
        return torch.nn.LSTM(of, wide // 2, 1, batch_first=True, bidirectional=True)

    class Kokoro(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.AlbertModel(config, add_pooling_layer=False)
            self.embedding, self.text = torch.nn.Embedding(38, wide), torch.nn.Conv1d(wide, wide, 5, padding=2)
            self.text_norm = torch.nn.LayerNorm(wide)
            self.of_text, self.of_duration, self.shared = (
                recurrent(wide),
                recurrent(wide + style),
                recurrent(wide + style),
            )
            self.duration = torch.nn.Linear(wide, most)
            self.pitch = torch.nn.ModuleList([block(wide, wide, style), block(wide, wide, style, True)])
            self.loudness = torch.nn.ModuleList([block(wide, wide, style), block(wide, wide, style, True)])
            self.heads = torch.nn.ModuleList([torch.nn.Conv1d(wide, 1, 1) for _ in range(2)])
            self.down = torch.nn.ModuleList([torch.nn.Conv1d(1, 1, 3, 2, 1) for _ in range(2)])
            self.encode, self.decode = block(wide + 2, wide, style), block(wide + 2, wide, style, True)
            self.generator = istft_generator(wide, style, (4, 2), 16)

        def forward(self, ids: Any, voice: Any, speed: Any) -> Any:
            sound, prosody = voice[:, :style], voice[:, style:]
            hidden = self.bert(ids).last_hidden_state
            beside = prosody[:, None].expand(-1, ids.shape[1], -1)
            counts = torch.sigmoid(self.duration(self.of_duration(torch.cat((hidden, beside), 2))[0])).sum(-1) / speed
            ends = torch.cumsum(torch.round(counts).clamp(min=1).long(), 1)
            frames = torch.arange(ends[:, -1].max())
            place = (frames[None, None] < ends[:, :, None]).to(hidden.dtype)
            place = place - torch.nn.functional.pad(place, (0, 0, 1, 0))[:, :-1]  # [B, phonemes, frames]
            text = self.text(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
            text = self.of_text(torch.nn.functional.leaky_relu(self.text_norm(text), 0.2))[0]
            along = place.transpose(1, 2)
            x = along @ hidden
            beside = prosody[:, None].expand(-1, x.shape[1], -1)
            x = self.shared(torch.cat((x, beside), 2))[0].transpose(1, 2)
            curves = []
            for blocks, head in zip((self.pitch, self.loudness), self.heads):
                y = x
                for one in blocks:
                    y = one(y, prosody)
                curves.append(head(y))
            low = [down(curve) for down, curve in zip(self.down, curves)]
            y = self.encode(torch.cat(((along @ text).transpose(1, 2), *low), 1), sound)
            y = self.decode(torch.cat((y, *low), 1), sound)
            return self.generator(y, 100 + 20 * curves[0][:, 0], sound)

    return Case(
        Kokoro().eval(),
        {"input_ids": tokens(1, length, 38), "style": torch.randn(1, 2 * style), "speed": torch.ones(1)},
        {"input_ids": {1: "phonemes"}},
    )


@whole("fastspeech2")
def fastspeech2(batch: int, length: int) -> Case:
    import transformers

    config = {
        "vocab_size": 38, "hidden_size": 16, "num_mel_bins": 8, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2, "encoder_linear_units": 24,
        "decoder_linear_units": 24, "speech_decoder_postnet_units": 16, "speech_decoder_postnet_layers": 2,
        "duration_predictor_channels": 16, "energy_predictor_channels": 16, "pitch_predictor_channels": 16,
        "pitch_embed_kernel_size": 1, "energy_embed_kernel_size": 1,
    }  # fmt: skip
    network = transformers.FastSpeech2ConformerModel(transformers.FastSpeech2ConformerConfig(**config))
    return Case(
        outputs(network, ("input_ids",), ("spectrogram",)),
        {"input_ids": tokens(1, length, 38)},
        {"input_ids": {1: "length"}},
    )


@whole("hifigan")
def hifigan(batch: int, length: int) -> Case:
    import torch
    import transformers

    config = transformers.SpeechT5HifiGanConfig(
        model_in_dim=8, upsample_initial_channel=16, upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3, 5], resblock_dilation_sizes=[[1, 3], [1, 3]],
    )  # fmt: skip
    network = transformers.SpeechT5HifiGan(config)
    return Case(
        network.eval(), {"spectrogram": torch.randn(batch, length, 8)}, {"spectrogram": {0: "batch", 1: "frames"}}
    )


@whole("encodec_decoder")
def encodec_decoder(batch: int, length: int) -> Case:
    """Codes -> embeddings, summed -> LSTM -> transposed convolutions with reflected borders."""
    import torch
    import transformers

    config = transformers.EncodecConfig(
        num_filters=4, upsampling_ratios=[4, 2], codebook_size=32, codebook_dim=16, hidden_size=16, num_lstm_layers=1,
        sampling_rate=800,
    )  # fmt: skip
    network = transformers.EncodecModel(config)

    class Decoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, codes: Any) -> Any:
            return self.network.decoder(self.network.quantizer.decode(codes))

    return Case(
        Decoder().eval(), {"codes": torch.randint(0, 32, (2, batch, 3 * length))}, {"codes": {1: "batch", 2: "frames"}}
    )


@whole("istft_vocoder")
def istft_vocoder(batch: int, length: int) -> Case:
    """As Vocos and Kokoro end: magnitude and phase by convolutions, frames added by a transposed convolution."""
    import torch

    class Vocoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            size = 16
            self.inlet = torch.nn.Conv1d(8, 24, 7, padding=3)
            self.depthwise = torch.nn.Conv1d(24, 24, 7, padding=3, groups=24)
            self.norm = torch.nn.LayerNorm(24)
            self.wide, self.narrow = torch.nn.Linear(24, 48), torch.nn.Linear(48, 24)
            self.head = torch.nn.Linear(24, size + 2)
            k, n = torch.arange(size // 2 + 1)[:, None], torch.arange(size)[None]
            window = torch.hann_window(size)
            angle = 2 * math.pi * k * n / size
            self.register_buffer("real", (torch.cos(angle) * window)[:, None] / size)
            self.register_buffer("imaginary", (-torch.sin(angle) * window)[:, None] / size)

        def forward(self, mel: Any) -> Any:
            x = self.inlet(mel)
            y = self.norm(self.depthwise(x).transpose(1, 2))
            x = x + self.narrow(torch.nn.functional.gelu(self.wide(y))).transpose(1, 2)
            magnitude, phase = self.head(x.transpose(1, 2)).transpose(1, 2).chunk(2, 1)
            magnitude = torch.exp(magnitude).clamp(max=100.0)
            real, imaginary = magnitude * torch.cos(phase), magnitude * torch.sin(phase)
            transposed = torch.nn.functional.conv_transpose1d
            return transposed(real, self.real, stride=4) + transposed(imaginary, self.imaginary, stride=4)

    return Case(Vocoder().eval(), {"mel": torch.randn(batch, 8, length)}, {"mel": {0: "batch", 2: "frames"}})


# -- images ------------------------------------------------------------------------------------------------------------

IMAGE = {"image_size": 32, "patch_size": 8, **SMALL}


def transformer_of_images(
    name: str, published: str, config: dict[str, Any], wanted: str = "logits", size: int = 32, dynamic: bool = False
) -> None:
    @whole(name)
    def build(batch: int, length: int) -> Case:
        height, width = sizes(length, size // 2) if dynamic else (size, size)
        return images(made(published, config), batch, height, width, *wanted.split(), dynamic=dynamic)


transformer_of_images("vit_classifier", "ViTForImageClassification", IMAGE)
transformer_of_images("dinov2", "Dinov2Model", {**IMAGE, "patch_size": 8, "mlp_ratio": 2}, "last_hidden_state")
transformer_of_images(
    "swin_classifier",
    "SwinForImageClassification",
    {"image_size": 64, "patch_size": 4, "embed_dim": 16, "window_size": 4, "depths": [2, 2], "num_heads": [2, 4]},
    size=64,
)
transformer_of_images(
    "convnext",
    "ConvNextForImageClassification",
    {"hidden_sizes": [16, 24], "depths": [2, 1], "num_stages": 2},
    dynamic=True,
    size=64,
)
SEGFORMER = {
    "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4],
    "decoder_hidden_size": 24, "num_labels": 5,
}  # fmt: skip
transformer_of_images("segformer", "SegformerForSemanticSegmentation", SEGFORMER, size=128, dynamic=True)
transformer_of_images(
    "mobilevit",
    "MobileViTForImageClassification",
    {
        "image_size": 64,
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
        "num_attention_heads": 4,
    },
    size=64,
)
transformer_of_images("swin2sr", "Swin2SRForImageSuperResolution", {
    "image_size": 16, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4, "mlp_ratio": 2.0,
    "upscale": 2, "upsampler": "pixelshuffle",
}, "reconstruction", size=32, dynamic=True)  # fmt: skip


@whole("clip")
def clip(batch: int, length: int) -> Case:
    import torch
    import transformers

    config = transformers.CLIPConfig(
        text_config={**TEXT, "eos_token_id": 49, "projection_dim": 16}, vision_config={**IMAGE, "projection_dim": 16},
        projection_dim=16,
    )  # fmt: skip
    network = transformers.CLIPModel(config)
    names = ("input_ids", "attention_mask", "pixel_values")
    return Case(
        outputs(network, names, ("logits_per_image", "text_embeds", "image_embeds")),
        {
            "input_ids": tokens(batch, length),
            "attention_mask": padding(batch, length),
            "pixel_values": torch.randn(batch + 1, 3, 32, 32),
        },
        {
            "input_ids": {0: "texts", 1: "length"},
            "attention_mask": {0: "texts", 1: "length"},
            "pixel_values": {0: "images"},
        },
    )


def _sam() -> Any:
    import transformers

    vision = {
        "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64,
        "patch_size": 8, "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 48, "num_pos_feats": 8,
    }  # fmt: skip
    prompt = {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4}
    mask = {
        "hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "iou_head_hidden_dim": 16,
    }  # fmt: skip
    return transformers.SamModel(
        transformers.SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=mask)
    )


@whole("sam_encoder")
def sam_encoder(batch: int, length: int) -> Case:
    return image_case(_sam().vision_encoder, batch, 64)


@whole("sam_decoder")
def sam_decoder(batch: int, length: int) -> Case:
    """Points and the image's embedding -> masks and how good they are."""
    import torch

    names = ("image_embeddings", "input_points", "input_labels")
    return Case(
        outputs(_sam(), names, ("pred_masks", "iou_scores")),
        {
            "image_embeddings": torch.randn(1, 16, 8, 8),
            "input_points": torch.rand(1, 1, length, 2) * 64,
            "input_labels": torch.randint(0, 2, (1, 1, length)),
        },
        {"input_points": {2: "points"}, "input_labels": {2: "points"}},
    )


def _resnet_backbone() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])


@whole("detr_detector")
def detr_detector(batch: int, length: int) -> Case:
    import transformers

    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=_resnet_backbone(), backbone=None, use_pretrained_backbone=False,
        **TWO, num_queries=5,
    )  # fmt: skip
    network = transformers.DetrForObjectDetection(config)
    return images(network, batch, 64, 96, "logits", "pred_boxes")


@whole("rt_detr")
def rt_detr(batch: int, length: int) -> Case:
    """Deformable attention (GridSample), the best of its anchors (TopK), a pyramid of features."""
    import transformers

    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[16, 24, 32], d_model=32, num_queries=7,
        decoder_in_channels=[32, 32, 32], encoder_ffn_dim=48, decoder_ffn_dim=48, num_feature_levels=3,
        decoder_layers=2, decoder_attention_heads=4, encoder_attention_heads=4, decoder_n_points=2,
        feat_strides=[8, 16, 32], anchor_image_size=None, num_denoising=0,
    )  # fmt: skip
    return images(transformers.RTDetrForObjectDetection(config), batch, 96, 64, "logits", "pred_boxes")


@whole("deformable_detr")
def deformable_detr(batch: int, length: int) -> Case:
    import transformers

    config = transformers.DeformableDetrConfig(
        use_timm_backbone=False, backbone_config=_resnet_backbone(), backbone=None, use_pretrained_backbone=False,
        **{**TWO, "decoder_layers": 2}, num_queries=5, num_feature_levels=1, encoder_n_points=2, decoder_n_points=2,
    )  # fmt: skip
    return images(transformers.DeformableDetrForObjectDetection(config), batch, 64, 96, "logits", "pred_boxes")


@whole("rf_detr")
def rf_detr(batch: int, length: int) -> Case:
    """RF-DETR's parts: windowed DINOv2, a projector, the best proposals of two stages, deformable attention."""
    import transformers

    backbone = transformers.RfDetrDinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=64, patch_size=8,
        num_windows=2, window_block_indexes=[0], out_features=["stage1", "stage2"],
    )  # fmt: skip
    config = transformers.RfDetrConfig(
        backbone_config=backbone, d_model=32, num_queries=7, decoder_layers=2, decoder_ffn_dim=48, decoder_n_points=2,
        decoder_self_attention_heads=4, decoder_cross_attention_heads=4, group_detr=1,
    )  # fmt: skip
    return images(transformers.RfDetrForObjectDetection(config), batch, 64, 64, "logits", "pred_boxes")


@whole("lw_detr")
def lw_detr(batch: int, length: int) -> Case:
    import transformers

    backbone = transformers.LwDetrViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=16,
        window_block_indices=[0], out_indices=[1, 2], num_windows=4, mlp_ratio=2,
    )  # fmt: skip
    config = transformers.LwDetrConfig(
        backbone_config=backbone, projector_scale_factors=[1.0], d_model=32, decoder_layers=2, num_queries=6,
        group_detr=1,
        decoder_self_attention_heads=4, decoder_cross_attention_heads=4, decoder_n_points=2, decoder_ffn_dim=48,
    )  # fmt: skip
    return images(transformers.LwDetrForObjectDetection(config), batch, 64, 64, "logits", "pred_boxes")


@whole("yolos")
def yolos(batch: int, length: int) -> Case:
    config = {**SMALL, "image_size": [64, 96], "patch_size": 16, "num_detection_tokens": 5}
    return images(made("YolosForObjectDetection", config), batch, 64, 96, "logits", "pred_boxes")


@whole("depth_anything")
def depth_anything(batch: int, length: int) -> Case:
    import transformers

    backbone = transformers.Dinov2Config(
        **{**IMAGE, "image_size": 56, "patch_size": 14}, mlp_ratio=2, out_indices=[1, 2], reshape_hidden_states=False,
        apply_layernorm=True,
    )  # fmt: skip
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=32, neck_hidden_sizes=[8, 16], reassemble_factors=[2, 1],
        fusion_hidden_size=8, head_hidden_size=8,
    )  # fmt: skip
    return images(transformers.DepthAnythingForDepthEstimation(config), batch, 56, 56, "predicted_depth")


@whole("superpoint")
def superpoint(batch: int, length: int) -> Case:
    """Key points: maxima of their neighbourhoods, NonZero, TopK."""
    import transformers

    config = transformers.SuperPointConfig(
        encoder_hidden_sizes=[8, 8, 16, 16], decoder_hidden_size=32, descriptor_decoder_dim=32, max_keypoints=20,
        keypoint_threshold=0.001, border_removal_distance=0,
    )  # fmt: skip
    case = images(
        transformers.SuperPointForKeypointDetection(config), 1, *sizes(length), "keypoints", "scores", "descriptors",
        dynamic=True,
    )  # fmt: skip
    case.axes = {"pixel_values": {2: "height", 3: "width"}}
    return case


def of_torchvision(name: str, published: str, height: int, width: int, dynamic: bool = True, **arguments: Any) -> None:
    @whole(name)
    def build(batch: int, length: int) -> Case:
        import torchvision

        network = getattr(torchvision.models, published)(weights=None, **arguments)
        grown = 0 if length < 9 or not dynamic else 32
        return images(network, batch, height + grown, width + grown, dynamic=dynamic)


of_torchvision("efficientnet", "efficientnet_b0", 64, 96, num_classes=10)
of_torchvision("mobilenet_v3", "mobilenet_v3_small", 64, 96, num_classes=10)
of_torchvision("shufflenet", "shufflenet_v2_x0_5", 64, 96, num_classes=10)
of_torchvision("regnet", "regnet_y_400mf", 64, 64, num_classes=10)


def of_timm(name: str, published: str, size: int, **arguments: Any) -> None:
    @whole(name)
    def build(batch: int, length: int) -> Case:
        import timm

        return images(timm.create_model(published, pretrained=False, num_classes=10, **arguments), batch, size, size)


of_timm("tiny_vit", "tiny_vit_5m_224", 64, embed_dims=(16, 24, 32, 40), depths=(1, 1, 1, 1), num_heads=(2, 2, 2, 2))
of_timm("edgenext", "edgenext_xx_small", 64)
of_timm("repvit", "repvit_m0_9", 64, embed_dim=(8, 16, 24, 32), depth=(1, 1, 1, 1))


@whole("deeplab")
def deeplab(batch: int, length: int) -> Case:
    import torch
    import torchvision

    network = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )

    class Segment(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Any) -> Any:
            scores = self.network(x)["out"]
            return scores, scores.argmax(1)

    return images(Segment(), batch, *sizes(length), dynamic=True)


@whole("ssdlite")
def ssdlite(batch: int, length: int) -> Case:
    """With its tail: boxes of anchors, scores above a threshold, TopK and NonMaxSuppression for each class."""
    import torch
    import torchvision

    network = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4, score_thresh=0.2, detections_per_img=20, topk_candidates=40
    )

    class Detect(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, image: Any) -> Any:
            found = self.network([image])
            (found,) = found[1] if isinstance(found, tuple) else found  # scripted, it gives its losses, too
            return found["boxes"], found["scores"], found["labels"]

    return Case(Detect().eval(), {"image": torch.rand(3, 64, 96)}, {})


def _conv(inner: int, outer: int, k: int = 3, s: int = 1, groups: int = 1, act: str = "SiLU") -> Any:
    import torch

    return torch.nn.Sequential(
        torch.nn.Conv2d(inner, outer, k, s, k // 2, groups=groups, bias=False),
        torch.nn.BatchNorm2d(outer),
        getattr(torch.nn, act)(),
    )


def _yolo(tail: str) -> Any:
    """The parts of YOLOv8: C2f blocks, spatial pyramid pooling, a neck, a head of distances (DFL), and a tail."""
    import torch

    class C2f(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.half = outer // 2
            self.first = _conv(inner, outer, 1)
            self.block = torch.nn.Sequential(_conv(self.half, self.half), _conv(self.half, self.half))
            self.last = _conv(self.half * 3, outer, 1)

        def forward(self, x: Any) -> Any:
            a, b = self.first(x).split((self.half, self.half), 1)
            return self.last(torch.cat((a, b, b + self.block(b)), 1))

    class Yolo(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Sequential(_conv(3, 8, s=2), _conv(8, 16, s=2), C2f(16, 16))
            self.p3 = torch.nn.Sequential(_conv(16, 16, s=2), C2f(16, 16))
            self.p4 = torch.nn.Sequential(_conv(16, 32, s=2), C2f(32, 32))
            self.pool, self.after = torch.nn.MaxPool2d(5, 1, 2), _conv(96, 32, 1)
            self.up = torch.nn.Upsample(scale_factor=2, mode="nearest")
            self.neck = C2f(48, 16)
            self.boxes = torch.nn.ModuleList(torch.nn.Conv2d(c, 4 * 8, 1) for c in (16, 32))
            self.classes = torch.nn.ModuleList(torch.nn.Conv2d(c, 3, 1) for c in (16, 32))
            self.register_buffer("bins", torch.arange(8.0).reshape(1, 1, 8, 1))

        def forward(self, image: Any) -> Any:
            p3 = self.p3(self.stem(image))
            p4 = self.p4(p3)
            one = self.pool(p4)
            p4 = self.after(torch.cat((p4, one, self.pool(one)), 1))
            levels = [self.neck(torch.cat((self.up(p4), p3), 1)), p4]
            boxes, scores = [], []
            for level, box, kind, stride in zip(levels, self.boxes, self.classes, (8, 16)):
                h, w = level.shape[2:]
                y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
                centre = torch.stack((x, y)).reshape(1, 2, -1)
                distance = box(level).reshape(image.shape[0], 4, 8, -1)
                distance = (distance.softmax(2) * self.bins).sum(2)
                low, high = distance.chunk(2, 1)
                boxes.append(torch.cat((centre - low, centre + high), 1) * stride)
                scores.append(kind(level).reshape(image.shape[0], 3, -1).sigmoid())
            box, score = torch.cat(boxes, 2).transpose(1, 2), torch.cat(scores, 2).transpose(1, 2)
            return self.select(box, score)

        def select(self, box: Any, score: Any) -> Any:
            if tail == "top":  # YOLOv10: no suppression
                index = score.amax(-1).topk(10, 1)[1].unsqueeze(-1)
                box, score = box.gather(1, index.expand(-1, -1, 4)), score.gather(1, index.expand(-1, -1, 3))
                value, flat = score.flatten(1).topk(10, -1)
                row, label = flat // 3, flat % 3
                return torch.cat(
                    (box.gather(1, row.unsqueeze(-1).expand(-1, -1, 4)), value[..., None], label[..., None].float()), -1
                )
            from torchvision.ops import batched_nms

            value, label = score[0].max(-1)
            keep = torch.nonzero(value > 0.4).squeeze(1)
            box, value, label = box[0][keep], value[keep], label[keep]
            chosen = batched_nms(box, value, label, 0.5)[:20]
            return box[chosen], value[chosen], label[chosen]

    return Yolo()


@whole("yolo_top")
def yolo_top(batch: int, length: int) -> Case:
    return images(_yolo("top"), batch, *sizes(length), dynamic=True)


@whole("yolo_nms")
def yolo_nms(batch: int, length: int) -> Case:
    case = images(_yolo("nms"), 1, *sizes(length), dynamic=True)
    case.axes = {"pixel_values": {2: "height", 3: "width"}}
    return case


@whole("crnn")
def crnn(batch: int, length: int) -> Case:
    """Recognition of text lines of any width: convolutions, two LSTMs, CTC's best path."""
    import torch

    class Crnn(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.features = torch.nn.Sequential(
                _conv(3, 8, act="ReLU"),
                torch.nn.MaxPool2d(2),
                _conv(8, 16, act="ReLU"),
                torch.nn.MaxPool2d((2, 1), (2, 1)),
                _conv(16, 16, act="ReLU"),
                torch.nn.MaxPool2d((2, 1), (2, 1)),
                _conv(16, 24, act="ReLU"),
            )
            self.lstm = torch.nn.LSTM(24 * 4, 16, num_layers=2, bidirectional=True)
            self.out = torch.nn.Linear(32, 20)

        def forward(self, image: Any) -> Any:
            x = self.features(image)
            b, c, h, w = x.shape
            x = self.lstm(x.reshape(b, c * h, w).permute(2, 0, 1))[0]
            p = self.out(x).permute(1, 0, 2).softmax(-1)
            return p, p.argmax(-1)

    inputs = {"image": torch.randn(batch, 3, 32, 12 * length)}
    return Case(Crnn().eval(), inputs, {"image": {0: "batch", 3: "width"}})


@whole("ocr_svtr")
def ocr_svtr(batch: int, length: int) -> Case:
    """PP-OCR's recognition: depthwise convolutions with squeeze and excitation, attention along the line, any width."""
    import torch

    torch.backends.mha.set_fastpath_enabled(False)  # exporters don't know it

    class Gate(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, c: int) -> None:
            super().__init__()
            self.down, self.up = torch.nn.Conv2d(c, c // 4, 1), torch.nn.Conv2d(c // 4, c, 1)

        def forward(self, x: Any) -> Any:
            y = torch.nn.functional.adaptive_avg_pool2d(x, 1)
            return x * torch.nn.functional.hardsigmoid(self.up(torch.relu(self.down(y))))

    class Rec(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            parts: list[Any] = [_conv(3, 16, s=2, act="Hardswish")]
            for inner, outer, stride in ((16, 24, (2, 1)), (24, 32, (2, 1)), (32, 32, (1, 1))):
                wide = torch.nn.Conv2d(inner, inner, 5, stride, 2, groups=inner, bias=False)
                parts += [
                    wide,
                    torch.nn.BatchNorm2d(inner),
                    torch.nn.Hardswish(),
                    Gate(inner),
                    _conv(inner, outer, 1, act="Hardswish"),
                ]
            self.features = torch.nn.Sequential(*parts)
            layer = torch.nn.TransformerEncoderLayer(32, 4, 48, 0.0, "gelu", batch_first=True, norm_first=True)
            self.mixer = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = torch.nn.Linear(32, 30)

        def forward(self, image: Any) -> Any:
            x = torch.nn.functional.avg_pool2d(self.features(image), (6, 2))
            return self.out(self.mixer(x.squeeze(2).transpose(1, 2))).softmax(-1)

    inputs = {"image": torch.randn(batch, 3, 48, 16 * length)}
    return Case(Rec().eval(), inputs, {"image": {0: "batch", 3: "width"}})


@whole("ocr_detector")
def ocr_detector(batch: int, length: int) -> Case:
    """DB: a pyramid of features brought to one size, transposed convolutions, a map of probabilities."""
    import torch

    class Detector(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stages = torch.nn.ModuleList(
                _conv(a, b, s=2, act="Hardswish") for a, b in ((3, 8), (8, 16), (16, 24), (24, 32))
            )
            self.side = torch.nn.ModuleList(torch.nn.Conv2d(c, 16, 1) for c in (8, 16, 24, 32))
            self.head = torch.nn.Sequential(
                _conv(64, 16, act="ReLU"),
                torch.nn.ConvTranspose2d(16, 8, 2, 2),
                torch.nn.BatchNorm2d(8),
                torch.nn.ReLU(),
            )
            self.last = torch.nn.Conv2d(8, 1, 3, padding=1)

        def forward(self, image: Any) -> Any:
            maps, x = [], image
            for stage in self.stages:
                maps.append(x := stage(x))
            sides = [side(m) for side, m in zip(self.side, maps)]
            whole = [sides[-1]]
            for side in sides[-2::-1]:
                whole.append(side + torch.nn.functional.interpolate(whole[-1], size=side.shape[2:], mode="nearest"))
            size = whole[-1].shape[2:]
            same = [torch.nn.functional.interpolate(m, size=size, mode="bilinear", align_corners=False) for m in whole]
            return torch.sigmoid(self.last(self.head(torch.cat(same, 1))))

    return images(Detector(), batch, *sizes(length), dynamic=True)


@whole("face_landmarks")
def face_landmarks(batch: int, length: int) -> Case:
    """ArcFace's and RetinaFace's parts: PReLU of each channel, pixel shuffles, a unit embedding, roll and flip."""
    import torch

    class Face(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act = torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.PReLU(16)
            self.second, self.norm = torch.nn.Conv2d(16, 16, 3, 1, 1), torch.nn.InstanceNorm2d(16, affine=True)
            self.shuffle = torch.nn.PixelShuffle(2)
            self.out = torch.nn.Linear(4, 8)

        def forward(self, x: Any) -> Any:
            x = self.act(self.first(x))
            x = x + self.norm(torch.nn.functional.pad(self.second(x), (1, 1, 1, 1), mode="reflect"))[..., 1:-1, 1:-1]
            x = self.shuffle(torch.nn.functional.pixel_unshuffle(x, 2) * 0.5)
            x = self.shuffle(torch.roll(x, (1, 2), (2, 3)))
            y = torch.nn.functional.normalize(self.out(x.flip(3).mean((2, 3))), dim=1)
            return (
                y,
                torch.cdist(y, y),
                x.std((2, 3)),
                torch.nn.functional.grid_sample(x, torch.tanh(x[:, :2].permute(0, 2, 3, 1)), align_corners=False),
            )

    return images(Face(), batch, *sizes(length), dynamic=True)


@whole("unet_diffusion")
def unet_diffusion(batch: int, length: int) -> Case:
    import diffusers
    import torch

    network = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=24, norm_num_groups=4,
        attention_head_dim=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    names = ("sample", "timestep", "encoder_hidden_states")
    return Case(
        outputs(network, names, ("sample",)),
        {
            "sample": torch.randn(batch, 4, 8, 8),
            "timestep": torch.tensor([7]),
            "encoder_hidden_states": torch.randn(batch, length, 24),
        },
        {"sample": {0: "batch"}, "encoder_hidden_states": {0: "batch", 1: "length"}},
    )


@whole("vae_decoder")
def vae_decoder(batch: int, length: int) -> Case:
    import diffusers
    import torch

    network = diffusers.AutoencoderKL(
        block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip

    class Decoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, latent: Any) -> Any:
            return self.network.decode(latent).sample

    return Case(
        Decoder().eval(),
        {"latent": torch.randn(batch, 4, length, length + 1)},
        {"latent": {0: "batch", 2: "height", 3: "width"}},
    )


@whole("dit")
def dit(batch: int, length: int) -> Case:
    """A diffusion transformer: norms whose scale and shift come from the time step."""
    import diffusers
    import torch

    network = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        sample_size=8,
        num_embeds_ada_norm=20,
        norm_num_groups=4,
    )
    names = ("hidden_states", "timestep", "class_labels")
    return Case(
        outputs(network, names, ("sample",)),
        {
            "hidden_states": torch.randn(batch, 4, 8, 8),
            "timestep": torch.full((batch,), 7),
            "class_labels": torch.arange(batch),
        },
        {n: {0: "batch"} for n in names},
    )


# -- documents ---------------------------------------------------------------------------------------------------------


@whole("layoutlm")
def layoutlm(batch: int, length: int) -> Case:
    import torch

    network = made("LayoutLMForTokenClassification", {**TEXT, "max_2d_position_embeddings": 64})
    case = text_case(network, batch, length)
    low = torch.randint(0, 30, (batch, length, 2))
    inputs = {**case.inputs, "bbox": torch.cat((low, low + torch.randint(0, 30, (batch, length, 2))), -1)}
    return Case(
        outputs(network, ("input_ids", "attention_mask", "bbox"), ("logits",)),
        inputs,
        {**case.axes, "bbox": {0: "batch", 1: "length"}},
    )


def main() -> int:
    names = [n for n in BUILDERS if n not in OTHERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path, help="folder of the exports")
    parser.add_argument("--only", type=lambda t: t.split(","), default=names, help=f"models out of {', '.join(names)}")
    parser.add_argument("--exporters", type=lambda t: t.split(","), default=["torchscript17", "dynamo20"])
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for name in options.only:
        for exporter in options.exporters:
            kind, opset = re.fullmatch(r"([a-z]+)(\d+)", exporter).groups()  # type: ignore[union-attr]
            cell = Cell(name, "eager", kind, int(opset), True)
            file, error = options.cache / f"{cell.name}.onnx", options.cache / f"{cell.name}.error"
            if not file.exists() and not error.exists():
                export(options.cache, cell, {})
            if error.exists():
                print(f"{cell.name}: {error.read_text().splitlines()[0]}", flush=True)
            else:
                print(f"{cell.name}: {file.stat().st_size >> 10} KiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
