"""`-` or a pipe where one file is meant: a model from stdin or from a named pipe, a model or a report to stdout.

A model is read whole into a temporary folder that goes when the process ends, since we read a file several times, and
written from there: nothing half-made leaves the process. Weights travel inside.
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
# The place of what was spooled -> the path that was asked for.
_spooled: dict[Path, Path] = {}


def reset() -> None:
    """Removes what was spooled."""
    _spooled.clear()
    _cleanup.close()


def read(path: Path) -> Path:
    """The file to read in the place of `path`; stdin for `-`. Of a pipe it waits for the end.

    Raises:
        ModelLoadError: there is no such file; this is asked first, since loading what reads models takes longer.
        OptionError: stdin was read before.
    """
    if path != DASH:
        if not path.exists():
            raise ModelLoadError(f"{path}: no such file")
        if not path.is_fifo():
            return path
        with path.open("rb") as pipe:
            return _spool(pipe, path)
    if DASH in _spooled.values():
        raise OptionError("- stands for stdin, which can be read once")
    return _spool(sys.stdin.buffer, path)


def _spool(stream: BinaryIO, path: Path) -> Path:
    place = _folder() / ("stdin" if path == DASH else path.name)
    with place.open("wb") as spooled:
        shutil.copyfileobj(stream, spooled)
    _spooled[place] = path
    return place


def write(path: Path) -> Path:
    """The file to write in the place of `path`; `flush` copies it to stdout for `-`."""
    if path != DASH:
        return path
    screen.divert()
    return _folder() / "stdout"


def flush(path: Path | None, written: Path | None) -> None:
    """Copies what was written in the place of `-` to stdout."""
    if path == DASH and written is not None:
        with written.open("rb") as model:
            shutil.copyfileobj(model, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def write_text(path: Path, text: str) -> None:
    """A report into its place, or to stdout."""
    if path == DASH:
        sys.stdout.write(text)
    else:
        files.write_report(path, text)


def named(message: str) -> str:
    """A message in which what was spooled is called as the user calls it."""
    for place, path in _spooled.items():
        message = message.replace(str(place), "stdin" if path == DASH else str(path))
    return message


def _folder() -> Path:
    import tempfile

    return Path(_cleanup.enter_context(tempfile.TemporaryDirectory(prefix="graphopt-")))
