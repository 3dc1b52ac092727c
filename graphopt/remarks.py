"""Remarks: applied and refused rewrites.

Each candidate of a pass ends as APPLIED, or is refused with one of the stable codes below. The codes are part of the
public interface (docs/refusals); a released code keeps its meaning.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


class Code(enum.Enum):
    """Why a rewrite was refused. The value is `(meaning, remedy)`."""

    NOT_CONSTANT = (
        "a value that the rewrite needs is not a constant",
        "store it as an initializer that is not also a graph input",
    )
    OVERRIDABLE = (
        "the initializer is also a graph input, so callers may override it",
        "use --freeze-initializers if no caller overrides it",
    )
    OTHER_USES = (
        "another node reads an intermediate value of the pattern",
        "nothing, unless you can remove the other reader",
    )
    GRAPH_OUTPUT = (
        "an intermediate value of the pattern is a graph output",
        "remove it from the graph outputs if no caller needs it",
    )
    TRAINING_MODE = ("the node is in training mode", "export the model with eval() / TrainingMode.EVAL")
    UNKNOWN_RANK = ("the rank of a value is not known", "give input shapes with --input-shape")
    UNKNOWN_SHAPE = ("a dimension that the rewrite depends on is not known", "give input shapes with --input-shape")
    WRONG_RANK = ("the rewrite does not support this rank", "nothing")
    WRONG_SHAPE = ("the shapes do not fit the rewrite", "nothing")
    WRONG_AXIS = ("the operation uses an axis that the rewrite does not support", "nothing")
    WRONG_PERM = ("the rewrite does not support this permutation of axes", "nothing")
    WRONG_DTYPE = ("the element type is not supported", "convert the model, for instance with --precision fp16")
    MIXED_DTYPE = ("the operands have different element types", "nothing")
    NOT_FINITE = ("a folded value would be infinite or NaN", "check the weights")
    ATTRIBUTE = ("the rewrite does not support the value of an attribute", "nothing")
    PADDED = ("padding prevents the rewrite", "nothing")
    QUANTIZED = ("a weight is quantized", "nothing: quantized nodes are not rewritten")
    OPSET = (
        "graphopt does not know the operator's version, or the model's opset cannot express the new operator",
        "convert the model to a current opset",
    )
    FLATTENED_SOFTMAX = (
        "Softmax below opset 13 flattens its input to 2-D, and here normalizes over more than the last axis",
        "export with opset 13 or later, if only the last axis is meant",
    )
    PER_CHANNEL_SCALE = ("the scale is not a scalar", "nothing")
    ESCAPES = ("other nodes need more than one value of the pattern", "nothing")
    BROADCAST_GROWS = ("broadcasting would make the result larger than the original", "nothing")
    NON_DETERMINISTIC = ("the pattern contains a random operation", "export the model with eval()")
    UNSUPPORTED_OP = ("the pattern contains an operation that the rewrite does not support", "nothing")
    MASK_ORDER = (
        "a bias is added after a mask with a finite value, so their order matters",
        "export with a mask of -inf or the lowest number, or add the bias before the mask",
    )
    MASK_VALUES = (
        "the mask that the scores are multiplied by may have elements other than 0 and 1",
        "make the mask from booleans: a Cast from bool, a comparison",
    )
    NO_GAIN = (
        "the rewrite is legal but would not be faster on this target",
        "use --ignore-cost-model to apply it anyway, or --tune to measure",
    )
    TARGET = ("the target does not accept the new node", "choose another --target")
    STATISTICS = ("sums over many elements are computed in float32", "nothing")
    OVERFLOW = ("a constant has elements beyond the range of float16", "scale the weights, or keep them in float32")
    UNDERFLOW = ("a constant has elements that are too small for float16", "scale the weights")
    RANGE = (
        "activations come within a factor of 4 of float16's largest number, 65504, on the inputs tried",
        "nothing",
    )
    KEPT = ("the caller keeps the node in float32", "remove it from --keep-float")
    NO_FLOAT16 = ("the operator does not support float16, by its definition or on this target", "nothing")
    FUNCTION_ATTRIBUTE = ("an attribute refers to a parameter of the enclosing function", "inline the function")

    @property
    def meaning(self) -> str:
        return self.value[0]

    @property
    def advice(self) -> str:
        return self.value[1]

    @property
    def page(self) -> str:
        """Path of the code's page, relative to the root of the repository."""
        return f"docs/refusals/{self.name}.md"


class Refusal(Exception):
    """Raised by a pass's `match` or `legal` to refuse a candidate.

    Args:
        code: the reason.
        detail: the value or shape that caused it, in a few words.
        nodes: the nodes that caused it; the candidate's anchor is always added.
    """

    def __init__(self, code: Code, detail: str, *nodes: ir.Node | None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.nodes = tuple([n for n in nodes if n is not None])


@dataclass(frozen=True)
class Remark:
    """One candidate. `code` is "APPLIED" or the name of a `Code`."""

    pass_name: str
    code: str
    nodes: tuple[str, ...]
    detail: str

    @property
    def applied(self) -> bool:
        return self.code == "APPLIED"

    def to_dict(self) -> dict[str, object]:
        """Returns the remark for JSON; a refusal also has its meaning, advice and page."""
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
    """Effect of float16 on one initializer.

    Attributes:
        name: name of the initializer.
        size: number of elements.
        overflow: number of finite elements beyond 65504.
        subnormal: number of elements that keep fewer than 11 significant bits.
        zero: number of elements that become zero.
        error: norm of the rounding errors divided by the norm of the initializer; inf if an element overflows.
        converted: whether the initializer was converted to float16.
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
        """Whether the error is at most twice the unit roundoff of float16, 2^-11."""
        return self.error <= 2.0**-10

    @property
    def share(self) -> float:
        """Share of the elements that overflow, or lose bits by underflow."""
        return (self.overflow + self.subnormal + self.zero) / max(self.size, 1)

    def to_dict(self) -> dict[str, str | int | float | bool]:
        """Returns the fields for JSON, which has no infinity: an infinite error becomes 1."""
        return {**vars(self), "error": min(self.error, 1.0), "share": self.share}


def became(nodes: int, what: str) -> str:
    """Returns the text of a remark: "1 node became X", "2 nodes became X"."""
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} became {what}"


def node_label(node: ir.Node) -> str:
    """Returns the node's name, or its operator and first output if it has no name."""
    if node.name:
        return node.name
    output = next((o.name for o in node.outputs if o.name), "?")
    return f"{node.op_type}->{output}"


def refused(pass_name: str, anchor: ir.Node, refusal: Refusal) -> Remark:
    labels = [node_label(anchor), *[node_label(n) for n in refusal.nodes if n is not anchor]]
    return Remark(pass_name, refusal.code.name, tuple(labels), refusal.detail)
