"""What a package says of itself."""

from __future__ import annotations

import re
import runpy
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import setuptools
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_of_a_package_has_no_link_to_a_file_of_the_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On an index a relative link leads nowhere."""
    given: dict[str, str] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **more: given.update(more))
    runpy.run_path(str(ROOT / "setup.py"))
    description = given["long_description"]
    readme = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    relative = [target for target in targets if not target.startswith(("http", "#"))]
    assert relative and all(f"`{target}`" in description for target in relative)
    assert all((ROOT / target.partition("#")[0]).exists() for target in relative)
    assert all(target.startswith(("http", "#")) for target in re.findall(r"\]\(([^)]+)\)", description))


def test_pinned_packages_can_be_installed_with_the_oldest_python() -> None:
    """One needed 3.11.5, which Debian 12 does not have: both commands of the README ended there."""
    project = (ROOT / "pyproject.toml").read_text()
    oldest = re.search(r'requires-python = ">=([\d.]+)"', project)
    assert oldest
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert len(pins) > 50
    unfit = []
    for name, version in pins:
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue  # of another platform
        required = str(found.json.get("requires_python", ""))
        if found["Version"] == version and not SpecifierSet(required).contains(f"{oldest[1]}.0"):
            unfit.append((name, version, required))
    assert unfit == []
