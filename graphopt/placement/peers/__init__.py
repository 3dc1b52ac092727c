"""What other providers take, from what their sources list (scripts/peer_operators.py makes the tables)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

FOLDER = Path(__file__).parent
# The peers' names as people write them.
NAMES = ("migraphx", "hip-ep")


@dataclass(frozen=True)
class Peer:
    """One provider's table.

    Attributes:
        name: the word that people write.
        repository, commit, date, list: where and when the list stood.
        any_domain: operators are looked up by their name alone.
        operators: name (of another domain than ONNX's "DOMAIN::NAME") -> whether it is taken, for which types of its
            inputs (none: not listed) and which of its forms ("limits"; "" for all).
        provider: of a compiler that ONNX Runtime's provider hands nodes on to: the names and types that are handed on
            ("operators", "types"), those refused in some forms ("limits"), and where and when its own list stood.
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
        """Why the node is left to others; "" where its operator is listed as taken."""
        facts = self._facts(node)
        if facts is None:
            return "its list does not name the operator"
        if not facts["taken"]:
            return "its list says that the operator is not supported"
        if self.provider and node.op_type not in self.provider["operators"]:
            return f"its provider of {self.provider['date']} does not hand the operator on"
        if self.provider:  # what it hands on of other types, the compiler takes or ends the session
            values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is not None]
            others = [t for t in map(_type, values) if t not in self.provider["types"]]
            return f"its provider of {self.provider['date']} hands on no {others[0]}" if others else ""
        return self._not_listed(node)

    def limits(self, node: ir.Node) -> str:
        """Which forms of an operator are taken alone, as far as that is listed."""
        facts = self._facts(node)
        listed = str(facts["limits"]) if facts is not None else ""
        if not listed and self.provider and node.op_type in self.provider["limits"]:
            listed = "named in its provider"
        return "; ".join(t for t in (listed, self._not_listed(node)) if t)

    def _not_listed(self, node: ir.Node) -> str:
        """That the list has types of the operator, and not that of the first input."""
        facts = self._facts(node)
        dtype = next((_type(v) for v in node.inputs if v is not None and v.dtype is not None), None)
        if facts is None or dtype is None or not facts["types"] or dtype in facts["types"]:
            return ""
        return f"its list names no {dtype} for the operator"


def _type(value: ir.Value) -> str:
    assert value.dtype is not None
    return value.dtype.name.lower()


def read(name: str) -> Peer:
    return Peer(name, **json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
