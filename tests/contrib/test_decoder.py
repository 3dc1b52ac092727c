"""A decoder of com.microsoft operators generates the same tokens unchanged, optimized, and in standard ONNX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphopt
from graphopt.lower import lower
from graphopt.runtime.discovery import library_path
from models.decoder import decoder
from tests.contrib.nodes import RUNTIME

TOKENS = 64
PROMPT = [[5, 17, 80, 3], [44, 2, 2, 61]]


def generate(model: onnx.ModelProto, steps: int = TOKENS, held: int = 0) -> list[list[int]]:
    """Returns the tokens of a session on the CPU; `held`: the size of a windowed cache."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(str(library_path()))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return tokens_of(session, steps, held)


def tokens_of(session: Any, steps: int = TOKENS, held: int = 0) -> list[list[int]]:
    """Generates greedily, with the cache passed from step to step."""
    outputs = [o.name for o in session.get_outputs()]
    ids = np.array(PROMPT)
    B = len(ids)
    cache = {i.name: np.zeros((B, 2, held, 16), np.float32) for i in session.get_inputs() if "past" in i.name}
    tokens: list[list[int]] = []
    for step in range(steps):
        mask = np.ones((B, len(PROMPT[0]) + step), np.int64)
        results = session.run(None, {"input_ids": ids, "attention_mask": mask, **cache})
        found = dict(zip(outputs, results, strict=True))
        ids = found["logits"][:, -1:].argmax(-1)
        tokens.append(ids[:, 0].tolist())
        cache = {name: found[name.replace("past_key_values", "present")] for name in cache}
    return tokens


EVERY = os.environ.get("GRAPHOPT_TEST_EVERY_OPERATOR") == "1"
NEW = pytest.mark.skipif(RUNTIME < (1, 31), reason="no kernel")


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=NEW), *([pytest.param(2, marks=NEW)] if EVERY else [])])
def test_same_tokens(bits: int, tmp_path: Path) -> None:
    model = decoder(bits=bits)
    wanted = generate(model)
    assert len({tuple(t) for t in wanted}) > 8  # the tokens do not just repeat
    onnx.save(model, tmp_path / "in.onnx")
    done = lower(tmp_path / "in.onnx", tmp_path / "standard.onnx", to="standard")
    assert done.kept == []
    assert {"GroupQueryAttention", "MatMulNBits", "SkipSimplifiedLayerNormalization"} < set(done.defined)
    assert generate(onnx.load(tmp_path / "standard.onnx")) == wanted
    optimized, report = graphopt.optimize(model, target="cpu")
    assert "FusedRmsNormAddSum" in [n.op_type for n in optimized.graph.node]
    stay = {r.detail for r in report.remarks if r.pass_name == "contrib" and not r.applied}
    assert len(stay) == 2  # each remaining operator has a reason
    assert generate(optimized) == wanted
