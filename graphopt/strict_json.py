"""Standard JSON, in which infinities and NaN are strings.

docs/report.schema.json describes the output of commands; `SCHEMA` is its version.
"""

from __future__ import annotations

import json
import math
from typing import Any

import graphopt

SCHEMA = 1


def document(command: str, data: dict[str, Any]) -> str:
    """Returns the JSON output of a command."""
    return dumps({"schema": SCHEMA, "command": command, "graphopt": graphopt.__version__, **data})


def dumps(data: Any) -> str:
    """Returns indented JSON without the tokens Infinity and NaN."""
    return json.dumps(_finite(data), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value
