"""Norms and feed-forward layers on the CPU: our node against the nodes that it replaces.

    .venv/bin/python scripts/bench_norms.py                # this runtime
    .venv-ort/bin/python scripts/bench_norms.py --threads 2

Both sides take turns in one process under ORT_ENABLE_ALL, so the nodes that are replaced are as the runtime's own
optimizer leaves them; inputs and outputs are bound, so that no copy counts on either side. Decides what fuse_row_norm
refuses with NO_GAIN, and that there is no operator for MatMul, bias, activation and residual
(docs/measurements/norms_cpu.md).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt

Array = npt.NDArray[Any]

GROUP_NORM = """shape = Constant <value_ints = [0, 32, -1]> ()
    g = Reshape(x, shape)  i = InstanceNormalization <epsilon = 0.00001> (g, one, zero)
    xs = Shape(x)  u = Reshape(i, xs)  m = Mul(u, gamma)  n = Add(m, beta)  s = Sigmoid(n)  y = Mul(n, s)"""
LAYER_NORM = """two = Constant <value_float = 2.0> ()  e = Constant <value_float = 0.00001> ()
    a = ReduceMean <axes = [-1]> (x)  d = Sub(x, a)  q = Pow(d, two)  v = ReduceMean <axes = [-1]> (q)
    ve = Add(v, e)  w = Sqrt(ve)  n = Div(d, w)  m = Mul(n, gamma)  y = Add(m, beta)"""
RMS_NORM = """two = Constant <value_float = 2.0> ()  e = Constant <value_float = 0.00001> ()
    q = Pow(x, two)  v = ReduceMean <axes = [-1]> (q)  ve = Add(v, e)  w = Sqrt(ve)  n = Div(x, w)  y = Mul(n, gamma)"""
SUM = "x = Add(a0, b0)  "
STANDARD = "y = LayerNormalization <axis = -1, epsilon = 0.00001> (x, gamma, beta)"
# The shapes of Stable Diffusion's UNet (320 to 1280 channels) and its VAE (128).
GROUP_NORM_SHAPES = (
    *((1, 320, 64), (2, 320, 64), (8, 320, 64), (1, 640, 32), (2, 640, 32), (1, 1280, 16), (2, 1280, 16)),
    *((1, 1280, 8), (1, 128, 256)),
)


def _model(body: str, inputs: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array]) -> onnx.ModelProto:
    declared = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in inputs.items())
    shape = ", ".join(map(str, next(iter(inputs.values()))))
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({declared}) => (float[{shape}] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in constants.items())
    return model


def _row(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def cases() -> dict[str, tuple[onnx.ModelProto, onnx.ModelProto]]:
    """Name -> (the nodes, what graphopt makes of them where every legal site is taken)."""
    rng = np.random.default_rng(0)
    models: dict[str, onnx.ModelProto] = {}
    for N, C, side in GROUP_NORM_SHAPES:
        constants = {"one": np.ones(32, np.float32), "zero": np.zeros(32, np.float32)}
        constants |= {"gamma": _row(rng, C, 1, 1), "beta": _row(rng, C, 1, 1)}
        shape = (N, C, side, side)
        models[f"GroupNorm + SiLU, {' x '.join(map(str, shape))}"] = _model(GROUP_NORM, {"x": shape}, constants)
    for S, D in ((128, 768), (512, 768), (197, 1024)):
        # The factors are 1 or -1, so that a norm of its own output, again and again, neither grows nor fades.
        row = {"gamma": np.sign(_row(rng, D)), "beta": _row(rng, D)}
        x = {"x": (1, S, D)}
        pair = {"a0": (1, S, D), "b0": (1, S, D)}
        models[f"LayerNorm written out, {S} x {D}"] = _model(LAYER_NORM, x, row)
        models[f"LayerNormalization, {S} x {D}"] = _model(STANDARD, x, row)
        models[f"residual + LayerNormalization, {S} x {D}"] = _model(SUM + STANDARD, pair, row)
        models[f"RMSNorm written out, {S} x {D}"] = _model(RMS_NORM, x, {"gamma": row["gamma"]})
        models[f"residual + RMSNorm written out, {S} x {D}"] = _model(SUM + RMS_NORM, pair, {"gamma": row["gamma"]})
    made = {}
    for name, model in models.items():
        after, report = graphopt.optimize(model, target="cpu", all_sites=True)
        assert any(r.applied and r.pass_name.startswith("fuse_") for r in report.remarks), name
        made[name] = (model, after)
    return made


def ffn_cases() -> dict[str, tuple[onnx.ModelProto, onnx.ModelProto]]:
    """Name -> (MatMul, bias, activation, residual; the product alone): what a fused epilogue could gain at most."""
    rng = np.random.default_rng(0)
    gelu = """r = Constant <value_float = 1.4142135> ()  h = Constant <value_float = 0.5> ()
        o = Constant <value_float = 1.0> ()  z = Div(t, r)  f = Erf(z)  p = Add(f, o)  c = Mul(t, p)  u = Mul(c, h)"""
    found = {}
    for S, D in ((128, 768), (512, 768)):
        up = {"w": _row(rng, D, 4 * D) * np.float32(D**-0.5), "b": _row(rng, 4 * D)}
        down = {"w": _row(rng, 4 * D, D) * np.float32(D**-0.5), "b": _row(rng, D)}
        wide, narrow = (1, S, 4 * D), (1, S, D)
        alone = "y = MatMul(x, w)"
        for label, body in (
            ("Gelu", f"m = MatMul(x, w)  t = Add(m, b)  {gelu}  y = Identity(u)"),
            ("Relu", "m = MatMul(x, w)  t = Add(m, b)  y = Relu(t)"),
        ):
            models = [_model(text, {"x": narrow}, up) for text in (body, alone)]
            for model in models:
                model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 4 * D
            found[f"MatMul + bias + {label}, {S} x {D} x {4 * D}"] = (models[0], models[1])
        body = "m = MatMul(x, w)  t = Add(m, b)  y = Add(t, r)"
        models = [_model(text, {"x": wide, **extra}, down) for text, extra in ((body, {"r": narrow}), (alone, {}))]
        for model in models:
            model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = D
        found[f"MatMul + bias + residual, {S} x {4 * D} x {D}"] = (models[0], models[1])
    return found


def _session(model: onnx.ModelProto, threads: int, *, library: bool) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if library:
        graphopt.configure(options, ["CPUExecutionProvider"])
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _value(declared: Any) -> Any:
    return ort.OrtValue.ortvalue_from_shape_and_type(declared.shape, np.float32)


def measure(
    pair: tuple[onnx.ModelProto, onnx.ModelProto], repeats: int, threads: int, *, library: bool, apart: bool
) -> tuple[float, float]:
    """Medians of both in microseconds, in turns of three."""
    rng = np.random.default_rng(1)
    sides = []
    for model in pair:
        session = _session(model, threads, library=library)
        binding = session.io_binding()
        # Memory of the runtime, which is aligned as inside a model; numpy's is not. The output takes the input's place,
        # as the runtime lets it inside a model where nobody else reads the input, or lies apart from it.
        arrays = {v.name: _value(v) for v in session.get_inputs()}
        for name, array in arrays.items():
            array.update_inplace(_row(rng, *array.shape()))
            binding.bind_ortvalue_input(name, array)
        first = arrays[session.get_inputs()[0].name]
        (output,) = session.get_outputs()
        arrays[output.name] = _value(output) if apart or first.shape() != output.shape else first
        binding.bind_ortvalue_output(output.name, arrays[output.name])
        sides.append((session, binding, arrays))  # a binding does not keep its memory alive
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for (session, binding, _), taken in zip(sides, times):
            # The other side's threads spin for a while after its run, on the processors that this side needs.
            ready = time.perf_counter() + (0.003 if threads > 1 else 0.0)
            while time.perf_counter() < ready:
                session.run_with_iobinding(binding)
            for i in range(4):  # the first finds the caches as the other side left them
                start = time.perf_counter()
                session.run_with_iobinding(binding)
                if i:
                    taken.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="the cases whose name has this in it")
    parser.add_argument("--apart", action="store_true", help="the output does not take the input's place")
    arguments = parser.parse_args()
    console = Console()
    for title, found, library in (
        ("our node against the nodes that it replaces", cases(), True),
        ("feed-forward: the product alone is what an epilogue could reach at most", ffn_cases(), False),
    ):
        runtime = f"onnxruntime {ort.__version__}, {arguments.threads} thread(s)"
        table = Table(title=f"{title} ({runtime})", title_justify="left")
        for column in ("", "before, us", "after, us", "ratio"):
            table.add_column(column, justify="left" if not column else "right")
        for name, pair in found.items():
            if arguments.only not in name:
                continue
            before, after = measure(pair, arguments.repeats, arguments.threads, library=library, apart=arguments.apart)
            table.add_row(name, f"{before:.0f}", f"{after:.0f}", f"{before / after:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
