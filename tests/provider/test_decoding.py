"""Decoders generate the tokens of the CPU: with onnxruntime-genai, and with the loops of examples/decoding."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import onnx
import pytest

from graphopt.runtime.discovery import library_path
from graphopt.runtime.routes import library_report
from models.decoder import decoder
from tests.contrib.test_decoder import PROMPT, generate
from tests.hip.harness import ROOT
from tests.provider.worker import PROVIDER, new_session

STEPS = 12
# As genai's builder writes it, for models.decoder.decoder().
CONFIG: dict[str, Any] = {
    "model": {
        "type": "llama",
        "bos_token_id": 1,
        "eos_token_id": 95,
        "pad_token_id": 0,
        "context_length": 256,
        "vocab_size": 96,
        "decoder": {
            "session_options": {"provider_options": []},
            "filename": "model.onnx",
            "head_size": 16,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "inputs": {
                "input_ids": "input_ids",
                "attention_mask": "attention_mask",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
        },
    },
    "search": {"do_sample": False, "num_beams": 1, "min_length": 64, "max_length": 64},
}


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "decoding" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _generate_in_one_buffer(model: bytes) -> list[list[int]]:
    tokens: list[list[int]] = example("generate").generate(new_session(model), PROMPT, STEPS, 16, 64)
    return tokens


def test_example_with_a_cache_in_one_buffer(worker: ProcessPoolExecutor) -> None:
    model = decoder()
    tokens = worker.submit(_generate_in_one_buffer, model.SerializeToString()).result()
    assert tokens == [list(row) for row in zip(*generate(model, STEPS), strict=True)]


def _whisper(folder: Path) -> list[list[list[int]]]:
    module = example("whisper")
    file, feeds = module.exported(folder)
    sessions = [new_session(file.read_bytes(), devices=count) for count in (0, 1)]
    return [module.generate(session, feeds, STEPS) for session in sessions]


def test_example_with_a_growing_cache(worker: ProcessPoolExecutor, tmp_path: Path) -> None:
    for package in ("torch", "torchvision", "timm", "transformers"):
        pytest.importorskip(package)
    on_cpu, on_device = worker.submit(_whisper, tmp_path).result()
    assert on_device == on_cpu and len({token for row in on_cpu for token in row}) > 2


def _genai(folders: dict[str, str], kernels: str) -> tuple[dict[str, list[int]], int]:
    """Returns the tokens after the first row of the prompt by folder, and the runs of regions."""
    os.environ["GRAPHOPT_HOST_KERNELS"] = kernels
    import onnxruntime_genai as genai

    genai.register_execution_provider_library("graphopt", str(library_path()))
    tokens: dict[str, list[int]] = {}
    for name, folder in folders.items():
        model = genai.Model(folder)
        parameters = genai.GeneratorParams(model)
        generator = genai.Generator(model, parameters)
        generator.append_tokens(PROMPT[0])
        tokens[name] = []
        for _ in range(STEPS):
            generator.generate_next_token()
            tokens[name].append(int(generator.get_next_tokens()[0]))
    return tokens, int(library_report(library_path(), "GraphoptRegions")["launched"])


def test_onnxruntime_genai(kernels: str, tmp_path: Path) -> None:
    """Uses a separate process, because genai loads the provider with another copy of the runtime."""
    pytest.importorskip("onnxruntime_genai")
    folders = {}
    for shared in (False, True):
        for name, providers in (("cpu", []), ("device", [{PROVIDER: {"min_nodes": "2"}}])):
            folder = tmp_path / f"{name}-{shared}"
            folder.mkdir()
            onnx.save(decoder(), folder / "model.onnx")
            config = copy.deepcopy(CONFIG)
            config["model"]["decoder"]["session_options"]["provider_options"] = providers
            config["search"]["past_present_share_buffer"] = shared
            (folder / "genai_config.json").write_text(json.dumps(config))
            folders[folder.name] = str(folder)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        tokens, launched = process.submit(_genai, folders, kernels).result()
    assert launched >= 2 * STEPS
    wanted = [row[0] for row in generate(decoder(), STEPS)]
    assert tokens == dict.fromkeys(folders, wanted)
