"""Pages as a browser shows them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")


def dom(url: str, folder: Path, *, milliseconds: int) -> str:
    """The document at `url` after its scripts have run for so long, by the browser's own clock.

    folder: where the browser keeps what it writes.
    """
    if CHROMIUM is None:  # the README says that these tests want the package chromium
        pytest.skip("chromium is not installed")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--virtual-time-budget={milliseconds}", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
