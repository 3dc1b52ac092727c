"""The conformance cases T1 to T40 through released optimizers, as the table of docs/conformance.md.

    .venv-ort/bin/python scripts/conformance_peers.py [PEER ...]

The models are those of tests/conformance/test_conformance.py. Each peer optimizes them in a throw-away environment, so
that this is no part of CI; both files then run here with the runtime's own optimizations off.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graphopt
from graphopt.checking.compare import difference
from tests.conformance import test_conformance
from tests.rewriting import Array, assert_same_outputs, run

LIMIT = 1e-3
# Verdicts, the worst first. A case has the worst verdict of its models.
VERDICTS = {
    "W": "other numbers",
    "B": "a model that does not load",
    "X": "an exception, or a crash",
    "I": "another interface",
    "ok": "equal",
}

WORKER = """
import sys, traceback
from pathlib import Path
{imports}
for source in map(str, sorted(Path(sys.argv[1]).glob("*.in.onnx"))):
    out = source.replace(".in.onnx", ".out.onnx")
    mark = Path(source.replace(".in.onnx", ".error"))
    if mark.exists() or Path(out).exists():
        continue
    mark.write_text("crash")
    try:
{optimize}
        mark.unlink()
    except BaseException as error:
        mark.write_text(type(error).__name__ + ": " + str(error)[:200])
"""


@dataclass(frozen=True)
class Peer:
    """An optimizer: its packages (none for what is installed here), and the code that turns `source` into `out`."""

    packages: str
    imports: str
    optimize: str


ORT = """
o = ort.SessionOptions()
o.log_severity_level = 4
o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_{level}
o.optimized_model_filepath = out
ort.InferenceSession(source, o, providers=["CPUExecutionProvider"])
"""
PEERS = {
    "graphopt": Peer("", "import graphopt", "graphopt.optimize(source, out, target='cpu')"),
    "onnxruntime basic": Peer("onnxruntime==1.32.0", "import onnxruntime as ort", ORT.format(level="BASIC")),
    "onnxruntime extended": Peer("onnxruntime==1.32.0", "import onnxruntime as ort", ORT.format(level="EXTENDED")),
    "onnxruntime.transformers": Peer(
        "onnxruntime==1.32.0 onnx==1.23.2 sympy coloredlogs packaging",
        "from onnxruntime.transformers.optimizer import optimize_model",
        "optimize_model(source, model_type='bert', opt_level=0).save_model_to_file(out)",
    ),
    "onnxsim": Peer(
        "onnxsim==0.8.1 onnxruntime==1.32.0", "import onnx, onnxsim", "onnx.save(onnxsim.simplify(source)[0], out)"
    ),
    "onnxslim": Peer("onnxslim==0.1.98 onnxruntime==1.32.0", "import onnxslim", "onnxslim.slim(source, out)"),
    "onnxscript": Peer(
        "onnxscript==0.7.2 onnx==1.23.2",
        "import onnx\nfrom onnxscript import optimizer, rewriter",
        "onnx.save(rewriter.rewrite(optimizer.optimize(onnx.load(source))), out)",
    ),
}


class Recorder:
    """Runs the conformance tests and keeps each model that they optimize, with the inputs that they compare it on."""

    def __init__(self) -> None:
        self.cases: dict[str, list[tuple[onnx.ModelProto, dict[str, Array] | None]]] = defaultdict(list)
        self._number = ""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        found = re.match(r"test_t(\d+)_", item.name)
        self._number = f"T{int(found.group(1))}" if found else ""

    def record(self) -> None:
        original, compare = test_conformance.optimized, assert_same_outputs

        def optimized(model: onnx.ModelProto, target: str = "cpu") -> Any:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            if all(model != m for m, _ in self.cases[self._number]) and not any(
                f.domain == graphopt.ops.DOMAIN for f in model.functions
            ):
                self.cases[self._number].append((copy, None))
            return original(model, target)

        def compared(before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict[str, Array], *rest: Any) -> Any:
            models = self.cases[self._number]
            self.cases[self._number] = [(m, dict(feeds) if m == before else f) for m, f in models]
            return compare(before, after, feeds, *rest)

        vars(test_conformance).update(optimized=optimized, assert_same_outputs=compared)
        pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", test_conformance.__file__], plugins=[self])


def changed_interface(before: onnx.ModelProto, after: onnx.ModelProto) -> str:
    """What callers rely on and do not find any more; empty when nothing."""

    def inputs(model: onnx.ModelProto) -> list[Any]:
        initializers = {t.name for t in model.graph.initializer}
        dims = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
        return [(v.name, v.name in initializers, d) for v, d in zip(model.graph.input, dims)]

    if inputs(before) != inputs(after):
        return f"inputs {inputs(before)} became {inputs(after)}"
    if [v.name for v in before.graph.output] != [v.name for v in after.graph.output]:
        return "outputs"
    lost = {(p.key, p.value) for p in before.metadata_props} - {(p.key, p.value) for p in after.metadata_props}
    return f"metadata {lost}" if lost else ""


def verdict(source: Path, feeds: dict[str, Array] | None) -> tuple[str, str]:
    """What became of one model, and why."""
    out, mark = (Path(str(source).replace(".in.onnx", end)) for end in (".out.onnx", ".error"))
    if mark.exists() or not out.exists():
        return "X", mark.read_text() if mark.exists() else "no file"
    before, after = onnx.load(source), onnx.load(out)
    changed = changed_interface(before, after)
    if feeds is not None:
        try:
            want = run(before, feeds)
        except Exception:  # the runtime takes the original no more than the result
            return ("I", changed) if changed else ("ok", "")
        try:
            got = run(after, feeds)
        except Exception as error:
            return ("I", changed) if changed else ("B", str(error))
        if len(got) != len(want):
            return "I", changed
        for a, b in zip(want, got, strict=True):
            structure, _, moved, _, _ = difference(np.asarray(a), np.asarray(b))
            if structure or not moved <= LIMIT:
                return "W", structure or f"{moved:.2g} of RMS"
    return ("I", changed) if changed else ("ok", "")


def optimize_all(peer: Peer, folder: Path, environments: Path) -> None:
    """Lets the peer optimize every model of the folder, and again behind each that ends its process."""
    python = Path(sys.executable)
    if peer.packages:
        place = environments / re.sub(r"\W+", "_", peer.packages)
        python = place / "bin/python"
        if not place.exists():
            venv.create(place, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "-qq", *peer.packages.split()], check=True)
    indented = "\n".join(" " * 8 + line for line in peer.optimize.strip().splitlines())
    script = WORKER.format(imports=peer.imports, optimize=indented)
    for _ in range(20):
        done = subprocess.run([python, "-c", script, folder], capture_output=True, cwd=folder, check=False)
        if done.returncode == 0:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", help=", ".join(PEERS))
    names = parser.parse_args().peers or list(PEERS)
    recorder = Recorder()
    recorder.record()
    order = sorted(recorder.cases, key=lambda t: int(t[1:]))
    table: dict[str, list[str]] = {t: [] for t in order}
    with tempfile.TemporaryDirectory() as name:
        for peer in names:
            folder = Path(name) / re.sub(r"\W+", "_", peer)
            folder.mkdir()
            models = {}
            for t in order:
                for i, (model, feeds) in enumerate(recorder.cases[t]):
                    path = folder / f"{t}-{i:02}.in.onnx"
                    onnx.save(model, path)
                    models[path] = (t, feeds)
            optimize_all(PEERS[peer], folder, Path(name))
            found = defaultdict(list)
            for path, (t, feeds) in models.items():
                code, why = verdict(path, feeds)
                found[t].append(code)
                if why:
                    print(f"{peer}, {path.name}: {code}: {' '.join(why.split())[:200]}", file=sys.stderr)
            for t in order:
                table[t].append(min(found[t] or ["ok"], key=list(VERDICTS).index))
    print("| case | models |", " | ".join(names), "|")
    print("|---|--:|" + "---|" * len(names))
    for t in order:
        print(f"| {t} | {len(recorder.cases[t])} |", " | ".join(table[t]), "|")
    print("\n" + ", ".join(f"{code}: {meaning}" for code, meaning in VERDICTS.items()))


if __name__ == "__main__":
    main()
