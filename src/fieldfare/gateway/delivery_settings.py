"""Validation and changes of a subscription's delivery settings, as clients write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import msgspec

from fieldfare.filters.errors import FilterError
from fieldfare.filters.sql.paths import format_path, parse_path
from fieldfare.gateway.push.addresses import Target
from fieldfare.gateway.push.signing import SECRET_RULE, key_of
from fieldfare.model import (
    AGE_MAX_S,
    ATTEMPTS_MAX,
    DEADLINE_MAX_S,
    DELAYS_MAX,
    IN_FLIGHT_MAX,
    IN_FLIGHT_MAX_BYTES,
    PUSHED_MAX,
    PUSHES_MAX,
    UNUSED_MAX_S,
    UNUSED_MIN_S,
    DeliverySettings,
    PushMode,
    PushSettings,
)

PATH_MAX = 1_000
SECRETS_MAX = 2
AUTHORIZATION_MAX = 2_000


class BadSetting(ValueError):
    """An invalid setting; ``pointer`` is its JSON pointer within the settings."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.pointer = pointer


def changed_settings(settings: DeliverySettings, changes: Any) -> DeliverySettings:
    """Return settings with some changed; null resets one to its default.

    Raises
    ------
    BadSetting
        The first invalid setting.
    """
    if not isinstance(changes, Mapping):
        raise BadSetting("", "the delivery settings must be an object")
    found: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in _CHECKS:
            names = ", ".join(_CHECKS)
            raise BadSetting(f"/{name[:80]}", f"there is no setting {name[:80]!r}; the settings are {names}")
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
    """Return push settings with some changed; raise BadSetting for the first invalid one."""
    if not isinstance(changes, Mapping):
        raise BadSetting("/push", "push must be an object with a url, or null")
    found: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in _PUSH_CHECKS:
            names = ", ".join(_PUSH_CHECKS)
            raise BadSetting(
                f"/push/{name[:80]}", f"push has no setting {name[:80]!r}; its settings are {names}"
            )
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
        # Credentials for one receiver must not be sent to another by oversight.
        for name in ("secrets", "authorization"):
            if getattr(settings, name) and name not in found:
                raise BadSetting(
                    f"/push/{name}",
                    f"the url changes, so {name} must be sent too: new ones, or null for none",
                )
    return replace(settings, **found)


_BAD = object()
_DEFAULTS = {field.name: field.default for field in fields(DeliverySettings)}


def _typed(hint: Any) -> Callable[[Any], Any]:
    """Return the check of a member's type, with the bounds in it."""

    def check(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint)
        except (msgspec.ValidationError, OverflowError):
            return _BAD

    return check


def _path(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > PATH_MAX:
        return _BAD
    try:
        return format_path(parse_path(value))
    except FilterError:
        return _BAD


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
_PUSH_CHECKS = {
    **{name: _typed(hint) for name, hint in get_type_hints(PushSettings, include_extras=True).items()},
    "secrets": _secrets,
    "authorization": _header,
}
PUSH_RULES = {
    "url": "an address such as https://example.com/path",
    "mode": f"one of {', '.join(get_args(PushMode))}",
    "batch_max": f"a whole number from 1 to {PUSHED_MAX:,}",
    "requests_max": f"a whole number from 1 to {PUSHES_MAX}",
    "secrets": f"a list of at most {SECRETS_MAX} secrets, each {SECRET_RULE}",
    "authorization": f"the header's value, 1 to {AUTHORIZATION_MAX:,} printable ASCII characters",
}

_CHECKS = {
    **{name: _typed(hint) for name, hint in get_type_hints(DeliverySettings, include_extras=True).items()},
    "order_by": _path,
}
del _CHECKS["paused_because"]

RULES = {
    "ack_deadline_s": f"a number of seconds, more than 0 and at most {DEADLINE_MAX_S:g}",
    "max_attempts": f"a whole number from 1 to {ATTEMPTS_MAX:,}",
    "retry_delays_s": f"a list of at most {DELAYS_MAX} numbers of seconds, each from 0 to {DEADLINE_MAX_S:g}",
    "max_in_flight": f"a whole number from 1 to {IN_FLIGHT_MAX:,}",
    "max_in_flight_bytes": f"a whole number from 1 to {IN_FLIGHT_MAX_BYTES:,}",
    "dead_letter": "true or false",
    "paused": "true or false",
    "pinned": "true or false",
    "order_by": "the name of an attribute, as filters name it: subject, or data.vehicle.id",
    "push": "an object with a url",
    "max_age_s": f"a number of seconds, more than 0 and at most {AGE_MAX_S:.0f}",
    "expires_unused_s": f"a number of seconds from {UNUSED_MIN_S:g} to {UNUSED_MAX_S:.0f}",
}
"""The allowed values of each setting, for error messages."""
