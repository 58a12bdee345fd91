"""Labels of subscriptions as arguments and in tables: KEY=VALUE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fieldfare.cli.output import EXIT_USAGE, fail


def read_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return the labels in arguments of the form KEY=VALUE; end the program if one has another form."""
    found: dict[str, str] = {}
    for key, value in wanted_labels(texts).items():
        if value is None:
            fail(f"a label is KEY=VALUE, not {key!r}", EXIT_USAGE)
        found[key] = value
    return found


def wanted_labels(texts: Iterable[str]) -> dict[str, str | None]:
    """Return the labels to search for, from arguments of the form KEY=VALUE, or KEY for any value (None)."""
    found: dict[str, str | None] = {}
    for text in texts:
        key, has_value, value = text.partition("=")
        wanted = value if has_value else None
        if found.setdefault(key, wanted) != wanted:
            fail(f"the label {key} is given twice", EXIT_USAGE)
    return found


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels for a table."""
    return ", ".join(f"{key}={value}" for key, value in labels.items())
