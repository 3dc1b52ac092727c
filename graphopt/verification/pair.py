"""The two models of a comparison, the original (BEFORE) and the rewritten one (AFTER).

Also their interfaces, the rewrites between them, and the modes to run them in.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.contrib.group_query_attention import WINDOW_AS_DEFINED, has_window
from graphopt.errors import OptionError, VerifyError
from graphopt.graph import inference, reading, traversal, writing
from graphopt.graph.cost import Estimator, installed_memory
from graphopt.graph.messages import inlined
from graphopt.graph.operators.traits import CONTRACTIONS, DATA_MOVEMENT
from graphopt.graph.view import GraphView, attribute_int
from graphopt.inputs.declared import deserialized, required_inputs, symbols, unnamed
from graphopt.inputs.plan import LONGEST, MEMORY_OF_RUNS, Allowance, InputOptions
from graphopt.inputs.uses import labels
from graphopt.metadata import METADATA_FROZEN, METADATA_NUMERICS, Numerics
from graphopt.ops import DOMAIN
from graphopt.precision.nchw2c_convolutions import SUFFIX as PAIRS_SUFFIX
from graphopt.report.text import fitted
from graphopt.runtime.discovery import CPU, import_onnxruntime, provider_name
from graphopt.targets.target import Target
from graphopt.verification.compare import BRAIN, HALF, SINGLE, stored
from graphopt.verification.noise import Precision
from graphopt.verification.run import BODIES, Mode, large_weights_outside
from graphopt.verification.variants import WINOGRAD, values_in_half, with_defined_convolutions

Tolerance = float | Mapping[str, float]
FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16


@dataclass(frozen=True)
class Effort:
    """Limits of the runs of a comparison.

    Attributes:
        seconds: approximate CPU seconds for more draws of cases with differences. The worst case, and each case with a
            large difference, is decided without this limit.
        work: estimated multiply-adds of one run of BEFORE on every case, in total.
        draws: largest number of cases with random sizes.
        longest: largest size of a symbolic length.
        elements: the most elements of all inputs of a case together.
    """

    seconds: float
    work: float
    draws: int
    longest: int
    elements: int

    @property
    def allowance(self) -> Allowance:
        """The limits of the planned cases, with the memory of this machine."""
        return Allowance(self.work, min(installed_memory() // 4, MEMORY_OF_A_SET), self.draws, self.longest)


EFFORTS = {
    "quick": Effort(2.0, 1e9, 0, LONGEST, 1 << 22),
    "normal": Effort(4.0, 4.5e10, 64, LONGEST, 1 << 24),
    "thorough": Effort(120.0, 2e12, 512, 4 * LONGEST, 1 << 26),
}
# The most bytes of all runs of a case together; a quarter of `installed_memory()` if that is less.
MEMORY_OF_A_SET = 3 << 30


@dataclass(frozen=True, eq=False)
class ComparedModel:
    """One of the two models, which is not changed.

    Attributes:
        source: the model for a session.
        proto: its message, maybe without the weights.
        model: the same model as `onnx_ir.Model`, with inferred types.
    """

    source: Path | onnx.ModelProto
    proto: onnx.ModelProto
    model: ir.Model

    @classmethod
    def of(cls, model: ir.Model) -> ComparedModel:
        """Wraps a changed copy of a model; the message contains the weights."""
        plain = inference.clone(model)
        inference.forget(plain)
        ir.external_data.load_to_model(plain)
        message = writing.to_message(plain)
        return cls(message, message, model)

    @cached_property
    def whole(self) -> ir.Model:
        """The model with inlined functions and inferred types; it is not changed."""
        if not self.model.functions:
            return self.model
        plain = inference.clone(self.model)
        inference.forget(plain)
        with large_weights_outside(plain):
            whole = ir.serde.deserialize_model(inlined(writing.to_message(plain)))
        if (outside := next(traversal.external_tensors(traversal.graphs(self.model)), None)) is not None:
            ir.external_data.set_base_dir(whole.graph, outside.base_dir)
        for name, value in self.model.graph.initializers.items():
            whole.graph.initializers[name].const_value = value.const_value
        inference.infer(whole)
        return whole

    @cached_property
    def may_divide_by_zero(self) -> bool:
        """Whether the model may divide integers by 0, or the lowest integer by -1.

        Most versions of ONNX Runtime crash there (SIGFPE).
        """
        # The function bodies of our operators divide integers only by positive sizes.
        has_functions = any(function.domain != DOMAIN for function in self.model.functions.values())
        model = self.whole if has_functions else self.model
        view = GraphView(model, Target("cpu"))
        for node in view.nodes({("", "Div"), ("", "Mod")}):
            kind = view.dtype(node.outputs[0])
            if kind is None or kind.is_integer():
                divisors = view.constant(node.inputs[1])
                if divisors is None or np.isin(divisors, (0, -1)).any():
                    return True
        return False


@dataclass
class Pair:
    """The two models, and the facts that decide how to compare them.

    Attributes:
        rewritten: the rewrites between the models.
        fixed: symbolic dimensions of BEFORE that are integers in AFTER.
        half_io: whether inputs and outputs are float16 in AFTER and float32 in BEFORE.
        rtol, atol: limits of the caller.
        reference: the mode of BEFORE.
        notes: remarks for the report.
        tables: rows of tables that differ.
        before_halves, after_halves: names of values in float16.
        large: whether even the smallest case takes so much memory that sessions are opened without reuse of buffers.
        alone: whether AFTER runs only on the second of two providers.
        given: whether the inputs are the caller's.
        opening: CPU seconds to open a session of AFTER.
        running: CPU seconds of the quickest run of AFTER.
    """

    before: ComparedModel
    after: ComparedModel
    rewritten: Rewritten
    fixed: Mapping[str, int]
    half_io: bool
    rtol: Tolerance | None
    atol: Tolerance | None
    reference: Mode
    notes: list[str]
    tables: list[ChangedRows]
    before_halves: frozenset[str]
    after_halves: frozenset[str]
    large: bool
    alone: bool
    given: bool = False
    opening: float = 0.0
    running: float = math.inf

    @property
    def halves(self) -> frozenset[str]:
        """Values of AFTER in float16; none if BEFORE has such values, because then its CPU run is no reference."""
        return frozenset() if self.before_halves else self.after_halves

    @property
    def names(self) -> list[str]:
        return [o.name for o in self.before.proto.graph.output]

    @property
    def numerics(self) -> str:
        """The largest class of the rewrites."""
        approximated = [Numerics.APPROXIMATE] if self.rewritten.approximated else []
        return max([*self.rewritten.classes.values(), *approximated], default=Numerics.EXACT).name.lower()

    @property
    def called(self) -> str:
        """The name of BEFORE in messages: its file, if there is one."""
        return str(self.before.source) if isinstance(self.before.source, Path) else "BEFORE"


def paired(before: Any, after: Any, rtol: Tolerance | None, atol: Tolerance | None, two: Sequence[Mode]) -> Pair | str:
    """Reads both models; returns a sentence if their interfaces contradict each other.

    Raises:
        OptionError: a tolerance of an unknown output.
        ModelLoadError: a model cannot be read.
    """
    old, new = _read(before), _read(after)
    if METADATA_FROZEN in new.model.metadata_props:
        reading.freeze_initializers(old.model)
        kept = {value.name for value in old.model.graph.inputs}
        proto = copy.deepcopy(old.proto)
        del proto.graph.input[:]
        proto.graph.input.extend(v for v in old.proto.graph.input if v.name in kept)
        old = replace(old, proto=proto)
    names = [o.name for o in old.proto.graph.output]
    for tolerance in (rtol, atol):
        unknown = set(tolerance) - {"", *names} if isinstance(tolerance, Mapping) else set()
        if unknown:
            raise OptionError(f"there is no output '{min(unknown)}'; the outputs are {', '.join(names)}")
    half_io = _interface_in_half(old.model, new.model)
    if contradiction := _contradiction(old.model, new.model, half_io):
        return contradiction
    fixed = _fixed_sizes(old.model, new.model)
    defined = [with_defined_convolutions(model.model) for model in (old, new)]
    old, new = (model if copied is None else ComparedModel.of(copied) for model, copied in zip((old, new), defined))
    inference.infer(old.model)
    inference.infer(new.model)
    change = rewritten(old.model, new.model)
    if two:  # another provider may add in another order even without a rewrite
        change = replace(change, classes={n: max(c, Numerics.REASSOCIATED) for n, c in change.classes.items()})
    halves = values_in_half(old.model), values_in_half(new.model)
    notes = _notes_on_windows(old.model, new.model)
    if any(copied is not None for copied in defined):
        notes.append("QLinearConv is compared by its definition: kernels of ONNX Runtime may saturate sums")
    tables = changed_rows(old.model, new.model)
    reference, large = two[0] if two else BODIES, _is_large(old.proto)
    limits = rtol, atol
    return Pair(old, new, change, fixed, half_io, *limits, reference, notes, tables, *halves, large, bool(two))


def _is_large(model: onnx.ModelProto) -> bool:
    """Returns whether the runs of one case exceed `MEMORY_OF_A_SET` with all symbolic dimensions 1."""
    shapes = {v.name: tuple(d if isinstance(d, int) and d else 1 for d in v.dims) for v in required_inputs(model)}
    return MEMORY_OF_RUNS * Estimator(deserialized(inlined(model))).of(shapes).bytes > MEMORY_OF_A_SET


def _read(model: Any) -> ComparedModel:
    """Reads a model.

    Raises:
        VerifyError: a model in memory has weights in files that do not fit into a message.
    """
    source = reading.load(model, copy=False)
    if source.path is not None:
        return ComparedModel(source.path, source.proto or reading.read_proto(source.path), source.model)
    outside = sum(tensor.nbytes for tensor in traversal.external_tensors(traversal.graphs(source.model)))
    if outside > writing.MAX_EMBEDDED_BYTES:
        raise VerifyError(f"the model in memory has {outside >> 20} MiB of weights in files: write it to a file first")
    if outside:  # a session of a message would look for the files in the current folder
        ir.external_data.load_to_model(source.model)
    elif isinstance(model, onnx.ModelProto):
        return ComparedModel(model, model, source.model)
    proto = ir.serde.serialize_model(source.model)
    return ComparedModel(proto, proto, source.model)


def may_divide_by_zero(path: Path) -> bool:
    """Returns `ComparedModel.may_divide_by_zero` for a model file."""
    model = _read(path)
    inference.infer(model.model)
    return model.may_divide_by_zero


def _notes_on_windows(before: ir.Model, after: ir.Model) -> list[str]:
    """Returns notes on GroupQueryAttention nodes that this runtime's kernel computes unlike their definition."""
    version = import_onnxruntime().__version__
    if tuple(int(n) for n in version.split(".")[:2]) >= WINDOW_AS_DEFINED:
        return []
    every = [[n for n in traversal.nodes(m) if n.op_type == "GroupQueryAttention"] for m in (before, after)]
    notes = []
    if len(every[0]) != len(every[1]):
        notes.append(
            f"GroupQueryAttention in onnxruntime {version} reads uninitialized memory for queries in the padding of a "
            "prompt: BEFORE and AFTER may differ there"
        )
    counts = [sum(map(has_window, nodes)) for nodes in every]
    if counts[0] != counts[1]:
        notes.append(
            f"GroupQueryAttention with local_window_size n attends to n + 1 keys in onnxruntime {version}, and to n in "
            f"its definition; BEFORE has {counts[0]} such nodes, AFTER {counts[1]}: the outputs may differ by that key"
        )
    return notes


# -- the caller's options ----------------------------------------------------------------------------------------------


def modes_of_two(providers: Sequence[str] | None, provider: str | None) -> list[Mode]:
    """Returns the modes of BEFORE and AFTER on two providers; an empty list without `providers`.

    Raises:
        OptionError: not two providers, an unknown one, or also `provider`.
    """
    if providers is None:
        return []
    if len(providers) != 2 or isinstance(providers, str):
        raise OptionError(f"two providers are compared, not {len(providers)}: name BEFORE's and AFTER's")
    if provider is not None:
        raise OptionError("provider adds one provider for AFTER, providers names both: give only one of these options")
    return [Mode(name != CPU, name) for name in map(provider_name, providers)]


def input_options_of(model: onnx.ModelProto, requested: InputOptions, effort: str) -> InputOptions:
    """Checks the options for the inputs of BEFORE, and adds the limit of elements.

    Raises:
        OptionError: an unknown effort, dimension or input, or a range beyond an input's type.
        VerifyError: a range of an input that is no tensor.
    """
    if effort not in EFFORTS:
        raise OptionError(f"there is no effort '{effort}'; choose one of {', '.join(EFFORTS)}")
    inputs = {v.name: v for v in required_inputs(model)}
    for what, named, known in (
        ("symbolic dimension", requested.sizes, list(symbols(model))),
        ("input", requested.ranges, list(inputs)),
    ):
        unknown = set(named) - set(known)
        if unknown:
            raise OptionError(f"there is no {what} '{min(unknown)}'; there are {', '.join(known) or 'none'}")
    for name, (low, high) in requested.ranges.items():
        dtype = inputs[name].dtype
        if not -math.inf < low <= high < math.inf:
            raise OptionError(f"the range of '{name}' is {low} to {high}; give two finite numbers, the lower first")
        if dtype.kind in "iu":
            holds = np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max
        else:
            with np.errstate(over="ignore"):
                holds = bool(np.isfinite(np.array([low, high]).astype(dtype).astype(np.float64)).all())
        if not holds:
            raise OptionError(f"the range of '{name}' is {low:g} to {high:g}, which is beyond {dtype}")
    return replace(requested, elements=EFFORTS[effort].elements)


# -- interfaces --------------------------------------------------------------------------------------------------------


def _required(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


def _interface_in_half(before: ir.Model, after: ir.Model) -> bool:
    """Returns whether every float32 input and output of BEFORE is float16 in AFTER, as with `keep_io=False`."""
    sides = ([*_required(m), *(v for v in m.graph.outputs if not v.is_initializer())] for m in (before, after))
    halved = [_dtype(b) == FLOAT16 for a, b in zip(*sides) if _dtype(a) == FLOAT]
    return bool(halved) and all(halved)


def _dtype(value: ir.Value) -> ir.DataType | None:
    """Returns the element type of a tensor; None for sequences and optionals."""
    return value.type.dtype if isinstance(value.type, ir.TensorType) else None


def _dims(value: ir.Value) -> list[int | str | None] | None:
    """Returns the declared dimensions of a tensor; None without a rank. Some exporters write 0 for an unknown size."""
    if value.shape is None or not isinstance(value.type, ir.TensorType):
        return None
    return [(d if d > 0 else None) if isinstance(d, int) else d.value for d in value.shape]


def _contradiction(before: ir.Model, after: ir.Model, half_io: bool) -> str:
    """Returns the first contradiction between two interfaces, or "".

    Different integers, symbols, types and ranks contradict each other. A missing size or rank contradicts nothing, and
    a symbol of BEFORE may be an integer in AFTER (`--input-shape`).

    Args:
        before: the original, with declared types.
        after: the rewritten model, with declared types.
        half_io: whether AFTER may have float16 instead of BEFORE's float32.
    """
    for what, old, new in (
        ("input", _required(before), _required(after)),
        ("output", before.graph.outputs, after.graph.outputs),
    ):
        names, new_names = [v.name for v in old], [v.name for v in new]
        if names != new_names:
            return f"the {what}s are {new_names}, they were {names}"
        for a, b in zip(old, new, strict=True):
            if found := _difference(a, b, half_io):
                return f"{what} '{a.name}': {found}"
    old_defaults, new_defaults = ({str(v.name) for v in m.graph.inputs if v.is_initializer()} for m in (before, after))
    if old_defaults != new_defaults:
        return f"overridable initializers are {sorted(new_defaults)}, they were {sorted(old_defaults)}"
    return ""


def _difference(old: ir.Value, new: ir.Value, half_io: bool) -> str:
    kinds = [type(value.type).__name__.removesuffix("Type").lower() for value in (old, new)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} became {kinds[1]}"
    types = _dtype(old), _dtype(new)
    if types[0] != types[1] and not (half_io and types == (FLOAT, FLOAT16)):
        return " became ".join("an unknown type" if dtype is None else dtype.name for dtype in types)
    a, b = _dims(old), _dims(new)
    if a is None or b is None:
        return ""
    fits = (m == n or m is None or n is None or (isinstance(m, str) and isinstance(n, int)) for m, n in zip(a, b))
    return "" if len(a) == len(b) and all(fits) else f"dimensions {a} became {b}"


def _fixed_sizes(before: ir.Model, after: ir.Model) -> dict[str, int]:
    """Returns the symbols of BEFORE's inputs that are integers in AFTER."""
    return {
        old or unnamed(a.name, axis): new
        for a, b in zip(_required(before), _required(after), strict=True)
        for axis, (old, new) in enumerate(zip(_dims(a) or (), _dims(b) or ()))
        if not isinstance(old, int) and isinstance(new, int)
    }


# -- rewrites ----------------------------------------------------------------------------------------------------------

BFLOAT16_SUFFIX = "Bf16"  # of operators that round their first two inputs to bfloat16, attention also its third
ATTENTION = "FusedAttention"
_COARSE = {FLOAT16: Numerics.FP16, ir.DataType.BFLOAT16: Numerics.BF16}
# Operators that compute nothing in the type of their input or output.
_NON_COMPUTING = DATA_MOVEMENT | {"Cast"}


@dataclass(frozen=True)
class Rewritten:
    """The rewrites between two models.

    Attributes:
        classes: output -> class of the rewrites that it depends on, if our nodes run by their function bodies.
        approximated: outputs that depend on nodes with approximating kernels; their function bodies do not approximate.
        coarse: names of values of BEFORE that AFTER rounds to half precision. A value that only BEFORE has is included
            if a consumer is rounded. For a rounded value that only AFTER has, the values of BEFORE from which it is
            computed are included.
        stored: names of weights that AFTER reads in half precision, or casts to it.
        has_graphopt_nodes: whether an output depends on one of our nodes.
    """

    classes: dict[str, Numerics]
    approximated: frozenset[str]
    coarse: frozenset[str]
    stored: frozenset[str]
    has_graphopt_nodes: bool

    def precision(self, numerics: Numerics, *, inputs_in_half: bool) -> Precision:
        """Returns the rounding of BEFORE's values for outputs of a class."""
        coarse = {Numerics.FP16: HALF, Numerics.BF16: BRAIN}.get(numerics, SINGLE)
        return Precision(
            activations=lambda name: coarse if name in self.coarse else SINGLE,
            weights=stored(coarse if self.stored else SINGLE),
            inputs=coarse if inputs_in_half or self.coarse else SINGLE,
        )


def rewritten(before: ir.Model, after: ir.Model) -> Rewritten:
    """Finds the rewrites between two models with inferred types, from the nodes that each output depends on."""
    exact = after.metadata_props.get(METADATA_NUMERICS, "").lower() == "exact"
    classes, approximated = {}, set()
    rounded: set[ir.Value] = set()
    weights: set[ir.Value] = set()
    ours: set[ir.Node] = set()
    attentions: set[ir.Node] = set()
    for old, new in zip(before.graph.outputs, after.graph.outputs):
        (values, _), (new_values, nodes) = _dependencies(old), _dependencies(new)
        # Float16 counts only if a value is computed or stored in it; the same is true of bfloat16.
        halves = {v for v in values | new_values if v.dtype in _COARSE}
        used = {v.dtype for v in halves if _is_used(v)}
        halves = {v for v in halves if v.dtype in used}
        own = {n for n in nodes if n.domain == DOMAIN}
        bf16 = {n for n in own if n.op_type.endswith(BFLOAT16_SUFFIX)}
        numerics = max([Numerics.REASSOCIATED, *(_COARSE[v.dtype] for v in halves if v.dtype is not None)])
        if bf16:
            numerics = max(numerics, Numerics.BF16)
            attentions |= {n for n in bf16 if n.op_type.startswith(ATTENTION)}
            halves |= {v for n in bf16 for v in n.inputs[: 3 if n in attentions else 2] if v is not None}
        classes[str(old.name)] = Numerics.EXACT if exact else numerics
        if not exact and not halves and any(n.op_type.startswith(WINOGRAD) for n in own):
            approximated.add(str(old.name))
        ours |= own
        weights |= {v for v in halves if _is_stored(v)}
        rounded |= {v for v in halves if not _is_stored(v)}
    names = _names_before(rounded) | _sources_before(before, rounded)
    names |= _factors(before, after, {str(o.name) for n in attentions for o in n.outputs})
    return Rewritten(
        classes, frozenset(approximated), _coarse(before, after, names), _names_of_stored(weights), bool(ours)
    )


def _dependencies(output: ir.Value) -> tuple[set[ir.Value], set[ir.Node]]:
    """Returns the values and nodes that an output depends on."""
    values: set[ir.Value] = set()
    nodes: set[ir.Node] = set()
    waiting = [output]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        known = value in values or node in nodes
        values.add(value)
        if known or node is None:
            continue
        inner = [n for body in traversal.bodies(node) for n in ir.traversal.RecursiveGraphIterator(body)]
        nodes.update((node, *inner))
        waiting += [v for n in (node, *inner) for v in (*n.inputs, *n.outputs) if v is not None]
        waiting += [v for body in traversal.bodies(node) for v in body.outputs]
    return values, nodes


def _upstream(values: Iterable[ir.Value], stops: Collection[str | None]) -> Iterator[ir.Node]:
    """Yields the nodes that values depend on; the search stops at values with the names in `stops`."""
    waiting = list(values)
    seen: set[ir.Node] = set()
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [v for v in node.inputs if v is not None and v.name not in stops]


def _results(model: ir.Model) -> list[ir.Value]:
    return [v for node in traversal.nodes(model) for v in node.outputs]


def _names_before(rounded: Collection[ir.Value]) -> set[str]:
    """Returns BEFORE's names of values that AFTER rounds to half precision."""
    # A value in the NCHW2c layout has the name of BEFORE's value and a suffix.
    names = {str(v.name).removesuffix(PAIRS_SUFFIX) for v in rounded}
    for value in rounded:
        # A Cast to half precision rounds its input, and a Cast from half precision returns rounded values.
        producer = value.producer()
        if producer is not None and producer.op_type == "Cast":
            names.add(str(producer.inputs[0].name) if producer.inputs[0] is not None else "")
        names |= {str(o.name) for u in value.consumers() if u.op_type == "Cast" for o in u.outputs}
    return names


def _sources_before(before: ir.Model, rounded: Collection[ir.Value]) -> set[str]:
    """Returns the values that both models have and that are inputs of the values that only AFTER has.

    AFTER has other values than BEFORE where it computes an operator of BEFORE with several nodes.
    """
    known = {str(v.name) for graph in traversal.graphs(before) for v in graph.inputs}
    known |= {str(v.name) for v in _results(before)}
    new = [v for v in rounded if str(v.name).removesuffix(PAIRS_SUFFIX) not in known]
    return {str(v.name) for n in _upstream(new, known) for v in n.inputs if v is not None and v.name in known}


def _factors(before: ir.Model, after: ir.Model, results: set[str]) -> set[str]:
    """Returns the operands of the matrix multiplications that results depend on, up to values that AFTER also has.

    Fused attention rounds the probabilities, which only BEFORE has as values.
    """
    left = {v.name for v in _results(after)}
    nodes = _upstream([v for v in _results(before) if v.name in results], left)
    return {str(v.name) for n in nodes if n.op_type in CONTRACTIONS for v in n.inputs if v is not None}


def _coarse(before: ir.Model, after: ir.Model, names: set[str]) -> frozenset[str]:
    """Adds the values that only BEFORE has, if they are inputs of a value with one of these names."""
    left = {v.name for v in _results(after)} if names else set()
    for graph in [*traversal.with_subgraphs(before.graph)] if names else ():
        for node in reversed(graph):
            readers = [o.name for v in node.outputs for u in v.consumers() for o in u.outputs]
            if any(r in names for r in readers):
                names |= {str(v.name) for v in node.outputs if v.name not in left}
    return frozenset(names)


def _is_used(value: ir.Value) -> bool:
    """Returns whether a value is computed or stored in its type.

    A value that is only cast to the type and back does not count: such a loss of precision is a fault of the rewrite.
    """
    producer = value.producer()
    if producer is None or value.is_graph_output():
        return True
    return any(node.op_type not in _NON_COMPUTING for node in (producer, *(use.node for use in value.uses())))


def _origin(value: ir.Value) -> Iterator[ir.Value]:
    """Yields a value, the first input of its producer, and so on."""
    source: ir.Value | None = value
    while source is not None:
        yield source
        producer = source.producer()
        source = producer.inputs[0] if producer is not None and producer.inputs else None


def _is_stored(value: ir.Value) -> bool:
    """Returns whether a value is a weight, maybe moved or cast."""
    for source in _origin(value):
        producer = source.producer()
        if producer is None:
            return source.is_initializer()
        if producer.op_type not in _NON_COMPUTING:
            return producer.op_type == "Constant"
    return False


def _names_of_stored(weights: Iterable[ir.Value]) -> frozenset[str]:
    """Returns the names of moved or cast weights, and of the values that they were moved or cast from."""
    return frozenset(str(source.name) for value in weights for source in _origin(value))


# -- tables ------------------------------------------------------------------------------------------------------------

# Tolerances relative to a table's largest element, for folding in another order and for rounding to bfloat16.
SAME_TYPE, OTHER_TYPE = 1e-5, 2.0**-7


@dataclass(frozen=True)
class ChangedRows:
    """The rows of one table that differ in AFTER.

    Random inputs read few rows of a large vocabulary, so these rows get a case that reads them.

    Attributes:
        table: name of the initializer in both models, or of the output of a LabelEncoder.
        rows: indices of the rows, or keys of the LabelEncoder.
        input: the input with the indices; "" if the model computes them.
    """

    table: str
    rows: Sequence[int]
    input: str

    def __str__(self) -> str:
        return f"row {fitted(list(map(str, self.rows)), 16)} of '{self.table}' differs in AFTER, and no input reads it"


def changed_rows(before: ir.Model, after: ir.Model) -> list[ChangedRows]:
    """Finds tables of Gather nodes with some, but not all, rows different, and LabelEncoders with different labels."""
    others = after.graph.initializers
    found = {}
    for node in before.graph:
        table = node.inputs[0] if node.op_type == "Gather" else None
        name = "" if table is None else str(table.name)
        if table is None or name in found or attribute_int(node, "axis", 0) or not table.is_initializer():
            continue
        rows, size = _differing(table.const_value, others[name].const_value) if name in others else ([], 0)
        if 0 < len(rows) < size:
            found[name] = ChangedRows(name, rows, _source_input(node.inputs[1]))
    encoders = {v.name: node for node in after.graph for v in node.outputs if node.op_type == "LabelEncoder"}
    for node in before.graph:
        name = str(node.outputs[0].name) if node.op_type == "LabelEncoder" else ""
        if name and (other := encoders.get(name)) is not None:
            old, new = (labels(encoder) for encoder in (node, other))
            keys = [key for key in old if isinstance(key, int) and not _is_same(old[key], new.get(key))]
            if keys:
                found[name] = ChangedRows(name, keys, _source_input(node.inputs[0]))
    return list(found.values())


def _source_input(value: ir.Value | None) -> str:
    """Returns the input that was moved or cast to a value; "" if there is none."""
    for source in _origin(value) if value is not None else ():
        producer = source.producer()
        if producer is None or producer.op_type not in _NON_COMPUTING:
            return str(source.name) if source.is_graph_input() and not source.is_initializer() else ""
    return ""


def _is_same(a: Any, b: Any) -> bool:
    """Compares two labels, which may be NaN."""
    return bool(a == b or (a != a and b != b))


def _differing(one: ir.TensorProtocol | None, two: ir.TensorProtocol | None) -> tuple[list[int], int]:
    """Returns the indices of rows that differ, and the number of rows; ([], 0) if the tensors cannot be compared."""
    if one is None or two is None or not {one.dtype, two.dtype} <= inference.RUNTIME_FLOATS:
        return [], 0
    a, b = traversal.tensor_array(one), traversal.tensor_array(two)
    if a.shape != b.shape or not a.ndim or (a.dtype == b.dtype and np.array_equal(a, b)):
        return [], 0
    wide = [x.astype(np.float32).reshape(len(x), -1) for x in (a, b)]
    most = float(np.abs(wide[0]).max(initial=0)) * (SAME_TYPE if a.dtype == b.dtype else OTHER_TYPE)
    with np.errstate(invalid="ignore"):
        return [int(i) for i in np.flatnonzero((np.abs(wide[0] - wide[1]) > most).any(axis=1))], len(a)
