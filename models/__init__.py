"""The model zoo: well-known architectures with deterministic random weights, for tests, demos and timings.

`ZOO[name](batch=1, small=False, dynamic=False, seed=0)` gives an `onnx.ModelProto` (IR 8, opset 17). The weights are
not trained, but scaled like trained ones: activations neither vanish nor explode.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import onnx

from models.bert import bert
from models.chess import chess
from models.gpt2 import gpt2
from models.mobilenet import mobilenet_v2
from models.resnet import resnet18, resnet50
from models.sd_block import sd_block
from models.unet import unet
from models.vgg import vgg16_bn
from models.vit import vit
from models.yolo import yolo


class Builder(Protocol):
    """Builds one model of the zoo.

    Args:
        batch: the static batch size.
        small: whether to build few channels and layers, for tests.
        dynamic: whether batch and sequence lengths are symbolic ("batch", "sequence").
        seed: seed of the weights; equal arguments give equal bytes.
    """

    def __call__(
        self, batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0
    ) -> onnx.ModelProto: ...


ZOO: dict[str, Builder] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vgg16_bn": vgg16_bn,
    "mobilenet_v2": mobilenet_v2,
    "unet": unet,
    "yolo": yolo,
    "bert": bert,
    "vit": vit,
    "gpt2": gpt2,
    "sd_block": sd_block,
    "chess": chess,
}


# Names of the models in tables of results.
TITLES = {
    "resnet18": "ResNet-18 224",
    "resnet50": "ResNet-50 224",
    "vgg16_bn": "VGG16-BN 224",
    "mobilenet_v2": "MobileNetV2",
    "unet": "U-Net 256",
    "yolo": "YOLO-style 416",
    "bert": "BERT-base S=128",
    "vit": "ViT-B/16",
    "gpt2": "GPT-2",
    "sd_block": "SD-UNet block 64x64",
    "chess": "chess",
}


def feeds_of(model: onnx.ModelProto, batch: int = 1, length: int = 128) -> dict[str, Any]:
    """Returns inputs: normal draws, masks of ones, and indices of 0 and 1.

    Args:
        model: the model.
        batch: size of a symbolic first dimension of an input.
        length: size of any other symbolic dimension.
    """
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value or (batch if i == 0 else length) for i, d in enumerate(dims)]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind == "f":
            feeds[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            feeds[value.name] = np.ones(shape, dtype) if "mask" in value.name else rng.integers(0, 2, shape, dtype)
    return feeds
