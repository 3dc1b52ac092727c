"""RotaryEmbedding: rotates the first `rotary_embedding_dim` elements of each head by angles for the position.

The elements are rotated in pairs. The elements of a pair are rotary_embedding_dim / 2 apart, or adjacent if
`interleaved` is set.
J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.contrib.schema import Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.remarks import Code


def rotate(
    w: Writer, x: ir.Value, cos: ir.Value, sin: ir.Value, dim: int, head_size: int | None, interleaved: bool
) -> ir.Value:
    """Rotates the first `dim` elements of each head.

    Args:
        w: writes the nodes.
        x: [B, S, N, H].
        cos: [B, S, 1, dim / 2].
        sin: [B, S, 1, dim / 2].
        dim: the number of rotated elements.
        head_size: H; None if it equals `dim`.
        interleaved: whether the elements of a pair are adjacent.
    """
    rest: list[ir.Value] = []
    if head_size is not None and head_size != dim:
        x, other = w.split(x, (dim, head_size - dim), -1)
        rest = [other]
    half = dim // 2
    if interleaved:
        pairs = w.reshape(x, 0, 0, -1, half, 2)
        first, second = (w.squeeze(p, 4) for p in w.split(pairs, (1, 1), 4))
    else:
        first, second = w.split(x, (half, half), -1)
    real = w.sub(w.mul(first, cos), w.mul(second, sin))
    imaginary = w.add(w.mul(second, cos), w.mul(first, sin))
    if interleaved:
        pairs = w.concat([w.unsqueeze(real, 4), w.unsqueeze(imaginary, 4)], -1)
        rotated = w.reshape(pairs, 0, 0, -1, dim)
    else:
        rotated = w.concat([real, imaginary], -1)
    return w.concat([rotated, *rest], -1)


def gather_angles(w: Writer, cache: ir.Value, positions: ir.Value) -> ir.Value:
    """Gathers the rows of a cache [max positions, dim / 2] at positions [B, S], as [B, S, 1, dim / 2]."""
    return w.unsqueeze(w.op("Gather", cache, positions, axis=0), 2)


def _define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    x, ids, cos = call["input"], call["position_ids"], call["cos_cache"]
    if call.attribute("is_packed_batching"):
        raise w.refuse(Code.ATTRIBUTE, "packed batches have no definition")
    if call.attribute("scale", 1.0) != 1.0:
        raise w.refuse(Code.ATTRIBUTE, "the schema does not define scale")
    rank = w.rank(x)
    dim = 2 * w.require_size(cos, 1)
    given, heads = call.attribute("rotary_embedding_dim", 0), call.attribute("num_heads", 0)
    head_size = w.size(x, -1) if rank == 4 else None
    if given and rank == 3:
        hidden = w.size(x, -1)
        if not heads or hidden is None:
            raise w.refuse(Code.UNKNOWN_SHAPE, "the head size is not known")
        head_size = hidden // heads
    if rank == 4:
        if head_size is None:
            raise w.refuse(Code.UNKNOWN_SHAPE, f"the last dimension of {x.name} is not known")
        split = w.transpose(x, 0, 2, 1, 3)
    else:
        split = w.reshape(x, 0, 0, -1, head_size or dim)
    if w.rank(ids) == 1:  # the first position of each sequence
        steps = w.arange(w.dim(x, 2 if rank == 4 else 1))
        ids = w.add(w.unsqueeze(ids, 1), w.unsqueeze(steps, 0))
    rotated = rotate(
        w,
        split,
        gather_angles(w, cos, ids),
        gather_angles(w, call["sin_cache"], ids),
        dim,
        head_size,
        bool(call.attribute("interleaved", 0)),
    )
    return {"output": w.transpose(rotated, 0, 2, 1, 3) if rank == 4 else w.op("Reshape", rotated, w.op("Shape", x))}


SPECS = (
    ContribOp(
        "RotaryEmbedding(input, position_ids, cos_cache, sin_cache) -> output",
        _define,
        {
            "interleaved": None,
            "is_packed_batching": None,
            "num_heads": None,
            "rotary_embedding_dim": None,
            "scale": None,
        },
        kept_on_cpu="its kernel takes two thirds of FusedRotary's time",
        on_provider="attention/rotary",
        form="Gather, Split, Mul, Add",
        refuses="packed batches; a scale",
    ),
)
