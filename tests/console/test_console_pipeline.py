"""The console's page *Pipeline*: what it shows of a pipeline's files, the trace, quarantined records."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM
from gateway_support import until
from test_console import HOSTILE, Service, opened, service, set_up, shoot

from fieldfare.elasticity import Configuration, Operators
from fieldfare.elasticity.messages import SliceMove
from fieldfare.partitioning import HashPartitioning
from fieldfare.pipeline.manifest import Manifest, SliceManifest, SpaceManifest
from fieldfare.storage import open_index_store
from fieldfare.storage.elastic import Decision, ElasticLoads, ElasticRecord, HostLoad, SliceLoadNow
from fieldfare.storage.quarantine import QuarantinedRecord

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"),
]
NOW_MS = 1_795_752_000_000


class Beats:
    """The heartbeats of pipeline and indexer, in place of those of the service's naive pipeline."""

    def __init__(self, s: Service) -> None:
        self._folder = s.gateway.settings.folder
        self._figures: dict[str, dict[str, Any]] = {"pipeline": {}, "indexer": {}}
        self.say("pipeline", state="running", matched=[2], offset=2, indexed=True, matchers=1, cores=2)
        self.say("indexer", state="running", revision=5, snapshot_revision=0, manifest=1)
        s._pipeline.beat = self.write  # type: ignore[method-assign]

    def say(self, process: str, **figures: Any) -> None:
        self._figures[process] = {"pid": 4711, "started_ms": NOW_MS} | self._figures[process] | figures

    def write(self, offset: int | None = None, state: str = "running") -> None:
        for process, figures in self._figures.items():
            path = self._folder.heartbeat_of(process)
            path.with_suffix(".new").write_text(
                json.dumps(figures | {"time_ms": time.time_ns() // 1_000_000})
            )
            path.with_suffix(".new").replace(path)


def write_elastic(s: Service, reason: str) -> None:
    """Two hosts, one of which is new, and three slices."""
    folder = s.gateway.settings.folder
    configuration = Configuration(Operators(0, {"M": 3}, 0), {}).begun(2)
    decisions = [
        Decision(NOW_MS, "local: host1 has CPU 93%", [SliceMove("M:2", 0)], 1, ["host9"], True),
        Decision(NOW_MS + 60_000, reason, [SliceMove("M:3", "host1")], 0, [], False),
    ]
    ElasticRecord(configuration, decisions).write(folder.elastic)
    hosts = [HostLoad("host1", "0", 2, True, 0.425), HostLoad("host2", "1", 2, False, 0.05)]
    slices = [SliceLoadNow("M:1", "host1", 0.425, 12_300_000), SliceLoadNow("M:2", "", 0.0, 0)]
    slices.append(SliceLoadNow("M:3", "host2", 0.05, 7_000_000))
    ElasticLoads(time.time_ns() // 1_000_000, False, 1, 4, hosts, slices, 200, 199).write(
        folder.elastic_loads
    )


def write_slices(s: Service, number: int) -> None:
    folder = s.gateway.settings.folder
    slices = tuple(SliceManifest(matcher=at, size=40_000 + at) for at in range(3))
    spaces = {"trading": SpaceManifest(slices, HashPartitioning(3))}
    open_index_store(folder.index_url).write_manifest(Manifest(number, 5, spaces))
    loads = [[at, 9.0, 0.0, 120.5, 900.0, 40_000] for at in range(2)]
    of_space = {"cut": 1, "number": 1, "share": 0.5, "loads": loads}
    folder.slices.write_text(json.dumps({"manifest": number, "spaces": {"trading": of_space}}))


def test_the_pipeline_page_follows_what_the_pipeline_does(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        beats = Beats(s)
        set_up(s)
        (tmp_path / "data" / "run" / "serve.json").write_text(
            json.dumps({"pid": os.getppid(), "state": "running", "time_ms": NOW_MS, "restarts": 3})
        )
        beats.say("pipeline", activity="follows", tasks=1)
        s.gateway.space_times.add({"trading": 4_200.0, "default": 950.0}, {"trading": 60_000})
        with opened(tmp_path, s) as page:
            page.click("Pipeline", "nav a")
            page.see("The pipeline follows the log with 1 task:")
            for text in ("indexer", "2026-11-27", "restarted the whole service 3 times", "all records"):
                assert text in page.text()
            page.wait("document.querySelectorAll('.chart .series').length >= 2")
            spaces = "[...document.querySelectorAll('.grid tbody th')].map((each) => each.innerText)"
            assert page.run(spaces) == ["trading", "default"]
            assert page.run("document.querySelectorAll('.grid td.share-bar svg').length") == 2
            page.run("document.querySelector('.grid tbody a').focus()")
            s.gateway.space_times.add({"trading": 800.0}, {})
            time.sleep(2.5)
            assert page.run("document.activeElement.innerText") == "trading", "a new figure keeps the focus"
            shoot(page, "pipeline")
            beats.say("pipeline", activity="matches", tasks=2, records=12_000, indexed=False)
            page.see("The pipeline matches a batch of 12,000 records with 2 tasks.")
            page.see("not yet")
            beats.say("pipeline", activity="waits")
            page.see("The pipeline waits for events, or for the index to cover them.")
            beats.say("pipeline", state="recovering", error=f"no Java {HOSTILE}")
            page.see(f"the pipeline is recovering: no Java {HOSTILE}")
            shoot(page, "pipeline-recovering")
            page.click("trading", "tbody a")
            page.wait("location.hash === '#/subscriptions/trading'")
            page.click("Overview", "nav a")
            page.wait("document.querySelectorAll('.chart .series').length >= 2")
            line = "document.querySelector('.chart .series').getAttribute('d').split('L').length"
            assert page.run(line) > 3, "the overview's charts have what was read for this page"


def test_a_chart_has_a_gap_where_nothing_was_read_and_says_its_values(tmp_path: Path) -> None:
    with service(tmp_path) as s, opened(tmp_path, s) as page:
        page.see("Ready.")
        found = page.run("""import("/console/chart.js").then(({ Chart }) => {
            const chart = new Chart("Lag", ["Oldest"], (value) => `${value} s`, { points: 8, every: 1 });
            for (const [now, value] of [[0, 1], [1, 2], [5, 3], [6, 7], [7, 4], [8, 5]]) {
                performance.now = () => 1000 * now;
                chart.add(value);
            }
            const lines = chart.picture.querySelectorAll(".series").length;
            return [chart.values[0], chart.picture.ariaLabel, lines];
        })""")
        assert found[0] == [2, None, None, None, 3, 7, 4, 5]
        assert found[1] == "Lag over the last 0 minutes; now Oldest 5 s; at most 7 s"
        assert found[2] == 2


def test_slices_hosts_and_decisions_of_an_elastic_service_are_shown(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        beats = Beats(s)
        set_up(s)
        beats.say("indexer", manifest=7)
        beats.say("pipeline", activity="waits", executors=2, matchers=2, cores=4)
        write_slices(s, 7)
        write_elastic(s, f"global: {HOSTILE}")
        with opened(tmp_path, s) as page:
            page.open(f"{s.url}/console#/pipeline")
            page.see("40,002")
            for text in (
                *("121/s", "900/s", "2 hosts, 1 to 4 allowed. 99.5 % of 200 tasks"),
                *("M:1: 42.5 %", "not warm yet", "Anywhere: M:2", "on 2 executors"),
                *("M:2 to new host 1, add 1 host, release host9", "not done", f"global: {HOSTILE}"),
            ):
                assert text in page.text(), text
            assert page.text().index("not done") < page.text().index("release host9"), "newest first"
            shoot(page, "pipeline-elastic")
            s.gateway.settings.folder.elastic_loads.unlink()
            page.see("The elastic service is not running. This is its last state.")


def test_quarantined_records_are_listed_and_retried(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        for offset in range(2):
            s.gateway.quarantine.add(QuarantinedRecord(offset, "default", 7, HOSTILE, NOW_MS))
        end = s.client.get("/v1/stats").json()["log_end"]
        with opened(tmp_path, s) as page:
            page.click("Pipeline", "nav a")
            page.see("it could not be matched")
            shoot(page, "pipeline-quarantine")
            page.click("Retry 0-0-0")
            page.see("The 7 events of record 0-0-0 were published again.")
            page.wait("document.querySelectorAll('tbody button').length === 1")
            page.click("Retry 0-1-0")
            page.see("No record was set aside.")
            until(lambda: s.client.get("/v1/stats").json()["log_end"] == end + 2)
            s.gateway.quarantine.add(QuarantinedRecord(1, "default", 1, "", NOW_MS))
            page.wait("document.querySelectorAll('tbody button').length === 1")
            s.client.post("/v1/quarantine/0-1-0/retry")
            page.click("Retry 0-1-0")
            page.see("No record is set aside at 0-1-0.")


def test_a_trace_shows_the_steps_as_bars_and_as_a_table(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.click("Pipeline", "nav a")
            page.see("Where the time goes")
            page.choose("For", "5")
            page.click("Start trace")
            page.see("Tracing for 5 s")
            assert page.run("document.querySelector('form.toolbar button').disabled")
            for _ in range(10):
                s.publish({"origin": "JFK", "dep_delay": 40})
                time.sleep(0.05)
            page.see("10 records published in 5 s and traced, 0 delivered.")
            steps = "[...document.querySelectorAll('tbody th')].map((each) => each.innerText.split('\\n')[0])"
            assert set(page.run(steps)) >= {"decoded", "appended", "noticed"}
            begins = page.run(
                "[...document.querySelectorAll('td.share-bar .part')]"
                ".map((each) => Number(each.getAttribute('x')))"
            )
            assert begins == sorted(begins) and begins[0] == 0
            shoot(page, "pipeline-trace")
            page.type("Space", "nothing here")
            page.press("Enter")
            page.see("Not found")
            page.type("Space", "trading")
            page.press("Enter")
            page.see("Publish something meanwhile")
            page.click("Start trace")
            page.click("Spaces", "nav a")  # the trace is abandoned
            page.wait("location.hash === '#/spaces'")


def test_the_page_needs_the_right_to_watch(tmp_path: Path) -> None:
    with service(tmp_path, keys=True) as s:
        keys = {
            right: s.client.post("/v1/keys", json={"space": space, "rights": [right]}).json()["key"]
            for right, space in (("subscribe", "default"), ("watch", None))
        }
        s.gateway.quarantine.add(QuarantinedRecord(0, "default", 1, "secret", NOW_MS))
        with opened(tmp_path, s) as page:
            page.type("Key", keys["subscribe"])
            page.press("Enter")
            page.see("Rights of this key")
            assert "Pipeline" not in page.run("document.getElementById('nav').innerText")
            page.click("Sign out")
            page.type("Key", keys["watch"])
            page.press("Enter")
            page.click("Pipeline", "nav a")
            page.see("1 record set aside, in spaces that this key does not manage.")
            assert "secret" not in page.text()
