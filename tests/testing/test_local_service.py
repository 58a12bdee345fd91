"""The service for unit tests does what `serve` does, in the test's own process."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from fieldfare import ApiError
from fieldfare.runtimes.process.locks import FileLock
from fieldfare.storage.folder import DataFolder
from fieldfare.testing import LocalService, local_service

QUOTE = {"source": "/quotes", "type": "quote"}


def quotes(*prices: float) -> list[dict[str, object]]:
    return [{**QUOTE, "id": str(price), "data": {"price": price}} for price in prices]


def test_subscribers_get_the_events_that_match() -> None:
    with LocalService() as service, service.client() as client:
        client.create_subscription("data.price < 18.5", "cheap")
        client.publish_many(quotes(17.25, 19.5, 3))
        service.wait_until_matched()
        messages = client.pull("cheap")
        assert [message.event["data"]["price"] for message in messages] == [17.25, 3]
        client.ack("cheap", [message.position for message in messages])
        client.publish_many(quotes(20))
        service.wait_until_matched()
        assert client.pull("cheap") == []
        assert client.backlog("cheap").pending == 0
        with pytest.raises(ApiError, match="no-such"):
            client.pull("no-such")
        until_s = time.monotonic() + 90
        while (ready := httpx.get(f"{service.url}/readyz")).status_code != 200:
            assert time.monotonic() < until_s, ready.text


def test_the_example_of_the_page_prints_what_is_shown() -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    program, shown = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)[:2]
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert (result.stdout, result.returncode) == (shown, 0), result.stderr


def test_streams_and_the_asynchronous_client_work() -> None:
    async def work(service: LocalService) -> list[object]:
        async with service.async_client() as client:
            await client.create_subscription("data.price < 18.5", "cheap")
            await client.publish_many(quotes(1, 2, 30, 4))
            got: list[object] = []
            async with client.subscribe("cheap") as messages:
                async for message in messages:
                    got.append(message.event["data"]["price"])
                    message.ack()
                    if len(got) == 3:
                        return got
        return got

    with LocalService() as service:
        assert asyncio.run(work(service)) == [1, 2, 4]


def test_subscriptions_begin_in_the_past_and_settings_apply() -> None:
    with LocalService(ack_deadline_s=0.05) as service, service.client() as client:
        client.publish_many(quotes(1, 20, 2))
        client.create_subscription("data.price < 18.5", "past", start="earliest")
        first = client.pull("past", wait_s=20)
        assert [message.event["data"]["price"] for message in first] == [1, 2]
        again = client.pull("past", wait_s=20)
        assert [message.attempt for message in again] == [2, 2]


def test_data_stays_in_a_directory_that_is_named_and_else_is_deleted(tmp_path: Path) -> None:
    with LocalService(tmp_path / "data") as service, service.client() as client:
        client.create_subscription("data.price < 18.5", "cheap")
        client.publish_many(quotes(1))
    with LocalService(tmp_path / "data") as service, service.client() as client:
        service.wait_until_matched()
        assert len(client.pull("cheap")) == 1
    with LocalService() as service:
        folder = service._temporary
        assert folder is not None and folder.exists()
    assert not folder.exists()


def test_services_side_by_side_are_apart_and_leave_no_thread() -> None:
    before = set(threading.enumerate())
    with LocalService() as a, LocalService() as b, a.client() as one, b.client() as other:
        one.create_subscription("data.price < 18.5", "cheap")
        assert [info.id for info in one.subscriptions()] == ["cheap"]
        assert list(other.subscriptions()) == []
    left = [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    assert [thread.name for thread in left if thread.name.startswith("fieldfare-testing")] == []


def test_a_wrong_setting_is_named_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    mkdtemp = local_service.tempfile.mkdtemp

    def noted(prefix: str) -> str:
        made.append(mkdtemp(prefix=prefix))
        return made[-1]

    monkeypatch.setattr(local_service.tempfile, "mkdtemp", noted)
    with pytest.raises(ValidationError, match="ack_deadline_s"), LocalService(ack_deadline_s=-1):
        pass
    assert made and not Path(made[0]).exists()


def test_a_misspelt_setting_is_not_ignored() -> None:
    with pytest.raises(TypeError, match=r"ack_deadline is not a setting .*: did you mean ack_deadline_s\?"):
        LocalService(ack_deadline=0.2)


@pytest.mark.parametrize("name", ["serve", "gateway"])
def test_two_services_on_one_directory_do_not_write_the_same_files(tmp_path: Path, name: str) -> None:
    with LocalService(tmp_path), pytest.raises(RuntimeError, match="another service works on"):
        LocalService(tmp_path).__enter__()
    (lock := FileLock(DataFolder(tmp_path).lock_of(name), 0.0)).acquire()  # as `fieldfare serve` does
    try:
        with pytest.raises(RuntimeError, match="another service works on"):
            LocalService(tmp_path).__enter__()
    finally:
        lock.release()
    with LocalService(tmp_path):
        pass


def test_no_spark_is_loaded() -> None:
    program = """
import sys
from fieldfare.testing import LocalService
with LocalService() as service, service.client() as client:
    client.create_subscription("data.price < 18.5", "cheap")
    client.publish_many([{"source": "/s", "type": "t", "data": {"price": 1}}])
    service.wait_until_matched()
    print(len(client.pull("cheap")), "pyspark" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert (result.stdout, result.returncode) == ("1 False\n", 0), result.stderr


def test_a_failure_of_matching_is_raised_where_the_test_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalService() as service, service.client() as client:

        def fail(*_: object) -> int:
            raise ValueError("broken on purpose")

        monkeypatch.setattr(service._pipeline, "step", fail)
        client.publish_many(quotes(1))
        with pytest.raises(RuntimeError, match="matching failed"):
            service.wait_until_matched()
