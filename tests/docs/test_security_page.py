"""docs/security.md and quotas.md are true: their commands run, in order, on a service that asks for keys."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_documentation import DEFAULT_URL, ENVIRONMENT, ROOT, run_shell, shell_examples

from fieldfare.gateway.admission.callers import Right
from fieldfare.gateway.admission.keyring import ADMIN_MIN_CHARS

PAGE = ROOT / "docs" / "security.md"


@pytest.mark.long
def test_the_commands_do_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from real_gateway import running_gateway

    first, *examples = [*shell_examples("docs/security.md", ""), *shell_examples("docs/quotas.md", "")]
    examples = [
        example
        for example in examples
        if not any(word in example[0] for word in ("--tls-", "--jwt-", "--ca-file"))
    ]
    run_shell(first[0].splitlines()[0], tmp_path)
    assert (tmp_path / "admin.key").stat().st_mode & 0o777 == 0o600
    with running_gateway(tmp_path / "data", admin_key_file=str(tmp_path / "admin.key")) as gateway:
        monkeypatch.setitem(ENVIRONMENT, "FIELDFARE_URL", gateway.url)
        for script, shown_as, shown in examples:
            answer = run_shell(script.replace(DEFAULT_URL, gateway.url), tmp_path)
            if shown_as == "json":
                assert json.loads(answer) == json.loads(shown), script
            elif "spaces quotas" in script:
                assert answer == shown
    assert len(examples) == 8


def test_every_right_is_explained() -> None:
    text = PAGE.read_text()
    assert re.findall(r"^\| `(\w+)` \| (?:a space|the service) \|", text, re.MULTILINE) == list(Right)
    assert f"{ADMIN_MIN_CHARS} characters" in text


def test_the_pages_agree_on_what_makes_another_admin_key_count() -> None:
    """What the gateway does is in tests/gateway/admission/test_keys.py and test_reloaded_settings.py."""
    change = next(
        part for part in PAGE.read_text().split("\n\n") if part.startswith("**To change the admin key**")
    )
    reloading = next(
        part
        for part in (ROOT / "docs" / "service.md").read_text().split("\n\n")
        if part.startswith("**Reloading.**")
    )
    row = next(
        line
        for line in (ROOT / "docs" / "settings.md").read_text().splitlines()
        if line.startswith("| the file of `FIELDFARE_ADMIN_KEY_FILE`")
    )
    assert all("SIGHUP" in text for text in (change, reloading, row))
    assert "admin key's file" in reloading
