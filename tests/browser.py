"""Pages as a browser shows them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")


def _command(folder: Path, milliseconds: int) -> list[str]:
    if CHROMIUM is None:  # the README says that these tests want the package chromium
        pytest.skip("chromium is not installed")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    return [*command, f"--virtual-time-budget={milliseconds}"]


def screenshot(url: str, picture: Path, folder: Path, *, width: int, height: int, milliseconds: int) -> None:
    """The page at `url` as a window of so many pixels shows it; `picture` is a .webp."""
    command = [*_command(folder, milliseconds), "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run([*command, f"--screenshot={picture}", url], capture_output=True, timeout=120, check=True)


def dom(url: str, folder: Path, *, milliseconds: int) -> str:
    """The document at `url` after its scripts have run for so long, by the browser's own clock.

    folder: where the browser keeps what it writes.
    """
    command = [*_command(folder, milliseconds), "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
