"""Messages between hosts, manager and enforcer, their requests to the runtime, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

# From the manager to a host


@dataclass(frozen=True, slots=True)
class PrepareCopy:
    """Make an inactive copy of a slice (Figure 3, step 2)."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Wiring:
    """The hosts of each slice: one, or two while it moves, both of which receive its inputs."""

    version: int
    places: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SendCopy:
    """Stop and send the state, once everything up to `reach` is processed (steps 3 and 4)."""

    slice: str
    epoch: int
    to: str
    reach: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RestoreSlice:
    """Restore a slice from its stored state; its previous host is dead, or will find itself replaced."""

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
    """There is an inactive copy, which queues its inputs."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Wired:
    """Outputs follow this wiring from now on.

    Parameters
    ----------
    reach
        For a slice with two places, the number up to which the second place has no outputs of an origin, nor
        needs any: by target and origin.
    """

    version: int
    reach: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class SliceActive:
    """The slice runs here, and its state is stored."""

    slice: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Probe:
    """The cost of a slice; `cpu` is a share of one host, 0 to 1."""

    cpu: float
    memory_bytes: int = 0
    network_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostProbes:
    """A heartbeat: the epochs of a host's slices, and the costs of the running ones."""

    epochs: Mapping[str, int]
    probes: Mapping[str, Probe]


# Between manager and enforcer


@dataclass(frozen=True, slots=True)
class SliceMove:
    """A slice's move to a host."""

    slice: Annotated[str, "Name of the slice."]
    to: Annotated[str | int, "Name of the new host; a number from 0 for one that is added."]


@dataclass(frozen=True, slots=True)
class ClusterProbes:
    """One new probe of every slice, and its host (section IV.B).

    Parameters
    ----------
    slices
        The probe of each slice.
    places
        The host of each slice.
    hosts
        All hosts, oldest first; one may have no slice.
    is_settled
        Whether no move is in progress or pending.
    """

    slices: Mapping[str, Probe]
    places: Mapping[str, str]
    hosts: tuple[str, ...]
    is_settled: bool


@dataclass(frozen=True, slots=True)
class MigrationRequest:
    """The enforcer's request: moves, number of new hosts, hosts to release once empty, and the reason."""

    moves: tuple[SliceMove, ...]
    new_hosts: int
    released: tuple[str, ...]
    reason: str


# Inputs from a machine's own runtime


@dataclass(frozen=True, slots=True)
class Pulse:
    """A tick of a machine's own timer."""


# Requests to the runtime, and the answers


@dataclass(frozen=True, slots=True)
class AddHost:
    """Start a host with this name, if it does not run. Answer: `HostAdded`."""

    host: str


@dataclass(frozen=True, slots=True)
class HostAdded:
    """The host is starting; its first heartbeat reports that it runs."""

    host: str


@dataclass(frozen=True, slots=True)
class ReleaseHost:
    """Stop and release a host. Answer: `HostReleased`."""

    host: str


@dataclass(frozen=True, slots=True)
class HostReleased:
    """The host was released."""

    host: str
