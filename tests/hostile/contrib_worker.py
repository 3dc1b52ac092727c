"""Runs damaged nodes of com.microsoft through ONNX Runtime, our provider and our passes, and compares the outcomes.

Each drawn node of the table in graphopt/contrib is damaged, or gets the name of another operator of that domain. It
then runs with ONNX Runtime's CPU kernels, with our provider, after `optimize`, and after `lower` has replaced it by its
definition, each time in a forked process. A crash, a traceback, or a result other than ONNX Runtime's is a fault of
ours. Crashes of ONNX Runtime's own kernels are counted separately. Run as

      python -m tests.hostile.contrib_worker EXAMPLES SEED [KERNELS]

KERNELS is a library of our GPU kernels compiled for the CPU. Without it the provider is not tested; it needs ONNX
Runtime 1.24. Prints each fault, and at the end the number of nodes that were refused, ran, and ended the process of
ONNX Runtime. The exit status is 1 if there was a fault.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import onnx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

import graphopt
from graphopt.contrib import CONTRIB
from graphopt.contrib.schema import DOMAIN, formal
from graphopt.errors import GraphoptError, one_line
from graphopt.lower import lower
from graphopt.ops.schema import Array
from tests.contrib.nodes import variadic
from tests.contrib.references import draw
from tests.hostile.limits import bound_memory, bound_processor
from tests.hostile.native_worker import ERRORS, HEALTHY, MEMORY, Example, damaged, input_of, model_of
from tests.hostile.session import open_session, register_provider

DRAWS = 12
SECONDS = 60
# Relative to the RMS of an output: far above rounding errors, which tests/contrib checks, and far below a wrong value.
TOLERANCE = {"float16": 3e-2, "float32": 1e-3, "float64": 1e-3}
# Largest allowed difference between integer results: one rounding step.
STEPS = 1


@dataclass(frozen=True)
class Outcome:
    """The outcome of running a node in one place.

    Attributes:
        outputs: the results, or None if the node was refused or the process died.
        died: the signal that ended the process, or the traceback of an unexpected exception; "" otherwise.
        said: the message of the refusal.
    """

    outputs: list[Array] | None = None
    died: str = ""
    said: str = ""


def alone(work: Callable[[], list[Array]]) -> Outcome:
    """Runs `work` in a forked process, which distinguishes a crash, a hang or exhausted memory from an exception."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        bound_processor(SECONDS)
        bound_memory(MEMORY)
        try:
            outcome = Outcome(work())
        # ONNX Runtime's Python interface raises RuntimeError for outputs that have no numpy type.
        except (*ERRORS, GraphoptError, MemoryError, RuntimeError) as error:
            outcome = Outcome(said=one_line(error))
        except Exception:
            outcome = Outcome(died=" / ".join(traceback.format_exc().splitlines()[-7:]))
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        return Outcome(died=signal.strsignal(os.WTERMSIG(status)) or "an exit")
    found: Outcome = pickle.loads(data)
    return found


def computed(model: onnx.ModelProto, feeds: Mapping[str, Array], provider: bool = False) -> list[Array]:
    if provider:
        register_provider()
    ours = any(node.domain not in ("", DOMAIN) for node in model.graph.node)
    session = open_session(model, library=ours, provider=provider, threads=1, optimized=False)
    return [np.asarray(y) for y in session.run(None, dict(feeds))]


def rewritten(
    change: Callable[[onnx.ModelProto], onnx.ModelProto], model: onnx.ModelProto, feeds: Mapping[str, Array]
) -> list[Array]:
    changed = change(model)  # every exception except a documented refusal is a fault
    return computed(changed, feeds)


def _optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    return graphopt.optimize(model, target="cpu")[0]


def _defined(model: onnx.ModelProto) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path, out = f"{folder}/model.onnx", f"{folder}/out.onnx"
        onnx.save(model, path)
        lower(path, out, to="standard")
        return onnx.load(out)


def otherwise(want: list[Array], got: list[Array]) -> str:
    """Describes the first difference between two lists of results; "" if there is none."""
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        if a.dtype == np.object_:  # an optional output that an old release of ONNX Runtime leaves out
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i}: {b.dtype}{list(b.shape)}, the runtime's is {a.dtype}{list(a.shape)}"
        if a.dtype.kind not in "fiub" or not a.size:
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(x)
        if not np.array_equal(finite, np.isfinite(y)):
            return f"output {i}: infinite or NaN elsewhere"
        worst = float(np.abs(x - y)[finite].max(initial=0.0))
        rms = float(np.sqrt(np.mean(x[finite] ** 2))) if finite.any() else 0.0
        limit = TOLERANCE[a.dtype.name] * max(rms, 1e-30) if a.dtype.kind == "f" else STEPS
        if worst > limit:
            return f"output {i}: {worst:g} off, {rms:g} of RMS"
    return ""


def typed(model: onnx.ModelProto, outputs: list[Array]) -> onnx.ModelProto:
    """Returns a copy that declares the types of the computed outputs, since `optimize` requires a typed interface."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info, array in zip(copy.graph.output, outputs, strict=True):
        if array.dtype == np.object_:
            continue
        info.CopyFrom(helper.make_tensor_value_info(info.name, helper.np_dtype_to_tensor_dtype(array.dtype), None))
    return copy


@dataclass
class Verdict:
    """The comparison of a damaged node's outcomes.

    Attributes:
        runtime: "refused", "ran" or "ended", if ONNX Runtime's own kernel crashed.
        faults: our faults, one line each.
        stricter: refusals by us where ONNX Runtime computes a result, for example by reading beyond a tensor that is
        too small.
    """

    runtime: str
    faults: list[str] = field(default_factory=list)
    stricter: list[str] = field(default_factory=list)


def judge(example: Example, provider: bool) -> Verdict:
    made = model_of(example)
    if made is None:
        return Verdict("refused")
    model, feeds = made
    truth = alone(partial(computed, model, feeds))
    outputs = truth.outputs
    declared = typed(model, outputs if outputs is not None else [np.zeros(1, np.float32)] * len(model.graph.output))
    places = {
        "optimize": alone(partial(rewritten, _optimized, declared, feeds)),
        "definition": alone(partial(rewritten, _defined, declared, feeds)),
    }
    if provider:
        places["provider"] = alone(partial(computed, model, feeds, provider=True))
    verdict = Verdict("ended" if truth.died else "refused" if outputs is None else "ran")
    for place, found in places.items():
        if found.died:
            if found.died != truth.died:
                verdict.faults.append(f"{place}: {found.died}")
        elif outputs is not None and found.outputs is None:
            verdict.stricter.append(f"{place}: {found.said}")
        elif outputs is not None and found.outputs is not None and (off := otherwise(outputs, found.outputs)):
            verdict.faults.append(f"{place}: {off}")
    return verdict


def examples() -> list[list[Example]]:
    """Returns valid nodes, one list for each operator."""
    found = []
    for op in CONTRIB.values():
        of_op = []
        for number in range(DRAWS):
            case = draw(op, number)
            names = [n for n in map(formal, op.inputs) if n in case.inputs or not variadic(op, n)]
            names += [n for n in case.inputs if n not in names]
            while names[-1] not in case.inputs:
                names.pop()
            inputs = tuple(input_of(case.inputs[n]) if n in case.inputs else None for n in names)
            asked = [formal(n) in case.outputs for n in op.outputs]
            last = max(i for i, wanted in enumerate(asked) if wanted) + 1
            absent = frozenset(i for i in range(last) if not asked[i])
            of_op.append(Example(op.name, op.domain, inputs, last, dict(case.attributes), left_out=absent))
        found.append(of_op)
    return found


def main() -> int:
    count, first = map(int, sys.argv[1:3])
    kernels = sys.argv[3] if len(sys.argv) > 3 else ""
    warnings.simplefilter("ignore")
    if kernels:
        os.environ["GRAPHOPT_HOST_KERNELS"] = kernels
    # Load imports and tables before the first fork, so the forked processes share them.
    model, _ = model_of(HEALTHY) or (onnx.ModelProto(), {})
    for change in (_optimized, _defined):
        change(typed(model, [np.zeros(1, np.float32)]))
    others = sorted({s.name for s in runtime.get_all_operator_schema() if s.domain == DOMAIN})
    seen: Counter[str] = Counter()

    @seed(first)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged([examples()]), st.integers(0, 9), st.sampled_from(others))
    def check(example: Example, chance: int, other: str) -> None:
        if chance == 0 and example.domain == DOMAIN:
            example = replace(example, op_type=other)
        verdict = judge(example, bool(kernels))
        seen[verdict.runtime] += 1
        seen["faults"] += bool(verdict.faults)
        seen["stricter"] += bool(verdict.stricter)
        for word, lines in (("fault", verdict.faults), ("stricter", verdict.stricter)):
            for line in lines:
                print(f"{word}, {line} | {' '.join(str(example).split())}", flush=True)

    check()
    print("done", *(f"{seen[what]} {what}" for what in ("refused", "ran", "ended", "faults", "stricter")), flush=True)
    return int(seen["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
