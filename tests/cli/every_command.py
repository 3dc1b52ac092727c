"""Runs every command on random files of ONNX's test corpus: no traceback, and each failure is one line with the file.

    .venv/bin/python -m tests.cli.every_command [COUNT [SEED]]

The files are the models of ONNX's backend tests: those in the package onnx, and those that the package generates. The
page of `view` is read once, then Ctrl-C is sent; `optimize-all` gets all files in one run.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import random
import re
import resource
import signal
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx

from graphopt import cli
from graphopt.optimize_all import MANIFEST
from tests.conformance.node_cases import node_cases

COMMANDS = (
    "optimize {model} {out} -q --target cpu --ignore-cost-model --check",
    "explain {model} --target cpu",
    "explain {model} --target cpu --json",
    "diff {model} {out}",
    "verify {model} {out} --effort quick",
    "bench {model} {out} --seconds 0.01 --no-memory --threads 1",
    "bisect {model} --target cpu --ignore-cost-model",
    "lower {out} {lowered}",
    "optimize {model} {again} -q --target cpu --verify --report {page}",
    "optimize {model} {tuned} -q --target cpu --tune --tune-seconds 1 --tuning-cache {cache} --bench --threads 1",
    "optimize {model} {half} -q --target cpu --precision fp16 --verify",
    "optimize {model} {bf16} -q --target cpu --precision bf16 --max-error 0.01 --json {json}",
    "view {model} --target cpu --no-open",
    "serve-config {out} {served} --for kserve",
)
# This command runs once, over all files.
OVER_ALL = "optimize-all {models} {outs} --jobs 2 --target cpu --ignore-cost-model"
# The exit codes of documented failures; 1 is a difference, which would be a finding in this test.
DOCUMENTED = {0, 2, 3, 4, 5, 7, 8, 9}
INTERRUPTED = 130
# In bytes. No model of the corpus needs as much: a command that does has drawn an unreasonable size.
MOST_MEMORY = 2 << 30


def run(arguments: list[str]) -> tuple[int, str, str]:
    """Runs a command in this process; returns exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["graphopt", *arguments]
    # SIGINT may be ignored: an earlier command, or a shell that starts a background job, leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    over, wrong = threading.Event(), list[str]()
    if arguments[0] == "view":
        threading.Thread(target=look, args=(out, over, wrong), daemon=True).start()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        finally:
            over.set()
    gc.collect()  # the command line leaves garbage to the end of its process
    return (-1 if wrong else code), out.getvalue(), "\n".join([err.getvalue(), *wrong])


def look(out: io.StringIO, over: threading.Event, wrong: list[str]) -> None:
    """Reads the page at the address that a command prints, sends Ctrl-C, and records errors of the page."""
    while not over.wait(0.02):
        if found := re.search(r"http://\S+", out.getvalue()):
            try:
                with urllib.request.urlopen(found[0]) as page:
                    if b"</html>" not in page.read():
                        wrong.append(f"{found[0]} has no page")
            except OSError as error:
                wrong.append(f"{found[0]}: {error}")
            signal.raise_signal(signal.SIGINT)
            return


def kind(line: str, folder: str) -> str:
    """Returns a message without the names and numbers of one model."""
    return re.sub(r"'[^']*'", "'...'", re.sub(r"\d+", "0", line.replace(f"{folder}/", "")))


def peak() -> int:
    """Returns the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def over_all(models: dict[str, bytes], codes: Counter[tuple[str, int]]) -> Iterator[str]:
    """Yields the faults of `optimize-all`: each file must succeed, or fail alone with one line that names it."""
    with tempfile.TemporaryDirectory() as folder:
        places = {what: Path(folder) / what for what in ("models", "outs")}
        places["models"].mkdir()
        for case, model in models.items():
            (places["models"] / f"{case}.onnx").write_bytes(model)
        code, _, err = run(OVER_ALL.format(**places).split())
        codes["optimize-all", code] += 1
        lines = [json.loads(line) for line in (places["outs"] / MANIFEST).read_text().splitlines()]
        if code not in (0, 1) or len(lines) != len(models):
            yield f"optimize-all: exit code {code}, {len(lines)} of {len(models)} files: {err.strip()[:300]}"
        for line in lines:
            codes["optimize-all, a file", line["exit_code"]] += 1
            name = Path(line["name"]).name
            if line["exit_code"] not in DOCUMENTED or (line["exit_code"] and name not in line["message"]):
                yield f"{name}: optimize-all: exit code {line['exit_code']}: {line['message'][:300]}"


def main() -> int:
    count, seed = (int(a) for a in (*sys.argv[1:3], *("200", "0")[len(sys.argv) - 1 :]))
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    corpus = {path.parent.name: path.read_bytes() for path in sorted(data.rglob("model.onnx"))}
    corpus |= {name: case.model.SerializeToString() for name, case in node_cases().items() if case.model}
    chosen = random.Random(seed).sample(sorted(corpus), min(count, len(corpus)))
    codes: Counter[tuple[str, int]] = Counter()
    messages: Counter[str] = Counter()
    bad, most = 0, peak()
    for i, case in enumerate(chosen, 1):
        if sys.stderr.isatty():
            print(f"{i} of {len(chosen)}: {case}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            models = ("model", "out", "lowered", "again", "tuned", "half", "bf16")
            places = {what: Path(folder) / f"{what}.onnx" for what in models}
            places |= {"page": Path(folder) / "page.html", "served": Path(folder) / "served"}
            places |= {what: Path(folder) / f"{what}.json" for what in ("cache", "json")}
            places["model"].write_bytes(corpus[case])
            for command in COMMANDS:
                if "{out}" in command and not command.startswith("optimize") and not places["out"].exists():
                    continue
                arguments = command.format(**places).split()
                try:
                    code, _, err = run(arguments)
                except Exception as error:  # a traceback, as a user would see it
                    code, err = -1, f"{type(error).__name__}: {error}"
                codes[arguments[0], code] += 1
                lines = [line for line in err.splitlines() if line.startswith("graphopt: ")]
                said = len(lines) == 1 and any(place.name in lines[0] for place in places.values())
                fine = arguments[0] == "view" and code == INTERRUPTED
                if not fine and (code not in DOCUMENTED or (code not in (0, 8) and not said)):
                    bad += 1
                    print(f"{case}: {command.split()[0]}: exit code {code}: {err.strip()[:300]}", flush=True)
                messages.update(kind(line, folder) for line in lines)
                if peak() > most + MOST_MEMORY:
                    bad, most = bad + 1, peak()
                    print(f"{case}: {command.split()[0]}: {most >> 20} MiB", flush=True)
    for problem in over_all({case: corpus[case] for case in chosen}, codes):
        bad += 1
        print(problem, flush=True)
    for (command, code), n in sorted(codes.items()):
        print(f"{command}: exit code {code}: {n}")
    for message, n in messages.most_common():
        print(f"{n:4} {message}")
    print(f"{len(chosen)} files of {len(corpus)}, {bad} findings")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
