"""Destination lists as bitmaps: their size, what becomes of them under changes, and hostile ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from routing_support import World

from fieldfare.effects import Received, Send, Tell
from fieldfare.routing.messages import BROKERS_MAX, LinkRow
from fieldfare_lab.routing import (
    Broker,
    BrokerSettings,
    Fbr,
)
from fieldfare_lab.routing.destinations import (
    BITMAP_BYTES_MAX,
    HEAD_BYTES,
    Numbering,
)
from fieldfare_lab.routing.messages import (
    Ack,
    Forward,
    LinkState,
    Origin,
    Publication,
    Refused,
    Routed,
)

THOUSAND = Numbering(tuple([f"broker-{number:04}" for number in range(1000)]))
RECORD = Publication(Origin("B", 0, 7, 3), 5)


def numbering(count: int) -> Numbering:
    return Numbering(tuple([f"b{number}" for number in range(count)]))


@given(
    st.integers(0, 2**32), st.integers(1, 1100), st.sampled_from((0.0, 0.003, 0.03, 0.3, 0.5, 0.9, 0.99, 1.0))
)
def test_any_list_is_decoded_to_what_was_encoded(seed: int, count: int, share: float) -> None:
    rng, found = Random(seed), numbering(count)
    names = [name for name in found.names if rng.random() < share]
    rng.shuffle(names)
    bitmap = found.encode(1, 2, names)
    assert bitmap is not None and found.fits(1, 2, bitmap)
    assert sorted(found.decode(bitmap) or ()) == sorted(names)
    assert len(bitmap) <= HEAD_BYTES + (count + 7) // 8


@given(st.integers(0, 2**32), st.integers(0, 1000))
def test_a_list_of_a_thousand_brokers_takes_at_most_130_bytes(seed: int, length: int) -> None:
    names = Random(seed).sample(THOUSAND.names, length)
    bitmap = THOUSAND.encode(2**63 - 1, 2**63 - 1, names)
    assert bitmap is not None and len(bitmap) <= 130


@pytest.mark.parametrize(
    "names, size",
    [
        ((), 0),
        (THOUSAND.names[:1], 2),
        (THOUSAND.names[-1:], 3),
        (THOUSAND.names, 3),
        (THOUSAND.names[::2], 125),
    ],
    ids=["none", "first", "last", "all", "every second"],
)
def test_short_and_complete_lists_are_small(names: tuple[str, ...], size: int) -> None:
    bitmap = THOUSAND.encode(1, 1, names)
    assert bitmap is not None and len(bitmap) == HEAD_BYTES + size
    assert THOUSAND.decode(bitmap) == names


def test_a_bitmap_fits_only_its_numbering_and_its_entry() -> None:
    bitmap = THOUSAND.encode(1, 1, THOUSAND.names[:300:7])
    assert bitmap is not None and THOUSAND.fits(1, 1, bitmap)
    assert not THOUSAND.fits(1, 2, bitmap) and not THOUSAND.fits(2, 1, bitmap)
    assert not Numbering(THOUSAND.names[:-1]).fits(1, 1, bitmap)
    assert not Numbering((*THOUSAND.names[:-1], "x")).fits(1, 1, bitmap)
    for bit in range(8 * len(bitmap)):
        changed = bytearray(bitmap)
        changed[bit >> 3] ^= 1 << (bit & 7)
        assert not THOUSAND.fits(1, 1, bytes(changed))


def forged(found: Numbering, body: bytes, is_runs: bool) -> bytes:
    """A bitmap of any body with the right tag."""
    return found._head(1, 1, 0x80 if is_runs else 0, body) + body


@given(st.integers(1, 40), st.binary(max_size=12), st.booleans())
def test_a_body_that_is_not_encoded_so_is_not_decoded(count: int, body: bytes, is_runs: bool) -> None:
    found = numbering(count)
    bitmap = forged(found, body, is_runs)
    assert found.fits(1, 1, bitmap)
    names = found.decode(bitmap)
    if names is not None and is_runs:
        assert found.encode(1, 1, names) == bitmap
    elif names is not None:
        assert found._bits([found.names.index(name) for name in names]) == body


HOSTILE = {
    "a bit beyond the members": (b"\xff" * 2, False),
    "a bomb of one run": (b"\x00" + b"\xff" * 8 + b"\x7f", True),
    "a run of no brokers": (b"\x01\x00\x01\x01", True),
    "a run that is cut off": (b"\x01\x81", True),
    "too few bits": (b"\xaa", False),
    "runs longer than bits": (b"\x00\x01", True),
    "too many bits": (b"\xaa\xaa\x00", False),
}


@pytest.fixture
def broker() -> Broker:
    """B0, with a neighbour B; there are 12 brokers."""
    world = World(0, settings=BrokerSettings(list_names_max=0))
    for name in ("B", "B0"):
        world.add(name)
    world.link("B", "B0")
    assert world.settle()
    found = world.sites["B0"].broker
    assert found is not None
    rows = tuple(LinkRow(f"C{number}", "c", 1, ()) for number in range(10))
    found.handle(Received("B", LinkState("", rows)), 100.0)
    return found


def entry(
    broker: Broker, bitmap: bytes | None, destinations: tuple[str, ...] = (), group: str = ""
) -> Forward:
    link = broker.state.multicast.links["B"]
    routed = Routed(group, "B", 3, destinations, RECORD)
    return Forward(link.received_session, link.watermark + 1, routed, bitmap)


def refusals(broker: Broker, forward: Forward) -> list[str]:
    effects = broker.handle(Received("B", forward), 100.0)
    assert not any(isinstance(each, Send) for each in effects)
    return [each.news.reason for each in effects if isinstance(each, Tell) and isinstance(each.news, Refused)]


@pytest.mark.parametrize("body, is_runs", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_bitmap_is_refused(broker: Broker, body: bytes, is_runs: bool) -> None:
    known = broker.state.numberings_of("")[0]
    link = broker.state.multicast.links["B"]
    head = known._head(link.received_session, link.watermark + 1, 0x80 if is_runs else 0, body)
    watermark = link.watermark
    (reason,) = refusals(broker, entry(broker, head + body))
    assert "not valid" in reason
    assert link.watermark == watermark


def test_bitmaps_that_are_too_long_or_not_the_only_list_are_refused(broker: Broker) -> None:
    assert BITMAP_BYTES_MAX == HEAD_BYTES + BROKERS_MAX // 8
    assert "1255 bytes" in refusals(broker, entry(broker, b"x" * (BITMAP_BYTES_MAX + 1)))[0]
    assert "bytes" in refusals(broker, entry(broker, b""))[0]
    assert "bytes" in refusals(broker, entry(broker, "text"))[0]  # type: ignore[arg-type]
    assert "names and a bitmap" in refusals(broker, entry(broker, b"x" * 9, ("B0",)))[0]
    assert "no cluster 'other'" in refusals(broker, entry(broker, b"x" * 9, group="other"))[0]
    empty = broker.state.numberings_of("")[0].encode(1, 1, ())
    link = broker.state.multicast.links["B"]
    link.received_session, link.watermark = 1, 0
    assert "empty" in refusals(broker, entry(broker, empty))[0]


def test_fbr_refuses_bitmaps() -> None:
    world = World(0, lambda _: Fbr())
    for name in "AB":
        world.add(name)
    world.link("A", "B")
    assert world.settle()
    found = world.sites["A"].broker
    assert found is not None
    assert "no cluster" in refusals(found, entry(found, b"x" * 9))[0]


def test_an_entry_of_an_unknown_numbering_is_accepted_once_it_is_repeated_with_names(broker: Broker) -> None:
    overlay = broker.state.multicast.overlays[""]
    others = Numbering((*overlay.members(), "D"))
    first = entry(broker, None)
    bitmap = others.encode(first.session, first.number, ("B0", "C1"))
    assert refusals(broker, replace(first, bitmap=bitmap)) == []
    assert broker.counters.unknown_lists == 1
    assert broker.state.multicast.links["B"].watermark == first.number - 1
    named = replace(first, routed=replace(first.routed, destinations=("B0", "C1")))
    effects = broker.handle(Received("B", named), 100.0)
    assert Send("B", Ack(first.session, first.number)) in effects


def test_an_entry_of_the_numbering_before_a_change_is_accepted(broker: Broker) -> None:
    overlay = broker.state.multicast.overlays[""]
    first = entry(broker, None)
    bitmap = broker.state.numberings_of("")[0].encode(first.session, first.number, ("B0",))
    broker.handle(Received("B", LinkState("", (LinkRow("A", "a", 1, ()),))), 100.0)
    assert overlay.members()[0] == "A"
    effects = broker.handle(Received("B", replace(first, bitmap=bitmap)), 100.0)
    assert Send("B", Ack(first.session, first.number)) in effects


def test_long_lists_are_sent_as_bitmaps_and_short_ones_as_names() -> None:
    world = World(0)
    names = [f"site-{number}" for number in range(15)]
    for name in names:
        world.add(name)
    for one, other in pairwise(names):
        world.link(one, other)
    assert world.settle()
    for name in names:
        world.subscribe(name, "s", 0, 50)
    assert world.settle()
    found: list[tuple[bool, int]] = []

    def write(way: str, name: str, message: object) -> None:
        inner = message.message if isinstance(message, Received) else None
        if way == "to" and isinstance(inner, Forward) and isinstance(inner.routed.content, Publication):
            found.append((inner.bitmap is not None, len(inner.routed.destinations)))

    world.write = write
    world.publish(names[0], 7)
    assert world.settle()
    assert found == [(True, 0)] * 6 + [(False, length) for length in range(8, 0, -1)]
    assert world.faults() == []
    assert all(len(world.sites[name].delivered) == 1 for name in names)
