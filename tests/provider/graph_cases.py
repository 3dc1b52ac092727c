"""Captured graphs on drivers with faulty replays; each function runs in a separate process (test_graphs.py)."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import graphopt
from graphopt.measure.bench import bound_runner
from graphopt.runtime import discovery
from graphopt.runtime.discovery import DEVICE_PROVIDER
from models.decoder import decoder
from tests.provider.capture_cases import counts
from tests.provider.driver_cases import X, check_thread
from tests.provider.worker import model_of

NODES = 400
CHAIN = ["Tanh" if i % 100 == 0 else "Neg" for i in range(NODES)]


def reference(x: Any) -> Any:
    y = x.astype(np.float64)
    for op in CHAIN:
        y = np.tanh(y) if op == "Tanh" else -y
    return y


def runs() -> dict[str, Any]:
    """Runs a long chain on different inputs, in host memory and bound on the device; returns errors and events."""
    names = ["x", *(f"t{i}" for i in range(1, NODES)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(CHAIN)]
    options = json.loads(os.environ.get("STAND_IN_OPTIONS", "{}"))
    session = graphopt.session(
        model_of(nodes, {"x": X}, ["y"]), [(DEVICE_PROVIDER, options)], require_device=True, log_severity_level=4
    )
    inputs = [X + np.float32(i) for i in range(6)]
    errors = []
    for x in inputs:
        errors.append(np.abs(session.run(None, {"x": x})[0] - reference(x)).max())
        check_thread()
    for x in inputs[:2]:
        run: Any = bound_runner(session, {"x": x}, discovery.memory_of(session))
        errors += [np.abs(run().copy_outputs_to_cpu()[0] - reference(x)).max() for _ in range(3)]
    done = counts()
    return {
        "error": float(max(errors)),
        "most_nodes": int(ctypes.CDLL(os.environ["STAND_IN_DRIVER"]).stand_in_most_nodes()),
        **{key: done[key] for key in ("captured", "replayed", "copied", "refused")},
    }


def appends_in_place() -> dict[str, Any]:
    """Appends tokens to a cache that is bound as past and as present; returns errors and events.

    The other tensors keep their addresses in the first half of the steps, and change them in the second half. The cache
    has NaN after the tokens. A step that copies or fills the cache would overwrite them.
    """
    import onnxruntime as ort

    B, N, G, H, held, steps = 2, 4, 2, 16, 12, 8
    rng = np.random.default_rng(3)
    float_, int32 = TensorProto.FLOAT, TensorProto.INT32
    shapes: dict[str, tuple[int, ...]] = {
        "query": (B, 1, N * H), "key": (B, 1, G * H), "value": (B, 1, G * H),
        "past_key": (B, G, held, H), "past_value": (B, G, held, H), "seqlens_k": (B,),
    }  # fmt: skip
    outputs = {"output": (B, 1, N * H), "present_key": (B, G, held, H), "present_value": (B, G, held, H)}
    nodes = [
        helper.make_node("Neg", ["query"], ["negative"]),
        helper.make_node(
            "GroupQueryAttention",
            ["negative", *list(shapes)[1:], "total"],
            list(outputs),
            domain="com.microsoft",
            num_heads=N,
            kv_num_heads=G,
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, int32 if n == "seqlens_k" else float_, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(n, float_, s) for n, s in outputs.items()],
        [helper.make_tensor("total", int32, [], [held])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    session = graphopt.session(model, [(DEVICE_PROVIDER, {})], require_device=True, log_severity_level=4)
    memory = discovery.memory_of(session)

    lengths = np.array([3, 1])
    cache = {n: np.full(shapes[f"past_{n}"], np.nan, np.float32) for n in ("key", "value")}
    for array in cache.values():
        for b in range(B):
            array[b, :, : lengths[b]] = rng.standard_normal((G, lengths[b], H))
    on_device = {n: ort.OrtValue.ortvalue_from_numpy(array, *memory) for n, array in cache.items()}
    bound: dict[str, Any] = {}
    errors = []
    for step in range(steps):
        feeds = {n: rng.standard_normal(shapes[n]).astype(np.float32) for n in ("query", "key", "value")}
        feeds["seqlens_k"] = lengths.astype(np.int32)
        if step == 0 or step >= steps // 2:
            bound = {n: ort.OrtValue.ortvalue_from_numpy(x, *memory) for n, x in feeds.items()} | {"kept": bound}
            y = ort.OrtValue.ortvalue_from_shape_and_type(outputs["output"], np.float32, *memory)
        binding = session.io_binding()
        for n, x in feeds.items():
            bound[n].update_inplace(x)
            binding.bind_ortvalue_input(n, bound[n])
        for n, value in on_device.items():
            binding.bind_ortvalue_input(f"past_{n}", value)
            binding.bind_ortvalue_output(f"present_{n}", value)
        binding.bind_ortvalue_output("output", y)
        session.run_with_iobinding(binding)
        check_thread()
        wanted = np.zeros((B, N, H))
        for b in range(B):
            for n, array in cache.items():
                array[b, :, lengths[b]] = feeds[n][b, 0].reshape(G, H)
            keys, values = (cache[n][b, :, : lengths[b] + 1].astype(np.float64) for n in ("key", "value"))
            scores = np.einsum("ngh,nth->ngt", -feeds["query"][b].reshape(G, N // G, H).astype(np.float64), keys)
            weights = np.exp(scores / np.sqrt(H))
            weights /= weights.sum(-1, keepdims=True)
            wanted[b] = np.einsum("ngt,nth->ngh", weights, values).reshape(N, H)
        errors.append(float(np.abs(y.numpy() - wanted.reshape(y.shape())).max()))
        lengths += 1
    same = all(np.array_equal(on_device[n].numpy(), array, equal_nan=True) for n, array in cache.items())
    done = counts()
    return {
        "error": max(errors),
        "in_place": same,
        **{key: done[key] for key in ("launched", "captured", "replayed", "copied", "refused")},
    }


def generates_in_place() -> dict[str, Any]:
    """Generates tokens with the cache in one place; returns whether they are the CPU's, and the events.

    With STAND_IN_MASK=fixed the attention mask has the length of the cache, else that of the tokens so far. With
    STAND_IN_MASK=windowed the cache only holds the last tokens.
    """
    import onnxruntime as ort

    from tests.contrib.test_decoder import PROMPT, generate

    kind, held, steps, B = os.environ["STAND_IN_MASK"], 32, 10, len(PROMPT)
    source = decoder()
    if kind == "windowed":
        held = 6
        for node in source.graph.node:
            if node.op_type == "GroupQueryAttention":
                window = {"local_window_size": held - 1, "sliding_window_cache": 1}
                node.attribute.extend(helper.make_attribute(name, value) for name, value in window.items())
    model, _ = graphopt.optimize(source, target="cuda")
    wanted = generate(model, steps, held if kind == "windowed" else 0)
    options = {"min_nodes": "2"}
    session = graphopt.session(
        model.SerializeToString(), [(DEVICE_PROVIDER, options)], require_device=True, log_severity_level=4
    )
    memory = discovery.memory_of(session)
    binding = session.io_binding()
    for value in session.get_inputs()[2:]:
        cache = ort.OrtValue.ortvalue_from_numpy(np.zeros((B, 2, held, 16), np.float32), *memory)
        binding.bind_ortvalue_input(value.name, cache)
        binding.bind_ortvalue_output(value.name.replace("past_key_values", "present"), cache)
    ids, tokens, kept = np.array(PROMPT), [], {}
    for step in range(steps):
        length = len(PROMPT[0]) + step
        mask = np.zeros((B, held if kind == "fixed" else length), np.int64)
        mask[:, :length] = 1
        for name, array in (("input_ids", ids), ("attention_mask", mask)):
            key = (name, array.shape)
            if key not in kept:
                kept[key] = ort.OrtValue.ortvalue_from_numpy(array, *memory)
            kept[key].update_inplace(array)
            binding.bind_ortvalue_input(name, kept[key])
        key = ("logits", ids.shape)
        if key not in kept:
            kept[key] = ort.OrtValue.ortvalue_from_shape_and_type([*ids.shape, 96], np.float32, *memory)
        binding.bind_ortvalue_output("logits", kept[key])
        session.run_with_iobinding(binding)
        check_thread()
        ids = kept[key].numpy()[:, -1:].argmax(-1)
        tokens.append(ids[:, 0].tolist())
    done = counts()
    events = ("compiled", "planned", "launched", "captured", "replayed", "copied", "refused")
    return {"same": tokens == wanted, **{key: done[key] for key in events}}
