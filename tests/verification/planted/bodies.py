"""Faults in only one of the two implementations of a node: its native kernel, or its function body.

No kernel is changed. A node with a wrong attribute and a body that has the correct value as a constant is wrong only
in the kernel. A correct node with a wrong value in its body is wrong only in the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import helper

from tests.verification.planted.registry import DOMAIN, Edit, Facts, Patch, Sites, kind, set_inputs, where

UNARY = ("Relu", "LeakyRelu", "Clip", "Tanh", "Sigmoid", "HardSigmoid", "HardSwish")


def _ours(facts: Facts) -> Iterator[tuple[onnx.NodeProto, onnx.FunctionProto]]:
    functions = {f.name: f for f in facts.model.functions if f.domain == DOMAIN}
    for node in facts.nodes:
        if node.domain == DOMAIN and node.op_type in functions:
            yield node, functions[node.op_type]


def _function(patch: Patch, name: str) -> onnx.FunctionProto:
    function: onnx.FunctionProto = next(f for f in patch.model.functions if (f.domain, f.name) == (DOMAIN, name))
    return function


def _bake(function: onnx.FunctionProto, attribute: onnx.AttributeProto) -> bool:
    """Replaces references to an attribute in the body by its value; returns whether there were any."""
    found = False
    for node in function.node:
        for a in node.attribute:
            if a.ref_attr_name == attribute.name:
                name = a.name
                a.CopyFrom(attribute)
                a.name = name
                found = True
    return found


def _wrong(attribute: onnx.AttributeProto) -> onnx.AttributeProto | None:
    """Returns the attribute with another value that the kernel accepts, or None."""
    changed = onnx.AttributeProto()
    changed.CopyFrom(attribute)
    if attribute.type == onnx.AttributeProto.FLOAT:
        changed.f = attribute.f * (10 if attribute.name == "epsilon" else 1.5) if attribute.f else 0.5
        return changed
    if attribute.name == "pads" and attribute.ints[0]:
        changed.ints[0] -= 1
        changed.ints[2] += 1
        return changed
    if attribute.name == "num_groups" and attribute.i % 2 == 0:
        changed.i //= 2
        return changed
    return None


def _attribute_faults(facts: Facts, name: str, side: str) -> Sites:
    """Makes one attribute wrong, in the kernel or in the body, if all nodes of the operator have the same value."""
    seen = set()
    for node, function in _ours(facts):
        for a in node.attribute:
            same = [n for n, _ in _ours(facts) if n.op_type == node.op_type]
            values = {b.SerializeToString() for n in same for b in n.attribute if b.name == a.name}
            changed = _wrong(a)
            if a.name != name or changed is None or len(values) > 1 or node.op_type in seen:
                continue
            copy = onnx.FunctionProto()
            copy.CopyFrom(function)
            if not _bake(copy, a):
                continue
            seen.add(node.op_type)

            def edit(
                patch: Patch, same: list[onnx.NodeProto] = same, a: onnx.AttributeProto = a,
                changed: onnx.AttributeProto = changed, first: onnx.NodeProto = node,
            ) -> None:  # fmt: skip
                _bake(_function(patch, first.op_type), a if side == "kernel" else changed)
                if side == "kernel":
                    patch.attribute(first, **{a.name: helper.get_attribute_value(changed)})

            yield f"{node.op_type}.{a.name}", edit


def _register(name: str, side: str) -> None:
    @kind(f"only the {side}: {name}")
    def _(facts: Facts) -> Sites:
        return _attribute_faults(facts, name, side)


for _name in ("scale", "epsilon", "pads"):
    for _side in ("kernel", "body"):
        _register(_name, _side)


def _body_faults(facts: Facts, change: Callable[[onnx.FunctionProto], bool]) -> Sites:
    """Yields a fault in the body of each GraphOpt function."""
    for function in facts.model.functions:
        if function.domain != DOMAIN:
            continue
        copy = onnx.FunctionProto()
        copy.CopyFrom(function)
        if not change(copy):
            continue

        def edit(patch: Patch, name: str = function.name) -> None:
            change(_function(patch, name))

        yield function.name, edit


def _identity(node: onnx.NodeProto, source: str) -> None:
    node.CopyFrom(helper.make_node("Identity", [source], node.output))


@kind("only the body: activation missing")
def _(facts: Facts) -> Sites:
    def change(function: onnx.FunctionProto) -> bool:
        for node in function.node:
            if node.op_type in UNARY:
                _identity(node, node.input[0])
                return True
        return False

    return _body_faults(facts, change)


@kind("only the body: bias dropped")
def _(facts: Facts) -> Sites:
    def change(function: onnx.FunctionProto) -> bool:
        for node in function.node:
            if node.op_type == "Conv" and len(node.input) > 2:
                del node.input[2]
                return True
        for node in function.node:
            if node.op_type == "Add" and node.input[1] in function.input:
                _identity(node, node.input[0])
                return True
        return False

    return _body_faults(facts, change)


@kind("only the body: residual dropped")
def _(facts: Facts) -> Sites:
    def change(function: onnx.FunctionProto) -> bool:
        for node in function.node:
            if node.op_type == "Add" and "Add" in function.name and set(node.input) & {"R"}:
                _identity(node, next(i for i in node.input if i != "R"))
                return True
        return False

    return _body_faults(facts, change)


@kind("only the body: softmax over another axis")
def _(facts: Facts) -> Sites:
    def change(function: onnx.FunctionProto) -> bool:
        for node in function.node:
            if node.op_type == "Softmax":
                kept = [a for a in node.attribute if a.name != "axis"]
                del node.attribute[:]
                node.attribute.extend([*kept, helper.make_attribute("axis", -2)])
                return True
        return False

    return _body_faults(facts, change)


def _renamed(facts: Facts, become: Callable[[str], str | None]) -> Sites:
    """Renames a node to another operator but keeps its body: only the kernel computes something else."""
    present = {f.name for f in facts.model.functions}
    done = set()
    for node, function in _ours(facts):
        name = become(node.op_type)
        if name is None or name in present or node.op_type in done:
            continue
        done.add(node.op_type)

        def edit(
            patch: Patch, node: onnx.NodeProto = node, function: onnx.FunctionProto = function, name: str = name
        ) -> None:
            copy = onnx.FunctionProto()
            copy.CopyFrom(function)
            copy.name = name
            patch.model.functions.append(copy)
            patch.node(node).op_type = name

        yield f"{node.op_type} as {name}", edit


@kind("only the kernel: activation missing")
def _(facts: Facts) -> Sites:
    """For example, WinogradConvRelu becomes WinogradConv."""

    def become(name: str) -> str | None:
        for activation in ("LeakyRelu", "Relu", "Silu", "Clip"):
            if name.endswith(activation) and name.startswith(("WinogradConv", "ScaleShift", "FusedGroupNorm")):
                return name.removesuffix(activation)
        return None

    return _strip(_renamed(facts, become), ("alpha", "min", "max"))


@kind("only the kernel: another activation")
def _(facts: Facts) -> Sites:
    """Replaces Relu by Tanh, or Silu by Mish."""

    def become(name: str) -> str | None:
        if name.startswith(("WinogradConv", "ScaleShift", "FusedGroupNorm")):
            for activation, other in (("Relu", "Tanh"), ("Silu", "Mish")):
                if name.endswith(activation) and not name.endswith("LeakyRelu"):
                    return name.removesuffix(activation) + other
        return None

    return _renamed(facts, become)


@kind("only the kernel: causal where it is not")
def _(facts: Facts) -> Sites:
    def become(name: str) -> str | None:
        if not name.startswith("FusedAttention"):
            return None
        if "Causal" in name:
            return name.replace("Causal", "")
        head = "FusedAttention"
        rest = name.removeprefix(head)
        for part in ("Bias", "Mask"):
            if rest.startswith(part):
                head, rest = head + part, rest.removeprefix(part)
        return f"{head}Causal{rest}"

    return _renamed(facts, become)


def _strip(sites: Sites, names: tuple[str, ...]) -> Sites:
    """Yields the same sites, but removes attributes that the new operator does not have."""
    for site, inner in sites:

        def edit(patch: Patch, inner: Edit = inner) -> None:
            inner(patch)
            last = patch.model.functions[-1]
            gone = {a for a in last.attribute if a in names}
            node = next(n for n in patch.graph.node if n.op_type == last.name)
            values = {a.name: a for a in node.attribute if a.name in gone}
            for a in values.values():
                _bake(last, a)
            kept = [a for a in node.attribute if a.name not in gone]
            del node.attribute[:]
            node.attribute.extend(kept)
            stay = [a for a in last.attribute if a not in gone]
            del last.attribute[:]
            last.attribute.extend(stay)

        yield site, edit


@kind("a projection given to the wrong input of an attention")
def _(facts: Facts) -> Sites:
    """Exchanges queries and keys, which have equal shapes, or the scale and bias of a LayerNormalization."""
    for node in facts.nodes:
        if node.op_type.startswith("FusedAttention"):
            yield where(node), set_inputs(node, [node.input[0], node.input[2], node.input[1], *node.input[3:]])
    for node in facts.nodes:
        if node.op_type == "LayerNormalization" and len(node.input) > 2:
            yield where(node), set_inputs(node, [node.input[i] for i in (0, 2, 1)])
