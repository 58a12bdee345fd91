"""Reading what is kept of deliveries, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from gateway_support import run

from fieldfare.gateway.delivery.loading import LOADED_AT_ONCE, Loader, Saved
from fieldfare.model import Cursor, Position, Subscription
from fieldfare.storage.errors import RegistryError

ROTTEN, PAST_LOST = 7, 450


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


class NoPasts:
    def find(self, number: int) -> None:
        if number == PAST_LOST:
            raise OSError("it is lost")


def some(number: int) -> Subscription:
    start = (Position(0, 0, 0),) if number == PAST_LOST else None
    return Subscription(f"s{number}", "default", "true", "sql", number, number, (0,), start=start)


def test_those_asked_for_together_are_read_together_and_one_that_is_rotten_holds_up_no_other() -> None:
    async def work() -> None:
        registry = SomeRegistry()
        loader = Loader(cast(Any, registry), cast(Any, NoPasts()))
        found = await asyncio.gather(
            *(loader.load(some(number)) for number in range(500)), return_exceptions=True
        )
        for number, saved in enumerate(found):
            if number == ROTTEN:
                assert isinstance(saved, RegistryError)
            elif number == PAST_LOST:
                assert isinstance(saved, OSError)
            else:
                cursor = Cursor((Position(0, number, 0),)) if number % 2 else None
                assert saved == Saved(cursor, 3 if number == 9 else 0, None)
        together = [count for count in registry.asked if count > 1]
        assert sum(together) == 500 and max(together) == LOADED_AT_ONCE

    run(work)


def test_who_asks_and_goes_away_leaves_the_others_alone() -> None:
    async def work() -> None:
        loader = Loader(cast(Any, SomeRegistry()), cast(Any, NoPasts()))
        gone, stays = (asyncio.ensure_future(loader.load(some(number))) for number in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == Saved(None, 0, None)
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await loader.load(some(3)) == Saved(Cursor((Position(0, 3, 0),)), 0, None)

    run(work)
