"""LitServe: https://lightning.ai/docs/litserve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graphopt.serving.deployment import Deployment

COMMAND = "python {folder}/server.py"
_SERVER = '''"""Every model and version below this folder."""

from pathlib import Path

from graphopt.serving.engines.litserve import server

if __name__ == "__main__":
    server(Path(__file__).parent).run(port=8000)
'''


def files(deployment: Deployment, seen_at: Path) -> Mapping[str, str]:
    """Returns the program that starts the server."""
    return {"server.py": _SERVER}
