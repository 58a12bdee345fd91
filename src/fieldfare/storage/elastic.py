"""The files of an elastic service: placement of slices, decisions with their reasons, and loads.

One file outlives the driver, and is written before its content takes effect::

    elastic.json      {"configuration": {...}, "decisions": [...], "moves": [...]}

The other describes the present, and is written every second::

    run/elastic.json  {"time_ms": ..., "hosts": [...], "slices": [...], ...}

The first is written by one process, the pipeline's, which is the only one on its directory.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fieldfare.elasticity import Configuration
from fieldfare.elasticity.messages import SliceMove
from fieldfare.files import decode_file, replace_file, temporary_file, write_file
from fieldfare.storage.checked_files import read_checked, set_aside, write_checked
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.errors import FormatError
from fieldfare.storage.folder import DataFolder

KEPT_DECISIONS, KEPT_MOVES = 100, 500
STALE_S = 10.0
"""Seconds after which loads are those of a service that has ended."""


class Decision(msgspec.Struct):
    """A request of the enforcer or of a user; `is_done` is false after a dry run, which only logs it."""

    time_ms: Annotated[int, "Time of the decision, in milliseconds since 1970."]
    reason: Annotated[str, "Why it was made."]
    moves: Annotated[list[SliceMove], "The slices that move."]
    new_hosts: Annotated[int, "Number of hosts that are added."]
    released: Annotated[list[str], "The hosts that are released."]
    is_done: Annotated[bool, "Whether it was carried out; false in a dry run."]


class Move(msgspec.Struct):
    """A slice's move: when it was requested, mapped by the new host, and used by its tasks."""

    slice: Annotated[str, "Name of the slice."]
    from_host: Annotated[str, "Name of its previous host."]
    to_host: Annotated[str, "Name of its new host."]
    asked_ms: Annotated[float, "Time of the request, in milliseconds since 1970."]
    mapped_ms: Annotated[float, "Time from which the new host had it mapped, in milliseconds since 1970."]
    placed_ms: Annotated[float, "Time from which its tasks ran there, in milliseconds since 1970."]


class ElasticRecord(msgspec.Struct):
    """The content of ``elastic.json``."""

    configuration: Configuration | None = None
    decisions: list[Decision] = []
    moves: list[Move] = []

    @classmethod
    def read(cls, path: Path) -> ElasticRecord:
        """Read the record; empty if there is no file, FormatError if it is invalid."""
        try:
            record = read_checked(path, cls)
            if record.configuration is not None:
                record.configuration.check()
            return record
        except FileNotFoundError:
            return cls()
        except (OSError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"{path} is not a valid record of slices: {error}") from None

    @classmethod
    def read_or_new(cls, path: Path) -> ElasticRecord:
        """Read the record; set an invalid one aside, note it, and return an empty one."""
        try:
            return cls.read(path)
        except FormatError as error:
            with suppress(OSError):
                kept = set_aside(path)
                note_corruption(
                    path,
                    kept.suffix[1:],
                    f"{error}. It is set aside as {kept.name}, and hosts and slices are placed again",
                )
            return cls()

    def write(self, path: Path) -> None:
        """Write the record durably, with the last 100 decisions and 500 moves."""
        del self.decisions[:-KEPT_DECISIONS], self.moves[:-KEPT_MOVES]
        write_checked(path, self)


class HostLoad(msgspec.Struct):
    """The present state of a host."""

    host: Annotated[str, "Name of the host."]
    executor: Annotated[str, "Id of its executor; empty until the cluster provides one."]
    cores: Annotated[float, "Number of tasks that it runs at once, or of CPUs that it may use if less."]
    is_warm: Annotated[bool, "Whether its workers are ready to match."]
    cpu: Annotated[float, "Share of its processor time that is used."]


class SliceLoadNow(msgspec.Struct):
    """The present state of a slice."""

    slice: Annotated[str, "Name of the slice, such as `M:1`."]
    host: Annotated[str, "Its host; empty while it is mapped nowhere and its tasks run anywhere."]
    cpu: Annotated[float, "Share of a host's processor time that it uses."]
    memory_bytes: Annotated[int, "Bytes of memory that it uses."]


class ElasticLoads(msgspec.Struct):
    """The last measured loads."""

    time_ms: Annotated[int, "Time of the measurement, in milliseconds since 1970."]
    dry_run: Annotated[bool, "Whether decisions are not carried out."]
    least: Annotated[int, "Minimum number of hosts at present."]
    most: Annotated[int, "Maximum number of hosts at present."]
    hosts: Annotated[list[HostLoad], "The hosts of the service."]
    slices: Annotated[list[SliceLoadNow], "The slices of the service."]
    asked: Annotated[int, "Number of tasks with a preferred host."] = 0
    granted: Annotated[int, "Number of those that ran there."] = 0

    @classmethod
    def read(cls, path: Path) -> ElasticLoads | None:
        """Read the last written loads; None if there are none."""
        return decode_file(path, cls)

    def is_fresh(self, now_s: float) -> bool:
        """Return whether a running service has written the loads, by the wall clock in seconds."""
        return abs(now_s - self.time_ms / 1000) < STALE_S

    def write(self, path: Path) -> None:
        """Write the loads for readers; not synced, so a power failure may lose them."""
        replace_file(path, msgspec.json.encode(self) + b"\n")


class ElasticDocument(msgspec.Struct):
    """The state of an elastic service."""

    configuration: Annotated[
        dict[str, Any] | None, "Hosts and places of slices, as `fieldfare scale --json` prints them."
    ]
    decisions: Annotated[list[Decision], "The last decisions, newest last."]
    moves: Annotated[list[Move], "The last moves, newest last."]
    loads: Annotated[ElasticLoads | None, "The last measured loads; null before the first."]
    is_running: Annotated[bool, "Whether the loads are recent."]


def describe_elastic(
    record: ElasticRecord, loads: ElasticLoads | None, now_s: float, *, newest: int = KEPT_MOVES
) -> ElasticDocument:
    """Return the document of an elastic service's state, for ``scale --json`` and ``GET /v1/pipeline``.

    Parameters
    ----------
    record, loads
        The content of the two files.
    now_s
        The wall clock, in seconds: old loads are those of a service that has ended.
    newest
        Maximum decisions and moves in the document; the oldest are left out.
    """
    return ElasticDocument(
        configuration=msgspec.to_builtins(record.configuration),
        decisions=record.decisions[-newest:],
        moves=record.moves[-newest:],
        loads=loads,
        is_running=loads is not None and loads.is_fresh(now_s),
    )


def wish(folder: DataFolder, move: SliceMove) -> None:
    """Request the pipeline to move a slice; it begins within a second, or after the current change.

    The request replaces an earlier one that has not been taken.
    """
    write_file(folder.elastic_wishes, lambda file: file.write(msgspec.json.encode(move)))


def pending_move_request(folder: DataFolder) -> SliceMove | None:
    """Return the last request that has not been taken; None if there is none or it is invalid."""
    return _read_wish(folder.elastic_wishes)


def take_move_request(folder: DataFolder) -> SliceMove | None:
    """Return and remove the last request, as `pending_move_request` does without removing it."""
    # Another one may be written meanwhile: it stays for the next call.
    with temporary_file(folder.elastic_wishes) as taken, suppress(OSError):
        folder.elastic_wishes.rename(taken)
        return _read_wish(taken)
    return None


def _read_wish(path: Path) -> SliceMove | None:
    move = decode_file(path, SliceMove)
    return move if move is not None and isinstance(move.to, str) else None


@dataclass(slots=True)
class MovesSeen:
    """Determines which slices moved, and when, from consecutive configurations."""

    asked_ms: dict[str, float] = field(default_factory=dict)
    mapped_ms: dict[str, float] = field(default_factory=dict)

    def completed(self, before: Configuration | None, after: Configuration, now_ms: float) -> list[Move]:
        """Return the moves that are completed in `after`."""
        done = []
        if after.moves:
            self.asked_ms.setdefault(after.moves[0].slice, now_ms)
        for name, place in after.places.items():
            was = before.places.get(name) if before is not None else None
            if place.to is not None:
                self.mapped_ms.setdefault(name, now_ms)
            elif was is not None and was.to is not None:
                asked, mapped = self.asked_ms.pop(name, now_ms), self.mapped_ms.pop(name, now_ms)
                if place.host == was.to and not place.is_lost:
                    done.append(Move(name, was.host, place.host, asked, mapped, now_ms))
        return done
