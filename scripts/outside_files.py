"""Optimizes every .onnx file under some folders for every target, and compares the results with the originals.

    .venv/bin/python scripts/outside_files.py FOLDER... [--targets cpu,rocm,...] [--log results.jsonl]

Made for third-party files, such as test suites of other projects; docs/measurements/outside_files.md describes the
comparison and the outcomes. Inputs are read from onnx's test data next to the model, or made from the declared types
and shapes. If the original runs on none of these, the inputs of `graphopt verify` are used. Files that run only at ONNX
Runtime's default optimization level are compared at that level. A log has one line of JSON for each file; a run skips
the files that its log has. With --seed the order is random, but the first files cover each project (a folder of
FOLDER), operator and opset. An interrupted run is then a representative sample. Files are written to TMPDIR: a folder
in memory saves most of a run's time.

Exit code 0: no file failed.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnx

from scripts.timing import ROOT, Log
from tests.hostile.foreign_file import RESULT

TARGETS = "cpu,rocm,cuda,migraphx,portable"


def _properties(path: Path, folders: list[Path]) -> set[object]:
    """Returns the properties that a sample should cover: the project, each operator, each opset of standard ONNX."""
    properties: set[object] = {path.relative_to(f).parts[0] for f in folders if path.is_relative_to(f) and path != f}
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:
        return properties
    properties.update((n.domain, n.op_type) for n in model.graph.node)
    properties.update(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return properties


def _in_rounds(paths: list[Path], folders: list[Path]) -> list[Path]:
    """Sorts paths into rounds; each takes, in the order of `paths`, files with a property not yet in the round."""
    left = [(path, _properties(path, folders)) for path in paths]
    ordered: list[Path] = []
    while left:
        seen: set[object] = set()
        later = []
        for path, properties in left:
            if properties <= seen:
                later.append((path, properties))
            else:
                ordered.append(path)
                seen |= properties
        if len(later) == len(left):  # files without properties
            return ordered + [path for path, _ in left]
        left = later
    return ordered


class _Worker:
    """A process that examines files one after the other in a child, which it replaces if the child dies."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.foreign_file"], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def examine(self, path: Path, targets: list[str]) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        runs = True
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        while left := [t for t in targets if t not in found]:
            print(json.dumps([str(path), left, self.seconds, runs]), file=self.process.stdin, flush=True)
            for target in left:
                running = RESULT
                while isinstance(message := json.loads(self.process.stdout.readline()), str):
                    running = message
                if isinstance(message, dict):
                    code = message["ended"]
                    runs = running == RESULT
                    if code in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL):
                        slow = ("slow", f"more than {self.seconds:g} s")
                        return {**dict.fromkeys(left, slow), **found}
                    ended = ("FAILED" if runs else "not run", f"{running} ends the process with {code}")
                    found[target] = ended
                    break
                found[target] = (message[0], message[1])
        return found

    def end(self) -> None:
        self.process.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--targets", default=TARGETS + ",cpu+fp16,rocm+fp16")
    parser.add_argument("--log", type=Path, help="a file of results: read at the start, appended to")
    parser.add_argument("--seconds", type=float, default=120, help="limit of CPU seconds for a file and target")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, help="seed of a random order; without it files are sorted by name")
    options = parser.parse_args()
    targets = options.targets.split(",")
    paths = sorted({p.resolve() for f in options.folders for p in ([f] if f.is_file() else f.rglob("*.onnx"))})
    if options.seed is not None:
        random.Random(options.seed).shuffle(paths)
        paths = _in_rounds(paths, [f.resolve() for f in options.folders])
    log = Log(options.log)
    files: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for path in paths:
        if str(path) not in log.rows:
            files.put(path)

    def work() -> None:
        worker = _Worker(options.seconds)
        while not files.empty():
            try:
                path = files.get_nowait()
            except queue.Empty:
                break
            found = worker.examine(path, targets)
            log.add(str(path), **found)
            for target, (outcome, detail) in found.items():
                if outcome == "FAILED":
                    print(f"{path} {target}: {detail}", flush=True)
        worker.end()

    threads = [threading.Thread(target=work) for _ in range(options.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{len(log.rows)} files")
    for target in targets:
        counts = Counter(found[target][0] for found in log.rows.values() if target in found)
        print(f"{target:12}", ", ".join(f"{outcome} {n}" for outcome, n in sorted(counts.items())))
    return int(any(outcome == "FAILED" for found in log.rows.values() for outcome, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
