"""Stores the kernels that failed the last self-test on each GPU; sessions on that GPU disable them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphopt import files
from graphopt.runtime.machine import Device

FORMAT = 1


def failures(provider: str, device: Device, library: str) -> dict[str, str]:
    """Returns the operators that failed and the reasons; empty if this library was not tested on this device."""
    key = _key(provider, device, library)
    try:
        record = json.loads(_path(key).read_text(encoding="utf-8"))
        return {str(op): str(why) for op, why in record["failed"].items()} if record["tested"] == key else {}
    except (OSError, ValueError, LookupError, AttributeError):
        return {}  # a missing or damaged record counts as not tested


def remember(provider: str, device: Device, library: str, failed: Mapping[str, str]) -> None:
    """Replaces the record of this library on this device and driver.

    Raises:
        OSError: the user's cache directory cannot be created.
        ModelSaveError: the record cannot be written.
    """
    key = _key(provider, device, library)
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, json.dumps({"format": FORMAT, "tested": key, "failed": dict(failed)}, indent=2))


def _key(provider: str, device: Device, library: str) -> dict[str, Any]:
    return {"provider": provider, "device": asdict(device), "library": library}


def _path(key: Mapping[str, Any]) -> Path:
    """Returns the file for a device, its driver and a version of the library."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return files.cache_folder() / f"selftest-{name}.json"
