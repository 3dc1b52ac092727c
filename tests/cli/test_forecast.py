"""`explain --provider`: the nodes that a provider will run, and the reasons against the others."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from graphopt.errors import OptionError
from graphopt.placement import forecast
from graphopt.placement.provider_tables import NAMES, read
from models.decoder import decoder
from scripts import provider_tables
from tests.rewriting import model_from_text

Command = Callable[..., Any]
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "report.schema.json"
# Models of one node each; some runtimes lack a kernel for some of them.
NODES = {
    "Relu": "y = Relu (x)",
    "Gelu": "y = Gelu (x)",
    "Softplus": "y = Softplus (x)",
    "Mod": "y = Mod <fmod = 1> (x, x)",
    "Round": "y = Round (x)",
    "ThresholdedRelu": "y = ThresholdedRelu (x)",
    "GlobalLpPool": "y = GlobalLpPool (x)",
    "CumSum": "axis = Constant <value_int = 0> ()  y = CumSum (x, axis)",
    "DepthToSpace": "y = DepthToSpace <blocksize = 2> (x)",
    "Mish": "y = Mish (x)",
}


# onnxruntime-rocm only lists its kernels if ROCm is installed.
tells = pytest.mark.skipif("ROCMExecutionProvider" in ort.get_available_providers(), reason="the runtime does not tell")


@tells
@pytest.mark.parametrize("dtype", ["float", "float16", "double", "int32", "bfloat16"])
def test_cpu_forecasts_match_sessions(dtype: str) -> None:
    """Creating a session fails if, and only if, a node is forecast on no provider."""
    for name, text in NODES.items():
        model = model_from_text(f"g ({dtype}[1, 4, 2, 2] x) => ({dtype}[a, b, c, d] y) {{ {text} }}", {}, opset=20)
        said = forecast(model, "cpu")
        assert all(n.provider in ("cpu", "constant", "none") for n in said.nodes)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            onnx.checker.check_model(model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue  # the operator does not support the type
        try:
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            made = True
        except Exception:  # ONNX Runtime's exception classes have no public base
            made = False
        assert made == (said.counts["none"] == 0), (name, dtype, said.groups())


@tells
def test_operators_without_a_kernel_are_not_folded() -> None:
    """ONNX Runtime expands CastLike into its definition after constant folding."""
    text = """g (float[4] x) => (float[4] y) {
        c = CastLike (k, x)  d = Neg (c)  e = Neg (k)  s = Add (x, d)  y = Div (s, e) }"""
    model = model_from_text(text, {"k": np.ones(4, np.float32)}, opset=20)
    said = {n.name.split("->")[-1]: n.provider for n in forecast(model, "cpu").nodes}
    assert said == {"c": "cpu", "d": "cpu", "e": "constant", "s": "cpu", "y": "cpu"}
    inside = [(n.name, n.provider) for n in forecast(model, "graphopt", min_nodes=2).nodes]
    assert inside[0] == ("CastLike->c/Cast", "graphopt") and [p for _, p in inside].count("graphopt") == 4


@tells
def test_a_recurrent_layer_with_layout_1() -> None:
    text = """g (float[2, 3, 4] x) => (float[a, b, c, d] y, float[e, f, h] z) {
        y, z = GRU <hidden_size = 2, layout = 1> (x, w, r) }"""
    weights = {"w": np.ones((1, 6, 4), np.float32), "r": np.ones((1, 6, 2), np.float32)}
    said = forecast(model_from_text(text, weights), "cpu").nodes
    assert [(n.provider, n.reason) for n in said] == [("none", "no kernel for layout 1")]


def test_our_provider_answers_by_its_own_table() -> None:
    text = "g (float[N, 4] x, int64[2] s) => (float[a, b] y) { t = Relu (x)  r = Reshape (t, s)  y = Abs (r) }"
    model = model_from_text(text)
    said = forecast(model, "graphopt", min_nodes=2)
    assert [n.provider for n in said.nodes] == ["graphopt"] * 3
    wide = model_from_text("g (double[N, 4] x) => (double[N, 4] y) { t = Relu (x)  y = Neg (t) }", {})
    said = forecast(wide, "graphopt", min_nodes=2)
    assert said.counts == {"cpu": 2} and {n.reason for n in said.nodes} == {"no kernel for double"}


def test_a_constant_that_a_file_describes_without_a_type() -> None:
    """Dynamo's exports have metadata on constants, which lose their types when the file is written again."""
    text = "g (float[N, 2, 8] x) => (float[N, a, b] y) { t = Conv (x, w)  y = Relu (t) }"
    model = model_from_text(text, {"w": np.ones((4, 2, 3), np.float32)})
    model.graph.value_info.append(onnx.ValueInfoProto(name="w"))
    assert [n.provider for n in forecast(model, "graphopt", min_nodes=2).nodes] == ["graphopt"] * 2


def test_tables_of_other_providers() -> None:
    for name in NAMES:
        table = read(name)
        assert table.repository.startswith("https://github.com/") and len(table.commit) == 40
        assert len(table.operators) > 90 and table.operators["Conv"]["taken"]
    model = decoder()
    said = forecast(model, "migraphx")
    assert said.counts["migraphx"] > 20 and "AMDMIGraphX at" in said.source
    wide = model_from_text("g (float[N, 4] x) => (float[N, 4] y) { t = Det (x)  y = Add (x, t) }", {})
    assert [n.provider for n in forecast(wide, "migraphx").nodes] == ["cpu", "migraphx"]
    # MIGraphX supports IsInf, but ONNX Runtime's MIGraphX provider does not pass it on.
    grid = model_from_text("g (float[N, 4] x) => (bool[N, 4] y) { y = IsInf (x) }", {})
    assert "does not pass the operator on" in forecast(grid, "migraphx").nodes[0].reason
    # The provider does not check types per operator, and MIGraphX's list may be incomplete: both give a note only.
    product = model_from_text("g (int32[N, 4] x) => (int32[N, 4] y) { y = Mul (x, x) }", {})
    placed = forecast(product, "migraphx").nodes[0]
    assert placed.provider == "migraphx" and placed.reason == "limits: its list names no int32 for the operator"
    wide = model_from_text("g (double[N, 4] x) => (double[N, 4] y) { y = Softmax (x) }", {})
    assert forecast(wide, "hip-ep").nodes[0].reason.startswith("its list names no double")
    wide = model_from_text("g (float[N, 4] x) => (float[N, 4] y) { y = Det (x) }", {})
    assert "does not name" in forecast(wide, "hip-ep").nodes[0].reason


def test_command(graphopt_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_from_text("g (float[N, 4] x) => (float[N, 4] y) { t = Relu (x)  y = Det (t) }", {}), path)
    shown = graphopt_command("explain", path, "--provider", "graphopt").stdout
    assert "0 of 2 nodes on graphopt; CPU: 2 (Relu 1, Det 1)" in shown and "no kernel for this operator" in shown
    data = json.loads(graphopt_command("explain", path, "--provider", "graphopt", "--json").stdout)
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    kind = next(k for k in schema["oneOf"] if k["properties"]["command"]["const"] == data["command"])
    jsonschema.validate(data, {**kind, "$defs": schema["$defs"]})
    text = """g (float[1, 64, 256, 256] x) => (float[1, 64, 256, 256] y) {
        t = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu (t) }"""
    onnx.save(model_from_text(text, {"w": np.ones((64, 64, 3, 3), np.float32)}), path)
    shown = graphopt_command("explain", path, "--provider", "graphopt").stdout
    assert re.search(
        r"graphopt 2 adjacent nodes: an estimated [\d.]+ ms on the device with copies, [\d.]+ ms on", shown
    )
    wrong = graphopt_command("explain", path, "--provider", "tensorrt")
    assert wrong.exit_code == 5 and "choose graphopt, cpu, migraphx, hip-ep" in wrong.stderr
    assert (
        "with --input-shape and --json only"
        in graphopt_command("explain", path, "--provider", "cpu", "--skip", "x").stderr
    )
    with pytest.raises(OptionError):
        forecast(path, "none")


@pytest.mark.parametrize("name", NAMES)
def test_tables_name_operators_as_files_do(name: str) -> None:
    """Tables use the operator names of files, without remarks."""
    table = read(name).operators
    assert [k for k in table if not re.fullmatch(r"((?!ai\.onnx::)[\w.]+::)?\w+", k)] == []


def _checkout(folder: Path, files: dict[str, str]) -> Path:
    """Creates a repository with one commit, as scripts/provider_tables.py reads it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return folder


def test_lists_are_read_as_they_are_meant(tmp_path: Path) -> None:
    """In MIGraphX's list "Any" means no limit; hip-ep's patterns name operators; ONNX Runtime's provider has limits."""
    rule = "+----------+---+--------+--------+\n"
    cells = [("Operator", "", "Types", "Limits"), ("Einsum", "✅", "Any", ""), ("Resize", "✅", "FP16,", "no roi")]
    listed = (
        rule + rule.join(f"| {' | '.join(row)} |\n" for row in cells) + "|          |   | FP32   |        |\n" + rule
    )
    table = provider_tables.migraphx(_checkout(tmp_path / "m", {provider_tables.MIGRAPHX[1]: listed, "src/onnx/a": ""}))
    assert table["operators"] == {
        "Einsum": {"taken": True, "types": [], "limits": ""},
        "Resize": {"taken": True, "types": ["float16", "float"], "limits": "named in its list"},
    }
    provider = """
static bool IsTypeSupported(const NodeArg* node_arg) {
  switch (elem_type) {
    case ONNX_NAMESPACE::TensorProto_DataType::TensorProto_DataType_FLOAT16:
    case ONNX_NAMESPACE::TensorProto_DataType::TensorProto_DataType_BOOL:
      return true;
  }
}
static bool IsUnsupportedOpMode(const Node* node) {
  if (optype == "ArgMax" or optype == "ArgMin") {
    return true;
  }
}
static std::set<std::string> mgx_supported_ops = {"Abs", "ArgMax"};"""
    source = provider_tables.PROVIDER_SOURCE[1]
    accepted = provider_tables.accepted_by_provider(_checkout(tmp_path / "o", {source: provider}))
    assert accepted["types"] == ["bool", "float16"] and accepted["limits"] == ["ArgMax", "ArgMin"]
    pattern = 'struct {0}ToHip {{ {0}ToHip() : RewritePattern("onnx.{1}", 1, ctx) {{}} {2} }};'
    own = 'if (!fn || fn.getValue() != "QMoE") return; if (!domain || domain.getValue() != "com.microsoft") return;'
    hip = {
        provider_tables.HIP_EP[1]: "| Operation | Backend |\n|---|---|\n| Abs | kernel |\n| If | outlined |\n",
        "lib/Conversion/OnnxToHip/Abs.cpp": pattern.format("Abs", "Abs", "") + pattern.format("L2", "ReduceL2", ""),
        "lib/Conversion/OnnxToHip/Pool.cpp": 'patterns.add<PoolToHip>(ctx, "onnx.MaxPool", kPoolMax);',
        "lib/Conversion/OnnxToHip/QMoE.cpp": pattern.format("QMoE", "Custom", own),
    }
    taken = provider_tables.hip_ep(_checkout(tmp_path / "h", hip))["operators"]
    assert list(taken) == ["Abs", "If", "MaxPool", "ReduceL2", "com.microsoft::QMoE"]


def test_types_and_forms_in_provider_tables() -> None:
    sums = model_from_text('g (float[N, 4] x) => (float[a, b] y) { y = Einsum <equation = "ij->ji"> (x) }', {})
    assert [n.provider for n in forecast(sums, "migraphx").nodes] == ["migraphx"]
    # MIGraphX's table has no types for operators that only its parsers list; ONNX Runtime's provider has a global list.
    text = "g (bfloat16[N, 4] x, bfloat16[4] s) => (bfloat16[N, 4] y) { y = SimplifiedLayerNormalization (x, s) }"
    norm = model_from_text(text, check=False)
    assert "does not pass bfloat16 on" in forecast(norm, "migraphx").nodes[0].reason
    last = model_from_text("g (float[N, 4] x) => (int64[a, b] y) { y = ArgMax (x) }", {})
    assert "limits: its provider refuses some nodes" in forecast(last, "migraphx").nodes[0].reason
    power = model_from_text("g (float[N, 4] x, float[4] e) => (float[N, 4] y) { y = Pow (x, e) }", {})
    assert "limits: a constant exponent" in forecast(power, "hip-ep").nodes[0].reason
    gelu = """g (float[N, 4] x, float[4] a) => (float[N, 4] y) {
        t = ReduceL2 (x)  e = Erf (x)  z = Mul (e, t)  y = com.microsoft.Attention <num_heads = 1> (z, a, a) }"""
    said = forecast(model_from_text(gelu, check=False), "hip-ep")
    assert [n.provider for n in said.nodes] == ["hip-ep"] * 4
    assert not any("as a whole" in note for note in said.notes)
    assert "limits: no mask" in said.nodes[3].reason
    left = model_from_text("g (float[N, 4] x) => (float[N, 4] y) { t = Relu (x)  y = Det (t) }", {})
    assert "as a whole" in "".join(forecast(left, "hip-ep").notes)
