"""A Kafka broker of one node on loopback, for tests and benchmarks: fetched by Maven once, killed by its id.

    python -m fieldfare_lab.kafka_broker fieldfare demo --log kafka

runs a command with a broker that lasts as long as the command: the argument `kafka` is replaced by the
address of a new topic.

It needs Java and Maven; `why_no_broker` tells what is missing. The jars are stored in ``.kafka/jars``, which
git ignores.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from fieldfare_lab.maven import fetched
from fieldfare_lab.ports import find_free_port

VERSION = "4.3.1"
READY_S = 180.0

_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised_port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
log.dirs={folder}/log
"""

_JAVA = (
    "java",
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
)


def why_no_broker() -> str | None:
    """Return what is missing here for a broker and its client, or None. The first call may download jars."""
    if find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed"
    if shutil.which("java") is None:
        return "there is no Java"
    return _jars()[1]


def _jars() -> tuple[Path, str | None]:
    return fetched("jars", (f"org.apache.kafka:kafka_2.13:{VERSION}",))


class KafkaBroker:
    """A broker with an empty log in a folder of its own, which is removed when the broker is closed.

    Parameters
    ----------
    port, advertised_port
        The port to listen on, and the port to advertise, if a proxy is in between.
    within
        The folder in which its folder is created.
    """

    def __init__(
        self, port: int | None = None, advertised_port: int | None = None, within: Path | None = None
    ) -> None:
        self.port = find_free_port() if port is None else port
        self._held = tempfile.TemporaryDirectory(prefix="kafka-", dir=within)
        self.folder = Path(self._held.name)
        self._settings = self.folder / "server.properties"
        self._settings.write_text(
            _SETTINGS.format(
                port=self.port,
                advertised_port=advertised_port or self.port,
                controller_port=find_free_port(),
                folder=self.folder,
            )
        )
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        self._run("kafka.tools.StorageTool", "format", "-t", name, "-c", str(self._settings)).wait(READY_S)
        self._process = self._start()

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it, like a power failure."""
        self._process.kill()
        self._process.wait(READY_S)

    def stop_answering(self) -> None:
        """Suspend it, with its connections open."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def answer_again(self) -> None:
        """Resume it."""
        os.kill(self._process.pid, signal.SIGCONT)

    def start_again(self) -> None:
        """Start it on its existing files."""
        self._process = self._start()

    def close(self) -> None:
        """Kill it, and remove its files."""
        if self._process.poll() is None:
            self.answer_again()
            self.kill()
        self._held.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "broker.log").open("ab") as log:
            return subprocess.Popen(
                [*_JAVA, "-cp", f"{_jars()[0]}/*", program, *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def _start(self) -> subprocess.Popen[bytes]:
        process = self._run("kafka.Kafka", str(self._settings))
        give_up_s = time.monotonic() + READY_S
        while time.monotonic() < give_up_s and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return process
            except OSError:
                time.sleep(0.05)
        process.kill()
        raise RuntimeError(f"the Kafka broker did not start:\n{self.log()}")

    def log(self) -> str:
        """Return the end of its console output."""
        return (self.folder / "broker.log").read_text(errors="replace")[-2_000:]


def main(command: list[str]) -> int:
    """Run a command with a broker, see above; return its exit status."""
    if (reason := why_no_broker()) is not None:
        print(f"there can be no Kafka broker here: {reason}", file=sys.stderr)
        return 1
    with KafkaBroker() as broker:
        topic = f"kafka://{broker.address}/events"
        return subprocess.run([topic if each == "kafka" else each for each in command]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
