"""The registry: spaces, subscriptions with their history, and cursors.

Every change of a subscription gets the next *revision*. Of every version it is known at which revision it
began and at which it ended, so the pipeline can build the subscriptions as they stood at the stamp of any
record that is not matched yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldfare.model import Change, Cursor, DeadLetter, DeliverySettings, Offsets, Position, Subscription


@dataclass(frozen=True, slots=True)
class Put:
    """Create a subscription, or replace the filter of the one with this id.

    ``compiled`` is the filter's encoded normal form, ``cost`` what it costs, for the quotas of its space.
    With ``if_absent`` an id that exists is a conflict. Without ``delivery`` what was set stays. Of a
    subscription that is created, ``start`` is where delivery begins, in the partitions that it names: there
    is a `Past` of it then. No other may have one.
    """

    space: str
    id: str
    filter: str
    dialect: str
    compiled: bytes
    if_absent: bool = False
    delivery: DeliverySettings | None = None
    start: tuple[Position, ...] | None = None
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Configure:
    """Set how a subscription's messages are given; its filter and its revision stay as they are."""

    space: str
    id: str
    delivery: DeliverySettings


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a subscription."""

    space: str
    id: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """The answer to a put with ``if_absent`` of an id that exists: nothing was changed."""

    existing: Subscription


@dataclass(frozen=True, slots=True)
class SpaceEncryption:
    """What is said of an encrypted space: the library of its filters, and how long its vectors are."""

    library: str
    dimensions: int


@dataclass(frozen=True, slots=True)
class StoredSpace:
    """A space, what stands for it in all else, and what was set of its quotas, by their names.

    ``encryption`` is None for a space that the service can read.
    """

    name: str
    key: str
    quotas: Mapping[str, float]
    encryption: SpaceEncryption | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a space has of subscriptions: how many, and what their filters cost together."""

    subscriptions: int = 0
    filter_cost: int = 0


@dataclass(frozen=True, slots=True)
class Version:
    """A subscription from one put to the next change: it counts for revision <= stamp < closed_by."""

    revision: int
    space: str
    number: int
    closed_by: int
    filter: str
    dialect: str
    compiled: bytes


@dataclass(frozen=True, slots=True)
class Past:
    """The time before a subscription was created, which it asked for: its first filter counts there too.

    Attributes
    ----------
    number, space, filter, dialect, compiled
        The subscription's, as it was created; what replaced the filter since does not count here.
    revision
        The one that created it: records with lower stamps are its past.
    starts
        The first record of each partition that is.
    matched
        Whether all that there is of it has been matched, as far as was seen.
    """

    number: int
    revision: int
    space: str
    starts: Offsets
    filter: str
    dialect: str
    compiled: bytes
    matched: bool = False


class Registry(Protocol):
    """A registry. One process changes it; any number of processes read. It can be pickled.

    Spaces are known by their keys here, but where a name is asked for.
    """

    @property
    def url(self) -> str:
        """The address that opens this registry."""
        ...

    def create_space(self, name: str, encryption: SpaceEncryption | None = None) -> str:
        """Create a space; SpaceExistsError when there is one of that name.

        Whether it is encrypted is said now, and never changes.

        Its key is given, by which all else knows it: never the key of one that there was before.
        """
        ...

    def delete_space(self, name: str, now_ms: int) -> str:
        """Have a space be gone, and the API keys that are kept beside it and were its own revoked.

        In one transaction, durable on return; UnknownSpaceError when there is none. Its subscriptions stay
        until they are removed: its key is among `unfinished_spaces` until `finish_space` is told.
        """
        ...

    def unfinished_spaces(self) -> list[str]:
        """The keys of the spaces that are gone and not finished."""
        ...

    def finish_space(self, key: str) -> None:
        """Nothing of a space that is gone has to be removed any more."""
        ...

    def spaces(self) -> list[str]:
        """The names of all spaces, sorted."""
        ...

    def has_space(self, name: str) -> bool:
        """Whether there is a space of that name."""
        ...

    def key_of_space(self, name: str) -> str:
        """The key of a space; UnknownSpaceError when there is none of that name."""
        ...

    def stored_spaces(self) -> list[StoredSpace]:
        """All spaces, with what was set of their quotas."""
        ...

    def set_quotas(self, key: str, quotas: Mapping[str, float]) -> None:
        """Have these be all that is set of a space's quotas; durable on return."""
        ...

    def apply(
        self, changes: Sequence[Put | Configure | Remove], ends: Offsets, now_ms: int
    ) -> list[Subscription | Conflict | None]:
        """Apply changes in order, in one transaction; durable on return.

        Parameters
        ----------
        changes
            What to change.
        ends
            The ends of the log's partitions as read before: no record before them meets what is put. Delivery
            begins there; what is replaced before anybody has read goes on from where it began.
        now_ms
            The time, in milliseconds since 1970.

        Returns
        -------
        list
            For every change: what was put, configured or removed; a Conflict, or None for an id that does not
            exist. The last two change nothing and take no revision, nor does `Configure`; all others take one
            each.

        Raises
        ------
        UnknownSpaceError
            A put names a space that does not exist; nothing was changed.
        """
        ...

    def get(self, space: str, id: str) -> Subscription | None:
        """The subscription as it stands, or None."""
        ...

    def list(self, space: str, after: str | None = None, limit: int = 100) -> list[Subscription]:
        """Up to ``limit`` subscriptions of a space whose id comes after ``after``, sorted by id."""
        ...

    def pushed(self, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[Subscription]:
        """Up to ``limit`` subscriptions that have a push address, sorted by space and id, behind these."""
        ...

    def expiring(
        self, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> Sequence[tuple[Subscription, int]]:
        """Up to ``limit`` subscriptions that expire when nobody uses them, as `pushed` gives those.

        With each, for how many seconds nobody had, as was noted since it was changed last.
        """
        ...

    def note_unused(self, notes: Sequence[tuple[Subscription, int]]) -> None:
        """Note for how many seconds nobody has used subscriptions; of those that are not there, nothing."""
        ...

    def count(self, space: str | None = None) -> int:
        """How many subscriptions there are, in one space or in all."""
        ...

    def held(self) -> Mapping[str, Held]:
        """What each space has of subscriptions; one without any need not be named."""
        ...

    def costs(self, space: str, ids: Sequence[str]) -> Mapping[str, int]:
        """What the filters of those of some subscriptions cost that there are, by their ids."""
        ...

    def revision(self) -> int:
        """The revision of the last change; 0 before the first. Cheap."""
        ...

    def changes(self, after: int, to: int) -> Iterator[Change]:
        """The changes with ``after < revision <= to``, in order. A replacement is one put.

        Raises
        ------
        RegistryError
            ``after`` lies before what `purge` kept.
        """
        ...

    def versions(self, revision: int, floor: int) -> Iterator[Version]:
        """What was known at a revision of the versions that count for stamps from ``floor`` on.

        Later changes are left out: a version that one of them ended has an open end here. In order of
        revision. RegistryError when ``revision`` lies before what `purge` kept.
        """
        ...

    def purge(self, before: int) -> int:
        """Remove the versions that count for no stamp from ``before`` on; returns how many those were.

        Afterwards `versions` answers for revisions and stamps from ``before`` on, and `changes` for changes
        after it. The cursor of a subscription, and its messages given up,
        go with the last of its history. To be called by the process
        that changes the registry; others of its threads may change it meanwhile.
        """
        ...

    def pasts(self, *, only_open: bool = False) -> Sequence[Past]:
        """The pasts of all subscriptions, or those that are not matched yet, by number."""
        ...

    def past(self, number: int) -> Past | None:
        """The past of a subscription's number; None when it has none, or nothing of it is left."""
        ...

    def count_open_pasts(self, space: str) -> int:
        """How many pasts of a space are not matched yet."""
        ...

    def mark_past(self, number: int, *, matched: bool) -> None:
        """Note that one is matched, or is to be matched again."""
        ...

    def forget_past(self, number: int) -> None:
        """Retention has taken all of it."""
        ...

    def load_cursors(self, numbers: Sequence[int]) -> Mapping[int, Cursor]:
        """The cursors last saved for some subscriptions' numbers; of those that have one."""
        ...

    def save_cursors(self, cursors: Sequence[tuple[int, Cursor]], now_ms: int = 0) -> None:
        """Save cursors by number, and what they say of messages given up, all or none; durable on return.

        Parameters
        ----------
        cursors
            Of one number the last counts: it is to say all that those before it said.
        now_ms
            When messages were given up, in milliseconds since 1970.

        Raises
        ------
        ValueError
            A cursor holds a number that cannot be stored.
        """
        ...

    def letters(self, number: int, after: Position | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        """Up to ``limit`` messages of a subscription that were given up, behind ``after``, by position.

        Those that are to be given all the same are not among them.
        """
        ...

    def count_letters(self, numbers: Sequence[int]) -> Mapping[int, int]:
        """How many there are in all, of some subscriptions; of those that have any."""
        ...

    def retry_letters(self, number: int, places: Sequence[Position]) -> Sequence[Position]:
        """Have these of them be given all the same: the subscription's cursor names them from now on.

        Those of them that there are; durable on return.
        """
        ...

    def clear_letters(self, number: int) -> int:
        """Forget all of them; how many those were."""
        ...

    def known_ends(self) -> Offsets:
        """The greatest ends of the log's partitions that a change was ever written at; cheap."""
        ...

    def set_cursors_back(self, ends: Offsets) -> int:
        """Set the places of cursors that lie behind their partition's end to it; how many those were."""
        ...

    def raise_revision(self, to: int) -> None:
        """Give no revision up to this one to a change, and answer for no history before it.

        For a registry that is a copy from before: whoever took in later changes has to begin anew.
        """
        ...

    def close(self) -> None:
        """Let go of this process's connections; they are opened again when needed."""
        ...
