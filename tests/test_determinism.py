"""The output bytes are the same for the same input, with any hash seed, number of threads and memory layout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """
import hashlib, os, sys
# The hash of an object depends on its address.
others = [object() for _ in range(int(os.environ.get("OBJECTS", "0")))]
import graphopt
from models import ZOO
from models.scale import SHAPES
from tests.fuzz.generator import generate

models = {name: build(small=True) for name, build in ZOO.items()}
models |= {name: build(200) for name, build in SHAPES.items()}
models |= {f"seed {seed}": generate(seed).model for seed in range(25)}
for name, model in models.items():
    for options in ({"target": "cpu"}, {"target": "cuda", "precision": "fp16"}):
        after, report = graphopt.optimize(model, ignore_cost_model=True, **options)
        remarks = [(r.pass_name, r.code, r.nodes, r.detail) for r in report.remarks]
        print(name, options, hashlib.sha256(after.SerializeToString() + repr(remarks).encode()).hexdigest())
"""


def hashes(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_same_bytes_under_any_hash_seed_and_thread_count() -> None:
    first = hashes(PYTHONHASHSEED="0", OMP_NUM_THREADS="1")
    assert len(first.splitlines()) > 35
    assert hashes(PYTHONHASHSEED="1", OMP_NUM_THREADS="2", OBJECTS="1001") == first
    assert hashes(PYTHONHASHSEED="4242", OMP_NUM_THREADS="7", MALLOC_PERTURB_="85", OBJECTS="54321") == first
