"""Makes the tables of operators that other providers support, for `graphopt explain --provider`, from published lists.

python scripts/provider_tables.py MIGRAPHX HIP_EP ONNXRUNTIME

The arguments are checkouts of github.com/ROCm/AMDMIGraphX, github.com/ROCm/hip-ep and github.com/ROCm/onnxruntime.

Only facts are taken: names of operators, their listed types, and limits. For MIGraphX they come from the table of
docs/dev/onnx_operators.rst. An operator that the table lacks or marks as unsupported counts as supported if a parser
registers its name. ONNX Runtime's MIGraphX provider accepts fewer names and types; these are taken from its source. For
hip-ep the facts come from its list and from the patterns that its conversions register; their limits were read by hand.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphopt.placement.provider_tables import FOLDER

MIGRAPHX = ("https://github.com/ROCm/AMDMIGraphX", "docs/dev/onnx_operators.rst")
HIP_EP = ("https://github.com/ROCm/hip-ep", "docs/supported-operations.md")
HIP_EP_CONVERSIONS = "lib/Conversion/OnnxToHip"
PROVIDER_SOURCE = (
    "https://github.com/ROCm/onnxruntime",
    "onnxruntime/core/providers/migraphx/migraphx_execution_provider.cc",
)
TYPES = {"FP8": "float8e4m3fnuz", "FP16": "float16", "FP32": "float", "FP64": "double", "BFLOAT16": "bfloat16"}
# The commit of hip-ep in which the following limits were read: for operators with forms that its conversions refuse or
# ignore, the forms that they accept and implement.
HIP_EP_READ_AT = "6f3347267aa7bb3a3373485df2e42ebe2d306640"
_HEADS = "known numbers of heads and a known size of the cos cache"
_POOLED = "1 to 3 spatial dimensions; auto_pad SAME with known sizes"
HIP_EP_FORMS = {
    "Attention": "no mask of bool, nonpad_kv_seqlen or qk_matmul_output; known numbers and sizes of heads",
    "AveragePool": _POOLED,
    "Cast": "to bool, integers of 8 to 64 bits, bfloat16, float16, float and double",
    "Conv": "1 or 2 spatial dimensions, 1 without dilations; auto_pad is not read",
    "ConvTranspose": "2 spatial dimensions; auto_pad and output_shape are not read",
    "Erf": "in a Gelu that is written out",
    "Expand": "a known rank of the result",
    "Flatten": "no scalar",
    "GatherND": "a known last size of the indices",
    "If": "known sizes of the outputs; no If in its branches",
    "Loop": "a trip count; no scan outputs, no Loop in its body",
    "LpPool": _POOLED,
    "MaxPool": f"{_POOLED}; no storage_order",
    "Pad": "constant axes where sizes are open",
    "Pow": "a constant exponent: 0.5, -0.5 or whole, from -16 to 16 without 0",
    "Resize": "nearest or linear, over 1 to 3 spatial dimensions to known sizes; half_pixel, asymmetric or "
    "align_corners; no antialias, axes or exclude_outside",
    "RotaryEmbedding": _HEADS,
    "SimplifiedLayerNormalization": "axis, epsilon and stash_type are written",
    "Softmax": "the last axis: axis is not read",
    "com.microsoft::Attention": "no mask, past, rotary or causal form; known sizes, as many for V as for Q",
    "com.microsoft::GatherBlockQuantized": "4 or 8 bits",
    "com.microsoft::MultiHeadAttention": "known sizes of the key, or of present_key",
    "com.microsoft::RotaryEmbedding": _HEADS,
    "com.microsoft::SkipLayerNormalization": "no bias of the input",
    "com.microsoft::SkipSimplifiedLayerNormalization": "epsilon is written",
}
# Types of the data, if the compiler refuses some of ONNX's.
HIP_EP_TYPES = {
    "MaxPool": ["bfloat16", "float16", "float", "double"],
    "NonZero": ["bool", "int8", "uint8", "int32", "int64", "float16", "float"],
    "Softmax": ["bfloat16", "float16", "float"],
}


def git(checkout: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=True).stdout


def source(checkout: Path, repository: str, path: str) -> dict[str, Any]:
    commit, date = git(checkout, "log", "-1", "--format=%H %cs", "HEAD").split()
    return {"repository": repository, "commit": commit, "date": date, "list": path}


def migraphx(checkout: Path) -> dict[str, Any]:
    table: dict[str, Any] = {}
    name = ""
    for line in git(checkout, "show", f"HEAD:{MIGRAPHX[1]}").splitlines():
        if line.startswith("+"):
            name = ""
        if not line.startswith("|"):
            continue
        first, supported, types, limits = (cell.strip() for cell in line.strip("|").split("|"))
        if first and not name:
            name = first.removesuffix(" (deprecated)")
            table[name] = {"taken": supported == "✅", "types": [], "limits": ""}
        elif first:  # a name split over two lines
            table[name + first] = table.pop(name)
            name += first
        if name:
            table[name]["types"] += [TYPES.get(t, t.lower()) for t in re.findall(r"\w+", types) if t != "Any"]
            if limits:
                table[name]["limits"] = "named in its list"
    table.pop("Operator", None)
    parsed = set()
    for path in git(checkout, "ls-tree", "--name-only", "HEAD", "src/onnx/").split():
        text = git(checkout, "show", f"HEAD:{path}") if re.search(r"/parse_\w+\.cpp$", path) else ""
        for body in re.findall(r"operators\(\)\s*const[^{]*\{\s*return\s*\{(.*?)\};", text, re.S):
            parsed |= set(re.findall(r'\{\s*"(\w+)"', body))
    # The table is incomplete: a parser may support an operator that the table marks as unsupported.
    for operator in sorted(o for o in parsed if not table.get(o, {"taken": False})["taken"]):
        table[operator] = {"taken": True, "types": [], "limits": ""}
    return {**source(checkout, *MIGRAPHX), "any_domain": True, "operators": dict(sorted(table.items()))}


def accepted_by_provider(checkout: Path) -> dict[str, Any]:
    """Returns the names and types that the provider accepts, and the operators with unsupported forms."""
    text = git(checkout, "show", f"HEAD:{PROVIDER_SOURCE[1]}")

    def words(function: str, pattern: str) -> list[str]:
        body = re.search(rf"static bool {function}\(.*?^\}}", text, re.S | re.M)
        assert body is not None
        return sorted(set(re.findall(pattern, body[0])))

    listed = re.search(r"mgx_supported_ops\s*=\s*\{(.*?)\};", text, re.S)
    assert listed is not None
    return {
        **source(checkout, *PROVIDER_SOURCE),
        "types": [t.lower() for t in words("IsTypeSupported", r"case \S*DataType_(\w+):")],
        "limits": words("IsUnsupportedOpMode", r'optype == "(\w+)"'),
        "operators": sorted(set(re.findall(r'"(\w+)"', listed[1]))),
    }


def converted(text: str) -> list[str]:
    """Returns the root operators of the patterns in a file; those outside of ONNX's domain as DOMAIN::NAME."""
    names = re.findall(r'RewritePattern\("onnx\.(\w+)"', text) + re.findall(r'\(ctx, "onnx\.(\w+)"', text)
    compared = [c for c in re.findall(r'getValue\(\) [!=]= "([\w.]+)"', text) if "Custom" in names]
    for name, after in itertools.pairwise([*compared, ""]):
        if name != "com.microsoft":
            names.append(f"{after}::{name}" if after == "com.microsoft" else name)
    return [n for n in names if n != "Custom"]


def hip_ep(checkout: Path) -> dict[str, Any]:
    names = set()
    for line in git(checkout, "show", f"HEAD:{HIP_EP[1]}").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        # "Add", "BiasGelu (`com.microsoft`)", "Where / Select"
        found = re.fullmatch(r"((?:[A-Z]\w+)(?:\s*[/,]\s*[A-Z]\w+)*)(?:\s*\(`([\w.]+)`.*\))?", cells[0])
        if not line.startswith("|") or len(cells) < 2 or found is None or cells[0] == "Operation":
            continue
        domain = f"{found[2]}::" if found[2] not in (None, "ai.onnx") else ""
        names |= {domain + name for name in re.findall(r"\w+", found[1])}
    for path in git(checkout, "ls-tree", "--name-only", "HEAD", f"{HIP_EP_CONVERSIONS}/").split():
        names |= set(converted(git(checkout, "show", f"HEAD:{path}")))
    table = {
        name: {"taken": True, "types": HIP_EP_TYPES.get(name, []), "limits": HIP_EP_FORMS.get(name, "")}
        for name in sorted(names)
    }
    where = f"{HIP_EP[1]} and {HIP_EP_CONVERSIONS}"
    return {**source(checkout, HIP_EP[0], where), "any_domain": False, "operators": table}


def main() -> None:
    migraphx_table = {**migraphx(Path(sys.argv[1])), "provider": accepted_by_provider(Path(sys.argv[3]))}
    hip_ep_table = hip_ep(Path(sys.argv[2]))
    if hip_ep_table["commit"] != HIP_EP_READ_AT:
        commit = hip_ep_table["commit"]
        sys.exit(f"compare HIP_EP_FORMS and HIP_EP_TYPES with hip-ep's sources at {commit}, then set HIP_EP_READ_AT")
    for name, content in (("migraphx", migraphx_table), ("hip-ep", hip_ep_table)):
        rows = ",\n".join(f'    "{op}": {json.dumps(facts)}' for op, facts in content.pop("operators").items())
        head = json.dumps(content, indent=2).removesuffix("\n}")
        (FOLDER / f"{name}.json").write_text(f'{head},\n  "operators": {{\n{rows}\n  }}\n}}\n')
        print(f"{name}: {rows.count(chr(10)) + 1} operators at {content['commit'][:10]}")


if __name__ == "__main__":
    main()
