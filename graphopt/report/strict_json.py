"""JSON that every reader takes: infinities and NaN, which it has not, are words."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(data: Any) -> str:
    """Indented, and without the tokens Infinity and NaN."""
    return json.dumps(_finite(data), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value
