"""What `graphopt verify` catches, and that it does not cry wolf.

    .venv/bin/python scripts/planted_faults.py FOLDER [--exports CACHE] [--per-kind N] [--every N] [--only KIND]
    .venv/bin/python scripts/planted_faults.py FOLDER --honest [--exports CACHE] [--seeds N]

Faults of some 170 kinds are planted one at a time (tests/checking/planted) into models as they are, optimized, and in
half precision. How far a fault moves the outputs is measured apart from verify, on inputs of its own, in units of the
honest error of the pair of files; one that moves some slice of an output by more than ten times that is visible, and
must be caught. With --honest, files that differ by rounding only are compared, and none may raise an alarm.

FOLDER keeps what was measured: a run that was stopped goes on where it was. Remove verdicts.jsonl and alarms.jsonl
there to ask another verify about the same faults. Exits 1 when a visible fault was missed, or at a false alarm.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import onnx

import graphopt
from models import ZOO
from tests.checking.planted import KINDS, Facts, honest, plant
from tests.checking.planted.effect import Pair
from tests.checking.planted.subjects import Subject, inputs, subjects

VISIBLE = 10.0
ZOO_NAMES = set(ZOO)


class Log:
    """Lines of JSON by key, appended as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, dict[str, Any]] = {}
        if path.is_file():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.known[row["key"]] = row

    def add(self, key: str, **values: object) -> dict[str, Any]:
        row = {"key": key, **values}
        self.known[key] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row


def bases(subject: Subject, model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The files that faults are planted into: as it is, optimized, in half precision."""
    yield "plain", model
    after, _ = graphopt.optimize(model, target="cpu", all_sites=True)
    yield "optimized", after
    if subject.fp16:
        half, _ = graphopt.optimize(model, target="cpu", precision="fp16")
        yield "fp16", half


def plan(found: list[Subject], per_kind: int, only: str) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """(subject, base) -> (kind, site): at most N of a kind, on as many models as it can."""
    candidates: dict[str, list[tuple[int, str, str, str]]] = defaultdict(list)
    for subject in found:
        for base, model in bases(subject, subject.build()):
            facts = Facts(model, subject.hints)
            for kind, sites in KINDS.items():
                for where, _ in sites(facts) if only in kind else ():
                    rank = zlib.crc32(f"{kind}|{subject.name}|{base}|{where}".encode())
                    candidates[kind].append((rank, subject.name, base, where))
    planned: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for kind, rows in candidates.items():
        taken: dict[str, int] = defaultdict(int)
        chosen: list[tuple[int, str, str, str]] = []
        rows.sort()
        while rows and len(chosen) < per_kind:
            # A model that has none yet comes first.
            row = min(rows, key=lambda r: (taken[r[1]], r[0]))
            rows.remove(row)
            taken[row[1]] += 1
            chosen.append(row)
        for _, subject_name, base, where in chosen:
            planned[subject_name, base].append((kind, where))
    return planned


def judge(before: onnx.ModelProto, faulty: onnx.ModelProto) -> tuple[str, str]:
    """What verify says: caught, refused (an error that says why they cannot be compared) or missed; and its words."""
    try:
        report = graphopt.verify(before, faulty)
    except graphopt.GraphoptError as error:
        return "refused", str(error)
    return ("missed" if report.equal else "caught"), report.summary


def faults(folder: Path, found: list[Subject], per_kind: int, every: int, only: str) -> int:
    effects, verdicts = Log(folder / "effects.jsonl"), Log(folder / "verdicts.jsonl")
    planned = plan(found, per_kind, only)
    keys: list[tuple[str, str, str]] = []
    count = 0
    for subject in found:
        wanted = {b: rows for (s, b), rows in planned.items() if s == subject.name}
        if not wanted:
            continue
        before = subject.build()
        for base, model in bases(subject, before):
            pair: Pair | None = None
            facts = Facts(model, subject.hints)
            for kind, where in wanted.get(base, []):
                count += 1
                if count % every:
                    continue
                key = f"{kind}|{subject.name}|{base}|{where}"
                keys.append((kind, subject.name, key))
                if key in effects.known and (key in verdicts.known or effects.known[key]["effect"] <= VISIBLE):
                    continue
                edit = next(e for w, e in KINDS[kind](facts) if w == where)
                faulty = plant(model, edit)
                if key not in effects.known:
                    pair = pair or Pair(before, model, inputs(subject, before))
                    effects.add(key, effect=min(pair.effect(faulty), 1e30))
                if effects.known[key]["effect"] <= VISIBLE:
                    continue
                start = time.perf_counter()
                verdict, words = judge(before, faulty)
                row = verdicts.add(key, verdict=verdict, words=words, seconds=round(time.perf_counter() - start, 2))
                if row["verdict"] == "missed":
                    print(f"missed: {key}: {effects.known[key]['effect']:.3g} times the honest error", flush=True)
    return table(folder, keys, effects, verdicts)


def table(folder: Path, keys: list[tuple[str, str, str]], effects: Log, verdicts: Log) -> int:
    """Writes the table of kinds to FOLDER/table.md."""
    lines = ["| kind | models | planted | visible | caught |", "|---|---:|---:|---:|---:|"]
    by_kind: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for kind, subject, key in keys:
        by_kind[kind].append((subject, key))
    planted = shown = caught = 0
    for kind, rows in by_kind.items():
        visible = [(s, k) for s, k in rows if effects.known[k]["effect"] > VISIBLE]
        found = sum(verdicts.known[k]["verdict"] != "missed" for _, k in visible)
        lines.append(f"| {kind} | {len({s for s, _ in visible})} | {len(rows)} | {len(visible)} | {found} |")
        planted, shown, caught = planted + len(rows), shown + len(visible), caught + found
    lines.append(f"| all {len(by_kind)} kinds | | {planted} | {shown} | {caught} |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    print(f"{caught} of {shown} visible faults caught; {planted} planted, {len(by_kind)} kinds; {folder / 'table.md'}")
    return 1 if caught < shown else 0


def false_alarms(folder: Path, found: list[Subject], seeds: int, every: int, only: str) -> int:
    alarms = Log(folder / "alarms.jsonl")
    runs = wrong = count = 0
    for subject in found:
        for seed in range(seeds if subject.name in ZOO_NAMES else 1):
            before = ZOO[subject.name](small=True, dynamic=seed % 2 == 0, seed=seed) if seed else subject.build()
            for name, after in honest.pairs(before):
                count += 1
                if count % every or only not in name:
                    continue
                key = f"{name}|{subject.name}|{seed}"
                if key not in alarms.known:
                    start = time.perf_counter()
                    verdict, words = judge(before, after)
                    alarms.add(
                        key, alarm=verdict != "missed", words=words, seconds=round(time.perf_counter() - start, 2)
                    )
                runs += 1
                if alarms.known[key]["alarm"]:
                    wrong += 1
                    print(f"alarm: {key}: {alarms.known[key]['words']}", flush=True)
    print(f"{wrong} false alarms over {runs} honest pairs")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where what was measured is kept")
    parser.add_argument("--exports", type=Path, help="a folder of .onnx files of scripts/export_attention.py")
    parser.add_argument("--no-trained", action="store_true", help="without the models that PyPI has")
    parser.add_argument("--models", default="", help="models whose name contains this")
    parser.add_argument("--per-kind", type=int, default=8, help="at most so many faults of a kind")
    parser.add_argument("--every", type=int, default=1, help="take each N-th")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--honest", action="store_true", help="look for false alarms over honest pairs instead")
    parser.add_argument("--seeds", type=int, default=3, help="weights of the zoo's models in honest pairs")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    found = [s for s in subjects(arguments.exports, not arguments.no_trained) if arguments.models in s.name]
    if arguments.honest:
        return false_alarms(arguments.folder, found, arguments.seeds, arguments.every, arguments.only)
    return faults(arguments.folder, found, arguments.per_kind, arguments.every, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
