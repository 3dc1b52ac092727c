"""Makes the tables of what other providers take, for `graphopt explain --provider`, out of their published lists.

python scripts/peer_operators.py MIGRAPHX HIP_EP ONNXRUNTIME

with checkouts of github.com/ROCm/AMDMIGraphX, of github.com/ROCm/hip-ep and of github.com/ROCm/onnxruntime.

Only facts are taken: names of operators, the types that are listed for them, and whether limits are. For MIGraphX they
come from the table of docs/dev/onnx_operators.rst and, for operators that it lacks or denies, from the names that the
parsers register; and from the names that ONNX Runtime's MIGraphX provider hands on, which are fewer.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graphopt.placement.peers import FOLDER

MIGRAPHX = ("https://github.com/ROCm/AMDMIGraphX", "docs/dev/onnx_operators.rst")
HIP_EP = ("https://github.com/ROCm/hip-ep", "docs/supported-operations.md")
HANDED_ON = (
    "https://github.com/ROCm/onnxruntime",
    "onnxruntime/core/providers/migraphx/migraphx_execution_provider.cc",
)
TYPES = {"FP8": "float8e4m3fnuz", "FP16": "float16", "FP32": "float", "FP64": "double", "BFLOAT16": "bfloat16"}


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
            table[name] = {"taken": supported == "✅", "types": [], "limits": False}
        elif first:  # a name of two lines
            table[name + first] = table.pop(name)
            name += first
        if name:
            table[name]["types"] += [TYPES.get(t, t.lower()) for t in re.findall(r"\w+", types)]
            table[name]["limits"] |= bool(limits)
    table.pop("Operator", None)
    parsed = set()
    for path in git(checkout, "ls-tree", "--name-only", "HEAD", "src/onnx/").split():
        text = git(checkout, "show", f"HEAD:{path}") if re.search(r"/parse_\w+\.cpp$", path) else ""
        for body in re.findall(r"operators\(\)\s*const[^{]*\{\s*return\s*\{(.*?)\};", text, re.S):
            parsed |= set(re.findall(r'\{\s*"(\w+)"', body))
    # The table knows less than the parsers: what it says no of may be read all the same.
    for operator in sorted(o for o in parsed if not table.get(o, {"taken": False})["taken"]):
        table[operator] = {"taken": True, "types": [], "limits": False}
    return {**source(checkout, *MIGRAPHX), "any_domain": True, "operators": dict(sorted(table.items()))}


def handed_on(checkout: Path) -> dict[str, Any]:
    text = git(checkout, "show", f"HEAD:{HANDED_ON[1]}")
    listed = re.search(r"mgx_supported_ops\s*=\s*\{(.*?)\};", text, re.S)
    assert listed is not None
    return {**source(checkout, *HANDED_ON), "operators": sorted(set(re.findall(r'"(\w+)"', listed[1])))}


def hip_ep(checkout: Path) -> dict[str, Any]:
    table = {}
    for line in git(checkout, "show", f"HEAD:{HIP_EP[1]}").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        # "Add", "BiasGelu (`com.microsoft`)", "Where / Select"
        found = re.fullmatch(r"((?:[A-Z]\w+)(?:\s*[/,]\s*[A-Z]\w+)*)(?:\s*\(`([\w.]+)`.*\))?", cells[0])
        if not line.startswith("|") or len(cells) < 2 or found is None or cells[0] == "Operation":
            continue
        domain = f"{found[2]}::" if found[2] not in (None, "ai.onnx") else ""
        for name in re.findall(r"\w+", found[1]):
            table[domain + name] = {"taken": True, "types": [], "limits": False}
    return {**source(checkout, *HIP_EP), "any_domain": False, "operators": dict(sorted(table.items()))}


def main() -> None:
    mine = {**migraphx(Path(sys.argv[1])), "provider": handed_on(Path(sys.argv[3]))}
    for name, content in (("migraphx", mine), ("hip-ep", hip_ep(Path(sys.argv[2])))):
        rows = ",\n".join(f'    "{op}": {json.dumps(facts)}' for op, facts in content.pop("operators").items())
        head = json.dumps(content, indent=2).removesuffix("\n}")
        (FOLDER / f"{name}.json").write_text(f'{head},\n  "operators": {{\n{rows}\n  }}\n}}\n')
        print(f"{name}: {rows.count(chr(10)) + 1} operators at {content['commit'][:10]}")


if __name__ == "__main__":
    main()
