"""Optimizes every model of a folder, several at a time, each in a separate process that may crash or hang.

Each finished model adds a line to `manifest.jsonl`, so a second run continues after a killed one. A model is optimized
again if its bytes, the options or graphopt's version differ from its line.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import graphopt
from graphopt import files
from graphopt.errors import GraphoptError, ModelLoadError, ModelSaveError, OptionError
from graphopt.graph.reading import data_files
from graphopt.report.page import templates

MANIFEST, SUMMARY, PAGE = "manifest.jsonl", "summary.json", "summary.html"
# Exit codes of a job that timed out, or could not be started; as in timeout(1).
_TIMED_OUT, _NOT_STARTED = 124, 125
# Seconds to wait for the lock of the manifest, which child processes of a killed run hold until they end.
_LOCK_SECONDS = 2.0


@dataclass(frozen=True)
class Job:
    """One model, with the arguments of `graphopt optimize`.

    Attributes:
        name: path of the model relative to the folder.
        source: the file to read.
        out: the file to write.
        report: path of its JSON report.
        options: options of `graphopt optimize`.
        digest: hash of the model and its data files.
        timeout: limit in seconds; 0 for none.
        again: whether an earlier job of the same name succeeded, and so wrote `out`.
    """

    name: str
    source: str
    out: str
    report: str
    options: tuple[str, ...]
    digest: str
    timeout: float
    again: bool = False


@dataclass(frozen=True)
class Outcome:
    """A line of the manifest.

    Attributes:
        name: name of the job.
        digest: digest of the job.
        options: options of the job.
        version: version of graphopt.
        exit_code: exit code of `graphopt optimize`; negative for a signal, 124 after a timeout, 125 if it could not be
            started.
        message: error message of a failure; "" otherwise.
        seconds: duration of the job.
        nodes: number of nodes before and after.
        rewrites: number of applied rewrites.
        answer: result in one line: verdict, speed, nodes.
    """

    name: str
    digest: str
    options: tuple[str, ...]
    version: str
    exit_code: int
    message: str
    seconds: float
    nodes: tuple[int, int] = (0, 0)
    rewrites: int = 0
    answer: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether the job succeeded."""
        return self.exit_code == 0


def optimize_all(
    folder: Path,
    out: Path,
    *,
    options: Sequence[str] = (),
    jobs: int = 1,
    timeout: float = 0.0,
    on: str = "",
    progress: Callable[[Outcome, int, int], object] = lambda outcome, done, total: None,
) -> list[Outcome]:
    """Optimizes every .onnx file below a folder into the same relative path below another folder.

    Args:
        folder: the folder to read.
        out: the folder for models, `reports/`, the manifest, and the summary as JSON and as an HTML page.
        options: options of `graphopt optimize` for every model.
        jobs: number of models that are optimized at the same time; 0 with `on="ray"` uses the cluster's capacity.
        timeout: seconds for one model; 0 sets no limit.
        on: "ray" for a cluster with access to both folders under the same paths; "" for this machine.
        progress: called with each outcome, the number of finished models, and the number of all models.

    Returns:
        One outcome for each model, in the order of their names.

    Raises:
        ModelLoadError: `folder` is not a folder, or contains no model.
        ModelSaveError: `out` cannot be written, is in use by another run, or is or contains `folder`.
        OptionError: `on` is neither "" nor "ray", or Ray is not installed.
    """
    if on not in ("", "ray"):
        raise OptionError(f"--on {on}: choose ray")
    if not folder.is_dir():
        raise ModelLoadError(f"{folder}: no such folder")
    typed = {f"{path.absolute()}/": f"{path}/" for path in (folder, out)}
    results = out.resolve()
    if results in (folder.resolve(), *folder.resolve().parents):
        raise ModelSaveError(f"{out}: is or contains the input folder; give another")
    sources = [
        path
        for path in sorted(folder.absolute().rglob("*.onnx"))
        if results not in (path.parent.resolve(), *path.parent.resolve().parents)
    ]
    if not sources:
        raise ModelLoadError(f"{folder}: contains no .onnx file")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelSaveError(f"{out}: cannot be created: {error.strerror or error}") from None
    out = out.absolute()
    with _locked(out) as manifest:
        known = {outcome.name: outcome for outcome in _read(manifest)}
        plan = [_job(path, folder.absolute(), out, tuple(options), timeout, known) for path in sources]
        finished = {job.name: known[job.name] for job in plan if _is_done(job, known.get(job.name))}
        rest = [job for job in plan if job.name not in finished]
        for done, outcome in enumerate(_run(rest, jobs, on), len(finished) + 1):
            for absolute, path in typed.items():
                outcome = replace(outcome, message=outcome.message.replace(absolute, path))
            manifest.write(json.dumps(asdict(outcome)) + "\n")
            manifest.flush()
            finished[outcome.name] = outcome
            progress(outcome, done, len(plan))
        outcomes = [finished[job.name] for job in plan]
        files.write(out / SUMMARY, json.dumps(summary(outcomes), indent=2) + "\n")
        files.write(out / PAGE, _page(folder, summary(outcomes)))
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns the content of the summary, with failures in a separate list."""
    done = [asdict(outcome) for outcome in outcomes if outcome.succeeded]
    return {
        "format": 1,
        "models": len(outcomes),
        "optimized": sum(1 for outcome in done if outcome["rewrites"]),
        "unchanged": sum(1 for outcome in done if not outcome["rewrites"]),
        "failed": len(outcomes) - len(done),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 3),
        "done": done,
        "failures": [asdict(outcome) for outcome in outcomes if not outcome.succeeded],
    }


def run_job(job: Job) -> Outcome:
    """Optimizes one model in a separate process.

    After a failure, including a difference found by `--verify`, removes the model and the data file that this job or an
    earlier run wrote. Keeps all other files, also if `out` is a link to the source.
    """
    begin = time.perf_counter()
    for path in (job.out, job.report):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    written = {place: _state(place) for place in (Path(job.out), Path(f"{job.out}.data"))}
    command = [sys.executable, "-m", "graphopt", "optimize", job.source, job.out, "--json", job.report, "--quiet"]
    try:
        done = subprocess.run(
            [*command, *job.options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=job.timeout or None,
            check=False,
        )
        code, message = done.returncode, (done.stderr.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired:
        code, message = _TIMED_OUT, f"not finished after {job.timeout:g} s"
    except OSError as error:
        code, message = _NOT_STARTED, str(error)
    nodes, rewrites, answer = (0, 0), 0, ""
    if code == 0:
        report = json.loads(Path(job.report).read_text())
        nodes = (sum(report["before"]["nodes"].values()), sum(report["after"]["nodes"].values()))
        rewrites = sum(1 for remark in report["remarks"] if remark["code"] == "APPLIED")
        message, answer = "", str(report["answer"])
    else:
        source = _state(Path(job.source))
        for left, before in written.items():
            if (job.again or _state(left) != before) and _state(left) != source:
                left.unlink(missing_ok=True)
        message = message or ("its outputs differ" if code == 1 else "it ended without a message")
    seconds = round(time.perf_counter() - begin, 3)
    return Outcome(
        job.name, job.digest, job.options, graphopt.__version__, code, message, seconds, nodes, rewrites, answer
    )


def _state(path: Path) -> tuple[int, ...] | None:
    """Returns device, inode and time of modification of a file; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _run(jobs: Sequence[Job], at_once: int, on: str) -> Iterator[Outcome]:
    if on == "ray":
        yield from _run_on_ray(jobs, at_once)
        return
    with ThreadPoolExecutor(max(1, at_once)) as threads:
        futures = [threads.submit(run_job, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _run_on_ray(jobs: Sequence[Job], at_once: int) -> Iterator[Outcome]:
    try:
        import ray
    except ImportError:
        raise OptionError("--on ray needs Ray: pip install ray") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    remote = ray.remote(max_retries=2)(run_job)  # a node may fail; a repeated job writes the same file
    waiting = list(reversed(jobs))
    running: dict[Any, Job] = {}
    while waiting or running:
        while waiting and (not at_once or len(running) < at_once):
            job = waiting.pop()
            running[remote.remote(job)] = job
        (ready, *_), _ = ray.wait([*running], num_returns=1)
        job = running.pop(ready)
        try:
            yield ray.get(ready)
        except ray.exceptions.RayError as error:
            why = f"Ray: {error}"[:400]
            yield Outcome(job.name, job.digest, job.options, graphopt.__version__, _NOT_STARTED, why, 0.0)


def _job(
    path: Path, folder: Path, out: Path, options: tuple[str, ...], timeout: float, known: Mapping[str, Outcome]
) -> Job:
    name = path.relative_to(folder).as_posix()
    digest = hashlib.sha256()
    try:
        beside = data_files(path)
    except GraphoptError:  # the job reports it
        beside = []
    for part in (path, *beside):
        try:
            digest.update(files.sha256(part).encode())
        except OSError as error:
            digest.update(str(error).encode())
    report = out / "reports" / f"{name}.json"
    again = name in known and known[name].succeeded
    return Job(name, str(path), str(out / name), str(report), options, digest.hexdigest(), timeout, again)


def _is_done(job: Job, outcome: Outcome | None) -> bool:
    """Returns whether a job is complete: it started and ended by itself, and nothing has changed since."""
    retried = (_TIMED_OUT, _NOT_STARTED, 130, 143, -2, -9, -15)
    if outcome is None or outcome.version != graphopt.__version__ or outcome.exit_code in retried:
        return False
    same = (outcome.digest, tuple(outcome.options)) == (job.digest, job.options)
    return same and (not outcome.succeeded or _is_complete(Path(job.out)))


def _is_complete(out: Path) -> bool:
    """Returns whether a model and its data files exist."""
    try:
        return all(path.is_file() for path in (out, *data_files(out)))
    except GraphoptError:
        return False


@contextmanager
def _locked(out: Path) -> Iterator[IO[str]]:
    """Opens the manifest and excludes other runs."""
    with (out / MANIFEST).open("a+", encoding="utf-8") as manifest:
        if not files.lock(manifest, _LOCK_SECONDS):
            raise ModelSaveError(f"{out}: another `graphopt optimize-all` is writing there")
        yield manifest


def _read(manifest: IO[str]) -> Iterable[Outcome]:
    """Yields the outcomes of complete lines; adds a line break after an incomplete last line of a killed run."""
    manifest.seek(0)
    text = manifest.read()
    if text and not text.endswith("\n"):
        manifest.write("\n")
    for line in text.splitlines():
        try:
            data = json.loads(line)
            yield Outcome(**data | {"options": tuple(data["options"]), "nodes": tuple(data["nodes"])})
        except (ValueError, TypeError, KeyError):
            continue


def _page(folder: Path, found: dict[str, Any]) -> str:
    return templates().get_template("summary.html").render(folder=folder, **found)
