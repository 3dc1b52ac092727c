"""Runs many independent nodes in one session, since creating a session takes longer than running a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.hip.case import compare, tolerance_of
from tests.provider.worker import PROVIDER, Array, new_session


@dataclass(frozen=True)
class Alone:
    """One node.

    Attributes:
        op: the operator.
        inputs: name -> value in the operator's order; None for an omitted one.
        expected: the outputs in float64, bool or an integer type; None for an omitted one.
        attributes: the node's attributes.
        constants: names of inputs that are initializers.
        types: ONNX types of the outputs, if they differ from that of the first input.
        tolerance: as a Case's; by default that of the first input's type.
    """

    op: str
    inputs: Mapping[str, Array | None]
    expected: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Sequence[str] = ()
    types: Sequence[int] = ()
    tolerance: float | None = None

    @property
    def dtype(self) -> Any:
        return next(x.dtype for x in self.inputs.values() if x is not None)


def check_together(worker: ProcessPoolExecutor, nodes: Sequence[Alone], opset: int, domain: str = "") -> None:
    """Asserts that every node runs on the device and gives the expected values."""
    made, infos, results, weights, feeds, wanted = [], [], [], [], {}, []
    for i, one in enumerate(nodes):
        for name, x in one.inputs.items():
            if x is None:
                continue
            if name in one.constants:
                weights.append(numpy_helper.from_array(x, f"{name}_{i}"))
            else:
                element = helper.np_dtype_to_tensor_dtype(x.dtype)
                infos.append(helper.make_tensor_value_info(f"{name}_{i}", element, list(x.shape)))
                feeds[f"{name}_{i}"] = x
        inputs = [f"{name}_{i}" if x is not None else "" for name, x in one.inputs.items()]
        outputs = [f"y{j}_{i}" if y is not None else "" for j, y in enumerate(one.expected)]
        made.append(helper.make_node(one.op, inputs, outputs, f"{one.op}_{i}", domain=domain, **one.attributes))
        types = one.types or [helper.np_dtype_to_tensor_dtype(np.dtype(one.dtype))] * len(outputs)
        results += [helper.make_tensor_value_info(n, t, None) for n, t in zip(outputs, types, strict=True) if n]
        wanted += [(i, y) for y in one.expected if y is not None]
    graph = helper.make_graph(made, "g", infos, results, weights)
    imports = [helper.make_opsetid(d, v) for d, v in {"": opset, domain: opset if not domain else 1}.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    outputs_of, placed = worker.submit(_run, model, feeds).result()
    assert placed == Counter(one.op for one in nodes), placed
    for (i, expected), got in zip(wanted, outputs_of, strict=True):
        one = nodes[i]
        where = (
            f"node {i}, {one.op} {dict(one.attributes)} of {[x.shape for x in one.inputs.values() if x is not None]}"
        )
        assert got.shape == expected.shape, f"{where}: {got.shape}, {expected.shape} expected"
        limit = one.tolerance if one.tolerance is not None else tolerance_of(one.dtype)
        message = compare(got, expected.astype(got.dtype), limit)
        assert not message, f"{where}: {message}"


def _run(model: bytes, feeds: Mapping[str, Array]) -> tuple[list[Array], Counter[str]]:
    """Returns the outputs of two equal runs, and the number of provider nodes by kind."""
    session = new_session(model, {"min_nodes": "1"}, assignment=True)
    parts = session.get_provider_graph_assignment_info()
    placed = Counter(n.op_type for part in parts if part.ep_name == PROVIDER for n in part.get_nodes())
    first, second = session.run(None, dict(feeds)), session.run(None, dict(feeds))
    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, y)
    return list(first), placed
