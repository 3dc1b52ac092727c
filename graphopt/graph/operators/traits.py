"""Traits of operators of ONNX, as sets of their names."""

from __future__ import annotations

# Their results are others at every run; so are those of a Dropout that trains.
RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
# They take a sum of products of two tensors.
PRODUCTS = frozenset(("MatMul", "Einsum"))
# Their results are numbers of their first operand as they are, or copies of these.
MOVES = frozenset("Expand Flatten Gather Identity Reshape Slice Split Squeeze Tile Transpose Unsqueeze".split())
# The shapes of their results depend on elements of floating point operands.
READ_FLOATS = frozenset(("Range", "Resize", "Upsample"))
# They map numbers to whole ones of few bits, and back.
QUANTIZATION = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
# They hold bodies.
CONTROL_FLOW = frozenset(("If", "Loop", "Scan"))
# Layers: they multiply a tensor by a weight, and add a bias.
LINEAR = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
ARITHMETIC = frozenset(("Add", "Div", "Mul", "Sub"))
# Their first result has the shape of their first operand.
SAME_SHAPE = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Bernoulli BitwiseNot Cast CastLike Ceil Celu Clip Cos "
    "Cosh CumSum DequantizeLinear Dropout Elu Erf Exp EyeLike Floor Gelu GroupNormalization HardSigmoid HardSwish "
    "Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log LogSoftmax "
    "LpNormalization MeanVarianceNormalization Mish Neg Not PRelu QuantizeLinear RMSNormalization RandomNormalLike "
    "RandomUniformLike Reciprocal Relu RotaryEmbedding Round ScatterElements ScatterND Scatter Selu Shrink Sigmoid "
    "Sign SimplifiedLayerNormalization Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu "
    "Trilu".split()
)
# Pointwise, of operands that are broadcast.
BROADCASTING = frozenset(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min "
    "Mod Mul Or Pow Sub Sum Where Xor".split()
)
REDUCTIONS = frozenset(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare".split()
)
