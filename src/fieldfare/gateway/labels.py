"""Validation of a subscription's owner and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fieldfare.gateway.delivery_settings import BadSetting
from fieldfare.model import LABEL_KEY_MAX, LABEL_VALUE_MAX, LABELS_MAX, OWNER_MAX, Labels

LABEL_KEY = rf"[A-Za-z0-9_][A-Za-z0-9_.:@~/-]{{0,{LABEL_KEY_MAX - 1}}}"
"""Pattern of a label's key."""

_SHOWN_MAX = 80
KEY_RULE = (
    f"1 to {LABEL_KEY_MAX} of the letters a-z and A-Z, digits and _ . : @ ~ / -, the first a letter, digit"
    " or _"
)
VALUE_RULE = f"a text of at most {LABEL_VALUE_MAX} printable characters, without blanks at its ends"
_OWNER_RULE = f"a text of 1 to {OWNER_MAX} printable characters, without blanks at its ends, or null"


def checked_owner(owner: Any) -> str:
    """Return an owner as it is stored: empty for null. Raise BadSetting if it is invalid."""
    if owner is None:
        return ""
    if not (owner and is_printable(owner, OWNER_MAX)):
        raise BadSetting("/owner", f"owner must be {_OWNER_RULE}")
    return str(owner)


def changed_labels(labels: Labels, changes: Any) -> Labels:
    """Return labels with some changed: null removes one, or, in place of the changes, all of them.

    Raises
    ------
    BadSetting
        The first invalid label, or too many labels.
    """
    if changes is None:
        return ()
    if not isinstance(changes, Mapping):
        raise BadSetting("/labels", "labels must be an object of texts by key, or null")
    found = dict(labels)
    for key, value in changes.items():
        place = f"/labels/{key[:_SHOWN_MAX].replace('~', '~0').replace('/', '~1')}"
        if not is_label_key(key):
            raise BadSetting(place, f"a label's key is {KEY_RULE}, not {key[:_SHOWN_MAX]!r}")
        if value is None:
            found.pop(key, None)
        elif not is_printable(value, LABEL_VALUE_MAX):
            raise BadSetting(place, f"the value of the label {key} must be {VALUE_RULE}, or null")
        else:
            found[key] = value
    if len(found) > LABELS_MAX:
        raise BadSetting(
            "/labels", f"the subscription would have {len(found)} labels, the maximum is {LABELS_MAX}"
        )
    return tuple(sorted(found.items()))


def is_label_key(text: str) -> bool:
    """Return whether a text can be the key of a label."""
    return re.fullmatch(LABEL_KEY, text) is not None


def is_printable(value: Any, most: int) -> bool:
    """Return whether a value is a text that an owner, or a label's value, can be; the empty one, too."""
    is_short = isinstance(value, str) and len(value) <= most
    return is_short and value.isprintable() and value == value.strip()
