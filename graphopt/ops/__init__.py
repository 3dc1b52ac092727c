"""The operators of domain com.graphopt: OPS maps each name that graphopt may emit to its spec."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from graphopt.ops.schema import DOMAIN, DOMAIN_VERSION, OpSpec

OPS: dict[str, OpSpec] = {}
for _module in iter_modules(__path__):
    if _module.name not in ("cases", "evaluator"):  # they import OPS
        OPS.update((s.name, s) for s in getattr(import_module(f"{__name__}.{_module.name}"), "SPECS", ()))

__all__ = ["DOMAIN", "DOMAIN_VERSION", "OPS", "OpSpec"]
