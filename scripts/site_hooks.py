"""For mkdocs: links from docs/ to files of the repository that are no pages become their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called with each page before it is rendered."""
    docs, place = Path(config["docs_dir"]), Path(page.file.abs_src_path).parent

    def plain(link: re.Match[str]) -> str:
        target = (place / link[2].partition("#")[0]).resolve()
        return link[0] if "://" in link[2] or target.is_relative_to(docs) else f"{link[1]} (`{target.name}`)"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", plain, markdown)
