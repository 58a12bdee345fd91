"""What a program says of a message that it does not ack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a message that is not acked: nack, extend or terminate, and how long, or why."""

    verb: Literal["nack", "extend", "terminate"]
    value: float | str | None = None
