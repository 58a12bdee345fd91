"""What an elastic service writes down: where its slices are, what was decided and why, and its loads.

Two files of the data directory. What outlives the driver, written before anything follows from it::

    elastic.json      {"configuration": {...}, "decisions": [...], "moves": [...]}

and what only tells of now, every second::

    run/elastic.json  {"time_ms": ..., "hosts": [...], "slices": [...], ...}

The first is kept by one process, the pipeline's, which is the only one on its directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fieldfare.elasticity import Configuration
from fieldfare.elasticity.messages import SliceMove
from fieldfare.files import temporary_path, write_file
from fieldfare.storage.errors import FormatError
from fieldfare.storage.folder import DataFolder

KEPT_DECISIONS, KEPT_MOVES = 100, 500


class Decision(msgspec.Struct):
    """What the enforcer, or somebody by hand, asked for.

    With a dry run it is not done: it is only said.
    """

    time_ms: int
    reason: str
    moves: list[SliceMove]
    new_hosts: int
    released: list[str]
    is_done: bool


class Move(msgspec.Struct):
    """A slice that moved: when its new place was asked for, had it mapped, and was where its tasks go."""

    slice: str
    from_host: str
    to_host: str
    asked_ms: float
    mapped_ms: float
    placed_ms: float


class ElasticRecord(msgspec.Struct):
    """All that is kept."""

    configuration: Configuration | None = None
    decisions: list[Decision] = []
    moves: list[Move] = []

    @classmethod
    def read(cls, path: Path) -> ElasticRecord:
        """What was kept last, or nothing; FormatError when that cannot be understood."""
        try:
            record = msgspec.json.decode(path.read_bytes(), type=cls)
            if record.configuration is not None:
                record.configuration.check()
            return record
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"{path} does not say where slices are: {error}") from None

    def keep(self, path: Path) -> None:
        """Write it down for good."""
        del self.decisions[:-KEPT_DECISIONS], self.moves[:-KEPT_MOVES]
        write_file(path, lambda file: file.write(msgspec.json.encode(self) + b"\n"))


class HostLoad(msgspec.Struct):
    """A host now; `executor` is empty as long as the cluster gives none.

    `cores` is how many tasks it runs at once, or how many processors it may use, if that is less.
    """

    host: str
    executor: str
    cores: float
    is_warm: bool
    cpu: float


class SliceLoadNow(msgspec.Struct):
    """A slice now; `host` is empty as long as it is mapped nowhere, and its tasks run anywhere."""

    slice: str
    host: str
    cpu: float
    memory_bytes: int


class ElasticLoads(msgspec.Struct):
    """What there is to do now; `asked` tasks said where to run, and `granted` of them ran there."""

    time_ms: int
    dry_run: bool
    least: int
    most: int
    hosts: list[HostLoad]
    slices: list[SliceLoadNow]
    asked: int = 0
    granted: int = 0

    @classmethod
    def read(cls, path: Path) -> ElasticLoads | None:
        """The last that was said, if anything was."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def say(self, path: Path) -> None:
        """Say it to whoever looks. A power failure may take it."""
        temporary = temporary_path(path)
        try:
            temporary.write_bytes(msgspec.json.encode(self) + b"\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def wish(folder: DataFolder, move: SliceMove) -> None:
    """Ask the pipeline to move a slice; it is taken up within a second, or when what is under way is done.

    It takes the place of what was wished before and is not taken up yet.
    """
    write_file(folder.elastic_wishes, lambda file: file.write(msgspec.json.encode(move)))


def waiting_wish(folder: DataFolder) -> SliceMove | None:
    """What was wished last and is not taken up yet; what cannot be understood is nobody's wish."""
    return _read_wish(folder.elastic_wishes)


def take_wish(folder: DataFolder) -> SliceMove | None:
    """The same, and not again."""
    # Another one may be written meanwhile: it stays for the next time.
    taken = temporary_path(folder.elastic_wishes)
    try:
        folder.elastic_wishes.rename(taken)
        return _read_wish(taken)
    except OSError:
        return None
    finally:
        taken.unlink(missing_ok=True)


def _read_wish(path: Path) -> SliceMove | None:
    try:
        move = msgspec.json.decode(path.read_bytes(), type=SliceMove)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return move if isinstance(move.to, str) else None


@dataclass(slots=True)
class MovesSeen:
    """Sees from one configuration to the next which slices moved, and when."""

    asked_ms: dict[str, float] = field(default_factory=dict)
    mapped_ms: dict[str, float] = field(default_factory=dict)

    def look(self, before: Configuration | None, after: Configuration, now_ms: float) -> list[Move]:
        """The moves that are done with `after`."""
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
