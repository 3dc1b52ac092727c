"""ONNX's node tests on our provider: claimed nodes must give the outputs that ship with the test.

Each model runs unchanged, with shapes that are only known at run time, and with its integer inputs as constants. Models
usually have constants there, and the provider then claims more nodes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.conformance.test_onnx_node_tests import CASES, NEWEST_IR_VERSION, agrees
from tests.provider.worker import PROVIDER, new_session, start_worker


def with_constant_integers(model: onnx.ModelProto, inputs: Sequence[Any]) -> tuple[onnx.ModelProto, Sequence[Any]]:
    """Returns the model with its integer inputs as initializers, and the remaining inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.input[:]
    left = []
    for value, array in zip(model.graph.input, inputs, strict=True):
        if (
            isinstance(array, np.ndarray)
            and array.dtype.kind in "iub"
            and value.name not in model.graph.node[0].input[:1]
        ):
            copy.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            copy.graph.input.append(value)
            left.append(array)
    return copy, left


def loads(opset: int) -> bool:
    """Whether ONNX Runtime loads models of this opset; it has schemas of newer opsets, but refuses their models."""
    node = helper.make_node("Identity", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=imports, ir_version=8)
    try:
        new_session(model.SerializeToString(), devices=0)
    except Exception:  # ONNX Runtime's exception classes have no public base
        return False
    return True


@functools.cache
def newest_opset() -> int:
    """Returns the newest opset that ONNX Runtime loads."""
    return next(opset for opset in range(onnx.defs.onnx_opset_version(), 0, -1) if loads(opset))


def as_known(model: onnx.ModelProto | None) -> onnx.ModelProto:
    """Returns the model with its opset lowered to the newest that ONNX Runtime loads."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, NEWEST_IR_VERSION)
    for imported in copy.opset_import:
        if imported.domain == "":
            imported.version = min(imported.version, newest_opset())
    return copy


def claimed(session: Any) -> list[str]:
    parts = session.get_provider_graph_assignment_info()
    return [node.op_type for part in parts if part.ep_name == PROVIDER for node in part.get_nodes()]


def run_all() -> tuple[dict[str, set[str]], list[str]]:
    """Returns test -> operators on the provider, for each test that has any, and the failures."""
    ran: dict[str, set[str]] = {}
    failures = []
    for case in CASES.values():
        model = as_known(case.model)
        # Two nodes of a float16 chain may each differ by one unit in the last place, which is 1e-3.
        half = any(o.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for o in model.graph.output)
        rtol = max(case.rtol, 2e-3) if half else case.rtol
        for inputs, outputs in case.data_sets or ():
            if any(x is None for x in inputs):
                continue
            inputs = [np.asarray(x) if isinstance(x, np.generic) else x for x in inputs]
            ways = {"as it is": (model, inputs), "constant integers": with_constant_integers(model, inputs)}
            for way, (proto, given) in ways.items():
                if way != "as it is" and len(given) == len(inputs):
                    continue
                found, failure = run_one(proto, given, list(outputs), rtol, case.atol)
                if found:
                    ran.setdefault(case.name, set()).update(found)
                if failure:
                    failures.append(f"{case.name}, {way}: {failure}")
    return ran, failures


def run_one(
    model: onnx.ModelProto, inputs: Sequence[Any], outputs: list[Any], rtol: float, atol: float
) -> tuple[list[str], str]:
    feeds = {v.name: x for v, x in zip(model.graph.input, inputs, strict=True)}
    try:
        session = new_session(model.SerializeToString(), {"min_nodes": "1"}, assignment=True)
        kinds = claimed(session)
        failure = "" if not kinds or agrees(session.run(None, feeds), outputs, rtol, atol) else "other numbers"
    except Exception as error:
        kinds, failure = [], str(error)
    if not failure:
        return kinds, ""
    try:
        on_cpu = new_session(model.SerializeToString(), devices=0)
        right_on_cpu = agrees(on_cpu.run(None, feeds), outputs, rtol, atol)
    except Exception:  # ONNX Runtime has no kernel, or its Python interface does not support the type
        right_on_cpu = False
    return kinds, failure if right_on_cpu else ""


# The ONNX operators whose node tests run on the provider.
CLAIMED = set(
    """
    Abs Add And ArgMax ArgMin Atan Attention AveragePool BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Cast Ceil Clip Compress Concat ConstantOfShape Conv ConvInteger ConvTranspose Cos CumSum DFT
    DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Elu Equal Erf Exp Expand Flatten Floor GRU
    Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HardSigmoid HardSwish Identity If InstanceNormalization IsInf IsNaN LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization MatMul MatMulInteger Max
    MaxPool Min Mod Mul Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul
    QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare Relu Reshape Resize RotaryEmbedding Round STFT Scan ScatterElements ScatterND Shape
    Sigmoid Sign Sin Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Tan Tanh ThresholdedRelu
    Tile TopK Transpose Trilu Unsqueeze Where Xor
    """.split()
)


def test_claimed_nodes_give_the_shipped_outputs(worker: ProcessPoolExecutor) -> None:
    ran, failures = worker.submit(run_all).result()
    assert not failures, f"{len(failures)}: " + "\n".join(f[:300] for f in failures)
    assert set().union(*ran.values()) >= CLAIMED


def main() -> None:
    """Prints the numbers of docs/measurements/placement.md.

    Usage: python -m tests.provider.test_onnx_node_tests [OPERATOR ...].
    """
    with start_worker() as worker:
        ran, failures = worker.submit(run_all).result()
    asked = set(sys.argv[1:]) or set().union(*ran.values())
    found = [operators & asked for operators in ran.values() if operators & asked]
    print(f"{len(set().union(*found))} operators in {len(found)} of {len(CASES)} tests; {len(failures)} failures")


if __name__ == "__main__":
    main()
