"""Compares every declaration of another library's functions in native/ with that library's headers.

    python scripts/abi_check.py [--pypi] [FOLDER ...]

The native library itself declares the functions of ONNX Runtime, HIP, CUDA and their libraries that it calls, and so
builds without any of them. This script compiles each declaration together with the real header and compares: result and
parameters of each function (class, size, pointee), the value of each constant, the offset of each member, the index of
each slot. Nothing is run.

Headers come from /usr/include (Debian's libamdhip64-dev), with --pypi from the wheel of triton (HIP and CUDA's driver;
a download of 280 MB, of which build/headers keeps the headers), and from each FOLDER: an include folder of ROCm, CUDA,
cuDNN or ONNX Runtime. Declarations are found by name anywhere in native/. Each function that is looked up in a library
must belong to an interface of tests/native/abi_names.py. In a file with such look-ups, each constant of an interface's
struct must be in the interface's table.

Prints the number of compared declarations for each interface and folder. The exit code is 1 if a declaration disagrees
or belongs to no interface.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.native.abi_names import INTERFACES, ORT_ENUMS, ORT_FOLDERS, ORT_HEADER, ORT_MEMBERS, ORT_STRUCTS, Interface

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
SYSTEM = Path("/usr/include")
FETCHED = ROOT / "build" / "headers"
FLAGS = ("-std=c++17", "-w", "-D__HIP_PLATFORM_AMD__", "-D__HIP_DISABLE_CPP_FUNCTIONS__")
AGREES = f'#include "{ROOT}/tests/native/abi_agrees.h"'


@dataclass
class Compared:
    """The comparison of one interface with the headers in one folder."""

    interface: str
    folder: Path
    version: str = ""
    functions: int = 0
    constants: int = 0
    members: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.functions} functions, {self.constants} constants, {self.members} members"
        verdict = "agree" if not self.problems else f"{len(self.problems)} DISAGREE"
        return f"{self.interface} {self.version} in {self.folder}: {counts}: {verdict}"


def sources(native: Path = NATIVE) -> dict[Path, str]:
    """Returns the files that may contain declarations."""
    found = sorted(p for ending in ("*.h", "*.cpp") for p in native.rglob(ending))
    return {path: path.read_text(encoding="utf-8") for path in found}


# Matches find("hipMalloc", malloc_); resolve(library, grown ? "NewName" : "OldName", get_properties); find("Create",
# create)
_LOOKUP = re.compile(r'\b\w+\(([^;()]*"\w+"[^;()]*),\s*([A-Za-z_][\w.>-]*)\s*\);')
# Matches LibraryFunction<void*> destroy_{library, "miopenDestroy"}; Find find{library, kPrefix + "Find"};
_MEMBER = re.compile(r'\b(?:LibraryFunction<[^;{}]*>|[A-Z]\w*) (\w+)\{\s*library,([^{};]*"\w+"[^{};]*)\};')
_LT_PREFIXES = ("cublasLt", "hipblasLt")


def lookups(text: str) -> Iterator[tuple[re.Match[str], list[str], str]]:
    """Yields each call or member that looks functions up: the match, the function names, and the address."""
    prefixed = "kPrefix" in text
    found = [(match, match[1], match[2]) for match in _LOOKUP.finditer(text)]
    found += [(m, m[2], f"std::declval<decltype({m[1]})>().pointer()") for m in _MEMBER.finditer(text)]
    for match, given, pointer in found:
        names = re.findall(r'"(\w+)"', given)
        if prefixed and all(re.match("[A-Z]", name) for name in names):
            names = [prefix + name for prefix in _LT_PREFIXES for name in names]
        if all(any(i.owns(name) for i in INTERFACES) for name in names):
            yield match, names, pointer


_STRUCT = re.compile(r"^(?:class|struct|enum) (\w+)[^;{\n]*\{(?:[^\n]*\};$|.*?^\};)", re.M | re.S)
_CONSTANT = re.compile(r"\b(k[A-Z]\w*) = (-?\d+)(?=[,;\s}])")


def constants(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yields each named integer, and the top-level struct that contains it ("" for none)."""
    spans = [(m.start(), m.end(), m[1]) for m in _STRUCT.finditer(text)]
    for match in _CONSTANT.finditer(text):
        yield match, next((name for start, end, name in spans if start <= match.start() < end), "")


def unknown(files: Mapping[Path, str]) -> list[str]:
    """Returns errors for functions and constants in the declaring files that belong to no interface."""
    found = []
    known: dict[str, set[str]] = {}
    for interface in INTERFACES:
        for struct, numbers in interface.structs.items():
            known.setdefault(struct, set()).update(numbers)
    for path, text in files.items():
        looked_up = {m.start() for m, _, _ in lookups(text)}
        for call in re.finditer(r'(?<![.\w])(resolve|dlsym|find)\([^;()]*"(\w+)"', text):
            # A dlsym call that is no look-up may just test whether a function of an interface exists.
            is_existence_query = call[1] == "dlsym" and any(i.owns(call[2]) for i in INTERFACES)
            if call.start() not in looked_up and not call[2].startswith("graphopt_") and not is_existence_query:
                found.append(f"{path}: {call[2]} belongs to no interface of tests/native/abi_names.py")
        for member in _MEMBER.finditer(text):
            if member.start() not in looked_up:
                found.append(f"{path}: {member[2].strip()} belongs to no interface of tests/native/abi_names.py")
        if not looked_up:
            continue
        for match, struct in constants(text):
            if struct in known and struct and match[1] not in known[struct]:
                found.append(f"{path}: {struct}::{match[1]} is in no table of tests/native/abi_names.py")
    return found


def compile_errors(source: Path, includes: Iterable[Path]) -> list[str]:
    """Returns the compiler's errors for a file, one line each."""
    command = ["g++", *FLAGS, "-fsyntax-only", "-fno-access-control", *(f"-I{folder}" for folder in includes)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    if done.returncode != 0 and not errors:
        errors = done.stderr.splitlines()[-1:]
    return errors


def preprocessed(inclusion: str, includes: Iterable[Path]) -> tuple[str, dict[str, str]]:
    """Returns the header's declarations, and the macros that are defined after it."""
    command = ["g++", "-x", "c++", *FLAGS, *(f"-I{folder}" for folder in includes), "-E"]
    line = inclusion + "\n"
    text = subprocess.run([*command, "-P", "-"], input=line, capture_output=True, text=True)
    if text.returncode != 0:
        return "", {"": next((e for e in text.stderr.splitlines() if "error:" in e), text.stderr[-200:])}
    macros = subprocess.run([*command, "-dM", "-"], input=line, capture_output=True, text=True)
    return text.stdout, dict(re.findall(r"^#define (\w+) (.*)$", macros.stdout, re.M))


def compare(interface: Interface, folder: Path, others: Iterable[Path], files: Mapping[Path, str]) -> Compared:
    """Compiles each file that names functions of the interface, with assertions instead of the look-ups."""
    compared = Compared(interface.name, folder)
    includes = [folder] if folder == SYSTEM else [folder, *(other for other in others if other != SYSTEM)]
    declared, macros = preprocessed(interface.inclusion, includes)
    if "" in macros:
        compared.problems.append(f"the header cannot be read: {macros['']}")
        return compared
    compared.version = macros.get(interface.version, "").strip('"').strip("( )")
    if interface.version == "HIP_VERSION":
        compared.version = ".".join(macros.get(f"HIP_VERSION_{part}", "?") for part in ("MAJOR", "MINOR", "PATCH"))
    missing: set[str] = set()

    def assertions(names: list[str], pointer: str) -> str:
        lines = []
        owned = [name for name in names if interface.owns(name)]
        # A look-up may have two names, of an older and a newer version; one of them may be missing, but not both.
        present = [name for name in owned if re.search(rf"\b{macros.get(name, name)}\b", declared) is not None]
        if not present:
            missing.add(" or ".join(owned))
        for name in present:
            compared.functions += 1
            lines.append(f'static_assert(::abi_check::agrees<decltype({pointer}), decltype(&::{name})>, "{name}");')
        return " ".join(lines)

    def number(match: re.Match[str], struct: str) -> str:
        meaning, _, newer = interface.structs.get(struct, {}).get(match[1], "").partition(" unless ")
        # The version of this header lacks the struct or the enumerator.
        if (
            not meaning
            or (newer and newer in declared)
            or not all(w in declared for w in re.findall(r"\w+R\d+", meaning))
        ):
            return match[0]
        compared.constants += 1
        return f"{match[1]} = ::abi_check::Number<{match[2]}, static_cast<long long>({meaning})>::value"

    for path, text in files.items():
        calls = [(m, names, to) for m, names, to in lookups(text)]
        ours = any(interface.owns(name) for _, names, _ in calls for name in names)
        # Declarations shared by two drivers are in a separate file.
        if not ours and not any(s and re.search(rf"^class {s}\b[^;]*\{{", text, re.M) for s in interface.structs):
            continue
        edits = []
        for match, names, to in calls:
            if any(map(interface.owns, names)):
                kept = f"{match[0]} " if match.re is _MEMBER else ""
                edits.append((match.start(), match.end(), kept + assertions(names, to)))
        edits += [(m.start(), m.end(), number(m, struct)) for m, struct in constants(text)]
        for start, end, replacement in sorted(edits, reverse=True):
            text = text[:start] + replacement + text[end:]
        for struct, (theirs, pairs) in interface.members.items():
            if f"struct {struct.rpartition('::')[2]} " not in text:
                compared.problems.append(f"{struct} is not declared")
                continue
            checks = [f"sizeof(graphopt::gpu::{struct}) == sizeof(::{theirs})"]
            checks += [
                f"offsetof(graphopt::gpu::{struct}, {a}) == offsetof(::{theirs}, {b}) && "
                f"sizeof(graphopt::gpu::{struct}::{a}) == sizeof(::{theirs}::{b})"
                for a, b in pairs.items()
            ]
            compared.members += len(pairs)
            text += "".join(f'\nstatic_assert({check}, "{struct}");' for check in checks)
        with tempfile.TemporaryDirectory() as temporary:
            rewritten = Path(temporary) / f"{path.stem}.cpp"
            prelude = f"{interface.inclusion}\n{AGREES}\n"
            rewritten.write_text(f'{prelude}#line 1 "{path}"\n{text.replace("#pragma once", "")}')
            compared.problems += compile_errors(rewritten, [NATIVE, path.parent, *includes])
    compared.problems += [f"{names} is not in this header" for names in sorted(missing)]
    return compared


def without_newer(text: str, revision: int) -> str:
    """Removes declarations after a comment "From revision N on", up to the next closing brace, if N is newer."""
    parts = re.split(r"^ *// From revision (\d+) on\b", text, flags=re.M)
    kept = parts[0]
    for needed, part in zip(parts[1::2], parts[2::2], strict=True):
        _, brace, rest = part.partition("\n}")
        kept += part if int(needed) <= revision else brace + rest
    return kept


def ort_source(files: Mapping[Path, str], declared: str, revision: int) -> tuple[str, Compared]:
    """Returns C++ assertions about each slot, struct and constant that native/ declares of ONNX Runtime."""
    compared = Compared("ONNX Runtime", Path())
    lines: list[str] = []
    headers: list[Path] = []
    for path, text in files.items():
        if path.suffix != ".h" or not re.search(r"^struct Ort(?:Api|EpApi) \{", text, re.M):
            continue
        needed = re.search(r"constexpr uint32_t k\w*ApiRevision = (\d+);", text)
        if needed is None:
            compared.problems.append(f"{path}: declares a table, but no revision")
            continue
        if revision < int(needed[1]):
            continue
        headers.append(path)
        text = without_newer(text, revision)
        tables = dict(re.findall(r"using (\w+) = \w+<(\w+), \w+, \w+>;", text))
        for alias, name in re.findall(r"inline constexpr (\w+)<\s*\d+,[^;]*?>\s*(\w+);", text):
            table = "OrtEpApi" if tables.get(alias) == "OrtEpApi" else "OrtApi"
            compared.functions += 1
            slot = f"::abi_check::slot<decltype(graphopt::abi::{name})>"
            lines.append(
                f"static_assert({slot}::index * sizeof(void*) == offsetof(::{table}, {name}) && "
                f'::abi_check::agrees<{slot}::type, decltype(::{table}::{name})>, "{table}::{name}");'
            )
        for struct, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.M | re.S):
            theirs = ORT_STRUCTS.get(struct, struct)
            if "slots[" in body or "get_api" in body:
                continue
            if re.search(rf"\bstruct {theirs} {{", declared) is None:
                if struct.startswith("Ort"):
                    compared.problems.append(f"{path}: {struct} is not a struct of the header")
                continue
            renamed = ORT_MEMBERS.get(struct, ORT_MEMBERS[""])
            for member in re.findall(r"^  uint32_t (\w+)(?: = \w+)?;", body, re.M):
                compared.members += 1
                lines.append(
                    f"static_assert(offsetof(graphopt::abi::{struct}, {member}) == "
                    f'offsetof(::{theirs}, {renamed.get(member, member)}), "{struct}::{member}");'
                )
            for member, parameters in re.findall(r"\(\*(\w+)\)\(([^;]*)\);", body):
                named = renamed.get(member, member)
                compared.members += 1
                check = f"offsetof(graphopt::abi::{struct}, {member}) == offsetof(::{theirs}, {named})"
                if parameters:  # a slot without parameters is filled with null
                    check += (
                        f" && ::abi_check::agrees<decltype(graphopt::abi::{struct}::{member}), "
                        f"decltype(::{theirs}::{named})>"
                    )
                lines.append(f'static_assert({check}, "{struct}::{member}");')
        for enum, body in re.findall(r"^enum class (\w+) : int32_t \{(.*?)\};", text, re.M | re.S):
            for member in re.findall(r"(\w+) = -?\d+", body):
                meaning = ORT_ENUMS.get(enum, {}).get(member)
                if meaning is None:
                    compared.problems.append(f"{path}: {enum}::{member} is in no table of tests/native/abi_names.py")
                    continue
                compared.constants += 1
                lines.append(
                    f"static_assert(static_cast<int>(graphopt::abi::{enum}::{member}) == "
                    f'static_cast<int>(::{meaning}), "{enum}::{member}");'
                )
    includes = "".join(f'#include "{path}"\n' for path in headers)
    return f"#include <{ORT_HEADER}>\n{includes}{AGREES}\n" + "\n".join(lines) + "\n", compared


def compare_ort(folder: Path, files: Mapping[Path, str]) -> Compared:
    declared, macros = preprocessed(f"#include <{ORT_HEADER}>", [folder])
    if "" in macros:
        return Compared("ONNX Runtime", folder, problems=[f"the header cannot be read: {macros['']}"])
    revision = int(macros["ORT_API_VERSION"])
    source, compared = ort_source(files, declared, revision)
    compared.folder, compared.version = folder, f"1.{revision}"
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "ort.cpp"
        path.write_text(source)
        compared.problems += compile_errors(path, [NATIVE, folder])
    return compared


def triton_headers() -> list[Path]:
    """Returns the folders of HIP's and CUDA's headers in the newest wheel of triton, which is downloaded once."""
    if not FETCHED.exists():
        with tempfile.TemporaryDirectory() as temporary:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, "triton"]
            subprocess.run(command, check=True)
            (wheel,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                wanted = [n for n in archive.namelist() if re.match(r"triton/backends/(amd|nvidia)/include/.*\.h", n)]
                archive.extractall(FETCHED, wanted)
    return [FETCHED / "triton" / "backends" / vendor / "include" for vendor in ("amd", "nvidia")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a folder of headers")
    parser.add_argument("--pypi", action="store_true", help="also use the headers in PyPI's wheel of triton")
    arguments = parser.parse_args()
    folders = [SYSTEM, *(triton_headers() if arguments.pypi else []), *(f.resolve() for f in arguments.folders)]
    files = sources()
    problems = unknown(files)
    done: list[Compared] = []
    for interface in INTERFACES:
        found = [folder for folder in folders if (folder / interface.header).is_file()]
        # A library's header may include HIP's or CUDA's headers. The last named folder that has them is used.
        done += [compare(interface, folder, [f for f in reversed(folders) if f != folder], files) for folder in found]
        if not found:
            print(f"{interface.name}: not compared: no folder has {interface.header}")
    ort = [f / inner for f in folders for inner in ORT_FOLDERS if (f / inner / ORT_HEADER).is_file()]
    done += [compare_ort(folder, files) for folder in ort]
    if not ort:
        print(f"ONNX Runtime: not compared: no folder has {ORT_HEADER}")
    for compared in done:
        print(compared)
        problems += compared.problems
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
