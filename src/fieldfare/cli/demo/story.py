"""The demo as its reader sees it: the steps in order, the verdict, the figures, where to look next."""

from __future__ import annotations

import sys
import time

from fieldfare.cli.demo.check import Difference
from fieldfare.cli.demo.display import Display, latency_text, make_display
from fieldfare.cli.demo.figures import latency_ms
from fieldfare.cli.demo.flights import FlightsMissingError
from fieldfare.cli.demo.replay import Stalled
from fieldfare.cli.demo.scenario import Demo, DemoSettings
from fieldfare.cli.demo.service import ServiceFailed, ServicePlaces
from fieldfare.client import FieldfareError
from fieldfare.storage.errors import StorageError

DIFFERENCES_SHOWN = 10

WHERE_NEXT = """\
Where to look next:
  fieldfare serve --data fieldfare-data     a service of your own; then, in other terminals:
  fieldfare subscribe --filter "data.price < 18.5"
  fieldfare publish quotes.jsonl --type quote
  fieldfare top                             its live figures
  README.md, ARCHITECTURE.md, examples/     the 30-line client, the path of an event, Spark jobs"""


def tell(events: int | None, alerts: int, subscribers: int, places: ServicePlaces) -> int:
    """Run the demo; return the exit code: 0 if all is equal, 1 if not or if it failed, 130 on Ctrl-C."""
    display = make_display(sys.stdout)
    try:
        settings = DemoSettings(events, alerts, subscribers)
        return 0 if _tell(settings, display, places) else 1
    except (FieldfareError, FlightsMissingError, ServiceFailed, Stalled, StorageError, OSError) as error:
        display.say(f"the demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        display.say("stopped")
        return 130


def _tell(settings: DemoSettings, display: Display, places: ServicePlaces) -> bool:
    started_s = time.monotonic()
    with Demo(settings, display, places) as demo:
        demo.prepare()
        display.say(
            f"{len(demo.events):,} departures, {settings.alerts:,} alerts; the service: {demo.service.url}"
        )
        for alert in demo.others[:3]:
            display.say(f"  for instance  {alert.filter}")
        demo.register()
        demo.replay()
        differences, checked = demo.check()
        display.say(_verdict(demo, differences, checked))
        display.table("In figures", _summary(demo, time.monotonic() - started_s))
        with display.step("stop the service"):
            demo.service.stop()
    display.say(WHERE_NEXT)
    return not differences


def _verdict(demo: Demo, differences: list[Difference], checked: int) -> str:
    if not differences:
        return (
            f"EQUAL: what was delivered to {len(demo.followed)} subscribers and what the match log holds for "
            f"{checked} filters is exactly what a naive evaluator finds in all {len(demo.events):,} events."
        )
    shown = "\n".join(f"  {difference}" for difference in differences[:DIFFERENCES_SHOWN])
    more = len(differences) - DIFFERENCES_SHOWN
    return f"DIFFERENT from the naive evaluator, {len(differences)} times:\n{shown}" + (
        f"\n  and {more} more" if more > 0 else ""
    )


def _summary(demo: Demo, took_s: float) -> list[tuple[str, str]]:
    replayed = demo.replayed
    p50, p99 = (latency_text(latency_ms(replayed.latencies_s, share)) for share in (0.5, 0.99))
    return [
        ("events", f"{len(replayed.positions):,}"),
        ("alerts", f"{demo.settings.alerts:,}"),
        ("matches", f"{replayed.matches:,}"),
        ("events a second, first publish to last match", f"{replayed.events_per_s:,.0f}"),
        ("delivered live", f"{len(replayed.deliveries):,}"),
        ("latency under full load, publish to delivery, p50", p50),
        ("p99", p99),
        ("memory of all processes together, peak", f"{demo.memory.peak_bytes / 2**30:.2f} GiB"),
        ("the whole demo took", f"{took_s:.0f} s"),
    ]
