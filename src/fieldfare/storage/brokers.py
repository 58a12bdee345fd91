"""The filters of other brokers, as this one knows them, in their stored form.

Another broker's filter is indexed like a subscription, under the key `model.interest_key`, and its matches
are reported under the broker's *destination number*. A message with changes of a broker's filters is applied
in one transaction, in the order of its *sequence*. Afterwards the store knows that records with stamps from
this registry's revision on meet that broker's filters as of one of its own revisions: the *runs*.
"""

from __future__ import annotations

from dataclasses import dataclass


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
