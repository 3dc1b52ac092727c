"""Traits of operators of ONNX, as sets of their names."""

from __future__ import annotations

# Their results are others at every run; so are those of a Dropout that trains.
RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
# They take a sum of products of two tensors.
PRODUCTS = frozenset(("MatMul", "Einsum"))
# Their results are numbers of their first operand as they are, or copies of these.
MOVES = frozenset("Expand Flatten Gather Identity Reshape Slice Split Squeeze Tile Transpose Unsqueeze".split())
# They map numbers to whole ones of few bits, and back.
QUANTIZATION = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
