"""The record of data files that a model shares with another model: sizes and hashes, in its metadata.

A model that was optimized with `--share-weights` refers to the data files of its original. A new export of the original
writes other weights under the same name, often with the same size, so `check` compares hashes as well.
"""

from __future__ import annotations

import errno
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from graphopt import files
from graphopt.errors import ModelLoadError

# The key of the record in a model's metadata_props.
METADATA = "graphopt.shared_weights"


def record(folder: Path, paths: Iterable[Path]) -> str:
    """Returns the size and SHA-256 of each file as JSON, by its path relative to the folder."""
    found = {}
    for path in paths:
        size, modified_ns = _state(path)
        found[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": _sha256(path, size, modified_ns)}
    return json.dumps(found, sort_keys=True)


def check(model: Path, metadata: Mapping[str, str]) -> None:
    """Compares the shared files with their record; hashes an unchanged file only once in a process.

    Args:
        model: the file; the shared files are in its folder.
        metadata: the metadata of the model; without a record nothing is compared.

    Raises:
        ModelLoadError: a file is missing or has changed.
    """
    recorded = metadata.get(METADATA)
    if recorded is None:
        return
    remedy = "restore that file, or optimize the original again (without --share-weights the weights are copied)"
    try:
        shared = {str(name): (int(f["bytes"]), str(f["sha256"])) for name, f in json.loads(recorded).items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ModelLoadError(f"{model}: its record of shared weights ({METADATA}) cannot be read") from None
    for name, (size, digest) in shared.items():
        path = model.parent / name
        try:
            if not path.is_file():  # hashing a device file may never end
                raise FileNotFoundError(errno.ENOENT, "no such file")
            now, modified_ns = _state(path)
            same = now == size and _sha256(path, now, modified_ns) == digest
        except OSError as error:
            raise ModelLoadError(
                f"{model}: shares the weights of {path}, which cannot be read ({error.strerror}); {remedy}"
            ) from None
        if not same:
            what = f"has {now} bytes instead of {size}" if now != size else "has other contents"
            raise ModelLoadError(
                f"{model}: shares the weights of {path}, which {what} since the model was written; {remedy}"
            )


def _state(path: Path) -> tuple[int, int]:
    """Returns a file's size in bytes, and its time of modification in nanoseconds."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, size: int, modified_ns: int) -> str:
    return files.sha256(path)
