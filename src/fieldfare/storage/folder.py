"""The layout of a service's data directory; all its paths are defined here and nowhere else."""

from __future__ import annotations

import re
import tempfile
import uuid
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from fieldfare.files import make_folder
from fieldfare.storage import open_index_copy, open_index_store
from fieldfare.storage.checked_files import ChangedFileError, read_checked, write_checked
from fieldfare.storage.corruption import FOLDER
from fieldfare.storage.errors import FormatError, OtherMachineError

if TYPE_CHECKING:  # Code that only needs the path of a file does not load NumPy.
    from fieldfare.storage import IndexSource


class _Addresses(msgspec.Struct, omit_defaults=True):
    log: str | None = None
    match_log: str | None = None
    service: str = ""
    index_copy: str | None = None


@cache
def _this_machine() -> str:
    """Return a unique ID of this machine since its last boot."""
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
        Path of the directory.
    log, match_log
        Addresses of logs outside the directory: see `storage.addresses`. None for logs in the directory.
    service
        ID under which the service owns those logs.
    index_copy
        Address of a copy of the index that other machines can read; None if there is none.
    machine
        ID of the machine that has the directory, for tasks that may run on another one: see `for_tasks`.
    """

    root: Path
    log: str | None = None
    match_log: str | None = None
    service: str = ""
    index_copy: str | None = None
    machine: str | None = None

    @classmethod
    def at(cls, root: Path) -> Self:
        """Return a directory with its recorded addresses; FormatError if the record cannot be read."""
        folder = cls(root)
        try:
            noted = read_checked(folder.addresses, _Addresses)
            if (noted.log is None) != (noted.match_log is None):
                raise ChangedFileError("it names only one of the event log and the match log. Name both")
        except FileNotFoundError:
            return folder
        except ValueError as error:
            restore = "Otherwise restore" if isinstance(error, ChangedFileError) else "Restore"
            raise FormatError(
                f"{folder.addresses} cannot be used to find the logs: {error}. {restore} the file"
                " from a backup"
            ) from None
        return cls(root, noted.log, noted.match_log, noted.service, noted.index_copy)

    def note(self) -> None:
        """Record the addresses of the logs and of the index copy in the directory, for `at`."""
        make_folder(self.root)
        noted = _Addresses(self.log, self.match_log, self.service, self.index_copy)
        write_checked(self.addresses, noted)

    def for_tasks(self) -> Self:
        """Return a copy of this object for the tasks of a cluster, which may run on other machines.

        Tasks read the copy of the index, if there is one, and write temporary data to their own disks. On
        another machine, the address of a file that only this machine has raises ElsewhereError.
        """
        return replace(self, machine=_this_machine())

    def _here(self, path: Path) -> Path:
        """Return a path in this directory; ElsewhereError on a machine that does not have the directory."""
        if self.machine is not None and self.machine != _this_machine():
            raise OtherMachineError(
                f"{path} is a file on another machine: a cluster of several machines needs the logs in Kafka"
                " (--log) and the index in storage that all machines reach (--index-store)"
            )
        return path

    @property
    def addresses(self) -> Path:
        """The file that records the addresses of logs and of an index copy outside the directory."""
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
    def databases(self) -> tuple[Path, ...]:
        """The SQLite files of the service."""
        return self.log_path, self.registry_path, self.delayed_path, self.links_path

    @property
    def delayed_path(self) -> Path:
        return self.root / "delayed.db"

    @property
    def links_path(self) -> Path:
        """The outboxes and watermarks of links to other brokers; missing in a service without brokers."""
        return self.root / "links.db"

    @property
    def links_url(self) -> str:
        return f"sqlite:///{self.links_path}"

    @property
    def delayed_url(self) -> str:
        """The address of the delayed records."""
        return f"sqlite:///{self.delayed_path}"

    @property
    def matches(self) -> Path:
        """The folder of the match log, unless the match log has another address."""
        return self.root / "matches"

    @property
    def scratch(self) -> Path:
        """The folder for a task's data that does not fit in memory."""
        return self.matches if self.machine is None else Path(tempfile.gettempdir())

    @property
    def matches_url(self) -> str:
        return self.match_log or self._here(self.matches).absolute().as_uri()

    @property
    def replays(self) -> Path:
        """The folder of replays: one match log per subscription that began in the past."""
        return self.root / "pasts"

    def replay_path(self, number: int, revision: int) -> Path:
        """Return the folder of one replay.

        After a restore of an older registry, a subscription number may be assigned again; the pair of number
        and revision is unique.
        """
        return self.replays / f"{number}-{revision}"

    def replay_url(self, number: int, revision: int) -> str:
        return self.replay_path(number, revision).absolute().as_uri()

    @property
    def index(self) -> Path:
        """The folder of the index store."""
        return self.root / "index"

    @property
    def index_url(self) -> str:
        return self._here(self.index).absolute().as_uri()

    def open_index(self) -> IndexSource:
        """Open the index for matching: the store or, in a task of a cluster, its copy."""
        if self.machine is not None and self.index_copy is not None:
            return open_index_copy(self.index_copy)
        return open_index_store(self.index_url)

    @property
    def quarantine(self) -> Path:
        """The folder of files that name the records set aside, and why."""
        return self.root / "quarantine"

    @property
    def checkpoint(self) -> Path:
        """A checkpoint that earlier versions left; the pipeline deletes it."""
        return self.root / "checkpoint"

    @property
    def run(self) -> Path:
        """The folder of files that only running processes need."""
        return self.root / "run"

    @property
    def suspects(self) -> Path:
        """The file that lists records under test because one of them made matching fail."""
        return self.run / "suspects.json"

    @property
    def spark_scratch(self) -> Path:
        """The folder of Spark's temporary data, which may be deleted."""
        return self.run / "spark"

    @property
    def jvm_pid(self) -> Path:
        """The file with the process ID of the driver's Java process."""
        return self.run / "jvm.pid"

    @property
    def kernels(self) -> Path:
        """The folder of compiled kernels, used if they cannot be stored beside their sources."""
        return self.run / "kernels"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def spark_log(self) -> Path:
        """The log file of the standard error of Spark and its Python workers."""
        return self.log_of("spark")

    def log_of(self, process: str) -> Path:
        """Return the log file of a process: gateway, indexer or pipeline."""
        return self.logs / f"{process}.log"

    @property
    def audit_log(self) -> Path:
        """The audit log, which names the author of every change."""
        return self.log_of("audit")

    def lock_of(self, process: str) -> Path:
        """Return the lock file that the one process of its kind holds: serve, gateway, indexer, pipeline."""
        return self.run / f"{process}.lock"

    def heartbeat_of(self, process: str) -> Path:
        """Return the file to which a process (indexer or pipeline) writes its state every second."""
        return self.run / f"{process}.json"

    @property
    def heartbeat(self) -> Path:
        """The heartbeat file of the pipeline."""
        return self.heartbeat_of("pipeline")

    @property
    def slices(self) -> Path:
        """The file of the pipeline's measurements of spaces with several slices."""
        return self.heartbeat_of("slices")

    @property
    def wanted(self) -> Path:
        """The file with the registry revision that a batch is waiting for the index to reach."""
        return self.run / "wanted"

    @property
    def elastic(self) -> Path:
        """The file with the hosts of an elastic service, the placement of its slices, and its decisions."""
        return self.root / "elastic.json"

    @property
    def elastic_loads(self) -> Path:
        """The file with the current load of an elastic service's hosts and slices."""
        return self.heartbeat_of("elastic")

    @property
    def elastic_wishes(self) -> Path:
        """The file with slice moves that an operator requested."""
        return self.run / "elastic-moves.json"

    @property
    def corruption(self) -> Path:
        """The folder of notes about damage."""
        return self.root / FOLDER

    def owns(self, name: str) -> bool:
        """Return whether a file or folder directly in the directory, given by name, is the service's.

        The service's are all paths that this class defines and, of a file, also those whose names extend its
        name: a database's WAL, the copy of its first page, damaged and temporary copies.
        """
        kept = re.fullmatch(r"\.?([a-z]+\.[a-z]+)[-.].+", name)
        return (kept[1] if kept else name) in _own_names()

    def misplaced(self) -> str | None:
        """Describe the first folder where a file belongs, or file where a folder belongs; None if all fit."""
        for path in self.databases:
            if path.is_dir():
                return f"{path} is a folder, and must be a database file"
        for path in (
            self.matches,
            self.index,
            self.run,
            self.logs,
            self.replays,
            self.quarantine,
            self.corruption,
        ):
            if path.exists() and not path.is_dir():
                return f"{path} is a file, and must be a folder"
        return None

    def make(self) -> None:
        """Create the missing folders."""
        for folder in (self.matches, self.index, self.run, self.logs):
            folder.mkdir(parents=True, exist_ok=True)


@cache
def _own_names() -> frozenset[str]:
    """Return the names of all files and folders that `DataFolder` defines directly in the directory."""
    folder = DataFolder(Path("/data"))
    paths = [getattr(folder, name) for name, each in vars(DataFolder).items() if isinstance(each, property)]
    inside = (path for path in paths if isinstance(path, Path) and path != folder.root)
    return frozenset(path.relative_to(folder.root).parts[0] for path in inside)
