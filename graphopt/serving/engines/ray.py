"""Ray Serve: `serve run graphopt.serving.engines.ray:application folder=FOLDER`, or the config of serve-config."""

from __future__ import annotations

from typing import Any

from ray import serve

from graphopt.serving import http


def application(arguments: dict[str, str]) -> Any:
    """Creates the application of one folder. The engine manages replicas, resources and restarts."""
    folder = arguments["folder"]

    class Models:
        """Every model and version of the folder."""

    replica = serve.ingress(lambda: http.application(folder))(Models)
    return serve.deployment(name="graphopt", max_ongoing_requests=256)(replica).bind()
