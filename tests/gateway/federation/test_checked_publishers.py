"""Publishers are checked against advertisements: a request to its end, and none at the cost of others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_support import event

from fieldfare.filters import compile_filter
from fieldfare.gateway.federation import advertisements as module
from fieldfare.gateway.federation.advertisements import Advertisements, Stated
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.heeding import Heeding
from fieldfare.gateway.federation.unions import Unions
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import DecodedEvents
from fieldfare.storage.sqlite.links import LinkStore

COSTLY = " OR ".join(f"data.n = {number}" for number in range(900))


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The advertisements of a site without others."""
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    store = LinkStore(tmp_path / "links.db")
    clusters = Clusters("a", store.identity, ("",), {}, 1, ())
    correspondence = Correspondence({}, (), ())
    unions = Unions(store, clusters, correspondence, Heeding(store))
    made = Advertisements(store, clusters, correspondence, unions, lambda space: None)
    yield made
    made.close()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The space of each check, and whether it was on the event loop."""
    made: list[tuple[str, bool]] = []
    check: Callable[..., int | None] = module._first_that_waits

    def noted(stated: Sequence[Stated], *given: Any) -> int | None:
        made.append((stated[0].row.space, threading.current_thread() is threading.main_thread()))
        return check(stated, *given)

    monkeypatch.setattr(module, "_first_that_waits", noted)
    return made


def events(*numbers: int) -> DecodedEvents:
    lines = [json.dumps(event(1, {"n": number})).encode() + b"\n" for number in numbers]
    return DecodedEvents(b"".join(lines), range(len(numbers)))


async def append() -> str:
    return "appended"


def test_a_request_that_is_cancelled_ends_with_its_append(found: Advertisements) -> None:
    """It counted as open until the next start: no narrower advertisement was told to others."""

    async def work() -> None:
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def slowly() -> None:
            await released

        task = asyncio.create_task(found.publish("default", events(1), slowly))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await found.state("default", compile_filter("data.n > 5"))
        assert not await found.settle() and not found.told, "its event may still be appended"
        released.set_result(None)
        await asyncio.gather(*found._open)
        await asyncio.sleep(0)
        assert await found.settle()
        assert [row.version for row in found.told] == [1]

    asyncio.run(work())


def test_only_what_is_cheap_is_checked_on_the_event_loop(
    found: Advertisements, checks: list[tuple[str, bool]]
) -> None:
    """A costly advertisement and a small request held it for half a second."""

    async def work() -> None:
        await found.state("cheap", compile_filter("data.n < 900"))
        await found.state("costly", compile_filter(COSTLY))
        for space in ("cheap", "costly", "none"):
            assert await found.publish(space, events(*range(300)), append) == "appended"

    asyncio.run(work())
    assert set(checks) == {("cheap", True), ("costly", False)}


def test_a_long_check_gives_way_to_other_spaces(
    found: Advertisements, checks: list[tuple[str, bool]]
) -> None:
    async def work() -> None:
        for space in ("long", "short"):
            await found.state(space, compile_filter(COSTLY))
        long = asyncio.create_task(found.publish("long", events(*range(850), *range(850)), append))
        while not checks:
            await asyncio.sleep(0.001)
        await found.publish("short", events(*range(20)), append)
        assert not long.done()
        await long

    asyncio.run(work())
    spaces = [space for space, _ in checks]
    assert spaces.count("long") > 20 and spaces.index("short") < len(spaces) - 10


def test_the_events_of_a_request_share_the_steps_of_a_record(found: Advertisements) -> None:
    """As in the pipeline: ten thousand events of half a second each took a thread for more than an hour."""
    pairs = "ANY x IN data.n SATISFIES (ANY y IN data.n SATISFIES (x + y = 1000))"

    async def work() -> None:
        await found.state("default", compile_filter(pairs))
        line = json.dumps(event(1, {"n": list(range(600))})).encode() + b"\n"
        assert await found.publish("default", DecodedEvents(line, range(1)), append) == "appended"
        with pytest.raises(HttpProblem, match="does not match"):
            await found.publish("default", DecodedEvents(200 * line, range(200)), append)

    asyncio.run(work())


def test_an_event_that_is_not_advertised_is_named_before_one_that_waits(
    found: Advertisements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they are in different slices."""
    monkeypatch.setattr(module, "INLINE_WORK", 0)
    monkeypatch.setattr(module, "SLICE_WORK", 500)

    async def refused(*numbers: int) -> tuple[int, Any]:
        with pytest.raises(HttpProblem) as caught:
            await found.publish("default", events(*numbers), append)
        return caught.value.status, caught.value.place["index"]

    async def work() -> None:
        await found.state("default", compile_filter("data.n < 10"))
        await found.settle()
        monkeypatch.setattr(found, "_confirmed", lambda: 1)
        await found.state("default", compile_filter("data.n < 20"))
        await found.settle()
        assert await refused(*range(8), 15, *range(8), 16) == (503, 8)
        assert await refused(*range(8), 15, *range(8), 25, 26) == (400, 17)

    asyncio.run(work())
