"""Spark's long reports of failures, in one line."""

from __future__ import annotations

import re


def reason(error: BaseException) -> str:
    """Return why something failed, in one line: the innermost Python error, else the message's first line."""
    text = re.sub(r"\AAn error occurred while calling .*\n: ", "", str(error))
    python_errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = python_errors[-1] if python_errors else (lines[0] if lines else type(error).__name__)
    return " ".join(found.split())
