"""Makes files that compute the same as another file up to rounding, as exporters, runtimes and users do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import graphopt
from tests.rewriting import Array
from tests.verification.planted.effect import computes_in_bfloat16, perturbed
from tests.verification.planted.registry import Facts, Hints, Patch, plus, products, tap, times

Change = Callable[[onnx.ModelProto], onnx.ModelProto | None]
CHANGES: dict[str, Change] = {}


def change(name: str) -> Callable[[Change], Change]:
    """Registers a change that only affects rounding; it returns None if it does not apply."""

    def register(function: Change) -> Change:
        CHANGES[name] = function
        return function

    return register


def _optimized(**options: Any) -> Change:
    def run(model: onnx.ModelProto) -> onnx.ModelProto:
        after: onnx.ModelProto = graphopt.optimize(model, **options)[0]
        return after

    return run


def _in_bfloat16(model: onnx.ModelProto) -> onnx.ModelProto | None:
    after: onnx.ModelProto = graphopt.optimize(model, target="cpu", precision="bf16")[0]
    return after if computes_in_bfloat16(after) else None


CHANGES["optimized for the CPU"] = _optimized(target="cpu")
CHANGES["optimized, every legal site"] = _optimized(target="cpu", ignore_cost_model=True)
CHANGES["optimized for the CPU, half precision"] = _optimized(target="cpu", precision="fp16")
CHANGES["optimized for the CPU, bfloat16"] = _in_bfloat16
CHANGES["optimized for ROCm"] = _optimized(target="rocm", ignore_cost_model=True)
CHANGES["optimized for CUDA"] = _optimized(target="cuda", ignore_cost_model=True)
CHANGES["optimized, standard ONNX"] = _optimized(target="portable")


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


@change("values renamed")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Renames the values, as another exporter would; graph inputs and outputs keep their names."""
    if any(a.type == onnx.AttributeProto.GRAPH for n in model.graph.node for a in n.attribute):
        return None
    copy = _copy(model)
    keep = {"", *(v.name for v in (*copy.graph.input, *copy.graph.output))}
    names: dict[str, str] = {}

    def renamed(name: str) -> str:
        return name if name in keep else names.setdefault(name, f"value_{len(names)}")

    for node in copy.graph.node:
        node.input[:] = [renamed(i) for i in node.input]
        node.output[:] = [renamed(o) for o in node.output]
        node.name = f"node_{renamed(node.output[0])}"
    for tensor in copy.graph.initializer:
        tensor.name = renamed(tensor.name)
    del copy.graph.value_info[:]
    return copy


@change("weights off by one unit in the last place")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    return perturbed(model, 0.0, 7)


@change("sums split in halves")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Replaces X W by X1 W1 + X2 W2, which sums the input features in another order."""
    patch = Patch(model)
    facts = Facts(model, Hints())
    done = False
    for p in products(facts):
        k = p.weight.shape[0]
        if p.node.op_type != "MatMul" or k < 2:
            continue
        done = True

        def halves(_: str, node: onnx.NodeProto = p.node, weight: Array = p.weight, k: int = k) -> str:
            axis = patch.const([-1], np.int64)
            parts = []
            for low, high in ((0, k // 2), (k // 2, k)):
                ends = (patch.const([low], np.int64), patch.const([high], np.int64))
                parts.append(
                    patch.op("MatMul", patch.op("Slice", node.input[0], *ends, axis), patch.const(weight[low:high]))
                )
            return patch.op("Add", *parts)

        patch.tap(p.node.output[0], halves)
    return patch.model if done else None


@change("channels of hidden layers in another order")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Permutes the input channels of both operands of a product: the same sum in another order."""
    patch = Patch(model)
    facts = Facts(model, Hints())
    done = False
    for p in products(facts):
        if p.node.op_type != "Conv" or p.weight.ndim != 4 or p.weight.shape[1] < 2:
            continue
        group = next((a.i for a in p.node.attribute if a.name == "group"), 1)
        if group != 1:
            continue
        order = np.random.default_rng(3).permutation(p.weight.shape[1])
        source = f"planted/ordered_{p.node.output[0]}"
        copy = patch.node(p.node)
        at = list(patch.graph.node).index(copy)
        gather = helper.make_node("Gather", [p.node.input[0], patch.const(order.astype(np.int64))], [source], axis=1)
        copy.input[0] = source
        copy.input[1] = patch.const(np.ascontiguousarray(p.weight[:, order]))
        patch.graph.node.insert(at, gather)
        done = True
    return patch.model if done else None


@change("operands of sums and products exchanged")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Exchanges operands, except under a root: ONNX Runtime's fusion misreads an epsilon as first operand."""
    copy = _copy(model)
    rooted = {n.input[0] for n in copy.graph.node if n.op_type == "Sqrt"}
    found = [n for n in copy.graph.node if n.op_type in ("Add", "Mul") and not rooted & set(n.output)]
    for node in found:
        node.input.reverse()
    return copy if found else None


@change("biases as nodes of their own")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    patch = Patch(model)
    facts = Facts(model, Hints())
    done = False
    for p in products(facts):
        if p.node.op_type != "Conv" or p.bias is None:
            continue
        shape = (-1, *(1,) * (p.weight.ndim - 2))
        del patch.node(p.node).input[2:]
        tap(p.node.output[0], plus, facts.constants[p.bias].reshape(shape), p.weight.dtype)(patch)
        done = True
    return patch.model if done else None


@change("initializers as Constant nodes")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    copy = _copy(model)
    inputs = {i.name for i in copy.graph.input}
    moved = [t for t in copy.graph.initializer if t.name not in inputs]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in moved]
    for tensor in moved:
        copy.graph.initializer.remove(tensor)
    for node in reversed(nodes):
        copy.graph.node.insert(0, node)
    return copy if nodes else None


@change("softmax and layer norm spelled out")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    if model.opset_import[0].version >= 18:
        return None
    patch = Patch(model)
    done = False
    for node in model.graph.node:
        attributes = {a.name: a for a in node.attribute}
        if node.op_type == "Softmax" and "axis" in attributes and attributes["axis"].i == -1:

            def softmax(_: str, node: onnx.NodeProto = node) -> str:
                x = node.input[0]
                powers = patch.op("Exp", patch.op("Sub", x, patch.op("ReduceMax", x, axes=[-1])))
                return patch.op("Div", powers, patch.op("ReduceSum", powers, patch.const([-1], np.int64)))

            patch.tap(node.output[0], softmax)
            done = True
        if node.op_type == "LayerNormalization" and len(node.input) == 3:
            epsilon = attributes["epsilon"].f if "epsilon" in attributes else 1e-5

            def norm(_: str, node: onnx.NodeProto = node, epsilon: float = epsilon) -> str:
                x = node.input[0]
                centred = patch.op("Sub", x, patch.op("ReduceMean", x, axes=[-1]))
                square = patch.op("ReduceMean", patch.op("Mul", centred, centred), axes=[-1])
                root = patch.op("Sqrt", patch.op("Add", square, patch.const(epsilon, np.float32)))
                return patch.op("Add", patch.op("Mul", patch.op("Div", centred, root), node.input[1]), node.input[2])

            patch.tap(node.output[0], norm)
            done = True
    return patch.model if done else None


@change("ONNX Runtime's own basic optimizations")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        try:
            ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception:  # onnxruntime 1.30 cannot load some of the files that it wrote
            return None
        return onnx.load(path)


@change("doubled and halved")
def _(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Multiplies a weight by a power of two and its product by the inverse, which is exact."""
    patch = Patch(model)
    facts = Facts(model, Hints())
    done = False
    for p in products(facts):
        if p.node.op_type == "MatMul":
            patch.node(p.node).input[1] = patch.const(p.weight * p.weight.dtype.type(4))
            tap(p.node.output[0], times, 0.25, p.weight.dtype)(patch)
            done = True
    return patch.model if done else None


def pairs(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """(Name of the change, changed file) for every registered change that applies to the model."""
    for name, function in CHANGES.items():
        after = function(model)
        if after is not None:
            yield name, after
