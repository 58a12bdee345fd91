"""The filters of other brokers, as this one knows them: interface of the store.

Another broker's filter is indexed like a subscription, under the key `model.interest_key`, and its matches
are reported under the broker's *destination number*. A message with changes of a broker's filters is applied
in one transaction, in the order of its *sequence*. Afterwards the store knows that records with stamps from
this registry's revision on meet that broker's filters as of one of its own revisions: the *runs*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldfare.model import Offsets


@dataclass(frozen=True, slots=True)
class StoredBroker:
    """Another broker: its name, its destination number, and the sequence of the last applied message."""

    name: str
    number: int
    sequence: int


@dataclass(frozen=True, slots=True)
class RemoteFilter:
    """A change of another broker's filter: stored, or removed (`filter` is None).

    `space` is a space's name, `number` identifies the filter at its broker.
    """

    space: str
    number: int
    filter: str | None
    dialect: str = "sql"
    compiled: bytes = b""
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    """Records with stamps from `revision` on meet the filters of a broker as of its revision `theirs`."""

    number: int
    revision: int
    theirs: int


class BrokerStore(Protocol):
    """The filters of other brokers; changed by the process that changes the registry."""

    def brokers(self) -> list[StoredBroker]:
        """Return all brokers that have sent filters, by name."""
        ...

    def runs(self) -> list[Run]:
        """Return all runs, by destination number and revision."""
        ...

    def count_filters(self) -> Mapping[int, int]:
        """Return the number of filters of each broker that has any, by the broker's number."""
        ...

    def apply_filters(
        self,
        name: str,
        sequence: int,
        filters: Sequence[RemoteFilter],
        theirs: int | None,
        ends: Offsets,
        now_ms: int,
        *,
        is_all: bool = False,
    ) -> int:
        """Apply a broker's message in one transaction; durable on return. Return the registry's revision.

        A message that was applied before changes nothing. With `theirs` it begins a run. With `is_all`, the
        broker's earlier filters are removed.

        Raises
        ------
        RegistryError
            An earlier message of the broker is missing.
        """
        ...

    def next_revision(self, nothing: RemoteFilter, ends: Offsets, now_ms: int) -> int:
        """Give the registry a new revision without an effect, and return it.

        `nothing` is a filter that matches nothing: it is stored and removed in one transaction.
        """
        ...

    def forget_broker(self, name: str, ends: Offsets, now_ms: int) -> int:
        """Remove a broker and its filters in one transaction; return the registry's revision."""
        ...

    def forget_brokers(self, ends: Offsets, now_ms: int) -> None:
        """Remove all brokers and their filters in one transaction.

        `ends` are those of the log's partitions. It is for a new file of links: the messages of each broker
        begin again at its first.
        """
        ...

    def forget_runs(self, before: int) -> None:
        """Delete the runs that no record with a stamp of at least `before` needs."""
        ...

    def close(self) -> None:
        """Close this process's connections; they are opened again when needed."""
        ...
