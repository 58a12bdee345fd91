"""Subscriptions that begin in the past: what came before them, then what comes, without a gap or a repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway_support import SUBSCRIPTIONS, Running, event, run, running
from past_support import PastPipeline


async def begin(
    r: Running, id: str, start: str, filter: str = "data.n >= 0", status: int = 201
) -> dict[str, Any]:
    answer = await r.client.put(f"{SUBSCRIPTIONS}/{id}", json={"filter": filter, "start": start})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def publish(r: Running, first: int, count: int = 1) -> None:
    for n in range(first, first + count):
        await r.publish(event(n, {"n": n}))


async def numbers(r: Running, id: str, **body: Any) -> list[int]:
    """What a pull gives, acked."""
    messages = await r.pull(id, **body)
    await r.ack(id, *(each["position"] for each in messages))
    return [each["event"]["data"]["n"] for each in messages]


def test_the_past_comes_first_and_then_what_is_live(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            pasts = PastPipeline(r.gateway)
            await publish(r, 0, 5)
            r.pipeline.step()
            made = await begin(r, "s", "earliest")
            assert (made["start"], made["valid_from"]) == ("0-0-0", "0-5-0")
            await publish(r, 5, 3)
            r.pipeline.step()
            assert await numbers(r, "s") == []  # live events wait their turn
            pasts.finish()
            assert await numbers(r, "s", wait_s=30, max=4) == [0, 1, 2, 3]
            assert await numbers(r, "s", wait_s=30) == [4, 5, 6, 7]
            await publish(r, 8)
            r.pipeline.step()
            assert await numbers(r, "s", wait_s=30) == [8]
            described = (await r.client.get(f"{SUBSCRIPTIONS}/s")).json()
            assert described["past"] == {
                "kept_from": "0-0-0", "matched_to": "0-5-0", "to": "0-5-0", "is_matched": True,
            }  # fmt: skip

    run(work)
