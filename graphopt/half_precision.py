"""float32 becomes float16 where that is safe (`--precision fp16`), with Casts where the two meet.

It runs once, after all other passes: weights are folded in float64 and rounded once, and statistics are inside fused
nodes, which keep them in float32 themselves.

Each node computes in one precision, decided in topological order as automatic mixed precision does (P. Micikevicius et
al., "Mixed Precision Training", ICLR 2018):

- Products (Conv, Gemm, MatMul, attention, recurrent nets) and nodes that keep their statistics in float32 by
  definition (`stash_type`, our operators) take float16.
- Statistics (Softmax, norms, sums, means) and what leaves the range quickly (Exp, Pow, ...) take float32, and so does
  arithmetic that only they or integers read.
- All others follow their inputs: float16, unless one of them is computed in float32.

Range: a node stays in float32 when one of its constants has numbers beyond 65504 or loses more than half precision by
underflow, so that masks of -3.4e38 and epsilons of 1e-12 keep their meaning. A bias of FusedAttention becomes a mask of
-65504 where it is lower, infinities excepted: a row that is masked everywhere stays an average.

What float16 a node may take is what the ONNX schema of its operator and version says. Bodies of If, Loop and Scan are
converted inside; their interfaces, the user's functions and foreign operators stay in float32, and so do graph inputs
and outputs unless asked otherwise. Integers are not touched.

On the CPU nothing gains from computing in float16 (ONNX Runtime has no kernels of standard operators for it and casts
around each node), so only the weights are stored in float16 there: matrices, filters and tables, with a Cast that
runtimes compute when they load the model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.graph import inference
from graphopt.graph.editor import Editor, attribute_int, attribute_ints
from graphopt.graph.traversal import bodies
from graphopt.graph.vocabulary import QUANTIZATION, RANDOM, is_op, made_by
from graphopt.ops import DOMAIN, OPS
from graphopt.ops.schema import CAST_LIKE_OPSET, MIN_OPSET, Array
from graphopt.passes.clean_up import cast_before_transposing, is_matrix, remove_unread_definitions
from graphopt.remarks import Code, InitializerRange, Remark, node_label
from graphopt.transposed_products import MATRIX_PRODUCTS

NAME = "half_precision"
FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
LARGEST = 65504.0
SMALLEST_NORMAL = 2.0**-14

PRODUCTS = frozenset(
    "Conv ConvTranspose Gemm MatMul Einsum LSTM GRU RNN Attention LayerNormalization RMSNormalization".split()
)
STATISTICS = frozenset(
    "Softmax LogSoftmax SoftmaxCrossEntropyLoss InstanceNormalization BatchNormalization LpNormalization "
    "MeanVarianceNormalization LRN LpPool GlobalLpPool ReduceMean ReduceSum ReduceSumSquare ReduceL1 ReduceL2 "
    "ReduceProd ReduceLogSum ReduceLogSumExp CumSum CumProd Exp Log Pow Reciprocal Softplus Tan Sinh Cosh Acosh "
    "Asin Acos Atanh Det GridSample AffineGrid RoiAlign MaxRoiPool DFT STFT MelWeightMatrix".split()
)
GROUP_NORM_STASH_OPSET = 21
_SUFFIX = {FLOAT: "float", HALF: "half"}


def range_of(name: str, array: Array) -> InitializerRange:
    """Counts the range problems of a float32 array."""
    flat = array.reshape(-1)
    finite = flat[np.isfinite(flat)]
    size = np.abs(finite)
    half = _to_half(finite)
    overflow = int(np.count_nonzero(np.isinf(half)))
    vanish = int(np.count_nonzero((half == 0) & (size > 0)))
    subnormal = int(np.count_nonzero((size > 0) & (size < SMALLEST_NORMAL) & (half != finite))) - vanish
    norm = float(np.linalg.norm(finite.astype(np.float64)))
    if overflow:
        error = math.inf
    elif norm == 0:
        error = 0.0
    else:
        error = float(np.linalg.norm(finite.astype(np.float64) - half)) / norm
    return InitializerRange(name, flat.size, overflow, max(subnormal, 0), vanish, error)


def _to_half(array: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(np.float16)


def _saturated(array: Array) -> Array:
    """float16 with finite numbers beyond its range at its ends."""
    clipped = np.where(np.isfinite(array), np.clip(array, -LARGEST, LARGEST), array)
    return _to_half(clipped)


@dataclass
class HalfPrecisionResult:
    """What the conversion did: remarks as of any pass, and the initializers with range problems."""

    remarks: list[Remark]
    ranges: list[InitializerRange]


def convert(editor: Editor, *, keep_io: bool = True, keep: Collection[str] = ()) -> HalfPrecisionResult:
    """Converts the editor's model in place.

    Args:
        editor: the model, types inferred.
        keep_io: graph inputs and outputs stay float32.
        keep: nodes, by name or by operator, that stay float32.

    Raises:
        OptionError: a name in `keep` that no node has.
    """
    require_known(editor, keep)
    opset = editor.model.opset_imports.get("", 0)
    if opset < MIN_OPSET:
        detail = f"the model has opset {opset}, float16 needs {MIN_OPSET}"
        return HalfPrecisionResult([Remark(NAME, Code.OPSET.name, (), detail)], [])
    work = _Conversion(editor, keep_io, frozenset(keep))
    work.convert(editor.model.graph)
    return work.result()


def require_known(editor: Editor, keep: Collection[str]) -> None:
    """Raises:
    OptionError: a name of what is to stay in float32 that no node and no operator has.
    """
    nodes = list(ir.traversal.RecursiveGraphIterator(editor.model.graph))
    unknown = set(keep) - {n.op_type for n in nodes} - {node_label(n) for n in nodes}
    if unknown:
        raise OptionError(f"no node and no operator has the name '{min(unknown)}', so none can stay in float32")


@functools.cache
def _half_types(op_type: str, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...], bool] | None:
    """Which formal inputs and outputs of a standard operator may be float or float16, and whether the last input is
    variadic; None for an operator without schema.
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
class _Conversion:
    editor: Editor
    keep_io: bool
    keep: frozenset[str]
    # Values whose type changed, and views of values in the other type.
    converted: set[ir.Value] = field(default_factory=set)
    views: dict[tuple[ir.Value, ir.DataType, bool], ir.Value] = field(default_factory=dict)
    hidden: dict[ir.Value, tuple[ir.Value, ir.Value]] = field(default_factory=dict)
    ranges: dict[ir.Value, InitializerRange] = field(default_factory=dict)
    # In the order in which they came, which the written file shows.
    in_half: dict[ir.Value, None] = field(default_factory=dict)
    needs_float: set[ir.Node] = field(default_factory=set)
    families: dict[str, bool] = field(default_factory=dict)
    stays: dict[tuple[Code, str], list[ir.Node]] = field(default_factory=dict)
    # Casts to float16 of what is float16 now.
    idle: list[ir.Node] = field(default_factory=list)
    nodes: int = 0
    casts: int = 0
    # Graph outputs that are what was cast to them before.
    outputs: int = 0

    @property
    def opset(self) -> int:
        return self.editor.model.opset_imports.get("", 0)

    @property
    def stores_only(self) -> bool:
        """Whether float16 is for storage alone."""
        return self.editor.target.device == "cpu"

    # -- a graph -------------------------------------------------------------------------------------------------

    def convert(self, graph: ir.Graph) -> None:
        self._find_needs_float(graph)
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
        # Until here their readers saw float16 of the model's own making, which is no matter of precision.
        for cast in [c for c in self.idle if c.graph is graph]:
            assert cast.inputs[0] is not None
            self.editor.bypass(cast, cast.inputs[0])
        self._restore_outputs(graph, declared, HALF if main and not self.keep_io else FLOAT)

    def _find_needs_float(self, graph: ir.Graph) -> None:
        """Nodes whose results only statistics and integers read: their own arithmetic belongs to the statistics."""
        for node in reversed(graph):
            readers = [u for o in node.outputs for u in o.consumers()]
            if not readers or any(o.is_graph_output() for o in node.outputs):
                continue
            if all(u in self.needs_float or self._is_statistics(u) or _makes_integers(u) for u in readers):
                self.needs_float.add(node)

    def _is_statistics(self, node: ir.Node) -> bool:
        if node.domain != "":
            return False
        if node.op_type == "GroupNormalization":
            return self.editor.opset(node) < GROUP_NORM_STASH_OPSET
        return node.op_type in STATISTICS

    def _restore_outputs(self, graph: ir.Graph, declared: Sequence[ir.DataType | None], wanted: ir.DataType) -> None:
        restored: dict[ir.Value, ir.Value] = {}
        for i, value in enumerate(graph.outputs):
            producer = value.producer()
            if declared[i] == HALF:
                continue  # and so it stays, whatever was behind the Cast that made it
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
            inference.declare(self.editor.model, value)  # it is the interface no more, which may declare -1
            graph.outputs[i] = restored[value] = new

    def _bypass(self, cast: ir.Node, wanted: ir.DataType) -> bool:
        """Lets a graph output be what was cast to it, where that has the wanted type."""
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
        either = self._either(node)
        floats = [i for i, v in enumerate(node.inputs) if v is not None and (v.dtype == FLOAT or v in self.converted)]
        if not floats:
            return
        takes = [i for i in either if i in floats]
        why = self._why_float(node, takes)
        if why is None:
            self._make_half(node, takes)
            return
        code, detail = why
        if code is not None:
            self.stays.setdefault((code, detail), []).append(node)
        for i, value in enumerate(node.inputs):
            if value is None:
                continue
            if value in self.converted:
                node.replace_input_with(i, self._view(value, FLOAT))
            elif self.stores_only and code != Code.KEPT and self._may_store(value, node):
                node.replace_input_with(i, self._stored(value))

    def _either(self, node: ir.Node) -> list[int]:
        """The inputs that may be float or float16."""
        if node.domain == DOMAIN and node.op_type in OPS:
            return OPS[node.op_type].inputs_of_T
        types = _half_types(node.op_type, self.editor.opset(node)) if node.domain == "" else None
        if types is None:
            return []
        inputs, _, variadic = types
        last = len(inputs) - 1
        return [i for i in range(len(node.inputs)) if (inputs[i] if i <= last else variadic and inputs[last])]

    def _why_float(self, node: ir.Node, takes: Sequence[int]) -> tuple[Code | None, str] | None:
        """Why the node stays in float32 (no code: it follows its inputs), or None when it takes float16."""
        why = self._own_reason(node, takes)
        if why is None and node.domain == DOMAIN and not self._family_follows(node):
            return Code.OPSET, f"{node.op_type} of two element types needs opset {CAST_LIKE_OPSET}"
        return why

    def _own_reason(self, node: ir.Node, takes: Sequence[int]) -> tuple[Code | None, str] | None:
        ours = node.domain == DOMAIN and node.op_type in OPS
        if node.domain != "" and not ours:
            return Code.UNSUPPORTED_OP, f"{node.domain}::{node.op_type} is not a standard operator"
        if bodies(node):
            return None, ""
        if self._is_kept(node):
            return Code.KEPT, "as asked"
        if node.op_type in QUANTIZATION:
            return Code.QUANTIZED, f"{node.op_type} is left as it is"
        if any(made_by(v, *QUANTIZATION) for v in node.inputs):
            return Code.QUANTIZED, f"{node.op_type} reads a quantized value"
        if not takes or not self._outputs_follow(node) or node.op_type in RANDOM:
            return Code.NO_FLOAT16, f"{node.op_type} of opset {self.editor.opset(node)}"
        if self.stores_only:
            # A table stays small in memory where only the rows that were picked are cast.
            if is_op(node, "Gather") and all(self._is_half(node.inputs[i]) for i in takes):
                return None if node not in self.needs_float else (None, "")
            return Code.NO_FLOAT16, f"{node.op_type} has no float16 kernel that pays on {self.editor.target}"
        if self._is_statistics(node):
            return Code.STATISTICS, node.op_type
        product = ours or node.op_type in PRODUCTS or node.op_type == "GroupNormalization"
        if product and attribute_int(node, "stash_type", 1) != 1:
            return Code.STATISTICS, f"{node.op_type} with other statistics than float32"
        if not product:
            if node in self.needs_float:
                return None, ""
            if any(not self._is_half(node.inputs[i]) for i in takes):
                return None, ""
        return self._out_of_range(node, takes)

    def _is_kept(self, node: ir.Node) -> bool:
        return node.op_type in self.keep or node_label(node) in self.keep

    def _family_follows(self, node: ir.Node) -> bool:
        """Whether all nodes that share a function body take float16 with this one.

        From CAST_LIKE_OPSET on bodies follow the type of their inputs. Below, a body is written for one type; it is
        written again when the first of its nodes is converted, and only if none has a reason of its own to stay.
        """
        if self.opset >= CAST_LIKE_OPSET:
            return True
        family = _family(node)
        if family not in self.families:
            model = self.editor.model
            alike = [n for n in ir.traversal.RecursiveGraphIterator(model.graph) if _family(n) == family]
            in_functions = any(
                _family(n) == family
                for f in model.functions.values()
                if f.domain != DOMAIN
                for n in ir.traversal.RecursiveGraphIterator(f.graph)
            )
            follows = not in_functions and all(self._own_reason(n, self._either(n)) is None for n in alike)
            if follows:
                for name in {n.op_type for n in alike}:
                    self.editor.define(name, HALF)
            self.families[family] = follows
        return self.families[family]

    def _is_half(self, value: ir.Value | None) -> bool:
        return value is not None and (value in self.converted or self.editor.is_constant(value))

    def _outputs_follow(self, node: ir.Node) -> bool:
        """Every float32 output becomes float16 with the inputs, or is float32 by definition; all types are known."""
        known = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
        return all((v.dtype is not None and isinstance(v.type, ir.TensorType)) or self._is_half(v) for v in known)

    def _out_of_range(self, node: ir.Node, takes: Sequence[int]) -> tuple[Code, str] | None:
        for i in takes:
            value = node.inputs[i]
            assert value is not None
            if _is_attention_bias(node, i) and not self._fits(value) and not self._can_hide(node, value):
                return Code.OVERFLOW, f"the bias {value.name} may hold numbers below {-LARGEST:g}"
            if value in self.converted or not self.editor.is_constant(value):
                continue
            found = self._range(value)
            if found.fits or _is_attention_bias(node, i) or (found.overflow and _is_bound(node, i)):
                continue
            if found.overflow:
                return Code.OVERFLOW, f"{found.name}: {found.overflow} of {found.size} numbers are beyond {LARGEST:g}"
            lost = found.subnormal + found.zero
            return Code.UNDERFLOW, f"{found.name}: {lost} of {found.size} numbers lose bits, {found.zero} become zero"
        return None

    def _make_half(self, node: ir.Node, takes: Sequence[int]) -> None:
        for i in takes:
            value = node.inputs[i]
            assert value is not None
            if _is_attention_bias(node, i) and not self._fits(value):
                node = self._hide(node, i)
            elif value.dtype == FLOAT:
                node.replace_input_with(i, self._view(value, HALF, saturate=_is_bound(node, i)))
        if node.domain == "":
            types = _half_types(node.op_type, self.editor.opset(node))
            assert types is not None
            outputs = [types[1][min(i, len(types[1]) - 1)] for i in range(len(node.outputs))]
        else:
            outputs = [True] * len(node.outputs)
        for value, follows in zip(node.outputs, outputs):
            if follows and value.dtype == FLOAT:
                self._retype(value)
        if node.op_type == "Attention" and "softmax_precision" not in node.attributes:
            node.attributes["softmax_precision"] = ir.AttrInt64("softmax_precision", int(FLOAT))
        masked = node.attributes.get("mask_value") if node.domain == DOMAIN else None
        if masked is not None and -math.inf < masked.as_float() < -LARGEST:
            node.attributes["mask_value"] = ir.AttrFloat32("mask_value", -LARGEST)
        self.nodes += 1

    def _fits(self, value: ir.Value) -> bool:
        """Whether float16 holds what is in the value; False where that is not known."""
        if value in self.converted or value.dtype == HALF:
            return True
        return self.editor.is_constant(value) and not self._range(value).overflow

    def _can_hide(self, node: ir.Node, bias: ir.Value) -> bool:
        if node.domain != DOMAIN:
            return False
        masked = node.attributes.get("mask_value")
        if masked is not None and not -math.inf < masked.as_float() <= -LARGEST:
            return False
        array = self.editor.constant(bias)
        return array is None or not np.any(np.isfinite(array) & (array > LARGEST))

    def _hide(self, node: ir.Node, index: int) -> ir.Node:
        """FusedAttention with a bias that hides keys becomes one with a mask, where they have score -65504.

        A Cast of -3.4e38 would be -inf, and a row that is hidden everywhere NaN; -65504 would not swallow the score.
        """
        bias = node.inputs[index]
        assert bias is not None
        if bias not in self.hidden:
            self.hidden[bias] = self._split_bias(bias)
        half, keep = self.hidden[bias]
        inputs = [v for v in node.inputs if v is not None]
        inputs[index] = half
        attributes = {a.name: a.value for a in node.attributes.values()} | {"mask_value": -LARGEST}
        name = node.op_type
        if "mask_value" in node.attributes:
            both = self.editor.node("And", [inputs[index + 1], keep], hint=f"{node.name}/keep")
            assert node.graph is not None
            node.graph.insert_before(node, both)
            inputs[index + 1] = both.outputs[0]
        else:
            inputs.append(keep)
            name = name.replace("Bias", "BiasMask")
        new = self.editor.emit(name, inputs, attributes, anchor=node)
        self.editor.replace([node], [new], {node.outputs[0]: new.outputs[0]}, anchor=node)
        return new

    def _split_bias(self, bias: ir.Value) -> tuple[ir.Value, ir.Value]:
        """(the bias in float16 with 0 where it hides, True where it does not hide); -inf stays in the bias."""
        array = self.editor.constant(bias)
        if array is not None:
            keep = ~(np.isfinite(array) & (array <= -LARGEST))
            values = _to_half(np.where(keep, array, 0))
            self.in_half[bias] = None
            return self._initializer(bias, ir.Tensor(values), "half"), self._initializer(bias, ir.Tensor(keep), "keep")
        anchor = bias.producer() or next(iter(bias.graph or ()))
        lowest = self.editor.initializer(anchor, np.array(-LARGEST, np.float32), "lowest_half")
        zero = self.editor.initializer(anchor, np.array(0, np.float32), "zero_bias")
        hint = f"{bias.name}/hides"
        above = self.editor.node("Greater", [bias, lowest], hint=f"{hint}/Greater")
        infinite = self.editor.node("IsInf", [bias], hint=f"{hint}/IsInf")
        keep_node = self.editor.node("Or", [above.outputs[0], infinite.outputs[0]], hint=f"{hint}/keep")
        kept = self.editor.node("Where", [keep_node.outputs[0], bias, zero], hint=f"{hint}/Where")
        for made in (above, infinite, keep_node, kept):
            dtype = FLOAT if made is kept else ir.DataType.BOOL
            made.outputs[0].type, made.outputs[0].shape = ir.TensorType(dtype), bias.shape
        self._insert([above, infinite, keep_node, kept], bias)
        return self._cast(kept.outputs[0], bias, HALF), keep_node.outputs[0]

    def _convert_cast(self, node: ir.Node) -> None:
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        to = attribute_int(node, "to", 0)
        if to == HALF and source in self.converted:
            self.idle.append(node)
        elif (
            to == result.dtype == FLOAT
            and source.dtype == ir.DataType.BOOL
            and not self.stores_only
            and node not in self.needs_float
        ):
            node.attributes["to"] = ir.AttrInt64("to", int(HALF))
            self._retype(result)
            self.nodes += 1

    def _convert_fill(self, node: ir.Node) -> None:
        value = node.attributes.get("value")
        array = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
        declared = node.outputs[0].dtype  # which may contradict the node
        if array.dtype != np.float32 or declared != FLOAT or self.stores_only or node in self.needs_float:
            return
        if range_of("", array).fits:
            node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(_to_half(array)))
            self._retype(node.outputs[0])
            self.nodes += 1

    # -- values --------------------------------------------------------------------------------------------------

    def _retype(self, value: ir.Value) -> None:
        inference.retype(self.editor.model, value, HALF)
        self.converted.add(value)

    def _range(self, value: ir.Value) -> InitializerRange:
        if value not in self.ranges:
            array = self.editor.constant(value)
            assert array is not None
            self.ranges[value] = range_of(value.name or "", array)
        return self.ranges[value]

    def _view(self, value: ir.Value, dtype: ir.DataType, *, saturate: bool = False) -> ir.Value:
        """The value in the other precision: the constant rounded, what a Cast was made of, or a Cast."""
        key = (value, dtype, saturate)
        if key not in self.views:
            self.views[key] = self._make_view(value, dtype, saturate)
        return self.views[key]

    def _make_view(self, value: ir.Value, dtype: ir.DataType, saturate: bool) -> ir.Value:
        if dtype == HALF and self.editor.is_constant(value):
            return self._half_constant(value, saturate)
        cast = made_by(value, "Cast")
        if cast is not None:
            source = cast.inputs[0]
            assert source is not None
            if source.dtype == dtype:
                return source
        return self._cast(value, value, dtype)

    def _cast(self, source: ir.Value, named_after: ir.Value, dtype: ir.DataType) -> ir.Value:
        cast = self.editor.node("Cast", [source], {"to": int(dtype)}, hint=f"{named_after.name}/{_SUFFIX[dtype]}")
        self._insert([cast], source)
        cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(dtype), named_after.shape
        self.casts += 1
        return cast.outputs[0]

    def _insert(self, nodes: Sequence[ir.Node], source: ir.Value) -> None:
        """Puts nodes that read `source` right behind its producer, or first in its graph."""
        graph, producer = source.graph, source.producer()
        assert graph is not None
        if producer is not None:
            graph.insert_after(producer, nodes)
        else:
            graph.insert_before(next(iter(graph)), nodes)

    def _half_constant(self, value: ir.Value, saturate: bool) -> ir.Value:
        tensor = self.editor.tensor(value)
        assert tensor is not None
        found = self._range(value)
        convert = _saturated if saturate and not found.fits else _to_half
        # Made again whenever it is read: the model may be larger than memory.
        shape = ir.Shape(tensor.shape.numpy())
        half = ir.LazyTensor(lambda: ir.Tensor(convert(tensor.numpy())), HALF, shape)
        self.in_half[value] = None
        return self._initializer(value, half, "half")

    def _initializer(self, like: ir.Value, tensor: ir.TensorProtocol, suffix: str) -> ir.Value:
        """A new constant where the constant `like` is."""
        graph = like.graph
        assert graph is not None
        tensor.name = self.editor.unique_name(f"{like.name}_{suffix}")
        shape = ir.Shape(tensor.shape.numpy())
        new = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        graph.register_initializer(new)
        return new

    def _may_store(self, value: ir.Value, node: ir.Node) -> bool:
        """A matrix, filter or table: clean-up computes a Cast of anything smaller."""
        tensor = self.editor.tensor(value)
        if tensor is None or tensor.dtype != FLOAT or not value.is_initializer() or node.op_type in QUANTIZATION:
            return False
        return is_matrix(tensor) and self._range(value).fits

    def _stored(self, value: ir.Value) -> ir.Value:
        key = (value, FLOAT, False)
        if key not in self.views:
            half = self._view(value, HALF)
            self.views[key] = self._cast(half, value, FLOAT)
        return self.views[key]

    # -- the end -------------------------------------------------------------------------------------------------

    def result(self) -> HalfPrecisionResult:
        for value in self.in_half:
            self._drop_unread(value)
        self.editor.changed()
        _transpose_behind_products(self.editor)
        cast_before_transposing(self.editor)
        remove_unread_definitions(self.editor)
        self.editor.changed()
        remarks = []
        if self.nodes or self.casts or self.outputs or self.in_half or self.converted:
            detail = f"{self.nodes} nodes and {len(self.in_half)} initializers in float16, {self.casts} Casts"
            remarks.append(Remark(NAME, "APPLIED", (), detail))
        for (code, detail), nodes in self.stays.items():
            remarks.append(Remark(NAME, code.name, tuple(node_label(n) for n in nodes), detail))
        troubled = [r for r in self.ranges.values() if r.overflow or r.subnormal or r.zero]
        halves = {v.name for v in self.in_half}
        ranges = [InitializerRange(**{**vars(r), "converted": r.name in halves}) for r in troubled]
        return HalfPrecisionResult(remarks, ranges)

    def _drop_unread(self, value: ir.Value) -> None:
        """The float32 original goes when nobody reads it, and the float16 initializer takes its name."""
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            return
        name, producer = value.name, value.producer()
        if value.is_initializer():
            assert value.graph is not None and name is not None
            del value.graph.initializers[name]
        elif producer is not None and producer.graph is not None:
            producer.graph.remove(producer, safe=True)
        copies = [v for (of, dtype, _), v in self.views.items() if of is value and dtype == HALF]
        if len(copies) == 1:
            copies[0].name = name


def _transpose_behind_products(editor: Editor) -> None:
    """Transpose(x) W becomes Transpose(x W) in float16, where a batch moves before the rows and W makes rows no longer.

    The sums are the same, and no more numbers are moved. onnxruntime 1.31.1 ends the process where such a product meets
    its CPU at the default level, with Casts that it puts in itself; so it does with two nodes of float16 and no others.
    """
    for node in editor.nodes(MATRIX_PRODUCTS):
        transpose, weight = made_by(node.inputs[0], "Transpose"), editor.tensor(node.inputs[1])
        if transpose is None or weight is None or len(weight.shape) != 2 or (node.domain and len(node.inputs) > 3):
            continue
        x, moved, y = transpose.inputs[0], transpose.outputs[0], node.outputs[0]
        perm, (K, N) = attribute_ints(transpose, "perm", ()), weight.shape.numpy()
        rows_first = len(perm) > 2 and perm == (*range(1, len(perm) - 1), 0, len(perm) - 1)
        if x is None or not rows_first or editor.dtype(x) != HALF or K < N or not editor.only_use(moved):
            continue
        attributes = {a.name: a.value for a in node.attributes.values()}
        product = editor.node(
            node.op_type, [x, *node.inputs[1:]], attributes, hint=f"{node_label(node)}/product", domain=node.domain
        )
        product.outputs[0].type = ir.TensorType(HALF)
        product.outputs[0].shape = None if x.shape is None else ir.Shape([*x.shape[:-1], N])
        inference.declare(editor.model, product.outputs[0])
        last = editor.node("Transpose", [product.outputs[0]], {"perm": perm}, hint=f"{node_label(node)}/transpose")
        editor.replace([node], [product, last], {y: last.outputs[0]}, anchor=node)


def _family(node: ir.Node) -> str:
    """Nodes that share a body, or would after a bias has become a mask; "" for operators that are not ours."""
    return node.op_type.replace("BiasMask", "Bias") if node.domain == DOMAIN else ""


def _makes_integers(node: ir.Node) -> bool:
    return is_op(node, "Cast") and not ir.DataType(attribute_int(node, "to", 0)).is_floating_point()


def _is_attention_bias(node: ir.Node, index: int) -> bool:
    if node.domain == DOMAIN:
        return OPS[node.op_type].inputs[index] == "bias" and node.op_type.startswith("FusedAttention")
    return is_op(node, "Attention") and index == 3


def _is_bound(node: ir.Node, index: int) -> bool:
    """A bound beyond the range bounds nothing."""
    return is_op(node, "Clip") and index > 0


__all__ = ["HalfPrecisionResult", "convert", "range_of", "require_known"]
