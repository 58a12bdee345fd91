"""Which filters another site needs by what it advertises; what hostile advertisements cost."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.yardstick import slowness

from fieldfare.filters import compile_filter
from fieldfare.filters.covering import region_of as real
from fieldfare.gateway.federation import heeding as heeding_module
from fieldfare.gateway.federation.heeding import (
    ADVERTISED,
    ADVERTISEMENT_MAX_BYTES,
    CONFIRMED,
    LONG_REGIONS_MAX,
    SPACES_MAX,
    Heeding,
    confirmation_of,
    parted,
    statement_of,
)
from fieldfare.gateway.federation.wire import FilterChange, Interest, decode_entry, encoder
from fieldfare.gateway.filter_texts import RefusedFilter, compile_checked
from fieldfare.model import Change
from fieldfare.storage.links import Advertisement, Correspondent
from fieldfare.storage.sqlite.links import LinkStore

VALUES = (-2, 0, 1, 1.5, 3, 7, 10**17, "a", "ab", "b", "", True, False, None)
PARTS = (
    "data.{0} = {1}", "data.{0} <> {1}", "data.{0} < {2}", "data.{0} >= {2}", "data.{0} IN ({1}, {2})",
    "data.{0} IS NULL", "data.{0} IS NOT NULL", "data.{0} LIKE '%a%'", "data.{0} LIKE 'a%'",
    "data.{0} + 1 > {2}", "NOT data.{0} = {1}", "upper(data.{0}) = 'A'", "data.{0} BETWEEN 0 AND {2}",
)  # fmt: skip


@pytest.fixture
def heeding(tmp_path: Path) -> Heeding:
    return Heeding(LinkStore(tmp_path / "links.db"))


def literal(value: Any) -> str:
    if value is None:
        return "'none'"
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


def some_filter(random: Random, depth: int = 2) -> str:
    if depth and random.random() < 0.6:
        parts = [some_filter(random, depth - 1) for _ in range(random.randint(1, 3))]
        return "(" + random.choice([" AND ", " OR "]).join(parts) + ")"
    number = random.choice([each for each in VALUES if type(each) in (int, float)])
    return random.choice(PARTS).format(random.choice("xyz"), literal(random.choice(VALUES)), number)


def some_event(random: Random) -> dict[str, Any]:
    return {"type": "t", "data": {name: random.choice(VALUES) for name in "xyz" if random.random() < 0.9}}


def change(text: str, dialect: str = "sql") -> Change:
    return Change(1, "default", 1, text, dialect)


def advertise(heeding: Heeding, text: str | None, version: int = 1, **given: Any) -> None:
    heeding.take(
        [Advertisement("a", given.get("space", "default"), version, text, given.get("dialect", "sql"))]
    )


def test_a_filter_is_needed_if_an_advertised_event_matches_it(heeding: Heeding) -> None:
    """For random advertisements, filters and events; and a good part of the filters is held back."""
    random, held_back, checked = Random(5), 0, 0
    for version in range(1, 151):
        advertised = some_filter(random)
        advertise(heeding, advertised, version)
        ad = compile_filter(advertised)
        events = [each for each in (some_event(random) for _ in range(40)) if ad.matches(each)]
        for _ in range(8):
            text = some_filter(random)
            is_needed = heeding.needs("a", change(text))
            held_back += not is_needed
            filter = compile_filter(text)
            for event in events:
                checked += 1
                assert is_needed or not filter.matches(event), (advertised, text, event)
    assert checked > 5_000 and held_back > 100


@pytest.mark.parametrize("dialect, text", [
    ("cesql", "type = 'x' AND EXISTS subject"),
    ("eventbridge", '{"type": ["x"]}'),
    ("subscriptions", '[{"exact": {"type": "x"}}]'),
])  # fmt: skip
def test_advertisements_and_filters_of_all_dialects_are_compared(
    heeding: Heeding, dialect: str, text: str
) -> None:
    advertise(heeding, text, dialect=dialect)
    assert heeding.needs("a", change("type = 'x'"))
    assert not heeding.needs("a", change("type = 'y'"))
    assert not heeding.needs("a", change('[{"exact": {"type": "y"}}]', "subscriptions"))
    advertise(heeding, "type = 'x'", 2)
    assert heeding.needs("a", change(text, dialect))


HOSTILE = {
    "no filter": ("data.x <", "sql"),
    "another dialect": ("data.x = 1", "regex"),
    "deeply nested": ("(" * 5_000 + "data.x = 1" + ")" * 5_000, "sql"),
    "deeply nested JSON": ("[" * 8_000 + "]" * 8_000, "subscriptions"),
    "negations": ("NOT " * 4_000 + "data.x = 1", "sql"),
    "long": ("data.x IN (" + ", ".join(map(str, range(100_000))) + ")", "sql"),
    "many alternatives": (" OR ".join(f"(data.a{n} = 1 AND data.b{n} = 2)" for n in range(450)), "sql"),
    "many products": (" AND ".join(f"(data.a{n} = 1 OR data.b{n} = 2)" for n in range(450)), "sql"),
    "many values": ("data.x IN (" + ", ".join(map(str, range(2_500))) + ")", "sql"),
    "surrogates": ("data.x = '\\ud800'", "sql"),
    "encrypted": ("AAAA", "aspe"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_advertisement_does_no_harm(heeding: Heeding, name: str) -> None:
    """It counts as everything, or is compared in bounded time; and its version is confirmed."""
    text, dialect = HOSTILE[name]
    begun_s = time.process_time()
    statement = statement_of(Advertisement("", "default", 7, text, dialect))
    _, stated, _ = parted("a", [statement])
    heeding.take(stated)
    assert heeding.version("a") == 7
    filters = [f"data.x > {n} OR data.a{n} = 1 OR data.y LIKE '%{n}%'" for n in range(100)]
    needed = [heeding.needs("a", change(each)) for each in filters]
    assert time.process_time() - begun_s < 5 * slowness()
    is_usable = len(text) <= ADVERTISEMENT_MAX_BYTES and not isinstance(
        compile_checked(text, dialect, ADVERTISEMENT_MAX_BYTES), RefusedFilter
    )
    assert is_usable or all(needed)


def test_statements_that_no_broker_makes_are_ignored() -> None:
    texts = [
        "",
        "7",
        "[]",
        '[1,"sql"]',
        '["1","sql",null]',
        '[0,"sql",null]',
        f'[{1 << 63},"sql",null]',
        "[" * 9_000,
    ]
    assert parted("a", [FilterChange("default", 0, each, ADVERTISED) for each in texts])[1] == []
    numbers = ["", "x", "-1", "9" * 30, "٣"]
    assert parted("a", [FilterChange("default", 0, each, CONFIRMED) for each in numbers])[2] == 0
    assert parted("a", [FilterChange("default", 0, None, ADVERTISED), confirmation_of(5)])[1:] == ([], 5)


def test_a_broker_of_an_earlier_version_passes_statements_on_and_refuses_them_as_filters() -> None:
    """Its entries have the same fields, and each of these has a dialect that it does not know."""
    statement = statement_of(Advertisement("", "default", 3, "data.x = 1"))
    entry = Interest("a", ({"name": "b"},), 1, (statement, confirmation_of(2)))  # type: ignore[arg-type]
    passed_on = decode_entry(encoder.encode(decode_entry(encoder.encode(
        msgspec.structs.replace(entry, destinations=(("b", 0, 0),))
    ))))  # fmt: skip
    assert isinstance(passed_on, Interest)
    filters, [stated], confirmed = parted("a", passed_on.filters)
    assert (filters, stated.filter, stated.version, confirmed) == ([], "data.x = 1", 3, 2)
    for each in passed_on.filters:
        assert isinstance(compile_checked(each.filter, each.dialect, 1 << 16), RefusedFilter)
        assert each.number == 0, "no filter has it, so its removal removes nothing"


def test_earlier_versions_change_nothing_and_a_restart_knows_all(tmp_path: Path) -> None:
    store = LinkStore(tmp_path / "links.db")
    heeding = Heeding(store)
    advertise(heeding, "data.n < 5", 4)
    advertise(heeding, "data.n > 5", 3)
    advertise(heeding, None, 6, space="other")
    for each in (heeding, Heeding(store)):
        assert each.texts("a") == {"default": "data.n < 5"} and each.version("a") == 6
        assert each.spaces_after("a", 4) == {"other"}
        assert each.needs("a", change("data.n = 1")) and not each.needs("a", change("data.n = 9"))
        assert each.needs("b", change("data.n = 9"))
    store.forget(Correspondent("a", is_removed=True))
    heeding.forget("a")
    for each in (heeding, Heeding(store)):
        assert each.version("a") == 0 and each.needs("a", change("data.n = 9"))


def test_a_site_with_too_many_spaces_advertises_everything_in_the_others(heeding: Heeding) -> None:
    for number in range(SPACES_MAX + 3):
        advertise(heeding, "data.n = 1", number + 1, space=f"s{number:04}")
    assert len(heeding.texts("a")) == SPACES_MAX - 1, "the last one counts as everything"
    assert heeding.version("a") == SPACES_MAX + 3
    late = Change(1, f"s{SPACES_MAX + 1:04}", 1, "data.n = 2", "sql")
    assert heeding.needs("a", late)


def test_spaces_that_advertise_everything_again_make_room_once_all_their_filters_are_sent(
    tmp_path: Path,
) -> None:
    """A site that creates and deletes spaces had used up its thousand for good."""
    store = LinkStore(tmp_path / "links.db")
    heeding = Heeding(store)
    spaces = [f"s{number:04}" for number in range(SPACES_MAX)]
    heeding.take([Advertisement("a", each, 1, "data.n = 1") for each in spaces])
    heeding.take([Advertisement("a", each, 2, None) for each in spaces[:9]])
    heeding.take([Advertisement("a", "t", 3, "data.n = 1")], 1)
    assert len(heeding.texts("a")) == SPACES_MAX - 10, "their filters may be missing: it is everything"
    heeding.take([Advertisement("a", "u", 4, "data.n = 1")], 2)
    for each in (heeding, Heeding(store)):
        assert each.texts("a")["u"] == "data.n = 1" and each.version("a") == 4
        assert each.spaces_after("a", 0) == {*spaces[9:], "u"}


def test_versions_that_go_back_take_no_room(tmp_path: Path) -> None:
    """A hostile site states everything in new spaces, each with a version that was heeded long ago."""
    store = LinkStore(tmp_path / "links.db")
    heeding = Heeding(store)
    heeding.take([Advertisement("a", f"s{each:04}", 9, "data.n = 1") for each in range(SPACES_MAX - 1)])
    for first in (0, 10):
        heeding.take([Advertisement("a", f"x{first + each}", 1, None) for each in range(9)], 9)
    for each in (heeding, Heeding(store)):
        assert len(each.texts("a")) == SPACES_MAX - 1 and each.version("a") == 9


def test_advertisements_are_compiled_only_where_there_are_filters(
    heeding: Heeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand costly ones of one site took 100 s of all exchange, and of the next start."""
    made = []
    monkeypatch.setattr(heeding_module, "region_of", lambda filter: made.append(filter.text) or real(filter))
    heeding.take([Advertisement("a", f"s{each}", each + 1, f"data.n = {each}") for each in range(100)])
    assert made == []
    assert not heeding.needs("a", Change(1, "s7", 1, "data.n = 8", "sql"))
    assert made[:1] == ["data.n = 7"] and len(made) <= 2
    heeding.take([Advertisement("a", "s7", 101, "data.n < 9")])
    assert heeding.needs("a", Change(1, "s7", 1, "data.n = 8", "sql"))


def test_a_message_with_many_statements_is_stored_in_one_transaction(tmp_path: Path) -> None:
    """Each of them waited for the disk, and with it all that comes from others."""
    store = LinkStore(tmp_path / "links.db")
    calls, advertise = [], store.advertise
    store.advertise = lambda *given: (calls.append(given), advertise(*given))  # type: ignore[method-assign]
    heeding = Heeding(store)
    heeding.take([Advertisement("a", f"s{number}", number + 1, "data.n = 1") for number in range(SPACES_MAX)])
    assert len(calls) == 1 and len(Heeding(store).texts("a")) == SPACES_MAX


def test_the_filters_that_are_held_back_are_counted_once_for_a_revision(
    heeding: Heeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    advertise(heeding, "data.n < 5")
    versions = [change(f"data.n = {n}") for n in range(10)]
    ever = float("inf")
    assert heeding.count_held_back("a", 1, lambda: versions, 0.0) is None, "there is no time to count"
    assert heeding.count_held_back("a", 1, lambda: versions, ever) == 5
    assert heeding.count_held_back("a", 1, list, ever) == 5
    advertise(heeding, "data.n < 7", 2)
    monkeypatch.setattr(heeding_module.time, "monotonic", lambda: 1e12)
    assert heeding.count_held_back("a", 1, lambda: versions, ever) == 3
    assert heeding.count_held_back("b", 1, lambda: versions, ever) == 0


def test_few_long_filters_are_kept_compiled(heeding: Heeding) -> None:
    """One of 16 KB takes a megabyte: a space with many of them, 16 GB."""
    advertise(heeding, "data.n = 1")
    for start in range(LONG_REGIONS_MAX + 20):
        values = ", ".join(str(start + number) for number in range(100))
        assert heeding.needs("a", change(f"data.n IN ({values})")) is (start <= 1)
    assert heeding_module._long_region.cache_info().currsize == LONG_REGIONS_MAX


def test_one_request_at_a_time_counts_the_filters_that_are_held_back(heeding: Heeding) -> None:
    """Of many filters, each look at the sites took a thread for minutes, until the links had none."""
    advertise(heeding, "data.n < 5")
    ever, inside = float("inf"), []

    def versions() -> list[Change]:
        inside.append(heeding.count_held_back("a", 1, list, ever))
        return [change("data.n = 7")]

    assert heeding.count_held_back("a", 1, versions, ever) == 1
    assert inside == [None] and heeding.count_held_back("a", 2, versions, ever) is not None
