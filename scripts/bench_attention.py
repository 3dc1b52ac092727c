"""Times one FusedAttention node on the CPU against the nodes that it replaces, in one process, interleaved.

Usage: python scripts/bench_attention.py [--quick] [--only TEXT] [--markdown]
Runs in the environments .venv and .venv-ort where they exist, else in the current one; on 1 and 2 threads. Exits with 1
when a ratio is under its floor. The reference is the exported form under ORT_ENABLE_ALL:

  bare   MatMul(Q [B,H,S,D], K [B,H,D,T]) - Mul - [Add | Where] - Softmax - MatMul
  heads  the same with Q, K, V and O as [B,S,H,D] and the head split's Transposes

bare is the stricter one, since it leaves out the Transposes that the node absorbs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graphopt.runtime.sessions import library_path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = (".venv", ".venv-ort")
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Case:
    """One shape; mask is one of none, add (float [B,1,1,T]), bias (float [1,H,S,T]), bool ([B,1,S,T]), causal."""

    B: int
    H: int
    S: int
    T: int
    D: int
    mask: str = "none"
    layout: str = "bare"
    floor: float = 0.95

    @property
    def name(self) -> str:
        return f"B{self.B} H{self.H} S{self.S} T{self.T} D{self.D} {self.mask} {self.layout}"


def cases() -> list[Case]:
    """The floors of the project's table, and every short shape against 0.95."""
    found = []
    for D in (40, 64, 128):
        found += [Case(1, 8, 512, 512, D, mask, floor=1.5) for mask in ("none", "add", "bool", "causal")]
        found += [Case(1, 8, 512, 512, D, layout="heads", floor=1.5)]
        found += [Case(1, 4, 4096, 4096, D, mask, floor=2.5) for mask in ("none", "add", "bool")]
    found += [Case(1, 8, 4096, 4096, 40, layout="heads", floor=2.5)]
    for S in (16, 49, 64, 77, 128, 197, 384):
        for B, H in ((1, 1), (1, 12), (8, 12)):
            found += [Case(B, H, S, S, 64), Case(B, H, S, S, 64, "add", "heads")]
    found += [Case(64, 3, 49, 49, 32, "bias"), Case(1, 8, 256, 77, 40), Case(1, 8, 1024, 77, 40, layout="heads")]
    for T in (16, 128, 512, 2048):
        for B, H in ((1, 1), (1, 12), (8, 12)):
            found += [Case(B, H, 1, T, 64), Case(B, H, 1, T, 64, layout="heads")]
    return found


def models(case: Case) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, np.ndarray]]:
    """The exported form, the one node, and inputs for both."""
    B, H, S, T, D = case.B, case.H, case.S, case.T, case.D
    heads = case.layout == "heads"
    shapes = {
        "Q": (B, S, H, D) if heads else (B, H, S, D),
        "K": (B, T, H, D) if heads else (B, H, D, T),
        "V": (B, T, H, D) if heads else (B, H, T, D),
    }
    random = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    scale = float(1 / np.sqrt(D))
    constants = [numpy_helper.from_array(np.float32(scale), "scale")]
    nodes = []
    q, k, v = "Q", "K", "V"
    if heads:
        nodes += [
            helper.make_node("Transpose", ["Q"], ["q"], perm=[0, 2, 1, 3]),
            helper.make_node("Transpose", ["K"], ["k"], perm=[0, 2, 3, 1]),
            helper.make_node("Transpose", ["V"], ["v"], perm=[0, 2, 1, 3]),
        ]
        q, k, v = "q", "k", "v"
    nodes += [helper.make_node("MatMul", [q, k], ["dot"]), helper.make_node("Mul", ["dot", "scale"], ["s0"])]
    attributes: dict[str, object] = {
        "scale": scale,
        "q_perm": [0, 2, 1, 3] if heads else [0, 1, 2, 3],
        "k_perm": [0, 2, 3, 1] if heads else [0, 1, 2, 3],
        "v_perm": [0, 2, 1, 3] if heads else [0, 1, 2, 3],
        "o_perm": [0, 2, 1, 3] if heads else [0, 1, 2, 3],
    }
    suffix, extra = "", []
    if case.mask in ("add", "bias"):
        if case.mask == "add":
            feeds["M"] = np.where(random.random((B, 1, 1, T)) < 0.9, 0, LOWEST).astype(np.float32)
            feeds["M"][..., 0] = 0
        else:
            feeds["M"] = random.standard_normal((1, H, S, T)).astype(np.float32)
        nodes.append(helper.make_node("Add", ["s0", "M"], ["s"]))
        suffix, extra = "Bias", ["M"]
    elif case.mask == "bool":
        feeds["M"] = random.random((B, 1, S, T)) < 0.9
        feeds["M"][..., 0] = True
        constants.append(numpy_helper.from_array(np.float32(LOWEST), "lowest"))
        nodes.append(helper.make_node("Where", ["M", "s0", "lowest"], ["s"]))
        suffix, extra = "Mask", ["M"]
        attributes["mask_value"] = LOWEST
    elif case.mask == "causal":
        hidden = np.triu(np.full((S, T), -np.inf, np.float32), T - S + 1)
        constants.append(numpy_helper.from_array(hidden, "hidden"))
        nodes.append(helper.make_node("Add", ["s0", "hidden"], ["s"]))
        suffix = "Causal"
    else:
        nodes[-1].output[0] = "s"
    nodes.append(helper.make_node("Softmax", ["s"], ["p"], axis=-1))
    nodes.append(helper.make_node("MatMul", ["p", v], ["o" if heads else "O"]))
    if heads:
        nodes.append(helper.make_node("Transpose", ["o"], ["O"], perm=[0, 2, 1, 3]))
    fused = [helper.make_node("FusedAttention" + suffix, ["Q", "K", "V", *extra], ["O"], domain="com.graphopt")]
    fused[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    output = helper.make_tensor_value_info("O", TensorProto.FLOAT, [B, S, H, D] if heads else [B, H, S, D])
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.graphopt", 1)]

    def model(body: list[onnx.NodeProto], initializers: list[onnx.TensorProto]) -> onnx.ModelProto:
        graph = helper.make_graph(body, "attention", inputs, [output], initializers)
        return helper.make_model(graph, ir_version=8, opset_imports=opsets)

    return model(nodes, constants), model(fused, []), feeds


def reference(case: Case, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """In float64, over at most the first 2 heads of the first image."""
    heads = case.layout == "heads"
    q, k, v = (feeds[name][:1].astype(np.float64) for name in "QKV")
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v)) if heads else (q, k.transpose(0, 1, 3, 2), v)
    q, k, v = q[:, :2], k[:, :2], v[:, :2]
    s = q @ k.transpose(0, 1, 3, 2) * np.float64(np.float32(1 / np.sqrt(case.D)))
    if case.mask in ("add", "bias"):
        s = s + feeds["M"][:1, :2].astype(np.float64)
    elif case.mask == "bool":
        s = np.where(feeds["M"][:1], s, LOWEST)
    elif case.mask == "causal":
        s = np.where(np.tri(case.S, case.T, case.T - case.S, dtype=bool), s, -np.inf)
    s = np.exp(s - s.max(axis=-1, keepdims=True))
    o: np.ndarray = s / s.sum(axis=-1, keepdims=True) @ v
    return o.transpose(0, 2, 1, 3) if heads else o


@dataclass(frozen=True)
class Timing:
    """Medians in seconds, the spread of the ratio's quartiles, and our largest error over the RMS of the output."""

    theirs: float
    ours: float
    low: float
    high: float
    error: float

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours


def measure(case: Case, library: Path, threads: int, seconds: float) -> Timing:
    exported, fused, feeds = models(case)
    runs = []
    outputs = []
    for model in (exported, fused):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.register_custom_ops_library(str(library))
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        binding.bind_output("O")
        session.run_with_iobinding(binding)
        outputs.append(binding.copy_outputs_to_cpu()[0])
        runs.append((session, binding))
    expected = reference(case, feeds)
    got = outputs[1][:1, :, :2] if case.layout == "heads" else outputs[1][:1, :2]
    error = float(np.abs(got - expected).max() / np.sqrt(np.square(expected).mean()))

    # On one thread, processor time: that is wall time on an idle machine, and blind to what else runs on a busy one.
    clock = time.process_time if threads == 1 else time.perf_counter

    def once(which: int, count: int) -> float:
        session, binding = runs[which]
        # The other session's threads spin for a while after its run; none of that is counted.
        ready = clock() + (0.003 if threads > 1 else 0.0)
        while clock() < ready:
            session.run_with_iobinding(binding)
        start = clock()
        for _ in range(count):
            session.run_with_iobinding(binding)
        return (clock() - start) / count

    count = max(1, round(0.002 / min(once(0, 3), once(0, 3))))
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + seconds
    while len(times[0]) < 7 or (time.perf_counter() < end and len(times[0]) < 200):
        for which in (0, 1):
            times[which].append(once(which, count))
    ratios = statistics.quantiles([a / b for a, b in zip(*times)], n=4)
    return Timing(statistics.median(times[0]), statistics.median(times[1]), ratios[0], ratios[2], error)


def run_here(arguments: argparse.Namespace) -> int:
    """The whole table on this interpreter's runtime; the number of ratios under their floors."""
    library = arguments.library or library_path()
    print(f"\nonnxruntime {ort.__version__}\n")
    rule = "|---|--:|--:|--:|--:|--:|--:|--:|--:|" if arguments.markdown else ""
    print("| case | threads | nodes us | ours us | ratio | quartiles | floor | GFLOP/s | error/RMS |")
    print(rule)
    below = 0
    for case in cases():
        if arguments.only not in case.name:
            continue
        for threads in arguments.threads:
            t = measure(case, library, threads, 0.15 if arguments.quick else 0.6)
            rate = 4 * case.B * case.H * case.S * case.T * case.D / t.ours / 1e9
            under = t.ratio < case.floor
            below += under
            print(
                f"| {case.name} | {threads} | {t.theirs * 1e6:.1f} | {t.ours * 1e6:.1f} | "
                f"{t.ratio:.2f}{' LOW' if under else ''} | {t.low:.2f}-{t.high:.2f} | {case.floor} | "
                f"{rate:.0f} | {t.error:.1e} |",
                flush=True,
            )
    return below


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the repeats")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--markdown", action="store_true", help="print tables that Markdown understands")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--library", type=Path, help="another libgraphopt.so")
    parser.add_argument("--here", action="store_true", help="this interpreter's runtime alone")
    arguments = parser.parse_args()
    pythons = [ROOT / name / "bin" / "python" for name in ENVIRONMENTS]
    pythons = [python for python in pythons if python.exists()]
    if arguments.here or not pythons:
        return int(run_here(arguments) > 0)
    commands = [[str(python), __file__, "--here", *sys.argv[1:]] for python in pythons]
    return max(subprocess.run(command, check=False).returncode for command in commands)


if __name__ == "__main__":
    sys.exit(main())
