"""Bounds for a process that is given what is damaged, so that a hang or a giant allocation ends it alone."""

from __future__ import annotations

import resource
import signal
from pathlib import Path


def bound_memory(more: int) -> None:
    """The process may take so many bytes beside what it has: that depends on the imports and the machine's cores."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def bound_processor(seconds: float) -> None:
    """SIGPROF ends the process after so many seconds on a processor, however busy the machine is; 0 takes it back."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
