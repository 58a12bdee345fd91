"""The garbage collector in a gateway: long-lived objects are examined once, and unused ones still freed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from fieldfare.gateway.maintenance.garbage import Garbage


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    """The collector of a process in which every full collection takes long."""
    made = Garbage(long_s=0.0)
    yield made
    with_callback = [each for each in gc.callbacks if getattr(each, "__self__", None) is made]
    assert not with_callback and gc.get_freeze_count() == 0


def test_what_survives_a_full_collection_is_not_looked_at_again(garbage: Garbage) -> None:
    async def work() -> None:
        garbage.start()
        try:
            before = gc.get_freeze_count()
            assert before > 1_000
            kept = [Circle() for _ in range(500)]
            gc.collect()
            # Objects that other tests have left may go meanwhile.
            assert gc.get_freeze_count() >= before + 0.9 * len(kept)
            # Without a circle it goes at once, frozen or not.
            plain = {1: [2]}
            seen = weakref.ref(kept[0])
            gc.collect()
            before = gc.get_freeze_count()
            del plain
            assert gc.get_freeze_count() < before
            # A circle that was frozen stays; when everything is looked at it goes.
            kept.clear()
            gc.collect()
            assert seen() is not None
            garbage.collect_all()
            assert seen() is None
        finally:
            garbage.close()

    asyncio.run(work())


def test_everything_is_looked_at_when_twice_as_much_is_frozen(garbage: Garbage) -> None:
    async def work() -> None:
        garbage.start()
        try:
            before = gc.get_freeze_count()
            left_over = [Circle() for _ in range(before + 1_000)]
            gc.collect()
            seen = weakref.ref(left_over[0])
            left_over.clear()
            gc.collect()
            assert seen() is not None
            await asyncio.sleep(0)
            assert seen() is None
            assert gc.get_freeze_count() < before + 1_000
        finally:
            garbage.close()

    asyncio.run(work())
