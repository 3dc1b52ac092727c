"""Plants faults and runs `graphopt verify` on them; --equivalent verifies equivalent pairs, which must raise no alarm.

    .venv/bin/python scripts/planted_faults.py FOLDER [--exports CACHE] [--per-kind N] [--every N] [--only KIND]
    .venv/bin/python scripts/planted_faults.py FOLDER --equivalent [--exports CACHE] [--seeds N]

docs/measurements/planted_faults.md describes the faults, which tests/verification/planted makes. The effect of a fault
on the outputs is measured independently of verify and on other inputs. Its unit is the noise floor of the pair of
files. A fault that moves some slice of an output by more than ten times this floor is visible, and must be caught. With
--equivalent, files that differ only by rounding are compared, and none may raise an alarm.

Each of --jobs single-threaded processes takes a few faults of one file at a time. FOLDER keeps a line of JSON for each
fault. A run prints missed faults, failures and a summary, and writes FOLDER/table.md; with --equivalent it prints false
alarms and writes no table. A run that --seconds or a signal stops does the same for its results so far, and the next
run continues it. Remove verdicts.jsonl and alarms.jsonl in FOLDER to run another verify on the same faults. Exits 1
after a missed visible fault, a false alarm, or an error.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
import traceback
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import onnx
import onnxruntime

import graphopt
from models import ZOO
from scripts.timing import Log, heading, line
from tests.verification.planted import KINDS, Facts, choices, equivalent, plant, reach
from tests.verification.planted.effect import Pair, computes_in_bfloat16
from tests.verification.planted.subjects import Subject, inputs, subjects

VISIBLE = 10.0
ZOO_NAMES = set(ZOO)
# The largest number of faults in one task.
CHUNK = 8


def bases(subject: Subject, model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields the files to plant faults into: unchanged, optimized, in half precision, in bfloat16 if that applies."""
    yield "plain", model
    after, _ = graphopt.optimize(model, target="cpu", ignore_cost_model=True)
    yield "optimized", after
    for precision in ("fp16", "bf16") if subject.half else ():
        half, _ = graphopt.optimize(model, target="cpu", precision=precision)
        if precision == "fp16" or computes_in_bfloat16(half):
            yield precision, half


def every_subject(exports: Path | None, trained: bool) -> list[Subject]:
    return [*subjects(exports, trained), *reach.subjects(), *choices.subjects()]


def judge(before: onnx.ModelProto, faulty: onnx.ModelProto) -> tuple[str, dict[str, Any]]:
    """Returns caught, refused (the files cannot be compared) or missed; and verify's message and seconds."""
    start = time.perf_counter()
    try:
        report = graphopt.verify(before, faulty)
        verdict, words = ("missed" if report.equal else "caught"), report.summary
    except graphopt.GraphoptError as error:
        verdict, words = "refused", str(error)
    return verdict, {"words": words, "seconds": round(time.perf_counter() - start, 2)}


# -- the worker process ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A unit of work for one process.

    Attributes:
        what: "sites" lists the places for faults, "faults" plants and judges faults, "equivalent" judges pairs.
        subject: name of the subject.
        base: the file to plant faults into.
        rows: (kind, site) of each fault; for equivalent pairs ("", seed).
        only: kinds, or equivalent changes, with this in their name.
    """

    what: str
    subject: str
    base: str = ""
    rows: Sequence[tuple[str, str]] = ()
    only: str = ""


@dataclass
class Worker:
    """The state that a process keeps between its tasks."""

    folder: Path
    subjects: Mapping[str, Subject]
    announce: Callable[[str], None]  # sends the key of the fault that begins
    effects: Log = field(init=False)
    verdicts: Log = field(init=False)
    alarms: Log = field(init=False)
    _base: tuple[str, str] = ("", "")
    _pair: tuple[onnx.ModelProto, onnx.ModelProto, Pair] | None = None

    def __post_init__(self) -> None:
        self.effects, self.verdicts = (Log(self.folder / f"{name}.jsonl") for name in ("effects", "verdicts"))
        self.alarms = Log(self.folder / "alarms.jsonl")

    def run(self, task: Task) -> list[tuple[str, str, str]]:
        subject = self.subjects[task.subject]
        if task.what == "sites":
            return self.sites(subject, task.only)
        if task.what == "equivalent":
            self.equivalent(subject, int(task.rows[0][1]), task.only)
        else:
            self.faults(subject, task.base, task.rows)
        return []

    def sites(self, subject: Subject, only: str) -> list[tuple[str, str, str]]:
        """Returns (kind, base, site) of all faults that can be planted."""
        found = []
        for base, model in bases(subject, subject.build()):
            facts = Facts(model, subject.hints)
            for kind, sites in KINDS.items():
                found += [(kind, base, where) for where, _ in sites(facts)] if only in kind else []
        return found

    def faults(self, subject: Subject, base: str, rows: Sequence[tuple[str, str]]) -> None:
        if self._base != (subject.name, base) or self._pair is None:
            before = subject.build()
            model = next(m for b, m in bases(subject, before) if b == base)
            pair = Pair(before, model, inputs(subject, before), exact=subject.exact)
            self._base, self._pair = (subject.name, base), (before, model, pair)
        before, model, pair = self._pair
        facts = Facts(model, subject.hints)
        for kind, where in rows:
            key = f"{kind}|{subject.name}|{base}|{where}"
            self.announce(key)
            faulty = plant(model, next(e for w, e in KINDS[kind](facts) if w == where))
            if key not in self.effects.rows:
                made = reach.sets(subject, before, kind, where)
                measured = Pair(before, model, made, exact=subject.exact) if made else pair
                self.effects.add(key, effect=min(measured.effect(faulty), 1e30))
            if self.effects.rows[key]["effect"] <= VISIBLE or key in self.verdicts.rows:
                continue
            verdict, details = judge(before, faulty)
            self.verdicts.add(key, verdict=verdict, **details)

    def equivalent(self, subject: Subject, seed: int, only: str) -> None:
        before = ZOO[subject.name](small=True, dynamic=seed % 2 == 0, seed=seed) if seed else subject.build()
        for name, after in equivalent.pairs(before):
            key = f"{name}|{subject.name}|{seed}"
            if only not in name or key in self.alarms.rows:
                continue
            self.announce(key)
            verdict, details = judge(before, after)
            self.alarms.add(key, alarm=verdict != "missed", **details)


class OneThread(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Session options with one thread, since there are as many processes as processors."""

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 1


def serve(connection: Connection, folder: Path, exports: Path | None, trained: bool) -> None:
    """Runs a worker: receives tasks, and sends ("at", key), ("done", sites) and ("failed", traceback)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    onnxruntime.SessionOptions = OneThread
    found = {s.name: s for s in every_subject(exports, trained)}
    worker = Worker(folder, found, lambda key: connection.send(("at", key)))
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("done", worker.run(task)))
        except Exception:
            connection.send(("failed", traceback.format_exc()))


# -- selection of faults -----------------------------------------------------------------------------------------------

Fault = tuple[str, str, str, str]  # kind, subject, base, site


def key_of(fault: Fault) -> str:
    return "|".join(fault)


def chosen(candidates: Sequence[Fault], per_kind: int, every: int, seed: int) -> list[Fault]:
    """Draws at most `per_kind` faults of each `every`-th kind, on as many models as possible."""
    by_kind: dict[str, list[tuple[int, Fault]]] = defaultdict(list)
    for fault in candidates:
        by_kind[fault[0]].append((zlib.crc32(f"{seed}|{key_of(fault)}".encode()), fault))
    found: list[Fault] = []
    for rows in list(by_kind.values())[every - 1 :: every]:
        rows.sort()
        taken: dict[str, int] = defaultdict(int)
        while rows and sum(taken.values()) < per_kind:
            # Prefer models without a fault of this kind.
            row = min(rows, key=lambda r: (taken[r[1][1]], r[0]))
            rows.remove(row)
            taken[row[1][1]] += 1
            found.append(row[1])
    return found


# -- the run -----------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The time limit has passed."""


@dataclass
class Run:
    """The processes, and the results of their tasks.

    Attributes:
        serving: arguments of each process.
        jobs: number of processes.
        deadline: end of the run, in seconds of time.monotonic.
        failed: key or task -> error.
    """

    serving: tuple[Path, Path | None, bool]
    jobs: int
    deadline: float
    failed: dict[str, str] = field(default_factory=dict)
    _processes: dict[Connection, BaseProcess] = field(default_factory=dict)

    def all(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, list[tuple[str, str, str]]]]:
        """Yields each task with its result, in order of completion.

        If a "faults" task fails or its process dies, only the fault that it announced last is lost. Before the first
        announcement, and in tasks of other kinds, the rest of the task is lost.

        Raises:
            Stopped: the deadline has passed.
        """
        waiting = list(reversed(tasks))
        at: dict[Connection, tuple[Task, str]] = {}
        idle = list(self._processes)
        while waiting or at:
            while waiting and (idle or len(self._processes) < self.jobs):
                connection = idle.pop() if idle else self._start()
                at[connection] = (waiting.pop(), "")
                connection.send(at[connection][0])
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise Stopped
            for ready in wait(list(at), min(left, 3600.0)):
                assert isinstance(ready, Connection)
                task, key = at[ready]
                try:
                    word, value = ready.recv()
                except (EOFError, OSError):
                    word, value = "died", f"the process ended while it did {key or task.what}"
                    self._processes.pop(ready).join()
                if word == "at":
                    at[ready] = (task, value)
                    continue
                del at[ready]
                if word != "died":
                    idle.append(ready)
                if word == "done":
                    yield task, value
                    continue
                self.failed[key or f"{task.what} {task.subject} {task.base}"] = value
                keys = [key_of((kind, task.subject, task.base, where)) for kind, where in task.rows]
                if task.what == "faults" and key in keys[:-1]:
                    waiting.append(replace(task, rows=task.rows[keys.index(key) + 1 :]))

    def _start(self) -> Connection:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, *self.serving), daemon=True)
        process.start()
        there.close()
        self._processes[here] = process
        return here

    def __enter__(self) -> Run:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> bool:
        """Ends the processes. A run that was stopped is no error."""
        for connection, process in self._processes.items():
            process.terminate()
            process.join()
            connection.close()
        if is_stopped := error in (Stopped, KeyboardInterrupt):
            print("stopped: these are the results so far")
        return is_stopped


def faults(run: Run, folder: Path, found: Sequence[Subject], arguments: argparse.Namespace) -> int:
    candidates: list[Fault] = []
    planned: list[Fault] = []
    with run:
        for task, sites in run.all([Task("sites", s.name, only=arguments.only) for s in found]):
            candidates += [(kind, task.subject, base, where) for kind, base, where in sites]
        planned = chosen(sorted(candidates), arguments.per_kind, arguments.every, arguments.seed)
        effects, verdicts = Log(folder / "effects.jsonl"), Log(folder / "verdicts.jsonl")
        by_file: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for fault in planned:
            key = key_of(fault)
            if key not in verdicts.rows and effects.rows.get(key, {"effect": VISIBLE + 1})["effect"] > VISIBLE:
                by_file[fault[1], fault[2]].append((fault[0], fault[3]))
        tasks = [
            Task("faults", subject, base, rows[i : i + CHUNK])
            for (subject, base), rows in by_file.items()
            for i in range(0, len(rows), CHUNK)
        ]
        for _ in run.all(tasks):
            pass
    return table(folder, planned, run.failed)


def table(folder: Path, planned: Sequence[Fault], failed: Mapping[str, str]) -> int:
    """Writes the table of kinds to FOLDER/table.md, and prints the missed faults."""
    effects, verdicts = Log(folder / "effects.jsonl"), Log(folder / "verdicts.jsonl")
    lines = [heading(["kind", "models", "planted", "visible", "caught"])]
    by_kind: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for fault in planned:
        key = key_of(fault)
        if key in verdicts.rows or (key in effects.rows and effects.rows[key]["effect"] <= VISIBLE):
            by_kind[fault[0]].append((fault[1], key))
    planted = shown = caught = 0
    for kind, rows in sorted(by_kind.items()):
        visible = [(s, k) for s, k in rows if effects.rows[k]["effect"] > VISIBLE]
        missed = [k for _, k in visible if verdicts.rows[k]["verdict"] == "missed"]
        for key in missed:
            print(f"missed: {key}: {effects.rows[key]['effect']:.3g} times the noise floor")
        found = len(visible) - len(missed)
        lines.append(line([kind, len({s for s, _ in visible}), len(rows), len(visible), found]))
        planted, shown, caught = planted + len(rows), shown + len(visible), caught + found
    lines.append(line([f"all {len(by_kind)} kinds", "", planted, shown, caught]))
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    _print_failed(failed)
    print(f"{caught} of {shown} visible faults caught; {planted} of {len(planned)} judged, {len(by_kind)} kinds")
    return 1 if caught < shown or failed else 0


def false_alarms(run: Run, folder: Path, found: Sequence[Subject], arguments: argparse.Namespace) -> int:
    tasks = [
        Task("equivalent", subject.name, rows=[("", str(seed))], only=arguments.only)
        for subject in found
        for seed in range(arguments.seeds if subject.name in ZOO_NAMES else 1)
    ][arguments.every - 1 :: arguments.every]
    with run:
        for _ in run.all(tasks):
            pass
    names = {f"{task.subject}|{task.rows[0][1]}" for task in tasks}
    known = {key: row for key, row in Log(folder / "alarms.jsonl").rows.items() if key.split("|", 1)[1] in names}
    alarms = {key: row for key, row in known.items() if row["alarm"]}
    for key, row in alarms.items():
        print(f"alarm: {key}: {row['words']}")
    _print_failed(run.failed)
    print(f"{len(alarms)} false alarms over {len(known)} equivalent pairs")
    return 1 if alarms or run.failed else 0


def _print_failed(failed: Mapping[str, str]) -> None:
    for what, why in failed.items():
        print(f"failed: {what}: {why.strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of results")
    parser.add_argument("--exports", type=Path, help="a folder of .onnx files of scripts/export.py")
    parser.add_argument("--no-trained", action="store_true", help="skip the models from PyPI")
    parser.add_argument("--models", default="", help="only models with this in their name")
    parser.add_argument("--per-kind", type=int, default=8, help="maximum number of faults of a kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn faults")
    parser.add_argument("--every", type=int, default=1, help="use every N-th kind, or equivalent model")
    parser.add_argument("--only", default="", help="only kinds with this in their name")
    parser.add_argument("--equivalent", action="store_true", help="check equivalent pairs for false alarms instead")
    parser.add_argument("--seeds", type=int, default=3, help="weight seeds of zoo models in equivalent pairs")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this many seconds")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    trained = not arguments.no_trained
    found = [s for s in every_subject(arguments.exports, trained) if arguments.models in s.name]
    serving = (arguments.folder, arguments.exports, trained)
    run = Run(serving, arguments.jobs, time.monotonic() + arguments.seconds)
    return (false_alarms if arguments.equivalent else faults)(run, arguments.folder, found, arguments)


if __name__ == "__main__":
    sys.exit(main())
