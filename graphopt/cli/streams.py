"""`-` and named pipes as files: a model from stdin or a pipe, and a model or a report to stdout.

An input is copied into a temporary folder, because graphopt reads files several times. An output is first
written to a temporary folder, and copied to stdout when it is complete. These folders are removed at the end. A model
on a stream cannot have external data.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from graphopt import files
from graphopt.cli import screen
from graphopt.errors import ModelLoadError, OptionError

DASH = Path("-")
_cleanup = ExitStack()
# Temporary copy of an input -> the user's path.
_spooled: dict[Path, Path] = {}


def reset() -> None:
    """Removes all temporary copies."""
    _spooled.clear()
    _cleanup.close()


def read(path: Path) -> Path:
    """Returns the file to read instead of `path`: a copy of stdin for `-`, a copy of a pipe, else `path` itself.

    Raises:
        ModelLoadError: the file does not exist (checked here, before slow imports).
        OptionError: stdin was already read.
    """
    if path != DASH:
        if not path.exists():
            raise ModelLoadError(f"{path}: no such file")
        if not path.is_fifo():
            return path
        with path.open("rb") as pipe:
            return _spool(pipe, path)
    if DASH in _spooled.values():
        raise OptionError("- means stdin, which can be read only once")
    return _spool(sys.stdin.buffer, path)


def _spool(stream: BinaryIO, path: Path) -> Path:
    place = _folder() / ("stdin" if path == DASH else path.name)
    with place.open("wb") as spooled:
        shutil.copyfileobj(stream, spooled)
    _spooled[place] = path
    return place


def write(path: Path) -> Path:
    """Returns the file to write instead of `path`: a temporary one for `-`, which `flush` copies to stdout."""
    if path != DASH:
        return path
    screen.divert()
    return _folder() / "stdout"


def flush(path: Path | None, written: Path | None) -> None:
    """Copies a temporary output to stdout if `path` is `-`."""
    if path == DASH and written is not None:
        with written.open("rb") as model:
            shutil.copyfileobj(model, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def write_text(path: Path, text: str) -> None:
    """Writes a report to a file, or to stdout for `-`."""
    if path == DASH:
        sys.stdout.write(text)
    else:
        files.write_report(path, text)


def restore_paths(message: str) -> str:
    """Replaces paths of temporary copies in a message by the user's paths."""
    for place, path in _spooled.items():
        message = message.replace(str(place), "stdin" if path == DASH else str(path))
    return message


def _folder() -> Path:
    import tempfile

    return Path(_cleanup.enter_context(tempfile.TemporaryDirectory(prefix="graphopt-")))
