"""Writes files atomically; refuses to overwrite an input, or a path that is not a regular file.

A file is written under a temporary name and renamed when it is complete, so readers see the old file or the new one. A
link is kept, and its target is replaced. As with `cp`, nothing is synced to the disk: syncing 2.35 GB of weights took
0.7 s, more than half of the time to copy them. After a power failure a file may be incomplete.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from graphopt.errors import ModelSaveError


def cache_folder() -> Path:
    """Returns graphopt's folder in the user's cache by the XDG specification; it may not exist.

    platformdirs is not used, because every session would import it. For a user without a home, platformdirs before 4.12
    returns a folder "~" in the working directory.

    Raises:
        FileNotFoundError: the user has no home, as in some containers.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphopt"
    except RuntimeError:
        raise FileNotFoundError("this user has no home: set XDG_CACHE_HOME") from None


def check_output_paths(outputs: Mapping[str, Path | None], inputs: Iterable[Path] = ()) -> None:
    """Checks in advance whether files can be written.

    Args:
        outputs: the name of each file in messages ("OUT", "--json") -> its path; None for a file that is not written.
        inputs: files that the run reads.

    Raises:
        ModelSaveError: a path is a folder, a device or one of `inputs`; its folder is missing or not writable; or
            two files have the same path.
    """
    taken: dict[object, str] = {}
    for source in inputs:
        taken.setdefault(_identity(source), f"the input {source}")
    for what, path in outputs.items():
        if path is None:
            continue
        target = target_of(path)
        if not target.parent.is_dir():
            raise ModelSaveError(
                f"{path}: the folder {target.parent if path.is_symlink() else path.parent} does not exist"
            )
        if not os.access(target.parent, os.W_OK):
            raise ModelSaveError(f"{path}: the folder {target.parent} is not writable")
        other = taken.setdefault(_identity(target), what)
        if other is not what:
            raise ModelSaveError(f"{path}: {what} would overwrite {other}; give another path")


def write(path: Path, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Writes a file atomically; a failure leaves the old file.

    Args:
        path: the path; a link is followed. The new file has the permissions of the old one.
        content: bytes, text that is encoded as UTF-8, or a function that writes to a file.

    Raises:
        ModelSaveError: the path is not a regular file, or the file cannot be written.
    """
    with replacing(path) as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file, which replaces `path` when the block ends; a failure leaves the old file.

    Args:
        path: the path; a link is followed.

    Raises:
        ModelSaveError: as `write`.
    """
    target = target_of(path)
    temporary = _temporary(target.parent)
    try:
        with os.fdopen(_create(temporary, like=target), "wb") as file:
            yield file
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ModelSaveError(f"{path}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_with_data(
    path: Path, data: Path, fill: Callable[[BinaryIO], object], content: Callable[[str], bytes]
) -> None:
    """Writes a file and the data file that it names; a failure leaves the old files.

    Two files cannot be renamed at once. If there is an old data file, `path` is therefore replaced twice: first by a
    version that names the new data file by its temporary name, then by the final one. A process that is killed leaves
    the old file with the old data or the new file with the new data. On a file system without hard links there is one
    exception: between the last two renames, `path` names a data file that does not exist. A lock on the folder excludes
    other writers.

    Args:
        path: the file; a link is followed.
        data: its data file, in the folder of the file that `path` leads to. A link is replaced.
        fill: writes the data file.
        content: returns the file's bytes, given the name of the data file; called after `fill`.

    Raises:
        ModelSaveError: a path is not a regular file, or a file cannot be written.
    """
    target_of(data)
    filled = _temporary(data.parent)
    named = ""
    try:
        with os.fdopen(_create(filled, like=data), "wb") as file:
            fill(file)
        with _locked(data.parent):
            data_exists = os.path.lexists(data)
            first = content(filled.name) if data_exists else b""
            final = content(data.name)
            if not data_exists:
                named = data.name
                filled.rename(data)
                with replacing(path) as file:
                    file.write(final)
                return
            with replacing(path) as last:
                last.write(final)
                last.flush()
                named = filled.name
                with replacing(path) as file:
                    file.write(first)
                _replace_by_link(filled, data)
            filled.unlink(missing_ok=True)
    except BaseException as error:
        # The error may be an interrupt just after `path` was replaced; `path` then needs its data file.
        if not named or not _has_content(path, final if named == data.name else first):
            filled.unlink(missing_ok=True)
            if named == data.name:
                data.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ModelSaveError(f"{path}: cannot be written: {error.strerror or error}") from None
        raise


def _replace_by_link(file: Path, path: Path) -> None:
    """Replaces `path` by a hard link to `file`; renames `file` on a file system without hard links."""
    second = _temporary(path.parent)
    try:
        second.hardlink_to(file)
    except OSError:
        file.replace(path)
    else:
        second.replace(path)


def _has_content(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def lock(file: IO[Any], seconds: float) -> bool:
    """Locks an open file until it is closed or the process ends.

    Args:
        file: the file.
        seconds: how long to wait for another process.

    Returns:
        Whether the file is locked.

    Raises:
        OSError: the file system has no locks.
    """
    import fcntl

    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Excludes other processes that lock the folder, if the file system has such locks."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _temporary(folder: Path) -> Path:
    import secrets

    return folder / f".graphopt-{secrets.token_hex(8)}.tmp"


def _create(path: Path, like: Path) -> int:
    """Creates a file with the permissions of `like`, or with umask's if `like` does not exist."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    if like.exists():
        _inherit(like.stat(), handle)
    return handle


@contextmanager
def restored_on_failure(path: Path) -> Iterator[None]:
    """Restores the file at `path`, or removes a new one, if the block raises a ModelSaveError.

    During the block a hard link keeps the old file; the link takes no space on a full disk.

    Raises:
        ModelSaveError: the block raises it, or the old file cannot be kept.
    """
    target = target_of(path)
    old = _identity(target)
    backup = _temporary(target.parent) if target.exists() else None
    try:
        if backup is not None:
            _keep_old(target, backup)
        yield
    except ModelSaveError:
        if backup is None:
            target.unlink(missing_ok=True)
        elif _identity(target) != old:
            backup.replace(target)
        raise
    finally:
        if backup is not None:
            backup.unlink(missing_ok=True)


def _keep_old(target: Path, backup: Path) -> None:
    """Makes `backup` a hard link to `target`, or a copy on a file system without hard links."""
    import shutil

    try:
        try:
            backup.hardlink_to(target)
        except OSError:
            shutil.copy2(target, backup)
    except OSError as error:
        raise ModelSaveError(f"{target}: cannot be kept as a backup: {error.strerror or error}") from None


def write_report(path: Path, text: str) -> None:
    """Writes a report atomically to a file, or directly to a terminal or a pipe.

    Raises:
        ModelSaveError: as `write`.
    """
    if not is_stream(path):
        write(path, text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ModelSaveError(f"{path}: cannot be written: {error.strerror or error}") from None


def is_stream(path: Path) -> bool:
    """Returns whether `path` is a stream: a pipe, a terminal or another character device."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def same(a: Path, b: Path) -> bool:
    """Returns whether two paths lead to the same file, which may not exist yet."""
    return _identity(a) == _identity(b)


def target_of(path: Path) -> Path:
    """Returns the file that a write to `path` replaces, after following links.

    Raises:
        ModelSaveError: the file exists and is not a regular file.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode if os.path.lexists(target) else path.stat().st_mode
    except FileNotFoundError:
        return target
    except OSError as error:
        raise ModelSaveError(f"{path}: cannot be written: {error.strerror or error}") from None
    if stat.S_ISREG(mode):
        return target
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    raise ModelSaveError(f"{path}: is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a file")


def _identity(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _inherit(old: os.stat_result, handle: int) -> None:
    """Gives a new file the owner and the permissions of the file that it replaces."""
    with suppress(OSError):  # only the superuser may change the owner
        os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))
