"""The outbox's file: what it keeps, whom it refuses, and what it says when it cannot go on."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.client import Outbox, OutboxError, OutboxFull, OutboxInUse, OutboxSettings
from fieldfare.client.outbox import FORMAT

URL, SPACE = "http://127.0.0.1:7737", "default"


def add(outbox: Outbox, *lines: bytes) -> None:
    outbox.add(lines, sum(map(len, lines)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=4)),
    st.tuples(st.just("cut"), st.tuples(st.integers(1, 4), st.integers(1, 12))),
    st.tuples(st.just("answer"), st.integers(0, 10)),
    st.tuples(st.just("refuse"), st.integers(0, 10)),
    st.tuples(st.just("split"), st.integers(0, 10)),
    st.tuples(st.just("reopen"), st.none()),
)


class Model:
    """A model of an outbox's expected content: lists of lines."""

    def __init__(self) -> None:
        self.uncut: list[bytes] = []
        self.cut: dict[int, list[bytes]] = {}
        self.refused: list[bytes] = []

    def take(self, max_events: int, max_bytes: int, sequence: int) -> list[bytes]:
        taken = self.uncut[:1]
        for line in self.uncut[1:max_events]:
            if sum(map(len, taken)) + len(line) > max_bytes:
                break
            taken.append(line)
        del self.uncut[: len(taken)]
        self.cut[sequence] = taken
        return taken

    def split(self, which: int, sequence: int) -> list[bytes]:
        first = self.cut[which][: len(self.cut[which]) // 2]
        cut = {}
        for key, lines in self.cut.items():
            if key == which:
                cut[sequence], lines = first, lines[len(first) :]
            cut[key] = lines
        self.cut = cut
        return first


@settings(max_examples=drawn(60))
@given(steps=st.lists(STEPS, max_size=25))
def test_an_outbox_equals_its_model_after_any_operations(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("outbox") / "outbox"
    outbox, model = Outbox(path, URL, SPACE), Model()
    for sequence, (verb, value) in enumerate(steps):
        if verb == "add":
            add(outbox, *value)  # type: ignore[misc]
            model.uncut += value  # type: ignore[operator]
        elif verb == "cut" and model.uncut:
            most_events, most_bytes = value  # type: ignore[misc]
            lines, size_bytes = outbox.cut(most_events, most_bytes, "p", sequence)
            assert lines == model.take(most_events, most_bytes, sequence)
            assert size_bytes == sum(map(len, lines))
        elif verb in ("answer", "refuse") and model.cut:
            which = sorted(model.cut)[value % len(model.cut)]  # type: ignore[operator]
            lines = model.cut.pop(which)
            if verb == "refuse":
                outbox.answered("p", which, {0: "no"})
                model.refused.append(lines[0])
            else:
                outbox.answered("p", which, {})
        elif verb == "split" and (large := [key for key, lines in model.cut.items() if len(lines) > 1]):
            which = large[value % len(large)]  # type: ignore[operator]
            first = model.split(which, sequence)
            outbox.split("p", which, len(first), sum(map(len, first)), sequence)
        elif verb == "reopen":
            outbox.close()
            outbox = Outbox(path, URL, SPACE)
            found = {batch.sequence: batch.lines for batch in outbox.unanswered()}
            assert list(found.items()) == list(model.cut.items())
        stats = outbox.stats()
        waiting = [line for lines in (*model.cut.values(), model.uncut) for line in lines]
        assert (stats.waiting_events, stats.waiting_bytes) == (len(waiting), sum(map(len, waiting)))
        assert (outbox.waiting_events, outbox.waiting_bytes) == (
            len(model.uncut),
            sum(map(len, model.uncut)),
        )
        assert [each.raw for each in outbox.refused()] == model.refused
    outbox.close()


def test_refused_events_stay_with_their_reason_until_they_are_forgotten(path: Path) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b'{"n":1}', b"{oops", b'{"n":3}')
        outbox.cut(3, 100, "p", 0)
        outbox.answered("p", 0, {1: "not JSON", 2: "no source"})
    with Outbox(path) as outbox:
        first, second = outbox.refused()
        assert (first.raw, first.reason) == (b"{oops", "not JSON")
        assert second.event == {"n": 3}
        outbox.forget_refused([first])
        assert outbox.refused() == [second]
        assert outbox.stats().refused_events == 1 and outbox.stats().refused_bytes == 7


def test_only_one_may_have_it_open(path: Path) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        with pytest.raises(OutboxInUse, match=f"{path} is open in another publisher"):
            Outbox(path, URL, SPACE)
        program = f"from fieldfare.client import Outbox; Outbox({str(path)!r})"
        other = subprocess.run(
            [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, timeout=180, check=False
        )
        assert "OutboxInUse" in other.stderr
        add(outbox, b"still ours")
    Outbox(path, URL, SPACE).close()


def test_it_belongs_to_one_space_of_one_service(path: Path) -> None:
    Outbox(path, URL, SPACE).close()
    with pytest.raises(OutboxError, match="belongs to the space 'default' at http://127"):
        Outbox(path, URL, "other")
    with pytest.raises(OutboxError, match="not to 'default' at http://elsewhere"):
        Outbox(path, "http://elsewhere", SPACE)
    Outbox(path, URL, SPACE).close()


def test_a_broken_file_is_named(path: Path) -> None:
    path.write_bytes(b"this was never a database, and is long enough to show it" * 20)
    with pytest.raises(OutboxError, match=f"{path} is corrupt: file is not a database"):
        Outbox(path, URL, SPACE)


def test_damage_in_the_middle_is_found_when_it_is_opened(path: Path) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, *[b"x" * 500] * 200)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(OutboxError, match=f"{path} is corrupt"):
        Outbox(path, URL, SPACE)


def test_lost_rows_are_found_when_it_is_opened(path: Path) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b"a", b"b", b"c")
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events WHERE id = 2")
    connection.commit()
    connection.close()
    with pytest.raises(OutboxError, match="events are missing"):
        Outbox(path, URL, SPACE)


def change_on_disk(path: Path, before: bytes, after: bytes) -> None:
    content = path.read_bytes()
    assert content.count(before) == 1 and len(before) == len(after)
    path.write_bytes(content.replace(before, after))


def test_an_event_that_changed_on_the_disk_is_set_aside_and_the_others_are_sent(path: Path) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b'{"n":11}', b'{"n":12}', b'{"n":13}', b'{"n":14}')
        outbox.cut(1, 100, "p", 0)
    change_on_disk(path, b'{"n":12}', b'{"n":92}')
    change_on_disk(path, b'{"n":13}', b'{"n":93}')
    for _ in range(2):
        with Outbox(path, URL, SPACE) as outbox:
            refused = outbox.refused()
            assert sorted(each.raw for each in refused) == [b'{"n":92}', b'{"n":93}']
            assert {each.reason for each in refused} == {"the event has changed on the disk"}
            assert [batch.lines for batch in outbox.unanswered()] == [[b'{"n":11}']]
            assert outbox.waiting_events == 1 and outbox.stats().waiting_events == 2
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b'{"n":15}')
        assert outbox.cut(9, 100, "q", 0) == ([b'{"n":14}', b'{"n":15}'], 16)


def test_a_request_that_may_have_been_sent_is_never_repeated_with_changed_events(path: Path) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b'{"n":11}', b'{"n":12}')
        outbox.cut(2, 100, "p", 0)
    change_on_disk(path, b'{"n":12}', b'{"n":92}')
    with (
        Outbox(path, URL, SPACE) as outbox,
        pytest.raises(OutboxError, match="event 2 has changed on the disk"),
    ):
        outbox.unanswered()


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"producer-7", b"producer-6"), ((20_000).to_bytes(2, "big"), (20_001).to_bytes(2, "big"))],
    ids=["producer", "sequence"],
)
def test_a_request_that_changed_on_the_disk_is_not_sent_as_another_one(
    path: Path, before: bytes, after: bytes
) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b"a", b"b", b"c")
        outbox.cut(2, 100, "producer-7", 20_000)
        outbox.split("producer-7", 20_000, 1, 1, 3)
    content = path.read_bytes()
    path.write_bytes(content.replace(before, after))
    with pytest.raises(OutboxError, match="a request has changed on the disk"):
        Outbox(path, URL, SPACE)
    path.write_bytes(content)
    with Outbox(path, URL, SPACE) as outbox:
        assert [batch.lines for batch in outbox.unanswered()] == [[b"a"], [b"b"]]


def test_an_event_whose_number_changed_on_the_disk_is_not_left_out_of_its_request(path: Path) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b"a", b"b", b"c")
        outbox.cut(2, 100, "p", 0)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE events SET id = 0 WHERE id = 1")
    connection.commit()
    connection.close()
    with Outbox(path, URL, SPACE) as outbox, pytest.raises(OutboxError, match="events 1 to 2 are missing"):
        outbox.unanswered()


def test_a_link_to_an_outbox_is_the_outbox(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with Outbox(tmp_path / "link", URL, SPACE) as outbox:
        add(outbox, b"a")
    with Outbox(path, URL, SPACE) as outbox:
        assert outbox.waiting_events == 1


@pytest.mark.parametrize("version", [1, 2])
def test_an_outbox_of_an_earlier_format_is_upgraded_with_its_events(path: Path, version: int) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b'{"n":1}')
        outbox.cut(9, 100, "p", 0)
    connection = sqlite3.connect(path)
    for table in ("events", "batches")[version - 1 :]:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b'{"n":2}')
        assert outbox.cut(9, 100, "p", 1)[0] == [b'{"n":2}']
        assert [batch.lines for batch in outbox.unanswered()] == [[b'{"n":1}'], [b'{"n":2}']]


def test_files_of_others_and_of_other_versions_are_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE precious (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(OutboxError, match="is an SQLite file of another program"):
        Outbox(path, URL, SPACE)
    assert path.read_bytes() == before
    path.unlink()
    Outbox(path, URL, SPACE).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    connection.close()
    with pytest.raises(OutboxError, match=f"has format {FORMAT + 1}"):
        Outbox(path, URL, SPACE)


def test_a_folder_that_is_missing_is_an_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(OutboxError, match="missing/outbox cannot be used: unable to open"):
        Outbox(tmp_path / "missing" / "outbox", URL, SPACE)


def test_a_full_outbox_accepts_no_event(path: Path) -> None:
    with Outbox(OutboxSettings(path, max_bytes=100), URL, SPACE) as outbox:
        add(outbox, b"x" * 100)
        with pytest.raises(OutboxFull, match="it holds 100 bytes of events, and max_bytes is 100"):
            add(outbox, b"y")
        outbox.cut(1, 100, "p", 0)
        outbox.answered("p", 0, {})
        add(outbox, b"y")
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        OutboxSettings(path, max_bytes=0)


def test_an_outbox_full_of_refused_events_says_so(path: Path) -> None:
    with Outbox(OutboxSettings(path, max_bytes=3), URL, SPACE) as outbox:
        add(outbox, b"bad")
        outbox.cut(1, 100, "p", 0)
        outbox.set_aside("p", 0, "no")
        with pytest.raises(OutboxFull, match="is full of 1 events that the service refused"):
            add(outbox, b"y")
        outbox.forget_refused(outbox.refused())
        add(outbox, b"y")


def test_a_write_that_fails_changes_nothing(path: Path) -> None:
    with Outbox(path, URL, SPACE) as outbox:
        add(outbox, b"a")
        outbox._connection.execute("PRAGMA max_page_count = 1")  # The disk is full.
        with pytest.raises(OutboxError, match=r"cannot be used: .*full"):
            add(outbox, *[b"x" * 5000] * 20)
        assert (outbox.waiting_events, outbox.waiting_bytes) == (1, 1)
        outbox._connection.execute("PRAGMA max_page_count = 1000000")
        add(outbox, b"b")
        assert outbox.cut(10, 100, "p", 0) == ([b"a", b"b"], 2)


def test_after_it_is_closed_it_takes_nothing(path: Path) -> None:
    outbox = Outbox(path, URL, SPACE)
    add(outbox, b"a")
    outbox.close()
    outbox.close()
    with pytest.raises(OutboxError, match="closed"):
        add(outbox, b"b")
    with pytest.raises(OutboxError, match="closed"):
        outbox.sync()
