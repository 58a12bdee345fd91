"""Waits that end by themselves and are cancelled at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from fieldfare.client.asynchronous.concurrency import AsyncFlag, AsyncReader


@pytest.mark.parametrize("turns", range(5))
def test_a_wait_that_is_cancelled_as_it_ends_is_cancelled(turns: int) -> None:
    """A client's worker that lost its cancellation went on for ever, and ``close`` waited for it."""

    async def work() -> None:
        flag, is_over = AsyncFlag(), False

        async def wait() -> None:
            nonlocal is_over
            await flag.wait(60)
            is_over = True
            await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        flag.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=5)
        assert waiting.cancelled(), is_over

    asyncio.run(work())


def test_a_reader_that_is_closed_as_its_task_is_cancelled_loses_no_cancellation() -> None:
    """The task took the cancellation for the end of the messages, and went on."""

    async def work() -> None:
        is_over = False

        async def values() -> AsyncGenerator[int, None]:
            await asyncio.Event().wait()
            yield 1

        reader = AsyncReader(values())

        async def read() -> None:
            nonlocal is_over
            with suppress(StopAsyncIteration):
                await reader.next()
            is_over = True

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        await reader.close()
        reading.cancel()
        await asyncio.wait((reading,), timeout=5)
        assert reading.cancelled() and not is_over

    asyncio.run(work())
