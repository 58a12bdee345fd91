"""Hooks of mkdocs for pages that are also read on GitHub.

Files outside docs/ that a page links to are copied into the site, and the links follow: docs/scaling.md, for
example, shows ``../experiments/scaling/results/machines.svg``, which in the site is
``experiments/scaling/results/machines.svg``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

CODE = re.compile(r"`[^`\n]+`")
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")


def _outside(docs: Path, page: str, target: str) -> Path | None:
    """The path of a link's target within the repository, where that lies outside docs/."""
    path = Path(os.path.normpath(docs / Path(page).parent / target))
    return None if path.is_relative_to(docs) else path.relative_to(docs.parent)


def on_files(files: Any, *, config: Any) -> Any:
    docs = Path(config.docs_dir)
    for page in list(files.documentation_pages()):
        for _, target in LINK.findall(Path(page.abs_src_path).read_text(encoding="utf-8")):
            path = _outside(docs, page.src_uri, target)
            if path is not None and (docs.parent / path).is_file() and path.suffix != ".md":
                files.append(File.generated(config, path.as_posix(), abs_src_path=str(docs.parent / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    docs = Path(config.docs_dir)

    def follow(match: re.Match[str]) -> str:
        target = match[2]
        if _outside(docs, page.file.src_uri, target) is None:
            return match[0]
        return match[1] + target.removeprefix("../")

    return TABLE_ROW.sub(_plain_pipes, LINK.sub(follow, markdown))


def _plain_pipes(row: re.Match[str]) -> str:
    """Write ``\\|`` within code as ``|``: GitHub needs the backslash in a table, mkdocs shows it."""
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])
