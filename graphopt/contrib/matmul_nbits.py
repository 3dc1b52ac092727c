"""MatMulNBits: Y = A dequantize(B)^T + bias, with B packed to 2, 4 or 8 bits in blocks along K.

B [N, blocks, block_size bits / 8] stores the low bits of a byte first; scales are [N, blocks]. Zero points [N, blocks]
are packed like B, or floats; the default is 2^(bits - 1).
E. Frantar et al., "GPTQ", 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.contrib.schema import REQUIRED, Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import SCALES_OF_BLOCKS_OPSET
from graphopt.ops.schema import Array
from graphopt.remarks import Code

BITS = (2, 4, 8)


def _define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    A, B, scales = call["A"], call["B"], call["scales"]
    K, bits, size = (call.attribute(n) for n in ("K", "bits", "block_size"))
    if bits not in BITS:
        raise w.refuse(Code.ATTRIBUTE, f"the weights have {bits} bits")
    if call.attribute("weight_prepacked"):
        raise w.refuse(Code.ATTRIBUTE, "the weights have the layout of one GPU kernel")
    T, blocks = w.dtype(scales, A), -(-K // size)
    _check_sizes(w, call, blocks)
    packed, zero_points = w.constant(B), w.constant(call.get("zero_points"))
    zeros_known = "zero_points" not in call or zero_points is not None
    if w.opset >= SCALES_OF_BLOCKS_OPSET and bits != 2 and packed is not None and zeros_known and "g_idx" not in call:
        weights = _blocked(w, call, packed, zero_points, T)
    else:
        weights = _unpacked(w, call, blocks, T)
    y = w.matmul(A, w.transpose(weights, 1, 0))
    return {"Y": w.add(y, call["bias"]) if "bias" in call else y}


def _check_sizes(w: Writer, call: Call[ir.Value], blocks: int) -> None:
    """Refuses operands of the wrong size, which onnxruntime 1.22 does not check."""
    N, bits, size = (call.attribute(n) for n in ("N", "bits", "block_size"))
    counts = {"B": N * blocks * (size * bits // 8), "scales": N * blocks}
    zero_points = call.get("zero_points")
    if zero_points is not None and (dtype := w.editor.dtype(zero_points)) is not None:
        counts["zero_points"] = N * (-(-blocks * bits // 8) if dtype == ir.DataType.UINT8 else blocks)
    for name, count in counts.items():
        dims = w.editor.shapes.dims(call[name]) or ()
        sizes = [d.value for d in dims if d.value is not None]
        if dims and len(sizes) == len(dims) and math.prod(sizes) != count:
            raise w.refuse(Code.WRONG_SHAPE, f"{name} has shape {sizes}, but must hold {count} elements")


def _blocked(w: Writer, call: Call[ir.Value], packed: Array, zero_points: Array | None, T: ir.DataType) -> ir.Value:
    """Writes the weights [N, K] by DequantizeLinear, which keeps them packed in the file.

    DequantizeLinear takes integer zero points only, so float zero points are subtracted after it.
    """
    K, N, bits, size = (call.attribute(n) for n in ("K", "N", "bits", "block_size"))
    blocks = -(-K // size)
    kind = ir.DataType.UINT4 if bits == 4 else ir.DataType.UINT8
    dtype = kind.numpy()
    integer_zeros = zero_points is None or zero_points.dtype == np.uint8
    if zero_points is None:
        zero = np.full((N, blocks), 2 ** (bits - 1), dtype)
    elif integer_zeros:
        zero = unpack(zero_points.reshape(N, -1), bits)[:, :blocks].astype(dtype)
    else:
        zero = np.zeros((N, blocks), dtype)
    # The last block is complete, and the result is sliced: OpenVINO does not accept a partial last block.
    shape = ir.Shape((N, blocks * size))
    # Lazy, because a definition is also written only to check its shapes.
    codes = ir.LazyTensor(lambda: ir.Tensor(unpack(packed.reshape(N, -1), bits).astype(dtype)), kind, shape)
    scales = w.reshape(call["scales"], N, blocks)
    weights = w.op("DequantizeLinear", w.array(codes), scales, w.array(zero), axis=1, block_size=size)
    if not integer_zeros:
        shift = w.mul(scales, w.reshape(call["zero_points"], N, blocks))
        expanded_shift = w.expand(w.unsqueeze(shift, 2), N, blocks, size)
        weights = w.sub(weights, w.reshape(expanded_shift, N, blocks * size))
    return w.slice(weights, 1, 0, K) if blocks * size != K else weights


def _unpacked(w: Writer, call: Call[ir.Value], blocks: int, T: ir.DataType) -> ir.Value:
    """Writes the weights [N, K] by integer arithmetic on the packed bytes, which also works if B is not constant."""
    K, N, bits, size = (call.attribute(n) for n in ("K", "N", "bits", "block_size"))
    integers = _unpack_rows(w, call["B"], bits, N, blocks * size, T)
    scales = w.reshape(call["scales"], N, blocks)
    zero_points = call.get("zero_points")
    zero: ir.Value
    if zero_points is None:
        zero = w.array(np.full((N, blocks), 2 ** (bits - 1)).astype(T.numpy()))
    elif w.dtype(zero_points) == ir.DataType.UINT8:
        zero = w.slice(_unpack_rows(w, zero_points, bits, N, -1, T), 1, 0, blocks)
    else:
        zero = w.reshape(zero_points, N, blocks)
    if "g_idx" in call:  # the block of each element along K
        integers = w.slice(integers, 1, 0, K)
        groups = w.cast(w.slice(call["g_idx"], 0, 0, K), ir.DataType.INT64)
        zero, scales = (w.op("Gather", x, groups, axis=1) for x in (zero, scales))
        return w.mul(w.sub(integers, zero), scales)
    blocked_integers = w.reshape(integers, N, blocks, size)
    weights = w.mul(w.sub(blocked_integers, w.unsqueeze(zero, 2)), w.unsqueeze(scales, 2))
    flat = w.reshape(weights, N, blocks * size)
    return w.slice(flat, 1, 0, K) if blocks * size != K else flat


def _unpack_rows(w: Writer, packed: ir.Value, bits: int, N: int, count: int, T: ir.DataType) -> ir.Value:
    """Unpacks N rows of bytes to [N, count], as element type T; all elements of a row if `count` is -1."""
    rows = w.reshape(packed, N, -1)
    if bits == 8:
        return w.cast(rows, T)
    row_bytes = w.unsqueeze(w.cast(rows, ir.DataType.INT32), 2)
    divisors = w.array(np.array([2**shift for shift in range(0, 8, bits)], np.int32))
    parts = w.op("Mod", w.div(row_bytes, divisors), w.array(np.array(2**bits, np.int32)))
    return w.cast(w.reshape(parts, N, count), T)


def unpack(rows: Array, bits: int) -> Array:
    """Unpacks rows of bytes [R, n] to integers [R, 8 n / bits], low bits first."""
    integers = np.empty((*rows.shape, 8 // bits), np.uint8)
    for i in range(8 // bits):
        np.bitwise_and(rows >> (bits * i), 2**bits - 1, out=integers[..., i])
    return integers.reshape(len(rows), -1)


SPECS = (
    ContribOp(
        "MatMulNBits(A, B, scales, zero_points?, g_idx?, bias?) -> Y",
        _define,
        {
            "K": REQUIRED,
            "N": REQUIRED,
            "accuracy_level": 0,
            "bits": 4,
            "block_size": REQUIRED,
            "weight_prepacked": 0,
        },
        kept_on_cpu="its kernel reads packed weights, and the definition unpacks them",
        kept_on_gpu="its definition unpacks whole weights",
        on_provider="matmul/matmul_nbits",
        form="DequantizeLinear by blocks (opset 21), MatMul",
        refuses="bits other than 2, 4, 8; prepacked weights; operands of the wrong size",
    ),
)
