"""MLServer: https://mlserver.readthedocs.io/en/latest/reference/model-settings.html."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from graphopt.serving.deployment import Deployment

COMMAND = "mlserver start {folder}"


def files(deployment: Deployment, seen_at: Path) -> Mapping[str, str]:
    """Returns `settings.json` of the server, with one pool of workers for all models, and the version's settings."""
    model = {
        "name": deployment.name,
        "platform": "onnx_graphopt",
        "implementation": "graphopt.serving.engines.mlserver.GraphoptRuntime",
        "parameters": {"uri": ".", "version": str(deployment.version)},
        "inputs": [asdict(tensor) for tensor in deployment.inputs],
        "outputs": [asdict(tensor) for tensor in deployment.outputs],
    }
    server = {"debug": False, "parallel_workers": deployment.instances}
    return {
        "settings.json": json.dumps(server, indent=2) + "\n",
        f"{deployment.name}/{deployment.version}/model-settings.json": json.dumps(model, indent=2) + "\n",
    }
