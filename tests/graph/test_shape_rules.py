"""Compares every rule with other sources: results recorded in ONNX's node tests, ONNX's inference, and real runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.graph.operators.dims import DIMS
from graphopt.graph.operators.elements import ELEMENTS
from graphopt.graph.reading import load
from graphopt.graph.shapes.sizes import Size
from graphopt.graph.view import GraphView
from graphopt.targets.target import Target
from tests.conformance.test_onnx_node_tests import CASES
from tests.fuzz.generator import generate
from tests.rewriting import Array, run

# Operators with result shapes that depend on data, or without node tests in a form that a rule supports.
WITHOUT_CASES = {"Mish", "Scatter", "SimplifiedLayerNormalization", "GlobalLpPool", "RandomNormal", "RandomUniform"} | {
    "RandomNormalLike", "RandomUniformLike",
}  # fmt: skip


def tensor(given: object) -> Array | None:
    """Returns an input or output of a case as an array; None if it is not a tensor."""
    if isinstance(given, onnx.TensorProto):
        return onnx.numpy_helper.to_array(given)
    return np.asarray(given) if isinstance(given, np.ndarray | np.generic) else None


def without_shapes(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> ir.Model:
    """Returns the model with a unique symbol for each input dimension, and no declarations for other values."""
    work = load(model).model
    for value in work.graph.inputs:
        if value.name in inputs and not value.is_initializer():
            value.shape = ir.Shape([f"{value.name}_{axis}" for axis in range(inputs[value.name or ""].ndim)])
    for node in work.graph:
        for output in node.outputs:
            output.shape = None
    return work


def evaluated(size: Size, known: Mapping[str, int]) -> int | None:
    """Returns the value of a size in a run, if it consists of input dimensions."""
    result = 0
    for symbols, coefficient in size.terms:
        for symbol in symbols:
            if symbol.startswith("floor("):
                inner, _, by = symbol.removeprefix("floor((").removesuffix(")").rpartition(")/")
                numbers = {name.replace(".", "_"): n for name, n in known.items()}
                try:
                    coefficient *= eval(inner, {}, numbers) // int(by)
                except (NameError, SyntaxError):
                    return None
            elif symbol in known:
                coefficient *= known[symbol]
            else:
                return None
        result += coefficient
    return result


def check(view: GraphView, results: Mapping[str, Array], known: Mapping[str, int]) -> tuple[int, int]:
    """Compares claims about values with a run; returns the numbers of claimed dimensions and elements."""
    dims_told = elements_told = 0
    shapes = view.shapes
    for node in view.model.graph:
        for value in node.outputs:
            real = results.get(value.name or "")
            if real is None:
                continue
            where = f"{node.op_type} {value.name}"
            dims = shapes.dims(value)
            if dims is not None:
                assert len(dims) == real.ndim, where
                for size, n in zip(dims, real.shape):
                    number = evaluated(size, known)
                    dims_told += number is not None
                    assert number in (None, n), f"{where}: {size} of {real.shape}"
            last = shapes.last(value)
            if last is not None and real.ndim:
                assert evaluated(last, known) in (None, real.shape[-1]), where
            elements = shapes.elements(value)
            if elements is not None:
                assert elements.items.shape == real.shape, where
                for element, n in zip(elements.items.flat, real.reshape(-1)):
                    number = evaluated(element, known) if isinstance(element, Size) else element
                    elements_told += number is not None
                    if number is not None:
                        assert float(number) == pytest.approx(float(n), rel=1e-5, nan_ok=True), where
    return dims_told, elements_told


@pytest.mark.once
@pytest.mark.parametrize("symbolic", [False, True], ids=["numbers", "symbols"])
def test_node_tests_of_onnx(symbolic: bool) -> None:
    """Integer inputs are constants, as shapes and axes usually are, or inputs."""
    told: dict[str, int] = {}
    silent: dict[str, list[str]] = {}
    for name, case in CASES.items():
        assert case.model is not None and case.data_sets
        model, node = case.model, case.model.graph.node[0]
        if len(model.graph.node) != 1 or node.domain or not (node.op_type in DIMS or node.op_type in ELEMENTS):
            continue
        fed, made = case.data_sets[0]
        inputs, results = (
            {v.name: array for v, x in zip(values, given) if (array := tensor(x)) is not None}
            for values, given in ((model.graph.input, fed), (model.graph.output, made))
        )
        if len(inputs) < len(model.graph.input):
            continue
        work = without_shapes(model, inputs)
        known: dict[str, int] = {}
        for value in work.graph.inputs:
            array = inputs[str(value.name)]
            known.update({f"{value.name}_{axis}": n for axis, n in enumerate(array.shape)})
            if not symbolic:
                value.shape = ir.Shape(array.shape)
        if not symbolic:
            for value in [v for v in work.graph.inputs if inputs[str(v.name)].dtype.kind in "iub"]:
                if inputs[str(value.name)].size <= 64 and not value.is_graph_output():
                    work.graph.inputs.remove(value)
                    value.const_value = ir.tensor(inputs[str(value.name)])
                    work.graph.register_initializer(value)
        view = GraphView(work, Target("cpu"))
        dims, _ = check(view, results, known)
        told[node.op_type] = told.get(node.op_type, 0) + dims
        if not symbolic:
            inferred = onnx.shape_inference.infer_shapes(ir.to_proto(work), data_prop=True)
            for info in inferred.graph.output[:1]:
                shape = [d.dim_value for d in info.type.tensor_type.shape.dim if d.HasField("dim_value")]
                ours = view.shapes.dims(work.graph.outputs[0])
                numbers = [d.value for d in ours or ()]
                known_to_onnx = info.type.tensor_type.HasField("shape") and len(shape) == len(
                    info.type.tensor_type.shape.dim
                )
                if (
                    known_to_onnx
                    and numbers != shape
                    and not any(a.name == "ceil_mode" and a.i for a in node.attribute)
                ):
                    silent.setdefault(node.op_type, []).append(f"{name}: {numbers} for {shape}")
    if symbolic:
        return
    # tests/contrib tests those of com.microsoft.
    assert {op for op in DIMS if not told.get(op) and "." not in op} <= {*WITHOUT_CASES, "Resize", "Size", "Upsample"}
    # Where onnx knows all dimensions of an output, so do we, except for these operators and ceil_mode windows.
    assert silent.keys() <= {"Einsum", "Resize", "Upsample"}, silent


@pytest.mark.parametrize("first", [0, 20, 40])
def test_random_graphs(first: int) -> None:
    """Every value of the graph is an output of the run, at the drawn sizes and with other batches."""
    told = 0
    for seed in range(first, first + 20):
        generated = generate(seed)
        model = generated.model
        every = onnx.ModelProto()
        every.CopyFrom(model)
        del every.graph.output[:]
        names = [o for n in model.graph.node for o in n.output if o]
        every.graph.output.extend(onnx.ValueInfoProto(name=o) for o in names)
        work = without_shapes(model, {})
        view = GraphView(work, Target("cpu"))
        for batch in (None, 1, 4):
            feeds = dict(generated.feeds)
            if batch is not None and model.graph.input[0].type.tensor_type.shape.dim[0].dim_param != "N":
                continue
            if batch is not None:
                feeds = {n: np.resize(a, (batch, *a.shape[1:])) if a.ndim else a for n, a in feeds.items()}
            try:
                results = dict(zip(names, run(every, feeds), strict=True))
            except Exception:  # this runtime cannot run the graph, or not with this batch
                continue
            known = {
                d.dim_param: feeds[v.name].shape[axis]
                for v in model.graph.input
                for axis, d in enumerate(v.type.tensor_type.shape.dim)
                if d.dim_param
            }
            results = {n: a for n, a in results.items() if a.size}
            told += check(view, results, known)[0]
    assert told > 500
