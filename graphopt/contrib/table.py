"""docs/contrib.md: the table of contrib operators."""

from __future__ import annotations

from graphopt.contrib import CONTRIB, ContribOp

# Neither runtime's CPU provider has a kernel: the reference alone, written from the schema's text, is the truth.
WITHOUT_KERNEL = frozenset(
    "BiasAdd BiasSplitGelu GroupNorm NhwcConv PackedAttention PackedMultiHeadAttention QLinearReduceMean "
    "SkipGroupNorm".split()
)
# The same for onnxruntime 1.22 alone, or its kernel computes something else (the operator's file says what).
WITHOUT_KERNEL_IN_1_22 = frozenset({"QLinearSoftmax"})
# What stays on GPUs, but not on our provider, and why.
WITHOUT_OURS = {"QLinearReduceMean": "the runtime has a schema of it alone, and no file with it runs; `lower` reads it"}
# What has no definition, and why.
UNDEFINED = {"GemmFloat8": "no product of the standard takes its types"}


def without_kernel(runtime: tuple[int, ...]) -> frozenset[str]:
    """Operators whose definitions are held against the reference alone on this runtime."""
    return WITHOUT_KERNEL if runtime >= (1, 31) else WITHOUT_KERNEL | WITHOUT_KERNEL_IN_1_22


def kernels(op: ContribOp) -> str:
    """Which releases have a kernel of their own for CPUs: the definition's truth beside the reference."""
    if op.name in WITHOUT_KERNEL:
        return "none"
    return "1.32.0" if op.name in WITHOUT_KERNEL_IN_1_22 else "1.22.2, 1.32.0"


def on_provider(op: ContribOp) -> str:
    """What computes it on our provider."""
    if op.on_provider:
        return f"operators/{op.on_provider}"
    if not op.stays_on_gpu:
        return "as what it is read as"
    return f"no kernel: {WITHOUT_OURS[op.name]}"


def tests(op: ContribOp) -> str:
    """The files that hold it, in tests/."""
    files = ["contrib/test_definitions.py", "contrib/test_openvino.py"]
    return ", ".join([*files, "provider/test_contrib.py"] if op.on_provider else files)


def rows() -> list[str]:
    """A line of Markdown for each operator."""
    lines = []
    for op in sorted(CONTRIB.values(), key=lambda op: op.name):
        cells = (
            op.name,
            f"contrib/{op.define.__module__.rpartition('.')[2]}.py",
            op.form,
            "stays: " + op.stays_on_cpu if op.stays_on_cpu else "read",
            "stays: " + op.stays_on_gpu if op.stays_on_gpu else "read",
            on_provider(op),
            kernels(op),
            tests(op),
            op.refuses,
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += [f"| {name} | | | stays | stays | no kernel | none | | all: {why} |" for name, why in UNDEFINED.items()]
    return sorted(lines)
