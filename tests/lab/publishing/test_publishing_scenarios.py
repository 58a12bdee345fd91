"""Publishers' stories: files of scenarios/ say what a tuner meets, and below a line of ``----`` what it did.

``python tests/lab/publishing/test_publishing_scenarios.py`` writes what they do now, after a meant change.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "stories"))

import stories  # noqa: E402
from fieldfare.effects import Ask, Effect  # noqa: E402
from fieldfare.publishing.autotuned import AutotunedKnobs, AutotunedPublisher  # noqa: E402
from fieldfare.publishing.machine import (  # noqa: E402
    BatchAssigned,
    Poll,
    Polled,
    PublishingMachine,
    TransferCompleted,
)
from fieldfare.publishing.windowed import WindowedKnobs, WindowedPublisher  # noqa: E402
from fieldfare_lab.publishing import FixedPublisher  # noqa: E402

SCENARIOS = sorted((HERE / "scenarios").glob("*.txt"))


def tuner(kind: str, words: list[str]) -> PublishingMachine:
    values = {name: float(value) for name, value in (word.split("=") for word in words)}
    if kind == "fixed":
        return FixedPublisher(int(values.pop("batch_messages")), **values)
    whole = {name: int(value) if name.endswith("messages") else value for name, value in values.items()}
    if kind == "autotuned":
        return AutotunedPublisher(AutotunedKnobs(**whole))  # type: ignore[arg-type]
    return WindowedPublisher(WindowedKnobs(**whole))  # type: ignore[arg-type]


class Story:
    """One tuner: it is told what there is when it polls, and how long what it asked for took."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now = 0.0
        self._polls_at_s = 0.0
        self._machine: PublishingMachine = FixedPublisher(1, 1.0)

    def act(self, command: str) -> None:
        """``tuner``, ``poll``, ``assigned``, ``transferred``, ``setting``: see the files."""
        verb, *words = command.split()
        if verb == "tuner":
            self._machine = tuner(words[0], words[1:])
            self._tell(command, self._machine.start(self.now))
        elif verb == "poll":  # pending, arrived since, under way
            pending, arrived, transferring = (*map(int, words), *[0] * (3 - len(words)))
            self.now = self._polls_at_s
            self._tell(command, self._machine.handle(Polled(pending, arrived, transferring), self.now))
        elif verb == "assigned":  # seconds after it was asked for
            self.now += float(words[0])
            self._tell(command, self._machine.handle(BatchAssigned(), self.now))
        elif verb == "transferred":  # how many, seconds for each, under way meanwhile
            for _ in range(int(words[0])):
                done = TransferCompleted(float(words[1]), int(words[2]))
                assert self._machine.handle(done, self.now) == []
            self._tell(command, [])
        else:
            held = self._machine.setting()
            most = "unbounded" if held.most_batch_messages is None else f"at most {held.most_batch_messages}"
            self.lines.append(
                f"{self.now:7.3f}  holds: {held.batch_messages} messages ({most}),"
                f" a poll each {held.poll_interval_s:.3f} s"
            )

    def _tell(self, command: str, effects: list[Effect]) -> None:
        done = []
        for effect in effects:
            assert isinstance(effect, Ask)
            if isinstance(effect.question, Poll):
                self._polls_at_s = effect.question.at_s
                done.append(f"polls at {effect.question.at_s:.3f}")
            else:
                done.append(f"reads {effect.question.most_messages}")  # type: ignore[attr-defined]
        self.lines.append(f"{self.now:7.3f}  {command}: {', '.join(done) or 'takes note'}")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_demo_prints_its_steps(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(Story, script) == trace


if __name__ == "__main__":
    stories.record(Story, SCENARIOS)
