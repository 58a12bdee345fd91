"""The registry: spaces, subscriptions with their history, and cursors.

Every change of a subscription gets the next *revision*. The registry stores at which revision each version
began and ended, so the pipeline can build the subscriptions as of the stamp of any unmatched record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldfare.model import (
    Change,
    Cursor,
    DeadLetter,
    DeliverySettings,
    Labels,
    Offsets,
    Position,
    Subscription,
)


@dataclass(frozen=True, slots=True)
class Put:
    """Create a subscription, or replace the filter of the one with this id.

    ``compiled`` is the filter's encoded normal form, ``cost`` its cost for the quotas of its space. With
    ``if_absent``, an existing id is a conflict. Without ``delivery``, ``owner`` or ``labels``, the existing
    ones are kept. ``start`` gives the positions, in the partitions that it names, at which delivery begins;
    it is allowed only for a new subscription, and creates a `Replay`. ``destination`` is the number under
    which the matches of another broker's filter are reported (see `storage.brokers`).
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
    destination: int | None = None
    owner: str | None = None
    labels: Labels | None = None


@dataclass(frozen=True, slots=True)
class Configure:
    """Change a subscription's delivery settings, owner or labels, those that are not None.

    Its filter and its revision stay unchanged.
    """

    space: str
    id: str
    delivery: DeliverySettings | None = None
    owner: str | None = None
    labels: Labels | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a subscription."""

    space: str
    id: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """The result of a put with ``if_absent`` for an existing id: nothing was changed."""

    existing: Subscription


@dataclass(frozen=True, slots=True)
class SpaceEncryption:
    """The settings of an encrypted space: the library of its filters, and the length of its vectors."""

    library: str
    dimensions: int


@dataclass(frozen=True, slots=True)
class StoredSpace:
    """A space: its name, its key (which stands for it everywhere else), and the quotas set for it, by name.

    ``encryption`` is None for a space whose events the service can read.
    """

    name: str
    key: str
    quotas: Mapping[str, float]
    encryption: SpaceEncryption | None = None


@dataclass(frozen=True, slots=True)
class SpaceUsage:
    """The usage of a space: its number of subscriptions, and the total cost of their filters."""

    subscriptions: int = 0
    filter_cost: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay: a request of a new subscription for records from before its creation.

    Attributes
    ----------
    number, space, filter, dialect, compiled
        Attributes of the subscription at its creation; filters that replaced the first one do not apply.
    revision
        Revision that created the subscription: records with lower stamps belong to the replay.
    starts
        The first record of the replay in each partition.
    matched
        Whether all of its records have been matched, as far as is known.
    """

    number: int
    revision: int
    space: str
    starts: Offsets
    filter: str
    dialect: str
    compiled: bytes
    matched: bool = False


@dataclass(frozen=True, slots=True)
class DeliveryPlace:
    """Where the delivery of a subscription stands, as saved: what counting its backlog needs.

    Attributes
    ----------
    id, number
        The subscription.
    positions
        A position for each partition: every match before it is settled.
    is_plain
        Whether every match from there on is owed: no later message is acked, and there is no replay.
    dead_letters
        Number of its dead letters.
    """

    id: str
    number: int
    positions: tuple[Position, ...]
    is_plain: bool
    dead_letters: int


class SpaceStore(Protocol):
    """Spaces: their keys, quotas and encryption."""

    def create_space(self, name: str, encryption: SpaceEncryption | None = None) -> str:
        """Create a space and return its key; SpaceExistsError if a space of that name exists.

        The key identifies the space everywhere else, and is never that of an earlier space. Whether the space
        is encrypted cannot be changed later.
        """

    def delete_space(self, name: str, now_ms: int) -> str:
        """Delete a space, revoke its API keys, and return its key; UnknownSpaceError if there is none.

        One transaction, durable on return. The subscriptions of the space stay until they are removed one by
        one: its key is among `unfinished_spaces` until `finish_space` is called.
        """

    def unfinished_spaces(self) -> list[str]:
        """Return the keys of deleted spaces for which `finish_space` was not called yet."""

    def finish_space(self, key: str) -> None:
        """Record that everything of a deleted space was removed."""

    def spaces(self) -> list[str]:
        """Return the names of all spaces, sorted."""

    def has_space(self, name: str) -> bool:
        """Return whether a space of that name exists."""

    def key_of_space(self, name: str) -> str:
        """Return the key of a space; UnknownSpaceError if no space has that name."""

    def stored_spaces(self) -> list[StoredSpace]:
        """Return all spaces with the quotas set for them."""

    def set_quotas(self, key: str, quotas: Mapping[str, float]) -> None:
        """Replace all quotas set for a space; durable on return."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """The subscriptions that a search finds: those that meet all of this.

    Attributes
    ----------
    text
        A text in id, filter, owner or labels, each as ``key=value``; letters A to Z in any case. None: any.
    labels
        Labels by key and value; a value of None stands for any. The key `OWNER_KEY` stands for the owner.
    """

    text: str | None = None
    labels: Sequence[tuple[str, str | None]] = ()

    def has_labels(self, subscription: Subscription) -> bool:
        """Return whether a subscription has the labels, without regard to the text."""
        found = dict(labels_of(subscription))
        return all(key in found and value in (None, found[key]) for key, value in self.labels)


OWNER_KEY = ""
"""The key under which the owner is found like a label; no label has it."""


def labels_of(subscription: Subscription) -> Labels:
    """Return the labels under which a subscription is found, its owner included."""
    owner = ((OWNER_KEY, subscription.owner),) if subscription.owner else ()
    return (*owner, *subscription.labels)


class SubscriptionLists(Protocol):
    """The current subscriptions, found by other things than their id."""

    def search(
        self, space: str, after: str | None, criteria: Criteria, searched: int, limit: int
    ) -> tuple[Sequence[Subscription], str | None]:
        """Return subscriptions of a space that meet criteria, by id.

        Reads at most `searched` subscriptions after `after`, of those with one of the wanted labels if there
        are any, and returns at most `limit`; also the id to continue after, None if no more follow.
        """

    def labelled(
        self, space: str, criteria: Criteria, limit: int, among: Sequence[int] | None = None
    ) -> Sequence[int] | None:
        """Return the numbers of the subscriptions of a space with the wanted labels, in any order.

        None if more than `limit` have the rarest of these labels; with `among`, only these numbers are looked
        at, without a limit.
        """

    def places(self, space: str, after: str | None = None, limit: int = 100) -> Sequence[DeliveryPlace]:
        """Return where at most `limit` subscriptions of a space stand, by id, after `after`."""

    def by_number(self, numbers: Sequence[int]) -> Mapping[int, Subscription]:
        """Return the current subscriptions with these numbers, by number; removed ones are missing."""


class SubscriptionStore(Protocol):
    """The current subscriptions of each space, and the changes to them."""

    def apply(
        self, changes: Sequence[Put | Configure | Remove], ends: Offsets, now_ms: int
    ) -> list[Subscription | Conflict | None]:
        """Apply changes in order, in one transaction; durable on return.

        Parameters
        ----------
        changes
            The changes to apply.
        ends
            The ends of the log's partitions, read before the call: no earlier record is matched with a put
            filter. Delivery begins there; a subscription that is replaced before its first read still begins
            where it began before.
        now_ms
            The current time, in milliseconds since 1970.

        Returns
        -------
        list
            For every change, the subscription that was put, configured or removed; a `Conflict`; or None for
            an id that does not exist. The last two change nothing. Only successful puts and removals take a
            revision, one each.

        Raises
        ------
        UnknownSpaceError
            A put names a space that does not exist; nothing was changed.
        """

    def get(self, space: str, id: str) -> Subscription | None:
        """Return the current subscription with an id; None if there is none."""

    def list(self, space: str, after: str | None = None, limit: int = 100) -> list[Subscription]:
        """Return at most `limit` subscriptions of a space whose id is greater than `after`, sorted by id."""

    def pushed(self, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[Subscription]:
        """Return at most `limit` subscriptions with a push address, by space and id, after `after`."""

    def expiring(
        self, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> Sequence[tuple[Subscription, int]]:
        """Return at most `limit` subscriptions that expire when unused, by space and id, after `after`.

        Each comes with the seconds for which it had been unused, according to the last note since its last
        change.
        """

    def note_unused(self, notes: Sequence[tuple[Subscription, int]]) -> None:
        """Record for how many seconds subscriptions have been unused; removed subscriptions are ignored."""

    def count(self, space: str | None = None) -> int:
        """Return the number of subscriptions in one space or, without `space`, in all."""

    def held(self) -> Mapping[str, SpaceUsage]:
        """Return the usage of each space; spaces without subscriptions may be missing."""

    def costs(self, space: str, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the filter cost of each existing subscription among `ids`, by id."""


class SubscriptionHistory(Protocol):
    """The history of all subscriptions, by revision, which the index is built from."""

    def revision(self) -> int:
        """Return the revision of the last change; 0 before the first. Cheap."""

    def changes(self, after: int, to: int) -> Iterator[Change]:
        """Yield the changes with ``after < revision <= to``, in order. A replacement is one put.

        Raises
        ------
        RegistryError
            `purge` has removed changes after `after`.
        """

    def versions(self, revision: int, floor: int) -> Iterator[Change]:
        """Yield the versions valid for stamps from `floor` on, as known at a revision, by revision.

        Later changes are ignored: a version that a later change ended has an open end here. RegistryError if
        `purge` has removed the history at `revision`.
        """

    def purge(self, before: int) -> int:
        """Remove the versions that are valid for no stamp from `before` on; return their number.

        Afterwards `versions` works for revisions and stamps from `before` on, and `changes` for changes after
        it. The cursor and the dead letters of a removed subscription are deleted with the last of its
        history. Only the process that changes the registry may call this; its other threads may change the
        registry meanwhile.
        """

    def known_ends(self) -> Offsets:
        """Return the greatest known end of each partition of the log, from the changes so far; cheap."""

    def raise_revision(self, to: int) -> None:
        """Assign no revision up to `to` to later changes, and discard the history before it.

        Used after a restore of an older registry: readers that saw later changes must start again.
        """


class ReplayStore(Protocol):
    """The replays of subscriptions that were created with a start in the past."""

    def replays(self, *, only_open: bool = False) -> Sequence[Replay]:
        """Return all replays, or only those that are not completely matched, by subscription number."""

    def replay(self, number: int) -> Replay | None:
        """Return the replay of a subscription; None if it has none, or retention has removed its records."""

    def count_replays(self) -> int:
        """Return the number of replays, including unreadable ones."""

    def count_open_replays(self, space: str) -> int:
        """Return the number of replays of a space that are not completely matched."""

    def mark_replay(self, number: int, *, matched: bool) -> None:
        """Record that a replay is completely matched, or must be matched again."""

    def forget_replay(self, number: int) -> None:
        """Delete a replay, all of whose records retention has removed."""


class CursorStore(Protocol):
    """The cursors of subscriptions, by subscription number."""

    def load_cursors(self, numbers: Sequence[int]) -> Mapping[int, Cursor]:
        """Return the last saved cursors by subscription number; numbers without a cursor are missing."""

    def save_cursors(self, cursors: Sequence[tuple[int, Cursor]], now_ms: int = 0) -> None:
        """Save cursors by number, with their dead letters, all or none; durable on return.

        Parameters
        ----------
        cursors
            Of several cursors for one number, the last counts: it must include what the earlier ones state.
        now_ms
            Time at which the dead letters arose, in milliseconds since 1970.

        Raises
        ------
        ValueError
            A cursor holds a number that cannot be stored.
        """

    def set_cursors_back(self, ends: Offsets) -> int:
        """Move cursor positions after their partition's end back to it; return the number of moved ones."""


class DeadLetterStore(Protocol):
    """The lists of dead letters; `CursorStore.save_cursors` adds to them."""

    def letters(self, number: int, after: Position | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        """Return at most `limit` dead letters of a subscription after `after`, by position.

        Dead letters that are being retried are left out.
        """

    def count_letters(self, numbers: Sequence[int]) -> Mapping[int, int]:
        """Return the number of dead letters of each subscription that has any, without retried ones."""

    def retry_letters(self, number: int, places: Sequence[Position]) -> Sequence[Position]:
        """Mark dead letters for redelivery: the subscription's cursor includes them from now on.

        Returns the places that are dead letters of the subscription; durable on return.
        """

    def clear_letters(self, number: int) -> int:
        """Delete all dead letters of a subscription, except those being retried; return their number."""


class Registry(
    SpaceStore,
    SubscriptionStore,
    SubscriptionLists,
    SubscriptionHistory,
    ReplayStore,
    CursorStore,
    DeadLetterStore,
    Protocol,
):
    """A registry: one process changes it, any number of processes read it. It can be pickled.

    Code that uses one part of it asks for that part's protocol only. A parameter ``space`` is a space's key;
    only parameters called ``name`` are names of spaces.
    """

    @property
    def url(self) -> str:
        """The address that opens this registry."""

    def has_vanished(self) -> bool:
        """Return whether a space, a version or a subscription has vanished, or a space is corrupt."""

    def mend_vanished(self) -> None:
        """Restore vanished rows of spaces and versions; write a note about each, and about what is lost."""

    def close(self) -> None:
        """Close this process's connections; they are opened again when needed."""
