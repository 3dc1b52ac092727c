"""Shared by the tests of passes: build a model from text, rewrite it, run it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

from graphopt import pipeline
from graphopt.graph import inference
from graphopt.graph.editor import Editor
from graphopt.graph.reading import load
from graphopt.inputs.plan import Case
from graphopt.ops import DOMAIN
from graphopt.remarks import Remark
from graphopt.runtime.discovery import CPU
from graphopt.runtime.sessions import configure
from graphopt.targets.profit import EveryLegalCandidate
from graphopt.targets.target import Target
from graphopt.verification.run import Mode, run_isolated

Array = npt.NDArray[Any]


@dataclass
class Rewritten:
    """A rewritten model and the remarks of its passes."""

    proto: onnx.ModelProto
    remarks: list[Remark]

    @property
    def op_types(self) -> list[str]:
        return [n.op_type for n in self.proto.graph.node]

    def codes(self) -> list[str]:
        return [r.code for r in self.remarks]


def inferred(model: onnx.ModelProto) -> ir.Model:
    """The model in onnx_ir, with inferred types."""
    found = ir.serde.deserialize_model(model)
    inference.infer(found)
    return found


def model_from_text(
    graph: str, initializers: Mapping[str, Array] | None = None, opset: int = 17, *, check: bool = True
) -> onnx.ModelProto:
    """Parses `graph` in ONNX text syntax: `g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }`."""
    header = f'<ir_version: 8, opset_import: ["" : {opset}]>\n'
    model = onnx.parser.parse_model(header + graph)
    for name, array in (initializers or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    if check:
        onnx.checker.check_model(model)
    return model


def rewrite(
    model: onnx.ModelProto,
    passes: Sequence[Any],
    *,
    device: str = "cpu",
    ignore_cost_model: bool = False,
    vnni: bool = True,
) -> Rewritten:
    """Runs passes as `optimize` would, after shape inference."""
    work = load(model).model
    inference.infer(work)
    profit = EveryLegalCandidate() if ignore_cost_model else None
    result = pipeline.run(Editor(work, Target(device, vnni=vnni), profit), passes)
    assert result.converged
    inference.forget(work)
    return Rewritten(ir.serde.serialize_model(work), result.remarks)


def run(model: onnx.ModelProto, feeds: Mapping[str, Array], *, library: bool = False) -> list[Array]:
    """Runs a model without ONNX Runtime's optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # To start threads, and to let them spin, would take longer than most of these models. Our kernels share their work.
    options.intra_op_num_threads = 2 if library else 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if library:
        configure(options, [CPU], model=model)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[Array] = []
    for output in session.run(None, dict(feeds)):
        outputs += output if isinstance(output, list) else [output]  # a sequence's tensors
    return outputs


def assert_same_outputs(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array], tolerance: float = 1e-5
) -> None:
    """Asserts that every output agrees relative to its RMS, without the library and, for nodes of ours, with it.

    Infinities and NaN must be equal, and do not count for the RMS. A tolerance of 0 requires equal elements.

    Every intermediate value that keeps its name must agree as well, since users inspect those by name. AFTER must also
    run at ONNX Runtime's default level.
    """
    assert_runs(before, after, feeds)
    outputs = {o.name for o in before.graph.output}
    kept = sorted((_made(before) & _made(after)) - outputs)
    before, after = _with_outputs(before, kept), _with_outputs(after, kept)
    wanted = run(before, feeds)
    ours = any(n.domain == DOMAIN for n in after.graph.node)
    for library in (False, True) if ours else (False,):
        for want, got in zip(wanted, run(after, feeds, library=library), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            finite = np.isfinite(want)
            np.testing.assert_array_equal(got[~finite], want[~finite])
            wide = want[finite].astype(np.float64)
            rms = float(np.sqrt(np.mean(wide**2))) if wide.size else 0.0
            worst = float(np.max(np.abs(got[finite].astype(np.float64) - wide), initial=0.0))
            assert worst <= tolerance * (rms or 1.0), f"library={library}: {worst / (rms or 1.0):.3g} of RMS"


def python_calls(work: Callable[[], object], most: int = 1 << 62) -> int:
    """Counts calls of Python functions: a measure of work that does not depend on the machine or its load."""
    calls = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"
        assert calls <= most, "the work has no end"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def assert_runs(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    """Asserts that AFTER runs at the default level, with and without the library, unless BEFORE does not either."""
    ours = any(n.domain == DOMAIN for n in after.graph.node)
    for library in (False, True) if ours else (False,):
        why = _why_not(after, feeds, library=library)
        if why:
            assert _why_not(before, feeds, library=False), f"library={library}: {why}"


def _why_not(model: onnx.ModelProto, feeds: Mapping[str, Array], *, library: bool) -> str:
    """Returns the reason why ONNX Runtime cannot run a model at its default level, or ""."""
    (outputs,) = run_isolated(
        model, [Case("the test's", dict(feeds))], Mode(library, optimized=True), threads=1
    ).values()
    if isinstance(outputs, str):
        return outputs
    return "an output has no value" if any(y is None for y in outputs) else ""


def _made(model: onnx.ModelProto) -> set[str]:
    """Returns the names of values that nodes of the main graph produce."""
    return {name for node in model.graph.node for name in node.output if name}


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return copy
