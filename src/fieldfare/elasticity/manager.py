"""The manager (Barazzutti et al. 2014, section IV.B, Figure 4): collects probes, orchestrates moves.

    hosts ──HostProbes──▶ manager ──ClusterProbes──▶ enforcer
    hosts ◀──the steps of a move── manager ◀──MigrationRequest── enforcer
                                      └──KeepConfiguration──▶ the durable configuration

A move is Figure 3, one step after the other, and its place in the configuration tells its progress:

    waits in `moves`   PrepareCopy to host 2, until CopyPrepared                                  kept: `to`
    `to` is host 2     Wiring to all, until each is Wired; SendCopy to host 1; until SliceActive  kept: `host`
    `host` is host 2   Wiring to all; RemoveSlice to host 1 when it reports that it still has the slice

The manager acts only on the stored configuration, and repeats its requests until they are done; hosts do
nothing twice. So a restarted manager reads the configuration and resumes. If the previous one still writes,
the manager whose write comes second adopts the other's. A silent host is considered dead: its slices restart
elsewhere from their stored states (see ``slices``), under an epoch that invalidates the old host's work; its
name is not reused.

Where the text is open: one slice moves at a time, so a wiring has one change and a vector belongs to one
wiring; if host 1 or host 2 of a move dies, the move is undone, or completed from the stored state, depending
on which of them is left.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from fieldfare.effects import Ask, AskFailed, Effect, Send, Timer, source
from fieldfare.elasticity.configuration import Configuration, SlicePlace
from fieldfare.elasticity.messages import (
    AddHost,
    ClusterProbes,
    CopyPrepared,
    HostAdded,
    HostProbes,
    HostReleased,
    MigrationRequest,
    PrepareCopy,
    Probe,
    Pulse,
    ReleaseHost,
    RemoveSlice,
    RestoreSlice,
    SendCopy,
    SliceActive,
    SliceMove,
    Wired,
)


@dataclass(frozen=True, slots=True)
class KeepConfiguration:
    """Request to store this durably, if it is the next version of the stored configuration.

    Answer: `ConfigurationKept`, or `ConfigurationRead` with the configuration of another manager.
    """

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class ConfigurationKept:
    """The configuration of this version is stored."""

    version: int


@dataclass(frozen=True, slots=True)
class ReadConfiguration:
    """Request to read the stored configuration. Answer: `ConfigurationRead`."""


@dataclass(frozen=True, slots=True)
class ConfigurationRead:
    """The stored configuration, or None if there is none."""

    configuration: Configuration | None


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """The manager's intervals, in seconds.

    Parameters
    ----------
    pulse_s
        Interval of checks. Shorter: lost messages are repeated sooner.
    again_s
        Time after which an unanswered message is repeated. Must be longer than an answer takes, or everything
        is sent twice.
    dead_after_s
        Silence after which a host is considered dead; many pulses of a host.
    start_s
        Time that a new host may take until its first heartbeat.
    """

    pulse_s: float = 0.5
    again_s: float = 2.0
    dead_after_s: float = 10.0
    start_s: float = 120.0


class Manager:
    """Collects the hosts' probes for the enforcer, and carries out the enforcer's requests.

    Parameters
    ----------
    first
        The configuration of a cluster that has never run; a stored configuration overrides it.
    """

    def __init__(
        self, first: Configuration, settings: ManagerSettings | None = None, enforcer: str = "enforcer"
    ) -> None:
        self.settings = settings or ManagerSettings()
        self.configuration = first
        self._enforcer = enforcer
        self._is_kept = False
        self._heard_s: dict[str, float] = {}
        self._said_s: dict[Hashable, float] = {}
        self._probes: dict[str, Probe] = {}
        self._wired: dict[str, Wired] = {}
        self._handlers: dict[type, Any] = {
            Pulse: self._pulse,
            ConfigurationRead: self._read,
            ConfigurationKept: self._was_kept,
            HostAdded: self._host_added,
            HostReleased: self._host_released,
            HostProbes: self._heartbeat,
            MigrationRequest: self._requested,
            CopyPrepared: self._prepared,
            Wired: self._was_wired,
            SliceActive: self._active,
            AskFailed: self._ask_failed,
        }

    def start(self, now: float) -> list[Effect]:
        """Request the configuration that a previous manager stored."""
        return [Ask(ReadConfiguration())]

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message; see ``messages``."""
        sender, message = source("manager", message)
        if not self._heard_s and not isinstance(message, ConfigurationRead):
            return self._before_configuration(message, now)
        effects: list[Effect] = self._handlers[type(message)](sender, message, now)
        return effects

    def _read(self, sender: str, message: ConfigurationRead, now: float) -> list[Effect]:
        timers = [] if self._heard_s else [Timer(now + self.settings.pulse_s, Pulse())]
        if message.configuration is None:
            return [*timers, *self._change(self.configuration, now)]
        self.configuration, self._is_kept = message.configuration, True
        self._heard_s = dict.fromkeys(self.configuration.everyone, now)
        return [*timers, *self._drive(now)]

    def _change(self, configuration: Configuration, now: float) -> list[Effect]:
        """Adopt another configuration; it takes effect when it is stored."""
        self.configuration, self._is_kept = configuration, False
        grace_s = self.settings.start_s - self.settings.dead_after_s
        self._heard_s = {host: self._heard_s.get(host, now + grace_s) for host in configuration.everyone}
        return [Ask(KeepConfiguration(configuration))]

    def _was_kept(self, sender: str, message: ConfigurationKept, now: float) -> list[Effect]:
        if message.version != self.configuration.version:
            return []
        self._is_kept = True
        return self._drive(now)

    def _before_configuration(self, message: object, now: float) -> list[Effect]:
        """Ask for the stored configuration again if it could not be read; ignore everything else."""
        if isinstance(message, AskFailed):
            return [Timer(now + self.settings.again_s, Pulse())]
        return [Ask(ReadConfiguration())] if isinstance(message, Pulse) else []

    def _ask_failed(self, sender: str, message: AskFailed, now: float) -> list[Effect]:
        """Do nothing: a request is repeated with a pulse."""
        return []

    # Messages of hosts and of the enforcer

    def _pulse(self, sender: str, message: Pulse, now: float) -> list[Effect]:
        timer = Timer(now + self.settings.pulse_s, Pulse())
        return [timer, *self._drive(now)]

    def _heartbeat(self, sender: str, message: HostProbes, now: float) -> list[Effect]:
        """Collect probes; send them on once every slice has a new one (section IV.B)."""
        effects: list[Effect] = []
        places = self.configuration.places
        if sender in self._heard_s:
            self._heard_s[sender] = now
        if self._is_kept:
            for name, epoch in message.epochs.items():
                place = places.get(name)
                is_due = place is not None and sender in (place.host, place.to, self._next_host(name))
                if place is not None and not is_due:
                    effects.append(Send(sender, RemoveSlice(name, epoch)))
        self._probes |= {
            name: probe
            for name, probe in message.probes.items()
            if name in places and places[name].host == sender
        }
        if self._probes.keys() == places.keys():
            effects.append(Send(self._enforcer, self._cluster_probes()))
            self._probes = {}
        return effects

    def _cluster_probes(self) -> ClusterProbes:
        configuration = self.configuration
        is_at_rest = not configuration.moves and not configuration.leaving
        is_settled = is_at_rest and not any(
            place.to or place.is_lost for place in configuration.places.values()
        )
        hosts = {name: place.host for name, place in configuration.places.items()}
        return ClusterProbes(dict(self._probes), hosts, configuration.hosts, is_settled)

    def _next_host(self, name: str) -> str | int | None:
        moves = self.configuration.moves
        return moves[0].to if moves and moves[0].slice == name else None

    def _requested(self, sender: str, message: MigrationRequest, now: float) -> list[Effect]:
        """Accept one request at a time: the enforcer decides again by the probes after it."""
        if self.configuration.moves or self.configuration.moving:
            return []
        return self._change(self.configuration.requested(message), now)

    def _host_added(self, sender: str, message: HostAdded, now: float) -> list[Effect]:
        return []

    def _host_released(self, sender: str, message: HostReleased, now: float) -> list[Effect]:
        released = tuple(host for host in self.configuration.released if host != message.host)
        return self._change(self.configuration.changed(released=released), now)

    def _prepared(self, sender: str, message: CopyPrepared, now: float) -> list[Effect]:
        """Handle step 2: from now on the slice's inputs go to both hosts."""
        move = self._next_move()
        if move is None or (move.slice, move.to) != (message.slice, sender):
            return []
        place = self.configuration.places[message.slice]
        if place.epoch + 1 != message.epoch:
            return []
        moves = self.configuration.moves[1:]
        moved = SlicePlace(place.host, place.epoch, to=sender)
        return self._change(self.configuration.placed(move.slice, moved, moves=moves), now)

    def _was_wired(self, sender: str, message: Wired, now: float) -> list[Effect]:
        self._wired[sender] = message
        return self._drive(now)

    def _active(self, sender: str, message: SliceActive, now: float) -> list[Effect]:
        """Handle the end of step 4, or the restart of a lost slice."""
        place = self.configuration.places.get(message.slice)
        if place is None:
            return []
        is_moved = (place.to, place.epoch + 1) == (sender, message.epoch)
        is_back = place.is_lost and (place.host, place.epoch) == (sender, message.epoch)
        if not is_moved and not is_back:
            return []
        active = SlicePlace(sender, message.epoch)
        return self._change(self.configuration.placed(message.slice, active), now)

    # Pending work

    def _next_move(self) -> SliceMove | None:
        """Return the move that may begin, if nothing else is in progress."""
        configuration = self.configuration
        is_busy = any(place.to or place.is_lost for place in configuration.places.values())
        return None if is_busy or not configuration.moves else configuration.moves[0]

    def _drive(self, now: float) -> list[Effect]:
        """Return the next messages, and repetitions of unanswered ones."""
        if not self._is_kept:
            return self._said(
                ("keep", self.configuration.version), now, Ask(KeepConfiguration(self.configuration))
            )
        dead = [host for host in self.configuration.hosts if self._is_silent(host, now)]
        if dead:
            return self._change(self.configuration.without(dead[0]), now)
        effects: list[Effect] = []
        for host in self.configuration.hosts:
            if self._heard_s[host] > now:
                effects += self._said(("add", host), now, Ask(AddHost(host)))
        for host in self.configuration.released:
            effects += self._said(("release", host), now, Ask(ReleaseHost(host)))
        effects += self._wire(now)
        for name, place in self.configuration.places.items():
            if place.is_lost:
                restore = Send(place.host, RestoreSlice(name, place.epoch))
                effects += self._said((name, place), now, restore)
        return effects + self._move(now) + self._release(now)

    def _is_silent(self, host: str, now: float) -> bool:
        return now - self._heard_s[host] > self.settings.dead_after_s

    def _said(self, what: Hashable, now: float, *effects: Effect) -> list[Effect]:
        """Return these effects, unless they were returned less than `again_s` seconds ago."""
        if now - self._said_s.get(what, -self.settings.again_s) < self.settings.again_s:
            return []
        again = self.settings.again_s
        self._said_s = {each: said for each, said in self._said_s.items() if now - said < again}
        self._said_s[what] = now
        return list(effects)

    def _wire(self, now: float) -> list[Effect]:
        """Send the wiring to all hosts that have not confirmed it for all their slices."""
        wiring = self.configuration.wiring
        effects: list[Effect] = []
        is_reached = self._reach() is not None
        for host in self.configuration.everyone:
            wired = self._wired.get(host)
            if wired is None or wired.version < wiring.version or not is_reached:
                effects += self._said(("wire", wiring.version, host), now, Send(host, wiring))
        return effects

    def _reach(self) -> dict[str, int] | None:
        """Return where the moving slice's new queues begin, by origin; None until all origins reported."""
        name = self.configuration.moving
        if name is None:
            return {}
        reach: dict[str, int] = {}
        for host in self.configuration.everyone:
            wired = self._wired.get(host)
            if wired is not None and wired.version == self.configuration.version:
                reach |= wired.reach.get(name, {})
        origins = self.configuration.operators.upstream(name, tuple(self.configuration.outer))
        sources = {origin for origin in origins if origin != self.configuration.operators.sink}
        return {origin: reach[origin] for origin in sources} if sources <= reach.keys() else None

    def _move(self, now: float) -> list[Effect]:
        name = self.configuration.moving
        if name is None:
            move = self._next_move()
            if move is None:
                return []
            place = self.configuration.places[move.slice]
            if place.host == move.to:
                return self._change(self.configuration.changed(moves=self.configuration.moves[1:]), now)
            prepare = Send(str(move.to), PrepareCopy(move.slice, place.epoch + 1))
            return self._said(("prepare", move.slice, place), now, prepare)
        reach = self._reach()
        place = self.configuration.places[name]
        if reach is None or place.to is None:
            return []
        send = Send(place.host, SendCopy(name, place.epoch + 1, place.to, reach))
        look = Send(place.to, PrepareCopy(name, place.epoch + 1))  # it may run, and its report be lost
        return self._said(("copy", name, self.configuration.version), now, send, look)

    def _release(self, now: float) -> list[Effect]:
        """Release the hosts that are empty; a host that still has a slice, and no pending move, stays."""
        configuration = self.configuration
        if not configuration.leaving or not self._is_kept:
            return []
        emptied = configuration.emptied()
        is_over = not configuration.moves and not configuration.moving
        leaving = () if is_over else tuple(host for host in configuration.leaving if host not in emptied)
        if leaving == configuration.leaving:
            return []
        hosts = tuple(host for host in configuration.hosts if host not in emptied)
        released = configuration.released + emptied
        return self._change(configuration.changed(hosts=hosts, leaving=leaving, released=released), now)
