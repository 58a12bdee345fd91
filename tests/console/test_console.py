"""The console in a real browser: each page is used as a person uses it, and shows hostile texts as text.

``SHOTS=FOLDER make console-test`` writes a picture of each page: light, dark, and as wide as a phone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import CHROMIUM, Page, chromium
from gateway_support import BATCH, NaivePipeline, encode, event, served, until

from fieldfare.gateway.context import Gateway

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"),
]

ADMIN = "a-first-key-of-an-administrator-0123456789"
SHOTS = os.environ.get("SHOTS")
HOSTILE = '<img src=x onerror=document.title="owned">'
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
SIZES = {"light": (1280, 800, False), "dark": (1280, 800, True), "phone": (390, 844, False)}
SIZES["phone-dark"] = (390, 844, True)


def shoot(page: Page, name: str) -> None:
    """Write pictures of the page, if a folder is named. All controls must have names, and fit a phone."""
    assert page.nameless() == [], name
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        for kind, (width, height, dark) in SIZES.items():
            page.view(width, height, dark=dark)
            page.run(FRAMES)
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), (name, kind, "is too wide")
            page.picture(Path(SHOTS) / f"{name}-{kind}.png")
    page.view(320, 568)
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), (name, "is too wide for a phone")
    page.view(1280, 800)


class Service:
    """A gateway whose events are matched, and its administrator's client."""

    def __init__(self, gateway: Gateway, client: httpx.Client) -> None:
        self.gateway = gateway
        self.client = client
        self.url = str(client.base_url).rstrip("/")
        self._pipeline = NaivePipeline(gateway)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._match)
        self._thread.start()

    def _match(self) -> None:
        while not self._stop.wait(0.02):
            self._pipeline.step()
            self._pipeline.beat()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def put(self, id: str, filter: str, space: str = "default", **more: Any) -> None:
        body = {"filter": filter, **more}
        answer = self.client.put(f"/v1/spaces/{space}/subscriptions/{id}", json=body)
        assert answer.status_code in (200, 201), answer.text

    def publish(self, *values: Any, space: str = "default", **attributes: Any) -> None:
        number = time.monotonic_ns()
        events = [event(f"{number}-{at}", value, **attributes) for at, value in enumerate(values)]
        answer = self.client.post(f"/v1/spaces/{space}/events", content=encode(events), headers=BATCH)
        assert answer.status_code == 200, answer.text

    def pending(self, id: str) -> int:
        found = self.client.get(f"/v1/spaces/default/subscriptions/{id}/backlog").json()
        return int(found["pending"])


@contextmanager
def service(folder: Path, *, keys: bool = False) -> Iterator[Service]:
    settings: dict[str, Any] = {"stats_s": 0.2}
    if keys:
        (folder / "admin.key").write_text(ADMIN)
        settings["admin_key_file"] = folder / "admin.key"
    with served(folder / "data", **settings) as (gateway, client):
        if keys:
            client.headers["authorization"] = f"Bearer {ADMIN}"
        found = Service(gateway, client)
        try:
            yield found
        finally:
            found.close()


@contextmanager
def opened(folder: Path, s: Service) -> Iterator[Page]:
    """A browser at the console; in the end, nothing may have failed in it or left the service."""
    profile = folder / "profile"
    profile.mkdir()
    with chromium(profile) as page:
        page.view(1280, 800)
        page.open(f"{s.url}/console")
        yield page
        assert page.complaints == []
        assert page.hosts() == {s.url.removeprefix("http://")}
        assert page.run("document.title") != "owned"


def set_up(s: Service) -> None:
    """Subscriptions with and without backlogs, dead letters, and texts of a hostile client."""
    s.client.post("/v1/spaces", json={"name": "trading"})
    s.put("late-from-jfk", "data.origin = 'JFK' AND data.dep_delay > 30", delivery={"max_attempts": 2})
    s.put("all-flights", "EXISTS data.origin")
    s.put("to-the-west", "data.dest IN ('SFO', 'LAX', 'SEA')")
    s.put("hostile", f"data.text = '{HOSTILE}'")
    s.put("cheap-yahoo", "data.symbol = 'YHOO' AND data.price < 18.5", space="trading")
    flights = [
        {"origin": origin, "dest": dest, "dep_delay": delay, "flight": 1000 + at}
        for at, (origin, dest, delay) in enumerate(
            (origin, dest, delay)
            for delay in (0, 5, 45, 90)
            for origin in ("JFK", "LGA", "EWR")
            for dest in ("SFO", "ORD", "MIA")
        )
    ]
    s.publish(*flights, type="flight.departed", source="/airports")
    s.publish({"text": HOSTILE}, type=HOSTILE, source="/evil")
    until(lambda: s.pending("late-from-jfk") == 6 and s.pending("hostile") == 1)
    path = "/v1/spaces/default/subscriptions/late-from-jfk"
    taken = s.client.post(f"{path}/pull", json={"max": 2}).json()["messages"]
    places = [each["position"] for each in taken]
    s.client.post(f"{path}/terminate", json={"positions": places, "reason": f"no such airport {HOSTILE}"})
    path = "/v1/spaces/default/subscriptions/hostile"
    place = s.client.post(f"{path}/pull", json={}).json()["messages"][0]["position"]
    s.client.post(f"{path}/terminate", json={"positions": [place], "reason": HOSTILE})


def test_the_overview_shows_figures_readiness_and_the_greatest_backlogs(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.see("Ready.")
            page.see("all-flights")
            for text in (
                "Events and matches",
                "Lag",
                "Time from publishing to match",
                "Free disk",
                "Pending",
            ):
                assert text in page.text()
            for _ in range(20):
                s.publish(*({"origin": "JFK", "dep_delay": 40} for _ in range(20)), type="flight.departed")
                time.sleep(0.05)
            page.wait("document.querySelectorAll('.chart .series').length >= 4")
            if SHOTS:
                time.sleep(12)  # for charts with something in them
            shoot(page, "overview")
            page.click("all-flights")
            page.see("Pending")
            assert page.run("location.hash") == "#/subscription/default/all-flights"
            size = page.run(
                "performance.getEntriesByType('resource').filter((each) => each.name.includes('/console'))"
                ".reduce((sum, each) => sum + each.transferSize, 0)"
            )
            assert 10_000 < size <= 300_000


def test_the_first_page_is_there_within_a_second(tmp_path: Path) -> None:
    with service(tmp_path) as s, opened(tmp_path, s) as page:
        page.see("Ready.")
        page.send("Network.clearBrowserCache")
        page.send("Page.reload", ignoreCache=True)
        page.wait("document.querySelector('.tile .value')")
        took_ms = page.run("performance.now()")
        print(f"first page: {took_ms:.0f} ms")
        assert took_ms <= 1000


def test_an_unready_service_says_why(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        s.close()
        s.gateway.settings.folder.heartbeat.unlink(missing_ok=True)
        with opened(tmp_path, s) as page:
            page.see("Not ready")
            page.see("the pipeline has not started yet")
            shoot(page, "not-ready")


def test_subscriptions_are_listed_by_backlog_and_searched(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.click("Subscriptions")
            ids = "[...document.querySelectorAll('tbody th')].map((each) => each.innerText.trim())"
            page.wait(f"{ids}[0] === 'all-flights'")
            shoot(page, "subscriptions")
            page.click("Id")
            page.wait(f"{ids}[0] === 'all-flights' && {ids}[1] === 'hostile'")
            page.type("Search", "sfo")
            page.wait(f"{ids}.join() === 'to-the-west'")
            page.type("Search", "no such text")
            page.see("No subscription has this text.")
            page.type("Search", "onerror")
            page.wait(f"{ids}.join() === 'hostile'")
            assert HOSTILE in page.text(), "a filter is shown as text"
            page.choose("Space", "trading")
            page.see("cheap-yahoo")


def test_a_subscription_is_created_with_help_then_paused_sought_changed_and_deleted(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.click("Subscriptions")
            page.click("New subscription")
            page.type("Id", "west-late")
            page.type("Filter", "data.dest = 'SFO' AND data.dep_delay => 30")
            page.see("'=>' is not an operator")
            page.see("write >=")
            assert page.run("document.querySelector('form button[type=submit]').disabled")
            shoot(page, "new-with-error")
            page.type("Filter", "data.dest = 'SFO' AND data.dep_delay >= 30")
            page.see("match (")
            page.see("data.dest is 'SFO'")
            page.type("Delivery attempts", "3")
            page.choose("Begins with", "earliest")
            shoot(page, "new")
            page.click("Create subscription")
            page.wait("location.hash === '#/subscription/default/west-late'")
            path = "/v1/spaces/default/subscriptions/west-late"
            made = s.client.get(path).json()
            assert made["delivery"] == {"max_attempts": 3} and "start" in made
            page.see("max attempts")
            page.click("Pause")
            page.see("Paused.")
            assert s.client.get(path).json()["delivery"]["paused"]
            page.click("Resume")
            page.wait("!document.body.innerText.includes('Paused.')")
            page.click("Change filter")
            page.type("Filter", "data.dest = 'LAX'")
            page.see("match (")
            page.click("Save filter")
            page.see("The filter was replaced")
            assert s.client.get(path).json()["filter"] == "data.dest = 'LAX'"
            page.click("Change settings")
            page.type("Ack deadline, seconds", "45")
            shoot(page, "settings")
            page.click("Save settings")
            page.see("ack deadline, seconds")
            assert s.client.get(path).json()["delivery"] == {"max_attempts": 3, "ack_deadline_s": 45.0}
            page.click("Seek")
            page.choose("Move to", "latest")
            page.click("Move cursor")
            page.see("The cursor is at")
            page.click("Delete")
            page.see("This cannot be undone.")
            page.press("Escape")
            page.wait("!document.querySelector('dialog')")
            assert s.client.get(path).status_code == 200, "Escape deletes nothing"
            page.click("Delete")
            shoot(page, "delete")
            page.click("Delete subscription")
            page.wait("location.hash === '#/subscriptions/default'")
            assert s.client.get(path).status_code == 404


def test_an_error_of_a_setting_stays_in_its_dialog(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.open(f"{s.url}/console#/subscription/default/all-flights")
            page.click("Change settings")
            page.type("Delivery attempts", "0.5")
            page.click("Save settings")
            page.wait("document.querySelector('dialog [role=alert]')")
            assert "Bad request" in page.text()


def test_dead_letters_are_read_and_retried(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.open(f"{s.url}/console#/subscription/default/late-from-jfk")
            page.see("Dead letters (2)")
            assert HOSTILE in page.text(), "a reason is shown as text"
            shoot(page, "subscription")
            page.click("Retry all")
            page.see("2 messages will be delivered again.")
            page.see("No message was given up.")
            assert s.pending("late-from-jfk") == 6
            page.open(f"{s.url}/console#/subscription/default/hostile")
            page.see("Dead letters (1)")
            page.click("Delete all")
            page.click("Delete dead letters")
            page.see("No message was given up.")


def test_the_tail_marks_live_events_with_whether_a_filter_matches(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.click("Event tail")
            page.type("Filter", "data.dep_delay > 30")
            page.see("match (")
            page.click("Start")
            page.see("Waiting for events.")
            s.publish({"dep_delay": 50}, {"dep_delay": 5}, {"text": HOSTILE}, type="flight.departed")
            page.see("3 events received.")
            page.wait("document.querySelectorAll('.event .pill.good').length === 1")
            page.wait("document.querySelectorAll('.event .pill:not(.good)').length === 2")
            page.run("document.querySelectorAll('.event')[1].open = true")
            page.see("data.dep_delay > 30 is false: data.dep_delay is 5")
            shoot(page, "tail")
            page.click("Only matches")
            page.wait("document.querySelectorAll('.event').length === 1")
            made = "/v1/spaces/default/subscriptions?search=console-tail"
            assert len(s.client.get(made).json()["subscriptions"]) == 1
            page.click("Spaces")
            until(lambda: not s.client.get(made).json()["subscriptions"])


def test_spaces_have_sums_and_quotas_and_are_created_and_deleted(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.click("Spaces")
            page.see("trading")
            shoot(page, "spaces")
            page.click("New space")
            page.type("Name", "no good name")
            page.click("Create")
            page.see("A space's name is")
            page.type("Name", "market")
            page.click("Create")
            page.see("The space market was created.")
            page.click("market")
            page.click("Change quotas")
            page.type("Subscriptions", "500")
            page.click("Save quotas")
            page.see("The quotas were saved.")
            assert s.client.get("/v1/spaces/market/quotas").json()["set"] == {"subscriptions": 500}
            shoot(page, "space")
            page.click("Delete space")
            page.see("Type the name of the space to confirm")
            assert page.run("document.querySelector('dialog button[type=submit]').disabled")
            page.type("Type the name of the space to confirm", "market")
            page.click("Delete space")
            page.see("The space market was deleted.")
            assert s.client.get("/v1/spaces/market/quotas").status_code == 404


def test_without_a_key_nothing_is_shown_and_a_key_shows_what_its_rights_allow(tmp_path: Path) -> None:
    with service(tmp_path, keys=True) as s:
        set_up(s)
        body = {"space": "trading", "rights": ["publish", "subscribe"], "note": HOSTILE}
        reader = s.client.post("/v1/keys", json=body).json()["key"]
        with opened(tmp_path, s) as page:
            page.see("Sign in")
            assert "all-flights" not in page.text() and not page.run("document.querySelector('nav a')")
            shoot(page, "sign-in")
            page.type("Key", "wrong")
            page.press("Enter")
            page.see("This API key is not valid.")
            page.type("Key", reader)
            page.press("Enter")
            page.see("The figures of the service need a key with the right watch.")
            pages = "[...document.querySelectorAll('nav#nav a')].map((each) => each.innerText).join()"
            assert page.run(pages) == "Overview,Spaces,Subscriptions,Event tail"
            shoot(page, "few-rights")
            page.click("Subscriptions", "nav a")
            page.see("cheap-yahoo")
            page.open(f"{s.url}/console#/subscription/default/all-flights")
            page.see("does not exist, or this key has no rights in it")
            page.click("Sign out")
            page.see("Sign in")
            assert page.run("sessionStorage.length + localStorage.length + document.cookie.length") == 0
            page.type("Key", ADMIN)
            page.press("Enter")
            page.see("Ready.")
            assert page.run(pages).endswith("Keys,Audit")
            page.click("Keys")
            page.see(HOSTILE)
            page.click("New key")
            page.choose("For", "/trading")
            page.click("publish")
            page.type("Note", "gate 17")
            shoot(page, "new-key")
            page.click("Create key")
            page.see("Keep it now")
            shoot(page, "keys")
            made = page.run("document.querySelector('input[readonly]').value")
            assert (
                len(s.client.get("/v1/caller", headers={"authorization": f"Bearer {made}"}).json()["spaces"])
                == 1
            )
            page.click("Audit")
            page.see("POST /v1/keys")
            shoot(page, "audit")


def test_a_key_that_is_revoked_ends_the_session(tmp_path: Path) -> None:
    with service(tmp_path, keys=True) as s:
        made = s.client.post("/v1/keys", json={"space": "default", "rights": ["subscribe"]}).json()
        with opened(tmp_path, s) as page:
            page.type("Key", made["key"])
            page.press("Enter")
            page.see("Rights")
            s.client.delete(f"/v1/keys/{made['id']}")
            page.click("Subscriptions", "nav a")
            page.see("Sign in")
            assert page.run("sessionStorage.length") == 0


def test_the_pages_are_used_by_keyboard_alone(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.see("Ready.")
            focused = "document.activeElement.innerText"
            page.press("Tab")
            assert page.run(focused) == "Skip to content"
            for expected in ("fieldfare", "Overview", "Pipeline", "Spaces", "Subscriptions"):
                page.press("Tab")
                assert page.run(focused).strip() == expected
            page.press("Enter")
            page.wait("document.activeElement.tagName === 'H1'")  # a screen reader reads the title
            assert page.run("document.title") == "Subscriptions – fieldfare"


def test_a_site_among_several_shows_its_links(tmp_path: Path) -> None:
    settings = {"broker": "here", "peers": ("there=http://127.0.0.1:9",)}
    with served(tmp_path / "data", **settings) as (gateway, client):
        s = Service(gateway, client)
        try:
            with opened(tmp_path, s) as page:
                page.click("Sites")
                page.see("Links of here")
                page.see("http://127.0.0.1:9")
                shoot(page, "sites")
        finally:
            s.close()


def test_a_service_that_goes_away_is_reported_and_the_page_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with service(tmp_path) as s, opened(tmp_path, s) as page:
        page.see("Ready.")
        page.send(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        page.see("The service cannot be reached.")
        page.send(
            "Network.emulateNetworkConditions",
            offline=False,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        page.wait("!document.body.innerText.includes('The service cannot be reached.')")
