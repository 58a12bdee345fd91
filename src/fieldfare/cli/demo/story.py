"""The demo's output: the steps in order, the result, the figures, and further reading."""

from __future__ import annotations

import sys
import time

from fieldfare.cli.demo.check import Difference
from fieldfare.cli.demo.display import Display, latency_text, make_display
from fieldfare.cli.demo.encrypted import PLAIN_WORDS, cut_texts
from fieldfare.cli.demo.figures import latency_ms
from fieldfare.cli.demo.flights import FlightsMissingError
from fieldfare.cli.demo.replay import Stalled
from fieldfare.cli.demo.scenario import Demo, DemoSettings
from fieldfare.cli.demo.service import ServiceFailed, ServicePlaces
from fieldfare.cli.space_keys import BANNER
from fieldfare.client import FieldfareError
from fieldfare.storage.errors import StorageError

DIFFERENCES_SHOWN = 10
LEFT_OUT_SHOWN = 3
SHOWN_CHARACTERS = 170

WHERE_NEXT = """\
Where to look next:
  fieldfare serve --data fieldfare-data     a service of your own; then, in other terminals:
  fieldfare subscribe --filter "data.price < 18.5"
  fieldfare publish quotes.jsonl --type quote
  fieldfare top                             its live figures
  README.md, ARCHITECTURE.md, examples/     the 30-line client, the path of an event, Spark jobs"""


def tell(settings: DemoSettings, places: ServicePlaces) -> int:
    """Run the demo; return the exit status: 0 if all is equal, 1 if not or if it failed, 130 on Ctrl-C."""
    display = make_display(sys.stdout)
    try:
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
            f"{len(demo.events):,} departures, {demo.alerts:,} alerts; the service: {demo.service.url}"
        )
        for alert in demo.others[:3]:
            display.say(f"  for instance  {alert.filter}")
        if settings.encrypted:
            display.say(BANNER)
            _report_omitted_alerts(demo, display)
        demo.register()
        demo.replay()
        differences, checked = demo.check()
        display.say(_verdict(demo, differences, checked))
        display.table("In figures", _summary(demo, time.monotonic() - started_s))
        with display.step("stop the service"):
            demo.service.stop()
        unread = not settings.encrypted or _show_seen(demo, display)
    display.say(WHERE_NEXT)
    return unread and not differences


def _report_omitted_alerts(demo: Demo, display: Display) -> None:
    display.say(
        f"{demo.settings.alerts - demo.alerts:,} more alerts are left out:"
        " they use conditions that cannot be encrypted, such as"
    )
    for alert, reason in list(demo.left_out.values())[:LEFT_OUT_SHOWN]:
        display.say(f"  {alert.filter}\n    {reason.partition(';')[0]}")


def _show_seen(demo: Demo, display: Display) -> bool:
    """Show what the service's files contain; return whether none of it was readable."""
    with display.step("search all files of the service for what was published"):
        seen = demo.search_service_files()
    words = ", ".join(word.decode() for word in PLAIN_WORDS)
    searched = f"{seen.files} files, {seen.size_bytes / 1e6:,.0f} MB, searched for {words}"
    rows = [
        ("an event as published", demo.events[0].as_py().decode()),
        ("the event in the log", cut_texts(seen.event)),
        ("an alert as written", seen.alert.filter),
        ("the alert in the registry", cut_texts(seen.filter)),
    ]
    display.say("In the service's files")
    for name, value in rows:
        display.say(
            f"  {name:<24}  {value[:SHOWN_CHARACTERS]}{'...' if len(value) > SHOWN_CHARACTERS else ''}"
        )
    found = ": in none of them" if not seen.plain else ":\n    " + "\n    ".join(seen.plain)
    display.say(f"  {'its files':<24}  {searched}{found}")
    return not seen.plain


def _verdict(demo: Demo, differences: list[Difference], checked: int) -> str:
    if not differences:
        return (
            f"EQUAL: what was delivered to {len(demo.followed)} subscribers and what the match log holds for "
            f"{checked} filters is exactly what a naive evaluator finds in all {len(demo.events):,} events"
            f"{', which it read in plain' if demo.settings.encrypted else ''}."
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
        ("alerts", f"{demo.alerts:,}"),
        ("matches", f"{replayed.matches:,}"),
        ("events a second, first publish to last match", f"{replayed.events_per_s:,.0f}"),
        ("delivered live", f"{len(replayed.deliveries):,}"),
        ("latency under full load, publish to delivery, p50", p50),
        ("p99", p99),
        ("memory of all processes together, peak", f"{demo.memory.peak_bytes / 2**30:.2f} GiB"),
        ("the whole demo took", f"{took_s:.0f} s"),
    ]
