"""The commands of the pages about coming from other systems print what is shown, errors included."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.docs.test_documentation import ENVIRONMENT, ROOT, blocks, run_shell, shell_examples

from fieldfare import Client
from fieldfare.filters.foreign.systems import SYSTEMS

SPACES = itertools.count()
PAGES = sorted(f"docs/coming-from/{path.name}" for path in (ROOT / "docs" / "coming-from").glob("*.md"))


@pytest.fixture
def own_space(shared_gateway_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use a space that no other test does."""
    space = f"space-{next(SPACES)}"
    with Client(shared_gateway_url) as client:
        client.create_space(space)
    monkeypatch.setitem(ENVIRONMENT, "FIELDFARE_URL", shared_gateway_url)
    monkeypatch.setitem(ENVIRONMENT, "FIELDFARE_SPACE", space)


@pytest.mark.long
@pytest.mark.usefixtures("own_space")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_is_shown(page: str, tmp_path: Path) -> None:
    examples = list(shell_examples(page, "fieldfare "))
    assert len(examples) == sum(language == "sh" for language, _ in blocks(page)) > 0
    for script, shown_as, shown in examples:
        assert shown_as == "text"
        assert run_shell(f"exec 2>&1\n{script}", tmp_path) == shown, script


@pytest.mark.long
@pytest.mark.usefixtures("own_space")
@pytest.mark.parametrize("page", [page for page in PAGES if "README" not in page and "sns" not in page])
def test_a_second_import_of_a_page_s_file_changes_nothing(page: str, tmp_path: Path) -> None:
    (script,) = (text for language, text in blocks(page) if "cat >" in text)
    create, _, convert = script.rpartition("fieldfare filter convert")
    options, _, _ = convert.partition("||")
    run = f"fieldfare subscriptions import {options.replace('--file ', '')} 2>/dev/null || true"
    first = run_shell(f"{create}{run}", tmp_path)
    created = int(first.split()[0])
    assert created
    assert run_shell(run, tmp_path).startswith(f"0 created, 0 replaced, {created} unchanged")


def test_every_system_is_in_the_overview() -> None:
    overview = (ROOT / "docs" / "coming-from" / "README.md").read_text()
    assert [name for name in SYSTEMS if f"`{name}`" not in overview] == []
