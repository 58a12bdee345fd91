"""Where everything of a service lies: the data directory's layout, named here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from fieldfare.storage.errors import FormatError


class _Addresses(msgspec.Struct):
    log: str
    match_log: str
    service: str = ""


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
    """

    root: Path
    log: str | None = None
    match_log: str | None = None
    service: str = ""

    @classmethod
    def at(cls, root: Path) -> Self:
        """The directory, and the logs that are noted there; FormatError when that cannot be understood."""
        folder = cls(root)
        try:
            noted = msgspec.json.decode(folder.addresses.read_bytes(), type=_Addresses)
        except FileNotFoundError:
            return folder
        except msgspec.DecodeError as error:
            raise FormatError(f"{folder.addresses} does not say where the logs are: {error}") from None
        return cls(root, noted.log, noted.match_log, noted.service)

    @property
    def addresses(self) -> Path:
        """What says where the logs are, if they are not here."""
        return self.root / "logs.json"

    @property
    def log_path(self) -> Path:
        return self.root / "log.db"

    @property
    def log_url(self) -> str:
        return self.log or f"sqlite:///{self.log_path}"

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
        """The match log, if it is not elsewhere; and what a task has no room for in memory."""
        return self.root / "matches"

    @property
    def matches_url(self) -> str:
        return self.match_log or self.matches.absolute().as_uri()

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
        return self.index.absolute().as_uri()

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

    def make(self) -> None:
        """Make the folders that are not there yet."""
        for folder in (self.matches, self.index, self.checkpoint, self.run, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
