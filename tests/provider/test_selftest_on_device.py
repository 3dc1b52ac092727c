"""The self-test on our provider: kernels are right, and sessions do not use operators that failed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, RuntimeException
from rich.console import Console

import graphopt
from graphopt.measure import kernel_bench
from graphopt.ops import OPS
from graphopt.ops.case import model_of
from graphopt.ops.cases import cases_of
from graphopt.report.tables import print_kernel_bench, print_selftest
from graphopt.runtime import selftest_record, session_warnings
from graphopt.runtime.discovery import DEVICE_PROVIDER, device_of, library_version
from graphopt.runtime.machine import Device
from graphopt.runtime.selftest import KernelResult, SelfTest, implementations, selftest
from tests.provider.worker import new_session, placement_of

PAIR = ("FusedLayerNorm", "ScaleShiftRelu")


def representatives() -> set[str]:
    """Returns all operator names; of families that are slow on the emulator only the shortest and the longest name.

    With GRAPHOPT_TEST_EVERY_OPERATOR=1, as in scripts/sweep, returns all names.
    """
    if os.environ.get("GRAPHOPT_TEST_EVERY_OPERATOR") == "1":
        return set(OPS)
    slow = ("FusedAttention", "FusedConv", "FusedConvTranspose", "FusedGroupNorm", "WinogradConv")
    chosen = {name for name in OPS if not name.startswith(slow)}
    for family in slow:
        names = sorted((name for name in OPS if name.startswith(family)), key=len)
        chosen |= {names[0], names[-1]}
    return chosen


def _selftest(names: set[str]) -> SelfTest:
    with patch.dict(OPS, {name: OPS[name] for name in OPS if name in names}, clear=True):
        return selftest()


def test_every_kernel_passes_on_the_device(worker: ProcessPoolExecutor) -> None:
    names = representatives()
    tested = worker.submit(_selftest, names).result()
    assert tested.provider == "GraphoptExecutionProvider"
    assert {r.op for r in tested.results} == {name for name in names if OPS[name].gpu_kernel}
    assert [(r.op, r.dtype, r.detail) for r in tested.failed] == []


LINEAR = ("Linear", "LinearAdd")


def _linear() -> str:
    with patch.dict(OPS, {name: OPS[name] for name in LINEAR}, clear=True):
        tested = selftest()
    print_selftest(tested, Console(width=140))
    return json.dumps(tested.to_dict(), allow_nan=False)


def test_each_implementation_is_tested_or_has_a_reason(worker: ProcessPoolExecutor) -> None:
    results = json.loads(worker.submit(_linear).result())["results"]
    assert all(r["passed"] for r in results)
    by = {name: [r for r in results if r["implementation"] == name] for name in {r["implementation"] for r in results}}
    assert len(by) == 4 and all(len(found) == len(LINEAR) * 2 for found in by.values())
    for name, found in by.items():
        for result in found:
            if name in ("", "built-in GEMM"):
                assert result["cases"] > 1 and result["error"] <= result["limit"]
            else:  # a vendor's library
                assert result["cases"] == 0 and result["refused"] == "there is none for host memory"


@dataclass
class Forced:
    """A self-test of one operator, with independent counts.

    Attributes:
        accepted: dtype and implementation -> number of cases that run in a session of their own.
        sessions: sessions that the self-test created.
    """

    results: list[KernelResult]
    implementations: list[str]
    accepted: dict[tuple[str, str], int]
    sessions: int


def _forced(op: str) -> Forced:
    with (
        patch.dict(OPS, {op: OPS[op]}, clear=True),
        patch("graphopt.runtime.selftest.session", wraps=graphopt.session) as created,
    ):
        tested = selftest()
    names = implementations(DEVICE_PROVIDER)[op]
    accepted: Counter[tuple[str, str]] = Counter()
    for number, name in enumerate(names):
        for dtype in ("float32", "float16"):
            for case in cases_of(OPS[op]):
                if not all(x.size for x in case.inputs):
                    continue
                model, feeds = model_of([case.cast(dtype)], 17, bodies=False)
                options = {"implementation": str(number), "min_nodes": "1"}
                with contextlib.suppress(RuntimeException, InvalidArgument):
                    new_session(model.SerializeToString(), options).run(None, dict(feeds))
                    accepted[dtype, name] += 1
    return Forced(tested.results, names, dict(accepted), created.call_count)


def test_an_implementation_is_tried_on_all_inputs_that_it_supports(worker: ProcessPoolExecutor) -> None:
    found = worker.submit(_forced, "FusedConv").result()
    forced = [r for r in found.results if r.implementation]
    assert len(forced) == len(found.implementations) * 2
    assert {(r.dtype, r.implementation): r.cases for r in forced if r.cases} == found.accepted
    counts = {r.cases for r in forced}
    assert len(counts) > 2 and 0 in counts  # some support a part of the inputs
    # One session for the selected implementations, two for each forced one, and the session of mixed nodes.
    assert found.sessions <= (1 + 2 * len(found.implementations) + 1) * 2


def _late() -> tuple[str, str]:
    with patch.dict(OPS, {name: OPS[name] for name in LINEAR}, clear=True):
        tested = selftest(seconds=-1)
    printed = io.StringIO()
    print_selftest(tested, Console(file=printed, width=140))
    return json.dumps(tested.to_dict(), allow_nan=False), printed.getvalue()


def test_after_its_time_the_selftest_forces_no_implementations(worker: ProcessPoolExecutor) -> None:
    report, printed = worker.submit(_late).result()
    told = json.loads(report)
    assert [(r["op"], r["dtype"], r["implementation"]) for r in told["results"]] == [
        (op, dtype, "") for op in LINEAR for dtype in ("float32", "float16")
    ]
    assert len(told["sessions"]) == 2
    skipped = [(s["op"], s["implementation"]) for s in told["skipped"]]
    assert len(skipped) == len(set(skipped)) == 3 * len(LINEAR)
    assert {op for op, _ in skipped} == set(LINEAR) and ("Linear", "built-in GEMM") in skipped
    assert "not tested for lack of time" in printed and "Linear: built-in GEMM (2)" in " ".join(printed.split())


def _pair() -> str:
    with patch.dict(OPS, {name: OPS[name] for name in PAIR}, clear=True):
        tested = selftest()
    print_selftest(tested, Console(width=140))
    return json.dumps(tested.to_dict(), allow_nan=False)


def test_members_of_the_report(worker: ProcessPoolExecutor) -> None:
    told = json.loads(worker.submit(_pair).result())
    assert told["device"] == {"name": "host memory", "arch": "cpu32", "driver": "", "wave": 32}
    assert told["provider"] == DEVICE_PROVIDER and told["library"].startswith(graphopt.__version__)
    assert [(r["op"], r["dtype"]) for r in told["results"]] == [(op, t) for op in PAIR for t in ("float32", "float16")]
    for result in told["results"]:
        assert result["passed"] and 0 < result["error_over_limit"] <= 1


def _bench() -> str:
    few = (
        kernel_bench.matmul(32, 64, 48),
        *(kernel_bench.convolution(1, 32, 8, 32, op=op) for op in ("Conv", "WinogradConv")),
        kernel_bench.attention(1, 2, 16, 32),
        kernel_bench.layer_norm(8, 64),
    )
    with patch.multiple(kernel_bench, SECONDS_PER_SHAPE=0.0, MIN_RUNS=2, WORK=1.0):
        found = kernel_bench.bench_kernels(DEVICE_PROVIDER, shapes=few, soak_seconds=1)
        late = kernel_bench.bench_kernels(DEVICE_PROVIDER, shapes=few[:1], seconds=-1, soak_seconds=0)
    assert late.skipped == ["MatMul 32x64x48 float32", "MatMul 32x64x48 float16"] and not late.failed
    print_kernel_bench(found, Console(width=140))
    assert not found.failed
    return json.dumps(found.to_dict(), allow_nan=False)


def test_times_of_shapes_and_captured_graphs(worker: ProcessPoolExecutor) -> None:
    told = json.loads(worker.submit(_bench).result())
    chosen = [(t["op"], t["dtype"], t["milliseconds"], t["share"]) for t in told["shapes"] if not t["implementation"]]
    ops = ("MatMul", "Conv", "WinogradConv", "FusedAttention", "FusedLayerNorm")
    assert [c[:2] for c in chosen] == [(op, dtype) for op in ops for dtype in ("float32", "float16")]
    assert all(0 < milliseconds < 1e5 and 0 < share < 1 for _, _, milliseconds, share in chosen)
    ours = [t for t in told["shapes"] if t["op"] == "MatMul" and t["implementation"]]
    assert any(t["milliseconds"] is not None for t in ours)
    assert {t["refused"] for t in ours if t["milliseconds"] is None} == {"there is none for host memory"}
    soak = told["soak"]
    assert soak["wrong"] == [] and soak["sessions"] >= 4 and soak["runs"] >= 16 and soak["captured"] > 0


@dataclass
class Sessions:
    """Observations of sessions on a model with both operators of PAIR."""

    warned: list[str]
    device_ops: list[Counter[str]]  # nodes on the device, for each session
    errors: list[float]


def _sessions(providers: list[Any], count: int = 1, **options: Any) -> Sessions:
    cases = [case.cast("float32") for name in PAIR for case in cases_of(OPS[name])[1:3]]
    model, feeds = model_of(cases, 17, bodies=True)
    found = Sessions([], [], [])
    session_warnings._warned_of.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(count):
            with tempfile.TemporaryDirectory() as folder:
                profile: dict[str, Any] = {"enable_profiling": True, "profile_file_prefix": f"{folder}/profile"}
                session = graphopt.session(model.SerializeToString(), providers, **profile, **options)
                outputs = session.run(None, dict(feeds))
                found.device_ops.append(placement_of(session).get(DEVICE_PROVIDER, Counter()))
            found.errors += [case.error([y]) for case, y in zip(cases, outputs, strict=True)]
    found.warned = [str(w.message) for w in caught]
    return found


# No regions, so the profile shows each node.
ALONE = [(DEVICE_PROVIDER, {"min_nodes": 1, "regions": 0})]


def _after_a_failure() -> dict[str, Sessions]:
    """Runs a self-test in which one of three operators has no kernel, then sessions, then a self-test that passes."""
    few = {name: OPS[name] for name in (*PAIR, "FusedRmsNorm")}
    with patch.dict(OPS, few, clear=True), patch.dict(os.environ, {"GRAPHOPT_DISABLE": "FusedLayerNorm"}):
        assert {r.op for r in selftest().failed} == {"FusedLayerNorm"}
    found = {
        "device": _sessions(ALONE, 2),
        "ignored": _sessions(ALONE, ignore_selftest=True),
        "cpu": _sessions(["CPUExecutionProvider"]),
    }
    assert "GRAPHOPT_DISABLE" not in os.environ
    with patch.dict(OPS, few, clear=True):
        selftest()
    found["passed"] = _sessions(ALONE)
    return found


def test_failed_kernels_are_disabled_on_their_device(worker: ProcessPoolExecutor) -> None:
    found = worker.submit(_after_a_failure).result()
    assert max(max(sessions.errors) for sessions in found.values()) < 1e-5
    (said,) = found["device"].warned
    assert "host memory (cpu32) failed the self-test of 1 operator:" in said
    assert "FusedLayerNorm: " in said and "graphopt doctor --selftest" in said
    for ops in found["device"].device_ops:
        assert ops["FusedLayerNorm"] == 0 and ops["ScaleShiftRelu"] == 2
        assert ops["LayerNormalization"] or ops["ReduceMean"] or ops["ReduceSum"]  # the nodes of its definition
    for unaffected in ("ignored", "passed"):
        assert not found[unaffected].warned
        assert found[unaffected].device_ops[0]["FusedLayerNorm"] == 2
    assert not found["cpu"].warned


def _records() -> dict[str, dict[str, str]]:
    device, library = device_of(DEVICE_PROVIDER), library_version()
    other = Device(device.name, device.arch, "another driver", device.wave)
    selftest_record.remember(DEVICE_PROVIDER, device, library, {"ScaleShift": "off by 3"})
    known = {
        "same": selftest_record.failures(DEVICE_PROVIDER, device, library),
        "driver": selftest_record.failures(DEVICE_PROVIDER, other, library),
        "library": selftest_record.failures(DEVICE_PROVIDER, device, library + "x"),
        "provider": selftest_record.failures("ROCMExecutionProvider", device, library),
    }
    folder = os.path.join(os.environ["XDG_CACHE_HOME"], "graphopt")
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "w") as file:
            file.write('{"format": 1, "tested"')
    known["damaged"] = selftest_record.failures(DEVICE_PROVIDER, device, library)
    return known


def test_a_record_is_of_one_device_driver_and_library(worker: ProcessPoolExecutor) -> None:
    known = worker.submit(_records).result()
    assert known.pop("same") == {"ScaleShift": "off by 3"}
    assert not any(known.values())
