"""Sites linked over loopback, for the tests of brokers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from gateway_support import BATCH, DEADLINE_S, GatewayServer, encode, event, matching, until

from fieldfare.gateway.admission.connections import server_config
from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.runtimes.process.listening import listening_socket
from fieldfare_lab.ports import find_free_port


def stacks(*threads: threading.Thread) -> str:
    """Where threads are, and all tasks that have not ended: for a gateway that does not stop."""
    text = io.StringIO()
    for thread in threads:
        frame = sys._current_frames().get(thread.ident or 0)
        text.write(f"\n{thread.name}:\n" + "".join(traceback.format_stack(frame)) if frame else "")
    for task in gc.get_objects():
        if isinstance(task, asyncio.Task) and not task.done():
            task.print_stack(file=text)
    return text.getvalue()


class Site:
    """A gateway with a naive pipeline, behind a server on a port of its own, which can be stopped."""

    def __init__(self, data: Path, name: str, port: int) -> None:
        self.data, self.name, self.port = data, name, port
        self.peers: dict[str, int] = {}
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=DEADLINE_S)
        self.settings: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()
        self.is_running = False

    def start(self) -> None:
        peers = tuple(f"{name}=http://127.0.0.1:{port}" for name, port in self.peers.items())
        given = {"data": self.data, "broker": self.name, "peers": peers, **self.settings}
        settings = GatewaySettings.model_validate(given)
        self.gateway = gateway = Gateway(settings)
        config = server_config(
            create_app(gateway), settings, None, loop="asyncio", timeout_graceful_shutdown=5
        )
        server = GatewayServer(config, gateway)
        listener = listening_socket("127.0.0.1", self.port)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        until(lambda: server.started)

        def end() -> None:
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), stacks(thread)

        self._stack.callback(end)
        self._stack.enter_context(matching(gateway))
        self.is_running = True

    def stop(self) -> None:
        self.is_running = False
        self._stack.close()

    def subscribe(self, id: str, filter: Any, dialect: str = "sql") -> int:
        body = {"filter": filter, "dialect": dialect}
        answer = self.client.put(f"/v1/spaces/default/subscriptions/{id}", json=body)
        assert answer.status_code in (200, 201), answer.text
        return int(self.gateway.registry.get("default", id).revision)  # type: ignore[union-attr]

    def publish(self, *ids: int) -> None:
        events = [event(each, {"n": each}) for each in ids]
        answer = self.client.post("/v1/spaces/default/events", content=encode(events), headers=BATCH)
        assert answer.status_code == 200, answer.text

    def pull(self, id: str) -> list[int]:
        """Take the messages that are there now."""
        url = f"/v1/spaces/default/subscriptions/{id}"
        answer = self.client.post(f"{url}/pull", json={"max": 1000}).json()
        positions = [each["position"] for each in answer["messages"]]
        if positions:
            self.client.post(f"{url}/ack", json={"positions": positions}).raise_for_status()
        return [int(each["event"]["id"]) for each in answer["messages"]]

    def take(self, id: str, count: int) -> list[int]:
        """Take messages until there are enough."""
        found: list[int] = []
        until(lambda: found.extend(self.pull(id)) or len(found) >= count)
        return found

    def brokers(self) -> dict[str, Any]:
        answer = self.client.get("/v1/brokers")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def of(self, name: str) -> dict[str, Any]:
        return next((each for each in self.brokers()["brokers"] if each["name"] == name), {})

    def counts(self, revision: int, *origins: str) -> bool:
        """Whether a subscription of this site counts for all later events of other sites."""
        return all(self.of(name).get("counts_through", -1) >= revision for name in origins)

    def is_quiet(self) -> bool:
        """Whether all messages of this site to others are delivered, and they use its current filters."""
        state, revision = self.brokers(), self.gateway.registry.revision()
        others = [each for each in state["brokers"] if each["name"] != self.name]
        return not any(each["outbox_entries"] for each in state["links"]) and all(
            each["told_revision"] == each["counts_through"] == revision for each in others
        )


@contextlib.contextmanager
def sites(
    root: Path, names: str, links: str, of: Mapping[str, dict[str, Any]] | None = None, **settings: Any
) -> Iterator[list[Site]]:
    """Start sites, each letter of `names` one, with links given as pairs of letters; `of`: own settings."""
    found = {name: Site(root / name, name, find_free_port()) for name in names}
    for site in found.values():
        site.settings = settings | (of or {}).get(site.name, {})
    for one, other in links.split():
        found[one].peers[other] = found[other].port
        found[other].peers[one] = found[one].port
    try:
        for site in found.values():
            site.start()
        yield list(found.values())
    finally:
        for site in found.values():
            if site.is_running:
                site.stop()
