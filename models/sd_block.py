"""One block of a latent-diffusion UNet (Rombach et al., 2021): a residual block and a spatial transformer."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from models.layers import Net


def _residual(net: Net, x: gs.Variable, time: gs.Variable, groups: int, size: int) -> gs.Variable:
    channels = net.features(x)
    y = net.conv(net.silu(net.group_norm(x, groups, size)), channels, 3, bias=True)
    shift = net.op("Unsqueeze", net.gemm(net.silu(time), channels), net.ints(2, 3))
    y = net.op("Add", y, shift)
    y = net.conv(net.silu(net.group_norm(y, groups, size)), channels, 3, bias=True, gain=1.0)
    return net.op("Add", x, y)


def _attend(net: Net, x: gs.Variable, source: gs.Variable, heads: int) -> gs.Variable:
    d = net.features(x)
    q = net.linear(x, d, bias=False, gain=2.0)
    k = net.linear(source, d, bias=False, gain=2.0)
    v = net.linear(source, d, bias=False)
    return net.linear(net.attention(q, k, v, heads, scale="mul"), d)


def _transformer(net: Net, x: gs.Variable, context: gs.Variable, heads: int, groups: int, size: int) -> gs.Variable:
    d = net.features(x)
    y = net.conv(net.group_norm(x, groups, size, epsilon=1e-6), d, 1, bias=True, gain=1.0)
    flat = net.op("Reshape", y, net.ints(0, d, size * size))
    tokens = net.op("Transpose", flat, perm=[0, 2, 1])
    y = net.layer_norm(tokens)
    tokens = net.op("Add", _attend(net, y, y, heads), tokens)
    tokens = net.op("Add", _attend(net, net.layer_norm(tokens), context, heads), tokens)
    wide = net.linear(net.layer_norm(tokens), 8 * d)
    value, gate = (
        net.set_features(h, 4 * d) for h in net.ops("Split", wide, net.ints(4 * d, 4 * d), outputs=2, axis=-1)
    )
    tokens = net.op("Add", net.linear(net.op("Mul", value, net.gelu(gate)), d), tokens)
    back = net.op("Reshape", net.op("Transpose", tokens, perm=[0, 2, 1]), net.ints(0, d, size, size))
    return net.op("Add", net.conv(back, d, 1, bias=True, gain=1.0), x)


def sd_block(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Sample [B, C, H, H], time [B, E], context [B, T, F] -> out_sample [B, C, H, H].

    C = 320, H = 64, E = 1280, T = 77, F = 768, 8 heads of 40;
    small: C = 32, H = 8, E = 24, T = 7, F = 20, 4 heads of 8.
    """
    net = Net("sd_block", batch=batch, dynamic=dynamic, seed=seed)
    c, size, e, t, f, heads, groups = (32, 8, 24, 7, 20, 4, 8) if small else (320, 64, 1280, 77, 768, 8, 32)
    x = net.input("sample", (net.batch, c, size, size), features=c)
    time = net.input("time", (net.batch, e), features=e)
    context = net.input("context", (net.batch, "sequence" if dynamic else t, f), features=f)
    x = _residual(net, x, time, groups, size)
    x = _transformer(net, x, context, heads, groups, size)
    net.output(x, "out_sample", (net.batch, c, size, size))
    return net.model()
