"""Restarting a service without a pause: new processes prepare beside the running ones and then replace them.

1. The supervisor's program, as it is installed now, checks whether it could start with the settings.
2. It replaces the running program in the same process (`reexec`), and takes over the children.
3. For each child a successor starts: it loads its program, and Java, and waits.
4. When all are prepared, all children are stopped, and each successor takes over as soon as its predecessor
   has released its lock. They change together, for a new version may write files that an older one cannot
   read. The successor of a child that ends before takes over at once.

Up to step 4 a failure changes nothing: the running processes continue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldfare.runtimes.process.children import Child, ChildSpec, Successor, describe_exit
from fieldfare.runtimes.process.heartbeat import Heartbeat
from fieldfare.runtimes.process.listening import share_port
from fieldfare.runtimes.process.locks import birth_of
from fieldfare.runtimes.process.reexec import Inheritance, ProgramCheck

PREPARE_MAX_S = 300.0
"""Seconds for a successor to prepare, from its start."""
TAKE_OVER_MAX_S = 300.0
"""Seconds until all successors work, from the stop of their predecessors; then the restart has failed."""
REASON_MAX = 500
"""Maximum characters of the reason for a failure in the state file; the console shows all of it."""


class ServiceState(Heartbeat):
    """The file ``run/serve.json``: what the supervisor is doing, written at each change.

    `state` is running, or during a restart checking, preparing or replacing; `restarts` counts the restarts,
    `deaths` how often each child died or was ended as it hung, and `error` is the reason why the last restart
    failed.
    """

    def __init__(self, path: Path, restarts: int, deaths: Mapping[str, int]) -> None:
        super().__init__(path)
        self.restarts = restarts
        self.deaths = dict(deaths)

    def figures(self) -> Mapping[str, Any]:
        return {"birth": birth_of(os.getpid()), "restarts": self.restarts, "deaths": self.deaths}

    def died(self, name: str) -> None:
        """Count the death of a child."""
        self.deaths[name] += 1
        self.repeat()


class Restarter:
    """Restarts the children of a supervisor, when that is requested.

    Parameters
    ----------
    specs
        The children's specs by name.
    children
        The running children by name; they are replaced in it.
    inheritance
        What the next program inherits, except for the children.
    state
        The file with the state.
    say
        Receives lines for the console.
    was_signalled
        Returns whether a signal waits for the supervisor, which must not replace its program now.
    before
        Called before this program is replaced.
    """

    def __init__(
        self,
        specs: Mapping[str, ChildSpec],
        children: dict[str, Child],
        inheritance: Inheritance,
        state: ServiceState,
        say: Callable[[str], None],
        *,
        was_signalled: Callable[[], bool],
        before: Callable[[], None],
    ) -> None:
        self._specs = specs
        self._children = children
        self._inheritance = inheritance
        self._state = state
        self._say = say
        self._was_signalled = was_signalled
        self._before = before
        self._check: ProgramCheck | None = None
        self._successors: dict[str, Successor] = {}
        self._replaced: set[str] = set()
        self._until_s: dict[str, float] = {}
        self._leaving: dict[str, tuple[Child, float]] = {}
        self._is_requested = False
        self._began_s = 0.0
        is_due = inheritance.is_restart
        self._step: Callable[[float], None] = self._begin_preparing if is_due else self._wait
        state.beat("preparing" if is_due else "running")

    def request(self) -> None:
        """Request a restart. May be called from a signal handler."""
        self._is_requested = True

    def step(self, now_s: float) -> None:
        """Continue with what is under way. To be called repeatedly."""
        self._step(now_s)
        self._bury(now_s)

    def is_under_way(self) -> bool:
        """Return whether a restart has begun and not ended."""
        return self._step != self._wait

    def prepares(self, name: str) -> bool:
        """Return whether a successor of a child, which takes its place in any case, has been started."""
        return name in self._successors

    def is_leaving(self, name: str) -> bool:
        """Return whether a child's predecessor still runs."""
        return name in self._leaving

    def pids(self) -> set[int]:
        """Return the ids of processes that are not among the children."""
        successors = [each.child.pid for each in self._successors.values()]
        leaving = [child.pid for child, _ in self._leaving.values()]
        return {*successors, *leaving, *(() if self._check is None else (self._check.pid,))}

    def stop(self, hurry: Callable[[], bool]) -> None:
        """Kill successors, and wait for children that are stopping; kill these, too, in a hurry."""
        if self._check is not None:
            self._check.stop()
        self._give_up()
        for child, _ in self._leaving.values():
            child.stop(hurry)
        self._leaving.clear()

    def _wait(self, now_s: float) -> None:
        if not self._is_requested:
            return
        self._is_requested = False
        self._say("restarting: checking the program and its settings")
        self._state.beat("checking")
        share_port(self._inheritance.listener)
        try:
            self._check = ProgramCheck(self._next())
        except OSError as error:
            self._fail(str(error))
            return
        self._step = self._follow_check

    def _follow_check(self, now_s: float) -> None:
        assert self._check is not None
        problem = self._check.problem()
        if problem is None:
            return
        self._check = None
        if problem:
            self._fail(problem)
            return
        self._step = self._continue_as_new_program
        self._continue_as_new_program(now_s)

    def _continue_as_new_program(self, now_s: float) -> None:
        self._before()
        try:
            self._next().execute(self._was_signalled)
        except OSError as error:
            self._fail(str(error))

    def _next(self) -> Inheritance:
        children = {name: child.running for name, child in self._children.items()}
        restarts, deaths = self._state.restarts, self._state.deaths
        return replace(
            self._inheritance, children=children, restarts=restarts, deaths=deaths, is_restart=True
        )

    def _begin_preparing(self, now_s: float) -> None:
        self._say("restarting: new processes prepare beside the running ones")
        self._step = self._prepare
        self._prepare(now_s)

    def _prepare(self, now_s: float) -> None:
        for name, spec in self._specs.items():
            if name not in self._successors.keys() | self._replaced and spec.may_start():
                try:
                    self._successors[name] = Successor(spec)
                except OSError as error:
                    self._fail(f"{name} could not be started: {error}")
                    return
                self._until_s[name] = now_s + PREPARE_MAX_S
        self._replace_ended()
        is_complete = len(self._successors) + len(self._replaced) == len(self._specs)
        if is_complete and all(each.is_prepared() for each in self._successors.values()):
            self._replace(now_s)
            return
        for name, successor in self._successors.items():
            if (code := successor.child.exit_code()) is not None:
                last = [line for line in successor.child.last_lines() if line.strip()][-1:]
                self._fail(f"the new {name} {describe_exit(code)}" + "".join(f": {line}" for line in last))
                return
            if now_s >= self._until_s[name] and not successor.is_prepared():
                self._fail(f"the new {name} was not prepared after {PREPARE_MAX_S:.0f} s")
                return

    def _replace_ended(self) -> None:
        """Let the prepared successors of children that have ended take over: the others may need minutes."""
        for name in self._successors.keys() - self._children.keys():
            if self._successors[name].is_prepared():
                self._children[name] = self._successors.pop(name).take_over()
                self._replaced.add(name)

    def _replace(self, now_s: float) -> None:
        self._say("restarting: the new processes replace the running ones")
        self._state.beat("replacing")
        for name in self._successors.keys() & self._children.keys():
            child = self._children[name]
            child.request_stop()
            self._leaving[name] = child, now_s + child.spec.stop_s
        for name, successor in self._successors.items():
            self._children[name] = successor.take_over()
        self._successors.clear()
        self._began_s = now_s
        self._step = self._take_over

    def _take_over(self, now_s: float) -> None:
        all_ready = all(name in self._children and self._children[name].is_ready for name in self._specs)
        if all_ready and not self._leaving:
            self._state.restarts += 1
            self._state.beat("running")
            self._replaced.clear()
            self._say(f"restarted; the change of processes took {now_s - self._began_s:.1f} s")
            self._step = self._wait
        elif now_s - self._began_s > TAKE_OVER_MAX_S:
            self._end(f"the new processes were not ready after {TAKE_OVER_MAX_S:.0f} s")

    def _bury(self, now_s: float) -> None:
        """Kill what is left of predecessors that have ended, or did not end in time."""
        for name, (child, until_s) in list(self._leaving.items()):
            if child.exit_code() is not None or now_s >= until_s:
                child.sweep()
                del self._leaving[name]

    def _fail(self, why: str) -> None:
        self._give_up()
        self._end(f"{why}; the running processes continue")

    def _end(self, why: str) -> None:
        self._state.restarts += 1
        self._replaced.clear()
        self._state.beat("running", error=why[:REASON_MAX])
        self._say(f"the restart failed: {why}")
        self._step = self._wait

    def _give_up(self) -> None:
        for successor in self._successors.values():
            with suppress(OSError):
                successor.give_up()
        self._successors.clear()
