"""The stream's parser, the ack buffer, and what counts as new after a reconnect."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.client.event_stream import EventStreamParser, Frame
from fieldfare.client.session import ACK_EVERY_S, ACK_MAX, AckBuffer, SeenPositions
from fieldfare.client.verdict import Verdict
from fieldfare.model import Position

HERE, THERE = Position(0, 1, 0), Position(0, 2, 5)

lines = st.sampled_from(
    [
        "id: 0-1-2",
        'data: {"a": 1}',
        "data:{}",
        "data: ",
        "data",
        ": heartbeat",
        "event: deleted",
        "retry: 5",
        "odd",
        "id",
    ]
)


def read_naively(text: str) -> list[Frame]:
    """The format's rules, line by line (HTML Living Standard, 9.2.6)."""
    frames: list[Frame] = []
    fields: dict[str, str] = {}
    data: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        if not line:
            if data:
                frame = Frame(
                    fields.get("id", "").encode(), "\n".join(data).encode(), fields.get("event", "").encode()
                )
                frames.append(frame)
            fields, data = {}, []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = value
            if name == "data":
                data.append(value)
    return frames


@settings(max_examples=drawn(300))
@given(
    frames=st.lists(st.lists(lines, min_size=1, max_size=4), max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
@example(frames=[["id: 0-1-2", 'data: {"a": 1}'], [": heartbeat"]], end="\n", cuts=[])
def test_frames_are_read_whole_wherever_the_chunks_end(
    frames: list[list[str]], end: str, cuts: list[int]
) -> None:
    text = "".join(end.join(frame) + end + end for frame in frames)
    whole = text.encode()
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    parser = EventStreamParser()
    found = [frame for start, stop in pairwise(edges) for frame in parser.feed(whole[start:stop])]
    if end == "\r":
        found += parser.feed(b":")  # A last CR stands for a line end only once no LF follows it.
    assert found == read_naively(text)


def test_acks_are_sent_together_soon_or_at_once_when_many() -> None:
    buffer = AckBuffer()
    assert buffer.due_in_s(0.0) is None
    buffer.ack(HERE, 1.0)
    buffer.ack(THERE, 1.0 + ACK_EVERY_S / 2)
    assert buffer.due_in_s(1.0) == pytest.approx(ACK_EVERY_S)
    assert buffer.due_in_s(2.0) == 0.0
    for index in range(ACK_MAX - 2):
        buffer.ack(Position(0, 9, index), 1.0)
    assert buffer.due_in_s(1.0) == 0.0
    assert len(buffer.take().acks) == ACK_MAX
    assert not buffer.take()


def test_an_ack_outweighs_a_nack_of_the_same_message() -> None:
    buffer = AckBuffer()
    buffer.nack(HERE, 0.0)
    buffer.ack(HERE, 0.0)
    buffer.nack(HERE, 0.0)
    batch = buffer.take()
    assert (batch.acks, batch.said) == ([HERE], {})


@pytest.mark.parametrize("verb", ["nack", "terminate"])
def test_a_late_extend_does_not_override_a_nack(verb: str) -> None:
    """`process` extends what is handled from a thread of its own: a terminated message came again."""
    buffer = AckBuffer()
    buffer.say(HERE, Verdict("extend", 10.0), 0.0)
    buffer.say(HERE, Verdict("extend", 60.0), 0.0)
    assert buffer.take().said == {HERE: Verdict("extend", 60.0)}
    buffer.say(HERE, Verdict("extend", 60.0), 0.0)
    buffer.say(HERE, Verdict(verb), 0.0)
    buffer.say(HERE, Verdict("extend", 60.0), 0.0)
    batch = buffer.take()
    assert batch.said == {HERE: Verdict(verb)}
    buffer.say(HERE, Verdict("extend", 60.0), 0.0)
    buffer.put_back(batch, 0.0)  # it could not be sent
    assert buffer.take().said == {HERE: Verdict(verb)}


def test_acks_whose_sending_failed_are_sent_with_the_next() -> None:
    buffer = AckBuffer()
    buffer.ack(HERE, 0.0)
    failed = buffer.take()
    buffer.nack(THERE, 1.0)
    buffer.put_back(failed, 1.0)
    batch = buffer.take()
    assert (batch.acks, list(batch.said)) == ([HERE], [THERE])


def test_after_a_reconnect_what_was_seen_is_not_shown_again() -> None:
    seen = SeenPositions()
    seen.reconnected()
    assert seen.is_new(HERE) and seen.is_new(THERE)
    seen.show(HERE)
    seen.show(THERE)
    seen.acked(HERE)
    seen.reconnected()
    assert not seen.is_new(HERE) and not seen.is_new(THERE)


def test_a_message_whose_ack_deadline_passed_is_shown_again() -> None:
    seen = SeenPositions()
    seen.reconnected()
    assert seen.is_new(HERE)
    assert not seen.is_new(HERE), "it still waits to be shown: the program is only slow"
    seen.show(HERE)
    assert seen.is_new(HERE), "the service repeats it on the same connection: on purpose"


def test_a_nacked_message_is_shown_again_even_after_a_reconnect() -> None:
    seen = SeenPositions()
    seen.is_new(HERE)
    seen.show(HERE)
    seen.nacked(HERE)
    seen.reconnected()
    assert seen.is_new(HERE)


def test_memory_of_acked_messages_is_bounded() -> None:
    seen = SeenPositions(remember_acked=2)
    for index in range(5):
        seen.acked(Position(0, 0, index))
    assert [seen.is_new(Position(0, 0, index)) for index in range(5)] == [True, True, True, False, False]
