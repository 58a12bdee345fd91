"""What an edge states: unions of advertisements, their versions, and what may be confirmed when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from test_heeding import some_event, some_filter

from fieldfare.filters import compile_filter
from fieldfare.gateway.federation import unions as unions_module
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.heeding import ADVERTISEMENT_MAX_BYTES, Heeding, parted
from fieldfare.gateway.federation.interest import InterestSender
from fieldfare.gateway.federation.unions import EVERYTHING, Unions, union_of
from fieldfare.gateway.federation.wire import Row
from fieldfare.storage.links import Advertisement, Correspondent
from fieldfare.storage.sqlite.links import LinkStore

PEERS = {"a": "N", "b": "N", "c": "S"}


class Edge:
    """An edge of two clusters; a and b are in one, c in the other."""

    def __init__(self, path: Path, clusters: str = "NS") -> None:
        self.store = LinkStore(path)
        peers = {name: its for name, its in PEERS.items() if its in clusters}
        rows = [Row(name, f"id of {name}", 1, ("e",), its) for name, its in peers.items()]
        self.clusters = Clusters("e", self.store.identity, clusters, peers, 1, rows)
        self.correspondence = Correspondence({}, (), ())
        self.heeding = Heeding(self.store)
        self.unions = Unions(self.store, self.clusters, self.correspondence, self.heeding)
        self.own: tuple[Advertisement, ...] = ()

    def state(self, name: str, version: int, text: str | None, space: str = "default") -> None:
        self.heeding.take([Advertisement(name, space, version, text)])

    def advertise(self, text: str | None, version: int) -> None:
        self.own = (Advertisement("", "default", version, text),)

    def refresh(self) -> None:
        self.unions.refresh(self.own, max((row.version for row in self.own), default=0))

    def told(self, cluster: str) -> list[tuple[int, str | None]]:
        self.refresh()
        return [(row.version, row.filter) for row in self.unions.told(cluster)]

    def confirm(self, name: str, version: int) -> None:
        state = replace(self.correspondence.get(name), advertised=version, confirmed=version)
        self.correspondence.put([state])
        self.refresh()


@pytest.fixture
def edge(tmp_path: Path) -> Edge:
    return Edge(tmp_path / "links.db")


def test_a_union_matches_what_any_of_them_matches() -> None:
    random = Random(7)
    matched = 0
    for _ in range(60):
        texts = [some_filter(random) for _ in range(random.randint(1, 4))]
        text, dialect = union_of([(text, "sql") for text in texts])
        union = compile_filter(str(text), dialect)
        for event in (some_event(random) for _ in range(40)):
            expected = any(compile_filter(each).matches(event) for each in texts)
            matched += expected
            assert union.matches(event) or not expected, (texts, event)
    assert matched > 300


def test_unions_that_cannot_be_written_are_everything() -> None:
    one, other = ("data.x = 1", "sql"), ("data.x = 2 -- a comment", "sql")
    assert union_of([one, other, one]) == ("(data.x = 1\n) OR (data.x = 2 -- a comment\n)", "sql")
    assert union_of([other, one]) == union_of([one, other])
    assert union_of([one, ("data.x IN (1, 2)", "sql")]) == ("data.x IN (1, 2)", "sql")
    assert union_of([one, ("false", "sql")]) == one
    json = ('[{"exact": {"type": "x"}}]', "subscriptions")
    assert union_of([json, json]) == json
    for given in ([one, EVERYTHING], [one, json], [one, ("data.x <", "sql")], [EVERYTHING]):
        assert union_of(given) == EVERYTHING
    long = [(f"data.x = '{'y' * (ADVERTISEMENT_MAX_BYTES - 100)}{end}'", "sql") for end in "ab"]
    assert union_of(long) == EVERYTHING and union_of(long[:1]) == long[0]


def test_each_cluster_is_told_what_comes_from_elsewhere(edge: Edge) -> None:
    edge.state("a", 1, "data.n = 1")
    assert edge.told("S") == [], "the edge itself publishes everything, and was never told otherwise"
    edge.advertise("data.n = 0", 5)
    assert edge.told("S") == [(7, None)], "b has stated nothing"
    edge.state("b", 4, "data.n = 2")
    assert edge.told("N") == [(6, None)]
    edge.state("c", 3, "data.n = 3")
    [(version, text)] = edge.told("N")
    assert (version, text) == (9, "(data.n = 0\n) OR (data.n = 3\n)")
    assert edge.told("S") == [(8, "(data.n = 0\n) OR (data.n = 1\n) OR (data.n = 2\n)")]
    edge.state("c", 4, "data.n = 3", "another space")
    assert edge.told("N") == [(version, text)], "what has not changed is not told again"


def test_unions_keep_their_versions_over_a_start(edge: Edge, tmp_path: Path) -> None:
    edge.advertise("false", 5)
    edge.state("c", 3, "data.n = 3")
    told = edge.told("N")
    edge.store.close()
    again = Edge(tmp_path / "links.db")
    assert again.unions.version == edge.unions.version
    again.own = edge.own
    assert again.told("N") == told
    again.advertise(None, again.unions.version + 1)
    [(version, text)] = again.told("N")
    assert text is None and version > told[0][0]
    again.own = ()
    assert again.told("N") == [], "no broker goes by an earlier one"
    again.store.close()
    assert Edge(tmp_path / "links.db").told("N") == []


def test_statements_are_told_by_version(edge: Edge) -> None:
    """The last one of a message is confirmed: an earlier one must not follow in the next message."""
    told = [
        Advertisement("", f"space {number}", number, f"data.n = '{'y' * 9_000}'") for number in range(2, 90)
    ]
    told.sort(key=lambda row: -row.version)
    advertisements: Any = SimpleNamespace(told_to=lambda _: told, ready=lambda _: 0)
    registry: Any = None
    sender = InterestSender(
        registry, edge.store, edge.clusters, edge.correspondence, advertisements, edge.heeding
    )
    pages, known = sender._statements(Correspondent("a", messages=1, advertised=1), 1)
    stated = [parted("e", page)[1] for page, _ in pages]
    assert len(stated) > 1
    assert [row.version for rows in stated for row in rows] == list(range(2, 90))
    assert (known.advertised, known.confirmed) == (89, 0)


def test_a_broker_that_is_no_edge_any_more_forgets_its_unions(edge: Edge, tmp_path: Path) -> None:
    """It may state others meanwhile: if it is an edge again, it must tell them all."""
    edge.advertise("false", 5)
    edge.state("c", 3, "data.n = 3")
    [(version, text)] = edge.told("N")
    edge.store.close()
    Edge(tmp_path / "links.db", "N").store.close()
    again = Edge(tmp_path / "links.db")
    again.advertise("false", version + 1)
    assert again.told("N") == [(version + 2, text)]


def test_a_broker_is_confirmed_once_those_behind_the_edge_have(edge: Edge) -> None:
    def ready() -> list[Any]:
        return [edge.unions.ready(name) for name in "abc"]

    assert ready() == [None] * 3
    edge.refresh()
    assert ready() == [0, 0, 0], "nothing is told that any would have to confirm"
    edge.correspondence.put([Correspondent("c", advertised=1)])
    edge.advertise("false", 1)
    for name in "abc":
        edge.state(name, 1, f"data.n = {ord(name)}")
    [(version, _)] = edge.told("S")
    edge.confirm("c", version - 1)
    assert ready() == [0, 0, 1], "a and b were told nothing, and send all filters"
    edge.state("a", 2, "data.n > 0")
    [(later, _)] = edge.told("S")
    edge.confirm("c", version)
    assert ready() == [1, 1, 1], "as far as the union was told"
    edge.confirm("c", later)
    assert ready() == [2, 1, 1]


def test_a_change_does_not_wait_for_those_that_follow(edge: Edge) -> None:
    """Else a broker whose neighbours change all the time would never be confirmed."""
    edge.advertise("false", 1)
    edge.state("b", 1, "data.n = 0")
    edge.state("a", 1, "data.n = 1")
    edge.told("S")
    edge.correspondence.put([Correspondent("c", advertised=1, confirmed=0)])
    edge.state("a", 2, "data.n = 2")
    for number in range(3, 9):
        [(version, _)] = edge.told("S")
        edge.state("b", number, f"data.n = {number * 10}")
        edge.refresh()
        edge.confirm("c", version)
    assert edge.unions.ready("a") == 2
    assert (edge.unions.ready("b") or 0) >= 7


def test_an_edge_accepts_events_once_the_union_of_their_space_is_confirmed(edge: Edge) -> None:
    """The unions of a change go out in several messages: the first ones may be confirmed before the last."""
    for name in "abc":
        edge.heeding.take([Advertisement(name, space, 1, "false") for space in ("one", "two")])
    given = edge.store, edge.clusters, edge.correspondence, edge.unions, lambda _: None
    advertisements = Advertisements(*given)

    def pending() -> list[bool]:
        return [advertisements.document(space).is_pending for space in ("one", "two")]

    async def state(text: str) -> None:
        for space in ("one", "two"):
            await advertisements.state(space, compile_filter(text))
        await advertisements.settle()

    async def confirm(number: int) -> list[bool]:
        """All confirm their union of one of the spaces, and are told both."""
        for name in "abc":
            versions = sorted(row.version for row in advertisements.told_to(name))
            edge.correspondence.put(
                [Correspondent(name, advertised=versions[-1], confirmed=versions[number])]
            )
        await advertisements.settle()
        return pending()

    async def course() -> None:
        await state("data.n = 1")
        assert await confirm(1) == [False, False]
        await state("data.n > 0")
        assert pending() == [True, True]
        assert await confirm(0) == [True, True]
        assert await confirm(1) == [False, False]

    try:
        asyncio.run(course())
    finally:
        advertisements.close()


def test_unions_are_renewed_only_where_something_has_changed(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each statement of a neighbour costs as much as all spaces and brokers together."""
    renewed: list[set[Any]] = []
    monkeypatch.setattr(
        unions_module, "union_of", lambda parts: renewed.append(set(parts)) or union_of(parts)
    )
    edge.own = tuple(Advertisement("", f"space {number}", number, "false") for number in (1, 2, 3))
    for name in "abc":
        edge.heeding.take([Advertisement(name, f"space {n}", n, f"data.n = {n}") for n in (1, 2, 3)])
    edge.refresh()
    assert len(renewed) == 6
    renewed.clear()
    edge.state("a", 4, "data.n = 1", "a space that does not exist")
    edge.refresh()
    assert renewed == []
    edge.state("a", 5, "data.n = 7", "space 2")
    edge.refresh()
    assert renewed == [{("false", "sql"), ("data.n = 7", "sql"), ("data.n = 2", "sql")}]
