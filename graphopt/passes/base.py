"""The interface of passes.

The docstring of a pass's module states the equation and why it is legal. A pass has these steps:

- `match(node, editor)` examines the nodes around an anchor node. It returns a match, or None if the node is not a
  candidate (no remark). It raises `Refusal` for a candidate that cannot be rewritten.
- `legal(match, editor)` raises `Refusal` unless every condition holds. It returns the plan, which has everything that
  the rewrite needs and may be the match itself. It changes neither graph nor match.
- `candidate(plan, editor)` describes the candidate to the cost model, for rewrites that are not always faster.
- `rewrite(plan, editor)` creates the new nodes with a `Builder` (graph/build.py) and calls `editor.replace`. It cannot
  fail.

The steps exchange state only through matches and plans, which are frozen (`tests/passes/test_frozen.py`). A pass object
has no state.
"""

from __future__ import annotations

import abc
from typing import ClassVar, Generic, TypeVar

import onnx_ir as ir

from graphopt.graph.editor import Editor
from graphopt.graph.view import ANY
from graphopt.metadata import Numerics
from graphopt.targets.profit import Candidate

MatchT = TypeVar("MatchT")
PlanT = TypeVar("PlanT")


class Pass(abc.ABC, Generic[MatchT, PlanT]):
    """A local rewrite. See the module's docstring for the steps."""

    name: ClassVar[str]
    equation: ClassVar[str]
    numerics: ClassVar[Numerics]
    # Anchors: `match` is called for nodes of these (domain, op_type); (domain, ANY) means every operator of a domain.
    anchors: ClassVar[frozenset[tuple[str, str]]]
    # Whether the pass rewrites nodes that other passes have refused. Those refusals are still reported.
    fallback: ClassVar[bool] = False
    # Whether the pass emits float32 nodes that the bfloat16 passes cannot match; it then runs after them.
    hides_from_bfloat16: ClassVar[bool] = False
    # Whether the pass emits values of unknown type and shape, which inference must determine.
    emits_unknown_types: ClassVar[bool] = False

    @classmethod
    def is_anchor(cls, node: ir.Node) -> bool:
        """Returns whether the node is an anchor."""
        return (node.domain, node.op_type) in cls.anchors or (node.domain != "" and (node.domain, ANY) in cls.anchors)

    @abc.abstractmethod
    def match(self, node: ir.Node, editor: Editor) -> MatchT | None: ...

    @abc.abstractmethod
    def legal(self, match: MatchT, editor: Editor) -> PlanT: ...

    def candidate(self, plan: PlanT, editor: Editor) -> Candidate | None:
        """Returns the candidate for the cost model; None if the rewrite is always faster."""
        return None

    @abc.abstractmethod
    def rewrite(self, plan: PlanT, editor: Editor) -> str:
        """Rewrites the graph; returns a short description for the remark."""


class ModelPass(abc.ABC):
    """A rewrite of the whole model with its own remarks (clean-up)."""

    name: ClassVar[str]
    equation: ClassVar[str]
    numerics: ClassVar[Numerics]

    @abc.abstractmethod
    def run(self, editor: Editor) -> list[str]:
        """Rewrites the model; returns one line for each kind of change, or an empty list."""
