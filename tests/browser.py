"""Loads pages in a browser."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest

CHROMIUM = shutil.which("chromium")


def _command(folder: Path) -> list[str]:
    if CHROMIUM is None:  # the README says that these tests need the package chromium
        pytest.skip("chromium is not installed")
    return [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]


def dom(url: str, folder: Path, *, milliseconds: int) -> str:
    """Returns the document at `url` after its scripts have run for this time of the browser's clock.

    folder: where the browser stores its files.
    """
    command = [*_command(folder), f"--virtual-time-budget={milliseconds}", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Visit:
    """The browser's activity for a page.

    Attributes:
        requests: the requested URLs.
        elements: number of elements when the page reported that it was ready (`data-ready`).
    """

    requests: list[str]
    elements: int


def visit(url: str, folder: Path) -> Visit:
    """Opens a page and waits until it is ready."""
    with _driven(folder) as browser:
        browser.call("Network.enable")
        browser.open(url)
        elements = browser.wait_for("document.body.dataset.ready && document.getElementsByTagName('*').length")
        return Visit(browser.requests, elements)


def screenshot(url: str, picture: Path, folder: Path, *, width: int, height: int, ready: str = "true") -> None:
    """Renders the page at `url` once it is loaded and the expression `ready` holds; `picture` is a .webp file.

    Chromium's option --screenshot is not used: it counts a frame of 87 pixels as page, which may stay blank.
    """
    with _driven(folder) as browser:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(url)
        browser.wait_for(f"document.readyState === 'complete' && ({ready})")
        taken = browser.call("Page.captureScreenshot", format="webp", quality=80)
        picture.write_bytes(base64.b64decode(taken["data"]))


class _Browser:
    """A page of a browser, controlled through the debugging pipe."""

    def __init__(self, to: BinaryIO, answers: BinaryIO) -> None:
        self._to, self._answers, self._session = to, answers, ""
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> Any:
        message = {"id": 1, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._answer())
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if "id" in answer:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _answer(self) -> bytes:
        """Reads an answer up to its terminating byte 0."""
        answer = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser is gone"
            answer += byte
        return bytes(answer)

    def open(self, url: str) -> None:
        self.call("Page.enable")
        self.call("Page.navigate", url=url)

    def wait_for(self, expression: str) -> Any:
        """Returns the value of an expression of the page once it is truthy."""
        while True:
            result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]
            if value := result.get("value"):
                return value
            time.sleep(0.05)


@contextmanager
def _driven(folder: Path) -> Iterator[_Browser]:
    ours, theirs = os.pipe(), os.pipe()  # input and output of the browser
    command = [*_command(folder), "--remote-debugging-pipe", "about:blank"]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (ours[0], theirs[1])]

    def connect() -> None:
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    with subprocess.Popen(command, preexec_fn=connect, pass_fds=(3, 4), stderr=subprocess.DEVNULL) as process:
        for fd in (*high, ours[0], theirs[1]):
            os.close(fd)
        with open(ours[1], "wb", buffering=0) as to, open(theirs[0], "rb") as answers:
            try:
                yield _Browser(to, answers)
            finally:
                process.kill()
