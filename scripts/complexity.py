"""Lists the most complex functions, by cyclomatic complexity, and those of more than 80 lines.

    pip install lizard
    .venv/bin/python scripts/complexity.py native              # the ten worst, with their lines
    .venv/bin/python scripts/complexity.py graphopt --worst 20

Lizard counts decisions; device code (.hip) is read as C++. The exit code is 1 when a function has more than 80 lines.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

MOST_LINES = 80
ENDINGS = (".py", ".h", ".cpp", ".hip")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--worst", type=int, default=10, help="how many (default: 10)")
    arguments = parser.parse_args()
    try:
        import lizard  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        parser.exit(2, "needs lizard: pip install lizard\n")

    found = []
    for path in sorted(p for folder in arguments.folders for p in folder.rglob("*") if p.suffix in ENDINGS):
        name = f"{path}.cpp" if path.suffix == ".hip" else str(path)
        code = lizard.analyze_file.analyze_source_code(name, path.read_text(encoding="utf-8"))
        found += [(f.cyclomatic_complexity, f.length, f.name, path) for f in code.function_list]
    found.sort(key=lambda row: (-row[0], -row[1]))
    for complexity, lines, name, path in found[: arguments.worst]:
        print(f"{complexity:4} {lines:4} lines  {name}  {path}")
    long = [row for row in found if row[1] > MOST_LINES]
    print(f"{len(found)} functions, {len(long)} of more than {MOST_LINES} lines")
    for _, lines, name, path in long:
        print(f"     {lines:4} lines  {name}  {path}")
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
