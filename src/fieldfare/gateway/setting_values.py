"""Values of settings: lists, sizes and times with their units, and what only looks like one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from fieldfare.units import parse_byte_rate, parse_size, parse_time


def _listed(value: Any) -> Any:
    """Split a list in an environment variable at its commas; leave other values as they are."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]

ANY = "*"

RATIOS = ("input", "output", "cpu", "memory")
"""The utilisation ratios of a broker."""


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise ValueError(f"{network!r} is no network such as 10.2.0.0/16 or fd00::/8") from None
    return networks


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if origin != ANY and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s,*]+", origin.lower()):
            raise ValueError(f"{origin!r} is no origin such as https://app.example.com, nor *")
    return tuple(origin.lower() for origin in origins)


def _ratios(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in RATIOS:
            raise ValueError(f"{name!r} is none of {', '.join(RATIOS)}")
    return names


def _trusted(place: str) -> str:
    """Refuse a URL without TLS: an attacker on the network could make the service accept any token."""
    parts = urlsplit(place)
    if parts.scheme in ("http", "https") and (parts.username or not parts.hostname):
        raise ValueError("it must be a URL such as https://login.example.com/keys.json")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError("http is only allowed for this machine: use https, or a file")
    return place


Networks = Annotated[Names, AfterValidator(_networks)]
Origins = Annotated[Names, AfterValidator(_origins)]
Ratios = Annotated[Names, AfterValidator(_ratios)]
KeysPlace = Annotated[str, AfterValidator(_trusted)]
"""A file with signing keys of tokens, or their https URL."""


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
