"""Limits for a process that handles damaged input, so a hang or a huge allocation ends only this process."""

from __future__ import annotations

import resource
import signal
from pathlib import Path


def bound_memory(more: int) -> None:
    """Allows the process `more` bytes beyond its present size, which depends on the imports and the number of cores."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def bound_processor(seconds: float) -> None:
    """Lets SIGPROF end the process after this many CPU seconds, independent of other load; 0 cancels the limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
