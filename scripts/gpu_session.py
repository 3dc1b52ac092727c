"""Whole models on an NVIDIA GPU through stock ONNX Runtime and the provider, beside PyTorch eager and the CPU.

    python scripts/gpu_session.py [MODEL ...] [--json PATH]
    python scripts/gpu_session.py --layers

For each model in float32 and float16: its outputs against the float32 CPU provider on the model as exported, on which
provider its nodes run, copies between input and output, and the latency of a run with inputs and outputs on the device.
Builds the library with nvcc first. Fails when a floor is missed: no copies, errors within the limit, at most 1.3 times
the latency of PyTorch. `--layers` times feed-forward layers instead, with the pass feed_forward against without it, and
fails when one of them loses or is off.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import graphopt
from models import ZOO
from tests.hip.harness import ROOT, build

PROVIDER = "GraphoptExecutionProvider"
NVIDIA = 0x10DE
MODELS = ("resnet18", "resnet50", "bert", "sd_block")
ERROR_LIMIT = {"float32": 1e-4, "float16": 2e-2}
LATENCY_LIMIT = 1.3
# name, batch, rows, columns, columns between, activation, opset
LAYERS = (
    ("BERT-base", 1, 128, 768, 3072, "Gelu", 17),
    ("BERT-base", 8, 384, 768, 3072, "Gelu", 17),
    ("BERT-base", 8, 384, 768, 3072, "Gelu", 20),
    ("BERT-large", 8, 512, 1024, 4096, "Gelu", 20),
    ("ViT-B/16", 1, 197, 768, 3072, "Gelu", 17),
    ("ViT-B/16", 32, 197, 768, 3072, "Gelu", 20),
    ("GPT-2", 8, 1024, 768, 3072, "GeluTanh", 17),
    ("chess", 64, 64, 512, 1024, "Silu", 17),
    ("T5", 8, 512, 768, 3072, "Relu", 17),
)


@dataclass
class Row:
    """One model in one precision; times in milliseconds."""

    model: str
    dtype: str
    error: float = 0.0
    nodes: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    ours: float = 0.0
    torch: float = 0.0
    cpu: float = 0.0

    @property
    def ratio(self) -> float:
        return self.ours / self.torch

    @property
    def failures(self) -> list[str]:
        found = []
        if not self.error <= ERROR_LIMIT[self.dtype]:
            found.append(f"error {self.error:.2g}")
        if self.copies:
            found.append(f"{self.copies} copies")
        if self.ratio > LATENCY_LIMIT:
            found.append(f"{self.ratio:.2f} times PyTorch")
        return found


def to_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every float tensor and type of the model as float16."""
    half = onnx.ModelProto()
    half.CopyFrom(model)

    def convert(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            limit = np.finfo(np.float16).max
            tensor.CopyFrom(numpy_helper.from_array(np.clip(array, -limit, limit).astype(np.float16), tensor.name))

    for tensor in half.graph.initializer:
        convert(tensor)
    for value in (*half.graph.input, *half.graph.output, *half.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in half.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                convert(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    return half


def feeds_of(model: onnx.ModelProto) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if np.issubdtype(dtype, np.floating):
            feeds[value.name] = rng.standard_normal(shape).astype(dtype)
        elif "mask" in value.name:
            feeds[value.name] = np.ones(shape, dtype)
        else:
            feeds[value.name] = rng.integers(0, 2, shape).astype(dtype)
    return feeds


class SdBlock(nn.Module):  # type: ignore[misc]
    """models/sd_block.py in PyTorch, as diffusers writes it."""

    def __init__(self, c: int = 320, e: int = 1280, f: int = 768) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, c), nn.GroupNorm(32, c)
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.time = nn.Linear(e, c)
        self.norm = nn.GroupNorm(32, c, eps=1e-6)
        self.proj_in, self.proj_out = nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(3))
        for name, source in (("self", c), ("cross", f)):
            for part, d in (("q", c), ("k", source), ("v", source)):
                setattr(self, f"{name}_{part}", nn.Linear(d, c, bias=False))
            setattr(self, f"{name}_o", nn.Linear(c, c))
        self.wide, self.narrow = nn.Linear(c, 8 * c), nn.Linear(4 * c, c)

    def attend(self, name: str, x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        def heads(part: str, t: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = getattr(self, f"{name}_{part}")(t)
            return y.view(y.shape[0], y.shape[1], 8, -1).transpose(1, 2)

        y = nn.functional.scaled_dot_product_attention(heads("q", x), heads("k", source), heads("v", source))
        result: torch.Tensor = getattr(self, f"{name}_o")(y.transpose(1, 2).reshape(x.shape))
        return result

    def forward(self, sample: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        silu = nn.functional.silu
        y = self.conv1(silu(self.norm1(sample)))
        y = y + self.time(silu(time))[:, :, None, None]
        x = sample + self.conv2(silu(self.norm2(y)))
        n, c, h, w = x.shape
        tokens = self.proj_in(self.norm(x)).permute(0, 2, 3, 1).reshape(n, h * w, c)
        y = self.norms[0](tokens)
        tokens = self.attend("self", y, y) + tokens
        tokens = self.attend("cross", self.norms[1](tokens), context) + tokens
        value, gate = self.wide(self.norms[2](tokens)).chunk(2, dim=-1)
        tokens = self.narrow(value * nn.functional.gelu(gate)) + tokens
        result: torch.Tensor = self.proj_out(tokens.reshape(n, h, w, c).permute(0, 3, 1, 2)) + x
        return result


def torch_model(name: str) -> nn.Module:
    """The same architecture in PyTorch, with weights of its own."""
    if name.startswith("resnet"):
        import torchvision

        model: nn.Module = getattr(torchvision.models, name)()
        return model
    if name == "bert":
        from transformers import BertConfig, BertModel

        bert: nn.Module = BertModel(BertConfig(attn_implementation="sdpa"))
        return bert
    return SdBlock()


def session_of(model: onnx.ModelProto, library: Path, profile: str = "") -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    options.register_custom_ops_library(str(library))
    devices = [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER]
    options.add_provider_for_devices(devices[:1], {})
    return ort.InferenceSession(model.SerializeToString(), options)


def placement_of(model: onnx.ModelProto, library: Path, feeds: dict[str, Any]) -> tuple[Counter[str], int]:
    """Nodes of each provider and copies in a run; nodes elsewhere are named."""
    with tempfile.TemporaryDirectory() as folder:
        session = session_of(model, library, str(Path(folder) / "profile"))
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes: Counter[str] = Counter()
    copies = 0
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            op, provider = event["args"]["op_name"], event["args"]["provider"]
            if op.startswith("Memcpy"):
                copies += 1
            nodes[provider if provider == PROVIDER else f"{provider}: {op}"] += 1
    return nodes, copies


def interleaved(works: list[Callable[[], object]], rounds: int = 15, repeats: int = 10) -> list[float]:
    """Median milliseconds of each piece of work; each call ends with everything done."""
    for work in works:
        for _ in range(5):
            work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, kept in zip(works, times, strict=True):
            begin = time.perf_counter()
            for _ in range(repeats):
                work()
            kept.append((time.perf_counter() - begin) / repeats * 1e3)
    return [statistics.median(kept) for kept in times]


def bound(session: Any, feeds: dict[str, Any], outputs: list[Any]) -> Any:
    """Inputs and outputs on the device."""
    binding = session.io_binding()
    for key, array in feeds.items():
        binding.bind_ortvalue_input(key, ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0, NVIDIA))
    for output, array in zip(session.get_outputs(), outputs, strict=True):
        value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, "gpu", 0, NVIDIA)
        binding.bind_ortvalue_output(output.name, value)
    return binding


def feed_forward(rows: tuple[int, int], D: int, wide: int, activation: str, opset: int) -> onnx.ModelProto:
    """act(X W + b) V + c + X."""
    rng = np.random.default_rng(0)
    weights = {"w": (D, wide), "b": (wide,), "v": (wide, D), "c": (D,)}
    between = {
        "Relu": "h = Relu(s)",
        "Silu": "g = Sigmoid(s)  h = Mul(s, g)",
        "Gelu": """r = Constant<value = float {1.41421356}>()  d = Div(s, r)  e = Erf(d)
            one = Constant<value = float {1.0}>()  f = Add(e, one)  g = Mul(s, f)
            half = Constant<value = float {0.5}>()  h = Mul(g, half)""",
        "GeluTanh": """three = Constant<value = float {3.0}>()  u = Pow(s, three)
            c1 = Constant<value = float {0.044715}>()  c2 = Constant<value = float {0.79788456}>()
            i = Mul(u, c1)  j = Add(s, i)  k = Mul(j, c2)  t = Tanh(k)  one = Constant<value = float {1.0}>()
            f = Add(t, one)  half = Constant<value = float {0.5}>()  g = Mul(s, half)  h = Mul(g, f)""",
    }[activation]
    shape = f"float[{rows[0]}, {rows[1]}, {D}]"
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g ({shape} x) => ({shape} y) {{
        m = MatMul(x, w)  s = Add(m, b) {between} n = MatMul(h, v)  o = Add(n, c)  y = Add(o, x) }}"""
    model = onnx.parser.parse_model(text)
    for name, size in weights.items():
        array = rng.standard_normal(size) / (np.sqrt(size[0]) if len(size) == 2 else 1.0)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def bench_layers(library: Path) -> bool:
    """Whether every feed-forward layer gains and agrees."""
    print("| layer | dtype | fused ms | without feed_forward ms | gain | difference of RMS |")
    fine = True
    for name, batch, rows, D, wide, activation, opset in LAYERS:
        exported = feed_forward((batch, rows), D, wide, activation, opset)
        feeds = feeds_of(exported)
        for dtype in ("float32", "float16"):
            source = exported if dtype == "float32" else to_float16(exported)
            given = {k: v.astype(dtype) for k, v in feeds.items()}
            fused, _ = graphopt.optimize(source, target="cuda")
            unfused, _ = graphopt.optimize(source, target="cuda", skip=["feed_forward"])
            sessions = [session_of(model, library) for model in (fused, unfused)]
            outputs = [session.run(None, given) for session in sessions]
            works: list[Callable[[], object]] = []
            for session, got in zip(sessions, outputs, strict=True):
                binding = bound(session, given, got)
                works.append(partial(session.run_with_iobinding, binding))
            ours, theirs = interleaved(works)
            (y,), (z,) = ([a.astype(np.float64) for a in got] for got in outputs)
            error = float(np.abs(y - z).max() / np.sqrt(np.mean(z**2)))
            ops = ", ".join(n.op_type for n in fused.graph.node)
            passed = ours < theirs and error <= ERROR_LIMIT[dtype]
            fine &= passed
            print(
                f"| {name} {batch} x {rows} x {D} x {wide} {activation}-{opset} | {dtype} | {ours:.4f} | {theirs:.4f} "
                f"| {theirs / ours:.2f} | {error:.1e} | {ops} {'' if passed else 'FAILED'}",
                flush=True,
            )
    return fine


def measure(name: str, dtype: str, library: Path) -> Row:
    row = Row(name, dtype)
    exported = ZOO[name]()
    feeds = feeds_of(exported)
    cpu = ort.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = cpu.run(None, feeds)
    begin = time.perf_counter()
    cpu.run(None, feeds)
    row.cpu = (time.perf_counter() - begin) * 1e3
    source = exported if dtype == "float32" else to_float16(exported)
    if dtype == "float16":
        feeds = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in feeds.items()}
    result = graphopt.optimize(source, target="cuda")
    model: onnx.ModelProto = result[0] if isinstance(result, tuple) else result
    nodes, row.copies = placement_of(model, library, feeds)
    row.nodes = dict(nodes)
    session = session_of(model, library)
    got = session.run(None, feeds)
    for actual, wanted in zip(got, expected, strict=True):
        scale = float(np.sqrt(np.mean(wanted.astype(np.float64) ** 2)))
        row.error = max(row.error, float(np.abs(actual.astype(np.float64) - wanted).max()) / scale)
        if not np.isfinite(actual).all():
            row.error = float("inf")

    binding = bound(session, feeds, got)
    reference = torch_model(name).eval().cuda().to(getattr(torch, dtype))
    arguments = {k: torch.from_numpy(v).cuda() for k, v in feeds.items()}
    if name.startswith("resnet"):
        arguments = {"x": arguments["input"]}

    def eager() -> None:
        with torch.inference_mode():
            reference(**arguments)
        torch.cuda.synchronize()

    row.ours, row.torch = interleaved([lambda: session.run_with_iobinding(binding), eager])
    return row


def main() -> int:
    arguments = sys.argv[1:]
    out = arguments[arguments.index("--json") + 1] if "--json" in arguments else None
    names = [a for a in arguments if a in ZOO] or list(MODELS)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.zeros(1, device="cuda") @ torch.zeros(1, device="cuda")  # cuBLAS and cuDNN are loaded now
    torch.nn.functional.conv2d(torch.zeros(1, 1, 3, 3, device="cuda"), torch.zeros(1, 1, 3, 3, device="cuda"))
    folder = build(ROOT / "build" / "cuda", ["graphopt"], GRAPHOPT_HIP_ARCHS="", GRAPHOPT_CUDA_ARCHS="sm_90")
    library = folder.parent / "libgraphopt.so"
    ort.register_execution_provider_library("graphopt", str(library))
    print(f"onnxruntime {ort.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    if "--layers" in arguments:
        return int(not bench_layers(library))
    print("| model | dtype | error | copies | ours ms | PyTorch ms | ratio | CPU fp32 ms | nodes |")
    rows, failed = [], False
    for name in names:
        for dtype in ("float32", "float16"):
            row = measure(name, dtype, library)
            rows.append(row)
            failed |= bool(row.failures)
            print(
                f"| {name} | {dtype} | {row.error:.1e} | {row.copies} | {row.ours:.3f} | {row.torch:.3f} "
                f"| {row.ratio:.2f} | {row.cpu:.0f} | {row.nodes} | {', '.join(row.failures)}",
                flush=True,
            )
    if out:
        Path(out).write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
