"""Writes definitions in standard ONNX for the model's opset."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import first_opset
from graphopt.graph.view import to_channels_first, to_channels_last
from graphopt.ops.schema import Array
from graphopt.remarks import Code, Refusal

# The oldest opset that definitions support, because they use Range, Where and negative axes.
MIN_OPSET = 11


class Writer(Builder):
    """Collects the nodes of one definition in order. They read the anchor's inputs and are not in the graph yet.

    Raises:
        Refusal: the model's default opset is below MIN_OPSET.
    """

    def __init__(self, editor: Editor, anchor: ir.Node) -> None:
        super().__init__(editor, anchor)
        if self.opset < MIN_OPSET:
            raise Refusal(Code.OPSET, f"the definition needs opset {MIN_OPSET}, but the model has {self.opset}", anchor)

    # -- queries about the node's inputs -------------------------------------------------------------------------------

    def refuse(self, code: Code, detail: str) -> Refusal:
        return Refusal(code, detail, self.anchor)

    def dtype(self, *values: ir.Value | None) -> ir.DataType:
        """Returns the element type that the values share, from the first value with a known type.

        Raises:
            Refusal: no value has a known type.
        """
        known = next((d for v in values if (d := self.editor.dtype(v)) is not None), None)
        if known is None:
            raise self.refuse(Code.WRONG_DTYPE, "the element type of the inputs is not known")
        return known

    def rank(self, value: ir.Value) -> int:
        rank = self.editor.shapes.rank(value)
        if rank is None:
            raise self.refuse(Code.UNKNOWN_RANK, f"the rank of {value.name} is not known")
        return rank

    def size(self, value: ir.Value, axis: int) -> int | None:
        """Returns one dimension of an input of known rank; None if it is not static."""
        dims = self.editor.shapes.dims(value)
        found = None if dims is None else dims[axis]
        return None if found is None else found.value

    def require_size(self, value: ir.Value, axis: int) -> int:
        size = self.size(value, axis)
        if size is None:
            raise self.refuse(Code.UNKNOWN_SHAPE, f"dimension {axis} of {value.name} is not known")
        return size

    def constant(self, value: ir.Value | None) -> Array | None:
        return self.editor.constant(value)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def array(self, data: Array | ir.LazyTensor) -> ir.Value:
        tensor = data if isinstance(data, ir.LazyTensor) else ir.Tensor(np.asarray(data, order="C"))
        (value,) = self.outputs("Constant", _count=1, value=tensor)
        tensor.name, value.dtype, value.shape = value.name, tensor.dtype, tensor.shape
        return value

    def channels_first(self, x: ir.Value) -> ir.Value:
        """Transposes [N, spatial.., C] to [N, C, spatial..]."""
        return self.transpose(x, *to_channels_first(self.rank(x)))

    def channels_last(self, x: ir.Value) -> ir.Value:
        """Transposes [N, C, spatial..] to [N, spatial.., C]."""
        return self.transpose(x, *to_channels_last(self.rank(x)))

    # -- normalizations ------------------------------------------------------------------------------------------------

    def layer_norm(self, x: ir.Value, gamma: ir.Value, beta: ir.Value | None, epsilon: float) -> ir.Value:
        """Writes a layer normalization over the last axis; below opset 17 as elementary operators in float32."""
        T = self.dtype(gamma, x)
        if self.opset >= first_opset("LayerNormalization"):
            shift = () if beta is None else (beta,)
            return self.op("LayerNormalization", x, gamma, *shift, axis=-1, epsilon=epsilon)
        wide = x if T == ir.DataType.FLOAT else self.cast(x, ir.DataType.FLOAT)
        centred = self.sub(wide, self.reduce("ReduceMean", wide, -1))
        y = self.mul(self._cast_from_float32(self.div(centred, self.root_mean_square(centred, epsilon)), T), gamma)
        return y if beta is None else self.add(y, beta)

    def rms_norm(self, x: ir.Value, gamma: ir.Value, epsilon: float) -> ir.Value:
        """Writes an RMS normalization over the last axis, with statistics in float32."""
        T = self.dtype(gamma, x)
        wide = x if T == ir.DataType.FLOAT else self.cast(x, ir.DataType.FLOAT)
        return self.mul(self._cast_from_float32(self.div(wide, self.root_mean_square(wide, epsilon)), T), gamma)

    def root_mean_square(self, x: ir.Value, epsilon: float) -> ir.Value:
        """Writes sqrt(mean(x^2) + epsilon) over the last axis of a float32 value."""
        squares = self.op("Pow", x, self.number(2.0, ir.DataType.FLOAT))
        mean = self.reduce("ReduceMean", squares, -1)
        return self.op("Sqrt", self.add(mean, self.number(epsilon, ir.DataType.FLOAT)))

    def _cast_from_float32(self, x: ir.Value, T: ir.DataType) -> ir.Value:
        return x if T == ir.DataType.FLOAT else self.cast(x, T)
