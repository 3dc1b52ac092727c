"""A random node of a contrib operator as a model: with the node, and lowered to standard ONNX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper, numpy_helper

from graphopt import pipeline
from graphopt.contrib import CONTRIB, ContribOp
from graphopt.contrib.schema import DOMAIN, formal
from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.reading import load
from graphopt.ops.schema import Array
from graphopt.passes.contrib import Contrib
from graphopt.targets.profit import EveryLegalCandidate
from graphopt.targets.target import Target
from tests.contrib.case import Case
from tests.contrib.references import draw, reference

RUNTIME = tuple(int(n) for n in ort.__version__.split(".")[:2])
# Parts of the error messages for operators, types or inputs without a kernel in this runtime.
NO_KERNEL = (
    "NOT_IMPLEMENTED",
    "NotImplemented",
    "not implemented",
    "not supported",
    "is not a registered function",
    "cannot have both past and attention_bias",
    "past_present_share_buffer_ was false",
)


def model_of(op: ContribOp, case: Case, opset: int) -> onnx.ModelProto:
    """Returns a model of one node, with inputs of declared ranks and unknown sizes."""
    names = [n for n in map(formal, op.inputs) if n in case.inputs or not variadic(op, n)]
    names += [n for n in case.inputs if n not in names]
    while names[-1] not in case.inputs:
        names.pop()
    outputs = [formal(n) if formal(n) in case.outputs else "" for n in op.outputs]
    while not outputs[-1]:
        outputs.pop()
    node = helper.make_node(
        op.name, [n if n in case.inputs else "" for n in names], outputs, "node", domain=op.domain, **case.attributes
    )
    inputs, initializers = [], []
    for name, array in case.inputs.items():
        if name in case.constants:
            initializers.append(numpy_helper.from_array(array, name))
        else:
            dims = list(case.dims.get(name, [f"{name}_{i}" for i in range(array.ndim)]))
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims))
    wanted = reference(op, case)
    graph = helper.make_graph(
        [node],
        "node",
        inputs,
        [
            helper.make_tensor_value_info(
                n, type_of(case, n, wanted[n]), [f"{n}_{i}" for i in range(np.asarray(wanted[n]).ndim)]
            )
            for n in outputs
            if n
        ],
        initializers,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=min(10, 8 if opset < 21 else 10))


def variadic(op: ContribOp, name: str) -> bool:
    return f"{name}*" in op.inputs


def type_of(case: Case, name: str, wanted: Array) -> int:
    """Returns the type of an output: floats have the type of the first float input, a norm's statistics are float32."""
    if wanted.dtype.kind != "f" or name in ("mean", "inv_std_var"):
        return int(helper.np_dtype_to_tensor_dtype(wanted.dtype))
    floats = [x.dtype for x in case.inputs.values() if x.dtype.kind == "f"]
    return int(helper.np_dtype_to_tensor_dtype(floats[0]))


def lowered(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Lowers a model to standard ONNX where definitions exist; returns a line for each node without one."""
    work = load(model).model
    inference.infer(work)
    result = pipeline.run(Editor(work, Target("portable"), EveryLegalCandidate()), [Contrib()])
    inference.forget(work)
    refused = [f"{r.code}: {r.detail}" for r in result.remarks if not r.applied]
    return ir.serde.serialize_model(work), refused


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_node(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array] | str:
    """Returns the results of ONNX Runtime's kernel, or the error message if there is no kernel for the node."""
    try:
        return run(model, feeds)
    except Exception as error:
        if any(sign in str(error) for sign in NO_KERNEL):
            return str(error)
        raise


def movement(op: ContribOp, case: Case, want: Mapping[str, Array]) -> dict[str, float]:
    """Returns output -> change of the reference when float inputs change by one unit, the maximum of a few draws.

    No kernel can compute a cancelling sum more accurately than this.
    """
    rng = np.random.default_rng(0)
    moved = dict.fromkeys(case.outputs, 0.0)
    for _ in range(4):
        inputs = {
            n: np.nextafter(x, rng.choice([-np.inf, np.inf], x.shape).astype(x.dtype)) if x.dtype.kind == "f" else x
            for n, x in case.inputs.items()
        }
        other = reference(op, replace(case, inputs=inputs))
        for name in moved:
            if want[name] is not None and want[name].dtype.kind == "f":
                off = np.abs(np.asarray(other[name], np.float64) - want[name])
                moved[name] = max(moved[name], float(np.nanmax(off, initial=0.0)))
    return moved


def disagreement(
    case: Case, want: Mapping[str, Array], got: Mapping[str, Array], moved: Mapping[str, float] | None = None
) -> str:
    """Describes an output that differs by more than the tolerance and twice the change of `moved`; "" if none does."""
    for name in case.outputs:
        if want[name] is None:
            continue  # a kernel of an old release that leaves it out
        a, b = np.asarray(want[name]), got[name]
        if a.shape != b.shape:
            return f"{name}: shape {b.shape}, wanted {a.shape}"
        if name in case.valid:
            a, b = a[case.valid[name]], b[case.valid[name]]
        if not np.array_equal(np.isnan(a.astype(np.float64)), np.isnan(b.astype(np.float64))):
            return f"{name}: NaN elsewhere"
        off = np.abs(a.astype(np.float64) - b.astype(np.float64))
        worst = float(np.nanmax(off, initial=0.0))
        if a.dtype.kind != "f":
            if worst > case.steps:
                return f"{name}: {worst:g} steps"
        else:
            rms = float(np.sqrt(np.nanmean(a.astype(np.float64) ** 2))) if a.size else 1.0
            if worst > max(case.tolerance * (rms or 1.0), 2 * (moved or {}).get(name, 0.0)):
                return f"{name}: {worst / (rms or 1.0):.2e} of RMS"
    return ""


def inferred_wrongly(model: onnx.ModelProto, feeds: Mapping[str, Array], got: Mapping[str, Array]) -> str:
    """Describes a claim of shape inference about the outputs that the run contradicts; "" if there is none."""
    work = load(model).model
    for output in work.graph.outputs:
        output.shape = output.type = None
    inference.infer(work)
    editor = Editor(work, Target("cpu"))
    numbers = {
        str(d): n
        for value in work.graph.inputs
        if value.shape is not None and value.name is not None
        for d, n in zip(value.shape, feeds[value.name].shape, strict=True)
    }
    for output in work.graph.outputs:
        assert output.name is not None
        array = got[output.name]
        if output.dtype is not None and output.dtype.numpy() != array.dtype:
            return f"{output.name} is {output.dtype}"
        dims = editor.shapes.dims(output)
        if dims is not None and len(dims) != array.ndim:
            return f"{output.name} has rank {len(dims)}"
        for size, n in zip(dims or (), array.shape):
            terms = [(coefficient, [numbers.get(s) for s in symbols]) for symbols, coefficient in size.terms]
            known = [c * math.prod(s for s in symbols if s is not None) for c, symbols in terms if None not in symbols]
            if len(known) == len(terms) and sum(known) != n:
                return f"{output.name} has {n} where {size} was said"
    return ""


@dataclass
class Verdict:
    """The comparison of one random node.

    Attributes:
        fault: a description of a difference; "" if all agree.
        kernel: whether ONNX Runtime's kernel was run.
    """

    fault: str
    kernel: bool
    refused: str = ""


def judge(op: ContribOp, seed: int, opset: int) -> Verdict:
    """Compares the definition with the reference, and both with ONNX Runtime's kernel."""
    case = draw(op, seed)
    model = model_of(op, case, opset)
    feeds = {n: x for n, x in case.inputs.items() if n not in case.constants}
    standard, refused = lowered(model)
    if refused:
        return Verdict("", False, refused[0])
    onnx.checker.check_model(standard)
    what = f"{op.name} seed {seed} opset {opset} {case.attributes} { {n: x.shape for n, x in case.inputs.items()} }"
    want = reference(op, case)
    got = run(standard, feeds)
    asked = case.kernel is not None and case.kernel <= RUNTIME
    truth = run_node(model, feeds) if asked else ""
    pairs: dict[str, tuple[Mapping[str, Array], Mapping[str, Array]]] = {"definition, reference": (want, got)}
    if not isinstance(truth, str):
        pairs |= {"definition, runtime's kernel": (truth, got), "reference, runtime's kernel": (truth, want)}
    faults = {pair: disagreement(case, *both) for pair, both in pairs.items()}
    if any(faults.values()):
        moved = movement(op, case, want)
        faults = {pair: disagreement(case, *both, moved) for pair, both in pairs.items()}
    faults["shapes"] = inferred_wrongly(model, feeds, got)
    found = [f"{pair}: {fault}" for pair, fault in faults.items() if fault]
    return Verdict(f"{what}: {'; '.join(found)}" if found else "", not isinstance(truth, str))


__all__ = ["CONTRIB", "Verdict", "disagreement", "judge", "lowered", "model_of"]
