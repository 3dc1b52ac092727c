"""`bench`: its statistics, its refusals, and one real run of each kind."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

import graphopt
from graphopt.errors import GraphoptError, OptionError
from graphopt.measure.bench import (
    BenchReport,
    BenchRow,
    Setting,
    Timing,
    bench,
    bound_runner,
    interleave,
    knee,
    ratio,
    verdict,
)
from graphopt.measure.measured_session import open_session
from graphopt.measure.memory import PeakMemory
from graphopt.measure.profiling import WARM_UP_RUNS, NodeTime, node_times, placement, placement_line
from graphopt.precision.limit_error import limit_error
from graphopt.report.tables import print_bench
from graphopt.runtime.machine import device_memory_used
from models import ZOO
from tests.rewriting import model_from_text

RELU = "g (float[N, 64] x) => (float[N, 64] y) { y = Relu(x) }"


def matmuls(count: int, width: int = 64) -> onnx.ModelProto:
    steps = [f"v{i + 1} = MatMul(v{i}, w)" for i in range(count)]
    text = f"g (float[N, {width}] v0) => (float[N, {width}] y) {{ {' '.join(steps)} y = Relu(v{count}) }}"
    return model_from_text(text, {"w": np.eye(width, dtype=np.float32)})


@pytest.mark.once
def test_sequences_and_strings_as_inputs() -> None:
    """A sequence, and strings, as a folder of inputs may contain; memory is measured in a separate process."""
    text = "g (seq(float[N, 4]) s, string[N] t) => (float[M, 4] y, bool[N] z) { y = SequenceAt(s, at) z = Equal(t, t) }"
    model = model_from_text(text, {"at": np.array(1)}, opset=19)
    feeds = {"s": [np.ones((n, 4), np.float32) for n in (2, 3)], "t": np.array(["a", "b", "c"], object)}
    report = bench(model, inputs=feeds, seconds=0.01, profile=False)
    (row,) = report.rows
    assert row.before.memory is not None
    assert row.before.throughput == pytest.approx(3 / row.before.median_ms * 1e3)


# -- statistics ------------------------------------------------------------------------------------------------------


def test_interval_of_the_ratio_holds_the_truth_19_times_in_20() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        drift = np.exp(rng.normal(0, 0.3, 21))  # drift of the machine, which affects both sides of a round equally
        before = drift * np.exp(rng.normal(np.log(1.5), 0.1, 21))
        after = drift * np.exp(rng.normal(0, 0.1, 21))
        speedup, low, high = ratio(before.tolist(), after.tolist())
        assert low <= speedup <= high
        held += low <= 1.5 <= high
    assert held / 400 >= 0.94


def test_more_rounds_narrow_the_interval() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for n in (9, 41, 401):
        _, low, high = ratio(rng.normal(1, 0.1, n).tolist(), rng.normal(1, 0.1, n).tolist())
        widths.append(high - low)
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1.2, 0.95, 1.4), "within noise"),  # the interval contains 1
        ((1.01, 1.005, 1.015), "within noise"),  # certain, but too small to be relevant
        ((1.2, 1.1, 1.3), "faster"),
        ((0.8, 0.7, 0.9), "slower"),
    ],
)
def test_verdict(numbers: tuple[float, float, float], said: str) -> None:
    assert verdict(*numbers) == said


def test_knee() -> None:
    assert knee([(1, 100.0), (8, 480.0), (16, 490.0), (64, 500.0)]) == 8
    assert knee([(64, 500.0), (1, 499.0)]) == 1
    assert knee([]) is None


def test_interleaving_reverses_the_order_every_round() -> None:
    order: list[str] = []
    times = interleave([lambda: order.append("a"), lambda: order.append("b")], seconds=0.0)
    assert len(times[0]) == len(times[1]) >= 9
    rounds = ["".join(order[i : i + 2]) for i in range(0, len(order), 2)]
    assert rounds[-4:] in (["ab", "ba", "ab", "ba"], ["ba", "ab", "ba", "ab"])


def test_profile_is_the_median_without_the_warm_up() -> None:
    events: list[dict[str, Any]] = []
    for run, duration in enumerate([900] * WARM_UP_RUNS + [10, 70, 20]):
        start = 1000 * run
        arguments = {"op_name": "Relu", "provider": "P", "output_size": "8"}
        events.append({"cat": "Session", "name": "model_run", "ts": start, "dur": 950, "args": {}})
        events.append({"cat": "Node", "name": "r_kernel_time", "ts": start + 5, "dur": duration, "args": arguments})
    assert node_times(events) == [NodeTime("r", "Relu", "P", 20.0, 8)]


def test_profile_of_a_gpu_counts_kernels_not_launches() -> None:
    events: list[dict[str, Any]] = []
    for run in range(WARM_UP_RUNS + 3):
        start = 1000 * run
        for name, provider in (("conv", "ROCMExecutionProvider"), ("shape", "CPUExecutionProvider")):
            arguments = {"op_name": "X", "provider": provider, "output_size": "0"}
            events.append({"cat": "Node", "name": f"{name}_kernel_time", "ts": start + 5, "dur": 3, "args": arguments})
        for duration in (40, 50):
            arguments = {"op_name": "X", "parent_name": "conv_kernel_time"}
            events.append({"cat": "Kernel", "name": "k", "ts": start + 10, "dur": duration, "args": arguments})
        events.append({"cat": "Session", "name": "model_run", "ts": start, "dur": 950, "args": {}})
    times = {n.name: (n.microseconds, n.on_device) for n in node_times(events)}
    assert times == {"conv": (90.0, True), "shape": (3.0, False)}


def test_placement_counts_copies_and_nodes_on_the_cpu() -> None:
    nodes = [
        NodeTime("a", "Conv", "ROCMExecutionProvider", 1.0, 4),
        NodeTime("m", "MemcpyToHost", "ROCMExecutionProvider", 1.0, 400),
        NodeTime("b", "NonZero", "CPUExecutionProvider", 1.0, 4),
    ]
    placed = placement(nodes, "ROCMExecutionProvider")
    assert placed.nodes == {"ROCMExecutionProvider": 1, "CPUExecutionProvider": 1}
    assert (placed.copies, placed.copied_bytes, placed.on_cpu) == (1, 400, ["b"])
    assert placement(nodes, "CPUExecutionProvider").on_cpu == []
    said = "1 of 2 nodes on ROCMExecutionProvider; CPU: 1 (NonZero 1: b); 1 copy between host and device"
    assert placement_line(nodes, "ROCMExecutionProvider") == said


def test_placement_in_a_line_a_session(tmp_path: Path, graphopt_command: Callable[..., Any]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_from_text("g (float[N, 4] x) => (float[N, 4] y) { t = Tanh(x)  y = Neg(t) }"), path)
    result = graphopt_command("bench", path, "--placement")
    assert result.exit_code == 0, result.stderr
    assert "2 of 2 nodes on CPUExecutionProvider" in result.stdout


# -- the machine -----------------------------------------------------------------------------------------------------


def test_memory_of_amd_gpus(tmp_path: Path) -> None:
    assert device_memory_used(tmp_path) is None
    for card in ("card0", "card1"):
        (tmp_path / card / "device").mkdir(parents=True)
        (tmp_path / card / "device" / "mem_info_vram_used").write_text("1000\n")
    assert device_memory_used(tmp_path) == 2000


# -- runs ------------------------------------------------------------------------------------------------------------


def test_comparison_of_a_rewritten_model() -> None:
    before = ZOO["resnet18"](small=True, dynamic=True)
    after, _ = graphopt.optimize(before, target="cpu", ignore_cost_model=True)
    report = bench(before, after, providers=["cpu"], threads=(1,), batch=(1, 2), seconds=0.1, memory=False)
    assert [row.setting.sizes for row in report.rows] == [{"batch": 1}, {"batch": 2}]
    for row in report.rows:
        assert row.after is not None
        assert row.low is not None
        assert row.speedup is not None
        assert row.high is not None
        assert row.low <= row.speedup <= row.high
        assert row.before.throughput == pytest.approx(row.setting.sizes["batch"] / row.before.median_ms * 1e3)
        assert row.before.median_ms <= row.before.p95_ms
    (profile,) = report.profiles
    assert profile.after is not None
    # Every executed node, including those that ONNX Runtime created, is assigned to a place in the file.
    assert all(node.subgraph for node in [*profile.before, *profile.after])
    winograd = [s for s in profile.subgraphs if "WinogradConv" in s.after_ops]
    assert len(winograd) == sum("WinogradConv" in n.op_type for n in after.graph.node) > 0
    assert all("Conv" in s.before_ops and s.before_us > 0 and s.after_us for s in winograd)
    assert sum(s.before_us for s in profile.subgraphs) == pytest.approx(sum(n.microseconds for n in profile.before))
    assert sum(profile.before_placement.nodes.values()) == len(profile.before)
    assert {k["setting"] for k in report.knees} == {"CPUExecutionProvider, 1 thread, host I/O"}
    assert json.loads(report.to_json())["rows"][0]["setting"]["sizes"] == {"batch": 1}


def test_a_narrow_terminal_breaks_no_interval() -> None:
    timing = Timing(21, 225.833, 228.822, 0.02, 4.4, PeakMemory(308_000_000, None))
    row = BenchRow(Setting("CPUExecutionProvider", 1, {}, "host"), timing, timing, 1.0, 0.99, 1.0, "within noise")
    text = io.StringIO()
    print_bench(BenchReport(rows=[row]), Console(width=80, file=text))
    assert "0.99-1.00" in text.getvalue()


def test_more_work_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured in CPU seconds of this process, which other processes do not affect."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    report = bench(matmuls(1), matmuls(12), batch=(256,), threads=(1,), seconds=0.3, memory=False, profile=False)
    (row,) = report.rows
    assert row.verdict == "slower"
    assert row.speedup is not None
    assert row.speedup < 0.7


def test_a_single_model_has_no_ratio() -> None:
    report = bench(matmuls(2), threads=(1,), seconds=0.05, memory=False)
    (row,) = report.rows
    assert (row.after, row.speedup, row.verdict) == (None, None, "")
    assert sum("MatMul" in s.before_ops for s in report.profiles[0].subgraphs) == 2
    assert report.profiles[0].after is None


def test_inputs_of_the_caller(tmp_path: Path) -> None:
    text = "g (int64[N] i) => (float[N, 2] y) { j = Mul(i, k) y = Gather(table, j) }"
    table = np.zeros((9, 2), np.float32)
    model = model_from_text(text, {"table": table, "k": np.int64(100)})
    np.savez(tmp_path / "zeros.npz", i=np.zeros(5, np.int64))
    (row,) = bench(model, inputs=tmp_path / "zeros.npz", threads=(1,), seconds=0.0, memory=False).rows
    assert row.setting.sizes == {}
    assert row.before.throughput == pytest.approx(5 / row.before.median_ms * 1e3)
    with pytest.raises(GraphoptError, match="does not run"):  # index 100 of 9
        bench(model, inputs={"i": np.ones(5, np.int64)}, seconds=0.0, memory=False)
    with pytest.raises(OptionError, match="inputs determine the sizes"):
        bench(model, inputs=tmp_path / "zeros.npz", batch=(1,))


@pytest.mark.parametrize("inputs", [None, {"x": np.ones(2, np.float32)}], ids=["generated", "given"])
def test_integer_divisions_that_end_the_process(inputs: dict[str, Any] | None, tmp_path: Path) -> None:
    """ONNX Runtime's Div faults (SIGFPE) on a zero divisor; `bench`, `tune` and an error limit report it."""
    text = "g (float[2] x) => (int64[2] y) { c = Cast <to = 7> (x) z = Sub(c, c) y = Div(c, z) }"
    model = model_from_text(text, {})
    with pytest.raises(GraphoptError, match=r"the model does not run: .*(SIGFPE|by zero)"):
        bench(model, inputs=inputs, seconds=0.0, memory=False)
    if inputs is None:
        with pytest.raises(GraphoptError, match=r"does not run with fixed sizes: .*(SIGFPE|by zero)"):
            graphopt.tune(model, target="cpu", cache=tmp_path / "cache.json")
        with pytest.raises(GraphoptError, match=r"does not run: .*(SIGFPE|by zero)"):
            limit_error(model, 0.1)


def test_accepted_inputs_are_searched(tmp_path: Path) -> None:
    """The axis must be 0 or 1; an unconstrained integer is first tried with any value."""
    text = "g (float[2, 3] x, int64[1] a) => (float[N, M] y) { y = ReduceSum <keepdims = 1> (x, a) }"
    bench(model_from_text(text, {}), threads=(1,), seconds=0.0, memory=False, profile=False)


def test_accepted_sizes_are_searched() -> None:
    """A text line recognizer accepts only one height; accepted values of the other sizes are kept."""
    text = (
        "g (float[N, 3, H, W] x) => (float[M, 1, L] y) { r = ReduceMean <axes = [1], keepdims = 0> (x) y = Mul (r, k) }"
    )
    model = model_from_text(text, {"k": np.ones((1, 32, 1), np.float32)}, opset=17)
    (row,) = bench(model, threads=(1,), seconds=0.0, memory=False, profile=False).rows
    assert row.setting.sizes == {"N": 1, "H": 32, "W": 224}
    with pytest.raises(GraphoptError, match="give sizes or inputs that it accepts"):
        bench(model, sizes={"H": (224,)}, threads=(1,), seconds=0.0, memory=False, profile=False)


def test_a_state_has_as_many_rows_as_the_batch() -> None:
    """The batch axis of a recurrent state is in the middle of its shape."""
    text = "g (float[N, L] x, float[2, M, 4] s) => (float[N, 2] y) { a = ReduceMean <axes = [1], keepdims = 1> (x) "
    text += "b = ReduceMean <axes = [0], keepdims = 0> (s) c = ReduceMean <axes = [1], keepdims = 1> (b) "
    text += "y = Concat <axis = 1> (a, c) }"
    (row,) = bench(model_from_text(text, {}), threads=(1,), seconds=0.0, memory=False, profile=False).rows
    assert row.setting.sizes == {"N": 1, "L": 128, "M": 1}


def test_errors_name_a_model_that_does_not_run(tmp_path: Path) -> None:
    """The error names the file, the node and the fix, also if profiling ran a copy of the file with node names."""
    text = "g (float[2, 3] x, int64[1] s) => (float[A] y) { t = Neg(x) y = Reshape(t, s) }"
    onnx.save(model_from_text(text, {}), tmp_path / "net.onnx")
    with pytest.raises(GraphoptError) as caught:
        bench(tmp_path / "net.onnx", inputs={"x": np.zeros((2, 3), np.float32), "s": np.array([7])}, memory=False)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'net.onnx'}: CPUExecutionProvider, ") and said.endswith(
        "give sizes or inputs that it accepts (--dim, --inputs)"
    )
    assert (
        "the model does not run: Reshape 'Reshape->y': " in said and "requested shape:{7}" in said and ".h:" not in said
    )
    model = model_from_text("g (float[2] x) => (float[2] y) { y = Neg(x) }", {})
    model.ir_version = 99
    onnx.save(model, tmp_path / "new.onnx")
    with pytest.raises(
        GraphoptError, match=rf"^{tmp_path}/new.onnx: onnxruntime.* cannot load it .*IR version: .*; use a runtime"
    ):
        bench(tmp_path / "new.onnx", memory=False)


def test_memory_is_that_of_the_side(tmp_path: Path) -> None:
    small, large = matmuls(1), matmuls(1, width=4096)  # 16 KiB and 64 MiB of weights
    onnx.save(large, tmp_path / "large.onnx")
    peaks = []
    for model in (small, tmp_path / "large.onnx"):
        (row,) = bench(model, threads=(1,), seconds=0.0, profile=False).rows
        assert row.before.memory is not None
        peaks.append(row.before.memory.host)
    assert peaks[1] - peaks[0] > 48 << 20


def test_bound_inputs_and_outputs_give_the_same(tmp_path: Path) -> None:
    onnx.save(matmuls(3), tmp_path / "m.onnx")
    session = open_session(tmp_path / "m.onnx", "CPUExecutionProvider", 1)
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    binding: Any = bound_runner(session, {"v0": x}, ("cpu", 0))()
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], session.run(None, {"v0": x})[0])


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sizes": {"length": (1,)}}, "no symbolic dimension 'length'; they have: N"),
        ({"providers": ["toaster"]}, "no provider 'toaster'; it has"),
        ({"require_device": True, "providers": ["cpu"]}, "needs a provider other than"),
    ],
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        bench(model_from_text(RELU), seconds=0.0, memory=False, **options)


def test_static_batch_cannot_be_changed() -> None:
    with pytest.raises(OptionError, match="symbolic first axis"):
        bench(ZOO["resnet18"](small=True), batch=(1, 2))


def test_other_inputs() -> None:
    with pytest.raises(OptionError, match="different inputs: x and v0"):
        bench(model_from_text(RELU), matmuls(1))


def test_sizes_that_the_model_refuses() -> None:
    with pytest.raises(GraphoptError, match=r"sequence=4096.*does not run"):
        bench(ZOO["bert"](small=True, dynamic=True), sizes={"sequence": (4096,)}, memory=False)


def test_no_silent_fallback_to_the_cpu() -> None:
    """onnxruntime-rocm without a GPU lists the provider and then runs on the CPU."""
    if Path("/dev/kfd").exists():
        pytest.skip("there is a GPU")
    with pytest.raises(GraphoptError, match=r"was requested, but the session runs on|no provider 'rocm'|cannot load"):
        bench(model_from_text(RELU), providers=["rocm"], seconds=0.0)


def test_command(graphopt_command: Callable[..., Any], tmp_path: Path) -> None:
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(matmuls(2), a)
    onnx.save(matmuls(4), b)
    both = ["bench", a, b, "--seconds", "0.05", "--batch", "1,4", "--threads", "1", "--no-memory"]
    shown = graphopt_command(*both)
    assert shown.exit_code == 0
    assert "N=4" in shown.stdout
    data = json.loads(graphopt_command(*both, "--json").stdout)
    assert [row["setting"]["sizes"] for row in data["rows"]] == [{"N": 1}, {"N": 4}]
    alone = graphopt_command("bench", a, "--seconds", "0.05", "--dim", "N=3")
    assert alone.exit_code == 0
    assert "MiB" in alone.stdout
    wrong = graphopt_command("bench", a, "--dim", "N=many")
    assert wrong.exit_code == OptionError.exit_code
    assert "NAME=64,128" in wrong.stderr
