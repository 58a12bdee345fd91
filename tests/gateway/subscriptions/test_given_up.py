"""An owner learns that a filter was too much work for some events."""

from __future__ import annotations

import numpy as np
from gateway_support import SUBSCRIPTIONS, event, run, running

from fieldfare.matching.pairs import MatchLists
from fieldfare.storage import NewMatchBlock
from fieldfare.storage.match_log import GIVEN_UP


def test_the_owner_of_a_filter_that_was_given_up_can_read_for_how_many_events(tmp_path):
    """Nothing came of a subscription with ANY inside of ANY, and nothing said why."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("heavy", "ANY i IN data.a SATISFIES (ANY j IN data.a SATISFIES (i = j + 1))")
            await r.subscribe("light", "data.x = 1")
            number = r.gateway.registry.get("default", "heavy").number
            for offset, given_up in enumerate((2, 1)):
                await r.publish(event())
                lists = MatchLists(np.zeros(0, np.uint32), np.zeros(1, np.int64), np.zeros(0, np.uint16))
                extra = {GIVEN_UP: given_up, f"{GIVEN_UP} {number}": given_up}
                counts = np.ones(1, np.int32)
                r.gateway.match_log.write(NewMatchBlock(offset, offset + 1, counts, lists, extra))
            await r.gateway.figures.observe()
            heavy = (await r.client.get(f"{SUBSCRIPTIONS}/heavy")).json()
            assert heavy["given_up_events"] == 3
            assert "given_up_events" not in (await r.client.get(f"{SUBSCRIPTIONS}/light")).json()
            assert "fieldfare_given_up_total 3.0" in (await r.client.get("/metrics")).text

    run(work)
