"""Waiting for matches as text: ``scenarios/*.txt`` hold what happens; below ``----`` what comes of it.

A story is commands, one a line:

``block END NUMBER=OFFSET,... ...``
    the records up to END are matched, and these of them by these subscriptions
``wait NUMBER [OFFSET]``, ``leave NUMBER``
    somebody waits for a subscription, which the first time begins there; nobody does any more
``see``, ``look``
    looks read who waits, and nobody hears of it yet; looks come to their end
``take NUMBER COUNT [LEASE]``, ``ack NUMBER OFFSET ...``, ``nack NUMBER OFFSET ...``, ``pass SECONDS``
    what readers do, and time
``break OFFSET``, ``mend``, ``keep OFFSET``
    the block that begins there cannot be read; it can again; retention takes what lies before
``fronts``
    who waits where

To record the traces anew after a change that was meant:
``PYTHONPATH=src:tests/stories python tests/delivery/test_waiting_scenarios.py``;
review the diff.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stories

sys.path.insert(0, str(Path(__file__).parent))

from delivery_support import Readers

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.keys import INDEX_BITS

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Story(Readers):
    """Readers of whom it is written down what becomes of them; an event is a record here."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__()

    def ready(self, delivery: Delivery) -> None:
        self.lines.append(f"  {self.now:5.1f}  {delivery.number} is woken")

    def act(self, command: str) -> None:
        self.lines.append(f"> {command}")
        verb, *words = command.split()
        before = self.looked
        if verb == "block":
            keys = {
                int(number): [int(offset) << INDEX_BITS for offset in offsets.split(",")]
                for number, _, offsets in (word.partition("=") for word in words[1:])
            }
            self.matched(int(words[0]), keys)
        elif verb == "take":
            given = self.take(int(words[0]), int(words[1]), *map(float, words[2:]))
            self.lines.append(f"         given {[key >> INDEX_BITS for key in given]}")
        elif verb in ("ack", "nack"):
            delivery = self.deliveries[int(words[0])]
            self.frontier.bring(delivery)
            keys_said = [int(word) << INDEX_BITS for word in words[1:]]
            count = delivery.ack(keys_said) if verb == "ack" else delivery.nack(keys_said)
            self.lines.append(f"         {count}; the cursor is {delivery.cursor_keys[0] >> INDEX_BITS}")
        elif verb == "fronts":
            self._show_fronts()
        elif verb == "break":
            self.unreadable.add(int(words[0]))
        elif verb == "keep":
            self.kept_from = int(words[0])
        elif verb == "pass":
            self.pass_time(float(words[0]))
        else:
            {"wait": self.wait, "leave": self.leave, "see": self.see, "look": self.look, "mend": self.mend}[
                verb
            ](*map(int, words))
        if self.looked > before:
            self.lines.append(f"         {self.looked - before} looks")

    def _show_fronts(self) -> None:
        places: dict[int, list[int]] = {}
        for number, front in self.frontier.fronts[0].front_of.items():
            places.setdefault(front.offset, []).append(number)
        for offset in sorted(places):
            self.lines.append(f"         at {offset}: {', '.join(map(str, sorted(places[offset])))}")


BEGIN = Story


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_story_goes_as_it_was_told(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(BEGIN, script) == trace


if __name__ == "__main__":
    stories.record(BEGIN, SCENARIOS)
