"""The table of GPU architectures, native/device/architectures.h."""

from __future__ import annotations

import re
from functools import cache

from tests.hip.harness import ROOT

Row = dict[str, str]
# Architectures without kernels in generations that have kernels: their matrix instructions have other layouts.
UNSUPPORTED = ["gfx1154", "gfx1170", "gfx1171", "gfx1172", "gfx1250", "gfx1251"]


@cache
def architectures() -> dict[str, Row]:
    """Returns name -> row; a row maps the struct's members to their text in the table."""
    text = (ROOT / "native" / "device" / "architectures.h").read_text()
    body = re.search(r"^struct Architecture \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL)
    assert body is not None
    members = re.findall(r"^  [\w:]+(?: char\*)? (\w+);", body[1], re.MULTILINE)
    rows = [re.split(r", ", row) for row in re.findall(r"^    \{(.*)\},$", text, re.MULTILINE)]
    assert rows and all(len(row) == len(members) for row in rows), members
    return {row[0].strip('"'): dict(zip(members, row, strict=True)) for row in rows}


def own_code() -> list[str]:
    """Returns the AMD architectures with code in the wheel, if the compiler knows them."""
    return [name for name, row in architectures().items() if name.startswith("gfx") and row["code"] == "Code::kOwn"]


def checked() -> list[str]:
    """Returns the architectures with tests that inspect the compiler's output."""
    return [name for name, row in architectures().items() if row["checked"] == "true"]


def has_matrix(arch: str, half: bool) -> bool:
    """Whether GEMMs of this type run on matrix units."""
    row = architectures()[arch]
    return row["matrix"] != "hip::Matrix::kNone" and (half or row["matrix_f32"] == "true")


def only_matrix(kernel: str) -> bool:
    """Whether a kernel needs matrix units. Without them its plan is refused, so no launch uses the kernel."""
    return kernel.startswith(
        ("matrix_", "channels_last_conv_", "conv_disjoint_", "conv_halo", "integer_gemm_", "integer_conv_")
    )
