"""The zoo's architectures in idiomatic PyTorch, with different random weights.

`twin(name)` returns the module, and the names of the ONNX model's inputs in the order of the module's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

# In float16 these models use the channels-last layout.
CONVOLUTIONAL = ("resnet18", "resnet50", "vgg16_bn", "mobilenet_v2", "unet", "yolo", "sd_block")


class SdBlock(nn.Module):  # type: ignore[misc]
    """models/sd_block.py, in the style of diffusers."""

    def __init__(self, c: int = 320, e: int = 1280, f: int = 768) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, c), nn.GroupNorm(32, c)
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.time = nn.Linear(e, c)
        self.norm = nn.GroupNorm(32, c, eps=1e-6)
        self.proj_in, self.proj_out = nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(3))
        for name, source in (("self", c), ("cross", f)):
            for part, d in (("q", c), ("k", source), ("v", source)):
                setattr(self, f"{name}_{part}", nn.Linear(d, c, bias=False))
            setattr(self, f"{name}_o", nn.Linear(c, c))
        self.wide, self.narrow = nn.Linear(c, 8 * c), nn.Linear(4 * c, c)

    def attend(self, name: str, x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        def heads(part: str, t: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = getattr(self, f"{name}_{part}")(t)
            return y.view(y.shape[0], y.shape[1], 8, -1).transpose(1, 2)

        y = functional.scaled_dot_product_attention(heads("q", x), heads("k", source), heads("v", source))
        result: torch.Tensor = getattr(self, f"{name}_o")(y.transpose(1, 2).reshape(x.shape))
        return result

    def forward(self, sample: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        silu = functional.silu
        y = self.conv1(silu(self.norm1(sample)))
        y = y + self.time(silu(time))[:, :, None, None]
        x = sample + self.conv2(silu(self.norm2(y)))
        n, c, h, w = x.shape
        tokens = self.proj_in(self.norm(x)).permute(0, 2, 3, 1).reshape(n, h * w, c)
        y = self.norms[0](tokens)
        tokens = self.attend("self", y, y) + tokens
        tokens = self.attend("cross", self.norms[1](tokens), context) + tokens
        value, gate = self.wide(self.norms[2](tokens)).chunk(2, dim=-1)
        tokens = self.narrow(value * functional.gelu(gate)) + tokens
        result: torch.Tensor = self.proj_out(tokens.reshape(n, h, w, c).permute(0, 3, 1, 2)) + x
        return result


class UNet(nn.Module):  # type: ignore[misc]
    """models/unet.py."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()

        def double(c: int, out: int) -> nn.Module:
            parts: list[nn.Module] = []
            for given in (c, out):
                parts += [nn.Conv2d(given, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            return nn.Sequential(*parts)

        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(double(c, out) for c, out in zip([3, *widths], widths, strict=False))
        self.middle = double(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(2 * w, w, 2, 2, bias=False), nn.BatchNorm2d(w), nn.ReLU()) for w in widths
        )
        self.join = nn.ModuleList(double(2 * w, w) for w in widths)
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = functional.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for skip, up, join in zip(reversed(skips), reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return torch.sigmoid(self.last(x))


class Yolo(nn.Module):  # type: ignore[misc]
    """models/yolo.py."""

    def __init__(self, out: int = 255) -> None:
        super().__init__()

        def block(c: int, width: int, kernel: int) -> nn.Module:
            conv = nn.Conv2d(c, width, kernel, padding=kernel // 2, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(width), nn.LeakyReLU(0.1))

        widths = [3, 16, 32, 64, 128]
        self.stem = nn.ModuleList(block(c, w, 3) for c, w in pairwise(widths))
        self.fine, self.a, self.b = block(128, 256, 3), block(256, 512, 3), block(512, 1024, 3)
        self.neck, self.c, self.up = block(1024, 256, 1), block(256, 512, 3), block(256, 128, 1)
        self.coarse_out, self.d, self.fine_out = nn.Conv2d(512, out, 1), block(384, 256, 3), nn.Conv2d(256, out, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for part in self.stem:
            x = functional.max_pool2d(part(x), 2)
        fine = self.fine(x)
        x = self.a(functional.max_pool2d(fine, 2))
        neck = self.neck(self.b(functional.max_pool2d(functional.pad(x, (0, 1, 0, 1), value=-1e4), 2, 1)))
        up = functional.interpolate(self.up(neck), scale_factor=2)
        return self.coarse_out(self.c(neck)), self.fine_out(self.d(torch.cat([up, fine], 1)))


class Chess(nn.Module):  # type: ignore[misc]
    """models/chess.py."""

    def __init__(self, layers: int = 8, d: int = 256, heads: int = 8, short: int = 32, code: int = 256) -> None:
        super().__init__()
        self.heads, self.layers, self.d = heads, layers, d
        self.embed, self.position = nn.Linear(112, d), nn.Parameter(torch.randn(64, d))
        self.matrix = nn.Linear(code, 64 * 64, bias=False)

        def each(make: Callable[[], nn.Module]) -> nn.ModuleList:
            return nn.ModuleList(make() for _ in range(layers))

        self.pack = each(lambda: nn.Linear(d, short, bias=False))
        self.hidden, self.hidden_norm = each(lambda: nn.Linear(64 * short, code)), each(lambda: nn.LayerNorm(code))
        self.wide, self.wide_norm = (
            each(lambda: nn.Linear(code, heads * code)),
            each(lambda: nn.LayerNorm(heads * code)),
        )
        self.q, self.k, self.v, self.o = (each(lambda: nn.Linear(d, d)) for _ in range(4))
        self.norm1, self.norm2 = each(lambda: nn.LayerNorm(d)), each(lambda: nn.LayerNorm(d))
        self.in_, self.out = each(lambda: nn.Linear(d, 2 * d)), each(lambda: nn.Linear(2 * d, d))
        self.origin, self.target = nn.Linear(d, d), nn.Linear(d, d)
        self.value, self.value1, self.value2 = nn.Linear(d, 8), nn.Linear(64 * 8, 32), nn.Linear(32, 3)

    def forward(self, planes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n, mish, silu = planes.shape[0], functional.mish, functional.silu

        def split(t: torch.Tensor) -> torch.Tensor:
            return t.view(n, 64, self.heads, -1).transpose(1, 2)

        x = mish(self.embed(planes.reshape(n, 112, 64).transpose(1, 2))) + self.position
        for i in range(self.layers):
            y = self.hidden_norm[i](silu(self.hidden[i](self.pack[i](x).reshape(n, -1))))
            y = self.wide_norm[i](silu(self.wide[i](y)))
            bias = self.matrix(y.view(n, self.heads, -1)).view(n, self.heads, 64, 64)
            y = functional.scaled_dot_product_attention(
                split(self.q[i](x)), split(self.k[i](x)), split(self.v[i](x)), attn_mask=bias
            )
            x = self.norm1[i](self.o[i](y.transpose(1, 2).reshape(n, 64, -1)) + x)
            x = self.norm2[i](self.out[i](functional.relu(self.in_[i](x)).square()) + x)
        policy = self.origin(x) @ self.target(x).transpose(1, 2) * self.d**-0.5
        value = mish(self.value1(mish(self.value(x)).reshape(n, -1)))
        return policy.reshape(n, -1), self.value2(value).softmax(-1)


class Gpt2(nn.Module):  # type: ignore[misc]
    """models/gpt2.py."""

    def __init__(
        self, layers: int = 12, d: int = 768, heads: int = 12, words: int = 50257, positions: int = 1024
    ) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.positions = nn.Embedding(words, d), nn.Embedding(positions, d)

        def each(make: Callable[[], nn.Module]) -> nn.ModuleList:
            return nn.ModuleList(make() for _ in range(layers))

        self.norm1, self.norm2 = each(lambda: nn.LayerNorm(d)), each(lambda: nn.LayerNorm(d))
        self.joint, self.o = each(lambda: nn.Linear(d, 3 * d)), each(lambda: nn.Linear(d, d))
        self.wide, self.narrow = each(lambda: nn.Linear(d, 4 * d)), each(lambda: nn.Linear(4 * d, d))
        self.norm = nn.LayerNorm(d)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        n, length = ids.shape
        x = self.words(ids) + self.positions.weight[:length]
        seen = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril() & mask[:, None, None].bool()

        def split(t: torch.Tensor) -> torch.Tensor:
            return t.view(n, length, self.heads, -1).transpose(1, 2)

        for norm1, joint, o, norm2, wide, narrow in zip(
            self.norm1, self.joint, self.o, self.norm2, self.wide, self.narrow, strict=True
        ):
            q, k, v = (split(part) for part in joint(norm1(x)).chunk(3, dim=-1))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + o(y.transpose(1, 2).reshape(x.shape))
            x = x + narrow(functional.gelu(wide(norm2(x)), approximate="tanh"))
        logits: torch.Tensor = (self.norm(x) * x.shape[-1] ** -0.5) @ self.words.weight.T
        return logits


def twin(name: str) -> tuple[nn.Module, Sequence[str]]:
    """Returns the module, and the names of the ONNX model's inputs in the order of its parameters."""
    if name == "bert":
        from transformers import BertConfig, BertModel

        return BertModel(BertConfig(attn_implementation="sdpa")), ("input_ids", "attention_mask", "token_type_ids")
    if name == "gpt2":
        return Gpt2(), ("input_ids", "attention_mask")
    if name == "sd_block":
        return SdBlock(), ("sample", "time", "context")
    if name in ("unet", "yolo", "chess"):
        module = {"unet": UNet, "yolo": Yolo, "chess": Chess}[name]()
        return module, ({"unet": "image", "yolo": "images", "chess": "planes"}[name],)
    import torchvision

    if name == "vit":
        return torchvision.models.vit_b_16(), ("pixel_values",)
    return getattr(torchvision.models, name)(), ("input",)
