"""Pages as a browser shows them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Visit:
    """What the browser did for a page, by its own clock.

    Attributes:
        requests: the URLs that it asked for.
        first_paint: milliseconds from the navigation until something of the page could be seen.
        ready: milliseconds until the page said so (`data-ready`).
    """

    requests: list[str]
    first_paint: float
    ready: float


def visit(url: str, folder: Path) -> Visit:
    """Opens a page in real time and waits until it is ready, over the browser's debugging pipe."""
    requests: list[str] = []
    ours, theirs = os.pipe(), os.pipe()  # what it reads, and what it writes
    browser = [*_command(folder, 0)[:-1], "--remote-debugging-pipe", "about:blank"]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (ours[0], theirs[1])]

    def connect() -> None:
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    with subprocess.Popen(browser, preexec_fn=connect, pass_fds=(3, 4), stderr=subprocess.DEVNULL) as process:
        for fd in high:
            os.close(fd)
        os.close(ours[0])
        os.close(theirs[1])
        with open(ours[1], "wb", buffering=0) as to, open(theirs[0], "rb") as answers:
            session = ""

            def call(method: str, **parameters: Any) -> Any:
                message = {"id": 1, "method": method, "params": parameters} | (
                    {"sessionId": session} if session else {}
                )
                to.write(json.dumps(message).encode() + b"\0")
                while True:
                    answer = json.loads(b"".join(iter(lambda: answers.read(1), b"\0")))
                    if answer.get("method") == "Network.requestWillBeSent":
                        requests.append(answer["params"]["request"]["url"])
                    if "id" in answer:
                        return answer["result"]

            def value(expression: str) -> Any:
                return call("Runtime.evaluate", expression=expression)["result"].get("value")

            try:
                target = call("Target.createTarget", url="about:blank")["targetId"]
                session = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
                call("Network.enable")
                call("Page.enable")
                call("Page.navigate", url=url)
                deadline = time.monotonic() + 60
                seen: Any = None
                while not seen:
                    assert time.monotonic() < deadline, "the page is not ready"
                    time.sleep(0.05)
                    seen = value(
                        "((paint, ready) => paint && ready && `${paint.startTime} ${ready}`)"
                        "(performance.getEntriesByName('first-contentful-paint')[0], document.body.dataset.ready)"
                    )
            finally:
                process.kill()
    paint, ready = map(float, seen.split())
    return Visit(requests, paint, ready)
