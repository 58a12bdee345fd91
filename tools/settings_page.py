"""Writes the tables of docs/settings.md from the settings' model and the options of ``serve``: ``make docs``.

With ``--check`` nothing is written: exit status 1 says that the page is not what it would be.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldfare.cli.configuration import PREFIX, Known

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
BASIC = (
    *("data", "host", "port", "log"),
    *("admin_key_file", "jwt_issuer", "jwt_audience", "jwt_jwks", "insecure"),
    *("tls_cert", "tls_key", "tls_client_ca", "allowed_hosts", "cors_origins"),
    *("retention_s", "retention_bytes", "disk_free_min_bytes", "event_max_bytes", "ack_deadline_s"),
    *("webhook_allow", "broker", "peers", "peer_key_file", "matchers"),
)
"""The settings that a service is usually given; the others are for experts."""

RELOADED = ("admin_key_file", "tls_cert", "tls_key", "tls_client_ca")
"""Files that the service reads again on SIGHUP."""
WATCHED = ("tls_cert", "tls_key", "tls_client_ca", "jwt_jwks")
"""Files that it reads again seconds after they have changed."""
FIXED = ("data", "log")
"""Settings that a running service's directory keeps; all others change with `fieldfare restart`."""

BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def page(text: str) -> str:
    """Return the page with tables that are up to date."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{PAGE} has no place for tables between {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + changes() + tables() + END + after


def changes() -> str:
    """Return when a change of a setting, or of a file that a setting names, takes effect, as Markdown."""
    rows = (
        ("a setting in the file", "after `fieldfare restart`"),
        ("a variable or an option of `serve`", "after a stop and a start"),
        (f"files of {_variables(WATCHED)}", "within seconds"),
        (f"the file of {_variables([name for name in RELOADED if name not in WATCHED])}", "on SIGHUP"),
        ("other files", "after `fieldfare restart`"),
        (_variables(FIXED), "never: the data directory keeps them"),
    )
    table = "".join(f"| {what} | {when} |\n" for what, when in rows)
    return f"\n### When a change counts\n\n| change of | takes effect |\n|---|---|\n{table}"


def _variables(names: Sequence[str]) -> str:
    return ", ".join(f"`{PREFIX}{name.upper()}`" for name in names)


def tables() -> str:
    """Return the basic settings, those of Spark and several matchers, and the advanced ones, as Markdown."""
    known = Known()
    pipeline = [name for name in known.options if name not in known.fields and name not in BASIC]
    advanced = [name for name in known.fields if name not in BASIC]
    parts = []
    for title, about, names in (
        ("Basic", "Settings that most services use.", BASIC),
        ("Spark, clusters and several matchers", "Each is also an option of `serve`.", pipeline),
        ("Advanced", "The defaults fit most services.", advanced),
    ):
        rows = "".join(row(name, known) for name in names)
        parts.append(f"\n### {title}\n\n{about}\n\n| variable | default | |\n|---|---|---|\n{rows}")
    return "".join(parts) + "\n"


def row(name: str, known: Known) -> str:
    """Return one setting's row: the gateway's description, or else the option's help."""
    field = known.fields.get(name)
    default, meaning = (
        (field.default, field.description)
        if field is not None
        else (known.options[name].default, known.options[name].help)
    )
    meaning = " ".join(str(meaning).split()).replace("|", "\\|")
    return f"| `{PREFIX}{name.upper()}` | {default_text(name, default)} | {meaning} |\n"


def default_text(name: str, default: Any) -> str:
    """Return a default as the page shows it."""
    if isinstance(default, float):
        return f"{default:g}"
    if default is None or isinstance(default, bool):
        return "none" if default is None else str(default).lower()
    if isinstance(default, tuple | list):
        return ",".join(default) or "none"
    return f"{default:,}" if isinstance(default, int) and name != "port" else str(default)


def main() -> int:
    text = PAGE.read_text()
    current = page(text)
    if "--check" in sys.argv[1:]:
        if current != text:
            print(f"{PAGE.name} is not up to date: run `make docs`")
        return int(current != text)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
