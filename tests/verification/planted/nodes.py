"""Faults in nodes: attributes, the wrong operator, operands that are missing or exchanged."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx

from tests.rewriting import Array
from tests.verification.planted.registry import (
    FLOATS,
    DType,
    Edit,
    Facts,
    Patch,
    Sites,
    attribute,
    become,
    kind,
    nodes,
    set_attributes,
    set_constant,
    set_inputs,
    tap,
    times,
    where,
)  # fmt: skip

# The largest epsilon that protects a division or a root.
SMALL = 1.1e-3


@kind("pads off by one")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        pads = attribute(node, "pads")
        if isinstance(pads, list) and len(pads) == 4 and pads[0]:
            yield where(node), set_attributes(node, pads=[pads[0] - 1, pads[1], pads[2] + 1, pads[3]])


@kind("padding of zeros where the edge is repeated")
def _(facts: Facts) -> Sites:
    """Plants the reverse of its name: repeats the edge pixels in place of zero padding."""
    for node in nodes(facts, "Conv"):
        pads = attribute(node, "pads")
        if isinstance(pads, list) and len(pads) == 4 and any(pads):
            full = [0, 0, *pads[:2], 0, 0, *pads[2:]]

            def edit(patch: Patch, node: onnx.NodeProto = node, full: list[int] = full) -> None:
                name = node.input[0]
                wide = f"planted/wide_{node.output[0]}"
                copy = patch.node(node)
                at = list(patch.graph.node).index(copy)
                copy.input[0] = wide
                patch.attribute(node, pads=[0, 0, 0, 0])
                pad = onnx.helper.make_node("Pad", [name, patch.const(full, np.int64)], [wide], mode="edge")
                patch.graph.node.insert(at, pad)

            yield where(node), edit


@kind("pooling counts its padding")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "AveragePool"):
        if any(attribute(node, "pads", [])):
            yield (
                where(node),
                set_attributes(node, count_include_pad=1 - int(bool(attribute(node, "count_include_pad", 0)))),
            )


@kind("average for maximum")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "MaxPool"):
        changed = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        changed.pop("dilations", None)
        changed.pop("storage_order", None)
        yield where(node), become(node, "AveragePool", node.input, **changed)
    for node in nodes(facts, "GlobalAveragePool"):
        yield where(node), become(node, "GlobalMaxPool", node.input)


@kind("global average over the wrong size")
def _(facts: Facts) -> Sites:
    """Divides by the pixel count of another image, as a traced constant would: the result is 1/64 too large."""
    for node in nodes(facts, "GlobalAveragePool"):
        yield where(node), tap(node.output[0], times, 1 + 1 / 64, facts.dtype(node.output[0]))


@kind("softmax over another axis")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Softmax"):
        if (facts.rank(node.input[0]) or 0) >= 2:
            yield where(node), set_attributes(node, axis=-2)


@kind("alpha of LeakyRelu")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        alpha = attribute(node, "alpha")
        if "LeakyRelu" in node.op_type and isinstance(alpha, float):
            yield where(node), set_attributes(node, alpha=alpha * 1.1)
    for node in nodes(facts, "PRelu"):
        if node.input[1] in facts.constants:
            slope = facts.constants[node.input[1]]
            yield where(node), set_constant(node.input[1], slope * 1.1)


@kind("activation missing")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Relu", "Tanh", "Sigmoid", "Erf", "LeakyRelu", "HardSwish", "Softplus"):
        yield where(node), become(node, "Identity", node.input[:1])


@kind("activation of the last channel missing")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Relu", "LeakyRelu"):
        channels = facts.dim(node.output[0], 1) if facts.rank(node.output[0]) == 4 else None
        if isinstance(channels, int) and channels > 1:
            slope = np.full((channels, 1, 1), attribute(node, "alpha", 0.0), facts.dtype(node.output[0]))
            slope[-1] = 1

            def edit(patch: Patch, node: onnx.NodeProto = node, slope: Array = slope) -> None:
                patch.become(node, "PRelu", [node.input[0], patch.const(slope)])

            yield where(node), edit


@kind("bound of a clip dropped")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Clip"):
        if facts.elem_type(node.output[0]) not in FLOATS:
            continue
        for which, other in ((1, 2), (2, 1)):
            if len(node.input) > which and node.input[which] and node.input[other : other + 1]:
                kept = [node.input[0], "", ""]
                kept[other] = node.input[other]
                if any(kept[1:]):
                    while kept[-1] == "":
                        kept.pop()
                    yield f"{where(node)} bound {which}", become(node, "Clip", kept)


@kind("sigmoid by its piecewise linear form")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Sigmoid"):
        yield where(node), become(node, "HardSigmoid", node.input, alpha=1 / 6, beta=0.5)


@kind("GELU by the tanh form")
def _(facts: Facts) -> Sites:
    """Replaces erf(x) by tanh(2 / sqrt(pi) (x + 0.0894 x^3)), which is off by 5e-4."""
    for node in nodes(facts, "Erf"):
        dtype = facts.dtype(node.output[0])

        def edit(patch: Patch, node: onnx.NodeProto = node, dtype: DType = dtype) -> None:
            x = node.input[0]

            def change(_: str) -> str:
                cube = patch.op("Mul", patch.op("Mul", x, x), x)
                inner = patch.op("Add", x, patch.op("Mul", cube, patch.const(0.08943, dtype)))
                return patch.op("Tanh", patch.op("Mul", inner, patch.const(2 / math.sqrt(math.pi), dtype)))

            patch.tap(node.output[0], change)

        yield where(node), edit


@kind("epsilon ten times as large")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        epsilon = attribute(node, "epsilon")
        if isinstance(epsilon, float) and epsilon > 0:
            yield where(node), set_attributes(node, epsilon=epsilon * 10)
    for node, name, small in _guards(facts):
        yield where(node), set_constant(name, small * 10)


@kind("epsilon lost")
def _(facts: Facts) -> Sites:
    for node in facts.nodes:
        epsilon = attribute(node, "epsilon")
        if isinstance(epsilon, float) and epsilon > 0:
            yield where(node), set_attributes(node, epsilon=1e-30)
    for node, name, small in _guards(facts):
        yield where(node), set_constant(name, small * 0)


def _guards(facts: Facts) -> Iterator[tuple[onnx.NodeProto, str, Array]]:
    for node in nodes(facts, "Add"):
        for name in node.input:
            array = facts.constants.get(name)
            if (
                array is not None
                and array.size == 1
                and array.dtype.kind == "f"
                and 0 < float(array.reshape(-1)[0]) < SMALL
            ):
                yield node, name, array


@kind("norm without its mean")
def _(facts: Facts) -> Sites:
    """Replaces LayerNorm by RMSNorm: visible only on rows whose mean is not zero."""
    for node in nodes(facts, "LayerNormalization", "FusedLayerNorm"):
        epsilon = attribute(node, "epsilon", 1e-5)
        dtype = facts.dtype(node.output[0])

        def edit(patch: Patch, node: onnx.NodeProto = node, epsilon: float = epsilon, dtype: DType = dtype) -> None:
            x = node.input[0]

            def change(_: str) -> str:
                square = patch.op("ReduceMean", patch.op("Mul", x, x), axes=[-1])
                root = patch.op("Sqrt", patch.op("Add", square, patch.const(epsilon, dtype)))
                scaled = patch.op("Mul", patch.op("Div", x, root), node.input[1])
                return patch.op("Add", scaled, node.input[2]) if len(node.input) > 2 else scaled

            patch.tap(node.output[0], change)

        if facts.model.opset_import[0].version < 18:
            yield where(node), edit


@kind("variance by the difference of squares")
def _(facts: Facts) -> Sites:
    """Computes the variance as E[x^2] - E[x]^2, which cancels if the mean is much larger than the deviation."""
    for node in nodes(facts, "LayerNormalization", "FusedLayerNorm"):
        epsilon = attribute(node, "epsilon", 1e-5)
        dtype = facts.dtype(node.output[0])

        def edit(patch: Patch, node: onnx.NodeProto = node, epsilon: float = epsilon, dtype: DType = dtype) -> None:
            x = node.input[0]

            def change(_: str) -> str:
                mean = patch.op("ReduceMean", x, axes=[-1])
                square = patch.op("ReduceMean", patch.op("Mul", x, x), axes=[-1])
                variance = patch.op("Sub", square, patch.op("Mul", mean, mean))
                root = patch.op("Sqrt", patch.op("Add", variance, patch.const(epsilon, dtype)))
                scaled = patch.op("Mul", patch.op("Div", patch.op("Sub", x, mean), root), node.input[1])
                return patch.op("Add", scaled, node.input[2]) if len(node.input) > 2 else scaled

            patch.tap(node.output[0], change)

        if facts.model.opset_import[0].version < 18:
            yield where(node), edit


@kind("softmax without its maximum")
def _(facts: Facts) -> Sites:
    """Computes exp(x) / sum exp(x) without subtracting the maximum, which overflows for large scores."""
    for node in nodes(facts, "Softmax"):
        axis = attribute(node, "axis", -1)

        def edit(patch: Patch, node: onnx.NodeProto = node, axis: int = axis) -> None:
            def change(_: str) -> str:
                powers = patch.op("Exp", node.input[0])
                return patch.op("Div", powers, patch.op("ReduceSum", powers, patch.const([axis], np.int64)))

            patch.tap(node.output[0], change)

        yield where(node), edit


def _scores(facts: Facts) -> Iterator[str]:
    """Products of queries and keys: MatMul results that reach a Softmax through elementwise nodes."""
    for node in nodes(facts, "MatMul"):
        if any(i in facts.constants for i in node.input):
            continue
        value = node.output[0]
        for _ in range(6):
            users = facts.users.get(value, [])
            if len(users) != 1 or not users[0].output:
                break
            if users[0].op_type == "Softmax":
                yield node.output[0]
                break
            if users[0].op_type not in ("Add", "Mul", "Div", "Where", "Cast", "Sub", "Reshape"):
                break
            value = users[0].output[0]


def _fused_attentions(facts: Facts) -> list[onnx.NodeProto]:
    return [n for n in facts.nodes if n.op_type.startswith("FusedAttention") and n.attribute]


def _scale_scores(facts: Facts, value: str, factor: float) -> Edit:
    return tap(value, times, factor, facts.dtype(value))


@kind("scale of one attention off by a half")
def _(facts: Facts) -> Sites:
    for value in _scores(facts):
        yield value, _scale_scores(facts, value, 1.5)
    for node in _fused_attentions(facts):
        scale = attribute(node, "scale")
        if isinstance(scale, float):
            yield where(node), set_attributes(node, scale=scale * 1.5)


@kind("scale of all attentions off by a half")
def _(facts: Facts) -> Sites:
    edits = [_scale_scores(facts, v, 1.5) for v in _scores(facts)]
    for node in _fused_attentions(facts):
        scale = attribute(node, "scale")
        if isinstance(scale, float):
            edits.append(set_attributes(node, scale=scale * 1.5))
    if len(edits) > 1:

        def edit(patch: Patch) -> None:
            for one in edits:
                one(patch)

        yield f"{len(edits)} attentions", edit


@kind("scale of an attention lost")
def _(facts: Facts) -> Sites:
    for value in _scores(facts):
        yield value, _scale_scores(facts, value, 4.0)
    for node in _fused_attentions(facts):
        if isinstance(attribute(node, "scale"), float):
            yield where(node), set_attributes(node, scale=1.0)


@kind("nearest pixel rounded the other way")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Resize"):
        if attribute(node, "mode", b"nearest") == b"nearest":
            now = attribute(node, "nearest_mode", b"round_prefer_floor")
            yield where(node), set_attributes(node, nearest_mode="ceil" if now != b"ceil" else "floor")


@kind("pixels half a pixel away")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Resize"):
        now = attribute(node, "coordinate_transformation_mode", b"half_pixel")
        other = "align_corners" if now != b"align_corners" else "half_pixel"
        yield where(node), set_attributes(node, coordinate_transformation_mode=other, mode="linear")


@kind("parts of a concatenation in another order")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Concat"):
        if facts.elem_type(node.output[0]) in FLOATS and len(set(node.input)) > 1:
            yield where(node), set_inputs(node, list(node.input)[::-1])


@kind("parts of a split exchanged")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Split"):
        if len(node.output) > 1:

            def edit(patch: Patch, node: onnx.NodeProto = node) -> None:
                copy = patch.node(node)
                copy.output[:] = [*copy.output[1::-1], *copy.output[2:]]

            yield where(node), edit


@kind("residual dropped")
def _(facts: Facts) -> Sites:
    for node in _sums(facts):
        yield where(node), become(node, "Identity", [node.input[0]])


@kind("branch of a residual dropped")
def _(facts: Facts) -> Sites:
    for node in _sums(facts):
        yield where(node), become(node, "Identity", [node.input[1]])


@kind("difference in place of a sum")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Add"):
        if facts.elem_type(node.output[0]) in FLOATS:
            yield where(node), become(node, "Sub", list(node.input))


@kind("operands exchanged")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Sub", "Div", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
        yield where(node), set_inputs(node, list(node.input)[::-1])


def _sums(facts: Facts) -> Iterator[onnx.NodeProto]:
    for node in nodes(facts, "Add"):
        ranks = {facts.rank(i) for i in node.input}
        floats = facts.elem_type(node.output[0]) in FLOATS
        if floats and len(ranks) == 1 and ranks <= {3, 4} and not any(i in facts.constants for i in node.input):
            yield node


@kind("comparison at the boundary")
def _(facts: Facts) -> Sites:
    others = {"Less": "LessOrEqual", "LessOrEqual": "Less", "Greater": "GreaterOrEqual", "GreaterOrEqual": "Greater"}
    for node in nodes(facts, *others):
        yield where(node), become(node, others[node.op_type], list(node.input))


@kind("choice of Where inverted")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Where"):
        yield where(node), set_inputs(node, [node.input[i] for i in (0, 2, 1)])


@kind("choice of Where dropped")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Where"):
        for which in (1, 2):
            if node.input[which] not in facts.constants and facts.dim(node.input[which], -1) == facts.dim(
                node.output[0], -1
            ):
                yield f"{where(node)} keeps {which}", become(node, "Identity", [node.input[which]])


@kind("factor of a linear layer")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Gemm"):
        if len(node.input) > 2:
            yield where(node), set_attributes(node, beta=0.5 * attribute(node, "beta", 1.0))


@kind("height and width exchanged")
def _(facts: Facts) -> Sites:
    for value in facts.values(4, ops=("Relu", "Conv", "LeakyRelu", "Clip", "Add", "Mul")):
        if facts.dim(value, 2) == facts.dim(value, 3) and facts.dim(value, 2) is not None:
            yield value, tap(value, lambda patch, x: patch.op("Transpose", x, perm=[0, 1, 3, 2]))


@kind("a step of a slice or an index off by one")
def _(facts: Facts) -> Sites:
    for node in nodes(facts, "Gather"):
        index = facts.constants.get(node.input[1])
        if index is not None and index.size == 1 and facts.elem_type(node.output[0]) in FLOATS:
            moved = index + 1 if int(index.reshape(-1)[0]) >= 0 else index - 1

            def edit(patch: Patch, node: onnx.NodeProto = node, moved: Array = moved) -> None:
                patch.node(node).input[1] = patch.const(moved)

            yield where(node), edit
    for node in nodes(facts, "Slice"):
        start = facts.constants.get(node.input[1])
        if start is not None and facts.elem_type(node.output[0]) in FLOATS:
            end = facts.constants.get(node.input[2])
            if end is not None and end.size == 1 and int(end[0]) < 2**31 and int(start[0]) > 0:

                def slice_edit(
                    patch: Patch, node: onnx.NodeProto = node, ends: tuple[int, int] = (int(start[0]), int(end[0]))
                ) -> None:
                    copy = patch.node(node)
                    copy.input[1] = patch.const([ends[0] - 1], np.int64)
                    copy.input[2] = patch.const([ends[1] - 1], np.int64)

                yield where(node), slice_edit
