"""Routing as text: ``scenarios/*.txt`` hold what happens; below ``----`` what the brokers send and report.

A story is commands, one a line: ``ddbr``, ``fbr``, ``fbr covering`` or ``merc LINE`` (as in
`explorer.CLUSTERS`) begins it; ``link A B``, ``advertise A ID LOW HIGH``, ``subscribe A ID LOW HIGH``,
``unsubscribe A ID``, ``publish A EVENT``, ``cut A B``, ``heal A B``, ``crash A``, ``start A``,
``remove A BY``, ``run SECONDS``, ``tables``. Acknowledgements and messages about the topology are left out.
To record the traces again after an intended change:
``PYTHONPATH=src:lab:tests/stories python tests/lab/routing/test_routing_scenarios.py``; review the diff.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stories

sys.path.insert(0, str(Path(__file__).parent))

from explorer import clustered
from routing_support import Range, World

from fieldfare.effects import Received
from fieldfare_lab.routing import Ddbr, Fbr
from fieldfare_lab.routing.messages import (
    Accepted,
    Advertise,
    Content,
    Counts,
    Delivered,
    Forward,
    Publication,
    Refused,
    Remove,
    SetAdvertisement,
    Settle,
    Settled,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def shown(content: Content) -> str:
    if isinstance(content, Advertise):
        return f"Advertise {content.origin}:{content.id} {shown_filter(content.filter)}"
    if isinstance(content, Unadvertise):
        return f"Unadvertise {content.origin}:{content.id}"
    if isinstance(content, Subscribe):
        filter, at = shown_filter(content.filter), shown_origins(content.origins)
        covered = "" if content.is_stored else ", covered"
        return f"Subscribe {content.subscriber}:{content.id} v{content.version} {filter}{at}{covered}"
    if isinstance(content, Unsubscribe):
        at = shown_origins(content.origins)
        return f"Unsubscribe {content.subscriber}:{content.id} v{content.version}{at}"
    if isinstance(content, Accepted):
        version = f"{content.subscriber}:{content.id} v{content.version}"
        return f"Accepted {version} by {content.origin} from {content.revision}"
    if isinstance(content, Publication):
        origin = content.origin
        return f"Publication {origin.broker}:{origin.offset} stamp {origin.stamp} event {content.event}"
    if isinstance(content, Settle):
        return f"Settle session {content.session}"
    assert isinstance(content, Settled)
    return f"Settled session {content.session} at {content.watermark}"


def shown_origins(origins: tuple[str, ...]) -> str:
    return f" for {' '.join(origins)}" if origins else ""


def shown_filter(filter: object) -> str:
    return str(filter) if isinstance(filter, Range) else "everything"


class Story:
    """A world whose forwards and reports are written down."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.world = World(0)

    def act(self, command: str) -> None:
        self.lines.append(f"> {command}")
        verb, *words = command.split()
        world = self.world
        if verb in ("ddbr", "fbr"):
            uses_covering = words == ["covering"]
            self.world = World(0, lambda _: Ddbr() if verb == "ddbr" else Fbr(uses_covering=uses_covering))
            self.world.write = self._write
        elif verb == "merc":
            edges, strategy, groups = clustered(command.removeprefix("merc "))
            self.world = World(0, strategy)
            self.world.write = self._write
            for a, b in edges:
                self._link(a, b, *groups(a, b))
        elif verb == "link":
            self._link(*words)
        elif verb == "advertise":
            world.command(words[0], SetAdvertisement(words[1], Range(int(words[2]), int(words[3]))))
        elif verb == "subscribe":
            world.subscribe(words[0], words[1], int(words[2]), int(words[3]))
        elif verb == "publish":
            world.publish(words[0], int(words[1]))
        elif verb == "run":
            world.run(float(words[0]))
        elif verb == "remove":
            world.remove(*words)
        elif verb == "tables":
            self._tables()
        else:
            getattr(world, verb)(*words)

    def _link(self, a: str, b: str, *groups: str) -> None:
        for name in (a, b):
            if name not in self.world.sites:
                self.world.add(name)
        self.world.link(a, b, *groups)

    def _tables(self) -> None:
        for name, site in sorted(self.world.sites.items()):
            if site.broker is None:
                continue
            state = site.broker.state
            ids = sorted(state.subscriptions.subscriptions)
            parts = [f"L-SRT {sorted(state.advertisements)}", f"L-PRT {ids}"]
            for cluster, group in sorted(state.groups.items()):
                overlay = state.multicast.overlays.get(cluster)
                origins = sorted(group.advertisements.origins.items())
                ads = [f"{origin} by {known.source}" for origin, known in origins]
                found = group.subscriptions.entries()
                entries = [
                    f"{each.subscriber}:{each.id} to {each.source}{'' if each.versions else ', covered'}"
                    for each in found
                ]
                parts.append(f"{cluster or 'cluster'}: R-SRT {ads} R-PRT {entries}")
                if overlay:
                    others = [to for to in overlay.members() if to != name]
                    hops = [f"{to} over {overlay.next_hop(name, to)}" for to in others]
                    parts.append(f"TRT {overlay.members()} SPRT {hops}")
            self.lines.extend(f"       {name} {part}".replace("'", "") for part in parts)

    def _write(self, way: str, name: str, message: object) -> None:
        now = self.world.now
        if way == "to" and isinstance(message, Received) and isinstance(message.message, Forward):
            routed = message.message.routed
            text = f"[{routed.source} to {' '.join(routed.destinations)}] {shown(routed.content)}"
            self.lines.append(f"{now:6.2f}  {message.sender} to {name}: {text}")
        elif isinstance(message, Delivered):
            ids = " ".join(message.subscriptions)
            self.lines.append(f"{now:6.2f}  {name} delivers to {ids}: {shown(message.publication)}")
        elif isinstance(message, Counts) and message.origin != name:
            at = f"{message.origin}'s records from {message.revision}"
            self.lines.append(
                f"{now:6.2f}  {name} tells: {message.subscription} v{message.version} counts for {at}"
            )
        elif isinstance(message, Refused):
            self.lines.append(f"{now:6.2f}  {name} refuses: {message.reason}")
        elif isinstance(message, Remove):
            self.lines.append(f"{now:6.2f}  {name} removes {message.broker}")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_routing_story_goes_as_it_was_told(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(Story, script) == trace


if __name__ == "__main__":
    stories.record(Story, SCENARIOS)
