"""Random walks of the delivery's machine, with kills between saves, against a naive state of each message.

For any order of calls: no pending message is lost, no settled message is delivered, no message is delivered
twice at the same time, too early or too often, and the list of dead letters is correct.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from doses import drawn
from fieldfare.delivery import sessions
from fieldfare.delivery.delivery import CursorSnapshot, Delivery, Session
from fieldfare.delivery.keys import key_of, position_of
from fieldfare.model import Cursor, DeliverySettings, Position

OWED, ACKED, DEAD, DROPPED = "owed", "acked", "dead", "dropped"
STEPS = 120
RECORDS = 12


class Registry:
    """The registry's state of one delivery."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None
        self.letters: dict[int, list[bool]] = {}
        """Whether it is to be given again; a new list for each time that it was given up."""
        self.refused: set[int] = set()
        """Those that a reader nacked or terminated."""

    def save(self, cursor: Cursor) -> None:
        self.cursor = cursor
        for place in cursor.settled:
            self.letters.pop(key_of(place), None)
        for letter in cursor.letters:
            self.letters[key := key_of(letter.position)] = [False]
            (self.refused.add if letter.reason in ("nacked", "why") else self.refused.discard)(key)

    def load(self) -> Cursor | None:
        again = tuple(position_of(key) for key, (is_again,) in sorted(self.letters.items()) if is_again)
        return None if self.cursor is None else replace(self.cursor, retried=again)

    def listed(self) -> set[int]:
        return {key for key, (is_again,) in self.letters.items() if not is_again}


class Walk:
    """One walk: a machine, its registry, and the expected state of each message."""

    def __init__(self, seed: int, *, crashes: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.crashes = crashes
        self.registry = Registry()
        self.now = 1000.0
        self.end = key_of(Position(0, RECORDS, 0))
        places = [Position(0, offset, index) for offset in range(RECORDS) for index in range(3)]
        self.keys = [key_of(place) for place in places if rng.random() < 0.5]
        self.settings = DeliverySettings(
            max_attempts=rng.choice([None, 1, 2, 3]),
            retry_delays_s=rng.choice([(), (2.0,), (1.0, 5.0)]),
            max_in_flight=rng.choice([None, None, 3]),
            max_in_flight_bytes=rng.choice([None, None, 250]),
            dead_letter=rng.random() < 0.85,
            order_by=rng.choice([None, "key"]),
        )
        names = [None, 1, 2, 3]
        self.has_auto = rng.random() < 0.5
        self.names = {key: rng.choice(names) for key in self.keys}
        """Their ordering keys."""
        self.mixed: set[int | None] = {None}
        """Those of which more than one may be under way: they were when the order began."""
        self.state = dict.fromkeys(self.keys, OWED)
        self.attempts = dict.fromkeys(self.keys, 0)
        self.told = dict.fromkeys(self.keys, 0)
        """Which attempt it was as the message said: after a crash that may be too few."""
        self.is_sure = dict.fromkeys(self.keys, True)
        self.old: dict[int, object] = {}
        """Letters from before a seek, which say nothing of what became of the message since."""
        self.leases: dict[int, tuple[Session, float]] = {}
        self.sizes: dict[int, int] = {}
        self.due: dict[int, float] = {}
        self.known: list[int] = []
        self.marks: list[CursorSnapshot] = []
        self.start()

    def start(self) -> None:
        self.delivery = Delivery.from_cursor(1, self.registry.load(), (0,))
        self.delivery.tries.listed = len(self.registry.listed())
        self.delivery.tries.unheard = self.registry.listed() - self.registry.refused
        self.delivery.configure(self.settings)
        self.sessions = [self.session(), self.session()]
        self.marks.clear()
        self.leases.clear()
        self.due.clear()

    def session(self) -> Session:
        return Session(self.rng.choice([2, 5, 20]), is_auto=self.has_auto and self.rng.random() < 0.5)

    # What is true

    def failed(self, key: int, delay_s: float | None) -> None:
        del self.leases[key]
        most = self.settings.max_attempts
        if most is not None and self.told[key] >= most:
            self.died(key)
            return
        if delay_s is None:
            delay_s = self.settings.retry_delay_s(self.told[key])
        self.due[key] = self.now + delay_s

    def died(self, key: int) -> None:
        self.state[key] = DEAD if self.settings.dead_letter else DROPPED
        self.settled(key)

    def settled(self, key: int) -> None:
        self.leases.pop(key, None)
        self.due.pop(key, None)

    def expired(self) -> None:
        for key, (_, deadline_s) in list(self.leases.items()):
            if deadline_s <= self.now:
                self.failed(key, None)

    def given_up_at_their_turn(self) -> None:
        """A message that has used its attempts without failing is given up when it would be delivered
        next."""
        most, tries = self.settings.max_attempts, self.delivery.tries
        for key, state in self.state.items():
            if most is None or state != OWED or key in self.leases or self.told[key] < most:
                continue
            row = self.registry.letters.get(key)
            is_new = row is not None and not row[0] and row is not self.old.get(key)
            if key in tries.letters or is_new or not (self.settings.dead_letter or self.owes(key)):
                self.died(key)

    def owes(self, key: int) -> bool:
        return self.delivery.partitions[0].owes(key) or key in self.delivery.tries.retried

    # Steps

    def step(self) -> None:
        self.stride()
        for each in self.sessions:
            assert each.held == sum(session is each for session, _ in self.leases.values()), "miscounted"

    def stride(self) -> None:
        usual = {"take": 5, "ack": 3, "nack": 3, "delay": 1, "extend": 1, "terminate": 1, "release": 1}
        rare = {"time": 2, "mark": 1, "saved": 1, "up_to": 1, "pause": 1, "retry": 1, "clear": 1, "seek": 1}
        rare |= {"order": 1}
        odds = usual | rare | ({"crash": 1} if self.crashes else {"give_back": 1})
        getattr(self, self.rng.choices(list(odds), list(odds.values()))[0])()
        self.given_up_at_their_turn()

    def some(self) -> list[int]:
        pool = self.known or self.keys
        return list(dict.fromkeys(self.rng.choice(pool) for _ in range(self.rng.randrange(1, 4))))

    def feed(self) -> None:
        for start in self.delivery.to_read():
            end = min(self.end, start + key_of(Position(0, self.rng.randrange(1, 5), 0)))
            found = [key for key in self.keys if start <= key < end]
            self.delivery.feed(np.array(found, dtype=np.int64), end)

    def take(self) -> None:
        self.expired()
        for _ in range(3):
            self.feed()
        session, lease_s = self.rng.choice(self.sessions), self.rng.choice([1.0, 3.0, 10.0])
        if session.is_auto:
            lease_s = math.inf
        self.name(session)
        for key in self.delivery.take(session, self.rng.randrange(1, 6), self.now, lease_s):
            assert self.state[key] == OWED, f"given though {self.state[key]}"
            assert key not in self.leases, "given twice at once"
            if session.is_auto:  # for him no other of a key is held back, nor for anybody beside him
                self.mixed.add(self.names[key])
            self.check_order(key)
            assert self.due.pop(key, 0.0) <= self.now, "given too early"
            self.attempts[key] += 1
            self.told[key] = self.delivery.tries.counts.get(key, 1)
            assert self.told[key] <= self.attempts[key], "counted too high"
            assert not self.is_sure[key] or self.told[key] == self.attempts[key], "counted too low"
            assert self.told[key] <= (self.settings.max_attempts or 1_000), "given too often"
            self.leases[key] = (session, self.now + lease_s)
            self.known.append(key)
            size_bytes = self.rng.choice([10, 100, 300])
            if self.delivery.weigh(key, size_bytes):
                self.sizes[key] = size_bytes
            else:
                self.delivery.give_back(session, [key])
                self.given_back(key)
        self.check_bytes()

    def check_bytes(self) -> None:
        """The limit on bytes in flight holds exactly, except for one message that is larger alone."""
        limit, leased = self.settings.max_in_flight_bytes, [self.sizes[key] for key in self.leases]
        if limit is not None and not self.has_auto:
            assert sum(leased) <= limit or len(leased) == 1, leased

    def name(self, session: Session) -> None:
        """Requested keys are reported, sometimes late or by two readers at once."""
        unread = self.delivery.to_name(session, self.rng.choice([3, 100]))
        assert (self.settings.order_by is not None) or not unread
        for _ in range(self.rng.choice([1, 1, 2])):
            self.delivery.name(unread, [self.names[key] for key in unread])

    def check_order(self, key: int) -> None:
        """Only one message of an ordering key is in flight at a time, and it is the oldest one."""
        name = self.names[key]
        if self.settings.order_by is None or name in self.mixed:
            return
        assert all(self.names[other] != name for other in self.leases), "two of a key at once"
        retried = self.delivery.tries.retried
        if key in retried:
            return  # what was given up comes when it is asked for
        older = [each for each in self.keys if each < key and self.names[each] == name]
        owed = [each for each in older if self.owes(each) and each not in retried]
        assert not owed, "before an older of its key"

    def order(self) -> None:
        """Turn ordering on or off."""
        if self.rng.random() < 0.5:
            self.settings = replace(self.settings, order_by=self.rng.choice([None, "key", "other"]))
            self.mixed |= {self.names[key] for key in (*self.leases, *self.due)}
            self.delivery.configure(self.settings)

    def ack(self) -> None:
        for key in self.some():
            was_given = self.state[key] == OWED and self.attempts[key] > 0
            count = self.delivery.ack([key])
            assert count or not was_given, "an ack was not heard"
            if count:
                assert self.state[key] == OWED
                self.state[key] = ACKED
                self.settled(key)
            elif self.state[key] == DEAD:
                self.late(key)
        self.answered()

    def late(self, key: int) -> None:
        """Ack a message after it was given up: no retry delivers it again, and no restart lists it."""
        self.state[key] = ACKED
        if self.delivery.is_saved:
            assert key not in self.registry.listed()

    def up_to(self) -> None:
        if not self.known:
            return
        last = self.rng.choice(self.known)
        unsaved = self.delivery.tries.letters.items()
        heard = self.registry.refused - dict(unsaved).keys()
        heard |= {key for key, letter in unsaved if letter.reason in ("nacked", "why")}
        self.delivery.ack_up_to(last)
        for key in self.keys:
            if key <= last and self.state[key] == DEAD and key not in heard:
                self.late(key)
            if key <= last and self.state[key] == OWED and key not in self.delivery.tries.retried:
                self.state[key] = ACKED
                self.settled(key)
        self.answered()

    def answered(self) -> None:
        if self.rng.random() < 0.7:
            self.save()

    def nack(self, delay_s: float | None = None) -> None:
        keys = self.some()
        self.delivery.nack(keys, self.now, delay_s)
        for key in keys:
            if key in self.leases:
                self.failed(key, delay_s)

    def delay(self) -> None:
        self.nack(self.rng.choice([0.0, 1.0, 7.0]))

    def extend(self) -> None:
        keys = self.some()
        mine = [key for key in keys if key in self.leases and not self.leases[key][0].is_auto]
        assert self.delivery.extend(keys, self.now, 6.0) == len(mine)
        for key in mine:
            self.leases[key] = (self.leases[key][0], self.now + 6.0)

    def terminate(self) -> None:
        for key in self.some():
            if self.delivery.terminate([key], "why"):
                assert self.state[key] == OWED
                self.died(key)

    def release(self) -> None:
        at = self.rng.randrange(2)
        gone, self.sessions[at] = self.sessions[at], self.session()
        self.delivery.release(gone)
        for key, (session, _) in list(self.leases.items()):
            if session is gone:
                self.settled(key)

    def give_back(self) -> None:
        if self.leases:
            key = self.rng.choice(list(self.leases))
            self.delivery.give_back(self.leases[key][0], [key])
            self.given_back(key)

    def given_back(self, key: int) -> None:
        self.settled(key)
        self.told[key] -= 1
        if self.crashes:
            self.is_sure[key] = False  # after a crash it counts as given
        else:
            self.attempts[key] -= 1

    def time(self) -> None:
        self.now += self.rng.choice([0.5, 1.0, 4.0, 20.0])
        if self.rng.random() < 0.5:
            self.delivery.expire(self.now)
            self.expired()

    def pause(self) -> None:
        if self.rng.random() < 0.3:
            self.settings = replace(self.settings, paused=not self.settings.paused)
            self.delivery.configure(self.settings)

    def mark(self) -> None:
        self.marks.append(self.delivery.mark())

    def saved(self, count: int | None = None) -> None:
        for _ in range(self.rng.randrange(len(self.marks) + 1) if count is None else count):
            mark = self.marks.pop(0)
            self.registry.save(mark.cursor())
            self.delivery.saved(mark)

    def save(self) -> None:
        self.mark()
        self.saved(len(self.marks))

    def look(self) -> None:
        """The step that every route does before it reads or changes the list."""
        self.delivery.expire(self.now)
        self.expired()
        self.save()
        self.given_up_at_their_turn()

    def retry(self) -> None:
        self.look()
        named = [key for key in self.registry.listed() if self.rng.random() < 0.6]
        for key in named:
            self.registry.letters[key][0] = True
            if self.state[key] == OWED:
                self.is_sure[key] = False
            else:
                self.state[key], self.attempts[key], self.told[key] = OWED, 0, 0
        if self.crashes and self.rng.random() < 0.1:
            self.crash(is_sure=True)
        else:
            self.delivery.retry(named)

    def clear(self) -> None:
        if self.rng.random() < 0.4:
            self.look()
            for key in self.registry.listed():
                del self.registry.letters[key]
                if self.state[key] == DEAD:
                    self.state[key] = DROPPED

    def seek(self) -> None:
        if self.rng.random() < 0.6:
            return
        to = self.rng.choice([0, self.end, *self.keys[:1]])
        retried = set(self.delivery.tries.retried)
        self.delivery.seek([to])
        self.leases.clear()
        self.due.clear()
        for key in self.keys:
            if key >= to or key in retried:
                self.state[key], self.attempts[key], self.told[key] = OWED, 0, 0
                self.is_sure[key] = True
            elif self.state[key] == OWED:
                self.state[key] = ACKED
        self.save()
        again = {key for key in self.keys if key >= to or key in retried}
        self.old |= {key: self.registry.letters.get(key) for key in again}

    def crash(self, *, is_sure: bool = False) -> None:
        if not is_sure and self.rng.random() < 0.5:
            return
        was_saved = self.delivery.is_saved
        self.start()
        for key in self.keys:
            self.is_sure[key] = False
            if self.owes(key):
                assert self.state[key] == OWED or not was_saved, f"came back though {self.state[key]}"
                self.state[key] = OWED
            elif key in self.registry.listed():
                self.state[key] = DEAD
            else:
                assert self.state[key] != OWED, "lost"

    def finish(self) -> None:
        """Read to the end and ack everything: only messages that were given up remain."""
        self.settings = replace(self.settings, paused=False, max_in_flight=None, max_in_flight_bytes=None)
        self.delivery.configure(self.settings)
        for _ in range(200):
            self.now += 30
            self.look()
            for session in self.sessions:
                self.delivery.release(session)
            for key in list(self.leases):
                self.settled(key)
            self.sessions = [Session(1000)]
            self.take()
            self.given_up_at_their_turn()
            self.delivery.ack(list(self.leases))
            for key in list(self.leases):
                self.state[key] = ACKED
                self.settled(key)
        self.save()
        assert self.delivery.cursor_keys == (self.end,)
        assert OWED not in self.state.values(), "lost"
        assert {key for key, state in self.state.items() if state == DEAD} <= self.registry.listed()
        acked = {key for key, state in self.state.items() if state == ACKED}
        assert not acked & self.registry.listed() - set(self.old), "a retry would bring it back"
        assert self.registry.listed() == set(self.registry.letters), "would come again after a restart"


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("kept", [0, 1, sessions.KEPT_SESSIONS])
def test_no_order_of_calls_and_kills_loses_doubles_or_revives_a_message(kept, crashes, monkeypatch):
    monkeypatch.setattr(sessions, "KEPT_SESSIONS", kept)
    for seed in range(drawn(100)):
        walk = Walk(seed, crashes=crashes)
        try:
            for _ in range(STEPS):
                walk.step()
            walk.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
