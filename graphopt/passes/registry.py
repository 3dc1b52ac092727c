"""All passes, in execution order."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from graphopt.passes.activations import Activations
from graphopt.passes.ada_layer_norm import AdaLayerNorm
from graphopt.passes.axis_linear import AxisLinear
from graphopt.passes.axis_softmax import AxisSoftmax
from graphopt.passes.base import ModelPass, Pass
from graphopt.passes.clean_up import CleanUp
from graphopt.passes.contrib import Contrib
from graphopt.passes.dynamic_quantized_conv import DynamicQuantizedConv
from graphopt.passes.feed_forward import FeedForward
from graphopt.passes.fold_affine import FoldAffine
from graphopt.passes.fold_batch_norm import FoldBatchNorm
from graphopt.passes.fuse_attention import FuseAttention
from graphopt.passes.fuse_epilogue import FuseEpilogue
from graphopt.passes.fuse_group_norm import FuseGroupNorm
from graphopt.passes.fuse_lstm import FuseLstm
from graphopt.passes.fuse_rotary import FuseRotary
from graphopt.passes.fuse_row_norm import FuseRowNorm
from graphopt.passes.fused_activation import FusedActivation
from graphopt.passes.fused_conv import FusedConv
from graphopt.passes.fused_conv_transpose import FusedConvTranspose
from graphopt.passes.gate import Gate
from graphopt.passes.gather_rows import GatherRows
from graphopt.passes.hoist_gather import HoistGather
from graphopt.passes.index_add import IndexAdd
from graphopt.passes.inverted_residual import InvertedResidual
from graphopt.passes.norm_windows import NormWindows
from graphopt.passes.pool_planes import PoolPlanes
from graphopt.passes.prelu import PRelu
from graphopt.passes.quantized_conv import QuantizedConv
from graphopt.passes.quantized_linear import QuantizedLinear
from graphopt.passes.quantized_softmax import QuantizedSoftmax
from graphopt.passes.scale_heads import ScaleHeads
from graphopt.passes.scale_shift import ScaleShift
from graphopt.passes.stft_conv import StftConv
from graphopt.passes.unsigned_conv import UnsignedConv
from graphopt.passes.winograd_conv import WinogradConv
from graphopt.passes.written_prelu import WrittenPRelu
from graphopt.precision.bfloat16 import AttentionToBf16, ConvToBf16, LinearToBf16, MatMulToBf16
from graphopt.precision.nchw2c_convolutions import ConvToNchw2c
from graphopt.precision.nchw2c_pools import MaxPoolToNchw2c

PASSES: tuple[Pass[Any, Any] | ModelPass, ...] = (
    # First, because the other passes match the nodes that Contrib creates. CleanUp folds their constants, such as a
    # causal mask of known length.
    Contrib(),
    CleanUp(),
    # Before the passes that fuse the Gemm of a time step with the nodes around it.
    FuseLstm(),
    StftConv(),
    # Before folding and ScaleShift, which would fuse the scale and shift of a norm.
    FuseGroupNorm(),
    FuseRowNorm(),
    AdaLayerNorm(),
    # Before Activations, which turns a PRelu with a single slope into LeakyRelu.
    WrittenPRelu(),
    Activations(),
    FoldBatchNorm(),
    FoldAffine(),
    ScaleShift(),
    # Before the passes that rewrite convolutions, and before FuseEpilogue, which fuses the bias of a MatMul.
    AxisLinear(),
    InvertedResidual(),
    WinogradConv(),
    FusedConv(),
    FusedConvTranspose(),
    FuseEpilogue(),
    PRelu(),
    # After the convolutions, because it reads the results of our operators.
    PoolPlanes(),
    # After FuseEpilogue, which fuses activations at no cost.
    Gate(),
    FuseRotary(),
    ScaleHeads(),
    FuseAttention(),
    # After FuseAttention, which fuses the Softmax of attention.
    AxisSoftmax(),
    QuantizedSoftmax(),
    GatherRows(),
    HoistGather(),
    NormWindows(),
    IndexAdd(),
    # After FuseRowNorm, which fuses the residual sums before norms.
    FeedForward(),
    QuantizedLinear(),
    # After QuantizedLinear, whose kernel is faster for few pixels.
    DynamicQuantizedConv(),
    QuantizedConv(),
    # After QuantizedLinear, which rewrites some ConvIntegers and stores their weights in another layout.
    UnsignedConv(),
    # After the passes that fuse an activation with the nodes around it.
    FusedActivation(),
)


def bfloat16_passes(keep: Collection[str]) -> tuple[Pass[Any, Any], ...]:
    """Returns the passes of `--precision bf16`, in execution order.

    Args:
        keep: names of nodes and operators that keep float32.
    """
    to_bfloat16 = (LinearToBf16(keep), ConvToBf16(keep), AttentionToBf16(keep), MatMulToBf16(keep))
    return (*to_bfloat16, FuseEpilogue(), PRelu(), MaxPoolToNchw2c(), ConvToNchw2c())


__all__ = ["PASSES", "bfloat16_passes"]
