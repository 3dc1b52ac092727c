"""Hooks for mkdocs: replace links to files outside of docs/ by names, and link the reports of build/gallery."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

GALLERY = Path(__file__).resolve().parent.parent / "build" / "gallery"


def on_config(config: Any, **_: Any) -> Any:
    """Expands patterns in the navigation to the pages that are not named explicitly. Called first."""
    docs = Path(config["docs_dir"])
    for part in config["nav"]:
        if isinstance(part, dict):
            ((title, pages),) = part.items()
            named = [page for page in pages if "*" not in page]
            matched = [p.relative_to(docs).as_posix() for page in pages if "*" in page for p in sorted(docs.glob(page))]
            part[title] = [*named, *(page for page in matched if page not in named)]
    return config


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Adds the reports to the files of docs/."""
    for report in sorted(GALLERY.glob("*.html")):
        files.append(File.generated(config, f"gallery/{report.name}", abs_src_path=str(report)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Edits each page before it is rendered."""
    docs, place = Path(config["docs_dir"]), Path(page.file.abs_src_path).parent

    def plain(link: re.Match[str]) -> str:
        target = (place / link[2].partition("#")[0]).resolve()
        return link[0] if "://" in link[2] or target.is_relative_to(docs) else f"{link[1]} (`{target.name}`)"

    markdown = re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", plain, markdown)
    if page.file.src_uri == "gallery.md":
        rows = [
            f"| [{shown['title']}](gallery/{name}.html) | {shown['answer']} |"
            for name, shown in json.loads((GALLERY / "index.json").read_text()).items()
        ]
        markdown += "\n".join(["\n\n| report | its first line |", "|---|---|", *rows, ""])
    return markdown
