"""What hosts, manager and enforcer say to each other, ask for, and are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Between slices


@dataclass(frozen=True, slots=True)
class Item:
    """The next thing from one slice to another; their items are numbered from 1."""

    source: str
    target: str
    number: int
    content: Any


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Everything from `source` up to this number is processed at `target`, and what came of it is kept."""

    source: str
    target: str
    number: int


@dataclass(frozen=True, slots=True)
class SliceState:
    """All of a slice: its operator's state, the vector of what it has processed, and its outputs.

    Parameters
    ----------
    processed
        The number of the last item that was processed, by origin: the vector of section IV.A.
    sent
        The number of the last output, by target.
    outputs
        What is not acknowledged yet, by target and number.
    """

    content: Any = None
    processed: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)


# From the manager to a host


@dataclass(frozen=True, slots=True)
class PrepareCopy:
    """Make an inactive copy of a slice (Figure 3, step 2)."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Wiring:
    """Where each slice is: at one host, or at two while it moves, and then its inputs go to both."""

    version: int
    places: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SendCopy:
    """Once everything up to `reach` is processed, stop and send the state (steps 3 and 4)."""

    slice: str
    epoch: int
    to: str
    reach: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RestoreSlice:
    """Begin with what was kept of a slice; whoever ran it before is gone, or will find itself replaced."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RemoveSlice:
    """Drop a slice of this epoch or an earlier one (step 5)."""

    slice: str
    epoch: int


# From a host to the manager, or to another host


@dataclass(frozen=True, slots=True)
class CopyPrepared:
    """There is an inactive copy, which queues what it gets."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Wired:
    """Outputs go by this wiring from now on.

    Parameters
    ----------
    reach
        For a slice with two places, the number up to which the second has no outputs of an origin, nor needs
        any: by target and origin.
    """

    version: int
    reach: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class SliceCopy:
    """The state of a slice that has stopped."""

    slice: str
    epoch: int
    state: SliceState


@dataclass(frozen=True, slots=True)
class SliceActive:
    """The slice runs here, and that is kept."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Probe:
    """What a slice costs. CPU is a share of one host, 0 to 1."""

    cpu: float
    memory_bytes: int = 0
    network_bytes_per_s: float = 0.0

    def __add__(self, other: Probe) -> Probe:
        return Probe(
            self.cpu + other.cpu,
            self.memory_bytes + other.memory_bytes,
            self.network_bytes_per_s + other.network_bytes_per_s,
        )


@dataclass(frozen=True, slots=True)
class HostProbes:
    """A heartbeat: which slices a host has, of which epoch, and what those that run cost."""

    epochs: Mapping[str, int]
    probes: Mapping[str, Probe]


# Between manager and enforcer


@dataclass(frozen=True, slots=True)
class SliceMove:
    """A slice shall go to a host: one that is there, or one of those that the request adds, by its number."""

    slice: str
    to: str | int


@dataclass(frozen=True, slots=True)
class ClusterProbes:
    """One new probe of every slice, summed per slice and host (section IV.B).

    Parameters
    ----------
    places
        Where each slice is.
    hosts
        All hosts, the oldest first; one may have no slice.
    is_settled
        No move is under way, and none waits.
    """

    slices: Mapping[str, Probe]
    places: Mapping[str, str]
    hosts: tuple[str, ...]
    is_settled: bool

    def host(self, name: str) -> Probe:
        """What a host's slices cost together."""
        return sum((self.slices[each] for each, at in self.places.items() if at == name), Probe(0.0))


@dataclass(frozen=True, slots=True)
class MigrationRequest:
    """What the enforcer wants: moves, so many new hosts, hosts to release once they are empty; and why."""

    moves: tuple[SliceMove, ...]
    new_hosts: int
    released: tuple[str, ...]
    reason: str


# Inputs from a machine's own runtime


@dataclass(frozen=True, slots=True)
class Pulse:
    """It is time to look around: what a machine's own timer brings."""


@dataclass(frozen=True, slots=True)
class Measured:
    """To a host: what its slices cost lately."""

    probes: Mapping[str, Probe]


@dataclass(frozen=True, slots=True)
class Offered:
    """To a host with a slice that has inputs from outside: take this in."""

    slice: str
    content: Any


# What they ask for, and the answers


@dataclass(frozen=True, slots=True)
class KeepSlice:
    """Keep a slice's state durably, unless one of a later epoch was kept or recalled. Answer: `SliceKept`."""

    slice: str
    epoch: int
    state: SliceState


@dataclass(frozen=True, slots=True)
class SliceKept:
    """Whether the state was kept. If not, another host has the slice."""

    slice: str
    epoch: int
    state: SliceState
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class RecallSlice:
    """Read what was kept; from now on nothing of an earlier epoch is. Answer: `SliceRecalled`."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SliceRecalled:
    """The state that was kept last, or None where a later epoch was there already."""

    slice: str
    epoch: int
    state: SliceState | None


@dataclass(frozen=True, slots=True)
class AddHost:
    """Start a host of this name, if it does not run. Answer: `HostAdded`."""

    host: str


@dataclass(frozen=True, slots=True)
class HostAdded:
    """It is starting; that it runs is said by its heartbeat."""

    host: str


@dataclass(frozen=True, slots=True)
class ReleaseHost:
    """Stop a host and give it back. Answer: `HostReleased`."""

    host: str


@dataclass(frozen=True, slots=True)
class HostReleased:
    """It is gone."""

    host: str
