"""Optimizes one foreign file for each target and compares the results with the original.

scripts/outside_files.py runs `python -m tests.hostile.foreign_file`, which reads requests from stdin, one line of JSON
each, and writes answers in the same form.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

SIZES = (2, 1, 4)
# Relative to the RMS of an output, by the numerics class that the report of `optimize` names.
LIMITS = {"exact": 1e-5, "reassociated": 1e-4, "approximate": 5e-3, "fp16": 5e-2, "bf16": 1e-1}
MAX_ELEMENTS = 50_000_000
HANGS = 300  # wall-clock limit as a multiple of a file's limit of CPU seconds, for machines with other load
RANDOM = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
# ONNX Runtime's LayerNormalization takes the square root of a negative variance where rows are large and nearly
# constant.
NAN_OF_THE_ORIGINAL = "the original gives NaN where the result does not"
ORIGINAL, RESULT = "the original", "the result"
Array = npt.NDArray[Any]
Feeds = Mapping[str, Any]


def _feeds(path: Path, model: onnx.ModelProto, size: int) -> Feeds | None:
    """Returns None if an input is not a numeric tensor, or is too large."""
    initializers = {t.name for t in model.graph.initializer}
    required = [v for v in model.graph.input if v.name not in initializers]
    given = sorted(path.parent.glob("test_data_set_0/input_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    if given and len(given) == len(required):
        try:
            tensors = [TensorProto.FromString(p.read_bytes()) for p in given]
            return {v.name: numpy_helper.to_array(t) for v, t in zip(required, tensors)}
        except Exception:
            return None
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for value in required:
        if not value.type.HasField("tensor_type"):
            return None
        tensor = value.type.tensor_type
        shape = [d.dim_value if 0 < d.dim_value < 2**31 - 1 else size for d in tensor.shape.dim]
        try:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        except KeyError:
            return None
        if np.prod(shape, dtype=float) > MAX_ELEMENTS or dtype.kind not in "fiub":
            return None
        if dtype.kind == "f":
            feeds[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            feeds[value.name] = rng.integers(0, 2, shape).astype(dtype)
    return feeds


def _shapes(feeds: Feeds) -> str:
    return str({name: np.shape(value) for name, value in feeds.items()})


def _feeds_by_use(model: onnx.ModelProto, takes: Callable[[Feeds], bool]) -> list[Feeds]:
    from graphopt.errors import GraphoptError
    from graphopt.inputs.declared import symbols
    from graphopt.inputs.plan import accepted_feeds

    try:
        found = accepted_feeds(model, dict.fromkeys(symbols(model), SIZES[-1]), takes)
    except GraphoptError:  # the input has a type without generated values
        found = None
    return [] if found is None else [found]


def _types(model: onnx.ModelProto) -> set[int]:
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    casts = (a.i for n in model.graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to")
    return {*(t.data_type for t in model.graph.initializer), *(v.type.tensor_type.elem_type for v in values), *casts}


def _session(path: Path, library: str | None, *, optimized: bool) -> Any:
    """Returns a session on the file, or ONNX Runtime's error message."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    if library:
        options.register_custom_ops_library(library)
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return _words(error)


def _run(session: Any, feeds: Feeds) -> list[Any] | str:
    if isinstance(session, str):
        return session
    try:
        found: list[Any] = session.run(None, feeds)
    except Exception as error:
        return _words(error)
    return found


def _takes(session: Any, feeds: Feeds) -> bool:
    return not isinstance(_run(session, feeds), str)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or repr(error)


def _checker(path: Path) -> str:
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        return " ".join(str(error).split())[:300]
    return ""


def _difference(a: list[Any], b: list[Any], limit: float) -> str:
    for i, (want, got) in enumerate(zip(a, b, strict=True)):
        if want is None:
            continue  # an optional output that a contrib kernel of ONNX Runtime does not produce
        if not isinstance(want, np.ndarray) or want.dtype.kind not in "fiubc":
            if str(want) != str(got):
                return f"output {i} differs"
            continue
        if want.shape != got.shape or want.dtype != got.dtype:
            return f"output {i} is {got.dtype}{list(got.shape)}, it was {want.dtype}{list(want.shape)}"
        if not want.size:
            continue
        x, y = want.astype(np.float64), got.astype(np.float64)
        if np.isnan(x).any() and not np.isnan(y).any():
            return NAN_OF_THE_ORIGINAL
        if not np.array_equal(np.isnan(x), np.isnan(y)) or not np.array_equal(np.isinf(x), np.isinf(y)):
            return f"output {i} has other NaN or infinities"
        finite = np.isfinite(x)
        rms = float(np.sqrt(np.mean(x[finite] ** 2))) if finite.any() else 0.0
        worst = float(np.max(np.abs(x - y)[finite], initial=0.0))
        if worst > limit * (rms or 1.0):
            return f"output {i} differs by {worst / (rms or 1.0):.2g} of its RMS"
    return ""


class _Original:
    """The original file and its outputs on inputs of several sizes, at both optimization levels of ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path, load_external_data=False)
        self.half = TensorProto.FLOAT16 in _types(model)
        self.random = any(n.op_type in RANDOM for n in model.graph.node)
        by_size = [_feeds(path, model, size) for size in SIZES]
        sized = list({_shapes(f): f for f in reversed(by_size) if f is not None}.values())
        sessions = {level: _session(path, None, optimized=level) for level in (True, False)}
        self.loads = {level: not isinstance(session, str) for level, session in sessions.items()}
        # Some files run only at the default level, where constant folding removes nodes without a kernel.
        for self.level in (False, True):
            session = sessions[self.level]
            self.feeds, self.outputs = sized, [_run(session, f) for f in sized]
            if self.loads[self.level] and not self.runs:
                self.feeds = _feeds_by_use(model, partial(_takes, session))
                self.outputs = [_run(session, f) for f in self.feeds]
            if self.runs:
                break
        self.again = [_run(session, f) for f in self.feeds]
        self.at_default_level = [_run(sessions[True], f) for f in self.feeds]

    @property
    def runs(self) -> bool:
        return not all(isinstance(o, str) for o in self.outputs)


class _Examination:
    """Examines one file. Announces each run of the original, so the parent knows which model ended the process."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.original: _Original | None = None
        self.compared: dict[bytes, tuple[str, str]] = {}

    def of(self, target: str, precision: Literal["fp16", "bf16"] | None, runs: bool) -> tuple[str, str]:
        import graphopt
        from graphopt.errors import GraphoptError, InvariantError

        out = self.folder / "out.onnx"
        for old in self.folder.iterdir():
            old.unlink()
        try:
            _, report = graphopt.optimize(
                self.path, out, target=target, precision=precision, ignore_cost_model=True, check=True
            )
        except InvariantError as error:
            return "FAILED", f"invariant: {error}"
        except GraphoptError as error:
            return "refused", str(error)
        except Exception as error:
            return "FAILED", f"traceback: {type(error).__name__}: {error}"
        if not report.changed:
            return "unchanged", ""
        why = _checker(out)
        if why and not _checker(self.path):
            return "FAILED", f"checker: {why}"
        if not runs:
            return "not run", f"{ORIGINAL} ends the process"
        if self.original is None:
            _say(ORIGINAL)
            self.original = _Original(self.path)
            _say(RESULT)
        # A model with float16 tensors is compared with the limit of float16, whatever rewrites were applied.
        limit = LIMITS["fp16" if self.original.half else report.numerics]
        written = onnx.load(out)
        del written.metadata_props[:]  # they name the target, and the numerics class, which `limit` already represents
        key = hashlib.sha256(str(limit).encode() + written.SerializeToString(deterministic=True)).digest()
        if key not in self.compared:
            self.compared[key] = self._compare(self.original, out, limit)
        return self.compared[key]

    def _compare(self, original: _Original, out: Path, limit: float) -> tuple[str, str]:
        import graphopt
        from graphopt.runtime.discovery import library_path

        compared = 0
        for optimized in (level for level, loads in original.loads.items() if loads):
            for library in (None, str(library_path())):
                where = f"{'default level, ' * optimized}library={library is not None}"
                session = _session(out, library, optimized=optimized)
                if isinstance(session, str):
                    return "FAILED", f"{where}: {session}"
                for feeds, before, again, fused in zip(
                    original.feeds, original.outputs, original.again, original.at_default_level, strict=True
                ):
                    if isinstance(before, str) or (optimized and isinstance(fused, str)) or optimized < original.level:
                        continue
                    if isinstance(again, str) or _difference(before, again, 0.0):
                        return "random", "the original differs from itself"
                    after = _run(session, feeds)
                    if isinstance(after, str):
                        return "FAILED", f"run, {where}: {after}"
                    difference = _difference(before, after, limit)
                    # ONNX Runtime's own optimizations cause this difference, not ours.
                    if optimized and difference and not isinstance(fused, str) and _difference(before, fused, limit):
                        continue
                    compared += 1
                    if difference == NAN_OF_THE_ORIGINAL:
                        return "NaN", difference
                    if difference and original.random:  # by chance two runs of a random original can agree
                        return "random", difference
                    if difference:
                        equal = not original.level and graphopt.verify(self.path, out).equal
                        return "amplified" if equal else "FAILED", f"{where}: {difference} (allowed {limit})"
        return ("agrees", "") if compared else ("not run", "the original runs on none of the inputs")


_answers = sys.stdout


def _say(words: object) -> None:
    print(json.dumps(words), file=_answers, flush=True)


def _allow(seconds: float) -> None:
    """Lets SIGXCPU end the process after this many more CPU seconds, which do not depend on the machine's load."""
    used = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, resource.RLIM_INFINITY))
    signal.alarm(int(HANGS * seconds) + 1)


def serve() -> None:
    """Answers requests in a forked child and forks another when one ends. The parent imports the slow modules once."""
    warnings.simplefilter("ignore")
    # ONNX Runtime prints to stdout, from Python when a provider fails and from some kernels: redirect that to stderr.
    global _answers
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in ("graphopt.optimizer", "graphopt.verification.verify", "onnxruntime"):
        importlib.import_module(module)
    while child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not code:
            return
        _say({"ended": code})
    for line in sys.stdin:
        _answer(*json.loads(line))
    os._exit(0)


def _answer(path: str, targets: list[str], seconds: float, runs: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        examination = _Examination(Path(path), Path(folder))
        for target in targets:
            name, _, precision = target.partition("+")
            _allow(seconds)
            _say(examination.of(name, "fp16" if precision == "fp16" else None, runs))


if __name__ == "__main__":
    serve()
