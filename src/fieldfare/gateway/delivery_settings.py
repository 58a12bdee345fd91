"""Settings of a subscription's delivery as clients write them: checked by name, and changed one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from fieldfare.filters.errors import FilterError
from fieldfare.filters.sql.paths import format_path, parse_path
from fieldfare.model import DeliverySettings

DEADLINE_MAX_S = 86_400.0
ATTEMPTS_MAX = 1_000
DELAYS_MAX = 20
IN_FLIGHT_MAX = 20_000
IN_FLIGHT_MAX_BYTES = 1 << 40
PATH_MAX = 1_000


class BadSetting(ValueError):
    """A setting that is not taken; ``pointer`` names it within the settings."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.pointer = pointer


def changed_settings(settings: DeliverySettings, changes: Any) -> DeliverySettings:
    """Settings with some of them changed; what is set to null is again what it is by itself.

    Raises
    ------
    BadSetting
        The first that is not taken.
    """
    if not isinstance(changes, Mapping):
        raise BadSetting("", "the settings of a delivery are an object")
    found: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in _CHECKS:
            names = ", ".join(_CHECKS)
            raise BadSetting(f"/{name[:80]}", f"there is no setting {name[:80]!r}; there are {names}")
        taken = _DEFAULTS[name] if value is None else _CHECKS[name](value)
        if taken is _BAD:
            raise BadSetting(f"/{name}", f"{name} must be {RULES[name]}")
        found[name] = taken
    return replace(settings, **found)


_BAD = object()
_DEFAULTS = {field.name: field.default for field in fields(DeliverySettings)}


def _seconds(value: Any, least_s: float = 0.0) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and least_s <= value <= DEADLINE_MAX_S else _BAD


def _deadline(value: Any) -> Any:
    return _seconds(value, math.ulp(0.0))


def _count(most: int) -> Callable[[Any], Any]:
    return lambda value: value if type(value) is int and 1 <= value <= most else _BAD


def _delays(value: Any) -> Any:
    if not isinstance(value, list) or len(value) > DELAYS_MAX:
        return _BAD
    found = tuple(map(_seconds, value))
    return _BAD if _BAD in found else found


def _path(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > PATH_MAX:
        return _BAD
    try:
        return format_path(parse_path(value))
    except FilterError:
        return _BAD


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _BAD


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "ack_deadline_s": _deadline,
    "max_attempts": _count(ATTEMPTS_MAX),
    "retry_delays_s": _delays,
    "max_in_flight": _count(IN_FLIGHT_MAX),
    "max_in_flight_bytes": _count(IN_FLIGHT_MAX_BYTES),
    "dead_letter": _flag,
    "paused": _flag,
    "order_by": _path,
}

RULES = {
    "ack_deadline_s": f"a number of seconds, more than 0 and at most {DEADLINE_MAX_S:g}",
    "max_attempts": f"a whole number from 1 to {ATTEMPTS_MAX:,}",
    "retry_delays_s": f"a list of at most {DELAYS_MAX} numbers of seconds, each from 0 to {DEADLINE_MAX_S:g}",
    "max_in_flight": f"a whole number from 1 to {IN_FLIGHT_MAX:,}",
    "max_in_flight_bytes": f"a whole number from 1 to {IN_FLIGHT_MAX_BYTES:,}",
    "dead_letter": "true or false",
    "paused": "true or false",
    "order_by": "the name of an attribute, as filters name it: subject, or data.vehicle.id",
}
"""What each of them may be."""
