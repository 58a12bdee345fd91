"""A registry in memory, without a database: each method is a transaction."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fieldfare.model import (
    OPEN_END,
    Change,
    Cursor,
    DeadLetter,
    Offsets,
    Position,
    Subscription,
    positions_of,
    space_key,
)
from fieldfare.storage.changes import ChangeBatch
from fieldfare.storage.errors import RegistryError, SpaceExistsError, UnknownSpaceError
from fieldfare.storage.registry import (
    Configure,
    Conflict,
    Criteria,
    DeliveryPlace,
    Put,
    Remove,
    Replay,
    SpaceEncryption,
    SpaceUsage,
    StoredSpace,
)

_Run = tuple[Position, Position]


@dataclass(frozen=True)
class _Place:
    """A cursor's state of one partition."""

    position: Position
    acked: tuple[_Run, ...] = ()
    given: Position | None = None
    attempts: tuple[tuple[Position, int], ...] = ()


@dataclass
class _Letter:
    letter: DeadLetter
    again: bool = False


def _has_text(subscription: Subscription, text: str | None) -> bool:
    labels = "\n".join(f"{key}={value}" for key, value in subscription.labels)
    searched = (subscription.id, subscription.filter, subscription.owner, labels)
    return text is None or any(text.lower() in each.lower() for each in searched)


class MemoryRegistry:
    """A `Registry` of this process."""

    url = "memory:"

    def __init__(self) -> None:
        self._spaces: dict[str, StoredSpace] = {}
        self._gone: list[tuple[str, str]] = []
        self._unfinished: list[str] = []
        self._standing: dict[tuple[str, str], Subscription] = {}
        self._unused: dict[tuple[str, str], int] = {}
        self._versions: dict[int, dict[str, Any]] = {}
        self._cursors: dict[int, dict[int, _Place]] = {}
        self._letters: dict[int, dict[Position, _Letter]] = {}
        self._replays: dict[int, Replay] = {}
        self._revision = self._number = self._purged = 0
        self._ends: list[int] = []

    def has_vanished(self) -> bool:
        return False

    def mend_vanished(self) -> None: ...

    def create_space(self, name: str, encryption: SpaceEncryption | None = None) -> str:
        if name in self._spaces:
            raise SpaceExistsError(name)
        key = space_key(name, sum(gone == name for gone, _ in self._gone))
        self._spaces[name] = StoredSpace(name, key, {}, encryption)
        return key

    def delete_space(self, name: str, now_ms: int) -> str:
        if name not in self._spaces:
            raise UnknownSpaceError(name)
        key = self._spaces.pop(name).key
        self._gone.append((name, key))
        self._unfinished.append(key)
        return key

    def unfinished_spaces(self) -> list[str]:
        return list(self._unfinished)

    def finish_space(self, key: str) -> None:
        self._unfinished = [each for each in self._unfinished if each != key]

    def spaces(self) -> list[str]:
        return sorted(self._spaces)

    def has_space(self, name: str) -> bool:
        return name in self._spaces

    def key_of_space(self, name: str) -> str:
        if name not in self._spaces:
            raise UnknownSpaceError(name)
        return self._spaces[name].key

    def stored_spaces(self) -> list[StoredSpace]:
        return [self._spaces[name] for name in self.spaces()]

    def set_quotas(self, key: str, quotas: Mapping[str, float]) -> None:
        for name, space in self._spaces.items():
            if space.key == key:
                self._spaces[name] = replace(space, quotas=dict(quotas))
                return
        raise UnknownSpaceError(key)

    def apply(
        self, changes: Sequence[Put | Configure | Remove], ends: Offsets, now_ms: int
    ) -> list[Subscription | Conflict | None]:
        keys = {space.key for space in self._spaces.values()}
        batch = ChangeBatch(ends, now_ms, dict(self._standing), self._revision, self._number)
        results = []
        for change in changes:
            if isinstance(change, Put) and change.space not in keys:
                raise UnknownSpaceError(change.space)
            results.append(batch.apply(change))
        if batch.touched:
            self._write(batch)
        return results

    def _write(self, batch: ChangeBatch) -> None:
        self._standing = batch.standing
        for key in batch.touched:
            self._unused.pop(key, None)
        for closing in batch.closings:
            self._versions[closing["ended"]] |= closing
        self._versions |= batch.versions
        for number, positions in batch.begun.items():
            rows = self._cursors.setdefault(number, {})
            for at in positions:
                rows.setdefault(at.partition, _Place(at))
        for number, row in batch.replays.items():
            values = dict(row)
            starts = tuple(position.offset for position in positions_of(values.pop("start")))
            self._replays[number] = Replay(starts=starts, **values)
        for number in batch.ended_replays:
            self._replays.pop(number, None)
        self._revision, self._number = batch.revision, batch.number
        known = (*self._ends, *(0 for _ in batch.ends))
        self._ends = [max(pair) for pair in zip(known, batch.ends, strict=False)]

    def get(self, space: str, id: str) -> Subscription | None:
        return self._standing.get((space, id))

    def list(self, space: str, after: str | None = None, limit: int = 100) -> list[Subscription]:
        ids = sorted(id for owner, id in self._standing if owner == space)
        first = 0 if after is None else bisect_right(ids, after)
        return [self._standing[space, id] for id in ids[first : first + limit]]

    def search(
        self, space: str, after: str | None, criteria: Criteria, searched: int, limit: int
    ) -> tuple[Sequence[Subscription], str | None]:
        some = self.list(space, after, len(self._standing))
        if criteria.labels:
            rarest = min(
                criteria.labels, key=lambda label: sum(map(Criteria(None, [label]).has_labels, some))
            )
            some = list(filter(Criteria(None, [rarest]).has_labels, some))
        some = some[:searched]
        found = [each for each in some if criteria.has_labels(each) and _has_text(each, criteria.text)]
        last = found[limit - 1] if len(found) >= limit else some[-1] if len(some) == searched else None
        return found[:limit], None if last is None else last.id

    def labelled(
        self, space: str, criteria: Criteria, limit: int, among: Sequence[int] | None = None
    ) -> Sequence[int] | None:
        of = [each for each in self._standing.values() if each.space == space]
        if among is not None:
            of = [each for each in of if each.number in among]
        elif all(sum(map(Criteria(None, [each]).has_labels, of)) > limit for each in criteria.labels):
            return None
        return [each.number for each in of if criteria.has_labels(each)]

    def places(self, space: str, after: str | None = None, limit: int = 100) -> Sequence[DeliveryPlace]:
        found = []
        for each in self.list(space, after, limit):
            rows = self._cursors.get(each.number, {})
            begins = {p: Position(p, offset, 0) for p, offset in enumerate(each.valid_from)}
            saved = {place.position.partition: place.position for place in rows.values()}
            is_plain = each.start is None and not any(place.acked for place in rows.values())
            letters = self.count_letters([each.number]).get(each.number, 0)
            positions = tuple((begins | saved).values())
            found.append(DeliveryPlace(each.id, each.number, positions, is_plain, letters))
        return found

    def by_number(self, numbers: Sequence[int]) -> Mapping[int, Subscription]:
        wanted = set(numbers)
        return {each.number: each for each in self._standing.values() if each.number in wanted}

    def pushed(self, after: tuple[str, str] = ("", ""), limit: int = 1000) -> Sequence[Subscription]:
        found = [each for key, each in sorted(self._standing.items()) if key > after]
        return [each for each in found if each.delivery.push is not None][:limit]

    def expiring(
        self, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> Sequence[tuple[Subscription, int]]:
        found = [each for key, each in sorted(self._standing.items()) if key > after]
        expires = [each for each in found if each.delivery.expires_unused_s is not None][:limit]
        return [(each, self._unused.get((each.space, each.id), 0)) for each in expires]

    def note_unused(self, notes: Sequence[tuple[Subscription, int]]) -> None:
        for noted, seconds in notes:
            standing = self._standing.get((noted.space, noted.id))
            if standing is not None and standing.number == noted.number:
                self._unused[noted.space, noted.id] = seconds

    def count(self, space: str | None = None) -> int:
        return sum(space is None or owner == space for owner, _ in self._standing)

    def held(self) -> Mapping[str, SpaceUsage]:
        found: dict[str, SpaceUsage] = {}
        for each in self._standing.values():
            had = found.get(each.space, SpaceUsage())
            found[each.space] = SpaceUsage(had.subscriptions + 1, had.filter_cost + each.cost)
        return found

    def costs(self, space: str, ids: Sequence[str]) -> Mapping[str, int]:
        found = {id: self._standing.get((space, id)) for id in ids}
        return {id: each.cost for id, each in found.items() if each is not None}

    def revision(self) -> int:
        return self._revision

    def changes(self, after: int, to: int) -> Iterator[Change]:
        self._check_kept(after)
        found = []
        for row in self._versions.values():
            of = row["space"], row["number"]
            if after < row["revision"] <= to:
                filter = row["filter"], row["dialect"], row["compiled"]
                found.append(Change(row["revision"], *of, *filter))
            if row["removed"] and after < row["closed_revision"] <= to:
                found.append(Change(row["closed_revision"], *of, None, None, None))
        yield from sorted(found, key=lambda change: change.revision)

    def versions(self, revision: int, floor: int) -> Iterator[Change]:
        self._check_kept(revision)
        for row in sorted(self._versions.values(), key=lambda row: row["revision"]):
            closed = row["closed_revision"]
            closed_by = closed if closed is not None and closed <= revision else OPEN_END
            if row["revision"] <= revision and closed_by > floor:
                filter = row["filter"], row["dialect"], row["compiled"]
                yield Change(row["revision"], row["space"], row["number"], *filter, closed_by=closed_by)

    def purge(self, before: int) -> int:
        before = min(before, self._revision)
        self._purged = max(self._purged, before)
        gone = [row for row in self._versions.values() if (row["closed_revision"] or OPEN_END) <= before]
        for row in gone:
            del self._versions[row["revision"]]
            if row["removed"]:
                self._cursors.pop(row["number"], None)
                self._letters.pop(row["number"], None)
        return len(gone)

    def replays(self, *, only_open: bool = False) -> Sequence[Replay]:
        return [replay for _, replay in sorted(self._replays.items()) if not (only_open and replay.matched)]

    def replay(self, number: int) -> Replay | None:
        return self._replays.get(number)

    def count_replays(self) -> int:
        return len(self._replays)

    def count_open_replays(self, space: str) -> int:
        return sum(replay.space == space and not replay.matched for replay in self._replays.values())

    def mark_replay(self, number: int, *, matched: bool) -> None:
        if number in self._replays:
            self._replays[number] = replace(self._replays[number], matched=matched)

    def forget_replay(self, number: int) -> None:
        self._replays.pop(number, None)

    def load_cursors(self, numbers: Sequence[int]) -> Mapping[int, Cursor]:
        found = {number: self._cursor(number) for number in numbers}
        return {number: cursor for number, cursor in found.items() if cursor is not None}

    def _cursor(self, number: int) -> Cursor | None:
        rows = self._cursors.get(number)
        if not rows:
            return None
        places = [rows[partition] for partition in sorted(rows)]
        positions = tuple(place.position for place in places)
        given = tuple(place.given or place.position for place in places)
        letters = self._letters.get(number, {})
        return Cursor(
            positions,
            tuple(run for place in places for run in place.acked),
            given if given != positions else (),
            tuple(each for place in places for each in place.attempts),
            tuple(position for position, letter in sorted(letters.items()) if letter.again),
        )

    def save_cursors(self, cursors: Sequence[tuple[int, Cursor]], now_ms: int = 0) -> None:
        latest = dict(cursors)
        for number, cursor in latest.items():
            ends = (end for run in cursor.acked for end in run)
            letters = (letter.position for letter in cursor.letters)
            for at in (*cursor.positions, *ends, *cursor.given, *letters):
                if not all(0 <= each <= OPEN_END for each in (at.partition, at.offset, at.index)):
                    raise ValueError(f"the cursor of subscription {number} cannot be stored: {at}")
        for number, cursor in latest.items():
            given = {at.partition: at for at in cursor.given}
            self._cursors[number] = {
                at.partition: _Place(
                    at,
                    tuple(run for run in cursor.acked if run[0].partition == at.partition),
                    given.get(at.partition),
                    tuple(each for each in cursor.attempts if each[0].partition == at.partition),
                )
                for at in cursor.positions
            }
            if cursor.letters or cursor.settled:
                listed = self._letters.setdefault(number, {})
                for at in cursor.settled:
                    listed.pop(at, None)
                listed |= {
                    letter.position: _Letter(replace(letter, dead_ms=now_ms)) for letter in cursor.letters
                }

    def letters(self, number: int, after: Position | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        listed = sorted(self._letters.get(number, {}).items())
        found = [each.letter for at, each in listed if not each.again and (after is None or at > after)]
        return found[:limit]

    def count_letters(self, numbers: Sequence[int]) -> Mapping[int, int]:
        listed = {number: self._letters.get(number, {}).values() for number in numbers}
        counts = {number: sum(not each.again for each in letters) for number, letters in listed.items()}
        return {number: count for number, count in counts.items() if count}

    def retry_letters(self, number: int, places: Sequence[Position]) -> Sequence[Position]:
        listed = self._letters.get(number, {})
        found = [at for at in dict.fromkeys(places) if at in listed and not listed[at].again]
        for at in found:
            listed[at].again = True
        return found

    def clear_letters(self, number: int) -> int:
        listed = self._letters.get(number, {})
        gone = [at for at, letter in listed.items() if not letter.again]
        for at in gone:
            del listed[at]
        return len(gone)

    def known_ends(self) -> Offsets:
        return tuple(self._ends)

    def set_cursors_back(self, ends: Offsets) -> int:
        count = 0
        for rows in self._cursors.values():
            for partition, end in enumerate(ends):
                place = rows.get(partition)
                if place is not None and place.position > Position(partition, end, 0):
                    rows[partition] = _Place(Position(partition, end, 0))
                    count += 1
        return count

    def raise_revision(self, to: int) -> None:
        self._revision, self._purged = max(self._revision, to), max(self._purged, to)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _check_kept(self, revision: int) -> None:
        if revision < self._purged:
            raise RegistryError(
                f"{self.url} keeps the history from revision {self._purged} on, not {revision}"
            )
