"""Constant folding, unless the file would grow."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.inference import is_certain
from graphopt.graph.operators.elements import ELEMENTS
from graphopt.graph.operators.evaluation import DTYPES, EVALUATED, CannotEvaluateError, FoldableNode, cast, evaluate
from graphopt.graph.operators.traits import READ_FLOATS
from graphopt.graph.shapes.facts import EXACT_BITS
from graphopt.graph.traversal import tensor_dims
from graphopt.graph.view import use_count
from graphopt.ops.schema import Array

MAX_CONSTANT_BYTES = 64 * 1024
# The most bytes of freed inputs that `_limit` counts. Larger weights are not loaded from disk.
MAX_REPLACED_BYTES = 256 * 1024 * 1024
# The operators that are computed. The readers of an Identity read its input instead, because a computed copy of a
# shared weight would enlarge the file, and passes would treat it as another weight.
COMPUTED = (ELEMENTS.keys() | EVALUATED | {"CastLike"}) - {"Identity"}
SHAPE_TYPES = (ir.DataType.INT64, ir.DataType.INT32)
MAY_BE_SHAPES = (*SHAPE_TYPES, None)


@dataclass
class ConstantFolding:
    """Computes nodes with constant inputs, and integers that follow from dimensions."""

    editor: Editor
    # The computed constants, and whether their types and shapes were known before.
    _computed: list[tuple[ir.Value, bool]] = field(default_factory=list)

    @property
    def enables_inference(self) -> bool:
        """Whether another inference may find more types and shapes, because of the computed constants."""
        return any(use_count(v) and not (known and self._affects_no_shape(v)) for v, known in self._computed)

    def _affects_no_shape(self, value: ir.Value) -> bool:
        """Returns whether the value and its readers' results are floats, and no reader derives a shape from floats."""
        readers = value.consumers()
        values = (value, *(output for node in readers for output in node.outputs))
        return all(r.domain == "" and r.op_type not in READ_FLOATS for r in readers) and all(
            self.editor.dtype(v) in EXACT_BITS for v in values
        )

    def compute(self, node: ir.Node) -> bool:
        """Replaces the node's output by a constant if it can be computed; returns whether it was replaced."""
        outputs = node.outputs
        if len(outputs) != 1 or outputs[0].is_graph_output() or not use_count(outputs[0]):
            return False
        output = outputs[0]
        op_type = node.op_type
        array = self._from_shapes(output) if op_type in ELEMENTS else None
        if array is None and node.domain == "":
            if op_type == "CastLike":
                array = self._cast_like(node)
            elif op_type in EVALUATED and op_type != "Shape":  # `_from_shapes` computes a Shape node
                array = self._evaluate(node)
        if array is None:
            return False
        constant = self.editor.initializer(node, array, str(output.name))
        self._computed.append((constant, output.type is not None and is_certain(output.shape)))
        self.editor.replace([node], [], {output: constant}, anchor=node)
        return True

    def replace_by_scalars(self, node: ir.Node) -> bool:
        """Replaces the one-element constant inputs of a Range by scalars; returns whether there are any.

        Runtimes accept a one-element tensor of rank 1 if a node computes it, but reject it as a constant.
        """
        arrays = [self.editor.constant(v) for v in node.inputs]
        if not all(a is not None and a.size == 1 for a in arrays) or all(a is not None and not a.shape for a in arrays):
            return False
        name = node.outputs[0].name
        scalars = [self.editor.initializer(node, a.reshape(()), f"{name}/scalar") for a in arrays if a is not None]
        self.editor.rewire(node, scalars)
        return True

    def _from_shapes(self, output: ir.Value) -> Array | None:
        """Returns the integers of the output if they follow from dimensions, or None."""
        if self.editor.dtype(output) not in MAY_BE_SHAPES:
            return None
        elements = self.editor.shapes.elements(output)
        return elements.array if elements is not None and elements.dtype in SHAPE_TYPES else None

    def _evaluate(self, node: ir.Node) -> Array | None:
        tensors: list[ir.TensorProtocol | None] = []
        for value in node.inputs:
            tensor = self.editor.tensor(value)
            if value is not None and (tensor is None or tensor.dtype not in DTYPES):
                return None
            tensors.append(tensor)
        if any(a.is_ref() for a in node.attributes.values()):
            return None
        if node.op_type == "Cast" and _is_stored_weight(tensors[0]):
            return None
        limit = self._limit(node)
        if any(t is not None and t.nbytes > limit for t in tensors):
            return None
        arrays = tuple(None if t is None else t.numpy() for t in tensors)
        try:
            result = evaluate(FoldableNode(node, arrays, self.editor.opset(node), limit))
        except CannotEvaluateError:
            return None
        return result if result.nbytes <= limit else None

    def _cast_like(self, node: ir.Node) -> Array | None:
        """Computes a CastLike; only the type of its second input matters."""
        tensor, dtype = self.editor.tensor(node.inputs[0]), self.editor.dtype(node.inputs[1])
        if tensor is None or tensor.dtype not in DTYPES or dtype not in DTYPES or dtype is None:
            return None
        if tensor.size * 8 > MAX_CONSTANT_BYTES:
            return None
        try:
            return cast(tensor.numpy(), dtype.numpy())
        except CannotEvaluateError:
            return None

    def _limit(self, node: ir.Node) -> int:
        """Returns the size limit of inputs and result: MAX_CONSTANT_BYTES, or more if inputs become unused."""
        freed = 0
        for value in dict.fromkeys(node.inputs):
            tensor = self.editor.tensor(value)
            if value is not None and tensor is not None and use_count(value) == node.inputs.count(value):
                freed += tensor.nbytes
        return max(MAX_CONSTANT_BYTES, min(freed, MAX_REPLACED_BYTES))


def is_matrix(tensor: ir.TensorProtocol) -> bool:
    """Returns whether more than one dimension is larger than 1."""
    return sum(d != 1 for d in tensor_dims(tensor)) > 1


def _is_stored_weight(tensor: ir.TensorProtocol | None) -> bool:
    """Returns whether a tensor is a float16 matrix or filter, stored with a Cast to save bytes (precision/float16/)."""
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT16 and is_matrix(tensor)
