"""What a pass is.

A pass is one file that states its equation and why it is legal, and has these steps:

- `match(node, editor)` looks at the neighbourhood of one anchor node. It returns what it found, or None when the node
  is not a candidate at all (no remark), or raises `Refusal` when it is one that cannot be rewritten.
- `legal(match, editor)` raises `Refusal` unless every condition holds, and returns the plan: all that the rewrite
  needs, which is the match itself where that has it. It changes nothing, the match included.
- `candidate(plan, editor)` describes the site to the profit model, where a rewrite may or may not pay.
- `rewrite(plan, editor)` creates the new nodes with a `Builder` (graph/build.py) and calls `editor.replace`. It cannot
  fail.

State goes from step to step in matches and plans, which are frozen (`tests/passes/test_frozen.py`), never on the pass.
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
    # Operators (domain, op_type) whose nodes are candidates; (domain, ANY) is all of a domain.
    anchors: ClassVar[frozenset[tuple[str, str]]]
    # Takes what others have refused: why they did stays in the report, though the node is gone.
    fallback: ClassVar[bool] = False
    # Its nodes are of float32 and not read by `--precision bf16`, which finds layers as the model has them.
    hides_from_bfloat16: ClassVar[bool] = False
    # Its nodes carry values of which only inference can tell types and shapes.
    makes_unknown: ClassVar[bool] = False

    @classmethod
    def is_anchor(cls, node: ir.Node) -> bool:
        """Whether the node is an anchor."""
        return (node.domain, node.op_type) in cls.anchors or (node.domain != "" and (node.domain, ANY) in cls.anchors)

    @abc.abstractmethod
    def match(self, node: ir.Node, editor: Editor) -> MatchT | None: ...

    @abc.abstractmethod
    def legal(self, match: MatchT, editor: Editor) -> PlanT: ...

    def candidate(self, plan: PlanT, editor: Editor) -> Candidate | None:
        """What the profit model decides about; None where the rewrite pays everywhere."""
        return None

    @abc.abstractmethod
    def rewrite(self, plan: PlanT, editor: Editor) -> str:
        """Returns what was done, in a few words, for the remark."""


class ModelPass(abc.ABC):
    """A rewrite of the whole model that keeps its own remarks (clean-up)."""

    name: ClassVar[str]
    equation: ClassVar[str]
    numerics: ClassVar[Numerics]

    @abc.abstractmethod
    def run(self, editor: Editor) -> list[str]:
        """Returns a line for each thing done; an empty list when nothing changed."""
