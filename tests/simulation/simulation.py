"""One seed: a machine, people who use it, accidents between any two steps, and what must be true then."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from .disk import Disk
from .history import Broken, History
from .machine import Machine, SomeSettings, standing_in
from .people import Line, People, Space
from .steps import Loop, Now, Process, Steps

STEPS_MAX = 60_000
ACCIDENT_SHARE = 0.006
ACCIDENTS = ("gateway", "gateway", "gateway", "indexer", "driver", "driver", "power", "task", "clock")
QUIET_S = 3.5
"""So long the service goes on when people are gone: what is left of spaces is removed."""


@dataclass
class Outcome:
    """What became of a seed.

    Attributes
    ----------
    said
        Which promise was not kept; empty where all were.
    trace
        What befell the machine, a line each.
    """

    seed: int
    said: str
    trace: list[str]
    steps: int
    counts: Counter[str]


_SETTINGS = SomeSettings(
    poll_ms=100,
    stats_s=1.0,
    maintenance_s=1.5,
    retention_s=1e9,
    retention_bytes=1 << 40,
    disk_free_min_bytes=0,
    ack_deadline_s=5.0,
    webhook_requests_max=0,
)
_SMALL = _SETTINGS.model_copy(update={"retention_bytes": 2_400})


@contextmanager
def simulated() -> Iterator[None]:
    """While this is open seeds can be run."""
    logging.disable(logging.CRITICAL)
    try:
        with standing_in():
            yield
    finally:
        logging.disable(logging.NOTSET)


class Simulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.steps = Now.steps = Steps(seed)
        random = self.random = Random(f"{seed} people")
        partitions = random.choice((1, 1, 1, 2, 3))
        self.keeps_all = random.random() < 0.7
        self.disk = Disk(seed, partitions, random.choice((0.0, 0.2)))
        self.trace: list[str] = []
        settings = _SETTINGS if self.keeps_all else _SMALL
        self.machine = Machine(self.steps, self.disk, settings, random.choice((1, 3, 8)))
        self.history = History()
        people = Process(self.steps, "people")
        self.loop = Loop(people)
        self.people = People(Line(self.machine, self.loop), self.history, random)
        self.accidents_left = random.choice((0, 1, 3, 6, 10))
        self.happened: Counter[str] = Counter()
        self.disk.on_trim = self._check_trim
        self._trimmed: list[str] = []

    def run(self) -> Outcome:
        """Run it to its end."""
        said = ""
        try:
            self._run()
        except Broken as broken:
            said = str(broken)
        finally:
            for name in list(self.machine.processes):
                self.machine.processes[name].kill()
            self.loop.process.kill()
        self.happened["delivered"] = sum(len(each.given) for each in self.history.readings)
        self.happened["records"] = len(self.history.records)
        return Outcome(self.seed, said, self.trace, self.steps.count, self.happened)

    def _run(self) -> None:
        steps, machine = self.steps, self.machine
        chance = Random(f"{self.seed} accidents")
        story = self.loop.create_task(self._story())
        while not story.done():
            if not steps.step() or steps.count > STEPS_MAX:
                raise Broken(f"stuck: after {steps.count} steps {self._waiting()}")
            if self.accidents_left and chance.random() < ACCIDENT_SHARE:
                self._suffer(chance)
            if steps.count & 15 == 0:
                machine.look()
                self._complain()
        story.result()
        until_s = steps.now_s + QUIET_S
        while steps.now_s < until_s and steps.step():
            machine.look()
        for process in machine.processes.values():
            machine._complain(process)
        self._complain()
        self._check_disk()

    def _complain(self) -> None:
        if self.machine.said or self._trimmed or self.loop.failures:
            raise Broken(f"wrong: {(*self.machine.said, *self._trimmed, *self.loop.failures)[0]}")

    def _waiting(self) -> str:
        left = {f"{each.space}/{each.id}": self.history.left(each)[:3] for each in self.history.readings}
        return f"{left}, at {self.steps.now_s:.0f} s"

    def _suffer(self, chance: Random) -> None:
        kind = chance.choice(ACCIDENTS)
        self.accidents_left -= 1
        if kind == "power":
            self.machine.power_failure()
        elif kind == "clock":
            self.steps.set_by_s += chance.choice((-86_400.0, 3_600.0, 864_000.0))
        elif kind == "task":
            if self.happened["task"] or not self.machine.kill_task():
                return
        else:
            self.machine.kill(kind)
        self.happened[kind] += 1
        self.trace.append(f"step {self.steps.count}, {self.steps.now_s:.2f} s: {kind}")

    async def _story(self) -> None:
        people, random = self.people, self.random
        spaces = [Space("default", 0)]
        if random.random() < 0.6:
            await people.make_space("other")
            spaces.append(Space("other", 0))
        at_work = []
        for space in spaces:
            for number in range(random.choice((1, 2))):
                at_work.append(people.begin(people.publish(space, f"p{number}", random.randrange(2, 8))))
            for number in range(random.choice((1, 1, 2))):
                owner = people.own(space, f"s{number}", shared=random.random() < 0.25)
                at_work.append(people.begin(owner))
        if random.random() < 0.35:
            at_work.append(people.begin(self._brief_space()))
        await asyncio.sleep(random.choice((0.7, 2.0, 5.0)))
        self.accidents_left = min(self.accidents_left, 1 if random.random() < 0.3 else 0)
        people.is_draining = True
        await asyncio.gather(*at_work)
        for reading in self.history.readings:
            self.history.check(reading)

    async def _brief_space(self) -> None:
        """A space that is deleted, and one of its name after it."""
        people, random = self.people, self.random
        for count in range(2):
            space = Space("brief", count)
            await people.make_space(space.name)
            others = [people.begin(people.publish(space, "p0", 5))]
            others.append(people.begin(people.own(space, "s0", shared=random.random() < 0.5)))
            if count == 0:
                await people.end_space(space, others)
                self.happened["deleted spaces"] += 1
            else:
                await asyncio.gather(*others)

    def _check_trim(self, number: int, before: int, start: int) -> None:
        """Retention may take what is matched, and can be read after any failure of the power."""
        self.history.starts[number] = start
        matches = self.disk.matches.all[number]
        kept = [block for block in matches.blocks if block not in matches.unsynced | matches.torn]
        at = before
        while at < start:
            block = next((block for block in kept if block.start <= at < block.end), None)
            if block is None:
                self._trimmed.append(f"retention took record {number}-{at}, which was not matched for good")
                return
            at = block.end

    def _check_disk(self) -> None:
        """Of spaces that are gone nothing is left but what goes with history and retention."""
        registry = self.disk.registry
        keys = {space.key for space in registry.stored_spaces()}
        left = [f"the subscription {space}/{id}" for space, id in registry._standing if space not in keys]
        left += [f"the past of {replay.number}" for replay in registry.replays() if replay.space not in keys]
        left += [f"the unfinished space {key}" for key in registry.unfinished_spaces()]
        known = {f"{replay.number}-{replay.revision}" for replay in registry.replays()}
        left += [f"the matches of the past {name}" for name in self.disk.replay_folders() - known]
        if left:
            raise Broken(f"foreign: there is still {left[0]}")


def simulate(seed: int) -> Outcome:
    """Run a seed; within `simulated`."""
    outcome: Any = Simulation(seed).run()
    assert isinstance(outcome, Outcome)
    return outcome


def simulate_all(seeds: range, collect_every: int = 40) -> Iterator[Outcome]:
    """Run seeds; memory is tidied now and then, and not while one runs."""
    gc.disable()
    try:
        for at, seed in enumerate(seeds):
            yield simulate(seed)
            if at % collect_every == collect_every - 1:
                gc.collect()
    finally:
        gc.enable()


def report(outcome: Outcome) -> str:
    """What is told of a seed that fails."""
    lines = [
        f"seed {outcome.seed}: {outcome.said}",
        *(f"  {line}" for line in outcome.trace),
        f"alone: python -m tests.simulation --seed {outcome.seed}",
    ]
    return "\n".join(lines)
