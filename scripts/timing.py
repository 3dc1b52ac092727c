"""Functions shared by the benchmark programs: interleaved timing, results in JSON, tables in Markdown."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Work = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Seconds of one call, in each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def lower(self) -> float:
        """The lower quartile, which is the least sensitive to other load."""
        return sorted(self.seconds)[len(self.seconds) // 4]

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median


def interleaved(
    works: Mapping[str, Work],
    *,
    rounds: int = 15,
    warm_up: int = 1,
    least: float = 0.0,
    most_calls: int = 1000,
    total: float = 0.0,
    most: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Times functions in turns, which spreads other load of the machine evenly over them.

    Args:
        works: name -> a function that returns when its work is complete.
        rounds: measurements of each; at least two.
        warm_up: calls of each before the measurements.
        least: seconds; a shorter call is repeated within one measurement, at most `most_calls` times.
        most_calls: see `least`.
        total: seconds; rounds are added until the first function has taken this long in total.
        most: seconds; after five rounds, a function that has taken longer in total is left out of further rounds.
        clock: `time.process_time` ignores other processes, but adds up the time of several threads.
    """
    calls = {}
    for name, work in works.items():
        for _ in range(warm_up):
            work()
        begin = time.perf_counter()
        work()
        once = max(time.perf_counter() - begin, 1e-9)
        calls[name] = max(1, min(most_calls, math.ceil(least / once)))
    taken: dict[str, list[float]] = {name: [] for name in works}
    first = next(iter(works))
    turns = 0
    while turns < rounds or sum(taken[first]) < total:
        turns += 1
        for name, work in works.items():
            if len(taken[name]) >= 5 and calls[name] * sum(taken[name]) > most:
                continue
            begin = clock()
            for _ in range(calls[name]):
                work()
            taken[name].append((clock() - begin) / calls[name])
    return {name: Times(tuple(seconds)) for name, seconds in taken.items()}


class Log:
    """Rows by key in a file with a line of JSON for each: the next run continues an interrupted one.

    Several processes may add rows. A row replaces earlier ones with the same key.

    Args:
        path: the file; None keeps the rows only in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: dict[str, dict[str, Any]] = {}
        for text in path.read_text().splitlines() if path is not None and path.is_file() else ():
            with suppress(ValueError):  # the incomplete last line of a terminated process
                row = json.loads(text)
                self.rows[row.pop("key")] = row

    def add(self, key: str, **row: Any) -> None:
        self.rows[key] = row
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, **row}) + "\n")


def write_results(
    place: Path,
    models: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    machine: str,
    runtime: str,
    **facts: Any,
) -> None:
    """Writes ratios for scripts/pages.py; the texts of an existing file are kept.

    Args:
        place: the file, docs/measurements/*.json.
        models: "model" is the name in the table; each other member is the ratio for a column.
        columns: member -> the column's title, unless the file already has titles.
        machine: its name, unless the file already has one.
        runtime: ONNX Runtime's version.
        facts: further facts about the measurement.
    """
    kept = json.loads(place.read_text()) if place.exists() else {}
    commit = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    described = {
        "machine": kept.get("machine", machine),
        "instructions": kept.get("instructions", ""),
        "date": f"{datetime.now():%Y-%m-%d}",
        "runtime": runtime,
        "commit": subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip(),
        "batch": 1,
        **facts,
        "command": " ".join([f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "note": kept.get("note", ""),
        "page": kept.get("page", "current.md"),
        "columns": kept.get("columns", columns),
        "models": models,
    }
    place.write_text(json.dumps(described, indent=1) + "\n")


def check_out(commit: str, folder: Path) -> None:
    """Writes the files of a commit to a new folder."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "x"], input=archive.stdout, cwd=folder, check=True)


def heading(columns: Iterable[str]) -> str:
    """Returns the first two lines of a table.

    The first column is text, and so are columns named "becomes" and "misses".
    """
    names = list(columns)
    kinds = ["---" if i == 0 or name in ("becomes", "misses") else "--:" for i, name in enumerate(names)]
    return f"| {' | '.join(names)} |\n|{'|'.join(kinds)}|"


def line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
