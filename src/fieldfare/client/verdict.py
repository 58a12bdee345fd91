"""Verdicts on messages: nack, extend, terminate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on a message without an ack.

    ``value`` is the delay in seconds (nack), the ack deadline in seconds (extend), or the reason (terminate).
    """

    verb: Literal["nack", "extend", "terminate"]
    value: float | str | None = None
