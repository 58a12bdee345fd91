"""The pages of docs/ build as a site without a warning, and the site asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADING_TAGS = {"audio", "embed", "iframe", "img", "link", "object", "script", "source", "video"}


class OtherHosts(HTMLParser):
    """The addresses of other hosts that a browser asks when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in LOADING_TAGS:
            values = [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset")]
            self.found += [value for value in values if re.match(r"(?i)\s*(https?:)?//", value)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.long
def test_every_page_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (built.with_name("index.html") if page.stem == "README" else built).exists(), page


@pytest.mark.long
def test_the_site_asks_no_other_host(site: Path) -> None:
    for path in site.rglob("*.html"):
        parser = OtherHosts()
        parser.feed(path.read_text())
        assert parser.found == [], path.relative_to(site)
    styles = list(site.rglob("*.css"))
    assert styles
    for path in styles:
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", path.read_text()), path


@pytest.mark.long
def test_pictures_and_examples_outside_docs_are_in_the_site(site: Path) -> None:
    assert (site / "experiments/scaling/results/machines.svg").exists()
    assert "examples/receiver.py" in (site / "webhooks.html").read_text()
    assert (site / "examples/receiver.py").exists()


@pytest.mark.long
def test_a_pipe_in_the_code_of_a_table_has_no_backslash(site: Path) -> None:
    """mkdocs shows the backslash that GitHub needs there."""
    assert "<code>a || b</code>" in (site / "filter-functions.html").read_text()
