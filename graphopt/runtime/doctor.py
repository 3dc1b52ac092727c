"""`graphopt doctor`: the parts of this installation and whether they work."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphopt
from graphopt.errors import GraphoptError, one_line
from graphopt.ops import OPS
from graphopt.ops.case import model_of
from graphopt.ops.cases import cases_of
from graphopt.runtime.auto import resolve_target
from graphopt.runtime.discovery import (
    CPU,
    bfloat16_gain,
    gpu_routes,
    import_onnxruntime,
    installed_runtimes,
    library_path,
)
from graphopt.runtime.routes import Route


@dataclass
class Findings:
    """The results of the examination.

    Attributes:
        rows: names and values of the parts found.
        problems: messages about missing or broken parts.
        routes: routes to GPUs, with the reasons why some cannot be used.
        target: the target that `--target auto` selects here.
        target_reason: why it selects that target.

    """

    rows: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    target: str = "cpu"
    target_reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the findings for JSON, in the format of docs/provider_reference.md."""
        return {
            "format": 2,
            "findings": dict(self.rows),
            "problems": self.problems,
            "auto": {"target": self.target, "reason": self.target_reason},
            "routes": [route.to_dict() for route in self.routes],
        }


def examine() -> Findings:
    """Examines versions, the runtime, its providers, the native library and GPUs. Raises no errors."""
    found = Findings()
    found.rows.append(("graphopt", graphopt.__version__))
    found.rows.append(("python", platform.python_version()))
    for name in ("onnx", "onnx-ir", "onnx-graphsurgeon", "numpy"):
        found.rows.append((name, importlib.metadata.version(name)))
    runtimes = installed_runtimes()
    if len(runtimes) > 1:
        names = ", ".join(f"{n} {v}" for n, v in runtimes.items())
        found.problems.append(
            f"{names} install the same Python module and overwrite each other; uninstall all of them, then install one"
        )
    try:
        ort = import_onnxruntime()
    except GraphoptError as error:
        found.problems.append(str(error))
        return found
    owner = ", ".join(f"{n} {v}" for n, v in runtimes.items()) or "not from a known distribution"
    found.rows.append(("onnxruntime", f"{ort.__version__} ({owner})"))
    found.rows.append(("providers", ", ".join(ort.get_available_providers())))
    try:
        path = library_path()
    except GraphoptError as error:
        found.problems.append(str(error))
        return found
    found.rows.append(("native library", str(path)))
    kernels, failure = _count_kernels(ort, path)
    if failure:
        found.problems.append(f"the native library cannot be used: {failure}")
    else:
        count = "every operator" if kernels == len(OPS) else f"{kernels} of {len(OPS)} operators"
        found.rows.append(("CPU kernels", count))
        if (gain := bfloat16_gain()) is not None:
            found.rows.append(("--precision bf16", f"a layer on the CPU is {gain:.2f} times as fast as in float32"))
        _look_for_gpus(found)
    return found


def _look_for_gpus(found: Findings) -> None:
    try:
        found.routes = list(gpu_routes())
        target, found.target_reason = resolve_target("auto")
    except Exception as error:  # from a driver or the runtime; reported like other problems
        found.problems.append(f"GPUs cannot be detected: {one_line(error)}")
        return
    if not found.routes:
        found.rows.append(("GPUs", "unknown: the native library is older than this package"))
    else:
        amd = dict.fromkeys(arch for route in found.routes for arch in route.code if arch.startswith("gfx"))
        none = "none: there was no clang with lld that compiles for AMD GPUs when the library was built"
        found.rows.append(("AMD GPU kernels", ", ".join(amd) or none))
    found.target = str(target)
    found.rows.append(("--target auto", f"{found.target}: {found.target_reason}"))


def _count_kernels(ort: Any, path: Path) -> tuple[int, str]:
    """Counts operators with a CPU kernel by creating a session of a model without function bodies."""
    try:
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(path))
        options.log_severity_level = 4
    except Exception as error:  # the runtime's exception classes share no public base
        return 0, str(error).strip()
    return _with_kernel(ort, options, list(OPS)), ""


def _with_kernel(ort: Any, options: Any, names: Sequence[str]) -> int:
    """Counts operators with a kernel: tries a session with all of them, and with each half if it fails."""
    cases = [cases_of(OPS[name])[0].cast("float32") for name in names]
    model, _ = model_of(cases, 17, bodies=False)
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
    except Exception:  # at least one operator has no kernel
        half = len(names) // 2
        return sum(_with_kernel(ort, options, part) for part in (names[:half], names[half:])) if half else 0
    return len(names)
