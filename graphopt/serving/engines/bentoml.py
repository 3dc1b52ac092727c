"""BentoML: `Service = service(folder, workers)` in `service.py`, as serve-config writes it."""

from __future__ import annotations

import os
from typing import Any

import bentoml

from graphopt.serving.http import application


def service(folder: str | os.PathLike[str], workers: int) -> Any:
    """Creates a BentoML service in which each worker serves all models of a folder; the engine restarts workers.

    Raises:
        GraphoptError: a model cannot be used.
    """

    @bentoml.service(name="graphopt", workers=workers)
    @bentoml.asgi_app(application(folder))
    class Models:
        pass

    return Models
