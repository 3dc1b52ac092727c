"""Layers of docs/architecture.md: the permitted dependencies."""

from __future__ import annotations

import ast
import functools
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import graphopt
from graphopt.runtime.sessions import LIBRARIES

ROOT = Path(graphopt.__file__).parent
PRECISION_PASSES = (
    *("precision/bfloat16.py", "precision/nchw2c_convolutions.py"),
    *("precision/nchw2c_pools.py", "precision/rounded_weight.py"),
)
# From the bottom up: a file imports nothing of a layer above its own.
LAYERS = (
    (
        *("errors.py", "files.py", "shared_weights.py", "remarks.py", "metadata.py", "strict_json.py", "progress.py"),
        "__init__.py",
    ),
    ("ops/", "targets/"),
    ("graph/",),
    ("contrib/", "forms/", "report/data.py", "report/multiply_adds.py", "report/text.py", "report/__init__.py"),
    # The registry of all passes includes those for bfloat16.
    ("passes/", *PRECISION_PASSES),
    ("pipeline.py", "precision/float16/", "precision/__init__.py", "transposed_matmul.py", "lower.py", "options.py"),
    ("runtime/", "precision/bfloat16_gain.py"),
    ("inputs/",),
    ("verification/",),
    ("debug/",),
    ("optimizer.py",),
    ("measure/", "placement/", "precision/limit_error.py"),
    ("report/",),
    ("serving/", "optimize_all.py"),
    ("cli/", "__main__.py"),
)


def layer(path: str) -> int:
    """Returns the lowest layer that names the file, or its folder."""
    return next(i for i, parts in enumerate(LAYERS) if path.startswith(parts))


@functools.cache
def imports(path: Path) -> list[str]:
    """Returns the package's files that a file imports, relative to it."""
    found = []
    if path == ROOT / "__init__.py":
        return []  # a facade: it imports a public name on first use, which counts as an import of the user
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "graphopt":
            inner = node.module.split(".")[1:]
            for name in node.names:
                found += files_of([*inner, name.name]) or files_of(inner)
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("graphopt."):
                    found += files_of(name.name.split(".")[1:])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "graphopt":
            # A public name, imported on first use.
            found += files_of(graphopt._MODULES.get(node.attr, "graphopt").split(".")[1:])
    return found


def files_of(parts: list[str]) -> list[str]:
    return [p for p in ("/".join(parts) + ".py", "/".join(parts) + "/__init__.py") if (ROOT / p).is_file()]


@pytest.mark.once
def test_nothing_imports_from_a_layer_above() -> None:
    seen = set()
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        own = layer(name)
        for other in imports(path):
            above = layer(other)
            assert above <= own, f"{name} imports {other}"
            seen.add((own, above))
    assert len(seen) > len(LAYERS)  # imports were found


@pytest.mark.once
def test_no_modules_import_one_another() -> None:
    """Late imports and those only for type checkers count as well."""
    graph = {path.relative_to(ROOT).as_posix(): {*imports(path)} for path in ROOT.rglob("*.py")}
    TopologicalSorter({name: others - {name} for name, others in graph.items()}).prepare()  # CycleError


# Files that may compare opsets: the operators' arguments, and bodies that are written in the model's opset.
OPSETS = ("graph/operators/", "ops/")
# Files that may change a graph.
CHANGES = ("graph/", "lower.py", "placement/forecast.py", "serving/")
CHANGING = re.compile(
    r"\.(insert_(before|after)|resize_(in|out)puts|replace_input_with|replace_all_uses_with|register_initializer)\("
    r"|\.graph\.remove\(|\bdel \S*\.(initializers|attributes)\b|\.attributes\[[^]]+\] = |\.attributes\.(add|pop)\("
)


def python_texts(*without: str) -> dict[str, str]:
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    return {name: text for name, text in files.items() if not name.startswith(without)}


# Files that may create and change nodes of protobuf messages: models of a few nodes, and input for onnx.
MESSAGES = ("graph/", "measure/kernel_bench.py", "ops/case.py", "placement/forecast.py", "precision/bfloat16_gain.py")
CHANGING_MESSAGES = re.compile(r"\bmake_node\(|\bdel \S*\.node\[|\.node\.(add|append|extend|insert|remove|pop)\(")


@pytest.mark.once
def test_messages_are_not_rewritten() -> None:
    """Models are changed in onnx_ir, by the editor and the builder."""
    texts = python_texts()
    changing = {name for name, text in texts.items() if CHANGING_MESSAGES.search(text)}
    assert {name for name in changing if not name.startswith(MESSAGES)} == set()
    assert all(any(name.startswith(part) for name in changing) for part in MESSAGES)


@pytest.mark.once
def test_graph_queries_are_defined_once() -> None:
    """Each of these is in one place: opsets, arguments of Slice, sole readers, changes to graphs, new nodes."""
    literal = [
        f"{name}: {ast.unparse(node)}"
        for name, text in python_texts(*OPSETS).items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Compare)
        and "opset" in ast.unparse(node).lower()
        and any(isinstance(n, ast.Constant) and isinstance(n.value, int) and n.value > 1 for n in node.comparators)
    ]
    assert literal == []
    texts = python_texts()
    assert [name for name, text in texts.items() if '"starts"' in text] == ["graph/operators/arguments.py"]
    sole = re.compile(r"use_count\(\w+\) [!=]= 1 (and not|or) \w+\.is_graph_output")
    assert [name for name, text in texts.items() if sole.search(text)] == ["graph/view.py"]
    changes = {name: found for name, text in python_texts(*CHANGES).items() if (found := CHANGING.search(text))}
    assert changes == {}
    made = re.compile(r"\bir\.[nN]ode\(")
    makers = [name for name, text in texts.items() if made.search(text)]
    assert makers == ["graph/build.py", "graph/editor.py"]


NATIVE = ROOT.parent / "native"
# The same for native/: the longest matching pattern counts.
NATIVE_LAYERS: tuple[tuple[str, ...], ...] = (
    # Shared vocabulary: tensors, the interface of a kernel, and definitions shared by host and device code.
    (
        *("operators/tensor.h", "operators/kernel.h", "operators/activation.h"),
        *("blocks/half.h", "device/integers.h", "device/element_type.h"),
    ),
    ("device/*", "cpu/*", "device/emulator/*"),
    ("cpu/microkernels/*", "blocks/gpu/*", "gemm/*", "gemm/*/*"),
    ("operators/*/*/problem.h",),
    ("device/libraries/*", "device/report.*"),
    ("operators/*",),
    ("operators/*/*/*",),
    ("runtime/abi/*",),
    ("runtime/*",),
    ("runtime/custom_ops/*", "runtime/provider/*"),
)
# Folders that may use the header of others (op.h, or one made for this purpose); problem.h is open to all.
BUILT_ON = {
    "attention": {"movement"},
    "group_query_attention": {"attention"},
    "convolution": {
        *("elementwise", "fused_conv", "fused_conv_transpose", "linear", "matmul", "movement", "scale_shift"),
    },
    "fused_conv_transpose": {"fused_conv"},
    "gather": {"movement"},
    "gather_block_quantized": {"gather"},
    "activation": {"elementwise"},
    "group_norm": {"elementwise"},
    "einsum": {"elementwise", "integer_matmul", "matmul", "movement", "reduction"},
    "integer_matmul": {"movement", "quantize"},
    "linear": {"matmul"},
    "matmul": {"elementwise", "integer_matmul"},
    "matmul_nbits": {"matmul"},
    "nonzero": {"gather"},
    "quantize": {"reduction"},
    "quantized": {"elementwise", "movement", "pool", "quantize"},
    "recurrent": {"matmul"},
    "row_norm": {"elementwise"},
    "winograd": {"scale_shift"},
    "scatter": {"gather"},
    "shape": {"gather", "movement", "reduction"},
    "unary": {"elementwise"},
    "layer_norm_2d": {"row_norm"},
}
PRIVATE = ("args.h", "plan.h", "cpu.h", "_cpu.h")


def native_layer(path: str) -> int:
    fits = [
        (len(pattern), i)
        for i, patterns in enumerate(NATIVE_LAYERS)
        for pattern in patterns
        if re.fullmatch(pattern.replace(".", "[.]").replace("*", "[^/]*"), path)
    ]
    assert fits, f"no layer for {path}"
    return max(fits)[1]


@pytest.mark.once
def test_no_native_file_includes_a_layer_above() -> None:
    seen, built_on = set(), set()
    for path in sorted(NATIVE.rglob("*")):
        if path.suffix not in (".h", ".cpp", ".hip"):
            continue
        name = path.relative_to(NATIVE).as_posix()
        own, folder = native_layer(name), path.parent.name if name.count("/") >= 2 else ""
        for other in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            if other == "operators.inc":  # generated by the build
                continue
            assert (NATIVE / other).is_file(), f"{name} includes {other}, which is not there"
            above = native_layer(other)
            assert above <= own, f"{name} includes {other}"
            seen.add((own, above))
            built = other.split("/")[2] if other.startswith("operators/") and other.count("/") == 3 else folder
            if name.startswith("operators/") and built != folder and not other.endswith("/problem.h"):
                assert built in BUILT_ON.get(folder, ()) and not other.endswith(PRIVATE), f"{name} includes {other}"
                built_on.add((folder, built))
        if name.startswith("runtime/") and own == len(NATIVE_LAYERS) - 1:
            strangers = {"custom_ops", "provider"} - {folder}
            assert not [s for s in strangers if f'"runtime/{s}/' in path.read_text()], name
    assert len(seen) > len(NATIVE_LAYERS)  # includes were found
    assert built_on == {(folder, other) for folder, others in BUILT_ON.items() for other in others}
    TopologicalSorter(BUILT_ON).prepare()  # raises CycleError if two folders depend on each other


def unconditional_imports(path: Path) -> set[str]:
    """Returns the top-level names of the modules that a file imports unconditionally."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.once
@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_the_entry_point_imports_only_the_standard_library(name: str) -> None:
    """Ctrl-C during the command's imports shows one line, and `import graphopt` takes no time."""
    assert unconditional_imports(ROOT / name) <= sys.stdlib_module_names


@pytest.mark.once
def test_no_public_name_is_a_module() -> None:
    """`import graphopt.NAME` and `graphopt.NAME` would be different objects."""
    modules = {path.stem for path in ROOT.iterdir()}
    assert "optimizer" in modules and not modules & set(graphopt.__all__)


@pytest.mark.once
def test_a_launch_passes_one_struct() -> None:
    """Kernels have no parameter lists that a plan would have to repeat in the same order."""
    texts = {p.relative_to(NATIVE).as_posix(): p.read_text() for p in NATIVE.rglob("*") if p.suffix in (".h", ".hip")}
    assert [name for name, text in texts.items() if "__global__" in text] == ["device/platform.h"]
    platform, launch = texts["device/platform.h"], texts["device/launch.h"]
    assert "#define KERNEL(" in platform and len(re.findall(r"Launch& launch\(", launch)) == 1
    assert re.search(r"Launch& launch\([^)]*const Args& args\)", launch)


def python_functions(path: Path) -> list[tuple[int, str]]:
    """Returns the number of lines of each function, and its place."""
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    return [((n.end_lineno or 0) - n.lineno + 1, f"{path.name}:{n.lineno} {n.name}") for n in functions]


def native_functions(path: Path) -> list[tuple[int, str]]:
    """Returns the same for formatted C++: a function begins at the last line that is indented like its brace."""
    found, begins = [], dict[int, int]()
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        inside = len(line) - len(line.lstrip())
        if line.strip() == "}" and inside in begins:
            head = " ".join(lines[begins[inside] : number]).partition("{")[0]
            if "(" in head and not re.match(r"\s*((NO_)?UNROLL\w*|if|for|while|switch|do|#)\b", head):
                found.append((number - begins[inside] + 1, f"{path.name}:{begins[inside] + 1} {head.strip()}"))
        elif line and not line.lstrip().startswith(("#", "public:", "private:", "}", "//")):
            begins = {depth: at for depth, at in begins.items() if depth < inside} | {inside: number}
    return found


MOST_LINES = 80  # in a function


@pytest.mark.once
def test_no_function_is_too_long() -> None:
    python = [f for p in sorted(ROOT.rglob("*.py")) for f in python_functions(p)]
    native = [f for p in sorted(NATIVE.rglob("*")) if p.suffix in (".h", ".cpp", ".hip") for f in native_functions(p)]
    long = sorted((f for f in python + native if f[0] > MOST_LINES), reverse=True)
    assert len(python) > 1500 and len(native) > 1500 and not long


# Lines with named instructions outside cpu/microkernels: masks, blends and compressed stores of AVX-512 that
# GCC's vector types cannot express, each in the only kernel that needs it.
NAMED_INSTRUCTIONS = {
    "cpu/parallel_for.h": 1,  # a waiting thread yields the core to its sibling
    "operators/attention/attention/multiply_cpu.cpp": 2,
    "operators/conv/fused_conv/depthwise_cpu.cpp": 4,
    "operators/conv/fused_conv/strips.h": 1,
    "operators/conv/winograd/cpu.cpp": 1,
}
# Files with the tanh approximation of Gelu: for CPUs, for devices, and as the reference for a vendor's epilogue.
GELU_TANH = {"cpu/microkernels/activation.h", "blocks/gpu/activation.h", "device/libraries/blas_lt.cpp"}


@pytest.mark.once
def test_instructions_and_activations_have_one_place() -> None:
    """One SIMD layer, cpu/microkernels, and one formula of an activation for each kind of machine."""
    instructions, formulas = {}, set()
    for path in sorted(NATIVE.rglob("*")):
        if path.suffix not in (".h", ".cpp", ".hip"):
            continue
        name, lines = path.relative_to(NATIVE).as_posix(), path.read_text().splitlines()
        named = sum(bool(re.search(r"\b(_mm\d*_\w+|__builtin_ia32_\w+|v(ld|st)\d\w*_f32)\b", line)) for line in lines)
        if named and not name.startswith("cpu/microkernels/"):
            instructions[name] = named
        if any("0.044715" in line for line in lines):
            formulas.add(name)
    assert instructions == NAMED_INSTRUCTIONS
    assert formulas == GELU_TANH


# Constants in several files of native/, graphopt/ and scripts/, and the reasons why they are not copies.
REPEATED = {
    "Float": "element types, with the codes of ONNX and of each vendor's library",
    "Half": "the same",
    "Compute32F": "the same",
    "Slots": "number of addresses in each struct of arguments",
    "Rows": "rows of a work-item, by each matrix instruction",
    "Sums": "the same",
    "Contiguous": "the same",
    "OutOfMemory": "the status codes of two drivers",
    "Residual": "index of an input, for three operators",
    "Line": "bytes of a cache line",
    "Page": "bytes of a memory page",
    "Alignment": "alignment of workspace, and of tensors for hipBLASLt",
    "ShortPlane": "limits of two CPU kernels, each measured",
}


def named_numbers() -> dict[str, dict[str, list[str]]]:
    """Returns name (as in native/, but without the prefix k) -> value as text -> files that give it this value."""
    found: dict[str, dict[str, list[str]]] = {}

    def add(name: str, number: str, path: Path) -> None:
        try:
            value = eval(number, {"__builtins__": {}})  # arithmetic such as 1 << 20
        except Exception:  # anything else is not a constant
            return
        if type(value) in (int, float):
            files = found.setdefault(name, {}).setdefault(repr(value), [])
            files += [place] if (place := path.relative_to(ROOT.parent).as_posix()) not in files else []

    for path in (p for folder in (ROOT, ROOT.parent / "scripts") for p in sorted(folder.rglob("*.py"))):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
                name = "".join(word.capitalize() for word in node.targets[0].id.split("_"))
                add(name, ast.unparse(node.value), path)
    for path in (p for p in sorted(NATIVE.rglob("*")) if p.suffix in (".h", ".cpp", ".hip")):
        for name, number in re.findall(r"\bk([A-Z]\w*) = ([^,;{}]+|\w+\{[^{}]+\})[,;]", path.read_text()):
            number = re.sub(r"^\w+\{(.*?)\}", r"\1", number)
            add(name, re.sub(r"(?<=\d)[fuL]+\b", "", number), path)
    return found


@pytest.mark.once
def test_named_constants_are_defined_once() -> None:
    """Tile sizes, thread counts, opsets, limits: host, device and Python read them from one file."""
    found = named_numbers()
    assert found["AttentionThreads"] and found["AxesInputOpset"] and found["NonzeroMaxAxes"]
    twice = {name: files for name, numbers in found.items() for files in numbers.values() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in REPEATED} == {}
    assert REPEATED.keys() <= twice.keys()


@pytest.mark.once
def test_vendor_libraries_have_the_same_names_in_python() -> None:
    """`session(libraries=...)` checks these names before the native library reads them."""
    names = re.search(r"kNames\[\] = \{(.*?)\};", (NATIVE / "device/libraries/libraries.cpp").read_text(), re.S)
    assert names is not None and tuple(re.findall(r'"(\w+)"', names[1])) == LIBRARIES


def test_scripts_run_their_own_tree() -> None:
    """Scripts import this tree, not an installed wheel: they put its root first on the path, or run by `-m`."""
    others, seen = [], 0
    for path in sorted((ROOT.parent / "scripts").glob("*.py")):
        text = path.read_text()
        ours = re.search(r"^(?:import|from) (?:graphopt|models|scripts|tests)\b", text, re.M)
        is_program = '__name__ == "__main__"' in text
        if ours is None or not is_program or f"-m scripts.{path.stem}" in text:
            continue
        seen += 1
        before = text[: ours.start()]
        if not re.search(r"^sys\.path\.insert\(0, str\((?:ROOT|Path\(__file__\).*)\)\)$", before, re.M):
            others.append(path.name)
    assert seen > 15 and others == []
