"""Decides which nodes keep float32, by operator, inputs, shared function bodies, constants and ranges."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.forms.row_statistics import reduced_axes
from graphopt.graph.editor import Editor
from graphopt.graph.operators.arguments import signature
from graphopt.graph.operators.traits import DATA_MOVEMENT, LINEAR, QUANTIZATION, RANDOM
from graphopt.graph.traversal import bodies
from graphopt.graph.view import attribute_int, is_op, producer_of
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.schema import CAST_LIKE_OPSET
from graphopt.precision.float16.constants import FLOAT, HALF, LARGEST, HalfConstants
from graphopt.precision.float16.ranges import ActivationRanges
from graphopt.remarks import Code, node_label

# Operators that take float16 even if their inputs are computed in float32: matrix multiplications, and norms with
# float32 statistics by definition (also GroupNormalization, in the versions that have them).
TAKE_HALF = frozenset(
    "Conv ConvTranspose Gemm MatMul Einsum LSTM GRU RNN Attention LayerNormalization RMSNormalization".split()
)
# Operators that are kept in float32.
STATISTICS = frozenset(
    "Softmax LogSoftmax SoftmaxCrossEntropyLoss InstanceNormalization BatchNormalization LpNormalization "
    "MeanVarianceNormalization LRN LpPool GlobalLpPool ReduceMean ReduceSum ReduceSumSquare ReduceL1 ReduceL2 "
    "ReduceProd ReduceLogSum ReduceLogSumExp CumSum CumProd Exp Log Pow Reciprocal Softplus Tan Sinh Cosh Acosh "
    "Asin Acos Atanh Det GridSample AffineGrid RoiAlign MaxRoiPool DFT STFT MelWeightMatrix".split()
)


# The largest allowed error relative to a sum's largest element: 1/64 of float16's unit roundoff of 2^-11, because
# smaller elements of the sum are rounded less.
LOST = 2.0**-17


@functools.cache
def half_types(op_type: str, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...], bool] | None:
    """Returns the formal inputs and outputs of a standard operator that may be float or float16.

    Returns:
        One flag for each input, one for each output, and whether the last input is variadic; None without a schema.
    """
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    either = {
        c.type_param_str
        for c in schema.type_constraints
        if {"tensor(float)", "tensor(float16)"} <= set(c.allowed_type_strs)
    }
    inputs = tuple(p.type_str in either and p.name != "roi" for p in schema.inputs)
    outputs = tuple(p.type_str in either for p in schema.outputs)
    variadic = bool(schema.inputs) and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return inputs, outputs, variadic


@dataclass
class Reasons:
    """Decides node by node, in the order of the graph, why a node keeps float32.

    Attributes:
        editor: the model.
        keep: names of nodes and operators that the caller keeps in float32.
        constants: constants of the model.
        converted: values that have become float16 so far.
        ranges: measured ranges of the activations; empty if not measured.
        needs_float: nodes with results that only statistics and casts to integers read.
    """

    editor: Editor
    keep: frozenset[str]
    constants: HalfConstants
    converted: set[ir.Value]
    ranges: ActivationRanges = field(default_factory=ActivationRanges)
    needs_float: set[ir.Node] = field(default_factory=set)
    _families: dict[str, bool] = field(default_factory=dict)

    @property
    def stores_only(self) -> bool:
        """Whether float16 is used for storage only."""
        return self.editor.target.device == "cpu"

    def find_needs_float(self, graph: ir.Graph) -> None:
        """Finds the nodes with results that only statistics and casts to integers read; fills `needs_float`."""
        for node in reversed(graph):
            readers = [u for o in node.outputs for u in o.consumers()]
            # A node that takes float16 in any case rounds its inputs, so the chain of float32 results ends there.
            if not readers or any(o.is_graph_output() for o in node.outputs) or _takes_half(node):
                continue
            if all(u in self.needs_float or self._is_statistics(u) or _makes_integers(u) for u in readers):
                self.needs_float.add(node)

    def why_float(self, node: ir.Node, takes: Sequence[int]) -> tuple[Code | None, str] | None:
        """Returns why the node keeps float32 (without a code if it follows its inputs), or None if it takes float16."""
        why = self._own_reason(node, takes)
        if why is None and node.domain == DOMAIN and not self._family_follows(node):
            return Code.OPSET, f"{node.op_type} nodes of both float16 and float32 need opset {CAST_LIKE_OPSET}"
        return why

    def convertible_inputs(self, node: ir.Node) -> list[int]:
        """Returns the indices of the inputs that may be float or float16."""
        if node.domain == DOMAIN and node.op_type in OPS:
            return OPS[node.op_type].inputs_of_T
        types = half_types(node.op_type, self.editor.opset(node)) if node.domain == "" else None
        if types is None:
            return []
        inputs, _, variadic = types
        last = len(inputs) - 1
        return [i for i in range(len(node.inputs)) if (inputs[i] if i <= last else variadic and inputs[last])]

    def fits(self, value: ir.Value) -> bool:
        """Returns whether no element of the value overflows in float16; False if that is unknown."""
        if value in self.converted or value.dtype == HALF:
            return True
        return self.editor.is_constant(value) and not self.constants.range(value).overflow

    def _own_reason(self, node: ir.Node, takes: Sequence[int]) -> tuple[Code | None, str] | None:
        ours = node.domain == DOMAIN and node.op_type in OPS
        if node.domain != "" and not ours:
            return Code.UNSUPPORTED_OP, f"{node.domain}::{node.op_type} is not a standard operator"
        if bodies(node):
            return None, ""
        if self._is_kept(node):
            return Code.KEPT, "--keep-float names the node or its operator"
        if node.op_type in QUANTIZATION:
            return Code.QUANTIZED, f"{node.op_type} is a quantized operator"
        if any(producer_of(v, *QUANTIZATION) for v in node.inputs):
            return Code.QUANTIZED, f"{node.op_type} reads a quantized value"
        if not takes or not self._has_known_types(node) or node.op_type in RANDOM:
            return Code.NO_FLOAT16, f"{node.op_type} does not take float16 in opset {self.editor.opset(node)}"
        if self.stores_only:
            # A Gather from a float16 table casts only the selected rows, so the table stays small in memory.
            if is_op(node, "Gather") and all(self._is_half(node.inputs[i]) for i in takes):
                return None if node not in self.needs_float else (None, "")
            return Code.NO_FLOAT16, f"{node.op_type} does not gain from float16 on {self.editor.target}"
        if self._is_statistics(node):
            return Code.STATISTICS, f"{node.op_type} computes statistics"
        if _takes_half(node):
            if attribute_int(node, "stash_type", 1) != 1:
                return Code.STATISTICS, f"{node.op_type} does not compute its statistics in float32"
        else:
            if node in self.needs_float:
                return None, ""
            if any(not self._is_half(node.inputs[i]) for i in takes):
                return None, ""
            # A node with constant inputs is computed once, so float16 gains nothing. It may even do harm: it rounds
            # positions near 255 by up to 0.06, which changes their sines.
            if node.op_type not in DATA_MOVEMENT and all(self.editor.is_constant(node.inputs[i]) for i in takes):
                return None, ""
        return self._out_of_range(node, takes)

    def _is_statistics(self, node: ir.Node) -> bool:
        if node.domain != "":
            return False
        if node.op_type == "GroupNormalization":
            return not signature("GroupNormalization", self.editor.opset(node)).has_argument("stash_type")
        return node.op_type in STATISTICS and not self._is_global_pool(node)

    def _is_global_pool(self, node: ir.Node) -> bool:
        """Returns whether a ReduceMean is a GlobalAveragePool with a result that its readers round to float16.

        PyTorch's dynamo exporter writes AdaptiveAvgPool2d(1) in this form. A mean of squares, or a mean that arithmetic
        reads, may belong to a written-out norm.
        """
        source = node.inputs[0] if is_op(node, "ReduceMean") else None
        square = producer_of(source, "Mul")
        if source is None or (square is not None and square.inputs[0] is square.inputs[1]):
            return False
        rank = self.editor.shapes.rank(source)
        if rank is None or rank < 3 or reduced_axes(node, rank, self.editor) != tuple(range(2, rank)):
            return False
        readers = _readers_after_moves(node)
        return bool(readers) and all(_takes_half(reader) for reader in readers)

    def _is_kept(self, node: ir.Node) -> bool:
        return node.op_type in self.keep or node_label(node) in self.keep

    def _family_follows(self, node: ir.Node) -> bool:
        """Returns whether all nodes that share this node's function body take float16.

        From CAST_LIKE_OPSET on, function bodies accept both types. Below, a body is written for one type. It is written
        again when the first of its nodes is converted, and only if none of them must keep float32.
        """
        if self.editor.model.opset_imports.get("", 0) >= CAST_LIKE_OPSET:
            return True
        family = _family(node)
        if family not in self._families:
            model = self.editor.model
            alike = [n for n in ir.traversal.RecursiveGraphIterator(model.graph) if _family(n) == family]
            in_functions = any(
                _family(n) == family
                for f in model.functions.values()
                if f.domain != DOMAIN
                for n in ir.traversal.RecursiveGraphIterator(f.graph)
            )
            follows = not in_functions and all(self._own_reason(n, self.convertible_inputs(n)) is None for n in alike)
            if follows:
                for name in {n.op_type for n in alike}:
                    self.editor.define(name, HALF)
            self._families[family] = follows
        return self._families[family]

    def _is_half(self, value: ir.Value | None) -> bool:
        return value is not None and (value in self.converted or self.editor.is_constant(value))

    def _has_known_types(self, node: ir.Node) -> bool:
        """Returns whether the types of all inputs and outputs are known."""
        known = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
        return all((v.dtype is not None and isinstance(v.type, ir.TensorType)) or self._is_half(v) for v in known)

    def _out_of_range(self, node: ir.Node, takes: Sequence[int]) -> tuple[Code, str] | None:
        for i in takes:
            value = node.inputs[i]
            assert value is not None
            if is_attention_bias(node, i) and not self.fits(value) and not self._can_hide(node, value):
                return Code.OVERFLOW, f"the bias {value.name} may have elements below {-LARGEST:g}"
            if value in self.converted or not self.editor.is_constant(value):
                continue
            found = self.constants.range(value)
            if found.fits or is_attention_bias(node, i) or (found.overflow and is_bound(node, i)):
                continue
            if found.overflow:
                return Code.OVERFLOW, f"{found.name}: {found.overflow} of {found.size} elements are beyond {LARGEST:g}"
            if self._is_lost_in_sums(node, found.error):
                continue
            lost = found.subnormal + found.zero
            return Code.UNDERFLOW, f"{found.name}: {lost} of {found.size} elements lose bits, {found.zero} become zero"
        return self._exceeds(node, takes)

    def _is_lost_in_sums(self, node: ir.Node, error: float) -> bool:
        """Returns whether an error of a node's result is far below the rounding of the sums that are its only readers.

        For example, a layer scale of 1e-6 loses bits, but its products are added to a residual stream near 1.

        Args:
            node: an element-wise product or a matrix multiplication.
            error: the error of its constant relative to the constant's norm; the relative error of the result is about
                the same.
        """
        sums = [_sum_of(reader) for reader in _readers_after_moves(node)]
        largest = self.ranges.of(node.outputs[0])
        is_multiplication = is_op(node, "Mul", *LINEAR) or (node.domain == DOMAIN and node.op_type == "Linear")
        if not is_multiplication or not largest or not sums:
            return False
        return all(error * largest <= LOST * self.ranges.of(result) for result in sums)

    def _exceeds(self, node: ir.Node, takes: Sequence[int]) -> tuple[Code, str] | None:
        """Names the first input or output of the node that was too large for float16 in a run, or returns None."""
        read = [node.inputs[i] for i in takes if not is_attention_bias(node, i) and not is_bound(node, i)]
        for value in (*read, *node.outputs):
            if value is not None and value.dtype == FLOAT and self.ranges.exceeds(value):
                return Code.RANGE, f"'{value.name}' reaches {self.ranges.of(value):.3g}"
        return None

    def _can_hide(self, node: ir.Node, bias: ir.Value) -> bool:
        if node.domain != DOMAIN:
            return False
        masked = node.attributes.get("mask_value")
        if masked is not None and not -math.inf < masked.as_float() <= -LARGEST:
            return False
        array = self.editor.constant(bias)
        return array is None or not np.any(np.isfinite(array) & (array > LARGEST))


def _family(node: ir.Node) -> str:
    """Returns a key that the nodes of one function body share, also if a bias becomes a mask; "" for other domains."""
    return node.op_type.replace("BiasMask", "Bias").replace("Mask", "Bias") if node.domain == DOMAIN else ""


def _takes_half(node: ir.Node) -> bool:
    """Returns whether the operator takes float16 even if its inputs are computed in float32."""
    if node.domain == DOMAIN:
        return node.op_type in OPS
    return node.domain == "" and (node.op_type in TAKE_HALF or node.op_type == "GroupNormalization")


def _sum_of(node: ir.Node) -> ir.Value | None:
    """Returns the sum that an Add, or a com.graphopt norm after one, writes."""
    if is_op(node, "Add"):
        return node.outputs[0]
    return node.outputs[1] if node.domain == DOMAIN and node.op_type.endswith("AddSum") else None


def _readers_after_moves(node: ir.Node) -> list[ir.Node]:
    """Returns the readers of a node's results, also after operators that only move elements; [] at a graph output."""
    found: list[ir.Node] = []
    left = [node]
    while left:
        outputs = left.pop().outputs
        if any(value.is_graph_output() for value in outputs):
            return []
        readers = [reader for value in outputs for reader in value.consumers()]
        left += [reader for reader in readers if is_op(reader, *DATA_MOVEMENT)]
        found += [reader for reader in readers if not is_op(reader, *DATA_MOVEMENT)]
    return found


def _makes_integers(node: ir.Node) -> bool:
    return is_op(node, "Cast") and not ir.DataType(attribute_int(node, "to", 0)).is_floating_point()


def is_attention_bias(node: ir.Node, index: int) -> bool:
    if node.domain == DOMAIN:
        return OPS[node.op_type].inputs[index] == "bias" and node.op_type.startswith("FusedAttention")
    return is_op(node, "Attention") and index == 3


def is_bound(node: ir.Node, index: int) -> bool:
    """Returns whether an input is a bound of a Clip; a bound beyond the range of float16 has no effect."""
    return is_op(node, "Clip") and index > 0
