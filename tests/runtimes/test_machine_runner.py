"""The runner of machines as text: ``running/*.txt`` say what machines do; below ``----`` what comes of it.

``MACHINE MESSAGE: EFFECT, EFFECT ...``
    the effects of a machine at a message, ``start`` among them: ``send TO MESSAGE``,
    ``timer SECONDS MESSAGE`` (from now), ``ask QUESTION``, ``tell NEWS``, ``stop``; ``fail`` raises once
``answer QUESTION SECONDS [ANSWER]``, ``deaf``
    the handler of a question, which fails without an answer; listeners fail
``add MACHINE ...``, ``pass MACHINE MESSAGE``, ``run SECONDS``, ``close``
    what happens

To record the traces again after an intended change:
``PYTHONPATH=src:lab:tests/stories python tests/runtimes/test_machine_runner.py``; review the diff.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

import stories
from fieldfare.effects import Ask, AskFailed, Effect, Received, Send, Stop, Tell, Timer, source
from fieldfare.runtimes import machines
from fieldfare.runtimes.machines import MachineRunner
from fieldfare_lab.simulation.network import Network

SCENARIOS = sorted((Path(__file__).parent / "running").glob("*.txt"))


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while it waits for a timer, and at once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__()
        select = self._selector.select

        def pass_time(timeout: float | None) -> list[object]:
            self.now_s += timeout or 0.0
            return select(0)

        self._selector.select = pass_time

    def time(self) -> float:
        return self.now_s


@contextmanager
def virtual_time() -> Iterator[tuple[Loop, asyncio.Runner]]:
    with asyncio.Runner(loop_factory=Loop) as running:
        loop = running.get_loop()
        assert isinstance(loop, Loop)
        yield loop, running


@dataclass(frozen=True)
class Question:
    name: str


@dataclass(frozen=True)
class News:
    name: str


class Scripted:
    """A machine that returns the effects in its script, and writes what it gets."""

    def __init__(self, name: str, script: dict[str, str], lines: list[str]) -> None:
        self._name, self._script, self._lines = name, script, lines

    def start(self, now: float) -> list[Effect]:
        return self._effects("start", now)

    def handle(self, message: object, now: float) -> list[Effect]:
        sender, content = source(self._name, message)
        if isinstance(content, AskFailed):
            content = f"{content.question.name} failed: {content.error}"
        self._lines.append(
            f"{now:5.1f}  {self._name}: {content}" + (f" from {sender}" * (sender != self._name))
        )
        return self._effects(str(content).split()[0], now)

    def _effects(self, message: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for text in filter(None, self._script.get(message, "").split(", ")):
            verb, *words = text.split()
            match verb:
                case "send":
                    effects.append(Send(words[0], words[1]))
                case "timer":
                    effects.append(Timer(now + float(words[0]), words[1]))
                case "ask":
                    effects.append(Ask(Question(words[0])))
                case "tell":
                    effects.append(Tell(News(words[0])))
                case "stop":
                    effects.append(Stop())
                case "fail":
                    self._script[message] = self._script[message].replace("fail", "")
                    raise RuntimeError("it cannot do that")
                case _:
                    raise AssertionError(text)
        return effects


class Running:
    """A runner with scripted machines, in virtual time."""

    def __init__(self, loop: Loop, running: asyncio.Runner) -> None:
        self.lines: list[str] = []
        self._loop, self._running = loop, running
        self._scripts: dict[str, dict[str, str]] = {}
        self._answers: dict[str, tuple[float, str]] = {}
        self._is_deaf = False
        log = logging.Logger("runner")
        log.addHandler(Lines(self.lines))
        self.runner = MachineRunner(
            {Question: self._answer},
            {News: self._hear, Stop: self._ended},
            lambda name, effect: self.lines.append(
                f"       {name} sends {effect.message} to {effect.to}, elsewhere"
            ),
            clock=loop.time,
            logger=log,
        )

    async def _answer(self, name: str, question: Question) -> object:
        after_s, answer = self._answers[question.name]
        try:
            await asyncio.sleep(after_s)
        except asyncio.CancelledError:
            self.lines.append(f"{self._loop.now_s:5.1f}  {question.name} is cancelled")
            raise
        if not answer:
            raise OSError("no answer")
        return None if answer == "none" else answer

    def _hear(self, name: str, news: News) -> None:
        self.lines.append(f"       {name} tells {news.name}")
        if self._is_deaf:
            raise OSError("the listener is deaf")
        if news.name.startswith("pass-"):
            self.runner.dispatch(name, news.name.removeprefix("pass-"))
            self.lines.append("       the listener returns")

    def _ended(self, name: str, stop: Stop) -> None:
        self.lines.append(f"       {name} has ended")

    def act(self, command: str) -> None:
        self._running.run(self._act(command))

    async def _act(self, command: str) -> None:
        before, is_script, after = command.partition(": ")
        if is_script:
            name, message = before.split()
            self._scripts.setdefault(name, {})[message] = after
            return
        verb, *words = command.split()
        if verb == "answer":
            self._answers[words[0]] = float(words[1]), " ".join(words[2:])
            return
        self.lines.append(f"> {command}")
        match verb:
            case "deaf":
                self._is_deaf = True
            case "add":
                for name in words:
                    self.runner.add(name, Scripted(name, self._scripts.get(name, {}), self.lines))
            case "pass":
                self.runner.dispatch(words[0], words[1])
            case "run":
                await asyncio.sleep(float(words[0]))
            case "close":
                await self.runner.close()
            case _:
                raise AssertionError(command)


class Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"       {record.levelname.lower()}: {record.getMessage()}")


def told(script: str) -> str:
    with virtual_time() as (loop, running):
        return stories.told(lambda: Running(loop, running), script)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_machines_run_as_the_text_says(path: Path) -> None:
    script, trace = stories.parts(path)
    assert told(script) == trace


def test_a_message_for_which_the_queue_has_no_room_is_lost(monkeypatch, caplog) -> None:
    """Two machines that answer each message with two more filled the memory."""
    monkeypatch.setattr(machines, "QUEUE_MAX", 8)
    got = 0

    class Doubling:
        def __init__(self, other: str) -> None:
            self._other = other

        def start(self, now: float) -> list[Effect]:
            return []

        def handle(self, message: object, now: float) -> list[Effect]:
            nonlocal got
            got += 1
            return [] if got > 1_000 else [Send(self._other, "more"), Send(self._other, "more")]

    async def run() -> None:
        runner = MachineRunner({}, {})
        runner.add("a", Doubling("b"))
        runner.add("b", Doubling("a"))
        runner.dispatch("a", "begin")
        async with asyncio.timeout(60):
            while not runner.is_idle:
                assert len(runner._queue) <= 8
                await asyncio.sleep(0)
        assert runner.lost > 900
        await runner.close()

    asyncio.run(run())
    assert "messages of a are lost" in caplog.text or "messages of b are lost" in caplog.text


# One trace in the simulation and here

SILENT = logging.Logger("silent", logging.CRITICAL)

PLANS = st.lists(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.sampled_from("abc")),
            st.tuples(st.sampled_from(["timer", "ask", "fail", "tell", "stop"]), st.just("")),
        ),
        max_size=4,
    ),
    min_size=1,
    max_size=30,
)
"""The effects at each message, in the order of all messages."""


class Planned:
    """A machine that takes its effects from the plan that all share; each of its messages has a number."""

    def __init__(
        self, name: str, plan: Iterator[list[tuple[str, str]]], trace: list[tuple[object, ...]]
    ) -> None:
        self._name, self._plan, self._trace, self._sent = name, plan, trace, 0

    def start(self, now: float) -> list[Effect]:
        return self._effects(now)

    def handle(self, message: object, now: float) -> list[Effect]:
        sender, content = source(self._name, message)
        if isinstance(content, AskFailed):
            content = f"{content.question.name} failed"
        self._trace.append((round(now, 9), self._name, sender, content))
        return self._effects(now)

    def _effects(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for verb, to in next(self._plan, []):
            self._sent += 1
            content = f"{self._name}{self._sent}"
            match verb:
                case "send" if to != self._name:
                    effects.append(Send(to, content))
                case "timer":
                    effects.append(Timer(now + delay_s(f"timer {content}"), content))
                case "ask" | "fail":
                    effects.append(Ask(Question(f"{verb} {content}")))
                case "tell":
                    effects.append(Tell(News(content)))
                case "stop":
                    effects.append(Stop())
        return effects


def delay_s(content: str) -> float:
    """A delay of its own for each message: no two arrive at the same time."""
    return Random(content).uniform(0.001, 2.0)


def simulated(plan: list[list[tuple[str, str]]]) -> list[tuple[object, ...]]:
    trace: list[tuple[object, ...]] = []
    environment = simpy.Environment()

    class Outside:
        def answer(self, name: str, question: Question) -> tuple[float, object]:
            answer = (
                AskFailed(question, OSError()) if "fail" in question.name else f"{question.name} answered"
            )
            return delay_s(question.name), answer

        def told(self, name: str, news: News) -> None:
            trace.append((round(environment.now, 9), name, "tells", news.name))

        def stopped(self, name: str) -> None:
            trace.append((round(environment.now, 9), name, "stops"))

    network = Network(environment, Outside(), lambda: 0.0, Random(0))
    send = network._later

    def later(_: float, to: str, message: Received) -> None:
        send(delay_s(f"send {message.message}"), to, message)

    network._later = later  # the delay is that of the message
    shared = iter(plan)
    for name in "abc":
        network.add(name, Planned(name, shared, trace))
    environment.run()
    return trace


def run_in_service(plan: list[list[tuple[str, str]]]) -> list[tuple[object, ...]]:
    trace: list[tuple[object, ...]] = []
    with virtual_time() as (loop, running):

        async def answer(name: str, question: Question) -> object:
            await asyncio.sleep(delay_s(question.name))
            if "fail" in question.name:
                raise OSError
            return f"{question.name} answered"

        def hear(name: str, news: News) -> None:
            trace.append((round(loop.now_s, 9), name, "tells", news.name))

        def ended(name: str, stop: Stop) -> None:
            trace.append((round(loop.now_s, 9), name, "stops"))

        runners: dict[str, MachineRunner] = {}

        def send(name: str, effect: Send) -> None:
            message = Received(name, effect.message)
            after_s = delay_s(f"send {effect.message}")
            loop.call_later(after_s, runners[effect.to].dispatch, effect.to, message)

        async def run() -> None:
            shared = iter(plan)
            for name in "abc":  # each at a place of its own: a message to another one takes its time
                runners[name] = MachineRunner(
                    {Question: answer},
                    {News: hear, Stop: ended},
                    send,
                    clock=loop.time,
                    logger=SILENT,
                )
            for name in "abc":
                runners[name].add(name, Planned(name, shared, trace))
            await asyncio.sleep(1_000)
            for runner in runners.values():
                await runner.close()

        running.run(run())
    return trace


@settings(max_examples=200, deadline=None, derandomize=True)
@given(PLANS)
def test_machines_do_the_same_in_the_service_as_in_the_simulation(plan: list[list[tuple[str, str]]]) -> None:
    assert run_in_service(plan) == simulated(plan)


if __name__ == "__main__":
    for scenario in SCENARIOS:
        commands, _ = stories.parts(scenario)
        scenario.write_text(f"{commands}\n----\n{told(commands)}\n")
