"""The delivery of one subscription, moved by hand: no clock, no I/O."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.doses import drawn

from fieldfare.delivery import delivery as delivery_module
from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.delivery.keys import INDEX_BITS, PARTITION_SHIFT, key_at, key_of, keys_at, position_of
from fieldfare.model import Cursor, DeliverySettings, Position


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def acked_runs(delivery: Delivery) -> list[tuple[int, int]]:
    return [(key_of(first), key_of(last)) for first, last in delivery.cursor().acked]


def fed(*values: int, read_to: int | None = None) -> Delivery:
    delivery = Delivery(1, [0])
    delivery.feed(keys(*values), values[-1] + 1 if read_to is None else read_to)
    return delivery


def test_keys_order_as_positions_do():
    positions = [Position(0, 0, 9999), Position(0, 1, 0), Position(0, 1, 1), Position(0, 1 << 40, 5)]
    positions += [Position(1, 0, 0), Position(126, (1 << 42) - 1, 9999)]
    assert [position_of(key_of(each)) for each in positions] == positions
    assert sorted(map(key_of, positions)) == list(map(key_of, positions))
    assert str(position_of(key_of(positions[0]))) == "0-0-9999"
    assert key_of(positions[-1]) < 1 << 63
    for none in (Position(127, 0, 0), Position(0, 1 << 42, 0), Position(0, 0, 1 << 14), Position(0, -1, 0)):
        with pytest.raises(ValueError, match="no event can be at"):
            key_of(none)


def test_messages_come_in_order_once_and_the_cursor_follows_the_acks():
    delivery, session = fed(3, 5, 9, read_to=20), Session(10)
    assert delivery.cursor_keys[0] == 3, "what did not match needs no ack"
    assert delivery.take(session, 2, 0.0, 30.0) == [3, 5]
    assert delivery.take(session, 5, 0.0, 30.0) == [9]
    assert delivery.take(session, 5, 0.0, 30.0) == []
    assert delivery.ack([5])
    assert (delivery.cursor_keys[0], acked_runs(delivery)) == (3, [(5, 5)])
    assert delivery.ack([3])
    assert (delivery.cursor_keys[0], delivery.cursor().acked) == (9, ())
    assert not delivery.ack([3, 5]), "an ack repeated changes nothing"
    delivery.ack([9])
    assert delivery.cursor_keys[0] == 20
    assert session.held == 0


def test_the_window_bounds_what_is_unacked():
    delivery, session = fed(*range(10)), Session(3)
    assert delivery.take(session, 100, 0.0, 30.0) == [0, 1, 2]
    assert not delivery.has_message(session)
    delivery.ack([1])
    assert delivery.has_message(session)
    assert delivery.take(session, 100, 0.0, 30.0) == [3]


def test_a_lease_that_runs_out_gives_the_message_again_and_an_ack_still_counts():
    delivery, session = fed(1, 2, 3), Session(10)
    assert delivery.take(session, 2, 0.0, 10.0) == [1, 2]
    assert not delivery.expire(9.9)
    delivery.ack([1])
    assert delivery.expire(10.0)
    assert delivery.take(session, 10, 10.0, 10.0) == [2, 3]
    delivery.expire(20.0)
    delivery.ack([2, 3])  # late, but before anybody got them again
    assert delivery.take(session, 10, 20.0, 10.0) == []
    assert delivery.in_flight == session.held == 0


def test_a_nack_gives_again_before_what_is_new_and_only_once():
    delivery, session = fed(1, 2, 3), Session(10)
    delivery.take(session, 2, 0.0, 30.0)
    assert delivery.nack([2, 2, 99], 0.0) == 1
    assert delivery.take(session, 10, 0.0, 30.0) == [2, 3]


def test_a_session_that_ends_returns_exactly_the_messages_it_held():
    delivery, first, second = fed(1, 2, 3, 4), Session(10), Session(10)
    assert delivery.take(first, 2, 0.0, 30.0) == [1, 2]
    assert delivery.take(second, 1, 0.0, 30.0) == [3]
    delivery.ack([1])
    delivery.release(first)
    assert delivery.take(second, 10, 0.0, 30.0) == [2, 4]


def test_ack_up_to_settles_what_was_given_and_what_was_not():
    delivery, session = fed(1, 2, 3, 4, 5, read_to=100), Session(10)
    delivery.take(session, 2, 0.0, 30.0)
    assert delivery.ack_up_to(3)
    assert (delivery.cursor_keys[0], session.held) == (4, 0)
    assert delivery.take(session, 10, 0.0, 30.0) == [4, 5]
    delivery.ack_up_to(200)
    assert delivery.cursor_keys[0] == 201
    delivery.feed(keys(150, 201, 205), 300)
    assert delivery.take(session, 10, 0.0, 30.0) == [201, 205], "what was acked before it was read is skipped"


def test_after_a_restart_what_was_acked_beyond_the_cursor_does_not_come():
    delivery, session = fed(1, 2, 3, 4), Session(10)
    delivery.take(session, 4, 0.0, 30.0)
    delivery.ack([2, 4])
    again = Delivery.from_cursor(1, delivery.cursor(), (0,))
    again.feed(keys(1, 2, 3, 4), 5)
    assert again.take(session, 10, 0.0, 30.0) == [1, 3]
    again.ack([1, 3])
    assert (again.cursor_keys[0], again.cursor().acked) == (5, ())


def test_an_ack_of_a_message_delivered_before_a_restart_counts():
    delivery, session = Delivery(1, [0]), Session(10)
    assert delivery.ack([2])
    delivery.feed(keys(1, 2, 3), 5)
    assert delivery.take(session, 10, 0.0, 30.0) == [1, 3]


def test_a_cursor_that_meets_nothing_but_non_matches_moves_on():
    delivery = Delivery(1, [0])
    delivery.feed(keys(), 7 << INDEX_BITS)
    assert position_of(delivery.cursor_keys[0]) == Position(0, 7, 0)
    assert delivery.wants_feed


def test_messages_read_but_not_delivered_may_be_forgotten_and_are_read_again():
    delivery, session = fed(1, 2, 3, read_to=10), Session(2)
    delivery.take(session, 2, 0.0, 30.0)
    delivery.forget_unread()
    assert delivery.partitions[0].read_to == 3
    delivery.feed(keys(1, 2, 3), 10)
    delivery.ack([1, 2])
    assert delivery.take(session, 2, 0.0, 30.0) == [3]


def test_partitions_take_turns_and_each_has_its_own_cursor():
    delivery, session = Delivery(1, keys_at((0, 5))), Session(100)
    first, second = [key_at(0, offset) for offset in range(6)], [key_at(1, offset) for offset in range(5, 8)]
    delivery.feed(keys(*first), key_at(0, 9))
    delivery.feed(keys(*second), key_at(1, 9))
    given = [delivery.take(session, 2, 0.0, 30.0) for _ in range(4)]
    assert given[:3] == [first[:2], second[:2], first[2:4]], "one with a backlog keeps no other waiting"
    assert delivery.ack_up_to(first[4]) == 5
    assert delivery.cursor_keys == (first[5], second[0]), "up to a position: of its partition"
    delivery.ack([second[1]])
    cursor = delivery.cursor()
    assert cursor.positions == (Position(0, 5, 0), Position(1, 5, 0))
    assert cursor.acked == ((Position(1, 6, 0), Position(1, 6, 0)),)
    assert delivery.ack([key_at(7, 3)]) == delivery.ack_up_to(key_at(7, 3)) == 0, "there is no such partition"


def test_retention_in_one_partition_skips_nothing_in_another():
    """A partition that still begins at its first record must not be mistaken for the end of the one
    before."""
    delivery = Delivery(1, keys_at((0, 0, 0)))
    delivery.skip_to((0, 4, 0))
    assert delivery.cursor_keys == (key_at(0, 0), key_at(1, 4), key_at(2, 0))


def test_a_partition_missing_in_the_cursor_is_read_from_the_start_of_the_subscription():
    cursor = Cursor((Position(0, 5, 2), Position(9, 1, 0)))
    delivery = Delivery.from_cursor(1, cursor, (0, 7))
    assert delivery.cursor_keys == (key_of(Position(0, 5, 2)), key_at(1, 7))
    assert Delivery.from_cursor(1, None, (3, 7)).cursor_keys == (key_at(0, 3), key_at(1, 7))


def test_attempts_are_counted_and_an_unsent_message_is_no_attempt():
    delivery, session = fed(1, 2, 3), Session(10)
    assert delivery.take(session, 3, 0.0, 30.0) == [1, 2, 3]
    delivery.give_back(session, [3])
    delivery.nack([1], 0.0)
    assert delivery.take(session, 3, 0.0, 30.0) == [1, 3]
    assert [delivery.tries.count_of(key) for key in (1, 2, 3)] == [2, 1, 1]
    delivery.give_back(Session(5), [1])
    assert delivery.in_flight == 3, "another's messages are not given back"
    delivery.ack([1, 2, 3])
    assert delivery.tries.counts == {}, "nothing is remembered of what is settled"


def test_delays_only_affect_the_message_that_failed():
    delivery, session = fed(1, 2, 3), Session(10)
    delivery.configure(DeliverySettings(retry_delays_s=(1.0, 5.0)))
    delivery.take(session, 1, 0.0, 30.0)
    delivery.nack([1], 0.0)
    assert delivery.next_deadline_s == 1.0
    assert delivery.take(session, 1, 0.5, 30.0) == [2]
    assert delivery.take(session, 9, 1.0, 2.0) == [1, 3]
    assert delivery.expire(3.0), "not acked in time is failed, too"
    assert delivery.next_deadline_s == 4.0, "the first attempt of the one"
    assert delivery.take(session, 9, 7.9, 30.0) == [3]
    assert delivery.take(session, 9, 8.0, 30.0) == [1], "the second of the other"
    delivery.nack([1], 8.0, 0.0)
    assert delivery.take(session, 9, 8.0, 30.0) == [1]
    assert not delivery.is_idle


def test_a_delayed_message_that_is_acked_meanwhile_is_not_delivered():
    delivery, session = fed(1, 2), Session(10)
    delivery.take(session, 1, 0.0, 30.0)
    delivery.nack([1], 0.0, 5.0)
    assert delivery.ack([1]) == 1
    assert delivery.take(session, 9, 9.0, 30.0) == [2]


def test_settings_bound_what_all_sessions_hold_but_for_those_that_settle_by_order():
    delivery, first, second = fed(*range(10)), Session(10), Session(10)
    delivery.configure(DeliverySettings(max_in_flight=3))
    assert delivery.take(first, 2, 0.0, 30.0) == [0, 1]
    assert delivery.take(second, 9, 0.0, 30.0) == [2] and not delivery.has_message(second)
    assert delivery.take(Session(2, is_auto=True), 9, 0.0, 30.0) == [3, 4]
    delivery.configure(DeliverySettings(paused=True))
    assert delivery.take(first, 9, 0.0, 30.0) == [] and delivery.to_read() == []
    delivery.configure(DeliverySettings())
    assert delivery.take(first, 2, 0.0, 30.0) == [5, 6]


def test_an_extended_lease_ends_later_and_only_leased_messages_are_extended():
    delivery, session = fed(1, 2), Session(10)
    delivery.take(session, 2, 0.0, 10.0)
    assert delivery.extend([1, 1, 7], 5.0, 10.0) == 1
    assert delivery.expire(10.0) and delivery.take(session, 9, 10.0, 10.0) == [2]
    assert delivery.expire(15.0) and delivery.take(session, 9, 15.0, 10.0) == [1]
    assert session.held == 2


def test_nothing_is_delivered_while_too_many_given_up_messages_are_unsaved(monkeypatch):
    monkeypatch.setattr(delivery_module, "LETTERS_MAX", 2)
    delivery, session = fed(1, 2, 3), Session(10)
    delivery.take(session, 2, 0.0, 30.0)
    assert delivery.terminate([1, 2, 3], "bad") == 2
    assert delivery.take(session, 9, 0.0, 30.0) == []
    delivery.saved(delivery.mark())
    assert delivery.take(session, 9, 0.0, 30.0) == [3]


class DeliveryAgainstModel(RuleBasedStateMachine):
    """Random feeds, takes, acks, nacks, passing time and restarts, compared with plain sets."""

    partitions = 1

    settings = DeliverySettings()

    def __init__(self) -> None:
        super().__init__()
        self.begins = (0,) * self.partitions
        self.delivery = Delivery(1, keys_at(self.begins))
        self.delivery.configure(self.settings)
        self.sessions = [Session(4), Session(100)]
        self.now_s = 0.0
        self.matches: set[int] = set()
        self.acked: set[int] = set()
        self.held: dict[int, float] = {}
        self.fed_to = keys_at(self.begins)

    @rule(data=st.data(), gaps=st.lists(st.integers(1, 5), max_size=6), beyond=st.integers(0, 5))
    def feed(self, data: st.DataObject, gaps: list[int], beyond: int) -> None:
        partition = data.draw(st.integers(0, self.partitions - 1))
        values = []
        at = self.fed_to[partition]
        for gap in gaps:
            values.append(at + gap - 1)
            at += gap
        self.fed_to[partition] = at + beyond
        self.matches.update(values)
        self._feed_all()

    def _feed_all(self) -> None:
        for partition, fed_to in enumerate(self.fed_to):
            own = sorted(key for key in self.matches if key >> PARTITION_SHIFT == partition)
            self.delivery.feed(keys(*own), fed_to)

    @rule(which=st.integers(0, 1), limit=st.integers(0, 10), lease_s=st.integers(1, 20))
    def take(self, which: int, limit: int, lease_s: int) -> None:
        session = self.sessions[which]
        self._lapse()
        could = self.delivery.has_message(session)
        given = self.delivery.take(session, limit, self.now_s, lease_s)
        for partition in range(self.partitions):
            own = [key for key in given if key >> PARTITION_SHIFT == partition]
            assert own == sorted(set(own))
        for key in given:
            assert key in self.matches and key not in self.acked and key not in self.held
            self.held[key] = self.now_s + lease_s
        if limit:
            assert bool(given) == could
        assert session.held <= session.window

    @rule(seconds=st.integers(1, 15))
    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds
        self._lapse()
        self.delivery.expire(self.now_s)

    def _lapse(self) -> None:
        self.held = {key: end_s for key, end_s in self.held.items() if end_s > self.now_s}

    @precondition(lambda self: self.matches)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.matches)), max_size=4))
        self.delivery.ack(chosen)
        self.acked.update(chosen)
        for key in chosen:
            self.held.pop(key, None)

    @precondition(lambda self: self.matches)
    @rule(data=st.data())
    def ack_up_to(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.matches)))
        self.delivery.ack_up_to(chosen)
        passed = {
            key
            for key in self.matches
            if key <= chosen and key >> PARTITION_SHIFT == chosen >> PARTITION_SHIFT
        }
        self.acked |= passed
        self.held = {key: end_s for key, end_s in self.held.items() if key not in passed}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.held)))
        assert self.delivery.nack([chosen], self.now_s) == 1
        del self.held[chosen]

    @rule()
    def restart(self) -> None:
        self.delivery = Delivery.from_cursor(1, self.delivery.cursor(), self.begins)
        self.delivery.configure(self.settings)
        self.sessions = [Session(4), Session(100)]
        self.held = {}
        self._feed_all()

    @invariant()
    def the_cursor_passes_nothing_that_is_not_acked(self) -> None:
        cursors = self.delivery.cursor_keys
        behind = {key for key in self.matches if key < cursors[key >> PARTITION_SHIFT]}
        assert behind <= self.acked
        runs = acked_runs(self.delivery)
        assert runs == sorted(runs) and all(first <= last for first, last in runs)
        beyond = {key for key in self.matches if any(first <= key <= last for first, last in runs)}
        assert beyond == self.acked - behind
        assert self.delivery.in_flight == sum(session.held for session in self.sessions)

    def teardown(self) -> None:
        """At the end every message that was not acked is delivered."""
        self.restart()
        given = self.delivery.take(Session(1 << 20), 1 << 20, self.now_s, 1.0)
        assert set(given) == self.matches - self.acked


class PartitionsAgainstModel(DeliveryAgainstModel):
    partitions = 3


class AttemptsAgainstModel(RuleBasedStateMachine):
    """Attempts, delays, given up and retried messages, with saves and crashes between any two steps.

    A message is due now or at a time, held, acked, or in the list. The state on disk is that of the registry:
    a cursor, and dead letters. A crash returns the machine to that state.
    """

    settings = DeliverySettings(max_attempts=2, retry_delays_s=(0.0, 3.0), max_in_flight=5)

    def __init__(self) -> None:
        super().__init__()
        self.delivery = Delivery(1, [0])
        self.delivery.configure(self.settings)
        self.session = Session(100)
        self.now_s = 0.0
        self.matches: list[int] = []
        self.attempts: dict[int, int] = {}
        self.held: dict[int, float] = {}
        self.later: dict[int, float] = {}
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.disk_cursor = self.delivery.cursor()
        self.disk_letters: dict[int, int] = {}
        self.disk_retried: set[int] = set()
        self.acked_on_disk: set[int] = set()

    @rule(count=st.integers(1, 4))
    def feed(self, count: int) -> None:
        first = self.matches[-1] + 2 if self.matches else 0
        self.matches += range(first, first + 2 * count, 2)
        self.delivery.feed(keys(*self.matches), self.matches[-1] + 2)

    @rule(limit=st.integers(0, 6), lease_s=st.sampled_from([2, 50]))
    def take(self, limit: int, lease_s: int) -> None:
        self._lapse()
        given = self.delivery.take(self.session, limit, self.now_s, lease_s)
        self._note_dead()
        for key in given:
            assert key not in self.held and key not in self.acked and key not in self.dead
            assert self.later.pop(key, 0.0) <= self.now_s, "it comes no sooner than it may"
            self.attempts[key] = self.attempts.get(key, 0) + 1
            assert self.delivery.tries.count_of(key) == self.attempts[key] <= 2
            self.held[key] = self.now_s + lease_s
        assert len(self.held) <= 5
        due = [each for each in self.matches if self._is_due(each)]
        room = min(limit, 5 - len(self.held) + len(given)) - len(given)
        assert room <= 0 or not due, "nothing that may be given is held back"

    def _is_due(self, key: int) -> bool:
        if key in self.held or key in self.acked or key in self.dead:
            return False
        return self.later.get(key, 0.0) <= self.now_s

    @rule(seconds=st.integers(1, 6))
    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds
        self._lapse()

    def _lapse(self) -> None:
        self.delivery.expire(self.now_s)
        for key, end_s in sorted(self.held.items(), key=lambda item: item[1]):
            if end_s <= self.now_s:
                self._fail(key, None)

    def _fail(self, key: int, delay_s: float | None) -> None:
        del self.held[key]
        if self.attempts[key] >= 2:
            self.dead.add(key)
        else:
            after_s = self.settings.retry_delay_s(self.attempts[key]) if delay_s is None else delay_s
            self.later[key] = self.now_s + after_s

    def _note_dead(self) -> None:
        """A message that had used all its attempts before a crash is given up when it would be delivered
        next."""
        for key in self.delivery.tries.letters.keys() - self.dead:
            assert key not in self.held and key not in self.acked
            assert self.delivery.tries.letters[key].attempts >= 2
            self.dead.add(key)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay_s=st.sampled_from([None, 0.0, 4.0]))
    def nack(self, data: st.DataObject, delay_s: float | None) -> None:
        self._lapse()
        if self.held:
            chosen = data.draw(st.sampled_from(sorted(self.held)))
            assert self.delivery.nack([chosen], self.now_s, delay_s) == 1
            self._fail(chosen, delay_s)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A held message is acked, terminated, extended, or could not be sent."""
        self._lapse()
        if not self.held:
            return
        chosen = data.draw(st.sampled_from(sorted(self.held)))
        verb = data.draw(st.sampled_from(["ack", "terminate", "extend", "give_back"]))
        if verb == "ack":
            assert self.delivery.ack([chosen]) == 1
            self.acked.add(chosen)
        elif verb == "terminate":
            assert self.delivery.terminate([chosen], "bad") == 1
            self.dead.add(chosen)
        elif verb == "extend":
            assert self.delivery.extend([chosen], self.now_s, 50) == 1
            self.held[chosen] = self.now_s + 50
            return
        else:
            self.delivery.give_back(self.session, [chosen])
            self.attempts[chosen] -= 1
        del self.held[chosen]

    @rule()
    def save(self) -> None:
        mark = self.delivery.mark()
        self.disk_cursor = mark.cursor()
        for letter in self.disk_cursor.letters:
            self.disk_letters[key_of(letter.position)] = letter.attempts
            self.disk_retried.discard(key_of(letter.position))
        self.disk_retried -= set(map(key_of, self.disk_cursor.settled))
        self.delivery.saved(mark)
        self.acked_on_disk = set(self.acked)
        assert self.delivery.is_saved and not self.delivery.is_urgent

    @precondition(lambda self: self.disk_letters)
    @rule(data=st.data(), crash=st.booleans())
    def retry(self, data: st.DataObject, crash: bool) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.disk_letters)))
        del self.disk_letters[chosen]
        self.disk_retried.add(chosen)
        if crash:
            self.crash()
        else:
            self.delivery.retry([chosen])
            self.dead.discard(chosen)
            self.attempts[chosen] = 0
            self.later.pop(chosen, None)

    @rule()
    def crash(self) -> None:
        """No message acked on disk is delivered again, none in the list is lost, and no count is too high."""
        saved = replace(self.disk_cursor, retried=tuple(map(position_of, sorted(self.disk_retried))))
        self.delivery = Delivery.from_cursor(1, saved, (0,))
        self.delivery.configure(self.settings)
        self.session = Session(100)
        self.held, self.later = {}, {}
        self.acked = set(self.acked_on_disk)
        self.dead = set(self.disk_letters)
        if self.matches:
            self.delivery.feed(keys(*self.matches), self.matches[-1] + 2)
        partition = self.delivery.partitions[0]
        for key in self.matches:
            before = self.attempts.get(key, 0)
            known = 1 if key < partition.known_to else 0
            if key in self.delivery.tries.counts or key in self.disk_retried:
                known = self.delivery.tries.counts.get(key, 0)
            if key not in self.acked and key not in self.dead:
                assert known <= max(before, 2)
                self.attempts[key] = known

    @invariant()
    def letters_are_those_given_up(self) -> None:
        self._lapse()
        assert set(self.delivery.tries.letters) | set(self.disk_letters) >= self.dead
        assert self.delivery.in_flight == len(self.held) == self.session.held

    def teardown(self) -> None:
        """At the end every message that was not acked is delivered, or is in the list."""
        self.settings = DeliverySettings()
        self.delivery.configure(self.settings)
        self.now_s += 1_000
        given = {
            *self.held,
            *self.delivery.take(Session(1 << 20), 1 << 20, self.now_s, 1.0),
        }
        assert given | self.acked | self.dead == set(self.matches)


TestDeliveryAgainstModel = DeliveryAgainstModel.TestCase
TestPartitionsAgainstModel = PartitionsAgainstModel.TestCase
TestAttemptsAgainstModel = AttemptsAgainstModel.TestCase
for case in (TestDeliveryAgainstModel, TestPartitionsAgainstModel, TestAttemptsAgainstModel):
    case.settings = settings(max_examples=drawn(80), stateful_step_count=40)
del case  # or pytest collects it, too


def test_bytes_in_flight_are_limited_and_a_larger_message_is_delivered_alone():
    delivery, session = fed(*range(1, 40)), Session(100)
    delivery.configure(DeliverySettings(max_in_flight_bytes=1_000))
    first = delivery.take(session, 50, 0.0, 30.0)
    assert first == [1], "their sizes are not known yet"
    assert delivery.take(session, 50, 0.0, 30.0) == []
    assert delivery.weigh(1, 100)
    some = delivery.take(session, 50, 0.0, 30.0)
    assert len(some) == 9, "about as large as the first"
    assert all(map(delivery.weigh, some, [400, *[10] * 8]))
    more = delivery.take(session, 50, 0.0, 30.0)
    assert len(more) > 1
    assert not delivery.weigh(more[0], 5_000), "the mean is much smaller"
    delivery.give_back(session, more)
    assert not delivery.has_message(session), "until it fits it is not taken in a circle"
    assert delivery.extend(some, 0.0, 60.0) == len(some) and not delivery.has_message(session)
    delivery.ack([*first, *some])
    again = delivery.take(session, 50, 0.0, 30.0)
    assert again[0] == more[0]
    assert delivery.weigh(again[0], 5_000) and not delivery.weigh(again[1], 10), "alone"
    delivery.give_back(session, again[1:])
    assert not delivery.has_message(session)
    delivery.release(session)
    assert delivery.take(session, 50, 0.0, 30.0) == more[:1], "about so large are they now"
    delivery.configure(DeliverySettings())
    assert len(delivery.take(session, 50, 0.0, 30.0)) == 39 - len(first) - len(some) - 1
