"""Models of full size that this project was not developed with, with random weights, for scripts/gpu_zoo.py.

`MODELS[name](batch)` returns a `Case` with static shapes. The nine models of `NINE` follow no rule. The other 16 were
chosen by a rule from the lists of torchvision 0.28, timm 1.0.31 and transformers 5.24. A family is a module of the
package; the families of `NINE` are skipped.

- torchvision: the first model of each of the first five families in alphabetical order.
- timm: the first family of each initial letter from b to g, and its model with the fewest parameters.
- transformers: the first family of five tasks (masked language model, classification of sound, speech recognition,
  classification of images, object detection) with its default configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import timm
import torch
import torchvision
import transformers

from models.pytorch.case import Case, wrap
from models.pytorch.published import enliven, image_case, network, text_case

Builder = Callable[[int], Case]

# name -> height and width
TORCHVISION = {
    **dict.fromkeys(("convnext_tiny", "mobilenet_v3_large", "efficientnet_b0", "swin_t", "resnext50_32x4d"), 224),
    **dict.fromkeys(("alexnet", "densenet121", "googlenet", "maxvit_t"), 224),
    "inception_v3": 299,
}
TIMM = (
    *("beit_base_patch16_224", "cait_xxs24_224", "davit_tiny", "edgenext_xx_small", "fasternet_t0", "gcvit_xxtiny"),
)
SEGFORMER_B1 = {"hidden_sizes": [64, 128, 320, 512], "depths": [2, 2, 2, 2], "num_attention_heads": [1, 2, 5, 8]}
DETR = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
# name -> class, number of tokens
TEXTS = {"modernbert": ("ModernBertModel", 256), "distilbert": ("DistilBertModel", 128), "albert": ("AlbertModel", 128)}
# name -> class, configuration, shape of the input without its batch, name of the input, outputs
OTHERS: dict[str, tuple[str, Mapping[str, Any], tuple[int, ...], str, str]] = {
    "wav2vec2": ("Wav2Vec2Model", {}, (16000,), "input_values", "last_hidden_state"),
    "segformer_b1": ("SegformerForSemanticSegmentation", SEGFORMER_B1, (3, 512, 512), "pixel_values", "logits"),
    "audio_spectrogram": ("ASTModel", {}, (1024, 128), "input_values", "last_hidden_state"),
    "data2vec_audio": ("Data2VecAudioModel", {}, (16000,), "input_values", "last_hidden_state"),
    "bit": ("BitModel", {}, (3, 224, 224), "pixel_values", "last_hidden_state"),
}


def of_torchvision(name: str, size: int, batch: int) -> Case:
    # The initialization of these two models takes a minute.
    fixed = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return image_case(getattr(torchvision.models, name)(weights=None, **fixed), batch, size, size)


def of_timm(name: str, batch: int) -> Case:
    return image_case(timm.create_model(name), batch, 224, 224)


def of_text(architecture: str, length: int, batch: int) -> Case:
    return text_case(network(architecture, {}), batch, length, "last_hidden_state")


def of_transformers(
    architecture: str, config: Mapping[str, Any], shape: tuple[int, ...], name: str, wanted: str, batch: int
) -> Case:
    return Case(wrap(network(architecture, config), (name,), (wanted,)), {name: torch.randn(batch, *shape)})


def conditional_detr(batch: int) -> Case:
    backbone = transformers.ResNetConfig(out_features=["stage4"])
    module = network("ConditionalDetrForObjectDetection", {**DETR, "backbone_config": backbone})
    return image_case(module, batch, 512, 512, "logits pred_boxes")


NINE = (
    *("convnext_tiny", "mobilenet_v3_large", "modernbert", "wav2vec2", "efficientnet_b0", "distilbert", "swin_t"),
    *("segformer_b1", "resnext50_32x4d"),
)
# Also measured at batch 32.
LARGE = (*("convnext_tiny", "mobilenet_v3_large", "efficientnet_b0", "distilbert", "swin_t", "resnext50_32x4d"),)
MADE: dict[str, Builder] = {
    **{name: partial(of_torchvision, name, size) for name, size in TORCHVISION.items()},
    **{name: partial(of_timm, name) for name in TIMM},
    **{name: partial(of_text, *row) for name, row in TEXTS.items()},
    **{name: partial(of_transformers, *row) for name, row in OTHERS.items()},
    "conditional_detr": conditional_detr,
}


def foreign(name: str, batch: int) -> Case:
    """Returns a model whose weights depend only on its name. None of them is 0 or 1, which passes would fold."""
    torch.manual_seed(0)
    case = MADE[name](batch)
    case.axes = {}
    enliven(case.module.eval())
    return case


# The models of NINE come first.
MODELS: dict[str, Builder] = {name: partial(foreign, name) for name in dict.fromkeys((*NINE, *MADE))}
