"""The operators of other projects' providers. scripts/provider_tables.py makes the tables from their sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

FOLDER = Path(__file__).parent
# The accepted names of `explain --provider`.
NAMES = ("migraphx", "hip-ep")


@dataclass(frozen=True)
class ProviderTable:
    """One provider's table.

    Attributes:
        name: an item of NAMES.
        repository: the source repository.
        commit: the commit of the list.
        date: the date of the commit.
        list: the path of the file with the list of operators.
        any_domain: whether operators are looked up by name without domain.
        operators: name ("DOMAIN::NAME" outside ONNX's domain) -> whether it is supported ("taken"), the supported input
            types (empty: not listed), and the conditions ("limits"; "" for none).
        provider: for a compiler that an ONNX Runtime provider calls: the operators and the types that the provider
            passes to the compiler ("operators", "types"), the operators that it passes under conditions only
            ("limits"), and the source of this list.
    """

    name: str
    repository: str
    commit: str
    date: str
    list: str
    any_domain: bool
    operators: dict[str, dict[str, Any]]
    provider: dict[str, Any] | None = None

    def _facts(self, node: ir.Node) -> dict[str, Any] | None:
        domain = "" if self.any_domain or node.domain in ("", "ai.onnx") else f"{node.domain}::"
        return self.operators.get(domain + node.op_type)

    def refuse(self, node: ir.Node) -> str:
        """Returns why the provider does not claim the node; "" if its operator is listed as supported."""
        facts = self._facts(node)
        if facts is None:
            return "its list does not name the operator"
        if not facts["taken"]:
            return "its list says that the operator is not supported"
        if self.provider and node.op_type not in self.provider["operators"]:
            return f"its provider of {self.provider['date']} does not pass the operator on"
        if self.provider:  # if the provider passes all types on, the compiler supports the node or ends the session
            values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is not None]
            others = [t for t in map(_type, values) if t not in self.provider["types"]]
            return f"its provider of {self.provider['date']} does not pass {others[0]} on" if others else ""
        return self._not_listed(node)

    def limits(self, node: ir.Node) -> str:
        """Returns the listed limits of a supported operator; "" if there are none."""
        facts = self._facts(node)
        listed = str(facts["limits"]) if facts is not None else ""
        if not listed and self.provider and node.op_type in self.provider["limits"]:
            listed = "its provider refuses some nodes of this operator"
        return "; ".join(t for t in (listed, self._not_listed(node)) if t)

    def _not_listed(self, node: ir.Node) -> str:
        """Returns a reason if the list has types for the operator, but not the type of the first input."""
        facts = self._facts(node)
        dtype = next((_type(v) for v in node.inputs if v is not None and v.dtype is not None), None)
        if facts is None or dtype is None or not facts["types"] or dtype in facts["types"]:
            return ""
        return f"its list names no {dtype} for the operator"


def _type(value: ir.Value) -> str:
    assert value.dtype is not None
    return value.dtype.name.lower()


def read(name: str) -> ProviderTable:
    """Reads the table of one of NAMES."""
    return ProviderTable(name, **json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
