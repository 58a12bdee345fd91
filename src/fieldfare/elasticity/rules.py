"""Which slices move, and where (Barazzutti et al. 2014, section V): subset sum, then first fit.

CPU is counted in thousandths of a host, rounded to the nearest: the subset sum is pseudo-polynomial in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PARTS = 1000
"""Number of units into which a host's CPU is divided."""


@dataclass(frozen=True, slots=True)
class SliceLoad:
    """A slice, with its cost at its host and the cost of moving it."""

    name: str
    host: str
    cpu: float
    memory_bytes: int

    @property
    def parts(self) -> int:
        return round(self.cpu * PARTS)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A set of slices with some sum of CPU; better: less memory, then fewer slices, then less CPU."""

    memory_bytes: int = 0
    count: int = 0
    parts: int = 0
    slices: tuple[SliceLoad, ...] = ()

    @property
    def cost(self) -> tuple[int, int, int]:
        return self.memory_bytes, self.count, self.parts

    def with_(self, each: SliceLoad, move_bytes: int) -> _Chosen:
        return _Chosen(
            self.memory_bytes + each.memory_bytes + move_bytes,
            self.count + 1,
            self.parts + each.parts,
            (*self.slices, each),
        )


def least_state(slices: Sequence[SliceLoad], cpu: float, move_bytes: int = 0) -> tuple[SliceLoad, ...]:
    """Return the slices with at least `cpu` together whose state is smallest; all if that is not enough.

    Each slice counts with `move_bytes` in addition to its state. Among equal states (the text is open there):
    the fewest slices, then the least CPU.
    """
    wanted = round(cpu * PARTS)
    if wanted <= 0:
        return ()
    best: dict[int, _Chosen] = {0: _Chosen()}  # by the sum, capped at `wanted`
    for each in slices:
        for total, chosen in sorted(best.items(), reverse=True):
            more, reached = chosen.with_(each, move_bytes), min(wanted, total + each.parts)
            if reached not in best or more.cost < best[reached].cost:
                best[reached] = more
    return best[wanted].slices if wanted in best else tuple(slices)


def first_fit(
    moving: Sequence[SliceLoad], loads: Mapping[str, float], capacity: float, new_hosts: int
) -> dict[str, str | int] | None:
    """Assign each slice, by decreasing CPU, to the first host with room; None if not all fit.

    Parameters
    ----------
    loads
        The hosts with the CPU of the slices that stay, in the order in which they are tried.
    capacity
        Maximum CPU of a host. A new host takes one slice of any size.
    new_hosts
        Maximum number of new hosts; they are numbered from 0.
    """
    room: dict[str | int, int] = {host: round((capacity - load) * PARTS) for host, load in loads.items()}
    added = 0
    found: dict[str, str | int] = {}
    for each in sorted(moving, key=lambda each: (-each.parts, each.name)):
        host = next((host for host, left in room.items() if each.parts <= left and host != each.host), None)
        if host is None:
            if added == new_hosts:
                return None
            host = added
            room[host] = round(capacity * PARTS)
            added += 1
        room[host] -= each.parts
        found[each.name] = host
    return found
