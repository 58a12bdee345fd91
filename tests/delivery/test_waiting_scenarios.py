"""Waiting for matches as text scenarios: ``scenarios/*.txt`` hold commands, and below ``----`` the trace.

A scenario has one command per line:

``partitions COUNT``
    optional first line: the number of partitions; then offsets include their partition, as in ``1:7``
``block END NUMBER=OFFSET,... ...``
    the records up to END are matched, and these subscriptions match these offsets
``wait NUMBER [OFFSET]``, ``leave NUMBER``
    a reader waits for a subscription, which begins at OFFSET the first time; the reader leaves
``see``, ``look``
    reads begin for the waiting readers, without results yet; reads complete
``take NUMBER COUNT [LEASE]``, ``ack NUMBER OFFSET ...``, ``nack NUMBER OFFSET ...``, ``pass SECONDS``
    actions of readers, and passing time
``set NUMBER NAME=VALUE ...``
    settings of a delivery, in JSON, replacing all earlier ones
``terminate NUMBER OFFSET ...``, ``retry NUMBER OFFSET ...``, ``seek NUMBER OFFSET``, ``letters NUMBER``
    a reader gives messages up; a person retries them, sets the delivery to another position, or
    lists the dead letters (which are not saved here)
``break OFFSET``, ``mend``, ``keep OFFSET``
    the block that begins there becomes unreadable; it becomes readable again; retention removes earlier
    blocks
``groups``
    show the read groups

To record the traces again after an intended change:
``PYTHONPATH=src:tests/stories python tests/delivery/test_waiting_scenarios.py``;
review the diff.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import stories

sys.path.insert(0, str(Path(__file__).parent))

from delivery_support import Readers

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.keys import PARTITION_SHIFT, key_at, offset_of
from fieldfare.delivery.read_scheduler import StopWaiting
from fieldfare.model import DeliverySettings

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Story(Readers):
    """Readers whose results are recorded; each event is a record of its own."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__()

    def ready(self, delivery: Delivery) -> None:
        self.lines.append(f"  {self.now:5.1f}  {delivery.number} is woken")

    def act(self, command: str) -> None:
        self.lines.append(f"> {command}")
        verb, *words = command.split()
        before = self.looked
        if verb == "partitions":
            super().__init__(partitions=int(words[0]))
        elif verb == "block":
            keys = {
                int(number): [key_said(offset) for offset in offsets.split(",")]
                for number, _, offsets in (word.partition("=") for word in words[1:])
            }
            end = key_said(words[0])
            self.matched(offset_of(end), keys, end >> PARTITION_SHIFT)
        elif verb == "take":
            given = self.take(int(words[0]), int(words[1]), *map(float, words[2:]))
            self.lines.append(f"         given {self._said(given)}")
        elif verb in ("ack", "nack"):
            delivery = self.deliveries[int(words[0])]
            self.scheduler.bring(delivery)
            keys_said = [key_said(word) for word in words[1:]]
            count = delivery.ack(keys_said) if verb == "ack" else delivery.nack(keys_said, self.now)
            cursors = self._said(delivery.cursor_keys).strip("[]")
            self.lines.append(f"         {count}; the cursor is {cursors}")
        elif verb in ("set", "terminate", "retry", "seek", "letters"):
            self._settle(verb, self.deliveries[int(words[0])], words[1:])
        elif verb == "wait":
            self.wait(int(words[0]), *(offset_of(key_said(word)) for word in words[1:]))
        elif verb == "fronts":
            self._show_fronts()
        elif verb == "break":
            self.unreadable.add(int(words[0]))
        elif verb == "keep":
            self.kept_from = int(words[0])
        elif verb == "pass":
            self.pass_time(float(words[0]))
        else:
            {"leave": self.leave, "see": self.see, "look": self.look, "mend": self.mend}[verb](
                *map(int, words)
            )
        if self.looked > before:
            self.lines.append(f"         {self.looked - before} looks")

    def _settle(self, verb: str, delivery: Delivery, words: Sequence[str]) -> None:
        if verb == "set":
            settings = {name: json.loads(value) for name, _, value in (word.partition("=") for word in words)}
            delivery.configure(DeliverySettings(**settings))
        elif verb == "letters":
            for letter in delivery.tries.letters.values():
                place = self._said([letter.key]).strip("[]")
                self.lines.append(f"         {place}: {letter.reason}, attempt {letter.attempts}")
        elif verb == "terminate":
            count = delivery.terminate(map(key_said, words), "bad")
            self.lines.append(f"         {count} given up")
        elif verb == "retry":
            delivery.saved(delivery.mark())
            delivery.retry(map(key_said, words))
        else:
            self.hand_in(StopWaiting(delivery))
            delivery.seek([key_said(words[0])])

    def _said(self, keys: Iterable[int]) -> str:
        if self.partitions == 1:
            return str([offset_of(key) for key in keys])
        return f"[{', '.join(f'{key >> PARTITION_SHIFT}:{offset_of(key)}' for key in keys)}]"

    def _show_fronts(self) -> None:
        places: dict[int, list[int]] = {}
        for groups in self.scheduler.groups:
            for number, group in groups.front_of.items():
                places.setdefault(group.key, []).append(number)
        for key in sorted(places):
            at = self._said([key]).strip("[]")
            self.lines.append(f"         at {at}: {', '.join(map(str, sorted(places[key])))}")


def key_said(text: str) -> int:
    """The key of an offset, or of an offset in a partition."""
    *partition, offset = map(int, text.split(":"))
    return key_at(*partition, offset) if partition else key_at(0, offset)


BEGIN = Story


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenario_gives_the_recorded_trace(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(BEGIN, script) == trace


if __name__ == "__main__":
    stories.record(BEGIN, SCENARIOS)
