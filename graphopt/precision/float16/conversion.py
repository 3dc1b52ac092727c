"""Converts a model to float16, graph by graph and node by node, with Casts between the precisions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from graphopt.graph import inference
from graphopt.graph.build import Builder
from graphopt.graph.editor import Editor
from graphopt.graph.operators.traits import LINEAR
from graphopt.graph.traversal import bodies
from graphopt.graph.view import attribute_int, attribute_ints, is_op, is_read, is_read_once, producer_of
from graphopt.ops import DOMAIN
from graphopt.ops.schema import CAST_LIKE_OPSET
from graphopt.passes.clean_up.cast_before_transpose import cast_before_transposing
from graphopt.precision.float16.constants import FLOAT, HALF, LARGEST, HalfConstants, range_of, to_half
from graphopt.precision.float16.ranges import ActivationRanges, power_that_fits
from graphopt.precision.float16.reasons import Reasons, half_types, is_attention_bias, is_bound
from graphopt.precision.float16.rows import transpose_pixels
from graphopt.remarks import Code, InitializerRange, Remark, node_label
from graphopt.report.multiply_adds import multiply_adds
from graphopt.transposed_matmul import MATMULS

NAME = "half_precision"
_SUFFIX = {FLOAT: "float", HALF: "half"}
# The largest number of nodes that a note names.
NAMED = 5


@dataclass
class HalfPrecisionResult:
    """Remarks of the conversion, the initializers with range problems, and notes for the report."""

    remarks: list[Remark]
    ranges: list[InitializerRange]
    notes: list[str] = field(default_factory=list)


class Conversion:
    """One conversion of a model, in place.

    Args:
        editor: the model, with inferred types.
        keep_io: whether graph inputs and outputs keep float32.
        keep: names of nodes and operators that keep float32.
        ranges: measured ranges of the activations.
    """

    def __init__(self, editor: Editor, keep_io: bool, keep: Collection[str], ranges: ActivationRanges) -> None:
        self.editor, self.keep_io, self.ranges = editor, keep_io, ranges
        self.converted: set[ir.Value] = set()
        self.constants = HalfConstants(editor)
        self.reasons = Reasons(editor, frozenset(keep), self.constants, self.converted, ranges)
        # (value, type, saturated) -> the value in that type. Attention bias -> bias and mask (`_split_bias`).
        self.views: dict[tuple[ir.Value, ir.DataType, bool], ir.Value] = {}
        self.hidden: dict[ir.Value, tuple[ir.Value | None, ir.Value]] = {}
        self.kept_float: dict[tuple[Code, str], list[ir.Node]] = {}
        # Casts to float16 with a source that has become float16.
        self.redundant_casts: list[ir.Node] = []
        self.nodes = self.casts = 0
        self.scaled: list[ir.Node] = []
        # Known multiply-adds: [in float16, all].
        self.multiply_adds = [0, 0]
        self.notes: list[str] = []
        # The number of graph outputs that were results of Casts and now are the sources of these Casts.
        self.outputs = 0

    # -- a graph -------------------------------------------------------------------------------------------------

    def convert(self, graph: ir.Graph) -> None:
        self.reasons.find_needs_float(graph)
        declared = [value.dtype for value in graph.outputs]
        main = graph is self.editor.model.graph
        if main and not self.keep_io:
            for value in graph.inputs:
                if value.dtype == FLOAT and not value.is_initializer():
                    self._retype(value)
        for node in list(graph):
            for body in bodies(node):
                self.convert(body)
            self._convert_node(node)
        # These Casts are bypassed last. If they were bypassed earlier, a reader that is not converted would read a
        # converted value. `_convert_node` would cast this value back to float32, but the reader takes float16.
        for cast in [c for c in self.redundant_casts if c.graph is graph]:
            assert cast.inputs[0] is not None
            self.editor.bypass(cast, cast.inputs[0])
        self._restore_outputs(graph, declared, HALF if main and not self.keep_io else FLOAT)

    def _restore_outputs(self, graph: ir.Graph, declared: Sequence[ir.DataType | None], wanted: ir.DataType) -> None:
        restored: dict[ir.Value, ir.Value] = {}
        for i, value in enumerate(graph.outputs):
            producer = value.producer()
            if declared[i] == HALF:
                continue  # the model declares float16, so the output is not cast back
            if value in restored:  # listed twice
                graph.outputs[i] = restored[value]
                continue
            if value.dtype == wanted or (value not in self.converted if wanted == FLOAT else value.dtype != FLOAT):
                continue
            if producer is None or producer.graph is not graph:
                continue
            if is_op(producer, "Cast") and self._bypass(producer, wanted):
                continue
            new = self.views.get((value, wanted, False)) or self._cast(value, value, wanted)
            new.name, value.name = (
                value.name,
                self.editor.unique_name(f"{value.name}_{_SUFFIX[FLOAT if wanted == HALF else HALF]}"),
            )
            new.shape, new.doc_string = value.shape, value.doc_string
            new.metadata_props.update(value.metadata_props)
            inference.declare_like(self.editor.model, new, value)
            inference.retype(self.editor.model, new, wanted)
            inference.declare(self.editor.model, value)  # outputs may declare dimensions of -1
            graph.outputs[i] = restored[value] = new

    def _bypass(self, cast: ir.Node, wanted: ir.DataType) -> bool:
        """Replaces a graph output that a Cast produces by the Cast's source if that has the wanted type."""
        source = cast.inputs[0]
        if source is None or source.dtype != wanted or not self.editor.bypass(cast, source):
            return False
        inference.retype(self.editor.model, source, wanted)
        self.outputs += 1
        return True

    # -- a node --------------------------------------------------------------------------------------------------

    def _convert_node(self, node: ir.Node) -> None:
        if is_op(node, "Constant"):
            return
        if is_op(node, "Cast"):
            self._convert_cast(node)
            return
        if is_op(node, "ConstantOfShape"):
            self._convert_fill(node)
            return
        either = self.reasons.convertible_inputs(node)
        floats = [i for i, v in enumerate(node.inputs) if v is not None and (v.dtype == FLOAT or v in self.converted)]
        if not floats:
            return
        takes = [i for i in either if i in floats]
        count = multiply_adds(node, self.ranges.dims) or 0
        self.multiply_adds[1] += count
        why = self.reasons.why_float(node, takes)
        if why is None or (why[0] == Code.RANGE and self._scale_down(node, takes)):
            self.multiply_adds[0] += count
            if why is None:
                self._make_half(node, takes)
            return
        code, detail = why
        if code is not None:
            self.kept_float.setdefault((code, detail), []).append(node)
        for i, value in enumerate(node.inputs):
            if value is None:
                continue
            if value in self.converted:
                self.editor.set_input(node, i, self._view(value, FLOAT))
            elif self.reasons.stores_only and code != Code.KEPT and self.constants.may_store(value, node):
                self.editor.set_input(node, i, self._stored(value))

    def _make_half(self, node: ir.Node, takes: Sequence[int]) -> None:
        for i in takes:
            value = node.inputs[i]
            assert value is not None
            if is_attention_bias(node, i) and not self.reasons.fits(value):
                node = self._hide(node, i)
            elif value.dtype == FLOAT:
                self.editor.set_input(node, i, self._view(value, HALF, saturate=is_bound(node, i)))
        if node.domain == "":
            types = half_types(node.op_type, self.editor.opset(node))
            assert types is not None
            outputs = [types[1][min(i, len(types[1]) - 1)] for i in range(len(node.outputs))]
        else:
            outputs = [True] * len(node.outputs)
        for value, follows in zip(node.outputs, outputs):
            if follows and value.dtype == FLOAT:
                self._retype(value)
        if node.op_type == "Attention" and "softmax_precision" not in node.attributes:
            self.editor.set_attribute(node, "softmax_precision", int(FLOAT))
        masked = node.attributes.get("mask_value") if node.domain == DOMAIN else None
        if masked is not None and -math.inf < masked.as_float() < -LARGEST:
            self.editor.set_attribute(node, "mask_value", -float(LARGEST))
        self.nodes += 1

    def _scale_down(self, node: ir.Node, takes: Sequence[int]) -> bool:
        """Divides weight and bias of x W + b by 2^k, and multiplies the result by 2^k in float32.

        This is for results that are too large for float16. A residual of LinearAdd is added in float32.

        Returns:
            False, without a change, if the node has another form, x is too large or the scaled constants underflow.
        """
        ours = node.domain == DOMAIN and node.op_type in ("Linear", "LinearAdd")
        linear = node.domain == "" and node.op_type in LINEAR
        if not linear and not (ours and self.editor.model.opset_imports.get("", 0) >= CAST_LIKE_OPSET):
            return False
        residual = node.inputs[3] if node.op_type == "LinearAdd" else None
        inputs = list(node.inputs[:3])
        used = [i for i in takes if i < len(inputs)]
        constant = [i for i in used if self.editor.is_constant(inputs[i])]
        moving = [i for i in used if i not in constant]
        y = node.outputs[0]
        power = power_that_fits(self.ranges.of(y) + self.ranges.of(residual))
        fits = all(self.constants.may_scale(inputs[i], power) for i in constant)
        if moving not in ([0], [1]) or not constant or not fits or self.ranges.exceeds(inputs[moving[0]]):
            return False
        for i in used:
            value = inputs[i]
            assert value is not None
            if i in constant:
                inputs[i] = self.constants.scaled_half(value, power)
            elif value.dtype == FLOAT:
                inputs[i] = self._view(value, HALF)
        name = node_label(node)
        b = Builder(self.editor, node, name)
        if ours:
            b.nodes.append(Builder(self.editor, node).emit("Linear", [v for v in inputs if v is not None], {}))
        else:
            b.op(node.op_type, *inputs, _hint=name, **{a.name: a.value for a in node.attributes.values()})
        layer = b.nodes[0]
        layer.outputs[0].type, layer.outputs[0].shape = ir.TensorType(HALF), y.shape
        wide = b.op("Cast", layer.outputs[0], to=int(FLOAT), _hint=f"{name}/{_SUFFIX[FLOAT]}", _like=y, _dtype=FLOAT)
        factor = b.initializer(np.array(2.0**power, np.float32), "/scale")
        result = b.op("Mul", wide, factor, _hint=f"{name}/unscaled", _like=y, _dtype=FLOAT)
        if residual is not None:
            addend = self._view(residual, FLOAT) if residual in self.converted else residual
            result = b.op("Add", result, addend, _hint=f"{name}/residual", _like=y, _dtype=FLOAT)
        self.editor.replace([node], b.nodes, {y: result}, anchor=node)
        self.nodes += 1
        self.casts += 1
        self.scaled.append(layer)
        return True

    def _hide(self, node: ir.Node, index: int) -> ir.Node:
        """Replaces the bias of a FusedAttention, which hides keys, with a bias and a mask with the value -65504.

        The new node has no bias if all its elements would be 0.

        A Cast of -3.4e38 would be -inf, and the softmax of a row without visible keys would be NaN. In float32 the sum
        of a score and -3.4e38 does not depend on the score. The sum with -65504 would, so the mask replaces the score.
        """
        bias = node.inputs[index]
        assert bias is not None
        if bias not in self.hidden:
            self.hidden[bias] = self._split_bias(bias)
        half, keep = self.hidden[bias]
        inputs = [v for v in node.inputs if v is not None]
        inputs[index : index + 1] = [] if half is None else [half]
        index += len(inputs) - sum(v is not None for v in node.inputs)
        attributes = {a.name: a.value for a in node.attributes.values()} | {"mask_value": -LARGEST}
        name = node.op_type
        if "mask_value" in node.attributes:
            b = Builder(self.editor, node)
            inputs[index + 1] = b.op("And", inputs[index + 1], keep, _hint=f"{node.name}/keep")
            self.editor.add_before(node, b.nodes)
        else:
            inputs.append(keep)
            name = name.replace("Bias", "BiasMask")
        if half is None:
            name = name.replace("Bias", "")
        new = Builder(self.editor, node).emit(name, inputs, attributes)
        self.editor.replace([node], [new], {node.outputs[0]: new.outputs[0]}, anchor=node)
        return new

    def _split_bias(self, bias: ir.Value) -> tuple[ir.Value | None, ir.Value]:
        """Splits an attention bias as `HalfConstants.without_hidden`, with nodes if it is not a constant.

        Returns:
            The bias, or None if all its elements would be 0; the mask.
        """
        array = self.editor.constant(bias)
        if array is not None:
            return self.constants.without_hidden(bias, array)
        keep = self._kept_by_where(bias)
        if keep is not None:
            return None, keep
        anchor = bias.producer() or next(iter(bias.graph or ()))
        lowest = self.editor.initializer(anchor, np.array(-LARGEST, np.float32), "lowest_half")
        zero = self.editor.initializer(anchor, np.array(0, np.float32), "zero_bias")
        b, bool_ = Builder(self.editor, anchor, f"{bias.name}/hides"), ir.DataType.BOOL
        above = b.op("Greater", bias, lowest, _like=bias, _dtype=bool_)
        infinite = b.op("IsInf", bias, _like=bias, _dtype=bool_)
        keep = b.op("Or", above, infinite, _hint=f"{b.label}/keep", _like=bias, _dtype=bool_)
        kept = b.op("Where", keep, bias, zero, _like=bias, _dtype=FLOAT)
        self.editor.add_after(bias, b.nodes)
        return self._cast(kept, bias, HALF), keep

    def _kept_by_where(self, bias: ir.Value) -> ir.Value | None:
        """Returns the condition of a bias where(condition, 0, c), negated for where(condition, c, 0); else None."""
        where = producer_of(bias, "Where")
        if where is None:
            return None
        condition, *numbers = where.inputs[0], *(self.editor.shapes.number(v) for v in where.inputs[1:])
        hides = [n is not None and -math.inf < n <= -LARGEST for n in numbers]
        if condition is None or 0.0 not in numbers or not any(hides):
            return None
        if hides[1]:
            return condition
        b = Builder(self.editor, where, f"{bias.name}/hides")
        keep = b.op("Not", condition, _hint=f"{b.label}/keep", _like=condition, _dtype=ir.DataType.BOOL)
        self.editor.add_after(condition, b.nodes)
        return keep

    def _convert_cast(self, node: ir.Node) -> None:
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        to = attribute_int(node, "to", 0)
        if to == HALF and source in self.converted:
            self.redundant_casts.append(node)
        elif (
            to == result.dtype == FLOAT
            and source.dtype == ir.DataType.BOOL
            and not self.reasons.stores_only
            and node not in self.reasons.needs_float
        ):
            self.editor.set_attribute(node, "to", int(HALF))
            self._retype(result)
            self.nodes += 1

    def _convert_fill(self, node: ir.Node) -> None:
        value = node.attributes.get("value")
        array = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
        declared = node.outputs[0].dtype  # may contradict the node's attribute
        if (
            array.dtype != np.float32
            or declared != FLOAT
            or self.reasons.stores_only
            or node in self.reasons.needs_float
        ):
            return
        if range_of("", array).fits:
            self.editor.set_attribute(node, "value", ir.Tensor(to_half(array)))
            self._retype(node.outputs[0])
            self.nodes += 1

    # -- values --------------------------------------------------------------------------------------------------

    def _retype(self, value: ir.Value) -> None:
        inference.retype(self.editor.model, value, HALF)
        self.converted.add(value)

    def _view(self, value: ir.Value, dtype: ir.DataType, *, saturate: bool = False) -> ir.Value:
        """Returns the value in the other precision: a rounded constant, the source of a Cast, or a new Cast."""
        key = (value, dtype, saturate)
        if key not in self.views:
            self.views[key] = self._make_view(value, dtype, saturate)
        return self.views[key]

    def _make_view(self, value: ir.Value, dtype: ir.DataType, saturate: bool) -> ir.Value:
        if dtype == HALF and self.editor.is_constant(value):
            return self.constants.half(value, saturate)
        cast = producer_of(value, "Cast")
        if cast is not None:
            source = cast.inputs[0]
            assert source is not None
            if source.dtype == dtype:
                return source
        return self._cast(value, value, dtype)

    def _cast(self, source: ir.Value, named_after: ir.Value, dtype: ir.DataType) -> ir.Value:
        anchor = source.producer() or next(iter(source.graph or ()))
        b, hint = Builder(self.editor, anchor), f"{named_after.name}/{_SUFFIX[dtype]}"
        cast = b.op("Cast", source, to=int(dtype), _hint=hint, _like=named_after, _dtype=dtype)
        self.editor.add_after(source, b.nodes)
        self.casts += 1
        return cast

    def _stored(self, value: ir.Value) -> ir.Value:
        key = (value, FLOAT, False)
        if key not in self.views:
            half = self._view(value, HALF)
            self.views[key] = self._cast(half, value, FLOAT)
        return self.views[key]

    # -- the end -------------------------------------------------------------------------------------------------

    def result(self) -> HalfPrecisionResult:
        for value in self.constants.in_half:
            self._drop_unread(value)
        self.editor.changed()
        _transpose_after_matmuls(self.editor)
        cast_before_transposing(self.editor)
        transpose_pixels(self.editor)
        self.editor.changed()
        self.editor.remove_unused_definitions()
        remarks = []
        if self.scaled or any(code == Code.RANGE for code, _ in self.kept_float):
            self.notes.append(self._range_note())
        if self.nodes or self.casts or self.outputs or self.constants.in_half or self.converted:
            detail = f"{self.nodes} nodes and {len(self.constants.in_half)} initializers in float16, {self.casts} Casts"
            remarks.append(Remark(NAME, "APPLIED", (), detail))
        for (code, detail), nodes in self.kept_float.items():
            remarks.append(Remark(NAME, code.name, tuple(node_label(n) for n in nodes), detail))
        troubled = [r for r in self.constants.ranges.values() if r.overflow or r.subnormal or r.zero]
        halves = {v.name for v in self.constants.in_half}
        ranges = [InitializerRange(**{**vars(r), "converted": r.name in halves}) for r in troubled]
        return HalfPrecisionResult(remarks, ranges, self.notes)

    def _range_note(self) -> str:
        """Names the nodes that keep float32 because of their activations, and the share of multiply-adds in float16."""
        kept = [
            (node_label(n), detail) for (code, detail), ns in self.kept_float.items() if code == Code.RANGE for n in ns
        ]
        scaled = [node_label(node) for node in self.scaled]
        parts = []
        if kept:
            named = ", ".join(f"{name} ({detail})" for name, detail in kept[:NAMED])
            more = f" and {len(kept) - NAMED} more" if len(kept) > NAMED else ""
            parts.append(f"nodes with activations near float16's limit of {LARGEST:g} keep float32: {named}{more}")
        if scaled:
            named = ", ".join(scaled[:NAMED]) + (f" and {len(scaled) - NAMED} more" if len(scaled) > NAMED else "")
            parts.append(f"weights are scaled down, and results are scaled back in float32: {named}")
        half, all_ = self.multiply_adds
        if all_:
            parts.append(f"{half / all_:.1%} of the floating-point multiply-adds are in float16")
        return "; ".join(parts)

    def _drop_unread(self, value: ir.Value) -> None:
        """Removes an unused float32 original; its float16 copy takes its name."""
        if is_read(value) or value.is_graph_input():
            return
        name, producer = value.name, value.producer()
        if value.is_initializer():
            self.editor.remove_initializer(value)
        elif producer is not None and producer.graph is not None:
            self.editor.remove(producer)
        copies = [v for (of, dtype, _), v in self.views.items() if of is value and dtype == HALF]
        if len(copies) == 1:
            copies[0].name = name


def _transpose_after_matmuls(editor: Editor) -> None:
    """Rewrites Transpose(x) W as Transpose(x W) in float16, for perms that move the first axis just before the last.

    The sums are the same, and no more elements move, because W [K, N] has N <= K. onnxruntime 1.31.1 aborts the process
    on the original form on its CPU provider at the default optimization level, where it inserts Casts around float16
    nodes.
    """
    for node in editor.nodes(MATMULS):
        transpose, weight = producer_of(node.inputs[0], "Transpose"), editor.tensor(node.inputs[1])
        if transpose is None or weight is None or len(weight.shape) != 2 or (node.domain and len(node.inputs) > 3):
            continue
        x, moved, y = transpose.inputs[0], transpose.outputs[0], node.outputs[0]
        perm, (K, N) = attribute_ints(transpose, "perm", ()), weight.shape.numpy()
        rows_first = len(perm) > 2 and perm == (*range(1, len(perm) - 1), 0, len(perm) - 1)
        if x is None or not rows_first or editor.dtype(x) != HALF or K < N or not is_read_once(moved):
            continue
        attributes = {a.name: a.value for a in node.attributes.values()}
        b, label = Builder(editor, node), node_label(node)
        hint, operands = f"{label}/product", (x, *node.inputs[1:])
        gemm = b.op(node.op_type, *operands, _hint=hint, _domain=node.domain, _dtype=HALF, **attributes)
        gemm.shape = None if x.shape is None else ir.Shape([*x.shape[:-1], N])
        inference.declare(editor.model, gemm)
        result = b.op("Transpose", gemm, perm=perm, _hint=f"{label}/transpose")
        editor.replace([node], b.nodes, {y: result}, anchor=node)
