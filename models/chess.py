"""A chess net in the style of Leela Chess Zero's transformers: 64 squares as tokens, a generated attention bias.

The bias is "smolgen" (lczero.org, "Transformer Progress", 2024). Each layer compresses the position to a short vector
for each head. A matrix that all layers share expands this vector to the 64 x 64 scores.
"""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from models.layers import Net

_SQUARES = 64


def _generated_bias(net: Net, x: gs.Variable, matrix: gs.Constant, heads: int, short: int, code: int) -> gs.Variable:
    packed = net.linear(x, short, bias=False)
    flat = net.set_features(net.op("Reshape", packed, net.ints(0, _SQUARES * short)), _SQUARES * short)
    hidden = net.layer_norm(net.silu(net.gemm(flat, code)))
    wide = net.layer_norm(net.silu(net.gemm(hidden, heads * code)))
    per_head = net.op("Reshape", wide, net.ints(0, heads, code))
    return net.op("Reshape", net.op("MatMul", per_head, matrix), net.ints(0, heads, _SQUARES, _SQUARES))


def chess(batch: int = 1, small: bool = False, dynamic: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Planes [B, 112, 8, 8] -> policy [B, 4096], wdl [B, 3].

    8 layers, D = 256, 8 heads; small: 2 layers, D = 32, 4 heads.
    """
    net = Net("chess", batch=batch, dynamic=dynamic, seed=seed)
    layers, d, heads, short, code = (2, 32, 4, 4, 16) if small else (8, 256, 8, 32, 256)
    x = net.input("planes", (net.batch, 112, 8, 8), features=112)
    x = net.op("Transpose", net.op("Reshape", x, net.ints(0, 112, _SQUARES)), perm=[0, 2, 1])
    x = net.mish(net.linear(x, d))
    x = net.op("Add", x, net.const(net.normal((_SQUARES, d), 0.5), "position_embedding"))
    matrix = net.const(net.normal((code, _SQUARES * _SQUARES), code**-0.5), "smolgen.weight")
    for _ in range(layers):
        bias = _generated_bias(net, x, matrix, heads, short, code)
        q, k, v = net.linear(x, d), net.linear(x, d), net.linear(x, d)
        y = net.linear(net.attention(q, k, v, heads, scale="div", bias=bias), d)
        x = net.layer_norm(net.op("Add", y, x))
        # The feed-forward part squares its ReLU, as the Lc0 nets of 2023 do.
        y = net.relu(net.linear(x, 2 * d))
        y = net.linear(net.op("Mul", y, y), d, gain=0.7)
        x = net.layer_norm(net.op("Add", y, x))
    origin, target = net.linear(x, d), net.linear(x, d)
    moves = net.op("MatMul", origin, net.op("Transpose", target, perm=[0, 2, 1]))
    policy = net.op("Reshape", net.op("Mul", moves, net.scalar(d**-0.5)), net.ints(0, _SQUARES * _SQUARES))
    value = net.mish(net.linear(x, 8))
    value = net.set_features(net.op("Reshape", value, net.ints(0, _SQUARES * 8)), _SQUARES * 8)
    net.output(policy, "policy", (net.batch, _SQUARES * _SQUARES))
    net.output(net.op("Softmax", net.gemm(net.mish(net.gemm(value, 32)), 3), axis=-1), "wdl", (net.batch, 3))
    return net.model()
