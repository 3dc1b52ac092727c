"""Optimizes the same models with two checkouts and compares the output files byte by byte.

    .venv/bin/python scripts/same_bytes.py main              # this tree against a commit
    .venv/bin/python scripts/same_bytes.py main --verify     # and runs the files that differ against their originals
    .venv/bin/python scripts/same_bytes.py main --models DIR # models of DIR; they are made there when it is empty

The models: the zoo, trained models (those that can be downloaded), graphs of 2,000 nodes, random graphs, and the models
of HARVESTED_TESTS. These are all models of at most MAX_HARVESTED_BYTES that the tests pass to graphopt. The zoo and the
trained models are optimized with every set of OPTION_SETS, the others with "cpu, every legal rewrite" and one more set.
DIR keeps the commit's results. Files that differ are listed with the rewrites that only one side has. The exit code is
1 if files differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import onnx
import pytest

import graphopt
from graphopt.graph import reading
from graphopt.ops import DOMAIN
from models import ZOO
from models.pypi import TRAINED, fetch
from models.scale import SHAPES
from scripts.timing import ROOT, check_out

# Name of an option set -> arguments of `optimize`.
OPTION_SETS: dict[str, dict[str, Any]] = {
    "cpu": {"target": "cpu"},
    "cpu, every legal rewrite": {"target": "cpu", "ignore_cost_model": True},
    "rocm": {"target": "rocm"},
    "cuda, every legal rewrite, fp16": {"target": "cuda", "ignore_cost_model": True, "precision": "fp16"},
    "portable": {"target": "portable"},
    "migraphx": {"target": "migraphx"},
}
HARVESTED_TESTS = ("tests/passes", "tests/conformance/test_conformance.py", "tests/test_quantized.py")
# The largest model taken from a test; larger ones are left out.
MAX_HARVESTED_BYTES = 4_000_000

# Reads a list of [path, option set, arguments]. Prints one JSON line for each: model, option set, digest of the output,
# and rewrites.
WORKER = """
import hashlib, json, sys
from collections import Counter
from pathlib import Path
import graphopt
assert Path(graphopt.__file__).is_relative_to(Path.cwd()), graphopt.__file__
scratch = Path(sys.argv[1])
for path, option_set, arguments in json.load(sys.stdin):
    try:
        _, report = graphopt.optimize(path, scratch, **arguments)
        digest = hashlib.sha256(scratch.read_bytes()).hexdigest()
        rewrites = Counter(f"{r.pass_name} at {', '.join(r.nodes)}: {r.detail}" for r in report.remarks if r.applied)
    except Exception as error:
        digest, rewrites = f"{type(error).__name__}: {error}", Counter()
    print(json.dumps([Path(path).stem, option_set, digest, rewrites]), flush=True)
"""


# (model, key in OPTION_SETS) -> digest, rewrites
Results = dict[tuple[str, str], tuple[str, Counter[str]]]


def harvest(folder: Path) -> None:
    """Writes each model that tests pass to graphopt, except for graphopt's own outputs."""
    original_load = reading.load

    def load(original: Any, progress: Any = None, *, copy: bool = True) -> reading.Source:
        plain = isinstance(original, onnx.ModelProto) and all(f.domain != DOMAIN for f in original.functions)
        data = original.SerializeToString(deterministic=True) if plain else b""
        if 0 < len(data) <= MAX_HARVESTED_BYTES:
            (folder / f"test-{hashlib.sha256(data).hexdigest()[:12]}.onnx").write_bytes(data)
        return original_load(original, progress, copy=copy)

    # Replaced before the tests import it.
    reading.load = load
    os.chdir(ROOT)
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *HARVESTED_TESTS])
    reading.load = original_load


def make_models(folder: Path, random: int) -> None:
    """Writes all models to a folder."""
    harvest(folder)
    # After the harvest, since this import loads modules that the tests import.
    from tests.fuzz.generator import generate

    for name, build in ZOO.items():
        for dynamic in (False, True):
            path = folder / f"zoo-{name}-{'dynamic' if dynamic else 'static'}.onnx"
            onnx.save(build(small=True, dynamic=dynamic), path)
    for name in TRAINED:
        try:
            (folder / f"trained-{name}.onnx").write_bytes(fetch(name).read_bytes())
        except OSError as error:
            print(f"left out: {name}: {error}")
    for name, shape in SHAPES.items():
        onnx.save(shape(2000), folder / f"scale-{name}.onnx")
    for seed in range(random):
        onnx.save(generate(seed).model, folder / f"random-{seed}.onnx")


def work_list(folder: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Returns path of a model, key in OPTION_SETS, arguments of `optimize`."""
    work = []
    first, *others = [option_set for option_set in OPTION_SETS if option_set != "cpu"]
    for i, path in enumerate(sorted(folder.glob("*.onnx"))):
        has_every_set = path.stem.startswith(("zoo", "trained"))
        option_sets = list(OPTION_SETS) if has_every_set else [first, others[i % len(others)]]
        work += [(str(path), option_set, OPTION_SETS[option_set]) for option_set in option_sets]
    return work


def optimize_all(tree: Path, folder: Path, scratch: Path) -> Results:
    """Optimizes all models with the graphopt of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(scratch)],
        cwd=tree,
        env=environment,
        input=json.dumps(work_list(folder)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = map(json.loads, done.stdout.splitlines())
    return {(model, option_set): (digest, Counter(rewrites)) for model, option_set, digest, rewrites in lines}


def optimized_by(commit: str, folder: Path, work: Path) -> Results:
    """Returns a commit's results for all models, which are kept in the folder."""
    kept = folder / f"{commit}.json"
    if kept.exists():
        lines = json.loads(kept.read_text())
        return {(model, option_set): (digest, Counter(rewrites)) for model, option_set, digest, rewrites in lines}
    before = work / "before"
    check_out(commit, before)
    results = optimize_all(before, folder, work / "out.onnx")
    kept.write_text(json.dumps([[*key, *value] for key, value in results.items()]))
    return results


def verdict(path: Path, option_set: str, out: Path) -> str:
    """Verifies that this tree's file computes the same as the original."""
    try:
        graphopt.optimize(path, out, **OPTION_SETS[option_set])
        return graphopt.verify(path, out).summary
    except graphopt.GraphoptError as error:
        return f"not compared: {str(error).splitlines()[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the commit to compare this tree with")
    parser.add_argument("--models", type=Path, help="the folder of the models; they are made there if it is empty")
    parser.add_argument("--random", type=int, default=200, help="number of random graphs")
    parser.add_argument("--verify", action="store_true", help="run files that differ against their originals")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = (arguments.models or work / "models").resolve()
        folder.mkdir(exist_ok=True)
        if not any(folder.glob("*.onnx")):
            make_models(folder, arguments.random)
        command = ["git", "rev-parse", arguments.commit]
        commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        old = optimized_by(commit, folder, work)
        new = optimize_all(ROOT, folder, work / "out.onnx")
        differing = [key for key in old if old[key][0] != new[key][0]]
        for model, option_set in differing:
            (_, rewrites_before), (digest, rewrites_after) = old[model, option_set], new[model, option_set]
            print(f"{model}, {option_set}" + ("" if len(digest) == 64 else f": {digest[:300]}"))
            for rewrite, count in (rewrites_after - rewrites_before).items():
                print(f"  + {count} x {rewrite[:200]}")
            for rewrite, count in (rewrites_before - rewrites_after).items():
                print(f"  - {count} x {rewrite[:200]}")
            if arguments.verify:
                print(f"  {verdict(folder / f'{model}.onnx', option_set, work / 'verified.onnx')}")
        changed = sum(bool(rewrites) for _, rewrites in old.values())
        print(f"{len(old)} files of {len({m for m, _ in old})} models, {changed} rewritten: {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
