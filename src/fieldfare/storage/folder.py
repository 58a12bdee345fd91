"""Where everything of a service lies: the data directory's layout, named here and nowhere else."""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

import msgspec

from fieldfare.files import make_folder, write_file
from fieldfare.storage import IndexSource, open_index_copy, open_index_store
from fieldfare.storage.errors import ElsewhereError, FormatError


class _Addresses(msgspec.Struct, omit_defaults=True):
    log: str | None = None
    match_log: str | None = None
    service: str = ""
    index_copy: str | None = None


@cache
def _this_machine() -> str:
    """What this machine is called since it was started, and no other is."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return f"{uuid.getnode():x}"


_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The data directory of one service, as ``fieldfare serve --data`` lays it out.

    Parameters
    ----------
    root
        The directory.
    log, match_log
        The addresses of logs that are elsewhere, see `addresses`.
    service
        As whose they are known there.
    index_copy
        Where there is a copy of the index that other machines reach.
    machine
        On which machine the directory is, for who may be on another; see `for_tasks`.
    """

    root: Path
    log: str | None = None
    match_log: str | None = None
    service: str = ""
    index_copy: str | None = None
    machine: str | None = None

    @classmethod
    def at(cls, root: Path) -> Self:
        """The directory, and the logs that are noted there; FormatError when that cannot be understood."""
        folder = cls(root)
        try:
            noted = msgspec.json.decode(folder.addresses.read_bytes(), type=_Addresses)
        except FileNotFoundError:
            return folder
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"{folder.addresses} does not say where the logs are: {error}") from None
        if (noted.log is None) != (noted.match_log is None):
            raise FormatError(f"{folder.addresses} does not say where the logs are: it names one of two")
        return cls(root, noted.log, noted.match_log, noted.service, noted.index_copy)

    def note(self) -> None:
        """Write down what is elsewhere, for `at`."""
        make_folder(self.root)
        noted = msgspec.json.encode(_Addresses(self.log, self.match_log, self.service, self.index_copy))
        write_file(self.addresses, lambda file: file.write(noted + b"\n"))

    def for_tasks(self) -> Self:
        """The same for tasks of a cluster, whose machines may be others.

        They read the index's copy, if there is one, and write what they must put away to a disk of theirs.
        Where something that they need is a file of this machine, its address is an error elsewhere.
        """
        return replace(self, machine=_this_machine())

    def _here(self, path: Path) -> Path:
        """A path of this directory; ElsewhereError on another machine than that which it is on."""
        if self.machine is not None and self.machine != _this_machine():
            raise ElsewhereError(
                f"{path} is a file of another machine: for a cluster of several the logs are kept in Kafka"
                f" (--log), and the index where all reach it (--index-store)"
            )
        return path

    @property
    def addresses(self) -> Path:
        """What says where the logs are, and the index's copy, if they are not here."""
        return self.root / "logs.json"

    @property
    def log_path(self) -> Path:
        return self.root / "log.db"

    @property
    def log_url(self) -> str:
        return self.log or f"sqlite:///{self._here(self.log_path)}"

    @property
    def registry_path(self) -> Path:
        return self.root / "registry.db"

    @property
    def registry_url(self) -> str:
        return f"sqlite:///{self.registry_path}"

    @property
    def delayed_url(self) -> str:
        """Records that wait for their time."""
        return f"sqlite:///{self.root / 'delayed.db'}"

    @property
    def matches(self) -> Path:
        """The match log, if it is not elsewhere."""
        return self.root / "matches"

    @property
    def scratch(self) -> Path:
        """Where a task puts what it has no room for in memory."""
        return self.matches if self.machine is None else Path(tempfile.gettempdir())

    @property
    def matches_url(self) -> str:
        return self.match_log or self._here(self.matches).absolute().as_uri()

    @property
    def pasts(self) -> Path:
        """What subscriptions matched that began in the past: a match log for each."""
        return self.root / "pasts"

    def past_path(self, number: int, revision: int) -> Path:
        """One of them. Numbers of a registry that was put back from before may come twice; these do not."""
        return self.pasts / f"{number}-{revision}"

    def past_url(self, number: int, revision: int) -> str:
        return self.past_path(number, revision).absolute().as_uri()

    @property
    def index(self) -> Path:
        """The index store."""
        return self.root / "index"

    @property
    def index_url(self) -> str:
        return self._here(self.index).absolute().as_uri()

    def open_index(self) -> IndexSource:
        """The index, for who matches: the store, or, in a task of a cluster, its copy."""
        if self.machine is not None and self.index_copy is not None:
            return open_index_copy(self.index_copy)
        return open_index_store(self.index_url)

    @property
    def quarantine(self) -> Path:
        """What says which records were set aside, and why."""
        return self.root / "quarantine"

    @property
    def checkpoint(self) -> Path:
        """Spark's own notes of a running query, which every start of one throws away."""
        return self.root / "checkpoint"

    @property
    def run(self) -> Path:
        """What only running processes need."""
        return self.root / "run"

    @property
    def suspects(self) -> Path:
        """Which records are being tried because some of them made matching fail."""
        return self.run / "suspects.json"

    @property
    def spark_scratch(self) -> Path:
        """What Spark writes and may lose."""
        return self.run / "spark"

    @property
    def jvm_pid(self) -> Path:
        """Which process is the driver's Java process."""
        return self.run / "jvm.pid"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def spark_log(self) -> Path:
        """What Spark and its Python workers write to their standard error."""
        return self.log_of("spark")

    def log_of(self, process: str) -> Path:
        """What a process writes: gateway, indexer or pipeline."""
        return self.logs / f"{process}.log"

    @property
    def audit_log(self) -> Path:
        """Who changed what."""
        return self.log_of("audit")

    def lock_of(self, process: str) -> Path:
        """Held by the one process of its kind that works here: serve, gateway, indexer or pipeline."""
        return self.run / f"{process}.lock"

    def heartbeat_of(self, process: str) -> Path:
        """What a process says of itself every second: indexer or pipeline."""
        return self.run / f"{process}.json"

    @property
    def heartbeat(self) -> Path:
        """The pipeline's."""
        return self.heartbeat_of("pipeline")

    @property
    def slices(self) -> Path:
        """What the pipeline has measured of spaces in several slices."""
        return self.heartbeat_of("slices")

    @property
    def wanted(self) -> Path:
        """Up to which revision of the registry a batch waits for the index."""
        return self.run / "wanted"

    @property
    def elastic(self) -> Path:
        """Where the slices of an elastic service are, which hosts it has, and what was decided."""
        return self.root / "elastic.json"

    @property
    def elastic_loads(self) -> Path:
        """What its hosts and slices have to do now."""
        return self.heartbeat_of("elastic")

    @property
    def elastic_wishes(self) -> Path:
        """Moves that somebody asked for by hand."""
        return self.run / "elastic-moves.json"

    def make(self) -> None:
        """Make the folders that are not there yet."""
        for folder in (self.matches, self.index, self.checkpoint, self.run, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
