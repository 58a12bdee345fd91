"""Names of spaces, subscriptions and brokers."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~-]{0,127}")
NAME_RULE = "1 to 128 of the letters a-z and A-Z, digits and _ . : @ ~ -, the first a letter, digit or _"
