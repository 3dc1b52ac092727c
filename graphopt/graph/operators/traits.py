"""Sets of ONNX operators with a common trait."""

from __future__ import annotations

# Operators with different results in each run. A Dropout in training mode is not listed, but is random as well.
RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
# Operators that sum products of elements of two tensors.
CONTRACTIONS = frozenset(("MatMul", "Einsum"))
# Operators that only move or copy elements of their first operand.
DATA_MOVEMENT = frozenset("Expand Flatten Gather Identity Reshape Slice Split Squeeze Tile Transpose Unsqueeze".split())
# Operators with output shapes that depend on elements of floating-point operands.
READ_FLOATS = frozenset(("Range", "Resize", "Upsample"))
# Conversions between floating point and integers of few bits.
QUANTIZATION = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
# Operators that contain subgraphs.
CONTROL_FLOW = frozenset(("If", "Loop", "Scan"))
# Layers that multiply by a weight and add a bias.
LINEAR = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
# Attention of ONNX and com.microsoft -> index of the input with the past keys; the next input is the past values.
PAST_KEYS = {"Attention": 4, "DecoderMaskedMultiHeadAttention": 5, "GroupQueryAttention": 3, "MultiHeadAttention": 6}
ARITHMETIC = frozenset(("Add", "Div", "Mul", "Sub"))
LOGIC = frozenset(("And", "Not", "Or", "Xor"))
COMPARISONS = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
# Operators with a first output of the same shape as their first input.
SAME_SHAPE = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Bernoulli BitwiseNot Cast CastLike Ceil Celu Clip Cos "
    "Cosh CumSum DequantizeLinear Dropout Elu Erf Exp EyeLike Floor Gelu GroupNormalization HardSigmoid HardSwish "
    "Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log LogSoftmax "
    "LpNormalization MeanVarianceNormalization Mish Neg Not PRelu QuantizeLinear RMSNormalization RandomNormalLike "
    "RandomUniformLike Reciprocal Relu RotaryEmbedding Round ScatterElements ScatterND Scatter Selu Shrink Sigmoid "
    "Sign SimplifiedLayerNormalization Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu "
    "Trilu".split()
)
# Element-wise operators that broadcast their operands.
BROADCASTING = frozenset(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min "
    "Mod Mul Or Pow Sub Sum Where Xor".split()
)
REDUCTIONS = frozenset(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare".split()
)
