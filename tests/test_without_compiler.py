"""Machines without a C++ compiler, or with a clang without AMD support: graphopt installs, and reports what is missing.

`scripts/sweep install` tests real installations on both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import pytest

from models import ZOO

pytestmark = pytest.mark.once
ROOT = Path(__file__).resolve().parent.parent


def test_without_compiler(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    places = ["--wheel-dir", str(tmp_path), "--config-settings", f"build-dir={tmp_path / 'build'}"]
    subprocess.run([*pip, *places, str(ROOT)], env=os.environ | {"CXX": "/none/c++"}, check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "installed")
    onnx.save(ZOO["resnet18"](small=True), tmp_path / "in.onnx")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "graphopt", *arguments],
            env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    done = run("optimize", "in.onnx", "out.onnx", "--target", "cpu")
    assert done.returncode == 0, done.stderr
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) < len(onnx.load(tmp_path / "in.onnx").graph.node)
    doctor = run("doctor")
    assert doctor.returncode == 7
    assert "there was no C++ compiler when graphopt was built" in " ".join((doctor.stdout + doctor.stderr).split())


def test_clang_that_builds_no_device_code(tmp_path: Path) -> None:
    """The clang is found and tried; the library is then built without device code, with a message."""
    clang = tmp_path / "clang++"
    clang.write_text('#!/bin/sh\necho "$@" >> "$0.asked"\necho \'error: unknown target\' >&2\nexit 1\n')
    clang.chmod(0o755)
    build = tmp_path / "build"
    options = [f"-DGRAPHOPT_HIP_COMPILER={clang}", "-DGRAPHOPT_HIP_ARCHS=gfx90a;gfx1100"]
    done = subprocess.run(
        ["cmake", "-S", str(ROOT / "native"), "-B", str(build), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(f"{clang}.asked").read_text().count("--offload-arch=gfx") == 2
    assert "no clang++ that compiles for AMD GPUs was found" in " ".join(done.stderr.split())
    assert "THE LIBRARY WILL HAVE NO DEVICE CODE" in " ".join(done.stderr.split())
    assert "gfx" not in (build / "device" / "code_objects.cpp").read_text()
