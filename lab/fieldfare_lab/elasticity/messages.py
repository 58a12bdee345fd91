"""Messages between slices, their states, and the requests of a host to its runtime, with the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fieldfare.elasticity.messages import Probe


@dataclass(frozen=True, slots=True)
class Item:
    """A numbered message from one slice to another; numbers begin with 1 for each pair."""

    source: str
    target: str
    number: int
    content: Any


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Everything from `source` up to this number is processed at `target`, and the results are stored."""

    source: str
    target: str
    number: int


@dataclass(frozen=True, slots=True)
class SliceState:
    """The complete state of a slice: its operator's state, the vector of processed items, and its outputs.

    Parameters
    ----------
    content
        The operator's state.
    processed
        The number of the last processed item, by origin: the vector of section IV.A.
    sent
        The number of the last output, by target.
    outputs
        The unacknowledged outputs, by target and number.
    """

    content: Any = None
    processed: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SliceCopy:
    """The state of a slice that has stopped."""

    slice: str
    epoch: int
    state: SliceState


@dataclass(frozen=True, slots=True)
class Measured:
    """To a host: the recent costs of its slices."""

    probes: Mapping[str, Probe]


@dataclass(frozen=True, slots=True)
class Offered:
    """To a host with a slice that has inputs from outside: process this input."""

    slice: str
    content: Any


@dataclass(frozen=True, slots=True)
class KeepSlice:
    """Store a slice's state durably, unless a later epoch was stored or recalled. Answer: `SliceKept`."""

    slice: str
    epoch: int
    state: SliceState


@dataclass(frozen=True, slots=True)
class SliceKept:
    """Whether the state was stored. If not, another host has the slice."""

    slice: str
    epoch: int
    state: SliceState
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class RecallSlice:
    """Read the stored state and refuse states of earlier epochs from now on. Answer: `SliceRecalled`."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SliceRecalled:
    """The last stored state, or None if a later epoch exists."""

    slice: str
    epoch: int
    state: SliceState | None
