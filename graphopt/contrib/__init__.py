"""Definitions of ONNX Runtime's contrib operators. CONTRIB maps (domain, name) to the entry in SPECS of a module."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from graphopt.contrib.schema import Call, ContribOp

CONTRIB: dict[tuple[str, str], ContribOp] = {}
for _module in iter_modules(__path__):
    CONTRIB.update((s.identifier, s) for s in getattr(import_module(f"{__name__}.{_module.name}"), "SPECS", ()))

__all__ = ["CONTRIB", "Call", "ContribOp"]
