"""`fieldfare_process_restarts_total`: what the supervisor counts, and nothing where its file is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from gateway_support import Running, run, running


async def shown(r: Running) -> dict[str, float]:
    text = (await r.client.get("/metrics")).text
    rows = [
        line.split() for line in text.splitlines() if line.startswith("fieldfare_process_restarts_total{")
    ]
    return {name.split('"')[1]: float(value) for name, value in rows}


def write(data: Path, **more: Any) -> None:
    said = {"pid": os.getppid(), "state": "running", "time_ms": 1, "restarts": 0} | more
    (data / "run" / "serve.json").write_text(json.dumps(said).ljust(1024))


def test_the_supervisors_counts_are_shown_also_by_the_next_gateway(tmp_path: Path) -> None:
    async def work() -> None:
        for _ in range(2):
            async with running(tmp_path) as r:
                deaths = {"gateway": 1, "indexer": 0, "pipeline": 3}
                write(tmp_path, deaths=deaths)
                assert await shown(r) == deaths

    run(work)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"pid": 1}'),
        *(
            json.dumps({"pid": os.getppid(), "state": "running", "time_ms": 1, "deaths": deaths}).encode()
            for deaths in (7, [1], {"gateway": -1}, {"gateway": "9"}, {'x"} 1\n': 1}, {"gateway": 0.5}, None)
        ),
        json.dumps({"pid": 1, "state": "running", "time_ms": 1, "deaths": {"gateway": 9}}).encode(),
    ],
)
def test_a_wrong_file_is_not_known(text: bytes, tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            (tmp_path / "run" / "serve.json").write_bytes(text)
            assert await shown(r) == {}
            assert (await r.client.get("/v1/pipeline")).status_code == 200

    run(work)


def test_a_supervisor_of_an_earlier_version_counts_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            assert await shown(r) == {}
            write(tmp_path)
            assert await shown(r) == {}

    run(work)
