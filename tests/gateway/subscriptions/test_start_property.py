"""In any history, subscriptions that begin in the past get the matches of a naive evaluation."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, Running, event, run, running
from replay_support import ReplayPipeline

from doses import drawn
from fieldfare.filters import compile_filter
from fieldfare.runtimes.spark import replay_planner

SPACES = ("default", "other")


class History:
    """All publications and requests, in order, and the messages that each subscription must get."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[str, int, list[dict[str, Any]]]] = {}
        """Space, stamp and events of each record, by its offset."""
        self.versions: dict[str, list[tuple[int, str]]] = {}
        """The revision and the filter of each version of a subscription."""
        self.starts: dict[str, tuple[int, int]] = {}

    def expected(self, id: str) -> list[str]:
        """The positions that a subscription of the space `default` is to be given, in order."""
        versions = self.versions[id]
        found = []
        for offset, (space, stamp, events) in sorted(self.records.items()):
            # Events before the first version are matched against it, but no events before the start.
            text = next((text for revision, text in reversed(versions) if revision <= stamp), versions[0][1])
            for index, each in enumerate(events):
                is_met = space == "default" and compile_filter(text).matches(each)
                if is_met and (offset, index) >= self.starts[id]:
                    found.append(f"0-{offset}-{index}")
        return found


class Walk:
    """A gateway with a random history, which is closed and opened from time to time."""

    def __init__(
        self, r: Running, chance: random.Random, history: History, given: dict[str, list[str]]
    ) -> None:
        self.r, self.chance, self.history, self.given = r, chance, history, given
        self.replays = ReplayPipeline(r.gateway)

    def filter(self) -> str:
        return f"data.n % {self.chance.randint(2, 5)} = {self.chance.randint(0, 1)}"

    async def publish(self) -> None:
        space = self.chance.choice((*SPACES, "default"))
        events = [event(n, {"n": self.chance.randint(0, 99)}) for n in range(self.chance.randint(1, 6))]
        answer = await self.r.publish(*events, space=space)
        self.history.records[answer["offset"]] = space, answer["stamp"], events

    async def create(self) -> None:
        if len(self.given) == 5:
            return
        id, end = f"s{len(self.given)}", len(self.history.records)
        offset = self.chance.randint(0, end)
        size = len(self.history.records[offset][2]) if offset < end else 1
        start = self.chance.choice(["earliest", f"0-{offset}-{self.chance.randrange(size)}"])
        text = self.filter()
        answer = await self.r.client.put(f"{SUBSCRIPTIONS}/{id}", json={"filter": text, "start": start})
        assert answer.status_code == 201, answer.text
        _, at, index = map(int, answer.json()["start"].split("-"))
        self.history.starts[id] = at, index
        self.history.versions[id] = [(answer.json()["revision"], text)]
        self.given[id] = []

    async def create_in_a_crowd(self) -> None:
        """It is not known in advance which of these events are earlier."""
        await asyncio.gather(*(self.publish() for _ in range(3)), self.create(), self.publish())

    async def replace(self) -> None:
        if self.given:
            id, text = self.chance.choice(list(self.given)), self.filter()
            answer = await self.r.subscribe(id, text)
            if answer["revision"] != self.history.versions[id][-1][0]:
                self.history.versions[id].append((answer["revision"], text))

    async def match(self) -> None:
        self.r.pipeline.step(self.chance.randint(1, 4))

    async def match_replay(self) -> None:
        self.replays.round(self.chance.randint(1, 3))

    async def pull(self) -> None:
        if self.given:
            id = self.chance.choice(list(self.given))
            messages = await self.r.pull(id, max=self.chance.randint(1, 7))
            if messages and self.chance.random() < 0.9:
                positions = [each["position"] for each in messages]
                await self.r.ack(id, *positions)
                self.given[id] += positions
            elif messages:
                await self.r.client.post(
                    f"{SUBSCRIPTIONS}/{id}/nack", json={"positions": [each["position"] for each in messages]}
                )

    async def lose(self) -> None:
        """Blocks of the past get lost, as a power failure might have it, and the gateway looks after that."""
        blocks = sorted(self.r.gateway.settings.folder.replays.rglob("*.arrow"))
        if blocks:
            self.chance.choice(blocks).unlink()
            for _ in range(2):
                await self.r.gateway.background.maintain()
            self.replays = ReplayPipeline(self.r.gateway)  # whose predecessor was killed

    async def go(self, steps: int) -> None:
        verbs = [self.publish, self.match, self.match_replay, self.pull]
        seldom = [self.create, self.create_in_a_crowd, self.replace, self.lose]
        for _ in range(steps):
            await self.chance.choice(seldom if self.chance.random() < 0.2 else verbs)()

    async def finish(self) -> None:
        end = len(self.history.records)
        while self.r.pipeline.step() < end:
            pass
        self.replays.finish()
        await self.r.gateway.tail.catch_up()
        for id, given in self.given.items():
            while messages := await self.r.pull(id):
                positions = [each["position"] for each in messages]
                await self.r.ack(id, *positions)
                given += positions
            # A nack puts some back: order is of what is given first.
            assert sorted(given, key=_order) == self.history.expected(id), id


def _order(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split("-")))


@pytest.mark.parametrize("seed", range(drawn(30)))
def test_every_match_is_delivered_once_before_at_and_after_the_boundary(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_planner, "PIECE_EVENTS", 5)
    monkeypatch.setattr(replay_planner, "LOOKED_AGAIN_S", 0.0)

    async def work() -> None:
        chance, history, given = random.Random(seed), History(), {}
        for life in range(3):
            async with running(tmp_path) as r:
                if not life:
                    await r.client.post("/v1/spaces", json={"name": "other"})
                walk = Walk(r, chance, history, given)
                await walk.go(60)
                if life == 2:
                    await walk.finish()

    run(work)
