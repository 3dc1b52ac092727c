"""scripts/abi_check.py finds every declaration of native/ and detects a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.abi_check import compare, lookups, sources, unknown
from tests.native.abi_names import INTERFACES, Interface

HEADER = """
#include <stddef.h>
#define LIB_VERSION 3
typedef struct Handle* lib_handle;
typedef enum { LIB_FLOAT = 4, LIB_HALF = 5 } lib_type;
typedef enum { LIB_OK = 0 } lib_status;
typedef struct { float time; size_t bytes; } lib_answer;
extern "C" lib_status libCreate(lib_handle* handle, void* stream);
extern "C" lib_status libRun(lib_handle handle, lib_type type, size_t count, const float* x, float* y);
extern "C" lib_status libDestroy(lib_handle handle);
extern "C" const char* libName(lib_status status);
"""

OURS = """
#include <cstddef>
namespace graphopt::gpu {
template <class F> void resolve(void*, const char*, F*&);
template <class... P> struct LibraryFunction {
  LibraryFunction(void*, const char*);
  auto pointer() const -> int (*)(P...);
};
struct Lib {
  struct Answer {
    float milliseconds;
    size_t workspace;
  };
  static constexpr int kHalf = 5;
  void* library;
  LibraryFunction<void*> destroy{library, "libDestroy"};
  int (*create)(void**, void*);
  int (*run)(void*, int, size_t, const void*, void*);
  Lib(void* library) {
    constexpr int kFloat = 4, kMost = 8;
    resolve(library, "libCreate", create);
    resolve(library, "libRun", run);
    const char* (*name)(int);
    resolve(library, sizeof name > 3 ? "libNameSinceThree" : "libName", name);
  }
};
}
"""

LIB = Interface(
    "lib",
    "lib.h",
    r"lib[A-Z]\w*",
    {"Lib": {"kHalf": "LIB_HALF", "kFloat": "LIB_FLOAT", "kMost": ""}},
    {"Lib::Answer": ("lib_answer", {"milliseconds": "time", "workspace": "bytes"})},
    version="LIB_VERSION",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lib.h").write_text(HEADER)
    monkeypatch.setattr("scripts.abi_check.INTERFACES", (LIB,))
    return tmp_path


@pytest.mark.once
def test_every_declaration_belongs_to_an_interface() -> None:
    files = sources()
    assert unknown(files) == []
    names = {name for text in files.values() for _, found, _ in lookups(text) for name in found}
    for interface, least in (("HIP", 23), ("CUDA driver", 27), ("MIOpen", 16), ("cuBLASLt", 11), ("hipBLASLt", 11)):
        (known,) = (i for i in INTERFACES if i.name == interface)
        assert sum(known.owns(name) for name in names) >= least, interface


@pytest.mark.once
def test_right_declarations_agree(folder: Path) -> None:
    compared = compare(LIB, folder, [], {folder / "lib.cpp": OURS})
    assert compared.problems == []
    assert (compared.functions, compared.constants, compared.members, compared.version) == (4, 2, 2, "3")


@pytest.mark.once
@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("(*create)(void**, void*)", "(*create)(void**)", "libCreate"),
        ("(*create)(void**, void*)", "(*create)(void**, int)", "libCreate"),
        ("size_t, const void*, void*)", "int, const void*, void*)", "libRun"),
        ("const void*, void*)", "void*, const void*)", "libRun"),
        ("LibraryFunction<void*> destroy", "LibraryFunction<void**> destroy", "libDestroy"),
        ("LibraryFunction<void*> destroy", "LibraryFunction<void*, int> destroy", "libDestroy"),
        ("const char* (*name)(int)", "int (*name)(int)", "libName"),
        ("kHalf = 5", "kHalf = 6", "a number"),
        ("kFloat = 4", "kFloat = 5", "a number"),
        ("float milliseconds;\n    size_t workspace;", "size_t workspace;\n    float milliseconds;", "Lib::Answer"),
        ('"libRun"', '"libRan"', "libRan is not in this header"),
        ('"libNameSinceThree" : "libName"', '"libNameA" : "libNameB"', "libNameA or libNameB is not in this header"),
    ],
)
def test_a_wrong_declaration_is_named(right: str, wrong: str, named: str, folder: Path) -> None:
    assert right in OURS
    compared = compare(LIB, folder, [], {folder / "lib.cpp": OURS.replace(right, wrong)})
    assert any(named in problem for problem in compared.problems), compared.problems


@pytest.mark.once
def test_a_name_without_an_entry_is_a_problem() -> None:
    (path,) = (p for p, text in sources().items() if any("hipMalloc" in names for _, names, _ in lookups(text)))
    text = path.read_text()
    at = text.index("{", text.index("struct Hip ")) + 1
    assert "kNew" in unknown({path: f"{text[:at]}\n  static constexpr int kNew = 3;{text[at:]}"})[0]
    assert "vkCreate" in unknown({path: f'{text}\nvoid f() {{ resolve(library, "vkCreate", create); }}'})[0]
    member = 'struct S { LibraryFunction<void*> made{library, "vkMade"}; };'
    assert "vkMade" in unknown({path: f"{text}\n{member}"})[0]
