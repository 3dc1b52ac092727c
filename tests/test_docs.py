"""The documentation is true: its examples run, and its tables are complete."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import onnx
import pytest
import typer
from typer.testing import CliRunner

import graphopt
from graphopt.cli.root import app
from graphopt.contrib import CONTRIB
from graphopt.ops import OPS
from graphopt.ops.activation import ACTIVATIONS
from graphopt.ops.cases import family_of
from graphopt.passes.registry import PASSES
from graphopt.remarks import Code
from models import ZOO
from scripts import pages
from tests.contrib.table import WITHOUT_KERNEL

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLES = [
    pytest.param(page, example, id=f"{page}-{i}")
    for page in ("usage.md", "guide.md", "measuring.md", "recipes.md")
    for i, example in enumerate(re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S))
    if "import torch" not in example
]


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_example_runs(page: str, example: str) -> None:
    exec(compile(example, page, "exec"), {})


def test_export_from_torch() -> None:
    """Runs the whole recipe if PyTorch is installed."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    text = (DOCS / "recipes.md").read_text()
    function, use = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)[:2]
    assert "import torch" in use
    exec(compile(function + use, "recipes.md", "exec"), {})


@pytest.mark.once
def test_generated_parts_of_pages_are_current() -> None:
    """Tables of operators, activations, codes and architectures; meanings of codes, and the passes that use them."""
    written = pages.pages()
    old = [page.name for page, text in written.items() if page.read_text() != text]
    assert len(written) > 30 and not old, "run scripts/pages.py"


@pytest.mark.once
def test_operators_that_stay_on_cpus_were_measured() -> None:
    """Each operator that is kept on CPUs, and has a kernel there, has a row in docs/measurements/contrib_cpu.md."""
    rows = (DOCS / "measurements" / "contrib_cpu.md").read_text()
    measured = set(re.findall(r"^\| (\w+)[^|]* \| \d+\.\d+ \|", rows, re.M))
    stay = {op.name for op in CONTRIB.values() if op.kept_on_cpu}
    assert len(stay) > 20 and not stay - measured - WITHOUT_KERNEL


def test_every_operator_has_a_row_with_its_inputs_outputs_and_attributes() -> None:
    """Checks the table that is written by hand. A row may refer to the row above ("the same") or to a name ("as X")."""
    (rows,) = re.findall(r"^\| op \|.*\n\|[-|]+\|\n((?:\|.*\n)*)", (DOCS / "ops.md").read_text(), re.M)
    acts = "|".join(filter(None, ACTIVATIONS))
    words_of: dict[str, set[str]] = {}  # pattern of names -> the words of its row
    above: set[str] = set()
    for text in rows.splitlines():
        words = set(re.findall(r"\w+", text)) | (above if "the same" in text else set())
        for name in re.findall(r"\bas (\w+)", text):
            words |= next((ws for pattern, ws in words_of.items() if pattern.startswith(name)), set())
        above = words
        for name in re.findall(r"`([A-Z][^`]*)`", text.split(" | ")[0]):
            name = name.replace("[act]", "{act}").replace("<act>", "{act}")
            words_of[name.replace("[", "(?:").replace("]", ")?").replace("{act}", f"(?:{acts})?")] = words
    missing = []
    for spec in OPS.values():
        words = next((words for pattern, words in words_of.items() if re.fullmatch(pattern, spec.name)), set())
        activation = {name for act in ACTIVATIONS.values() for name in act.attributes} if "act" in words else set()
        named = {*spec.inputs, *spec.outputs, *spec.attributes} - activation
        missing += [f"{spec.name}: {name}" for name in sorted(named - words)]
    assert len(words_of) > 30 and missing == []


def test_every_refusal_code_has_a_page() -> None:
    assert {page.name for page in (DOCS / "refusals").iterdir()} == {f"{c.name}.md" for c in Code} | {"README.md"}


@pytest.mark.parametrize("code", Code, ids=lambda c: c.name)
def test_example_of_a_refusal(code: Code, tmp_path: Path) -> None:
    """The command on the page, applied to the model on the page, prints the line on the page."""
    page = DOCS.parent / code.page
    text = page.read_text()
    assert text.startswith(f"# {code.name}\n\nMeaning: {code.meaning}.\n")
    for heading in ("Example", "Cause", "Remedy"):
        assert re.search(rf"^## {heading}\n\n.+", text, re.M)
    model, line = re.findall(r"^```\n(.*?)\n```", text, re.M | re.S)
    (command,) = re.findall(r"^`graphopt (.*)` prints$", text, re.M)
    onnx.save(onnx.parser.parse_model(model), tmp_path / "model.onnx")
    arguments = command.replace("model.onnx", str(tmp_path / "model.onnx")).split()
    shown = CliRunner().invoke(app, arguments).stdout.splitlines()
    assert line in [shown_line.strip() for shown_line in shown]
    assert f": {code.name}: " in line
    advice = f"to do: {code.advice}"
    assert advice in line or f"{code.name}: {code.meaning}; {advice}" in shown


def test_every_pass_has_a_page() -> None:
    assert {p.name for p in PASSES} == {page.stem for page in (DOCS / "passes").glob("*.md")}


PAGES = [*(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *DOCS.rglob("*.md")]


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Returns the possible link fragments of a page: its headings in the spelling of GitHub and of the site."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h) for h in re.findall(r"^#+ +(.*)$", text, re.M)]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


@pytest.mark.once
def test_tests_that_are_named_exist() -> None:
    tests = DOCS.parent / "tests"
    known = {n for f in tests.rglob("*.py") for n in re.findall(r"^def (test_\w+)", f.read_text(), re.M)}
    for file in (tests / "native").glob("*.cpp"):
        known.update(re.findall(r'^TEST_CASE\("([^"]+)"\)', file.read_text(), re.M))
    named = {n for page in PAGES for n in re.findall(r"`(test_\w+|[\w ]+(?=` in `tests/native/))`", page.read_text())}
    assert len(named) > 30 and not named - known


@pytest.mark.once
def test_links_lead_somewhere() -> None:
    """Checks the links in pages of the repository; scripts/sweep builds the site, which also checks its own links."""
    lost = []
    for page in PAGES:
        text = without_code(page.read_text())
        # In Conv[Add][act] Markdown would read a reference link; names of operators must be code.
        lost += [f"{page.name}: {two}" for two in re.findall(r"\[[^][]*\]\[[^][]*\]", text)]
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            known = "://" in target or place.exists()
            if not known or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
                lost.append(f"{page.name}: {target}")
    assert len(PAGES) > 60 and not lost


@pytest.mark.once
def test_only_measurements_say_when() -> None:
    """Reference pages contain no dates, and no commits except those of other projects' sources."""
    said, pages = [], [p for p in PAGES if p.parent.name != "measurements" and p.name != "CHANGELOG.md"]
    for page in pages:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            when = re.findall(r"\b20\d\d-\d\d\b", line)
            if "github.com/" not in line:
                when += re.findall(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b", line)
            said += [f"{page.name}:{number}: {w}" for w in when]
    assert len(pages) > 50 and not said


# Configured, not measured, times: verify's budgets, a server's wait for more requests, limits of tests.
SET_TIMES = {
    "serving.md": ["2 ms"],
    "fuzzing.md": ["20 seconds", "100 seconds"],
    "CONTRIBUTING.md": ["15 minutes"],
}
MADE_BY_COMMANDS = {"CHANGELOG.md", "gallery.md", "transcripts.md"}


@pytest.mark.once
def test_only_measurements_say_how_long() -> None:
    """A measured time becomes outdated; on reference pages only printed output of commands may contain one."""
    time = r"\b\d[\d.,]* (?:ns|µs|us|ms|s|CPU s|seconds?|CPU seconds?|minutes?|hours?)\b"
    said = {}
    for page in (p for p in PAGES if p.parent.name != "measurements" and p.name not in MADE_BY_COMMANDS):
        printed = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        if times := re.findall(time, printed):
            said[page.name] = times
    assert said == SET_TIMES


# Names in pages and comments that are not files of this repository: created by a build or installation, a placeholder,
# or of other projects.
MADE = {"graphopt/docs", "graphopt/lib", "graphopt/lib/libgraphopt.so", "graphopt/weights"}
OTHERS = {
    "docs/ContribOperators.md",
    "docs/dev/onnx_operators.rst",
    "docs/supported-operations.md",
    "float16.py",
    "hip_error.cpp",
    "hip_graph.cpp",
    "rocsettings.cpp",
    "target_properties.cpp",
    "tensile_host.cpp",
}
TREES = "graphopt|native|tests|scripts|docs|models|examples"


@pytest.mark.once
def test_files_that_are_named_exist() -> None:
    """Checks paths in all texts of the repository, and names of source files in its pages and comments."""
    root = DOCS.parent
    places = {p.relative_to(root).as_posix(): p for tree in TREES.split("|") for p in (root / tree).rglob("*")}
    texts = [p for p in places.values() if p.suffix in {".py", ".md", ".h", ".cpp", ".hip", ".txt"}]
    texts += [p for p in (root / "scripts").iterdir() if p.is_file() and not p.suffix]
    texts += [root / "README.md", root / "CONTRIBUTING.md", root / "pyproject.toml"]
    known = {*places, *TREES.split("|"), *(p.name for p in places.values()), *MADE, *OTHERS}
    missing = []
    for text in texts:
        for number, line in enumerate(text.read_text(errors="replace").splitlines(), 1):
            named = re.findall(rf"(?<![\w/.*{{}}<>-])((?:{TREES})/[\w./-]*\w)(?![\w/*{{<(\[-])", line)
            comment = line if text.suffix == ".md" else line.partition("#" if text.suffix == ".py" else "//")[2]
            named += re.findall(r"(?<![\w./*<>-])(\w+\.(?:py|cpp|hip|h|cc))\b(?!\()", comment)
            if text.suffix in {".h", ".cpp", ".hip"}:  # in the form of include directives
                inside = re.findall(r"(?<![\w./*-])((?:operators|device|blocks|gemm|runtime)/[\w/]+\.\w+)", comment)
                named += [f"native/{name}" for name in inside]
            wrong = [n for n in named if not {"NAME"} & {*re.findall("[A-Z]+", n)} and not {n, f"{n}.py"} & known]
            missing += [f"{text.relative_to(root)}:{number}: {name}" for name in wrong]
    assert len(texts) > 500 and not missing


# A program of this repository or a module that is run, and its arguments.
PROGRAM = r"(?<![\w./])(?:(scripts/[\w.-]*\w)|-m ((?:tests|models|scripts)[\w.]*))"
COMMAND = re.compile(PROGRAM + r"((?:[ \w./=,<>*$\"{}\[\]|-])*)")


def commands() -> list[tuple[str, Path, str]]:
    """Returns each command in the pages, in the sweep and in CI: its place, the program, and its arguments."""
    root = DOCS.parent
    texts = [root / name for name in ("README.md", "CONTRIBUTING.md", "scripts/sweep", "scripts/test", "scripts/site")]
    texts += [*sorted(DOCS.rglob("*.md")), *sorted((root / ".github").rglob("*.yml"))]
    found = []
    for text in texts:
        for number, line in enumerate(text.read_text().splitlines(), 1):
            if text.suffix != ".md" and line.startswith("#"):
                continue
            for program, module, arguments in COMMAND.findall(line):
                path = root / (program or module.replace(".", "/"))
                places = (path, path.with_name(f"{path.name}.py"), path / "__main__.py")
                here = next((p for p in places if p.is_file()), path)
                found.append((f"{text.relative_to(root)}:{number}", here, arguments))
    return found


@pytest.mark.once
def test_commands_exist_with_their_options() -> None:
    """Pages do not name deleted or renamed scripts, nor removed options or parts of scripts."""
    found = commands()
    missing = [f"{where}: {path.name}" for where, path, _ in found if not path.is_file()]
    assert len(found) > 80 and not missing
    parts = set(re.findall(r"^    (\w+)\)", (DOCS.parent / "scripts/sweep").read_text(), re.M))
    wrong = []
    for where, path, arguments in found:
        text = path.read_text()
        text += path.with_suffix(".py").read_text() if not path.suffix and path.with_suffix(".py").exists() else ""
        passes_on = "$@" in text and not path.suffix  # to a third-party program
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", arguments):
            if f'"{option}"' not in text and not passes_on:
                wrong.append(f"{where}: {path.name} {option}")
        if path.name == "sweep":
            named = re.match(r"((?: [a-z]+)*)", arguments)
            wrong += [f"{where}: sweep {p}" for p in (named[1] if named else "").split() if p not in parts]
    assert len(parts) > 15 and not wrong


def steps_of_the_walkthrough() -> list[list[tuple[list[str], list[str]]]]:
    """Returns the rows of each table of steps: files and functions."""
    text = (DOCS / "walkthrough.md").read_text()
    tables = re.findall(r"^\| step \| file \| functions \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
    cells = [[row.split(" | ")[1:] for row in rows.splitlines()] for rows in tables]
    return [[(re.findall(r"`(.*?)`", files), re.findall(r"`(.*?)`", named)) for files, named in rows] for rows in cells]


@pytest.mark.once
def test_the_map_is_short_and_its_paths_exist() -> None:
    """Paths of docs/architecture.md: of the root, the package, native/, graph/, docs/ or an operator's folder."""
    text, root = (DOCS / "architecture.md").read_text(), DOCS.parent
    folders = (root, root / "graphopt", root / "graphopt" / "graph", root / "native", DOCS)
    named = set(re.findall(r"(?<![\w./<-])((?:[\w-]+/)*[\w-]+(?:/|\.(?:py|h|hip|cpp|md)\b))", text))
    patterns = {re.sub("FAMILY|NAME", "*", path) for path in named}
    in_operator = {*root.glob("native/operators/*/scale_shift/*"), *root.glob("native/operators/*/*/*_cpu.*")}
    missing = [
        pattern
        for pattern in sorted(patterns)
        if not any(next(folder.glob(pattern), None) for folder in folders)
        and not any(path.match(pattern) for path in in_operator)
    ]
    assert len(text.split()) <= 1500 and len(named) > 60 and missing == []


@pytest.mark.once
def test_each_step_of_the_walkthrough_names_functions_of_its_files() -> None:
    tables = steps_of_the_walkthrough()
    missing = []
    for files, functions in (step for steps in tables for step in steps):
        defined = set()
        for file in files:
            rule = r"\b(?:def|class) (\w+)" if file.endswith(".py") else r"\b(\w+)(?:\(| = \[|\"| (?:final )?[:{])"
            defined |= set(re.findall(rule, (DOCS.parent / file).read_text()))
        missing += [name for name in functions if name not in defined]
    assert len(tables) == 4 and sum(map(len, tables)) > 30 and not missing


def called(run: Callable[[], object]) -> list[tuple[str, str]]:
    """Returns file and name of our functions in the order of first calls; a pass also counts as its base class."""
    root = str(DOCS.parent)
    first: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            file, name = frame.f_code.co_filename[len(root) + 1 :], frame.f_code.co_name
            first.setdefault((file, name))
            if file.startswith("graphopt/passes/"):
                first.setdefault(("graphopt/passes/base.py", name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return list(first)


@pytest.mark.once
def test_optimize_calls_the_steps_of_the_walkthrough_in_their_order(tmp_path: Path) -> None:
    """Optimizes into a file in half precision, in memory, and a file that needs no changes."""
    model, paths = ZOO["resnet18"](small=True), [tmp_path / f"{name}.onnx" for name in ("in", "out", "again")]
    onnx.save(model, paths[0])
    named = {
        (f, name): n
        for n, (f, name) in enumerate(
            (f, name) for files, names in steps_of_the_walkthrough()[0] for name in names for f in files
        )
    }
    options = graphopt.Options(target="rocm", precision="fp16", ignore_cost_model=True, only=["winograd_conv"])
    seen = set()
    for run in (
        lambda: graphopt.optimize(paths[0], paths[1], options, external_data=True, freeze_initializers=True),
        lambda: graphopt.optimize(model, options=options, precision="bf16", target="cpu"),
        lambda: graphopt.optimize(paths[1], paths[2], options, precision=None),
    ):
        order = [step for step in called(run) if step in named]
        assert order == sorted(order, key=named.__getitem__)
        seen |= {name for _, name in order}
    assert seen == {name for _, names in steps_of_the_walkthrough()[0] for name in names}


def test_the_page_on_gpus_has_every_operator() -> None:
    """All operators except those without a GPU kernel, which docs/ops.md names."""
    for_cpus = {
        "AxisSoftmax",
        "DynamicQuantizedConv",
        "IndexAdd",
        "InvertedResidual",
        "MaxPool",
        "QuantizedConv",
        "QuantizedLinear",
    }
    families = {family_of(name) for name in OPS if not name.endswith("Bf16")} - for_cpus
    rows = re.findall(r"^\| (.*?) \| `\w+`", (DOCS / "gpu_reference.md").read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+)", row)}
    assert len(families) > 10 and not families - named


def test_the_page_on_options_has_every_option_of_optimize() -> None:
    command = typer.main.get_command(app).commands["optimize"]  # type: ignore[attr-defined]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    long = {name for name in options if name.startswith("--")} - {"--help"}
    assert len(long) > 20 and not long - {*re.findall(r"--[a-z0-9-]+", (DOCS / "options.md").read_text())}


@pytest.mark.once
def test_one_minimum_of_cmake() -> None:
    root = DOCS.parent
    said = {
        "README.md": r"cmake (\d+\.\d+)",
        "pyproject.toml": r"^cmake\.version = \">=(.*)\"$",
        "docs/native_library.md": r"CMake (\d+\.\d+)",
        "scripts/demo": r"cmake (\d+\.\d+)",
        "native/CMakeLists.txt": r"^cmake_minimum_required\(VERSION (.*)\)$",
    }
    found = {file: set(re.findall(rule, (root / file).read_text(), re.M)) for file, rule in said.items()}
    assert all(len(versions) == 1 for versions in found.values()) and len(set.union(*found.values())) == 1


@pytest.mark.once
def test_docstrings_list_existing_attributes() -> None:
    """Each name under "Attributes:" is a member of its class; inherited members are not searched."""
    wrong = []
    for file in (DOCS.parent / "graphopt").rglob("*.py"):
        classes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
        for node in classes:
            section = re.search(r"^Attributes:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.M)
            if section is None or node.bases:
                continue
            names = [n for line in re.findall(r"^    (\w[\w, ]*):", section[1], re.M) for n in line.split(", ")]
            code = "\n".join(ast.unparse(part) for part in node.body[1:])
            wrong += [f"{file.name}: {node.name}.{name}" for name in names if not re.search(rf"\b{name}\b", code)]
    assert not wrong
