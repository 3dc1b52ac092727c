"""Creates, runs and destroys many sessions in random order, each case in a separate process (test_sequence.py)."""

from __future__ import annotations

import ctypes
import gc
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

import graphopt
from graphopt.measure.bench import bound_runner
from graphopt.runtime import discovery
from graphopt.runtime.discovery import DEVICE_PROVIDER
from models import ZOO
from tests.provider.driver_cases import Driver, check_thread
from tests.provider.test_sessions import feeds_of
from tests.provider.worker import Array, model_of

MOST_ALIVE = 4
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"memory_limit": 64 << 20}, {"capture": 0})


@dataclass
class Case:
    """Inputs of a model, the CPU's outputs, and the first outputs on the device for each set of options."""

    feeds: dict[str, Array]
    expected: list[Array]
    first: dict[int, list[Array]] = field(default_factory=dict)


@dataclass
class Model:
    name: str
    content: bytes
    cases: list[Case]


@dataclass
class Running:
    """A session; `bound` maps the index of a case to a function that runs it with inputs on the device."""

    model: Model
    options: int
    session: Any
    bound: dict[int, Callable[[], Any]] = field(default_factory=dict)


def optimized(name: str, content: onnx.ModelProto, feeds: Sequence[dict[str, Array]]) -> Model:
    result: Any = graphopt.optimize(content, target="cuda")
    cpu = graphopt.session(content.SerializeToString(), ["CPUExecutionProvider"])
    return Model(name, result[0].SerializeToString(), [Case(f, list(cpu.run(None, f))) for f in feeds])


def rows() -> Model:
    """Returns a model with two inputs of equal size and a dynamic number of rows, so that its memory grows."""
    rng = np.random.default_rng(5)
    w = rng.standard_normal((64, 48)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("MatMul", ["z", "w"], ["q"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("Tanh", ["q"], ["s"]),
        helper.make_node("Softmax", ["r"], ["t"]),
        helper.make_node("Mul", ["s", "t"], ["y"]),
    ]
    feeds = [
        {name: rng.standard_normal((n, 64)).astype(np.float32) for name in ("x", "z")} for n in (8, 256, 64, 1024, 8)
    ]
    proto = onnx.load_from_string(model_of(nodes, feeds[0], ["y"], {"w": w}))
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    return optimized("rows", proto, feeds)


def check(running: Running, case: Case, outputs: list[Array]) -> None:
    """Asserts that outputs are near the CPU's, and bit-identical in all sessions with these options."""
    for got, expected in zip(outputs, case.expected, strict=True):
        if got.dtype.kind == "f":
            error = np.abs(got.astype(np.float64) - expected).max() / max(np.sqrt(np.mean(expected**2)), 1e-6)
            assert error < 1e-3, f"{running.model.name}: an error of {error:.1e} of RMS"
    for got, first in zip(outputs, case.first.setdefault(running.options, outputs), strict=True):
        np.testing.assert_array_equal(got, first, err_msg=running.model.name)


def began(model: Model, options: int) -> Running:
    """Creates a session and runs it until its libraries are loaded, so all later runs use the same implementations."""
    where = [(DEVICE_PROVIDER, OPTIONS[options])]
    session = graphopt.session(model.content, where, require_device=True, log_severity_level=4)
    for case in model.cases:
        for _ in range(2):  # the second run captures, before a larger case needs more memory
            session.run(None, case.feeds)
    ctypes.CDLL(os.environ["STAND_IN_LIBRARY"]).GraphoptFinishLoading()
    return Running(model, options, session)


def run(running: Running, number: int, on_device: bool) -> list[Array]:
    feeds = running.model.cases[number].feeds
    if not on_device:
        return list(running.session.run(None, feeds))
    if number not in running.bound:
        running.bound[number] = bound_runner(running.session, feeds, discovery.memory_of(running.session))
    for _ in range(3):
        binding = running.bound[number]()
    return list(binding.copy_outputs_to_cpu())


def steps(models: Sequence[Model], seed: int, count: int) -> Counter[str]:
    """Takes random steps in one thread. Returns the number of each kind."""
    rng = np.random.default_rng(seed)
    alive: list[Running] = []
    done: Counter[str] = Counter()
    for _ in range(count):
        action = str(rng.choice(["begin", "host", "device", "end"], p=[0.25, 0.3, 0.35, 0.1]))
        if not alive or (action == "begin" and len(alive) < MOST_ALIVE):
            action = "begin"
            # The model with dynamic sizes is chosen more often.
            model = models[0] if rng.integers(3) == 0 else models[int(rng.integers(len(models)))]
            alive.append(began(model, int(rng.integers(len(OPTIONS)))))
        elif action in ("begin", "end"):
            action = "end"
            alive.pop(int(rng.integers(len(alive))))
            gc.collect()
        else:
            running = alive[int(rng.integers(len(alive)))]
            number = int(rng.integers(len(running.model.cases)))
            check(running, running.model.cases[number], run(running, number, action == "device"))
            del running
        done[action] += 1
        check_thread()
    return done


def sessions_in_any_order() -> dict[str, Any]:
    """Returns the steps of each thread, and the bytes and streams that are alive at the end."""
    seed, count, threads = (int(os.environ[f"SEQUENCE_{name}"]) for name in ("SEED", "STEPS", "THREADS"))
    zoo = [(name, ZOO[name](small=True)) for name in ZOO]
    models = [rows(), *(optimized(name, model, [feeds_of(model)]) for name, model in zoo)]
    with ThreadPoolExecutor(threads) as pool:
        done = [*pool.map(lambda thread: steps(models, 100 * seed + thread, count), range(threads))]
    gc.collect()
    return {"done": done, "alive": Driver().alive()[:2]}
