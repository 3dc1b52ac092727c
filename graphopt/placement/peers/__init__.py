"""What other providers take, from the lists that they publish (scripts/peer_operators.py makes the tables)."""

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
            inputs (none: not listed) and whether limits are listed.
        provider: of a compiler that ONNX Runtime's provider hands nodes on to: the names that the provider hands on
            ("operators"), and where and when its own list stood.
    """

    name: str
    repository: str
    commit: str
    date: str
    list: str
    any_domain: bool
    operators: dict[str, dict[str, Any]]
    provider: dict[str, Any] | None = None

    def refuse(self, node: ir.Node) -> str:
        """Why the node is left to others; "" where its operator is listed as taken."""
        domain = "" if self.any_domain or node.domain in ("", "ai.onnx") else f"{node.domain}::"
        facts = self.operators.get(domain + node.op_type)
        if facts is None:
            return "its list does not name the operator"
        if not facts["taken"]:
            return "its list says that the operator is not supported"
        if self.provider and node.op_type not in self.provider["operators"]:
            return f"its provider of {self.provider['date']} does not hand the operator on"
        dtype = next((v.dtype for v in node.inputs if v is not None and v.dtype is not None), None)
        if facts["types"] and dtype is not None and dtype.name.lower() not in facts["types"]:
            return f"its list names no {dtype.name.lower()} for the operator"
        return ""

    def has_limits(self, node: ir.Node) -> bool:
        facts = self.operators.get(node.op_type)
        return facts is not None and bool(facts["limits"])


def read(name: str) -> Peer:
    return Peer(name, **json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
