"""The smallest fieldfare keeps the promises that it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tiny_fieldfare import TinyFieldfare

from fieldfare.filters import FilterError
from fieldfare.model import Position

ROOT = Path(__file__).parents[2]
FILTERS = ("data.x > 1", "data.x = 1 OR data.k = 'b'", "data.k = 'a'", "TRUE")


def event(x: int, k: str = "a") -> dict[str, object]:
    return {"id": "e", "source": "/s", "type": "t", "data": {"x": x, "k": k}}


def positions(*indexes: int) -> list[Position]:
    return [Position(0, index, 0) for index in indexes]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_it_stays_small() -> None:
    assert len((ROOT / "examples" / "tiny_fieldfare.py").read_text().splitlines()) <= 400


def test_the_example_runs() -> None:
    command = [sys.executable, ROOT / "examples" / "tiny_fieldfare.py"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout
    assert printed.splitlines()[1:] == [
        "delivered 0-0-1 {'delay': 45} attempt 1",
        "delivered 0-0-1 {'delay': 45} attempt 2",
        "left []",
    ]


def test_an_event_meets_the_filter_that_was_current_when_it_was_stored(journal: Path) -> None:
    service = TinyFieldfare(journal)
    service.publish("s", [event(9)])
    service.subscribe("s", "a", "data.x > 5")
    service.publish("s", [event(7)])
    service.subscribe("s", "a", "data.x < 5")
    service.publish("s", [event(7), event(1)])
    service.publish("other", [event(1)])
    found = [message.position for message in service.pull("s", "a", 10, 0.0)]
    assert found == [Position(0, 1, 0), Position(0, 2, 1)]


def test_a_start_in_the_past_uses_the_first_filter(journal: Path) -> None:
    service = TinyFieldfare(journal)
    for x in (1, 2, 3):
        service.publish("s", [event(x)])
    service.subscribe("s", "a", "data.x >= 2", start=Position(0, 1, 0))
    assert [message.position for message in service.pull("s", "a", 10, 0.0)] == positions(1, 2)


def test_leases_expire_nacks_wait_and_attempts_end(journal: Path) -> None:
    service = TinyFieldfare(journal)
    service.subscribe("s", "a", "TRUE", max_attempts=3)
    service.publish("s", [event(1)])
    (first,) = service.pull("s", "a", 10, now_s=0.0, ack_deadline_s=10)
    assert service.pull("s", "a", 10, now_s=9.9) == []
    (second,) = service.pull("s", "a", 10, now_s=10.0)
    assert (first.attempt, second.attempt) == (1, 2)
    service.nack("s", "a", positions(0), now_s=11.0, delay_s=5)
    assert service.pull("s", "a", 10, now_s=15.9) == []
    (third,) = service.pull("s", "a", 10, now_s=16.0, ack_deadline_s=1)
    assert third.attempt == 3 and service.pull("s", "a", 10, now_s=30.0) == []
    assert service.subscriptions["s", "a"].dead == set(positions(0))
    service.retry_dead_letters("s", "a")
    (again,) = service.pull("s", "a", 10, now_s=31.0)
    assert again.attempt == 1
    service.terminate("s", "a", positions(0))
    service.ack("s", "a", positions(0))  # late, and counts
    assert service.subscriptions["s", "a"].dead == set()


def test_events_of_one_key_come_one_at_a_time(journal: Path) -> None:
    service = TinyFieldfare(journal)
    service.subscribe("s", "a", "TRUE", order_by="data.k")
    service.publish("s", [event(1, "a"), event(2, "a"), event(3, "b")])
    assert [m.position.index for m in service.pull("s", "a", 10, 0.0)] == [0, 2]
    service.ack("s", "a", [Position(0, 0, 0)])
    assert [m.position.index for m in service.pull("s", "a", 10, 0.0)] == [1]


def test_a_repeated_publish_stores_nothing(journal: Path) -> None:
    service = TinyFieldfare(journal)
    first = service.publish("s", [event(1)], producer="p", sequence=4)
    service.crash()
    service = TinyFieldfare(journal)
    assert service.publish("s", [event(1)], producer="p", sequence=4) == first
    assert len(service.records) == 1


def test_a_filter_with_a_mistake_changes_nothing(journal: Path) -> None:
    service = TinyFieldfare(journal)
    with pytest.raises(FilterError, match="column"):
        service.subscribe("s", "a", "data.x >")
    assert service.subscriptions == {} and journal.read_bytes() == b""


def walk(service: TinyFieldfare, random: Random, steps: int) -> None:
    """Some steps of publishers and subscribers, drawn at random."""
    for step in range(steps):
        kind = random.choice(("publish", "publish", "subscribe", "pull", "pull", "seek", "delete"))
        names = [name for name, found in service.subscriptions.items() if not found.is_deleted]
        if kind == "publish":
            service.publish("s", [event(random.randrange(4), random.choice("ab"))])
        elif kind == "subscribe":
            service.subscribe("s", random.choice("xy"), random.choice(FILTERS), max_attempts=2)
        elif names:
            name = random.choice(names)
            if kind == "pull":
                pulled = [each.position for each in service.pull(*name, 3, float(step), 2.0)]
                service.ack(*name, pulled[: random.randrange(len(pulled) + 1)])
            elif kind == "seek":
                service.seek(*name, Position(0, random.randrange(len(service.records) + 1), 0))
            elif random.random() < 0.3:
                service.unsubscribe(*name)


def state(service: TinyFieldfare) -> object:
    kept = {name: (s.versions, s.acked, s.dead, s.attempts) for name, s in service.subscriptions.items()}
    return service.records, service.revision, kept, service.producers


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_at_any_byte_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    """Each prefix of the journal opens as the service that had written just its complete lines."""
    path = tmp_path / "journal"
    walk(TinyFieldfare(path), Random(seed), 40)
    content = path.read_bytes()
    complete, prefix, before = 0, tmp_path / "prefix", None
    for end in range(len(content) + 1):
        is_line_end = content[:end].endswith(b"\n") or end == 0
        if not is_line_end and end - complete not in (1, 9, 20):
            continue
        prefix.write_bytes(content[:end])
        service = TinyFieldfare(prefix)
        service.crash()
        assert prefix.read_bytes() == content[: end if is_line_end else complete]
        if is_line_end:
            complete, before = end, state(service)
        else:
            assert state(service) == before


def test_a_corrupt_line_before_others_is_an_error_and_not_a_loss(journal: Path) -> None:
    service = TinyFieldfare(journal)
    for x in range(3):
        service.publish("s", [event(x)])
    service.crash()
    content = journal.read_bytes()
    journal.write_bytes(content.replace(b'"x":0', b'"x":7'))
    with pytest.raises(ValueError, match="byte 0 is corrupt"):
        TinyFieldfare(journal)
