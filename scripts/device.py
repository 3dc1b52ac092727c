"""Functions shared by the programs that run sessions on a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.measure.bench import bind
from graphopt.runtime.discovery import library_path, memory_of
from graphopt.runtime.routes import library_report
from tests.hip.harness import ROOT, build_for_cuda


def install_for_cuda() -> None:
    """Builds the library with nvcc into graphopt/lib; must be called before the library is loaded."""
    library = build_for_cuda("graphopt")
    (ROOT / "graphopt" / "lib").mkdir(exist_ok=True)
    shutil.copy(library, ROOT / "graphopt" / "lib")


def load_vendor_libraries(torch: Any) -> None:
    """Makes PyTorch load cuBLAS and cuDNN, which our library then finds, and disables TF32 in PyTorch."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for device in range(torch.cuda.device_count()):
        x = torch.zeros(1, 1, 3, 3, device=f"cuda:{device}")
        torch.nn.functional.conv2d(x, x) @ x[0, 0, :1, :1]


def statistics_of(function: str, library: Path | None = None) -> dict[str, Any]:
    """Calls a function of the library that takes no arguments and returns JSON (docs/native_library.md)."""
    return library_report(library or library_path(), function)


def bound(session: Any, feeds: Mapping[str, Any], like: Sequence[Any]) -> Any:
    """Returns a binding in the session's device memory: the inputs, and outputs with the shapes and types of `like`."""
    return bind(session, feeds, like, memory_of(session))
