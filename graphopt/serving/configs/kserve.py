"""KServe: a custom predictor, https://kserve.github.io/website/docs/model-serving/predictive-inference/frameworks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from graphopt.serving.deployment import Deployment

COMMAND = "python -m graphopt.serving.engines.kserve {folder}"
_DOCKERFILE = """FROM python:3.12-slim
RUN pip install --no-cache-dir "graphopt[cpu]" kserve
COPY . /models
CMD ["python", "-m", "graphopt.serving.engines.kserve", "/models"]
"""


def files(deployment: Deployment, seen_at: Path) -> Mapping[str, str]:
    """Returns the Dockerfile, and the service as JSON, which is valid YAML; instances are replicas."""
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "graphopt"},
        "spec": {
            "predictor": {
                "minReplicas": deployment.instances,
                "containers": [
                    {
                        "name": "kserve-container",
                        "image": "REGISTRY/graphopt-models:1",
                        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": 8080}},
                    }
                ],
            }
        },
    }
    return {"Dockerfile": _DOCKERFILE, "inference_service.yaml": json.dumps(service, indent=2) + "\n"}
