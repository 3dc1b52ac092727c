"""Ray Serve: https://docs.ray.io/en/latest/serve/production-guide/config.html."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from graphopt.serving.deployment import Deployment

COMMAND = "serve run {folder}/serve.yaml"


def files(deployment: Deployment, seen_at: Path) -> Mapping[str, str]:
    """Returns the config file for `serve run` and `serve deploy`, as JSON, which is valid YAML."""
    config = {
        "applications": [
            {
                "name": "graphopt",
                "import_path": "graphopt.serving.engines.ray:application",
                "args": {"folder": str(seen_at)},
                "deployments": [
                    {
                        "name": "graphopt",
                        "num_replicas": deployment.instances,
                        "ray_actor_options": {"num_cpus": max(1, deployment.threads)},
                    }
                ],
            }
        ]
    }
    return {"serve.yaml": json.dumps(config, indent=2) + "\n"}
