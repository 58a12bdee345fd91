"""A circuit breaker as text scenarios: ``breaking/*.txt`` hold the commands, and below ``----`` the trace.

``want WHO ...``, ``leave WHO``, ``well WHO``, ``fail WHO [WAIT]``, ``down WHO [WAIT]``
    a caller wants to call; cancels; its call succeeded; failed; showed that no other caller needs to try
``pace SPACING``, ``pass SECONDS``
    an address allows one call per SPACING seconds; time passes

To record the traces again after an intended change:
``PYTHONPATH=src:tests/stories python tests/delivery/test_breaker_scenarios.py``; review the diff.
"""

from __future__ import annotations

import heapq
import random
from pathlib import Path

import pytest

import stories
from fieldfare.delivery.breaker import (
    FAILURES_MAX,
    OPEN_MAX_S,
    Admitted,
    Breaker,
    BreakerState,
    Due,
    Failed,
    Succeeded,
    Want,
    Withdraw,
)
from fieldfare.effects import Tell, Timer

SCENARIOS = sorted((Path(__file__).parent / "breaking").glob("*.txt"))


class Callers:
    """A breaker, its timers, and the callers that may call."""

    def __init__(self, seed: int | None = None) -> None:
        self.now = 0.0
        rng = random.Random(seed)
        if seed is None:
            rng.random = lambda: 1.0  # type: ignore[method-assign]
        self.breaker = Breaker(rng)
        self.timers: list[float] = []
        self.wanting: set[object] = set()
        self.calling: dict[object, float] = {}
        self.lines: list[str] = []

    def hand_in(self, message: Want | Withdraw | Succeeded | Failed | Due) -> None:
        for effect in self.breaker.handle(message, self.now):
            if isinstance(effect, Timer):
                heapq.heappush(self.timers, effect.at_s)
            elif isinstance(effect, Tell) and isinstance(effect.news, Admitted):
                self.wanting.remove(effect.news.who)
                self.calling[effect.news.who] = self.now
                self.lines.append(f"  {self.now:6.1f}  {effect.news.who} may call")

    def want(self, who: object) -> None:
        self.wanting.add(who)
        self.hand_in(Want(who))

    def end(self, message: Withdraw | Succeeded | Failed) -> None:
        self.wanting.discard(message.who)
        self.calling.pop(message.who, None)
        self.hand_in(message)

    def pass_time(self, seconds: float) -> None:
        end_s = self.now + seconds
        while self.timers and self.timers[0] <= end_s:
            self.now = max(self.now, heapq.heappop(self.timers))
            self.hand_in(Due())
        self.now = end_s

    def act(self, command: str) -> None:
        self.lines.append(f"> {command}")
        verb, *words = command.split()
        before = self.breaker.state
        if verb == "want":
            for word in words:
                self.want(word)
        elif verb == "pace":
            self.breaker.pace(float(words[0]))
        elif verb == "pass":
            self.pass_time(float(words[0]))
        else:
            wait_s = float(words[1]) if len(words) > 1 else 0.0
            kinds = {"leave": Withdraw, "well": Succeeded}
            self.end(kinds[verb](words[0]) if verb in kinds else Failed(words[0], verb == "down", wait_s))
        if self.breaker.state is not before:
            until = f" until {self.breaker.until_s:.1f}" if self.breaker.state is BreakerState.OPEN else ""
            self.lines.append(f"          {self.breaker.state.value}{until}")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenario_gives_the_recorded_trace(path: Path) -> None:
    script, trace = stories.parts(path)
    assert stories.told(Callers, script) == trace


@pytest.mark.parametrize("seed", range(200))
def test_random_events_never_call_a_broken_address_and_no_caller_waits_for_ever(seed: int) -> None:
    """A thousand random events, each compared with the behaviour that the docstring describes."""
    rng = random.Random(seed)
    callers = Callers(seed)
    breaker = callers.breaker
    next_who, last_start_s, spacing_s = 0, -1e9, 0.0
    for _ in range(300):
        before = dict(callers.calling)
        state, until_s = breaker.state, breaker.until_s
        what = rng.random()
        if what < 0.4:
            callers.want(next_who)
            next_who += 1
        elif what < 0.75 and callers.calling:
            who = rng.choice(sorted(callers.calling))
            kinds = [Succeeded(who), Failed(who), Failed(who, True, rng.choice((0.0, 50.0))), Withdraw(who)]
            callers.end(rng.choices(kinds, (4, 3, 1, 1))[0])
        elif what < 0.8 and callers.wanting:
            callers.end(Withdraw(rng.choice(sorted(callers.wanting))))
        elif what < 0.82:
            breaker.pace(spacing_s := rng.choice((0.0, 0.5)))
        else:
            callers.pass_time(rng.expovariate(0.3))
        begun = sorted(set(callers.calling.items()) - set(before.items()), key=lambda each: each[1])
        for _, at_s in begun:
            assert at_s - last_start_s >= spacing_s - 1e-9
            assert state is not BreakerState.OPEN or at_s >= until_s - 1e-9
            last_start_s = at_s
        if breaker.state is BreakerState.TRYING:
            assert not callers.wanting or breaker._trier in callers.calling or callers.timers
        if callers.wanting and not callers.calling:
            assert callers.timers, "a waiting caller is tried again later"
        assert not (breaker.state is BreakerState.CLOSED and breaker.failures >= FAILURES_MAX)
        if breaker.state is BreakerState.OPEN:
            assert breaker.until_s <= callers.now + OPEN_MAX_S
    for _ in range(10 * next_who):
        if not (callers.wanting or callers.calling):
            break
        for who in list(callers.calling):
            callers.end(Succeeded(who))
        callers.pass_time(OPEN_MAX_S)
    assert not callers.wanting, "everybody has had his turn"
    callers.want("one more")
    callers.pass_time(OPEN_MAX_S)
    callers.end(Succeeded("one more"))
    assert breaker.state is BreakerState.CLOSED


if __name__ == "__main__":
    stories.record(Callers, SCENARIOS)
