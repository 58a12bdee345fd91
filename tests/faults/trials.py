"""Trials of a service: accidents drawn by a seed, one after the other, under a load that checks every answer.

A trial is a service on a disk of its own. When its accidents are over, everything that was acknowledged must
have come to whoever it matched; then the next trial begins on an empty disk.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from accidents import HOOKS, MIB, LossyDisk, fill, frozen, kill, lossy_disk, readiness, victims_of
from bursts import burst, draw
from ledger import Fault
from load import LoadSettings
from scene import BUSY, Scene, scene
from service_support import MARKS, until
from wire import Wire

from fieldfare.client import Client
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare_lab.floods import FLOODS, QUOTAS, flooding
from fieldfare_lab.kafka_broker import KafkaBroker

KINDS = ("lost", "doubled", "wrong", "foreign", "stuck")
READY_S = 600.0
"""Longer than the machine needs that does much else besides: who is not ready then never will be."""
HUNG_S = 20
"""What has hung so long is started anew: sooner than by default, for a trial hangs often."""
RESTART_S = 12.0
"""Seconds that a restart takes, about."""
WEEK_S = 7 * 86_400
DISK_BYTES = 900 * MIB
LOAD = LoadSettings(pace_s=0.03, large_share=0.02, bulk_subscriptions=2_500)
PATH = "/v1/spaces/default/subscriptions/streamed"
FLOOD_QUOTAS = QUOTAS | {"bytes_per_s": 100_000.0}
"""Less than retention removes while readers are held up: what is overtaken by it would count as lost."""


@dataclass
class Report:
    """What was done to services, and what they broke of what they promise.

    Attributes
    ----------
    kills
        How often ``kill -9`` ended processes of a kind; ``all`` of them when the power fails.
    """

    seed: int
    trials: int = 0
    operations: int = 0
    deliveries: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    accidents: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)

    def __add__(self, other: Report) -> Report:
        """Both reports as one; its seed is the first one's."""
        return Report(
            self.seed,
            self.trials + other.trials,
            self.operations + other.operations,
            self.deliveries + other.deliveries,
            self.kills + other.kills,
            self.accidents + other.accidents,
            self.broken + other.broken,
            self.said + other.said,
        )

    def line(self) -> str:
        """The report as one line of JSON."""
        broken = {kind: self.broken[kind] for kind in KINDS}
        counts = {
            "operations": self.operations,
            "kills": self.kills.total(),
            "faults": self.accidents.total(),
        }
        more = {"seed": self.seed, "trials": self.trials, "deliveries": self.deliveries}
        kinds = {
            "killed": dict(sorted(self.kills.items())),
            "accidents": dict(sorted(self.accidents.items())),
        }
        return json.dumps(counts | broken | more | kinds)


class Trial:
    """One service, and what happens to it.

    Parameters
    ----------
    played
        The service under its load.
    disk, folder
        Where its data lies, if it has a disk of its own, and where what rules the accidents does.
    wire
        Between it and its clients.
    report
        Is told of all that is done.
    broker
        Keeps the service's logs, if they are in Kafka.
    """

    def __init__(
        self,
        played: Scene,
        disk: LossyDisk | None,
        folder: Path,
        wire: Wire,
        report: Report,
        broker: KafkaBroker | None = None,
    ) -> None:
        self.played, self.disk, self.folder, self.wire, self.report = played, disk, folder, wire, report
        self.broker = broker
        self.random = played.random
        self._flood = ExitStack()

    def close(self) -> None:
        """End the flood that is under way."""
        self._flood.close()

    def suffer(self, name: str) -> None:
        """One accident, and then some progress."""
        self.report.accidents[name] += 1
        accident, _, kind = name.partition(" ")
        ACCIDENTS[accident](self, kind)
        until(lambda: readiness(self.played.service) == {}, READY_S, f"(ready after {name})")
        self.played.load.flow(self.random.randrange(1, 300), READY_S)

    def kill(self, kind: str) -> None:
        self.report.kills.update(SEVERAL.get(kind, (kind,)))
        self.played.strike(kind)

    def burst(self, kind: str) -> None:
        """Some kills, one upon the other; then all that is owed must come before anything else happens."""
        played, kills, began_s = self.played, self.report.kills.total(), time.monotonic()
        with played.load.no_peace():
            burst(played, draw(self.random), self.report.kills)
            struck_s = time.monotonic()
            until(lambda: readiness(played.service) == {}, READY_S, "(ready after a burst)")
        ready_s = time.monotonic()
        played.load.settle()
        print(
            f"{self.report.kills.total() - kills} kills in {struck_s - began_s:.1f} s, ready"
            f" {ready_s - struck_s:.1f} s later, all delivered {time.monotonic() - ready_s:.1f} s after that"
        )
        played.load.resume()

    def hang(self, kind: str) -> None:
        """SIGSTOP for a while: sometimes long enough to be noticed."""
        with frozen(victims_of(self.played.service, kind)):
            self.played.linger(self.random.choice([0.5, 3, 12]))

    def strand(self, kind: str) -> None:
        """The broker dies, or does nothing for a while: sometimes longer than anybody waits for it."""
        broker = self.broker
        assert broker is not None
        if kind == "killed":
            broker.kill()
        else:
            broker.stop_answering()
        try:
            self.played.linger(self.random.choice([0.5, 3, 15]))
        finally:
            if kind == "killed":
                broker.start_again()
            else:
                broker.answer_again()

    def power(self, kind: str) -> None:
        """The power fails: what was not synced may be gone."""
        played, disk = self.played, self.disk
        assert disk is not None
        played.service.freeze()
        after = disk.fail()
        played.service.kill()
        disk.drop_old()
        played.data = after / "data"
        self.report.kills["all"] += 1
        played.restart()

    def full(self, kind: str) -> None:
        """Not a byte is left on the disk for a while."""
        ballast = fill(self.played.data)
        try:
            self.played.linger(self.random.choice([1, 5, 15]))
        finally:
            ballast.unlink()

    def failing(self, kind: str) -> None:
        """For some seconds some of all writes and syncs fail."""
        control = self.folder / "disk.txt"
        control.write_text(str(self.random.choice([2, 20, 200])))
        try:
            self.played.linger(self.random.choice([0.5, 3]))
        finally:
            control.write_text("")

    def clock(self, kind: str) -> None:
        """The wall clock jumps, and later back."""
        clock = self.folder / "clock.txt"
        clock.write_text(str(self.random.choice([-WEEK_S, -60, 60, 3600])))
        self.played.linger(2)
        if self.random.random() < 0.5:
            clock.write_text("0")

    def cut(self, kind: str) -> None:
        """Every connection is reset, some times."""
        for _ in range(self.random.randrange(1, 5)):
            self.wire.cut()
            self.played.linger(self.random.random())

    def slow(self, kind: str) -> None:
        """Every piece on every connection takes long."""
        self.wire.delay_s = self.random.choice([0.01, 0.1])
        try:
            self.played.linger(4)
        finally:
            self.wire.delay_s = 0.0

    def restart(self, kind: str) -> None:
        """All processes are replaced by new ones; if `kind` is "killed", one of them is killed meanwhile."""
        service = self.played.service
        state = service.folder.heartbeat_of("serve")
        before = read_beat(state)["restarts"]
        os.kill(service.process.pid, signal.SIGUSR2)
        if kind == "killed":
            self.played.linger(self.random.uniform(0, RESTART_S))
            victim = self.random.choice(PROCESSES)
            # Of two of a kind, one prepares to replace the other.
            pids = service.processes(MARKS[victim])
            if pids:
                kill([self.random.choice(pids)])
                self.report.kills[victim] += 1
        until(lambda: read_beat(state).get("restarts", 0) > before, READY_S, "(restarted, or refused to)")
        if kind != "killed":
            assert read_beat(state)["error"] is None, read_beat(state)["error"]
        service.wait_ready()

    def files(self, kind: str) -> None:
        """A process may open no more files than it has open."""
        for pid in victims_of(self.played.service, kind):
            with suppress(ProcessLookupError, OSError):
                soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
                try:
                    self.played.linger(3)
                finally:
                    with suppress(ProcessLookupError):
                        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    def flood(self, kind: str) -> None:
        """Another space floods the service, beside all that happens until the next flood."""
        self._flood.close()
        url = self.played.service.url
        with Client(url) as client:
            if "flood" not in client.spaces():
                client.create_space("flood")
            client.set_quotas("flood", FLOOD_QUOTAS)
        to = urlsplit(url)
        self._flood.enter_context(flooding(kind, (str(to.hostname), int(to.port or 0))))
        self.played.linger(3)

    def nonsense(self, kind: str) -> None:
        """Broken requests: valid ones with bytes changed, cut off, repeated."""
        to = urlsplit(self.played.service.url)
        for _ in range(200):
            with suppress(OSError), socket.create_connection((to.hostname, to.port), timeout=2) as raw:
                raw.sendall(nonsense(self.random))
                raw.shutdown(socket.SHUT_WR)
                raw.settimeout(2)
                answer = raw.recv(200)
                if answer.startswith(b"HTTP/1.1 500"):
                    raise Fault("wrong", f"a broken request was answered {answer!r}")
        self.report.operations += 200


_BODY = json.dumps({"positions": ["0-0-0"], "up_to": None}).encode()
_WHOLE = (
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET %s/stream?window=1 HTTP/1.1\r\nHost: localhost\r\n\r\n" % PATH.encode(),
    b"POST %s/nack HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 23\r\n\r\n{"positions":["1-1-1"]}' % PATH.encode(),
    b"POST /v1/filters:check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n14\r\n{"filter":"a = 1 OR"\r\n1\r\n}\r\n0\r\n\r\n',
    b"GET %s/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x81\x85\0\0\0\0hello"
    % PATH.encode(),
)


def nonsense(random: Random) -> bytes:
    """A request, nearly: never one that settles what somebody is owed, or publishes."""
    text = bytearray(random.choice(_WHOLE))
    for _ in range(random.randrange(1, 6)):
        at = random.randrange(len(text))
        match random.randrange(4):
            case 0:
                text[at] = random.randrange(256)
            case 1:
                del text[at : at + random.randrange(1, 20)]
            case 2:
                text[at:at] = random.randbytes(random.randrange(1, 20))
            case _:
                text[at:at] = text[: random.randrange(len(text))]
        if not text:
            break
    return bytes(text)


ACCIDENTS: dict[str, Callable[[Trial, str], None]] = {
    name: getattr(Trial, name)
    for name in (
        *("kill", "burst", "hang", "strand", "power", "full", "failing", "clock", "cut", "slow", "files"),
        *("restart", "nonsense", "flood"),
    )
}

SEVERAL = {"both": ("driver", "gateway"), "starting": ("driver", "driver")}
"""Who is killed by accidents of two kills."""

PROCESSES = ("gateway", "driver", "task", "java", "indexer")
DECK = (
    *(f"kill {kind}" for kind in (*PROCESSES, "snapshot", "both", "starting", "supervisor")),
    *("kill gateway", "kill gateway", "kill indexer", "kill task", "kill both"),
    *(f"hang {kind}" for kind in PROCESSES),
    *("burst", "burst"),
    *("power", "power", "full", "failing", "failing", "clock", "cut", "slow", "nonsense"),
    *("files gateway", "files driver", "files indexer"),
    *("restart whole", "restart killed", "restart killed"),
    *(f"flood {kind}" for kind in FLOODS),
)
"""What happens in one trial, in an order drawn anew for each."""

KAFKA_DECK = (*DECK, *(f"strand {kind}" for kind in ("killed", "hung") for _ in range(4)))
"""The same where the logs are in Kafka."""

NEEDS_DISK = {"power", "full"}


def kind_of(name: str) -> str:
    """The kind of an accident, of which a deck may have several."""
    return name.partition(" ")[0]


def only(deck: tuple[str, ...], kinds: Collection[str]) -> tuple[str, ...]:
    """Of a deck what is of some kinds, again and again until a trial is about as long as it was."""
    chosen = tuple(name for name in deck if kind_of(name) in kinds)
    return chosen * -(-len(deck) // max(1, len(chosen)))


def find_compiler() -> str | None:
    """A compiler of C, if there is one."""
    return shutil.which("cc") or shutil.which("gcc")


def failing_disk(folder: Path) -> Path | None:
    """The library that makes writes fail, compiled; None where there is no compiler."""
    compiler = find_compiler()
    if compiler is None:
        return None
    library = folder / "failing_disk.so"
    source = str(HOOKS / "failing_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), source, "-ldl"], check=True)
    return library


def run_trial(
    folder: Path,
    seed: int,
    report: Report,
    deck: tuple[str, ...] = DECK,
    until_s: float = float("inf"),
    broker: KafkaBroker | None = None,
    load: LoadSettings = LOAD,
) -> None:
    """One trial in a folder of its own, with one accident at least; what it breaks goes into the report."""
    report.trials += 1
    names = list(deck)
    Random(seed).shuffle(names)
    environment = {"FAULT_CLOCK": str(folder / "clock.txt"), "PYTHONPATH": str(HOOKS)}
    (folder / "clock.txt").write_text("0")
    library = failing_disk(folder)
    if library is not None:
        (folder / "disk.txt").write_text("")
        hit = {"FAULT_DISK": str(folder / "disk.txt"), "FAULT_DISK_FOLDER": str(folder / "mounted")}
        environment |= hit | {"LD_PRELOAD": str(library)}
    else:
        names = [name for name in names if name != "failing"]
    apart = not NEEDS_DISK.isdisjoint(map(kind_of, names))
    if broker is not None:
        environment["FIELDFARE_LOG"] = f"kafka://{broker.address}/trial-{seed}?partitions=1"
    options = {**BUSY, "retention_bytes": 32 * MIB, "disk_free_min_bytes": 0}
    if "hang" in map(kind_of, names):
        options["pipeline_stall_s"] = HUNG_S
    wire = Wire()
    name = "the start"
    try:
        with (
            lossy_disk(folder, DISK_BYTES) if apart else nullcontext() as disk,
            scene(
                (folder / "mounted" if disk is None else disk.at) / "data",
                seed,
                load,
                wire=wire,
                console=folder / "console.txt",
                environment=environment,
                **options,
            ) as played,
        ):
            trial = Trial(played, disk, folder, wire, report, broker)
            try:
                played.load.flow(20, READY_S)
                for place, name in enumerate(names):
                    if place and time.monotonic() >= until_s:
                        break
                    print(f"{time.strftime('%H:%M:%S')} {seed} {name}", flush=True)
                    trial.suffer(name)
                name = "the end"
            finally:
                trial.close()
                done = played.load
                report.operations += done.ledger.acknowledged + done.calls
                report.deliveries += sum(len(reader.confirmed) for reader in done.readers.values())
    except AssertionError as error:
        kind = error.kind if isinstance(error, Fault) else "stuck"
        report.broken[kind] += 1
        report.said.append(f"seed {seed}, at {name}: {kind}: {error}")
        traceback.print_exc()
    finally:
        wire.close()


def run_trials(
    seed: int, seconds: float, deck: tuple[str, ...] = DECK, broker: KafkaBroker | None = None
) -> Report:
    """Trials for so long, or a little longer: the last one comes to its end."""
    report = Report(seed)
    until_s = time.monotonic() + seconds
    at = 0
    while at == 0 or time.monotonic() < until_s:
        folder = Path(tempfile.mkdtemp(prefix="fieldfare-trial-"))
        run_trial(folder, seed + at, report, deck, until_s, broker)
        shutil.rmtree(folder, ignore_errors=True)
        print(report.line(), flush=True)
        at += 1
    return report
