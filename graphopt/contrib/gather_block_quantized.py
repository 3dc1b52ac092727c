"""GatherBlockQuantized: Gather(dequantize(data), indices), with data quantized in blocks along one axis.

Elements of 2 and 4 bits in uint8 are packed along the last axis, low bits first, and so are their zero points. The
default zero point is 0 for int4 and uint4, and 2^(bits - 1) for uint8.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.contrib.matmul_nbits import BITS, unpack
from graphopt.contrib.schema import Call, ContribOp
from graphopt.contrib.writer import Writer
from graphopt.graph.operators.arguments import SCALES_OF_BLOCKS_OPSET
from graphopt.ops.schema import Array
from graphopt.remarks import Code

FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)


def _define(w: Writer, call: Call[ir.Value]) -> Mapping[str, ir.Value]:
    scales = call["scales"]
    kind, T = w.dtype(call["data"]), w.dtype(scales)
    bits, size = 4 if kind in FOUR_BITS else call.attribute("bits"), call.attribute("block_size")
    if kind not in (*FOUR_BITS, ir.DataType.UINT8):
        raise w.refuse(Code.WRONG_DTYPE, f"the data has the type {kind.name}")
    if bits not in BITS or size < 1:
        raise w.refuse(Code.ATTRIBUTE, f"the data has {bits} bits and blocks of {size}")
    codes = _constant(w, call["data"], bits)
    axis, gather_axis = call.attribute("quantize_axis"), call.attribute("gather_axis")
    for given in (axis, gather_axis):
        if not -codes.ndim <= given < codes.ndim:
            raise w.refuse(Code.WRONG_AXIS, f"axis {given} is out of range")
    blocks = list(codes.shape)
    blocks[axis] = -(-blocks[axis] // size)
    if "zero_points" in call:
        zero = _constant(w, call["zero_points"], bits)[..., : blocks[-1]]
    else:
        zero = np.full(blocks, 0 if kind in FOUR_BITS else 2 ** (bits - 1), codes.dtype)
    if w.opset >= SCALES_OF_BLOCKS_OPSET:
        dtype = (kind if kind in FOUR_BITS else ir.DataType.UINT4 if bits == 4 else ir.DataType.UINT8).numpy()
        quantized, zero_points = w.array(codes.astype(dtype)), w.array(zero.astype(dtype))
        weights = w.op("DequantizeLinear", quantized, scales, zero_points, axis=axis % codes.ndim, block_size=size)
    else:
        block = w.array(np.arange(codes.shape[axis]) // size)
        shift, scale = (w.op("Gather", x, block, axis=axis) for x in (w.array(zero.astype(T.numpy())), scales))
        weights = w.mul(w.sub(w.cast(w.array(codes), T), shift), scale)
    return {"output": w.op("Gather", weights, call["indices"], axis=gather_axis)}


def _constant(w: Writer, value: ir.Value, bits: int) -> Array:
    """Returns a quantized constant unpacked, one integer per element; packed rows are padded to whole bytes."""
    array = w.constant(value)
    if array is None:
        raise w.refuse(Code.NOT_CONSTANT, f"{value.name} is not constant")
    if array.dtype != np.uint8:
        return array.astype(np.int8)
    return unpack(array.reshape(-1, array.shape[-1]), bits).reshape(*array.shape[:-1], -1)


SPECS = (
    ContribOp(
        "GatherBlockQuantized(data, indices, scales, zero_points?) -> output",
        _define,
        {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
        kept_on_cpu="its kernel dequantizes the gathered rows only, and the definition dequantizes the whole table",
        kept_on_gpu="its definition dequantizes the whole table",
        on_provider="quantized/gather_block_quantized",
        form="DequantizeLinear by blocks (opset 21), Gather",
        refuses="data of 8-bit and 4-bit floats; data that is not constant; axes out of range",
    ),
)
