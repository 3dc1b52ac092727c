"""Operators of com.microsoft on the provider: drawn nodes against references and ONNX Runtime's CPU kernels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.contrib import CONTRIB, ContribOp
from graphopt.contrib.schema import DOMAIN
from graphopt.placement import forecast
from models.decoder import decoder
from tests.contrib.case import Case
from tests.contrib.nodes import RUNTIME, disagreement, lowered, model_of, run_node
from tests.contrib.references import draw, reference
from tests.contrib.test_decoder import TOKENS, generate, tokens_of
from tests.hip.harness import ROOT
from tests.provider.test_ops import ALONE
from tests.provider.worker import PROVIDER, Array, new_session, run

TAKEN = [op for op in CONTRIB.values() if op.on_provider]
EVERY = os.environ.get("GRAPHOPT_TEST_EVERY_OPERATOR") == "1"
# The number of drawn nodes of an operator in scripts/sweep.
DRAWS = {"GroupQueryAttention": 300, "MatMulNBits": 200}


def halved(case: Case) -> Case:
    case.inputs = {n: x.astype(np.float16) if x.dtype == np.float32 else x for n, x in case.inputs.items()}
    case.tolerance = 1e-2
    return case


def test_the_provider_column_of_the_table_is_right() -> None:
    """The provider column of docs/contrib.md is right for all operators."""
    found = set()
    for op in CONTRIB.values():
        for seed in range(2):
            said = forecast(model_of(op, draw(op, seed), 17), "graphopt", min_nodes=2).nodes
            asked = [n for n in said if n.provider != "constant"]
            if asked and all("no kernel for this operator" not in n.reason for n in asked):
                found.add(op.name)
    assert found == {op.name for op in TAKEN}
    for op in TAKEN:
        assert (ROOT / "native" / "operators" / op.on_provider / "op.cpp").is_file()


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in TAKEN])
def test_drawn_nodes(op: ContribOp, worker: ProcessPoolExecutor) -> None:
    taken = asked = 0
    for seed in range(DRAWS.get(op.name, 8) if EVERY else 8):
        case = draw(op, seed)
        asked += 1
        if seed % 4 == 3 and not op.quantized:
            case = halved(case)
        model = model_of(op, case, 17)
        feeds = {n: x for n, x in case.inputs.items() if n not in case.constants}
        try:
            outcome = worker.submit(run, model.SerializeToString(), feeds, ALONE).result()
        except Exception:  # ONNX Runtime's exception classes have no public base
            if case.kernel is not None:
                raise
            continue  # our provider does not claim the node, and ONNX Runtime has no kernel for it
        if not outcome.on_device(op.name):
            continue
        taken += 1
        got = dict(zip([o.name for o in model.graph.output], outcome.outputs, strict=True))
        what = (seed, case.attributes, {n: x.shape for n, x in case.inputs.items()})
        case.tolerance = max(case.tolerance, 2e-5)
        assert disagreement(case, reference(op, case), got) == "", what
        truth = run_node(model, feeds) if case.kernel is not None else ""
        if not isinstance(truth, str):
            assert disagreement(case, truth, got) == "", what
    assert taken >= max(asked / 2, 2), f"{taken} of {asked}"


def generate_on_device(model: bytes, steps: int) -> tuple[list[list[int]], Counter[str]]:
    """Returns the generated tokens, and the operators on the provider."""
    session = new_session(model, assignment=True)
    parts = session.get_provider_graph_assignment_info()
    given = Counter(n.op_type for part in parts if part.ep_name == PROVIDER for n in part.get_nodes())
    return tokens_of(session, steps), given


@pytest.mark.parametrize("bits", [2, 4, 8] if EVERY else [4])
def test_decoder_generates_the_same_tokens(bits: int, worker: ProcessPoolExecutor) -> None:
    """Generates with the original and the optimized model, passing on the cache; scripts/sweep generates 64 tokens."""
    steps = TOKENS if EVERY else 6
    model = decoder(bits=bits)
    wanted = generate(model, steps)
    optimized, _ = graphopt.optimize(model, target="cuda")
    for form in (model, optimized):
        kinds = Counter(n.op_type for n in form.graph.node if n.domain == DOMAIN)
        tokens, given = worker.submit(generate_on_device, form.SerializeToString(), steps).result()
        assert {op: given[op] for op in kinds} == kinds
        assert tokens == wanted
    assert set(kinds) == {"GroupQueryAttention", "MatMulNBits"}


def test_past_and_present_in_one_place(worker: ProcessPoolExecutor) -> None:
    """As onnxruntime-genai binds the cache: the returned one overwrites the given one in the same memory."""
    assert worker.submit(_shared_cache).result() == ""


def _shared_cache() -> str:
    import onnxruntime as ort

    op = CONTRIB[DOMAIN, "GroupQueryAttention"]
    rng = np.random.default_rng(3)
    B, S, N, G, H, held = 2, 1, 4, 2, 16, 12
    inputs = {
        "query": rng.normal(size=(B, S, N * H)).astype(np.float32),
        "key": rng.normal(size=(B, S, G * H)).astype(np.float32),
        "value": rng.normal(size=(B, S, G * H)).astype(np.float32),
        "past_key": rng.normal(size=(B, G, held, H)).astype(np.float32),
        "past_value": rng.normal(size=(B, G, held, H)).astype(np.float32),
        "seqlens_k": np.array([7, 4], np.int32),
        "total_sequence_length": np.array(8, np.int32),
    }
    case = Case(inputs, {"num_heads": N, "kv_num_heads": G}, ("output", "present_key", "present_value"))
    session = new_session(model_of(op, case, 17).SerializeToString(), ALONE)
    device = next(d for d in ort.get_ep_devices() if d.ep_name == PROVIDER)
    memory = device.memory_info(ort.OrtDeviceMemoryType.DEFAULT)
    binding = session.io_binding()
    for name, array in inputs.items():
        if name.startswith("past"):
            value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), np.float32, memory_info=memory)
            value.update_inplace(array)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past", "present"), value)
        else:
            binding.bind_cpu_input(name, array)
    binding.bind_output("output")
    session.run_with_iobinding(binding)
    outputs = dict(zip(("present_key", "present_value", "output"), binding.copy_outputs_to_cpu(), strict=True))
    want = dict(reference(op, case))
    for name in ("key", "value"):  # only the new tokens are written
        for b, last in enumerate(inputs["seqlens_k"]):
            want[f"present_{name}"][b, :, last + 1 :] = inputs[f"past_{name}"][b, :, last + 1 :]
    case.tolerance = 1e-5
    return disagreement(case, want, outputs)


@pytest.mark.skipif(RUNTIME < (1, 32), reason="the schema has no quantized caches")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
def test_int8_caches(kind: str, dtype: type, worker: ProcessPoolExecutor) -> None:
    """Prompts, tokens and parts of prompts, with rotary positions, against ONNX Runtime's CPU kernel."""
    op, rng = CONTRIB[DOMAIN, "GroupQueryAttention"], np.random.default_rng(11)
    N, G, H = 4, 2, 32
    for B, S, held, ends in ((2, 4, 0, (4, 3)), (2, 1, 9, (8, 5)), (1, 3, 12, (9,)), (1, 1, 70, (71,))):
        shape = (1, G, 1, H) if kind == "PER_CHANNEL" else (1,)
        inputs: dict[str, Array] = {
            name: rng.normal(size=(B, S, n * H)).astype(dtype) for name, n in (("query", N), ("key", G), ("value", G))
        }
        for name in ("past_key", "past_value"):
            inputs[name] = rng.integers(-128, 128, (B, G, held, H)).astype(np.int8)
        inputs |= {"seqlens_k": np.array(ends, np.int32) - 1, "total_sequence_length": np.array(max(ends), np.int32)}
        inputs |= {name: rng.normal(size=(80, H // 2)).astype(dtype) for name in ("cos_cache", "sin_cache")}
        inputs |= {name: (rng.random(shape) * 0.02 + 0.01).astype(np.float32) for name in ("k_scale", "v_scale")}
        attributes: dict[str, Any] = {"num_heads": N, "kv_num_heads": G, "do_rotary": 1, "kv_cache_bit_width": 8}
        attributes |= {"k_quant_type": kind, "v_quant_type": kind}
        model = cache_model(op, inputs, attributes)
        truth = run_node(model, inputs)
        assert not isinstance(truth, str), truth
        outcome = worker.submit(run, model.SerializeToString(), inputs, ALONE).result()
        assert outcome.on_device(op.name) == 1
        y, *caches = outcome.outputs
        for got, name in zip(caches, ("present_key", "present_value"), strict=True):
            for b, end in enumerate(ends):  # rounding may change a value by one step
                assert np.abs(got[b, :, :end].astype(int) - truth[name][b, :, :end]).max() <= (dtype == np.float16)
        want = truth["output"].astype(np.float64)
        seen = np.ones((B, S, 1), bool)
        if max(ends) == S:  # a prompt with padding
            seen = (np.arange(S) < np.array(ends)[:, None])[..., None]
        error = np.abs((y - want) * seen).max() / np.sqrt(np.mean(np.square(want)))
        assert error <= (2e-5 if dtype == np.float32 else 1e-2)


def cache_model(op: ContribOp, inputs: dict[str, Array], attributes: Mapping[str, Any]) -> onnx.ModelProto:
    """Returns a GroupQueryAttention with a cache of the type of past_key."""
    names = [n.rstrip("?") for n in op.inputs]
    while names[-1] not in inputs:
        names.pop()
    outputs = ["output", "present_key", "present_value"]
    node = helper.make_node(op.name, [n if n in inputs else "" for n in names], outputs, domain=DOMAIN, **attributes)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()
    ]
    cache = helper.np_dtype_to_tensor_dtype(inputs["past_key"].dtype)
    types = (values[0].type.tensor_type.elem_type, cache, cache)
    returned = [helper.make_tensor_value_info(n, t, None) for n, t in zip(outputs, types, strict=True)]
    graph = helper.make_graph([node], "g", values, returned)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.mark.skipif(RUNTIME < (1, 32), reason="the schema has no quantized caches")
def test_float8_caches(worker: ProcessPoolExecutor) -> None:
    """Keys and values are exact in float8. The reference has a cache of floats, as the runtime has no CPU kernel."""
    op, rng = CONTRIB[DOMAIN, "GroupQueryAttention"], np.random.default_rng(12)
    N, G, H, held, scale = 4, 2, 32, 9, np.float32(2**-6)
    rows = {"query": (1, 2, N * H), "key": (1, 2, G * H), "value": (1, 2, G * H)}
    shapes = {**rows, **dict.fromkeys(("past_key", "past_value"), (1, G, held, H))}
    inputs: dict[str, Array] = {n: rng.normal(size=dims).astype(np.float32) for n, dims in shapes.items()}
    for name in list(shapes)[1:]:
        inputs[name] = (inputs[name] / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    inputs |= {"key": inputs["key"] * scale, "value": inputs["value"] * scale}
    inputs |= {"seqlens_k": np.array([7], np.int32), "total_sequence_length": np.array(8, np.int32)}
    attributes: dict[str, Any] = {"num_heads": N, "kv_num_heads": G}
    floats = inputs | {name: inputs[name] * scale for name in ("past_key", "past_value")}
    outputs = ("output", "present_key", "present_value")
    wanted = reference(op, Case(floats, attributes, outputs))
    inputs |= {"k_scale": scale.reshape(1), "v_scale": scale.reshape(1)}
    quantized = attributes | {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    model = cache_model(op, inputs, quantized)
    (node,) = model.graph.node
    before, after = list(node.input[3:5]), list(node.output[1:])
    node.input[3:5] = [f"{name}_codes" for name in before]
    node.output[1:] = [f"{name}_codes" for name in after]
    nodes = [helper.make_node("Cast", [n], [f"{n}_codes"], to=TensorProto.FLOAT8E4M3FN) for n in before]
    nodes += [node, *(helper.make_node("Cast", [f"{n}_codes"], [n], to=TensorProto.FLOAT) for n in after)]
    kept = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.opset_import[0].version, model.ir_version = 19, 9
    outcome = worker.submit(run, model.SerializeToString(), inputs, ALONE).result()
    assert outcome.on_device(op.name) == 1
    y, *caches = outcome.outputs
    assert np.abs(y - wanted["output"]).max() < 1e-5
    for got, name in zip(caches, outputs[1:], strict=True):
        np.testing.assert_array_equal(got[:, :, :8] * scale, wanted[name][:, :, :8])


@pytest.mark.skipif(RUNTIME < (1, 32), reason="the schema has no quantized caches")
@pytest.mark.parametrize(
    ("attributes", "dtype", "reason"),
    [
        ({"kv_cache_bit_width": 4}, np.uint8, "a cache of 4 bits"),
        ({"kv_cache_bit_width": 8}, np.uint8, "a quantized cache that is neither int8 nor float8e4m3fn"),
        ({"v_quant_type": "NONE"}, np.int8, "a cache with only keys or only values quantized"),
    ],
)
def test_other_quantized_caches_are_refused(attributes: dict[str, int | str], dtype: type, reason: str) -> None:
    inputs: dict[str, Array] = {name: np.zeros((1, 1, 32), np.float32) for name in ("query", "key", "value")}
    inputs |= {name: np.zeros((1, 1, 4, 32), dtype) for name in ("past_key", "past_value")}
    inputs |= {"seqlens_k": np.array([3], np.int32), "total_sequence_length": np.array(4, np.int32)}
    inputs |= {name: np.ones(1, np.float32) for name in ("k_scale", "v_scale")}
    kinds: dict[str, int | str] = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    op = CONTRIB[DOMAIN, "GroupQueryAttention"]
    model = cache_model(op, inputs, {"num_heads": 1, "kv_num_heads": 1} | kinds | attributes)
    assert forecast(model, "graphopt", min_nodes=2).nodes[0].reason == reason


def test_bfloat16_caches_are_refused() -> None:
    inputs: dict[str, Array] = {name: np.zeros((1, 1, 32), ml_dtypes.bfloat16) for name in ("query", "key", "value")}
    inputs |= {name: np.zeros((1, 1, 4, 32), ml_dtypes.bfloat16) for name in ("past_key", "past_value")}
    inputs |= {"seqlens_k": np.array([3], np.int32), "total_sequence_length": np.array(4, np.int32)}
    model = cache_model(CONTRIB[DOMAIN, "GroupQueryAttention"], inputs, {"num_heads": 1, "kv_num_heads": 1})
    reason = forecast(model, "graphopt", min_nodes=2).nodes[0].reason
    assert reason.split(";")[0] == "no kernel for bfloat16"  # the reason of the CPU provider follows


@pytest.mark.skipif(RUNTIME < (1, 32), reason="the schema has no windowed caches")
@pytest.mark.parametrize("seed", range(60 if EVERY else 6))
def test_windowed_caches(seed: int, worker: ProcessPoolExecutor) -> None:
    """A prompt, parts of a prompt and tokens, until the window has moved, against ONNX Runtime's CPU kernel."""
    op, rng = CONTRIB[DOMAIN, "GroupQueryAttention"], np.random.default_rng(seed)
    dtype = np.float16 if seed % 3 == 2 else np.float32
    N, G, H, W = 4, 2, 16, int(rng.integers(1, 7))
    C = W + int(rng.integers(0, 4))
    B = 1 + seed % 2
    attributes: dict[str, Any] = {"num_heads": N, "kv_num_heads": G, "local_window_size": W, "sliding_window_cache": 1}
    if seed % 4 == 0:
        attributes["softcap"] = 2.0
    if seed % 5 == 0:
        attributes["smooth_softmax"] = 1
    fixed: dict[str, Array] = {}
    if seed % 6:
        attributes["do_rotary"] = 1
        fixed = {name: rng.normal(size=(40, H // 2)).astype(dtype) for name in ("cos_cache", "sin_cache")}
    if seed % 7 == 1:
        fixed["head_sink"] = rng.normal(size=N).astype(dtype)
    caches = [rng.normal(size=(B, G, C, H)).astype(dtype) for _ in range(2)]
    # The sequences of a batch have different lengths, so they do not begin with a prompt.
    total = 0 if B == 1 else 3
    for S in (*([int(rng.integers(1, 9)), 3, 2] if B == 1 else []), *[1] * 8):
        total += S
        ends = np.array([total, total - 2][:B])
        sizes = {"query": N, "key": G, "value": G}
        inputs: dict[str, Array] = {n: rng.normal(size=(B, S, k * H)).astype(dtype) for n, k in sizes.items()}
        inputs |= dict(zip(("past_key", "past_value"), caches, strict=True)) | fixed
        inputs |= {"seqlens_k": (ends - 1).astype(np.int32), "total_sequence_length": np.array(total, np.int32)}
        if seed % 3 == 1 and "cos_cache" in fixed:
            inputs["position_ids"] = rng.integers(0, 30, (B, 1)) + np.arange(S)
        model = cache_model(op, inputs, attributes)
        truth = run_node(model, inputs)
        assert not isinstance(truth, str), truth
        outcome = worker.submit(run, model.SerializeToString(), inputs, ALONE).result()
        assert outcome.on_device(op.name) == 1
        caches = [truth["present_key"], truth["present_value"]]
        step = C - W + 1
        for b, end in enumerate(ends):
            held = end - step * max(0, -(-(end - C) // step))
            wanted = [truth["output"][b], *(cache[b, :, :held] for cache in caches)]
            got = [outcome.outputs[0][b], *(cache[b, :, :held] for cache in outcome.outputs[1:])]
            for actual, expected in zip(got, wanted, strict=True):
                assert np.abs(actual - expected.astype(np.float64)).max() <= (2e-5 if dtype == np.float32 else 2e-2)


def normed_apart(op: ContribOp, case: Case) -> onnx.ModelProto:
    """Returns a GroupQueryAttention with queries and keys normalized by separate SimplifiedLayerNormalization nodes."""
    weights = {n: case.inputs[n] for n in ("q_norm_weight", "k_norm_weight")}
    inputs = {n: x for n, x in case.inputs.items() if n not in weights}
    attributes = {n: v for n, v in case.attributes.items() if not n.endswith("norm_epsilon")}
    model = model_of(op, replace(case, inputs=inputs, attributes=attributes), 17)
    H = len(weights["q_norm_weight"])
    model.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in weights.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, -1, H]), "heads"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, -1]), "flat"))
    nodes = []
    for name in ("query", "key"):
        epsilon = case.attributes.get(f"{name[0]}_norm_epsilon", 1e-6)
        nodes += [
            helper.make_node("Reshape", [name, "heads"], [f"{name}_heads"]),
            helper.make_node(
                "SimplifiedLayerNormalization",
                [f"{name}_heads", f"{name[0]}_norm_weight"],
                [f"{name}_normed"],
                epsilon=epsilon,
            ),
            helper.make_node("Reshape", [f"{name}_normed", "flat"], [f"{name}_flat"]),
        ]
        model.graph.node[0].input[0 if name == "query" else 1] = f"{name}_flat"
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def test_norms_of_queries_and_keys_are_those_of_nodes_before_it(worker: ProcessPoolExecutor) -> None:
    """ONNX Runtime normalizes heads on GPUs only; the expected values come from its CPU kernels for separate nodes."""
    op = CONTRIB[DOMAIN, "GroupQueryAttention"]
    asked = 0
    for seed in range(40):
        case = draw(op, seed)
        if not {"key", "q_norm_weight"} <= case.inputs.keys():
            continue
        if RUNTIME < (1, 32) and "q_norm_epsilon" in case.attributes:  # before 1.32 the schema has one epsilon for both
            continue
        feeds = {n: x for n, x in case.inputs.items() if n not in case.constants}
        apart = {n: x for n, x in feeds.items() if not n.endswith("norm_weight")}
        truth = run_node(normed_apart(op, case), apart)
        if isinstance(truth, str):  # a combination that the CPU refuses, such as a bias with a cache
            continue
        outcome = worker.submit(run, model_of(op, case, 17).SerializeToString(), feeds, ALONE).result()
        assert outcome.on_device(op.name) == 1
        case.tolerance = 2e-5
        got = dict(zip(case.outputs, outcome.outputs, strict=True))
        assert disagreement(case, truth, got) == "", (seed, case.attributes)
        asked += 1
    assert asked >= 2


@pytest.mark.parametrize("alone", ["q_norm_weight", "k_norm_weight"])
def test_a_single_norm_weight_is_left_to_the_runtime(alone: str) -> None:
    """ONNX Runtime refuses a node with only one of the norms, as its schema says, and there is no definition for it."""
    op = CONTRIB[DOMAIN, "GroupQueryAttention"]
    draws = (draw(op, seed) for seed in range(40))
    case = next(c for c in draws if "q_norm_weight" in c.inputs)
    model = model_of(op, case, 17)
    inputs = model.graph.node[0].input
    inputs[:] = [n if n == alone or not n.endswith("norm_weight") else "" for n in inputs]
    assert forecast(model, "graphopt", min_nodes=2).nodes[0].reason == "normalization of only queries or only keys"
    _, refused = lowered(model)
    assert "requires both q_norm_weight and k_norm_weight" in refused[0]


@pytest.mark.parametrize(
    ("caches", "reason"),
    [
        (["present_key", ""], "only one of present_key and present_value"),
        (["", "present_value"], "only one of present_key and present_value"),
        (["", ""], "present_key and present_value with empty names"),
    ],
)
def test_the_reason_names_the_missing_caches(caches: list[str], reason: str) -> None:
    op, case = _attention_over_a_window(4)
    model = model_of(op, case, 17)
    model.graph.node[0].output[:] = ["output", *caches]
    assert forecast(model, "graphopt", min_nodes=2).nodes[0].reason == reason


@pytest.mark.parametrize("rows", [(1,), (2, 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_nbits_of_no_columns_is_the_bias(rows: tuple[int, ...], bias: bool, worker: ProcessPoolExecutor) -> None:
    N = 5
    inputs: dict[str, Array] = {
        "A": np.ones((*rows, 0), np.float32),
        "B": np.zeros((N, 0, 8), np.uint8),
        "scales": np.zeros((N, 0), np.float32),
    }
    if bias:
        inputs["bias"] = np.arange(N, dtype=np.float32) + 1
    names = ["A", "B", "scales", *(["", "", "bias"] if bias else [])]
    node = helper.make_node("MatMulNBits", names, ["Y"], domain=DOMAIN, K=0, N=N, bits=4, block_size=16)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()
    ]
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    outcome = worker.submit(run, model, inputs, ALONE).result()
    assert outcome.on_device("MatMulNBits") == 1
    np.testing.assert_array_equal(outcome.outputs[0], np.broadcast_to(inputs.get("bias", np.zeros(N)), (*rows, N)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("g_idx", [False, True])
def test_matmul_nbits_of_many_rows(dtype: type, g_idx: bool, worker: ProcessPoolExecutor) -> None:
    """Without a matrix-unit kernel for packed weights, more than 32 rows are multiplied by dequantized weights."""
    op, rng = CONTRIB[DOMAIN, "MatMulNBits"], np.random.default_rng(7)
    K, N, size = 76, 11, 16  # rows of B are not multiples of 16 bytes
    inputs: dict[str, Array] = {
        "A": rng.normal(size=(3, 14, K)).astype(dtype),
        "B": rng.integers(0, 256, (N, 5, 8), np.uint8),
        "scales": (rng.random((N, 5)) + 0.5).astype(dtype),
        "zero_points": rng.integers(0, 256, (N, 3), np.uint8),
        "bias": rng.normal(size=N).astype(dtype),
    }
    if g_idx:
        inputs["g_idx"] = rng.permutation(np.arange(K) // size).astype(np.int32)
    attributes = {"K": K, "N": N, "bits": 4, "block_size": size}
    case = Case(inputs, attributes, ("Y",), frozenset(inputs) - {"A"}, tolerance=2e-5 if dtype == np.float32 else 1e-2)
    outcome = worker.submit(run, model_of(op, case, 17).SerializeToString(), {"A": inputs["A"]}, ALONE).result()
    assert outcome.on_device(op.name) == 1
    assert disagreement(case, reference(op, case), {"Y": outcome.outputs[0]}) == ""


def _attention_over_a_window(window: int) -> tuple[ContribOp, Case]:
    rng = np.random.default_rng(5)
    inputs: dict[str, Array] = {
        name: rng.normal(size=(1, 5, 16)).astype(np.float32) for name in ("query", "key", "value")
    }
    inputs |= {"seqlens_k": np.array([4], np.int32), "total_sequence_length": np.array(5, np.int32)}
    attributes = {"num_heads": 2, "kv_num_heads": 2, "local_window_size": window}
    return CONTRIB[DOMAIN, "GroupQueryAttention"], Case(inputs, attributes, ("output",))


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**40])
def test_a_window_wider_than_any_cache_is_ignored(window: int, worker: ProcessPoolExecutor) -> None:
    op, case = _attention_over_a_window(window)
    outcome = worker.submit(run, model_of(op, case, 17).SerializeToString(), case.inputs, ALONE).result()
    assert outcome.on_device(op.name) == 1
    case.tolerance = 2e-5
    assert disagreement(case, reference(op, case), {"output": outcome.outputs[0]}) == ""


def test_a_window_of_no_tokens_is_left_to_the_runtime(worker: ProcessPoolExecutor) -> None:
    """With a window of 0 a query attends to one key in ONNX Runtime 1.22 and to none in 1.32."""
    op, case = _attention_over_a_window(0)
    assert forecast(model_of(op, case, 17), "graphopt", min_nodes=2).nodes[0].reason == "local_window_size 0"


def test_nodes_that_do_not_fit_are_refused(worker: ProcessPoolExecutor) -> None:
    """The error names the node and the mismatch, and there is no crash."""
    op = CONTRIB[DOMAIN, "MatMulNBits"]
    case = draw(op, 0)
    model = model_of(op, case, 17)
    next(a for a in model.graph.node[0].attribute if a.name == "N").i += 1
    feeds = {n: x for n, x in case.inputs.items() if n not in case.constants}
    with pytest.raises(Exception, match="must have"):
        worker.submit(run, model.SerializeToString(), feeds, ALONE).result()


def test_lengths_in_one_buffer(worker: ProcessPoolExecutor) -> None:
    """A plan for one length of the mask is not used for the first call, or if the cache must grow."""
    rng = np.random.default_rng(5)
    calls = []
    for count, total in ((4, 4), (4, 6), (1, 7), (1, 8), (1, 9), (1, 7), (4, 4)):
        feeds: dict[str, Any] = {
            "input_ids": rng.integers(0, 96, (1, count)),
            "attention_mask": np.ones((1, total), np.int64),
        }
        for i in range(2):
            for n in ("key", "value"):
                feeds[f"past_key_values.{i}.{n}"] = rng.standard_normal((1, 2, 8, 16)).astype(np.float32)
        calls.append(feeds)
    for got, wanted in zip(*worker.submit(_runs_on_device_and_cpu, calls).result(), strict=True):
        for y, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(y, w, atol=2e-5)


def _runs_on_device_and_cpu(calls: list[dict[str, Any]]) -> list[list[list[Any]]]:
    model = decoder().SerializeToString()
    sessions = [new_session(model), new_session(model, devices=0)]
    return [[session.run(None, feeds) for feeds in calls] for session in sessions]
