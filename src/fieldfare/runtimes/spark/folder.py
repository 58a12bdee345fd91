"""Where everything of a service lies: the files and folders of its data directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The data directory of one service, as ``fieldfare serve --data`` lays it out."""

    root: Path

    @property
    def log_url(self) -> str:
        return f"sqlite:///{self.root / 'log.db'}"

    @property
    def registry_path(self) -> Path:
        return self.root / "registry.db"

    @property
    def registry_url(self) -> str:
        return f"sqlite:///{self.registry_path}"

    @property
    def matches(self) -> Path:
        return self.root / "matches"

    @property
    def matches_url(self) -> str:
        return self.matches.absolute().as_uri()

    @property
    def index(self) -> Path:
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
    def suspects(self) -> Path:
        """Which records are being tried because some of them made matching fail."""
        return self.run / "suspects.json"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def spark_scratch(self) -> Path:
        """What Spark writes and may lose."""
        return self.run / "spark"

    @property
    def spark_log(self) -> Path:
        """What Spark and its Python workers write to their standard error."""
        return self.root / "logs" / "spark.log"

    @property
    def heartbeat(self) -> Path:
        return self.run / "pipeline.json"

    def make(self) -> None:
        """Make the folders that are not there yet."""
        for folder in (self.matches, self.index, self.checkpoint, self.run, self.spark_log.parent):
            folder.mkdir(parents=True, exist_ok=True)
