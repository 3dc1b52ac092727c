"""Both models as they are compared, their interfaces, the ways to run them, and what is asked of the inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from graphopt.graph.messages import inlined
from graphopt.inputs.cost import Estimator, installed_memory
from graphopt.inputs.declared import dtype_of, required_inputs, symbol_of, symbols
from graphopt.inputs.plan import LONGEST, MEMORY_OF_RUNS, Allowance, Wishes
from graphopt.metadata import METADATA_FROZEN, Numerics
from graphopt.runtime.discovery import CPU, import_onnxruntime, provider_name
from graphopt.verification.halves import values_in_half
from graphopt.verification.rewritten import Rewritten, rewritten
from graphopt.verification.run import large_weights_outside
from graphopt.verification.table_rows import OtherRows, other_rows

Tolerance = float | Mapping[str, float]


@dataclass(frozen=True)
class Effort:
    """How much to try beyond one draw of the first few cases of each kind.

    Attributes:
        seconds: of all processors, about, for more draws of cases that look different. The case that looks worst, and
            each that looks far off, is decided whatever it takes.
        work: multiply-adds of one run of BEFORE on each set of inputs, all sets together, as estimated.
        draws: sets of drawn sizes among these, at most.
        longest: of a length.
        elements: of all inputs of a case together, at most.
    """

    seconds: float
    work: float
    draws: int
    longest: int
    elements: int

    @property
    def allowance(self) -> Allowance:
        """The same, with the memory that a set may take here."""
        return Allowance(self.work, min(installed_memory() // 4, MEMORY_OF_A_SET), self.draws, self.longest)


EFFORTS = {
    "quick": Effort(2.0, 1e9, 0, LONGEST, 1 << 22),
    "normal": Effort(4.0, 4.5e10, 64, LONGEST, 1 << 24),
    "thorough": Effort(120.0, 2e12, 512, 4 * LONGEST, 1 << 26),
}
# Bytes that a set of inputs may take at most, all runs of it counted, where a quarter of the memory is more.
MEMORY_OF_A_SET = 3 << 30
# How long BEFORE takes rounding at random, in runs of it, for the progress that is shown.
RUNS = 5.0


@dataclass(frozen=True)
class Way:
    """A way to run AFTER; `in_half`: with every number of float16 rounded to it, as on a GPU (`halves`)."""

    library: bool
    provider: str = CPU
    optimized: bool = False
    in_half: bool = False


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two models.

    Attributes:
        source: what a session loads.
        proto: its message, which need not hold the weights.
        model: the same, types inferred; nothing changes it.
    """

    source: Path | onnx.ModelProto
    proto: onnx.ModelProto
    model: ir.Model

    @classmethod
    def of(cls, model: ir.Model) -> Side:
        """A side that is a changed copy of another; the message has the weights inside."""
        copy = inference.clone(model)
        inference.forget(copy)
        ir.external_data.load_to_model(copy)
        message = writing.to_message(copy)
        return cls(message, message, model)

    @cached_property
    def whole(self) -> ir.Model:
        """The model with functions inlined, types inferred; nothing changes it."""
        if not self.model.functions:
            return self.model
        copy = inference.clone(self.model)
        inference.forget(copy)
        with large_weights_outside(copy):
            whole = ir.serde.deserialize_model(inlined(writing.to_message(copy)))
        for tensor in traversal.external_tensors(traversal.graphs(self.model)):
            ir.external_data.set_base_dir(whole.graph, tensor.base_dir)
            break
        for name, value in self.model.graph.initializers.items():
            whole.graph.initializers[name].const_value = value.const_value
        inference.infer(whole)
        return whole


@dataclass
class Pair:
    """Both models, and what decides how they are compared.

    Attributes:
        rewritten: what was rewritten between the two.
        half_io: whether AFTER takes and gives float16 where BEFORE has float32.
        rtol, atol: the caller's limits.
        reference: how BEFORE runs.
        notes: for the report.
        tables: rows of tables that AFTER has otherwise.
        before_halves, after_halves: values in float16.
        large: even the smallest set of inputs takes so much memory that its sessions do not reuse buffers.
        given: the inputs are the caller's.
        opening: seconds of all processors that a session of AFTER takes.
        running: the same of its quickest run.
    """

    before: Side
    after: Side
    rewritten: Rewritten
    half_io: bool
    rtol: Tolerance | None
    atol: Tolerance | None
    reference: Way
    notes: list[str]
    tables: list[OtherRows]
    before_halves: frozenset[str]
    after_halves: frozenset[str]
    large: bool
    given: bool = False
    opening: float = 0.0
    running: float = math.inf

    @property
    def halves(self) -> frozenset[str]:
        """Values of AFTER in float16; none if BEFORE has such values: its run on the CPU is then no reference."""
        return frozenset() if self.before_halves else self.after_halves

    @property
    def names(self) -> list[str]:
        return [o.name for o in self.before.proto.graph.output]

    @property
    def fixed(self) -> dict[str, int]:
        """Symbolic dimensions of BEFORE that are numbers in AFTER."""
        return fixed_sizes(self.before.proto, self.after.proto)

    @property
    def numerics(self) -> str:
        """The largest class of what was rewritten."""
        approximated = [Numerics.APPROXIMATE] if self.rewritten.approximated else []
        return max([*self.rewritten.classes.values(), *approximated], default=Numerics.EXACT).name.lower()

    @property
    def called(self) -> str:
        """BEFORE in a message: its file, if it is one."""
        return str(self.before.source) if isinstance(self.before.source, Path) else "BEFORE"


def paired(before: Any, after: Any, rtol: Tolerance | None, atol: Tolerance | None, two: Sequence[Way]) -> Pair | str:
    """Both models, read; or in what their interfaces contradict each other.

    Raises:
        OptionError: a tolerance of an output that is not there.
        ModelLoadError: a model cannot be read.
    """
    old, new = _side(before), _side(after)
    if METADATA_FROZEN in new.model.metadata_props:
        reading.freeze_initializers(old.model)
        old = replace(old, proto=without_overridable(old.proto))
    names = [o.name for o in old.proto.graph.output]
    for tolerance in (rtol, atol):
        unknown = set(tolerance) - {"", *names} if isinstance(tolerance, Mapping) else set()
        if unknown:
            raise OptionError(f"there is no output '{min(unknown)}'; the outputs are {', '.join(names)}")
    half_io = _interface_in_half(old.proto, new.proto)
    if contradiction := interface_difference(old.proto, new.proto, half_io=half_io):
        return contradiction
    inference.infer(old.model)
    inference.infer(new.model)
    change = rewritten(old.model, new.model)
    if two:  # another provider adds in an order of its own, also where nothing was rewritten
        change = replace(change, classes={n: max(c, Numerics.REASSOCIATED) for n, c in change.classes.items()})
    reference = two[0] if two else Way(False)
    halves = values_in_half(old.model), values_in_half(new.model)
    tables = other_rows(old.model, new.model)
    notes = _windows(old.model, new.model)
    return Pair(old, new, change, half_io, rtol, atol, reference, notes, tables, *halves, _is_large(old.proto))


def _is_large(model: onnx.ModelProto) -> bool:
    """Whether the runs of one set of inputs exceed `MEMORY_OF_A_SET`, if each symbolic dimension is 1."""
    tensors = {v.name: v.type.tensor_type for v in required_inputs(model) if v.type.tensor_type.HasField("shape")}
    shapes = {name: tuple(d.dim_value or 1 for d in tensor.shape.dim) for name, tensor in tensors.items()}
    return MEMORY_OF_RUNS * Estimator(inlined(model)).of(shapes).bytes > MEMORY_OF_A_SET


def _side(model: Any) -> Side:
    """Reads a model.

    Raises:
        VerifyError: weights of a model in memory lie in files, and do not fit into a message.
    """
    source = reading.load(model, copy=False)
    if source.path is not None:
        return Side(source.path, source.proto or reading.read_proto(source.path), source.model)
    outside = sum(tensor.nbytes for tensor in traversal.external_tensors(traversal.graphs(source.model)))
    if outside > writing.MAX_EMBEDDED_BYTES:
        raise VerifyError(f"the model in memory has {outside >> 20} MiB of weights in files: write it to a file first")
    if outside:  # a session of a message would look for them in the current folder
        ir.external_data.load_to_model(source.model)
    elif isinstance(model, onnx.ModelProto):
        return Side(model, model, source.model)
    proto = ir.serde.serialize_model(source.model)
    return Side(proto, proto, source.model)


def _interface_in_half(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    """Whether every float32 input and output of BEFORE is float16 in AFTER, as `keep_io=False` makes them."""
    overridable = {t.name for t in before.graph.initializer}
    pairs = zip((*before.graph.input, *before.graph.output), (*after.graph.input, *after.graph.output))
    types = [
        (a.type.tensor_type.elem_type, b.type.tensor_type.elem_type) for a, b in pairs if a.name not in overridable
    ]
    floats = [b for a, b in types if a == onnx.TensorProto.FLOAT]
    return bool(floats) and all(b == onnx.TensorProto.FLOAT16 for b in floats)


def _windows(before: ir.Model, after: ir.Model) -> list[str]:
    """Notes rows of GroupQueryAttention that this runtime's kernel does not compute as its definition does."""
    version = import_onnxruntime().__version__
    if tuple(int(n) for n in version.split(".")[:2]) >= WINDOW_AS_DEFINED:
        return []
    nodes = [
        [n for graph in traversal.graphs(m) for n in graph if n.op_type == "GroupQueryAttention"]
        for m in (before, after)
    ]
    notes = []
    if len(nodes[0]) != len(nodes[1]):
        notes.append(
            f"GroupQueryAttention in onnxruntime {version} reads memory that was never written for queries in the "
            "padding of a prompt: BEFORE and AFTER may differ there"
        )
    counts = [sum(map(has_window, side)) for side in nodes]
    if counts[0] != counts[1]:
        notes.append(
            f"GroupQueryAttention with local_window_size n sees n keys in onnxruntime 1.31 and n + 1 in 1.22; this is "
            f"{version}, and BEFORE has {counts[0]} of them where AFTER has {counts[1]}: they may differ by that key"
        )
    return notes


def ways_on_one(pair: Pair, device: str) -> list[Way]:
    """How AFTER runs beside BEFORE on the CPU: by its bodies, by the native library, and on another provider."""
    ways = [Way(False), *([Way(True)] if pair.rewritten.has_ours else [])]
    return ways + ([Way(True, device)] if device != CPU else [])


def two_ways(providers: Sequence[str] | None, provider: str | None) -> list[Way]:
    """How BEFORE and AFTER run on two providers; empty where that is not the question."""
    if providers is None:
        return []
    if len(providers) != 2 or isinstance(providers, str):
        raise OptionError(f"two providers are compared, not {len(providers)}: name BEFORE's and AFTER's")
    if provider is not None:
        raise OptionError("provider says where AFTER runs too, providers where each of them runs: give one of the two")
    return [Way(name != CPU, name) for name in map(provider_name, providers)]


def steps_of(ways: Sequence[Way], *, at_default_level: bool) -> list[tuple[str, float]]:
    """What is done, one behind the other, and about how long each takes."""
    return [
        ("BEFORE runs", 2),
        *((f"AFTER runs{' with the library' if way.library else ''}", 1.0) for way in ways),
        *([("AFTER runs with the runtime's optimizations", 1.0)] if at_default_level else []),
        ("BEFORE runs with its rounding at random", RUNS),
        ("looking for what no input showed", 1),
    ]


def wishes_of(model: onnx.ModelProto, asked: Wishes, effort: str) -> Wishes:
    """What is asked of the inputs that are made for BEFORE, with as many elements as the effort allows.

    Raises:
        OptionError: an unknown effort, dimension or input, or a range beyond an input's type.
        VerifyError: a range of an input that is no tensor.
    """
    if effort not in EFFORTS:
        raise OptionError(f"there is no effort '{effort}'; choose one of {', '.join(EFFORTS)}")
    for what, named, known in (
        ("symbolic dimension", asked.sizes, list(symbols(model))),
        ("input", asked.ranges, [v.name for v in required_inputs(model)]),
    ):
        unknown = set(named) - set(known)
        if unknown:
            raise OptionError(f"there is no {what} '{min(unknown)}'; there are {', '.join(known) or 'none'}")
    _require_numbers({v.name: v for v in required_inputs(model)}, asked.ranges)
    return replace(asked, elements=EFFORTS[effort].elements)


def _require_numbers(inputs: Mapping[str, onnx.ValueInfoProto], ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuses ranges of which an input's type holds no numbers.

    Raises:
        OptionError: an end is not finite or beyond the type, or the lowest number is above the highest.
        VerifyError: an input is no tensor.
    """
    for name, (low, high) in ranges.items():
        dtype = dtype_of(inputs[name])
        if not -math.inf < low <= high < math.inf:
            raise OptionError(f"the range of '{name}' is {low} to {high}: it wants two finite numbers, the lower first")
        if dtype.kind in "iu":
            holds = np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max
        else:
            with np.errstate(over="ignore"):
                holds = bool(np.isfinite(np.array([low, high]).astype(dtype).astype(np.float64)).all())
        if not holds:
            raise OptionError(f"the range of '{name}' is {low:g} to {high:g}, which {dtype} does not hold")


# -- interfaces --------------------------------------------------------------------------------------------------------


def interface_difference(before: onnx.ModelProto, after: onnx.ModelProto, *, half_io: bool = False) -> str:
    """The first contradiction, or "". `half_io`: AFTER may have float16 where BEFORE has float32.

    A symbolic dimension of BEFORE may be a number in AFTER (`--input-shape`), and either side may leave out what the
    other one says; two numbers, two symbols, two types or two ranks that differ are contradictions.
    """
    sides = (
        ("input", required_inputs(before), required_inputs(after)),
        ("output", before.graph.output, after.graph.output),
    )
    for what, old, new in sides:
        names, new_names = [v.name for v in old], [v.name for v in new]
        if names != new_names:
            return f"the {what}s are {new_names}, they were {names}"
        for a, b in zip(old, new, strict=True):
            found = _value_difference(a.type, b.type, half_io)
            if found:
                return f"{what} '{a.name}': {found}"
    old_defaults, new_defaults = ({v.name for v in m.graph.input} & _initializers(m) for m in (before, after))
    # Below IR version 4 every initializer had to be an input.
    if before.ir_version >= 4 and old_defaults != new_defaults:
        return f"overridable initializers are {sorted(new_defaults)}, they were {sorted(old_defaults)}"
    return ""


def without_overridable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the interface that `--freeze-initializers` leaves: inputs that have a value are none."""
    frozen = onnx.ModelProto()
    frozen.CopyFrom(model)
    defaults = _initializers(model)
    del frozen.graph.input[:]
    frozen.graph.input.extend(v for v in model.graph.input if v.name not in defaults)
    return frozen


def fixed_sizes(before: onnx.ModelProto, after: onnx.ModelProto) -> dict[str, int]:
    """Symbols of BEFORE's inputs that are numbers in AFTER."""
    fixed = {}
    for a, b in zip(required_inputs(before), required_inputs(after), strict=True):
        dims, new_dims = a.type.tensor_type.shape.dim, b.type.tensor_type.shape.dim
        for axis, (old, new) in enumerate(zip(dims, new_dims)):
            if old.dim_value <= 0 < new.dim_value:
                fixed[symbol_of(a, axis)] = new.dim_value
    return fixed


def _initializers(model: onnx.ModelProto) -> set[str]:
    return {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}


def _value_difference(old: onnx.TypeProto, new: onnx.TypeProto, half_io: bool) -> str:
    kind, new_kind = old.WhichOneof("value"), new.WhichOneof("value")
    if kind != new_kind:
        return f"{kind} became {new_kind}"
    if kind != "tensor_type":
        return ""
    a, b = old.tensor_type, new.tensor_type
    halved = half_io and (a.elem_type, b.elem_type) == (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    if a.elem_type != b.elem_type and not halved:
        name = onnx.TensorProto.DataType.Name
        return f"{name(a.elem_type)} became {name(b.elem_type)}"
    if not (a.HasField("shape") and b.HasField("shape")):
        return ""
    # Some exporters write 0 for a size that they do not know, so that it contradicts none.
    shapes = [[d.dim_value if d.dim_value > 0 else d.dim_param or None for d in t.shape.dim] for t in (a, b)]
    return "" if _compatible(*shapes) else f"dimensions {shapes[0]} became {shapes[1]}"


def _compatible(old: Sequence[int | str | None], new: Sequence[int | str | None]) -> bool:
    return len(old) == len(new) and all(
        a == b or a is None or b is None or (isinstance(a, str) and isinstance(b, int)) for a, b in zip(old, new)
    )
