"""Cost grows linearly with nodes, and external weights stay on disk; scripts/bench_scale.py measures large sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import external_data_helper

import graphopt
from graphopt.forms import scaled_weight
from models.scale import SHAPES, large_weights
from tests.rewriting import model_from_text, python_calls, run


@pytest.mark.once
@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_linearly(shape: str) -> None:
    def calls(nodes: int) -> int:
        model = SHAPES[shape](nodes)
        return python_calls(lambda: graphopt.optimize(model, target="cpu"))

    calls(100)  # fills permanent caches
    small, large = calls(500), calls(2000)
    assert large < 4.4 * small


def optimized_elsewhere(model: Path, out: Path) -> float:
    """Optimizes in a separate process, with standard ONNX only; returns its peak memory in MiB."""
    script = f"""
import re, graphopt
graphopt.optimize({str(model)!r}, {str(out)!r}, target="portable")
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


@pytest.mark.once
def test_unchanged_weights_remain_on_disk(tmp_path: Path) -> None:
    model = large_weights(tmp_path, side=10_000)
    assert optimized_elsewhere(model, tmp_path / "out.onnx") < 200
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "out.onnx", "out.onnx.data", "weights.data"]
    copy = tmp_path / "out.onnx.data"
    assert copy.stat().st_size == (tmp_path / "weights.data").stat().st_size
    assert copy.stat().st_blocks < 1000, "the holes of a sparse file were filled"


@pytest.mark.once
def test_a_folded_weight_is_streamed(tmp_path: Path) -> None:
    """A process rewrites weights of 400 MB, and has only a part of these in memory at a time."""
    model = large_weights(tmp_path, side=10_000, batch_norm=True)
    with (tmp_path / "weights.data").open("r+b") as file:
        file.seek(4 * 10_000**2)
        np.arange(20_000, dtype=np.float32).tofile(file)
    assert optimized_elsewhere(model, tmp_path / "out.onnx") < 300
    weights = {w.name: w for w in onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer}
    places = {n: external_data_helper.ExternalDataInfo(w) for n, w in weights.items() if w.external_data}
    assert {p.location for p in places.values()} == {"out.onnx.data"}
    (folded,) = (p for n, p in places.items() if n == "w1_folded")
    got = np.fromfile(tmp_path / "out.onnx.data", np.float32, 30_000, offset=folded.offset or 0)
    scale = 2 / np.sqrt(1 + 1e-5)
    want = np.concatenate([np.arange(20_000) * scale, np.zeros(10_000)])
    np.testing.assert_allclose(got, want, rtol=1e-6)


BATCH_NORM = "BatchNormalization({x}, s, t, m, v)"
FOLDED = {
    "Conv": ("y = Conv<group=2, pads=[1,1,1,1]>(x, W)", (8, 3, 3, 3), (2, 6, 5, 7), 8),
    "Conv after": ("y = Conv<group=2>(n, W)", (8, 3, 3, 3), (2, 6, 5, 7), 6),
    "ConvTranspose": ("y = ConvTranspose<group=2>(x, W)", (6, 4, 3, 2), (2, 6, 5, 7), 8),
    "Gemm": ("y = Gemm<transB=1>(x, W)", (9, 6), (3, 6), 9),
    "Gemm after": ("y = Gemm(n, W)", (6, 9), (3, 6), 6),
    "MatMul": ("y = MatMul(x, W)", (6, 9), (3, 6), 9),
}


@pytest.mark.parametrize("case", FOLDED)
def test_streamed_blocks_hold_the_same_numbers(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of any layout are folded in blocks of one row, and outputs compared with the original model's."""
    monkeypatch.setattr(scaled_weight, "LARGE_BYTES", 1)
    monkeypatch.setattr(scaled_weight, "BLOCK_BYTES", 1)
    linear, shape, x_shape, channels = FOLDED[case]
    rng = np.random.default_rng(len(case))
    nodes = (
        [f"n = {BATCH_NORM.format(x='x')}", linear] if "after" in case else [linear, f"n = {BATCH_NORM.format(x='y')}"]
    )
    dims = ", ".join(map(str, x_shape))
    text = f"g (float[{dims}] x) => (float {'y' if 'after' in case else 'n'}) {{ {' '.join(nodes)} }}"
    text = text.replace("float y)", f"float[{', '.join('abcd'[: len(x_shape)])}] y)")
    text = text.replace("float n)", f"float[{', '.join('abcd'[: len(x_shape)])}] n)")
    weights = {"W": rng.normal(size=shape), **{n: rng.normal(size=channels) for n in "stm"}}
    weights["v"] = rng.uniform(0.5, 2, size=channels)
    model = model_from_text(text, {n: a.astype(np.float32) for n, a in weights.items()})
    feeds = {"x": rng.normal(size=x_shape).astype(np.float32)}
    (want,) = run(model, feeds)

    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="in.data")
    _, report = graphopt.optimize(path, out, target="cpu", external_data=True)
    assert [r.pass_name for r in report.remarks if r.applied and "fold" in r.pass_name] == ["fold_batch_norm"]
    (got,) = run(onnx.load(out), feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_scaled_weight_is_a_tensor_like_any_other(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rng.normal(size=(50, 7)).astype(np.float32).tofile(tmp_path / "w")
    source = ir.ExternalTensor(
        "w", 7 * 4, 40 * 7 * 4, ir.DataType.FLOAT, shape=ir.Shape([40, 7]), name="w", base_dir=tmp_path
    )
    rows, columns = rng.normal(size=(40, 1)), rng.normal(size=(1, 7))
    tensor = scaled_weight.ScaledWeight(scaled_weight.ScaledWeight(source, rows), columns)
    want = (source.numpy() * rows).astype(np.float32) * columns
    np.testing.assert_array_equal(tensor.numpy(), want.astype(np.float32))
    assert tensor.tobytes() == tensor.numpy().tobytes()
    with (tmp_path / "out").open("wb") as file:
        tensor.tofile(file)
    assert (tmp_path / "out").read_bytes() == tensor.tobytes()
