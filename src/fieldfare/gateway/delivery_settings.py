"""Settings of a subscription's delivery as clients write them: checked by name, and changed one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from fieldfare.filters.errors import FilterError
from fieldfare.filters.sql.paths import format_path, parse_path
from fieldfare.gateway.push.addresses import Target
from fieldfare.gateway.push.signing import SECRET_RULE, key_of
from fieldfare.model import DeliverySettings, PushMode, PushSettings

DEADLINE_MAX_S = 86_400.0
UNUSED_MIN_S = 60.0
UNUSED_MAX_S = AGE_MAX_S = 10 * 365 * 86_400.0
ATTEMPTS_MAX = 1_000
DELAYS_MAX = 20
IN_FLIGHT_MAX = 20_000
IN_FLIGHT_MAX_BYTES = 1 << 40
PATH_MAX = 1_000
PUSHED_MAX = 1_000
"""Events of one request, in batch mode."""

PUSHES_MAX = 64
"""Requests of one subscription under way at a time."""

SECRETS_MAX = 2
AUTHORIZATION_MAX = 2_000


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
        if name == "push" and value is not None:
            found[name] = _changed_push(settings.push, value)
            continue
        taken = _DEFAULTS[name] if value is None else _CHECKS[name](value)
        if taken is _BAD:
            raise BadSetting(f"/{name}", f"{name} must be {RULES[name]}")
        found[name] = taken
    if "paused" in found:
        found["paused_because"] = None
    return replace(settings, **found)


def _changed_push(settings: PushSettings | None, changes: Any) -> PushSettings:
    """Where messages are sent with some of it changed."""
    if not isinstance(changes, Mapping):
        raise BadSetting("/push", "push must be an object with a url, or null")
    found: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in _PUSH_CHECKS:
            names = ", ".join(_PUSH_CHECKS)
            raise BadSetting(f"/push/{name[:80]}", f"push has no setting {name[:80]!r}; it has {names}")
        taken = _PUSH_DEFAULTS[name] if value is None else _PUSH_CHECKS[name](value)
        if taken is _BAD:
            raise BadSetting(f"/push/{name}", f"{name} must be {PUSH_RULES[name]}")
        found[name] = taken
    if settings is None and found.get("url") is None:
        raise BadSetting("/push/url", "push needs a url")
    if "url" in found:
        try:
            Target.parse(found["url"] or "")
        except ValueError as error:
            raise BadSetting("/push/url", str(error)) from None
    if settings is None:
        return PushSettings(**found)
    if found.get("url", settings.url) != settings.url:
        # What is signed for one receiver must not go to another because nobody thought of it.
        for name in ("secrets", "authorization"):
            if getattr(settings, name) and name not in found:
                raise BadSetting(f"/push/{name}", f"with another url say what {name} there are, or null")
    return replace(settings, **found)


_BAD = object()
_DEFAULTS = {field.name: field.default for field in fields(DeliverySettings)}


def _seconds(value: Any, least_s: float = 0.0, most_s: float = DEADLINE_MAX_S) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and least_s <= value <= most_s else _BAD


def _deadline(value: Any) -> Any:
    return _seconds(value, math.ulp(0.0))


def _age(value: Any) -> Any:
    return _seconds(value, math.ulp(0.0), AGE_MAX_S)


def _unused(value: Any) -> Any:
    return _seconds(value, UNUSED_MIN_S, UNUSED_MAX_S)


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


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else _BAD


def _mode(value: Any) -> Any:
    return value if value in get_args(PushMode) else _BAD


def _secrets(value: Any) -> Any:
    if not isinstance(value, list) or len(value) > SECRETS_MAX:
        return _BAD
    return tuple(value) if all(isinstance(each, str) and key_of(each) for each in value) else _BAD


def _header(value: Any) -> Any:
    is_header = isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip()
    return value if is_header and 0 < len(value) <= AUTHORIZATION_MAX else _BAD


_PUSH_DEFAULTS = {field.name: field.default for field in fields(PushSettings)} | {
    "url": None,
    "secrets": (),
    "authorization": "",
}
_PUSH_CHECKS: dict[str, Callable[[Any], Any]] = {
    "url": _text,
    "mode": _mode,
    "batch_max": _count(PUSHED_MAX),
    "requests_max": _count(PUSHES_MAX),
    "secrets": _secrets,
    "authorization": _header,
}
PUSH_RULES = {
    "url": "an address such as https://example.com/path",
    "mode": f"one of {', '.join(get_args(PushMode))}",
    "batch_max": f"a whole number from 1 to {PUSHED_MAX:,}",
    "requests_max": f"a whole number from 1 to {PUSHES_MAX}",
    "secrets": f"a list of at most {SECRETS_MAX} secrets, each {SECRET_RULE}",
    "authorization": f"what the header says, 1 to {AUTHORIZATION_MAX:,} printable ASCII characters",
}

_CHECKS: dict[str, Callable[[Any], Any]] = {
    "ack_deadline_s": _deadline,
    "max_attempts": _count(ATTEMPTS_MAX),
    "retry_delays_s": _delays,
    "max_in_flight": _count(IN_FLIGHT_MAX),
    "max_in_flight_bytes": _count(IN_FLIGHT_MAX_BYTES),
    "dead_letter": _flag,
    "paused": _flag,
    "order_by": _path,
    "push": _text,
    "max_age_s": _age,
    "expires_unused_s": _unused,
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
    "push": "an object with a url",
    "max_age_s": f"a number of seconds, more than 0 and at most {AGE_MAX_S:.0f}",
    "expires_unused_s": f"a number of seconds from {UNUSED_MIN_S:g} to {UNUSED_MAX_S:.0f}",
}
"""What each of them may be."""
