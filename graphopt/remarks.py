"""What was done and what was not, site by site.

Nothing is silent: each candidate site that a pass looks at ends as APPLIED, or refused with one of the stable codes
below. The codes are part of the public interface (docs/refusals); a released code keeps its meaning.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


class Code(enum.Enum):
    """Why a rewrite was refused. The value is `(meaning, what to do about it)`."""

    NOT_CONSTANT = (
        "a value that the rewrite needs is not a constant",
        "store it as an initializer that is not also a graph input",
    )
    OVERRIDABLE = (
        "the value is an initializer that callers may override, since it is also a graph input",
        "use --freeze-initializers, if nobody overrides it",
    )
    OTHER_USES = (
        "an intermediate value is read elsewhere, so the nodes that make it must stay",
        "nothing, unless the other reader can go",
    )
    GRAPH_OUTPUT = ("an intermediate value is a graph output", "drop it from the outputs if nobody reads it")
    TRAINING_MODE = ("the node is in training mode", "export the model with eval() / TrainingMode.EVAL")
    UNKNOWN_RANK = ("the rank of a value is not known", "give input shapes with --input-shape")
    UNKNOWN_SHAPE = ("a dimension that decides is not known", "give input shapes with --input-shape")
    WRONG_RANK = ("the rank is not one that the rewrite supports", "nothing")
    WRONG_SHAPE = ("shapes do not have the relation that the rewrite needs", "nothing")
    WRONG_AXIS = ("the operation works along another axis", "nothing")
    WRONG_PERM = ("a Transpose does not have the permutation that the rewrite needs", "nothing")
    WRONG_DTYPE = ("the element type is not supported", "convert the model, for instance with --precision fp16")
    MIXED_DTYPE = ("the operands have different element types", "nothing")
    NOT_FINITE = ("a folded value would overflow, or is not finite", "check the weights")
    ATTRIBUTE = ("an attribute has a value that the rewrite does not support", "nothing")
    PADDED = ("padding happens between the two operations, so they cannot be exchanged", "nothing")
    QUANTIZED = ("a weight is quantized", "nothing: quantized nodes are left as they are")
    OPSET = (
        "the version of the operator is unknown to graphopt, or the model's opset cannot express the new operator",
        "convert the model to a current opset",
    )
    FLATTENED_SOFTMAX = (
        "Softmax below opset 13 flattens its input to 2-D, here over more than the last axis",
        "convert the model to opset 13 or later",
    )
    PER_CHANNEL_SCALE = ("the scale is not one number", "nothing")
    ESCAPES = ("more than one value leaves the matched subgraph", "nothing")
    BROADCAST_GROWS = ("broadcasting would make the result larger than the node that it replaces", "nothing")
    NON_DETERMINISTIC = ("a random operation stands in between", "export the model with eval()")
    UNSUPPORTED_OP = ("an operation in between is not one that the rewrite understands", "nothing")
    MASK_ORDER = (
        "a bias is added to scores that a mask has set to a number which the bias moves, so their order decides",
        "export with a mask of -inf or the lowest number, or add the bias before the mask",
    )
    MASK_VALUES = (
        "whether a mask that the scores are multiplied by holds 0 and 1 alone is not known",
        "make the mask from booleans: a Cast from bool, a comparison",
    )
    NO_GAIN = (
        "the rewrite is legal here but does not pay on this target",
        "use --all-sites to apply it anyway, or --tune to measure",
    )
    TARGET = ("the target does not accept the node that the rewrite would emit", "choose another --target")
    STATISTICS = ("statistics stay in float32", "nothing")
    OVERFLOW = ("a constant has numbers that float16 cannot hold", "scale the weights, or leave them in float32")
    UNDERFLOW = ("a constant would lose more bits in float16 than rounding costs", "scale the weights")
    RANGE = (
        "activations come within a factor of 4 of float16's largest number, 65504, on the inputs tried",
        "give typical inputs with --inputs if those made up are larger than real ones",
    )
    KEPT = ("the node is to stay in float32", "leave it out of --keep-float")
    NO_FLOAT16 = ("the operator does not take float16, by its definition or on this target", "nothing")
    FUNCTION_ATTRIBUTE = ("an attribute refers to a parameter of the function around it", "inline the function")

    @property
    def meaning(self) -> str:
        return self.value[0]

    @property
    def advice(self) -> str:
        return self.value[1]

    @property
    def page(self) -> str:
        """Where the documentation explains it, from the root of the repository."""
        return f"docs/refusals/{self.name}.md"


class Refusal(Exception):
    """Raised by a pass's `match` or `legal` to refuse a candidate site.

    Args:
        code: why.
        detail: the value or shape that decided, in a few words.
        nodes: the nodes that decided; the anchor of the site is always added.
    """

    def __init__(self, code: Code, detail: str, *nodes: ir.Node | None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.nodes = tuple([n for n in nodes if n is not None])


@dataclass(frozen=True)
class Remark:
    """One site. `code` is "APPLIED" or the name of a `Code`."""

    pass_name: str
    code: str
    nodes: tuple[str, ...]
    detail: str

    @property
    def applied(self) -> bool:
        return self.code == "APPLIED"

    def to_dict(self) -> dict[str, object]:
        """For JSON; a refusal says what it means and what to do."""
        entry: dict[str, object] = {
            "pass": self.pass_name,
            "code": self.code,
            "nodes": list(self.nodes),
            "detail": self.detail,
        }
        if self.applied:
            return entry
        code = Code[self.code]
        return {**entry, "meaning": code.meaning, "advice": code.advice, "page": code.page}


@dataclass(frozen=True)
class InitializerRange:
    """What float16 does to one initializer.

    Attributes:
        name: of the initializer.
        size: how many numbers it has.
        overflow: how many finite numbers are beyond 65504.
        subnormal: how many keep fewer than 11 bits.
        zero: how many become zero.
        error: norm of the rounding errors relative to that of the initializer; inf when a number overflows.
        converted: whether it is float16 now.
    """

    name: str
    size: int
    overflow: int
    subnormal: int
    zero: int
    error: float
    converted: bool = False

    @property
    def fits(self) -> bool:
        """Whether it loses no more than half precision loses in its normal range, 2^-11 a number."""
        return self.error <= 2.0**-10

    @property
    def share(self) -> float:
        """The share of the numbers that overflow, or lose bits by underflow."""
        return (self.overflow + self.subnormal + self.zero) / max(self.size, 1)

    def to_dict(self) -> dict[str, str | int | float | bool]:
        """For JSON, which has no infinity."""
        return {**vars(self), "error": min(self.error, 1.0), "share": self.share}


def became(nodes: int, what: str) -> str:
    """What a rewrite did, for its remark: 1 node became, 2 nodes became."""
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} became {what}"


def node_label(node: ir.Node) -> str:
    """A name for people: the node's own, or its operator and first output where it has none."""
    if node.name:
        return node.name
    output = next((o.name for o in node.outputs if o.name), "?")
    return f"{node.op_type}->{output}"


def refused(pass_name: str, anchor: ir.Node, refusal: Refusal) -> Remark:
    labels = [node_label(anchor), *[node_label(n) for n in refusal.nodes if n is not anchor]]
    return Remark(pass_name, refusal.code.name, tuple(labels), refusal.detail)
