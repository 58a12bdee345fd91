"""The JavaScript client in a real browser, on a page of another origin than the service's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import CHROMIUM, Page, PageError, chromium
from gateway_support import NaivePipeline, served

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"),
]

CLIENT = Path(__file__).parents[2] / "clients" / "js"
KEY = "a-first-key-of-an-administrator-0123456789"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def pages(folder: Path) -> Iterator[str]:
    """A web server with the client's files, and the address of its pages."""
    for file in CLIENT.glob("*.js"):
        (folder / file.name).write_text(file.read_text())
    (folder / "index.html").write_text("<!doctype html><title>page</title>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def page_and_service(folder: Path, *, allowed: bool) -> Iterator[tuple[Page, str]]:
    for name in ("www", "profile"):
        (folder / name).mkdir()
    (folder / "admin.key").write_text(KEY)
    with pages(folder / "www") as origin:
        settings = {"admin_key_file": folder / "admin.key", "cors_origins": (origin,) if allowed else ()}
        with served(folder / "data", **settings) as (gateway, client):
            over = threading.Event()
            pipeline = NaivePipeline(gateway)

            def match() -> None:
                while not over.wait(0.02):
                    pipeline.step()

            matching = threading.Thread(target=match)
            matching.start()
            try:
                with chromium(folder / "profile") as page:
                    page.open(f"{origin}/index.html")
                    yield page, str(client.base_url).rstrip("/")
            finally:
                over.set()
                matching.join()


CONVERSATION = """(async () => {
    const { Client } = await import("/fieldfare.js");
    const client = new Client({ url: URL_, key: KEY_ });
    await client.putSubscription("cheap", "data.price < 18.5");
    const prices = [17.25, 30, 12];
    const positions = await Promise.all(
        prices.map((price) => client.publish({ source: "/quotes", type: "quote", data: { price } })));
    const got = [];
    for await (const message of client.subscribe("cheap")) {
        got.push(message.event.data.price);
        await message.ack();
        if (got.length === 2) break;
    }
    let refused = "";
    try {
        await client.putSubscription("wrong", "data.price <");
    } catch (error) {
        refused = `${error.name} ${error.status} ${error.kind}`;
    }
    await client.close();
    return { got, positions: positions.length, refused };
})()"""


def conversation(url: str) -> str:
    return CONVERSATION.replace("URL_", f'"{url}"').replace("KEY_", f'"{KEY}"')


def test_a_page_of_an_allowed_origin_publishes_subscribes_and_acks(tmp_path: Path) -> None:
    with page_and_service(tmp_path, allowed=True) as (page, url):
        found = page.run(conversation(url))
        assert found == {"got": [17.25, 12], "positions": 3, "refused": "ApiError 400 bad-filter"}
        assert page.complaints == []


def test_a_page_of_another_origin_is_kept_out(tmp_path: Path) -> None:
    with page_and_service(tmp_path, allowed=False) as (page, url), pytest.raises(PageError):
        short = conversation(url).replace("key:", "retryForS: 1, key:")
        page.run(short)
