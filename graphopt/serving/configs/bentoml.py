"""BentoML: https://docs.bentoml.com/en/latest/reference/bentoml/bento-build-options.html."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graphopt.serving.deployment import Deployment

COMMAND = "bentoml serve service:Service --working-dir {folder}"
_SERVICE = '''"""Every model and version below this folder."""

from pathlib import Path

from graphopt.serving.engines.bentoml import service

Service = service(Path(__file__).parent, workers={instances})
'''
_BENTO = """service: "service:Service"
include: ["*"]
python:
  packages: ["graphopt[cpu]"]
"""


def files(deployment: Deployment, seen_at: Path) -> Mapping[str, str]:
    """Returns the service, and the options of `bentoml build`."""
    return {"service.py": _SERVICE.format(instances=deployment.instances), "bentofile.yaml": _BENTO}
