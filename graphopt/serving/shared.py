"""Weights in memory that all workers of a machine share.

ONNX Runtime reads initializers into private memory of each process and packs many of them into another copy. It can
also write the optimized model with initializers and packed weights in an external file. It maps that file when it loads
the model, and all processes share the mapped pages. The first worker of a machine therefore writes this form into a
folder, and all workers load it. Our library does the same for the weights that it packs
(native/cpu/weight_folder.h).

The form depends on the runtime, the library and the processor, so it belongs to the machine and not to the output of
`serve-config`. Its name is a hash of these and of the model's bytes. It is written atomically, after its outputs were
compared with the model's. Workers check its hashes before they load it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from graphopt import files
from graphopt.errors import GraphoptError
from graphopt.runtime.discovery import CPU, import_onnxruntime, library_version
from graphopt.runtime.sessions import configure, session
from graphopt.serving.deployment import MODEL, SETTINGS

# Environment variables: the folder, and the limit of its size in MiB with its default.
FOLDER, LIMIT = "GRAPHOPT_WEIGHTS", "GRAPHOPT_WEIGHTS_LIMIT"
_MOST_MIB = 16384
# Files of a form: the SHA-256 of its other files, or the reason why the model has no usable form.
_HASHES, _WHY_NOT = "hashes.json", "why-not"
# Prefix of a form that is being written, and the age in seconds at which it counts as abandoned.
_UNFINISHED, _ABANDONED = "unfinished-", 3600.0
# Seconds that a worker waits while another worker writes.
_WAIT_SECONDS = 300.0


def weights_folder() -> Path | None:
    """Returns the folder that this machine's workers share; None if disabled, or if other users may write to it.

    The folder is `$GRAPHOPT_WEIGHTS`, by default `graphopt/weights` in the user's cache; "off" disables it.
    """
    setting = os.environ.get(FOLDER, "")
    if setting == "off":
        return None
    try:
        folder = Path(setting) if setting else files.cache_folder() / "weights"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        _say(f"the folder of weights cannot be created: {error}")
        return None
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _say(f"other users may write to {folder}")
        return None
    return folder


def _say(why: str) -> None:
    print(f"graphopt: each worker has its own copy of the weights: {why}", file=sys.stderr)


def shared_form(model: Path, folder: Path) -> Path | None:
    """Returns the model file in the runtime's optimized form with mapped weights; writes it first if it does not exist.

    Returns:
        A file in `folder`; None if the form is not available and the model itself must be loaded.
    """
    try:
        form = folder / _key(model)
        if not form.exists():
            with _one_at_a_time(folder):
                if not form.exists():
                    _make_room(folder, sum(path.stat().st_size for path in _files(model)))
                    _make(model, form)
        why_not = form / _WHY_NOT
        if why_not.exists():
            _say(why_not.read_text().strip())
            return None
        hashes = json.loads((form / _HASHES).read_text())
        if not isinstance(hashes, dict):
            raise OSError(f"{form / _HASHES} is damaged; remove {form}")
        for name, digest in hashes.items():
            if files.sha256(form / name) != digest:
                raise OSError(f"{form / name} is damaged; remove {form}")
        os.utime(form)  # the least recently used form is evicted first
    except (OSError, ValueError, GraphoptError) as error:
        _say(str(error))
        return None
    return form / MODEL


def _key(model: Path) -> str:
    ort = import_onnxruntime()
    cpu = [line for line in _cpu_info() if line.startswith(("model name", "flags", "Features"))]
    parts = ["1", ort.__version__, library_version(), platform.machine(), *sorted({*cpu})]
    # The name of the model file does not matter; the names of data files do, because the model refers to them.
    parts += [
        f"{'' if path == model else path.relative_to(model.parent)} {files.sha256(path)}" for path in _files(model)
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _files(model: Path) -> list[Path]:
    """Returns the model and its data files: all files in the version's folder except the files of engines.

    Reading the names from the model would be exact, but would cost each worker half a second and 30 MiB to import
    packages.
    """
    found = (path for path in sorted(model.parent.rglob("*")) if path.is_file())
    return [path for path in found if path.name != SETTINGS and path.suffix not in (".py", ".pyc")]


def _cpu_info() -> list[str]:
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    return []


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Excludes other workers that write; the operating system releases the lock when its process ends."""
    with (folder / ".lock").open("ab") as lock:
        if not files.lock(lock, _WAIT_SECONDS):
            raise OSError(f"another worker has been writing into {folder} for {_WAIT_SECONDS:.0f} s")
        yield


def _make_room(folder: Path, more: int) -> None:
    """Removes unfinished forms of killed writers, and the least recently used forms if space is short."""
    most = int(os.environ.get(LIMIT, _MOST_MIB)) << 20
    places = []
    for path in folder.iterdir():
        if path.name.startswith(_UNFINISHED):
            if time.time() - path.stat().st_mtime > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
        elif (path / _HASHES).exists() or (path / _WHY_NOT).exists():
            places.append((path.stat().st_mtime, sum(p.stat().st_size for p in path.iterdir()), path))
    # A form contains packed weights besides the original ones.
    total = sum(size for _, size, _ in places) + 2 * more
    if 2 * more > most:
        raise OSError(f"{2 * more >> 20} MiB of weights exceed the limit {LIMIT}={most >> 20}")
    for _, size, path in sorted(places):
        if total <= most:
            break
        shutil.rmtree(path, ignore_errors=True)
        total -= size


def _make(model: Path, form: Path) -> None:
    """Writes the form in a separate process, which releases all of its memory."""
    unfinished = Path(mkdtemp(prefix=_UNFINISHED, dir=form.parent))
    try:
        command = [sys.executable, "-m", __name__, str(model.resolve()), str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise OSError(f"{model} cannot be written for sharing: {(done.stdout + done.stderr).strip()[-300:]}")
        for path in unfinished.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        unfinished.rename(form)
        folder = os.open(form.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_shared_form(model: Path, out: Path) -> None:
    """Writes the model in the runtime's optimized form into a folder, or the reason why that form is unusable.

    Raises:
        GraphoptError: the runtime rejects the model.
    """
    import numpy as np

    from graphopt.graph.reading import read_proto
    from graphopt.inputs.declared import symbols
    from graphopt.inputs.plan import normal_feeds

    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(out / MODEL)
    for key, value in {
        "session.optimized_model_external_initializers_file_name": f"{MODEL}.data",
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
        "session.save_external_prepacked_constant_initializers": "1",
    }.items():
        options.add_session_config_entry(key, value)
    why_not = ""
    try:
        proto = read_proto(model)
        sizes = {name: {"batch": 2, "image": 64}.get(role, 16) for name, role in symbols(proto).items()}
        feeds = normal_feeds(proto, sizes)
        del proto
        ort.InferenceSession(str(model), options, providers=configure(options, [CPU]))
        expected = session(model, [CPU]).run(None, feeds)
        got = load_shared_form(out / MODEL).run(None, feeds)
        if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(got, expected, strict=True)):
            why_not = "has different outputs in its shared form"
    except Exception as error:  # the runtime's exception classes share no public base
        why_not = f"has no shared form: {' '.join(str(error).split())[:300]}"
    if why_not:
        for path in out.iterdir():
            path.unlink()
        (out / _WHY_NOT).write_text(f"{model.parent.name}/{model.name} {why_not}\n")
        return
    (out / _HASHES).write_text(json.dumps({path.name: files.sha256(path) for path in out.iterdir()}))


def load_shared_form(model: Path, **options: Any) -> Any:
    """Creates a CPU session of a file from `write_shared_form`, without the runtime's optimizer."""
    level = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    return session(model, [CPU], graph_optimization_level=level, **options)


if __name__ == "__main__":
    write_shared_form(Path(sys.argv[1]), Path(sys.argv[2]))
