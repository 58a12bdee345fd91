"""Waits that end by themselves and are cancelled at the same moment."""

from __future__ import annotations

import asyncio

import pytest

from fieldfare.client.asynchronous.concurrency import AsyncFlag


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
