"""Values of settings as texts: lists, and sizes and times with their units."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

from fieldfare.units import parse_byte_rate, parse_size, parse_time


def _listed(value: Any) -> Any:
    """Split a list in an environment variable at its commas; leave other values as they are."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]


def amount_of(name: str, value: Any) -> Any:
    """Parse the text of a size or time by the unit in the setting's name; leave other values as they are."""
    if not isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        return parse_size(value)
    if name.endswith("_bytes_per_s"):
        return parse_byte_rate(value)
    if name.endswith(("_s", "_ms")) and not name.endswith("_per_s"):
        return parse_time(value, name.rsplit("_", 1)[1])
    return value


def unknown_settings(environment: Iterable[str], known: Collection[str]) -> list[str]:
    """Return a sentence for each environment variable that looks like a setting but is none."""
    found = []
    for name in sorted(environment):
        if name.startswith("FIELDFARE_") and name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            meant = f"did you mean {near[0]}?" if near else "docs/settings.md lists all settings"
            found.append(f"{name} is not a setting, and is ignored: {meant}")
    return found
