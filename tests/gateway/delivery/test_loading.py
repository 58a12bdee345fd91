"""Reading the saved state of many deliveries at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from gateway_support import run

from fieldfare.delivery.attempts import LATE
from fieldfare.delivery.keys import key_of
from fieldfare.gateway.delivery.loading import LOADED_BATCH_SIZE, Loader, Saved
from fieldfare.model import Cursor, DeadLetter, Position, Subscription
from fieldfare.storage.errors import RegistryError

ROTTEN, REPLAY_LOST = 7, 450


class SomeRegistry:
    """A registry with a cursor that cannot be read."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def load_cursors(self, numbers: Sequence[int]) -> Mapping[int, Cursor]:
        self.asked.append(len(numbers))
        if ROTTEN in numbers:
            raise RegistryError("it is rotten")
        return {number: Cursor((Position(0, number, 0),)) for number in numbers if number % 2}

    def count_letters(self, numbers: Sequence[int]) -> Mapping[int, int]:
        return {number: 3 for number in numbers if number == 9}

    def letters(self, number: int, after: Position | None, limit: int) -> Sequence[DeadLetter]:
        assert number == 9
        reasons = [LATE, "no such airport", "given as often as it may be"] if after is None else []
        return [DeadLetter(Position(0, at, 0), 1, reason) for at, reason in enumerate(reasons)]


class NoReplays:
    def find(self, number: int) -> None:
        if number == REPLAY_LOST:
            raise OSError("it is lost")


def some(number: int) -> Subscription:
    start = (Position(0, 0, 0),) if number == REPLAY_LOST else None
    return Subscription(f"s{number}", "default", "true", "sql", number, number, (0,), start=start)


def test_those_asked_for_together_are_read_together_and_one_that_is_rotten_holds_up_no_other() -> None:
    async def work() -> None:
        registry = SomeRegistry()
        loader = Loader(cast(Any, registry), cast(Any, NoReplays()))
        found = await asyncio.gather(
            *(loader.load(some(number)) for number in range(500)), return_exceptions=True
        )
        for number, saved in enumerate(found):
            if number == ROTTEN:
                assert isinstance(saved, RegistryError)
            elif number == REPLAY_LOST:
                assert isinstance(saved, OSError)
            else:
                cursor = Cursor((Position(0, number, 0),)) if number % 2 else None
                late = {key_of(Position(0, at, 0)) for at in (0, 2)} if number == 9 else set()
                assert saved == Saved(cursor, 3 if number == 9 else 0, None, late)
        together = [count for count in registry.asked if count > 1]
        assert sum(together) == 500 and max(together) == LOADED_BATCH_SIZE

    run(work)


def test_a_cancelled_request_does_not_affect_others() -> None:
    async def work() -> None:
        loader = Loader(cast(Any, SomeRegistry()), cast(Any, NoReplays()))
        gone, stays = (asyncio.ensure_future(loader.load(some(number))) for number in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == Saved(None, 0, None)
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await loader.load(some(3)) == Saved(Cursor((Position(0, 3, 0),)), 0, None)

    run(work)
